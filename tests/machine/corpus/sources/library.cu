// Kernels on libcu++, CUB and cooperative groups.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cooperative_groups/memcpy_async.h>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cuda.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/pipeline>
#include <cuda/ptx>
#include <cuda/semaphore>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;

extern "C" __global__ void cub_reduce(int* out, const int* x) {
  using Reduce = cub::BlockReduce<int, 128>;
  __shared__ typename Reduce::TempStorage storage;
  int total = Reduce(storage).Sum(x[blockIdx.x * 128 + threadIdx.x]);
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

extern "C" __global__ void cub_reduce_raking(int* out, const int* x) {
  using Reduce = cub::BlockReduce<int, 128, cub::BLOCK_REDUCE_RAKING>;
  __shared__ typename Reduce::TempStorage storage;
  int total = Reduce(storage).Sum(x[threadIdx.x]);
  if (threadIdx.x == 0) out[0] = total;
}

extern "C" __global__ void cub_scan(int* out, const int* x) {
  using Scan = cub::BlockScan<int, 128>;
  __shared__ typename Scan::TempStorage storage;
  int items[2] = {x[2 * threadIdx.x], x[2 * threadIdx.x + 1]};
  int total;
  Scan(storage).ExclusiveSum(items, items, total);
  out[2 * threadIdx.x] = items[0];
  out[2 * threadIdx.x + 1] = items[1];
  if (threadIdx.x == 0) out[256] = total;
}

extern "C" __global__ void cub_scan_raking(int* out, const int* x) {
  using Scan = cub::BlockScan<int, 128, cub::BLOCK_SCAN_RAKING>;
  __shared__ typename Scan::TempStorage storage;
  int value;
  Scan(storage).InclusiveSum(x[threadIdx.x], value);
  out[threadIdx.x] = value;
}

extern "C" __global__ void cub_sort(unsigned* x) {
  using Sort = cub::BlockRadixSort<unsigned, 64, 2>;
  __shared__ typename Sort::TempStorage storage;
  unsigned keys[2] = {x[2 * threadIdx.x], x[2 * threadIdx.x + 1]};
  Sort(storage).Sort(keys, 0, 8);
  x[2 * threadIdx.x] = keys[0];
  x[2 * threadIdx.x + 1] = keys[1];
}

extern "C" __global__ void cub_histogram(unsigned* bins, const unsigned char* x) {
  using Histogram = cub::BlockHistogram<unsigned char, 64, 2, 32, cub::BLOCK_HISTO_ATOMIC>;
  __shared__ typename Histogram::TempStorage storage;
  __shared__ unsigned counts[32];
  unsigned char items[2] = {x[2 * threadIdx.x], x[2 * threadIdx.x + 1]};
  Histogram(storage).Histogram(items, counts);
  __syncthreads();
  if (threadIdx.x < 32) bins[threadIdx.x] = counts[threadIdx.x];
}

extern "C" __global__ void cub_exchange(int* out, const int* x) {
  using Load = cub::BlockLoad<int, 64, 4, cub::BLOCK_LOAD_TRANSPOSE>;
  using Store = cub::BlockStore<int, 64, 4, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  __shared__ union { typename Load::TempStorage load; typename Store::TempStorage store; } storage;
  int items[4];
  Load(storage.load).Load(x, items);
  __syncthreads();
  int reversed[4] = {items[3], items[2], items[1], items[0]};
  Store(storage.store).Store(out, reversed);
}

extern "C" __global__ void cub_warp(int* out, const int* x) {
  using Reduce = cub::WarpReduce<int, 16>;
  using Scan = cub::WarpScan<int>;
  __shared__ typename Reduce::TempStorage sums[4];
  __shared__ typename Scan::TempStorage scans[2];
  int value = x[threadIdx.x], total = Reduce(sums[threadIdx.x / 16]).Sum(value), before;
  Scan(scans[threadIdx.x / 32]).ExclusiveSum(value, before);
  out[threadIdx.x] = before;
  if (threadIdx.x % 16 == 0) out[64 + threadIdx.x / 16] = total;
}

// A scan over blocks in one pass: each block looks back until it finds a total of all that is before it.
extern "C" __global__ void look_back(int* out, const int* x, unsigned* ticket, int* partial, int* inclusive, int* state) {
  using Scan = cub::BlockScan<int, 64>;
  __shared__ typename Scan::TempStorage storage;
  __shared__ int block, before;
  if (threadIdx.x == 0) block = cuda::atomic_ref<unsigned, cuda::thread_scope_device>(*ticket).fetch_add(1);
  __syncthreads();
  int value = x[block * 64 + threadIdx.x], mine, total;
  Scan(storage).InclusiveSum(value, mine, total);
  if (threadIdx.x == 0) {
    int sum = 0;
    if (block > 0) {
      partial[block] = total;
      cuda::atomic_ref<int, cuda::thread_scope_device>(state[block]).store(1, cuda::memory_order_release);
      for (int i = block - 1; i >= 0; --i) {
        cuda::atomic_ref<int, cuda::thread_scope_device> s(state[i]);
        int seen;
        while ((seen = s.load(cuda::memory_order_acquire)) == 0) {}
        if (seen == 2) { sum += inclusive[i]; break; }
        sum += partial[i];
      }
    }
    inclusive[block] = sum + total;
    cuda::atomic_ref<int, cuda::thread_scope_device>(state[block]).store(2, cuda::memory_order_release);
    before = sum;
  }
  __syncthreads();
  out[block * 64 + threadIdx.x] = before + mine;
}

extern "C" __global__ void tile_reduce(int* out, const int* x) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  int value = x[threadIdx.x];
  int total = cg::reduce(tile, value, cg::plus<int>()), high = cg::reduce(tile, value, cg::greater<int>());
  int before = cg::exclusive_scan(tile, value);
  out[threadIdx.x] = total * 10000 + high * 100 + before;
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_sum(int* out, const int* x) {
  auto cluster = cg::this_cluster();
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, x[blockIdx.x * 64 + threadIdx.x]);
  cluster.sync();
  if (threadIdx.x == 0) {
    int sum = 0;
    for (unsigned r = 0; r < cluster.num_blocks(); ++r) sum += *cluster.map_shared_rank(&total, r);
    out[blockIdx.x] = sum;
  }
  cluster.sync();
}

