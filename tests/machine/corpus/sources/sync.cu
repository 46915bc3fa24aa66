// Asynchronous copies, barriers of libcu++, grid barriers, locks, tickets, clusters, bulk copies.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/ptx>
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;

extern "C" __global__ void pipelined_sum(float* out, const float* x, int n) {
  __shared__ float s[2][256];
  auto pipe = cuda::make_pipeline();
  float v = 0;
  for (int k = 0; k < n + 1; k++) {
    pipe.producer_acquire();
    if (k < n) cuda::memcpy_async(&s[k & 1][threadIdx.x], x + k * 256 + threadIdx.x, sizeof(float), pipe);
    pipe.producer_commit();
    if (k == 0) continue;
    cuda::pipeline_consumer_wait_prior<1>(pipe);
    __syncthreads();
    v += s[(k - 1) & 1][255 - threadIdx.x];
    __syncthreads();
    pipe.consumer_release();
  }
  cuda::pipeline_consumer_wait_prior<0>(pipe);
  out[threadIdx.x] = v;
}
extern "C" __global__ void block_pipeline(float* out, const float* x, int n) {
  __shared__ float s[2][128];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  auto block = cg::this_thread_block();
  auto pipe = cuda::make_pipeline(block, &state);
  float v = 0;
  for (int k = 0, issued = 0; k < n; k++) {
    for (; issued < n && issued < k + 2; issued++) {
      pipe.producer_acquire();
      cuda::memcpy_async(block, s[issued % 2], x + issued * 128, sizeof(float) * 128, pipe);
      pipe.producer_commit();
    }
    pipe.consumer_wait();
    v += s[k % 2][127 - threadIdx.x];
    pipe.consumer_release();
  }
  out[threadIdx.x] = v;
}
extern "C" __global__ void group_copy(float* y, const float* x) {
  __shared__ alignas(16) float s[256];
  auto block = cg::this_thread_block();
  cg::memcpy_async(block, s, x, sizeof(float) * 256);
  cg::wait(block);
  y[threadIdx.x] = s[255 - threadIdx.x];
}
extern "C" __global__ void barrier_exchange(float* y, const float* x, int n) {
  __shared__ cuda::barrier<cuda::thread_scope_block> b;
  __shared__ float s[256];
  if (threadIdx.x == 0) init(&b, 256);
  __syncthreads();
  float v = x[threadIdx.x];
  for (int k = 0; k < n; k++) {
    s[threadIdx.x] = v;
    b.arrive_and_wait();
    v = s[(threadIdx.x + 1) % 256];
    b.arrive_and_wait();
  }
  y[threadIdx.x] = v;
}
extern "C" __global__ void split_barrier(float* y, const float* x) {
  __shared__ cuda::barrier<cuda::thread_scope_block> b;
  __shared__ float s[128];
  if (threadIdx.x == 0) init(&b, 128);
  __syncthreads();
  s[threadIdx.x] = x[threadIdx.x];
  auto token = b.arrive();
  float mine = x[threadIdx.x] * 2;
  b.wait(std::move(token));
  y[threadIdx.x] = mine + s[127 - threadIdx.x];
}
extern "C" __global__ void producer_consumer(float* y, const float* x, int n) {
  __shared__ cuda::barrier<cuda::thread_scope_block> full[2], empty[2];
  __shared__ float s[2][64];
  if (threadIdx.x < 2) { init(&full[threadIdx.x], 128); init(&empty[threadIdx.x], 128); }
  __syncthreads();
  if (threadIdx.x < 64) {
    for (int k = 0; k < n; k++) {
      if (k >= 2) empty[k % 2].arrive_and_wait();
      s[k % 2][threadIdx.x] = x[k * 64 + threadIdx.x];
      (void)full[k % 2].arrive();
    }
  } else {
    float v = 0;
    for (int k = 0; k < n; k++) {
      full[k % 2].arrive_and_wait();
      v += s[k % 2][127 - threadIdx.x];
      if (k + 2 < n) (void)empty[k % 2].arrive();
    }
    y[threadIdx.x - 64] = v;
  }
}
extern "C" __global__ void grid_barrier(int* data, int* sums) {
  cg::grid_group grid = cg::this_grid();
  data[grid.thread_rank()] = grid.thread_rank() + 1;
  grid.sync();
  int v = 0;
  for (int i = 0; i < grid.size(); i += blockDim.x) v += data[(i + threadIdx.x + blockIdx.x) % grid.size()];
  sums[grid.thread_rank()] = v;
}
extern "C" __global__ void own_grid_barrier(int* data, int* sums, unsigned* arrived) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  data[i] = i * 3;
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> a(*arrived);
    a.fetch_add(1, cuda::memory_order_acq_rel);
    while (a.load(cuda::memory_order_acquire) < gridDim.x) {}
  }
  __syncthreads();
  sums[i] = data[(i + blockDim.x) % (gridDim.x * blockDim.x)];
}
extern "C" __global__ void spin_lock(int* counter, int* lock) {
  if (threadIdx.x % 32) return;
  while (atomicCAS(lock, 0, 1) != 0) {}
  __threadfence();
  *counter = *counter + 1;
  __threadfence();
  atomicExch(lock, 0);
}
extern "C" __global__ void ticket_lock(int* counter, unsigned* next, unsigned* serving) {
  if (threadIdx.x) return;
  cuda::atomic_ref<unsigned, cuda::thread_scope_device> n(*next), s(*serving);
  unsigned mine = n.fetch_add(1, cuda::memory_order_relaxed);
  while (s.load(cuda::memory_order_acquire) != mine) {}
  *counter = *counter * 2 + 1;
  s.store(mine + 1, cuda::memory_order_release);
}
extern "C" __global__ void flags_chain(int* data, int* flags) {
  if (threadIdx.x) return;
  int v = 1;
  if (blockIdx.x) {
    cuda::atomic_ref<int, cuda::thread_scope_device> f(flags[blockIdx.x - 1]);
    while (!f.load(cuda::memory_order_acquire)) {}
    v = data[blockIdx.x - 1] * 2;
  }
  data[blockIdx.x] = v;
  cuda::atomic_ref<int, cuda::thread_scope_device>(flags[blockIdx.x]).store(1, cuda::memory_order_release);
}
extern "C" __global__ void work_queue(int* out, int* head, int n) {
  __shared__ int item;
  for (;;) {
    if (threadIdx.x == 0) item = atomicAdd(head, 1);
    __syncthreads();
    int k = item;
    __syncthreads();
    if (k >= n) return;
    out[k * 64 + threadIdx.x] = k * 1000 + threadIdx.x;
  }
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_exchange(int* out) {
  __shared__ int s[64];
  auto cluster = cg::this_cluster();
  s[threadIdx.x] = cluster.block_rank() * 100 + threadIdx.x;
  cluster.sync();
  int* other = cluster.map_shared_rank(s, cluster.block_rank() ^ 1);
  out[blockIdx.x * 64 + threadIdx.x] = other[63 - threadIdx.x];
  cluster.sync();
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_histogram(unsigned* bins, const unsigned char* x) {
  __shared__ unsigned s[64];
  auto cluster = cg::this_cluster();
  if (threadIdx.x < 64) s[threadIdx.x] = 0;
  cluster.sync();
  int bin = x[blockIdx.x * 128 + threadIdx.x];
  atomicAdd(cluster.map_shared_rank(s, bin / 64) + bin % 64, 1u);
  cluster.sync();
  if (threadIdx.x < 64) bins[cluster.block_rank() * 64 + threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void bulk_copy(float* y, const float* x) {
  __shared__ alignas(16) float s[256];
  __shared__ cuda::barrier<cuda::thread_scope_block> b;
  if (threadIdx.x == 0) {
    init(&b, 256);
    cuda::device::experimental::fence_proxy_async_shared_cta();
  }
  __syncthreads();
  cuda::barrier<cuda::thread_scope_block>::arrival_token token;
  if (threadIdx.x == 0) {
    cuda::device::memcpy_async_tx(s, x + blockIdx.x * 256, cuda::aligned_size_t<16>(sizeof(s)), b);
    token = cuda::device::barrier_arrive_tx(b, 1, sizeof(s));
  } else {
    token = b.arrive();
  }
  b.wait(std::move(token));
  s[threadIdx.x] *= 2;
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, y + blockIdx.x * 256, s, sizeof(s));
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
  }
}
extern "C" __global__ void named_barriers(float* y, const float* x) {
  __shared__ float s[64];
  if (threadIdx.x < 64) {
    s[threadIdx.x] = x[threadIdx.x];
    asm volatile("bar.arrive 1, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, 128;" ::: "memory");
    y[threadIdx.x - 64] = s[127 - threadIdx.x];
  }
}
extern "C" __global__ void votes(int* out, const int* x) {
  int a = __syncthreads_count(x[threadIdx.x] > 3), b = __syncthreads_and(x[threadIdx.x] >= 0), c = __syncthreads_or(x[threadIdx.x] == 5);
  out[threadIdx.x] = a * 100 + b * 10 + c;
}
extern "C" __global__ void warp_exchange(int* out, const int* x) {
  __shared__ volatile int s[64];
  s[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  out[threadIdx.x] = s[threadIdx.x ^ 31];
}
extern "C" __global__ void float_cas(float* out, const float* x) {
  int* p = (int*)out;
  int old = *(volatile int*)p, seen;
  do { seen = old; old = atomicCAS(p, seen, __float_as_int(__int_as_float(seen) + x[threadIdx.x])); } while (old != seen);
}
