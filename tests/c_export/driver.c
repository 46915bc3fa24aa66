/* A driver whose device memory is the host's, and whose launches are lines of standard output.
   ARGUMENT_SIZES: the bytes of each argument, for each entry in turn, 0 at the end of an entry. */
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const int sizes[] = {ARGUMENT_SIZES};
static int at;
static long entries;
CUresult cuInit(unsigned f) { return 0; }
CUresult cuDeviceGet(CUdevice *d, int o) { *d = o; return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = &at; return 0; }
CUresult cuCtxSetCurrent(CUcontext c) { return 0; }
CUresult cuCtxSynchronize(void) { return 0; }
CUresult cuGetErrorString(CUresult r, const char **s) { *s = "refused"; return 0; }
CUresult cuModuleLoadData(CUmodule *m, const void *image) { printf("load %.3s\n", (const char *)image + 1); *m = &at; return 0; }
CUresult cuModuleUnload(CUmodule m) { return 0; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { printf("function %s\n", name); *f = (void *)++entries; return 0; }
CUresult cuFuncSetAttribute(CUfunction f, int a, int v) { printf("set %d %d\n", a, v); return 0; }
CUresult cuMemAlloc(CUdeviceptr *p, size_t n) { *p = (CUdeviceptr)(uintptr_t)aligned_alloc(256, (n + 255) / 256 * 256); return 0; }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t n) { memcpy((void *)(uintptr_t)to, from, n); return 0; }
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n) { memcpy(to, (void *)(uintptr_t)from, n); return 0; }
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                                const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  printf("map %d", (int)((uintptr_t)map % 64));
  for (unsigned i = 0; i < rank; i++) printf(" %llu %u %u", (unsigned long long)dims[i], box[i], steps[i]);
  for (unsigned i = 0; i + 1 < rank; i++) printf(" %llu", (unsigned long long)strides[i]);
  printf(" %d %d %d %d\n", interleave, swizzle, promotion, fill);
  memset(map, 0, sizeof *map);
  return 0;
}
static void show(void **arguments) {
  for (int i = 0; sizes[at]; i++, at++) {
    printf(" ");
    for (int b = 0; b < sizes[at]; b++) printf("%02x", ((unsigned char *)arguments[i])[b]);
  }
  at++;
  printf("\n");
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **arguments, void **extra) {
  printf("launch %u %u %u %u %u %u %u", gx, gy, gz, bx, by, bz, shared);
  show(arguments);
  return 0;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **arguments, void **extra) {
  printf("launch %u %u %u %u %u %u %u", c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
         c->blockDimZ, c->sharedMemBytes);
  for (unsigned i = 0; i < c->numAttrs; i++)
    if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      printf(" cluster %u %u %u", c->attrs[i].value.clusterDim.x, c->attrs[i].value.clusterDim.y,
             c->attrs[i].value.clusterDim.z);
    else printf(" overlap");
  show(arguments);
  return 0;
}
