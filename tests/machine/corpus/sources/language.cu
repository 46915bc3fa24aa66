// Functions, tables of functions, structures by value, switches, recursion-free calls; printf and assert.
#include <cstdio>
#include <cassert>
__device__ __noinline__ float f1(float x, int n) { float s = 0; for (int i = 0; i < n; i++) s += x * i; return s; }
struct Big { float a[40]; int n; const float* p; };
__device__ __noinline__ Big f2(Big b, int k) { b.a[k] += 1; b.n = k; return b; }
extern "C" __global__ void funcs(float* o, Big b, int k) {
  Big c = f2(b, threadIdx.x % 40);
  o[threadIdx.x] = f1(c.a[threadIdx.x % 40], c.n + k) + b.p[threadIdx.x];
}
typedef float (*fn)(float);
__device__ __noinline__ float g0(float x) { return x + 1; }
__device__ __noinline__ float g1(float x) { return x * 2; }
__device__ __noinline__ float g2(float x) { return -x; }
__device__ fn table[3] = {g0, g1, g2};
extern "C" __global__ void indirect(float* o) { o[threadIdx.x] = table[threadIdx.x % 3](threadIdx.x); }
extern "C" __global__ void sw(int* o, int k) {
  int x = threadIdx.x; int r = 0;
  switch ((x + k) % 9) { case 0: r = x * 3; break; case 1: r = x ^ 77; break; case 2: r = x / 3; break; case 3: r = x % 5; break; case 4: r = ~x; break; case 5: r = x << 3; break; case 6: r = __popc(x); break; case 7: r = __brev(x); break; default: r = -1; }
  o[x] = r; assert(r != 123456);
}
extern "C" __global__ void says(int* o) { printf("thread %d of %s: %f\n", (int)threadIdx.x, "block", 0.5 * threadIdx.x); o[threadIdx.x] = 1; }
__constant__ float weights[4] = {1, 2, 3, 4};
__device__ int total = 5;
extern "C" __global__ void constants(float* o) { o[threadIdx.x] = weights[threadIdx.x % 4] + total; }
struct Node { int value; int next; };
extern "C" __global__ void list(int* o, const Node* n) { int v = 0; for (int i = threadIdx.x; i >= 0; i = n[i].next) v += n[i].value; o[threadIdx.x] = v; }
template <class T> __device__ __noinline__ T apply(T (*f)(T), T x) { return f(f(x)); }
__device__ int inc(int x) { return x + 1; }
__device__ int dbl(int x) { return x * 2; }
extern "C" __global__ void callbacks(int* o) { o[threadIdx.x] = threadIdx.x & 1 ? apply(inc, (int)threadIdx.x) : apply(dbl, (int)threadIdx.x); }
extern "C" __global__ void local_arrays(int* o, int k) { int a[16]; for (int i = 0; i < 16; i++) a[i] = i * k; int v = 0; for (int i = 0; i < 16; i++) v += a[(i * 7 + threadIdx.x) % 16] * i; o[threadIdx.x] = v; }
