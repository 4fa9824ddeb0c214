/* Runs the kernels on the CPU: the same sources, one thread after the other.
 *
 * Every second launch takes the threads in the opposite order, so a kernel whose result hangs on their order
 * does not pass unseen.
 */
#include <stddef.h>
#include <string.h>

#include "kernel.h"

#include "feature_scaling.cu"
#include "top_k.cu"

#define ARGUMENT(number, type) (*(type *)arguments[number])

static void run_scale_features(void **arguments)
{
    scale_features(ARGUMENT(0, const float *), ARGUMENT(1, const float *), ARGUMENT(2, const float *),
                   ARGUMENT(3, float *), ARGUMENT(4, unsigned int), ARGUMENT(5, unsigned int));
}

static void run_top_k(void **arguments)
{
    top_k(ARGUMENT(0, const float *), ARGUMENT(1, float *), ARGUMENT(2, int *), ARGUMENT(3, unsigned int),
          ARGUMENT(4, unsigned int), ARGUMENT(5, unsigned int));
}

static const struct {
    const char *name;
    void (*run)(void **arguments);
} KERNELS[] = {{"scale_features", run_scale_features}, {"top_k", run_top_k}};

/* Number of the kernel of this name, -1 if there is none. */
int cpu_kernel(const char *name)
{
    for (size_t number = 0; number < sizeof KERNELS / sizeof *KERNELS; number++)
        if (strcmp(KERNELS[number].name, name) == 0)
            return (int)number;
    return -1;
}

/* Run every thread of a launch; arguments as cuLaunchKernel takes them. */
void cpu_launch(int kernel, const unsigned int grid[3], const unsigned int block[3], void **arguments)
{
    static int is_backwards = 0;
    struct place blocks = {grid[0], grid[1], grid[2]}, threads = {block[0], block[1], block[2]};
    unsigned long long in_block = (unsigned long long)threads.x * threads.y * threads.z;
    unsigned long long count = in_block * blocks.x * blocks.y * blocks.z;
    gridDim = blocks;
    blockDim = threads;
    for (unsigned long long turn = 0; turn < count; turn++) {
        unsigned long long number = is_backwards ? count - 1 - turn : turn;
        unsigned long long outer = number / in_block, inner = number % in_block;
        blockIdx.x = (unsigned int)(outer % blocks.x);
        blockIdx.y = (unsigned int)(outer / blocks.x % blocks.y);
        blockIdx.z = (unsigned int)(outer / blocks.x / blocks.y);
        threadIdx.x = (unsigned int)(inner % threads.x);
        threadIdx.y = (unsigned int)(inner / threads.x % threads.y);
        threadIdx.z = (unsigned int)(inner / threads.x / threads.y);
        KERNELS[kernel].run(arguments);
    }
    is_backwards = !is_backwards;
}
