/* The k largest values of each row of a row-major float32 matrix, largest first, with their columns.
 *
 * Of equal values the one in the lower column comes first; NaN (missing) comes after every number. Slots beyond
 * the columns hold NaN and column -1.
 *
 * Specification: specification.py, top_k. One block a row; each thread asks of one value how many others come
 * before it, which is its slot, and stops counting at k. The order is total, so each slot is written once, by one
 * thread, and nothing is shared. The cost grows with columns squared (less for a small k): meant for rows of
 * features, hundreds of columns, where it needs no scratch memory and no sorting network.
 */
#include "kernel.h"

/* Whether `other` comes before `value` in the order of the result. */
DEVICE int comes_before(float other, unsigned int other_column, float value, unsigned int column)
{
    int is_other_missing = other != other;
    int is_missing = value != value;
    if (is_other_missing != is_missing)
        return is_missing;
    if (!is_missing && other != value)
        return other > value;
#ifdef WARPGAUGE_WRONG_TIES /* a fault on purpose: the check must find it */
    return other_column > column;
#else
    return other_column < column;
#endif
}

KERNEL top_k(const float *matrix, float *values, int *indices, unsigned int rows, unsigned int columns,
             unsigned int k)
{
    for (unsigned long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *cells = matrix + row * columns;
        float *row_values = values + row * k;
        int *row_indices = indices + row * k;
        for (unsigned int column = threadIdx.x; column < columns; column += blockDim.x) {
            float value = cells[column];
            unsigned int slot = 0;
            for (unsigned int other = 0; other < columns && slot < k; other++)
                slot += comes_before(cells[other], other, value, column);
            if (slot < k) {
                row_values[slot] = value;
                row_indices[slot] = (int)column;
            }
        }
        for (unsigned long long slot = (unsigned long long)columns + threadIdx.x; slot < k; slot += blockDim.x) {
            row_values[slot] = NAN;
            row_indices[slot] = -1;
        }
    }
}
