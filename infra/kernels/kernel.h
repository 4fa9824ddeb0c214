/* One source, two builds: nvcc makes the GPU code, any C compiler makes the same code for the CPU.
 *
 * On the CPU a kernel is a function, and where the thread stands is in global variables that cpu_launch.c sets
 * before each call, one thread after the other. So a kernel here has neither shared memory nor barriers nor warp
 * functions: its threads never wait for each other, and each result is written by exactly one of them.
 */
#ifndef WARPGAUGE_KERNEL_H
#define WARPGAUGE_KERNEL_H

#ifdef __CUDACC__

#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__

#else

#include <math.h>

#define KERNEL static void
#define DEVICE static inline

struct place {
    unsigned int x, y, z;
};

static struct place threadIdx, blockIdx, blockDim, gridDim;

#endif

#endif
