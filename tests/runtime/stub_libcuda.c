/* A libcuda.so.1 that answers for one compute capability 9.0 device and writes down what it is asked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
static void *current;
static char log_text[1 << 16];
static int quiet;

#define NOTE(...) do { if (!quiet) { size_t n = strlen(log_text); \
    snprintf(log_text + n, sizeof log_text - n, __VA_ARGS__); } } while (0)

const char *stub_log(void) { return log_text; }
void stub_quiet(int on) { quiet = on; log_text[0] = 0; }

R cuInit(unsigned f) { return 0; }
R cuDriverGetVersion(int *v) { *v = 13000; return 0; }
R cuDeviceGetCount(int *n) { *n = 1; return 0; }
R cuDeviceGet(int *d, int o) { *d = o; return 0; }
R cuDeviceGetName(char *s, int n, int d) { strncpy(s, "Stub", n); return 0; }
R cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? 0 : a == 97 ? 232448 : 1; return 0; }
R cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)0x1000; return 0; }
R cuCtxGetCurrent(void **c) { *c = current; return 0; }
R cuCtxPushCurrent(void *c) { NOTE("push %p\n", c); current = c; return 0; }
R cuCtxPopCurrent(void **c) { NOTE("pop\n"); *c = current; current = 0; return 0; }
R cuThreadExchangeStreamCaptureMode(int *mode) { static int now; int before = now; now = *mode; *mode = before; NOTE("mode %d\n", now); return 0; }
R cuModuleLoadData(void **m, const void *image) { NOTE("load %.5s\n", (const char *)image); *m = (void *)0x2000; return 0; }
R cuModuleGetFunction(void **f, void *m, const char *name) { NOTE("function %p %s\n", m, name); *f = (void *)0x3000; return 0; }
R cuFuncGetAttribute(int *v, int a, void *f) { *v = a == 4 ? 40 : 0; return 0; }
R cuFuncSetAttribute(void *f, int a, int v) { NOTE("set %p %d %d\n", f, a, v); return 0; }

R cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *base, const uint64_t *dims, const uint64_t *strides,
                         const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
    NOTE("map align %d type %d rank %u base %p", (int)((uintptr_t)map % 64), type, rank, base);
    for (uint32_t i = 0; i < rank; i++) NOTE(" dim %llu box %u step %u", (unsigned long long)dims[i], box[i], steps[i]);
    for (uint32_t i = 0; i + 1 < rank; i++) NOTE(" stride %llu", (unsigned long long)strides[i]);
    NOTE(" %d %d %d %d\n", interleave, swizzle, promotion, fill);
    memset(map, 0xAB, 128);
    return 0;
}

R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                 void *stream, void **args, void **extra) {
    if (shared == 666) return 719;
    NOTE("launch %p %u %u %u %u %u %u %u stream %p context %p first %llx extra %p\n", f, gx, gy, gz, bx, by, bz, shared,
         stream, current, (unsigned long long)*(uint64_t *)args[0], (void *)extra);
    return 0;
}

struct attribute { int id; char pad[4]; union { char room[64]; struct { unsigned x, y, z; } cluster; } value; };
struct config { unsigned gx, gy, gz, bx, by, bz, shared; void *stream; struct attribute *attrs; unsigned count; };

R cuLaunchKernelEx(const struct config *c, void *f, void **args, void **extra) {
    NOTE("launchex %p %u %u %u %u stream %p attrs %u id %d %u %u %u first %llx\n", f, c->gx, c->gy, c->bx, c->shared,
         c->stream, c->count, c->attrs[0].id, c->attrs[0].value.cluster.x, c->attrs[0].value.cluster.y,
         c->attrs[0].value.cluster.z, (unsigned long long)*(uint64_t *)args[0]);
    return 0;
}

R cuMemAlloc(void **p, size_t n) { *p = malloc(n); return 0; }
R cuMemFree(void *p) { free(p); return 0; }
R cuMemcpyHtoD(void *d, const void *s, size_t n) { memcpy(d, s, n); return 0; }
R cuMemcpyDtoH(void *d, const void *s, size_t n) { memcpy(d, s, n); return 0; }
R cuMemsetD8(void *d, unsigned char v, size_t n) { memset(d, v, n); return 0; }
R cuStreamSynchronize(void *s) { NOTE("synchronize %p\n", s); return 0; }
R cuPointerGetAttribute(void *data, int a, void *p) { *(int *)data = 0; return 0; }
R cuGetErrorName(R r, const char **s) { *s = r == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_UNKNOWN"; return 0; }
R cuGetErrorString(R r, const char **s) { *s = "stubbed failure"; return 0; }

R cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status) {
    *f = dlsym(RTLD_DEFAULT, name);
    if (!*f) { void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); if (self) *f = dlsym(self, name); }
    if (status) *status = *f ? 0 : 1;
    return *f ? 0 : 500;
}
R cuGetProcAddress(const char *name, void **f, int version, uint64_t flags, int *status) { return cuGetProcAddress_v2(name, f, version, flags, status); }
