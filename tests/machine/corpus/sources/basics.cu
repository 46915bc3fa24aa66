// Elementwise kernels, reductions, scans, histograms, transposes and sorts of shared memory.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;

extern "C" __global__ void axpy(float* y, const float* x, float a, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] += a * x[i];
}
extern "C" __global__ void half_axpy(__half2* y, const __half2* x, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __hfma2(__float2half2_rn(a), x[i], y[i]);
}
extern "C" __global__ void vector_copy(float4* y, const float4* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __ldg(x + i);
}
extern "C" __global__ void transpose(float* y, const float* x, int n) {
  __shared__ float tile[32][33];
  int i = blockIdx.y * 32 + threadIdx.y, j = blockIdx.x * 32 + threadIdx.x;
  for (int k = 0; k < 32; k += 8) tile[threadIdx.y + k][threadIdx.x] = x[(i + k) * n + j];
  __syncthreads();
  i = blockIdx.x * 32 + threadIdx.y, j = blockIdx.y * 32 + threadIdx.x;
  for (int k = 0; k < 32; k += 8) y[(i + k) * n + j] = tile[threadIdx.x][threadIdx.y + k];
}
extern "C" __global__ void block_sum(float* out, const float* x, int n) {
  __shared__ float s[256];
  float v = 0;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) v += x[i];
  s[threadIdx.x] = v;
  __syncthreads();
  for (int d = 128; d > 0; d /= 2) {
    if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = s[0];
}
extern "C" __global__ void shuffle_sum(float* out, const float* x) {
  __shared__ float s[8];
  float v = x[blockIdx.x * 256 + threadIdx.x];
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < 8 ? s[threadIdx.x] : 0;
    for (int d = 4; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffff, v, d);
    if (threadIdx.x == 0) out[blockIdx.x] = v;
  }
}
extern "C" __global__ void last_block_sum(float* out, float* parts, unsigned* count, const float* x) {
  __shared__ float s[256];
  __shared__ bool last;
  s[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  for (int d = 128; d > 0; d /= 2) { if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d]; __syncthreads(); }
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = s[0];
    __threadfence();
    last = atomicInc(count, gridDim.x) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float v = 0;
    for (int i = 0; i < gridDim.x; i++) v += parts[i];
    *out = v;
    *count = 0;
  }
}
extern "C" __global__ void atomic_sum(int* out, const int* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(out, x[i]);
}
extern "C" __global__ void reduce_max(int* out, const int* x) {
  int v = __reduce_max_sync(0xffffffff, x[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x % 32 == 0) atomicMax(out, v);
}
extern "C" __global__ void histogram(unsigned* bins, const unsigned char* x, int n) {
  __shared__ unsigned s[256];
  s[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) atomicAdd(&s[x[i]], 1u);
  __syncthreads();
  if (s[threadIdx.x]) atomicAdd(&bins[threadIdx.x], s[threadIdx.x]);
}
extern "C" __global__ void inclusive_scan(int* y, const int* x) {
  __shared__ int s[256];
  int v = x[threadIdx.x];
  s[threadIdx.x] = v;
  __syncthreads();
  for (int d = 1; d < 256; d *= 2) {
    int t = threadIdx.x >= d ? s[threadIdx.x - d] : 0;
    __syncthreads();
    s[threadIdx.x] = v += t;
    __syncthreads();
  }
  y[threadIdx.x] = v;
}
extern "C" __global__ void warp_scan(int* y, const int* x) {
  int v = x[threadIdx.x], lane = threadIdx.x % 32;
  for (int d = 1; d < 32; d *= 2) { int t = __shfl_up_sync(0xffffffff, v, d); if (lane >= d) v += t; }
  y[threadIdx.x] = v;
}
extern "C" __global__ void compact(int* y, int* count, const int* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned active = __activemask();
  unsigned keep = __ballot_sync(active, x[i] > 0);
  int lane = threadIdx.x % 32, leader = __ffs(active) - 1, base = 0;
  if (lane == leader) base = atomicAdd(count, __popc(keep));
  base = __shfl_sync(active, base, leader);
  if (x[i] > 0) y[base + __popc(keep & ((1u << lane) - 1))] = x[i];
}
extern "C" __global__ void bitonic_sort(int* x) {
  __shared__ int s[256];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int k = 2; k <= 256; k *= 2)
    for (int j = k / 2; j > 0; j /= 2) {
      int other = threadIdx.x ^ j;
      if (other > threadIdx.x) {
        bool up = (threadIdx.x & k) == 0;
        int a = s[threadIdx.x], b = s[other];
        if ((a > b) == up) { s[threadIdx.x] = b; s[other] = a; }
      }
      __syncthreads();
    }
  x[threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void softmax_rows(float* y, const float* x, int n) {
  const float* row = x + blockIdx.x * n;
  float m = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += 32) m = fmaxf(m, row[i]);
  for (int d = 16; d > 0; d /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, d));
  for (int i = threadIdx.x; i < n; i += 32) sum += expf(row[i] - m);
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffff, sum, d);
  for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = expf(row[i] - m) / sum;
}
extern "C" __global__ void layer_norm(float* y, const float* x, int n) {
  __shared__ float s[2][4];
  float a = 0, b = 0;
  for (int i = threadIdx.x; i < n; i += 128) { float v = x[blockIdx.x * n + i]; a += v; b += v * v; }
  for (int d = 16; d > 0; d /= 2) { a += __shfl_xor_sync(~0u, a, d); b += __shfl_xor_sync(~0u, b, d); }
  if (threadIdx.x % 32 == 0) { s[0][threadIdx.x / 32] = a; s[1][threadIdx.x / 32] = b; }
  __syncthreads();
  a = s[0][0] + s[0][1] + s[0][2] + s[0][3];
  b = s[1][0] + s[1][1] + s[1][2] + s[1][3];
  float mean = a / n, scale = rsqrtf(b / n - mean * mean + 1e-5f);
  for (int i = threadIdx.x; i < n; i += 128) y[blockIdx.x * n + i] = (x[blockIdx.x * n + i] - mean) * scale;
}
extern "C" __global__ void matmul_naive(float* c, const float* a, const float* b, int n) {
  int i = blockIdx.y * 16 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;
  float v = 0;
  for (int k = 0; k < n; k++) v += a[i * n + k] * b[k * n + j];
  c[i * n + j] = v;
}
extern "C" __global__ void matmul_tiled(float* c, const float* a, const float* b, int n) {
  __shared__ float s[16][16], t[16][16];
  int i = blockIdx.y * 16 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;
  float v = 0;
  for (int k = 0; k < n; k += 16) {
    s[threadIdx.y][threadIdx.x] = a[i * n + k + threadIdx.x];
    t[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + j];
    __syncthreads();
    for (int l = 0; l < 16; l++) v += s[threadIdx.y][l] * t[l][threadIdx.x];
    __syncthreads();
  }
  c[i * n + j] = v;
}
extern "C" __global__ void stencil(float* y, const float* x, int n) {
  extern __shared__ float line[];
  int i = blockIdx.x * blockDim.x + threadIdx.x, l = threadIdx.x + 1;
  line[l] = i < n ? x[i] : 0;
  if (threadIdx.x == 0) line[0] = i > 0 ? x[i - 1] : 0;
  if (threadIdx.x == blockDim.x - 1) line[l + 1] = i + 1 < n ? x[i + 1] : 0;
  __syncthreads();
  if (i < n) y[i] = line[l - 1] + line[l] + line[l + 1];
}
extern "C" __global__ void group_sum(int* out, const int* x) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<16>(block);
  int v = cg::reduce(tile, x[block.thread_rank()], cg::plus<int>());
  if (tile.thread_rank() == 0) out[tile.meta_group_rank()] = v;
}
extern "C" __global__ void group_scan(int* y, const int* x) {
  auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  y[threadIdx.x] = cg::inclusive_scan(tile, x[threadIdx.x]);
}
extern "C" __global__ void coalesced_count(int* count, const int* x) {
  if (x[threadIdx.x] > 2) {
    auto g = cg::coalesced_threads();
    if (g.thread_rank() == 0) atomicAdd(count, (int)g.size());
  }
}
extern "C" __global__ void labelled(int* out, const int* x) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  auto g = cg::labeled_partition(warp, x[threadIdx.x] % 3);
  out[threadIdx.x] = g.size() * 100 + g.thread_rank();
}
extern "C" __global__ void divide(unsigned long long* q, const unsigned long long* a, const unsigned* b) {
  q[threadIdx.x] = a[threadIdx.x] / b[threadIdx.x] + a[threadIdx.x] % b[threadIdx.x];
}
extern "C" __global__ void wide_multiply(unsigned __int128* c, const unsigned long long* a, const unsigned long long* b) {
  c[threadIdx.x] = (unsigned __int128)a[threadIdx.x] * b[threadIdx.x];
}
extern "C" __global__ void math(double* y, const double* x) {
  double v = x[threadIdx.x];
  y[threadIdx.x] = sin(v) + exp(-v) * sqrt(v) + log1p(v) + pow(v, 1.5) + atan2(v, 2.0);
}