extern "C" __global__ void role_pipeline(float* out, const float* x, int n) {
  constexpr int stages = 2;
  __shared__ float tile[stages][64];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;
  auto block = cg::this_thread_block();
  bool producer = threadIdx.x < 64;
  auto pipe = cuda::make_pipeline(block, &state, producer ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    if (producer) {
      pipe.producer_acquire();
      cuda::memcpy_async(&tile[i % stages][threadIdx.x], &x[i * 64 + threadIdx.x], sizeof(float), pipe);
      pipe.producer_commit();
    } else {
      pipe.consumer_wait();
      sum += tile[i % stages][127 - threadIdx.x];
      pipe.consumer_release();
    }
  }
  if (!producer) out[threadIdx.x - 64] = sum;
}

extern "C" __global__ void barrier_copy(float* out, const float* x) {
  using barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ alignas(16) float tile[256];
  __shared__ barrier ready;
  auto block = cg::this_thread_block();
  if (threadIdx.x == 0) init(&ready, blockDim.x);
  __syncthreads();
  for (int turn = 0; turn < 2; ++turn) {
    cuda::memcpy_async(block, tile, x + 256 * turn, cuda::aligned_size_t<16>(sizeof(tile)), ready);
    ready.arrive_and_wait();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) out[256 * turn + i] = tile[255 - i];
    __syncthreads();
  }
}

extern "C" __global__ void primitives_pipeline(float* out, const float* x, int n) {
  __shared__ float tile[3][64];
  for (int i = 0; i < 2; ++i) {
    __pipeline_memcpy_async(&tile[i][threadIdx.x], &x[i * 64 + threadIdx.x], 4);
    __pipeline_commit();
  }
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    if (i + 2 < n) __pipeline_memcpy_async(&tile[(i + 2) % 3][threadIdx.x], &x[(i + 2) * 64 + threadIdx.x], 4);
    __pipeline_commit();
    __pipeline_wait_prior(2);
    __syncthreads();
    sum += tile[i % 3][63 - threadIdx.x];
    __syncthreads();
  }
  out[threadIdx.x] = sum;
}

extern "C" __global__ void ptx_bulk(float* out, const float* x) {
  __shared__ alignas(128) float tile[128];
  __shared__ uint64_t ready;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&ready, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &ready, sizeof(tile));
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, tile, x + 128 * blockIdx.x, sizeof(tile), &ready);
  }
  __syncthreads();
  while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cta, &ready, 0)) {}
  tile[threadIdx.x] *= 3;
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + 128 * blockIdx.x, tile, sizeof(tile));
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
  }
}

extern "C" __global__ void tensor_copy(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to) {
  __shared__ alignas(128) int tile[16][32];
  __shared__ cuda::barrier<cuda::thread_scope_block> ready;
  if (threadIdx.x == 0) {
    init(&ready, blockDim.x);
    cuda::device::experimental::fence_proxy_async_shared_cta();
  }
  __syncthreads();
  cuda::barrier<cuda::thread_scope_block>::arrival_token token;
  if (threadIdx.x == 0) {
    cuda::device::experimental::cp_async_bulk_tensor_2d_global_to_shared(&tile, &from, 32 * blockIdx.x, 0, ready);
    token = cuda::device::barrier_arrive_tx(ready, 1, sizeof(tile));
  } else {
    token = ready.arrive();
  }
  ready.wait(std::move(token));
  for (int i = threadIdx.x; i < 512; i += blockDim.x) tile[i / 32][i % 32] += i / 32;
  cuda::device::experimental::fence_proxy_async_shared_cta();
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::device::experimental::cp_async_bulk_tensor_2d_shared_to_global(&to, 32 * blockIdx.x, 0, &tile);
    cuda::device::experimental::cp_async_bulk_commit_group();
    cuda::device::experimental::cp_async_bulk_wait_group_read<0>();
  }
}

