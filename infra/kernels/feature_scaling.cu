/* Scale each column of a row-major float32 matrix: (value - center) / scale, rounded after each step.
 *
 * A scale of 0 (a column that never varies) divides by 1, as in scikit-learn, so such a column becomes its
 * distance from the center. NaN (missing) stays NaN. A zero is a value like any other: after centring a sparse
 * matrix is dense anyway.
 *
 * Specification: specification.py, scale_features. Threads: x over columns, y over rows; each one keeps its
 * column's center and scale and walks down the rows, so neighbours read neighbouring values.
 */
#include "kernel.h"

KERNEL scale_features(const float *matrix, const float *center, const float *scale, float *scaled,
                      unsigned int rows, unsigned int columns)
{
    unsigned int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns)
        return;
    float middle = center[column];
    float width = scale[column] == 0.0f ? 1.0f : scale[column];
    unsigned long long step = (unsigned long long)gridDim.y * blockDim.y;
    for (unsigned long long row = (unsigned long long)blockIdx.y * blockDim.y + threadIdx.y; row < rows;
         row += step) {
        unsigned long long place = row * columns + column;
        scaled[place] = (matrix[place] - middle) / width;
    }
}
