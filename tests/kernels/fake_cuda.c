/* Stands in for libcuda.so.1: GPU memory is the heap, a launch runs the CPU build of the kernels.
 *
 * It is as strict as the driver where a loader goes wrong: handles must be its own, a copy must stay within one
 * allocation, nothing works before cuInit and a current context, and sizes of 0 are refused. Every call is
 * written into a log; any call can be made to fail.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_launch.c"

#define INVALID_VALUE 1
#define NOT_INITIALIZED 3
#define NO_DEVICE 100
#define INVALID_CONTEXT 201
#define INVALID_PTX 218
#define INVALID_HANDLE 400
#define NOT_FOUND 500
#define ILLEGAL_ADDRESS 700

#define MOST 4096

static struct {
    uint64_t start;
    size_t bytes;
} allocations[MOST];
static char log_text[1 << 22], failing[64], module_text[1 << 16];
static size_t log_used;
static int is_ready, has_context, failing_code, retained, module_count, event_count, kernel_numbers[8], device_count = 1;
static int context_tag, module_tag, event_tags[MOST];

/* The calls so far, one a line. */
const char *fake_log(void)
{
    return log_text;
}

/* From now on this call fails; an empty name ends it. */
void fake_fail(const char *name, int code)
{
    snprintf(failing, sizeof failing, "%s", name);
    failing_code = code;
}

void fake_device_count(int count)
{
    device_count = count;
}

/* Allocations, modules, events and contexts that were not given back. */
int fake_leaks(void)
{
    int count = retained + module_count + event_count;
    for (int number = 0; number < MOST; number++)
        count += allocations[number].start != 0;
    return count;
}

static int enter(const char *name)
{
    log_used += (size_t)snprintf(log_text + log_used, sizeof log_text - log_used, "%s\n", name);
    if (log_used + 64 > sizeof log_text)
        log_used = 0;
    if (strcmp(name, failing) == 0)
        return failing_code;
    return is_ready || strcmp(name, "cuInit") == 0 ? 0 : NOT_INITIALIZED;
}

#define ENTER                       \
    do {                            \
        int code = enter(__func__); \
        if (code)                   \
            return code;            \
    } while (0)
#define ENTER_CONTEXT               \
    do {                            \
        ENTER;                      \
        if (!has_context)           \
            return INVALID_CONTEXT; \
    } while (0)

/* Whether a range lies within one allocation. */
static int is_inside(uint64_t start, size_t bytes)
{
    for (int number = 0; number < MOST; number++)
        if (allocations[number].start && start >= allocations[number].start
            && start + bytes <= allocations[number].start + allocations[number].bytes)
            return 1;
    return 0;
}

int cuInit(unsigned int flags)
{
    ENTER;
    is_ready = 1;
    return flags ? INVALID_VALUE : device_count ? 0 : NO_DEVICE;
}

int cuDriverGetVersion(int *version)
{
    ENTER;
    *version = 12040;
    return 0;
}

int cuDeviceGetCount(int *count)
{
    ENTER;
    *count = device_count;
    return 0;
}

int cuDeviceGet(int *device, int number)
{
    ENTER;
    *device = number;
    return number < device_count ? 0 : INVALID_VALUE;
}

int cuDeviceGetName(char *name, int room, int device)
{
    ENTER;
    (void)device;
    snprintf(name, (size_t)room, "Fake GPU");
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER;
    (void)device;
    *value = attribute == 75 ? 7 : attribute == 76 ? 5 : -1;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    ENTER;
    (void)device;
    retained++;
    *context = &context_tag;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER;
    (void)device;
    has_context = 0;
    return retained-- > 0 ? 0 : INVALID_CONTEXT;
}

int cuCtxSetCurrent(void *context)
{
    ENTER;
    has_context = context == &context_tag;
    return has_context ? 0 : INVALID_CONTEXT;
}

int cuCtxSynchronize(void)
{
    ENTER_CONTEXT;
    return 0;
}