extern "C" __global__ void latches(int* out, int* data) {
  using latch = cuda::latch<cuda::thread_scope_block>;
  __shared__ alignas(latch) char storage[sizeof(latch)];
  latch& done = *reinterpret_cast<latch*>(storage);
  __shared__ int cells[64];
  if (threadIdx.x == 0) new (&done) latch(64);
  __syncthreads();
  cells[threadIdx.x] = data[threadIdx.x];
  done.arrive_and_wait();
  out[threadIdx.x] = cells[63 - threadIdx.x];
}

extern "C" __global__ void semaphores(int* out, cuda::binary_semaphore<cuda::thread_scope_device>* gate) {
  if (threadIdx.x == 0) {
    gate->acquire();
    out[0] = 2 * out[0] + 1;
    gate->release();
  }
}

// Attention over one head, one query row of 32 to a warp, keys through shared memory.
extern "C" __global__ void flash_rows(float* out, const float* q, const float* k, const float* v, int n) {
  __shared__ float keys[32][33], values[32][33];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * 4 + warp;
  float mine = q[row * 32 + lane], high = -1e30f, total = 0, sum = 0;
  for (int at = 0; at < n; at += 32) {
    for (int i = warp; i < 32; i += 4) {
      keys[i][lane] = k[(at + i) * 32 + lane];
      values[i][lane] = v[(at + i) * 32 + lane];
    }
    __syncthreads();
    float s = 0;
    for (int i = 0; i < 32; ++i) s += __shfl_sync(~0u, mine, i) * keys[lane][i];
    float top = s;
    for (int d = 16; d; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    top = fmaxf(top, high);
    float p = __expf(s - top), scale = __expf(high - top), part = p;
    for (int d = 16; d; d /= 2) part += __shfl_xor_sync(~0u, part, d);
    total = total * scale + part;
    sum *= scale;
    for (int i = 0; i < 32; ++i) sum += __shfl_sync(~0u, p, i) * values[i][lane];
    high = top;
    __syncthreads();
  }
  out[row * 32 + lane] = sum / total;
}

extern "C" __global__ void layer_norm_half(__half2* y, const __half2* x, int n) {
  __shared__ float sums[2][4];
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float2 f = __half22float2(x[blockIdx.x * n + i]);
    sum += f.x + f.y;
    squares += f.x * f.x + f.y * f.y;
  }
  for (int d = 16; d; d /= 2) {
    sum += __shfl_down_sync(~0u, sum, d);
    squares += __shfl_down_sync(~0u, squares, d);
  }
  if (threadIdx.x % 32 == 0) { sums[0][threadIdx.x / 32] = sum; sums[1][threadIdx.x / 32] = squares; }
  __syncthreads();
  float mean = 0, second = 0;
  for (int i = 0; i < 4; ++i) { mean += sums[0][i]; second += sums[1][i]; }
  mean /= 2 * n;
  float scale = rsqrtf(second / (2 * n) - mean * mean + 1e-5f);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float2 f = __half22float2(x[blockIdx.x * n + i]);
    y[blockIdx.x * n + i] = __floats2half2_rn((f.x - mean) * scale, (f.y - mean) * scale);
  }
}

// 32 x 32 += 32 x n by ldmatrix and mma, two stages of cp.async.
extern "C" __global__ void gemm_stages(float* c, const __half* a, const __half* b, int n) {
  __shared__ alignas(16) __half as[2][32][24], bs[2][32][24];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = threadIdx.x / 4 % 32, part = threadIdx.x % 2 * 8;
  auto bring = [&](int stage, int k) {
    if (threadIdx.x < 128 && threadIdx.x % 4 < 2) {
      __pipeline_memcpy_async(&as[stage][row][part], &a[row * n + k + part], 16);
      __pipeline_memcpy_async(&bs[stage][row][part], &b[row * n + k + part], 16);
    }
    __pipeline_commit();
  };
  float d[2][4] = {};
  int m0 = warp / 2 * 16, n0 = warp % 2 * 16;
  bring(0, 0);
  for (int k = 0, stage = 0; k < n; k += 16, stage ^= 1) {
    if (k + 16 < n) bring(stage ^ 1, k + 16); else __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    unsigned fa[4], fb[4];
    unsigned pa = __cvta_generic_to_shared(&as[stage][m0 + lane % 16][lane / 16 * 8]);
    unsigned pb = __cvta_generic_to_shared(&bs[stage][n0 + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(pa));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(fb[0]), "=r"(fb[1]), "=r"(fb[2]), "=r"(fb[3]) : "r"(pb));
    for (int j = 0; j < 2; ++j)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]) : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[2 * j]), "r"(fb[2 * j + 1]));
    __syncthreads();
  }
  for (int j = 0; j < 2; ++j)
    for (int i = 0; i < 4; ++i) c[(m0 + lane / 4 + i / 2 * 8) * 32 + n0 + j * 8 + lane % 4 * 2 + i % 2] = d[j][i];
}
