/* Stands in for libOpenCL.so.1 in tests; MODE says how it behaves. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WORKS 0
#define CRASHES 1
#define HANGS 2
#define PRINTS 3
#define REFUSES 4
#define EMPTY 5
#define ODD 6

static int names[3] = {0, 1, 2};

int32_t clGetPlatformIDs(uint32_t room, void **platforms, uint32_t *count)
{
    if (MODE == CRASHES)
        *(volatile int *)0 = 1;
    if (MODE == HANGS)
        sleep(60);
    if (MODE == PRINTS) {
        puts("a driver's banner");
        fflush(stdout);
    }
    if (MODE == REFUSES)
        return -6;
    if (MODE == EMPTY)
        return -1001;
    if (count)
        *count = 2;
    for (uint32_t i = 0; platforms && i < room && i < 2; i++)
        platforms[i] = &names[i];
    return 0;
}

int32_t clGetDeviceIDs(void *platform, uint64_t type, uint32_t room, void **devices, uint32_t *count)
{
    (void)type;
    if (platform == &names[1])
        return -1; /* this platform has no device */
    if (count)
        *count = 3;
    for (uint32_t i = 0; devices && i < room && i < 3; i++)
        devices[i] = &names[i];
    return 0;
}

static int32_t give(const void *value, size_t bytes, size_t room, void *into, size_t *needed)
{
    if (needed)
        *needed = bytes;
    if (into && room >= bytes)
        memcpy(into, value, bytes);
    return into && room < bytes ? -30 : 0;
}

int32_t clGetPlatformInfo(void *platform, uint32_t what, size_t room, void *into, size_t *needed)
{
    (void)platform;
    (void)what;
    if (MODE == ODD) {
        *needed = (size_t)-1;
        return 0;
    }
    return give("Fake OpenCL", 12, room, into, needed);
}

/* A processor, a GPU that is switched off, a GPU. */
int32_t clGetDeviceInfo(void *device, uint32_t what, size_t room, void *into, size_t *needed)
{
    int number = *(int *)device;
    const char *text[3] = {"Some CPU", "Sleeping GPU", "Fast GPU \xff"};
    uint64_t type = number == 0 ? 2 : 4;
    uint32_t available = number != 1;
    if (what == 0x1000)
        return give(&type, sizeof type, room, into, needed);
    if (what == 0x1027)
        return give(&available, sizeof available, room, into, needed);
    return give(text[number], strlen(text[number]) + 1, room, into, needed);
}