int cuModuleLoadDataEx(void **module, const void *image, unsigned int count, int *options, void **values)
{
    ENTER_CONTEXT;
    char *log = NULL;
    size_t room = 0;
    for (unsigned int number = 0; number < count; number++) {
        if (options[number] == 5)
            log = values[number];
        if (options[number] == 6)
            room = (size_t)values[number];
    }
    if (!strstr(image, "\n.version ") || !strstr(image, "\n.target ") || !strstr(image, "\n.address_size 64")) {
        if (log)
            snprintf(log, room, "line 1; fatal: no PTX");
        return INVALID_PTX;
    }
    size_t used = strlen(module_text);
    snprintf(module_text + used, sizeof module_text - used, "%s", (const char *)image);
    module_count++;
    *module = &module_tag;
    return 0;
}

int cuModuleUnload(void *module)
{
    ENTER_CONTEXT;
    module_count--;
    module_text[0] = 0;
    return module == &module_tag ? 0 : INVALID_HANDLE;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    ENTER_CONTEXT;
    if (module != &module_tag)
        return INVALID_HANDLE;
    char entry[128];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    int number = strstr(module_text, entry) ? cpu_kernel(name) : -1;
    if (number < 0)
        return NOT_FOUND;
    kernel_numbers[number] = number;
    *function = &kernel_numbers[number];
    return 0;
}

int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    ENTER_CONTEXT;
    (void)function;
    *value = attribute == 4 ? 32 : attribute == 0 ? 1024 : 0;
    return 0;
}

int cuMemAlloc_v2(uint64_t *pointer, size_t bytes)
{
    ENTER_CONTEXT;
    for (int number = 0; bytes && number < MOST; number++)
        if (!allocations[number].start) {
            allocations[number].start = (uint64_t)malloc(bytes);
            allocations[number].bytes = bytes;
            /* What memory holds at first is nothing to rely on. */
            memset((void *)allocations[number].start, 0x5A, bytes);
            *pointer = allocations[number].start;
            return 0;
        }
    return INVALID_VALUE;
}

int cuMemFree_v2(uint64_t pointer)
{
    ENTER_CONTEXT;
    for (int number = 0; number < MOST; number++)
        if (pointer && allocations[number].start == pointer) {
            free((void *)pointer);
            allocations[number].start = 0;
            return 0;
        }
    return INVALID_VALUE;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    ENTER_CONTEXT;
    if (!bytes || !is_inside(to, bytes))
        return INVALID_VALUE;
    memcpy((void *)to, from, bytes);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    ENTER_CONTEXT;
    if (!bytes || !is_inside(from, bytes))
        return INVALID_VALUE;
    memcpy(to, (void *)from, bytes);
    return 0;
}

int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t bytes)
{
    ENTER_CONTEXT;
    if (!bytes || !is_inside(to, bytes))
        return INVALID_VALUE;
    memset((void *)to, value, bytes);
    return 0;
}

int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                   unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void *stream, void **arguments,
                   void **extra)
{
    ENTER_CONTEXT;
    unsigned int grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    if (function < (void *)kernel_numbers || function >= (void *)(kernel_numbers + 8))
        return INVALID_HANDLE;
    if (!grid_x || !grid_y || !grid_z || grid_y > 65535 || grid_z > 65535 || !block_x || !block_y || !block_z
        || block_x * block_y * block_z > 1024 || shared_bytes || stream || extra)
        return INVALID_VALUE;
    cpu_launch(*(int *)function, grid, block, arguments);
    return 0;
}

int cuEventCreate(void **event, unsigned int flags)
{
    ENTER_CONTEXT;
    *event = &event_tags[event_count++];
    return flags ? INVALID_VALUE : 0;
}

int cuEventRecord(void *event, void *stream)
{
    ENTER_CONTEXT;
    (void)stream;
    return event ? 0 : INVALID_HANDLE;
}

int cuEventSynchronize(void *event)
{
    ENTER_CONTEXT;
    return event ? 0 : INVALID_HANDLE;
}

int cuEventElapsedTime(float *elapsed_ms, void *start, void *end)
{
    ENTER_CONTEXT;
    *elapsed_ms = 1.5f;
    return start && end ? 0 : INVALID_HANDLE;
}

int cuEventDestroy_v2(void *event)
{
    ENTER_CONTEXT;
    event_count--;
    return event ? 0 : INVALID_HANDLE;
}

int cuGetErrorName(int code, const char **text)
{
    *text = code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR";
    return 0;
}

int cuGetErrorString(int code, const char **text)
{
    *text = NULL;
    return code ? INVALID_VALUE : 0;
}
