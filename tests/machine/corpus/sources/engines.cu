// Kernels in the style of libraries of matrix products and of serving engines: warp-specialised wgmma, quantised
// weights, schedulers with tickets, split sums with locks, rings across a cluster, multicast, transforms, routing.
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda/atomic>
#include <cuda/ptx>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;

__device__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__device__ void await(uint64_t* barrier, unsigned parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {}
}

// -- wgmma: one producer warp, two consumer warpgroups, a ring of two stages; the result leaves through TMA.
__device__ uint64_t descriptor(const void* tile) {
  uint64_t at = (shared_address(tile) & 0x3FFFF) >> 4;
  return at | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

__device__ void multiply(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, "
      "1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
}

struct Stage {
  __half a[128 * 64];
  __half b[64 * 64];
};

extern "C" __global__ void __launch_bounds__(384, 1)
    specialised(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                const __grid_constant__ CUtensorMap c, int steps) {
  extern __shared__ __align__(1024) unsigned char room[];
  Stage* stages = reinterpret_cast<Stage*>(room);
  __half* out = reinterpret_cast<__half*>(room + 2 * sizeof(Stage));
  __shared__ uint64_t full[2], empty[2];
  int group = threadIdx.x / 128, row = blockIdx.x * 128, column = blockIdx.y * 64;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], 2);
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 256) {
      for (int k = 0; k < steps; ++k) {
        int s = k & 1;
        await(&empty[s], ((k >> 1) & 1) ^ 1);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[s], sizeof(Stage));
        int at_a[2] = {64 * k, row}, at_b[2] = {64 * k, column};
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, stages[s].a, &a, at_a, &full[s]);
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, stages[s].b, &b, at_b, &full[s]);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float d[32] = {};
    for (int k = 0; k < steps; ++k) {
      int s = k & 1;
      await(&full[s], (k >> 1) & 1);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      uint64_t of_a = descriptor(stages[s].a + group * 64 * 64), of_b = descriptor(stages[s].b);
      for (int i = 0; i < 4; ++i) multiply(d, of_a + 2 * i, of_b + 2 * i);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(&empty[s]);
    }
    // 64 x 64 halves of each warpgroup, rows of 128 bytes with the swizzle of the tensor map, by stmatrix.
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    unsigned char* tile = reinterpret_cast<unsigned char*>(out) + group * 8192;
    for (int j = 0; j < 4; ++j) {
      unsigned words[4];
      for (int i = 0; i < 4; ++i) {
        __half2 pair = __floats2half2_rn(d[8 * j + 2 * i], d[8 * j + 2 * i + 1]);
        words[i] = *reinterpret_cast<unsigned*>(&pair);
      }
      // Matrices: rows 0 to 7 and 8 to 15 of columns 16 j to 16 j + 7, then of the next eight.
      int line = 16 * warp + lane % 16, unit = 2 * j + lane / 16;
      unsigned at = shared_address(tile + 128 * line + 16 * (unit ^ (line & 7)));
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(words[0]),
                   "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
    ptx::fence_proxy_async(ptx::space_shared);
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    if (threadIdx.x % 128 == 0) {
      int at_c[2] = {column, row + 64 * group};
      ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &c, at_c, tile);
      ptx::cp_async_bulk_commit_group();
      ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    }
  }
}

// -- 4-bit weights, expanded by lop3 between cp.async and mma; slices of K are added behind a lock for each column.
__device__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}

extern "C" __global__ void quantised(float* c, const __half* x, const unsigned* packed, const __half* scale, int* locks,
                                     int k_slice, int n) {
  // A tile of 16 rows of x and of 32 columns of weights for each step of 32 in K: three stages.
  __shared__ __align__(128) __half xs[3][16 * 32];
  __shared__ __align__(128) unsigned ws[3][32 * 4];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = 32 * blockIdx.x, first = blockIdx.y * k_slice;
  int k_all = k_slice * gridDim.y, steps = k_slice / 32;
  auto issue = [&](int step) {
    if (step < steps) {
      int s = step % 3, k = first + 32 * step;
      if (warp < 2) {
        int row = threadIdx.x / 4, unit = threadIdx.x % 4;
        copy16(&xs[s][row * 32 + 8 * (unit ^ (row / 2 & 3))], x + row * k_all + k + 8 * unit);
      } else if (warp == 2) {
        copy16(&ws[s][4 * lane], packed + (column + lane) * (k_all / 8) + k / 8);
      }
    }
    asm volatile("cp.async.commit_group;");
  };
  issue(0);
  issue(1);
  float d[4] = {};
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    issue(step + 2);
    int s = step % 3;
    for (int half = 0; half < 2; ++half) {
      unsigned a[4], b[2];
      int row = lane % 16, unit = 2 * half + lane / 16;
      unsigned at = shared_address(&xs[s][row * 32 + 8 * (unit ^ (row / 2 & 3))]);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                   : "r"(at));
      // Column 8 warp + lane / 4; elements 2 (lane % 4) and the next, then those eight further on.
      for (int i = 0; i < 2; ++i) {
        unsigned word = ws[s][4 * (8 * warp + lane / 4) + 2 * half + i] >> (8 * (lane % 4));
        unsigned pair = (word & 0xF) | (word << 12 & 0xF0000), biased;
        asm("lop3.b32 %0, %1, 0x000f000f, 0x64006400, 0xea;" : "=r"(biased) : "r"(pair));
        __half2 value = __hsub2(*reinterpret_cast<__half2*>(&biased), __float2half2_rn(1032.f));
        b[i] = *reinterpret_cast<unsigned*>(&value);
      }
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
  // Slices take turns: the lock counts those that have added.
  if (threadIdx.x == 0) {
    int seen;
    do {
      asm volatile("ld.global.acquire.gpu.b32 %0, [%1];" : "=r"(seen) : "l"(locks + blockIdx.x) : "memory");
    } while (seen != blockIdx.y);
  }
  __syncthreads();
  for (int i = 0; i < 4; ++i) {
    int row = lane / 4 + 8 * (i / 2), at = column + 8 * warp + 2 * (lane % 4) + i % 2;
    float sum = d[i] * __half2float(scale[at]);
    c[row * n + at] = blockIdx.y ? c[row * n + at] + sum : sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(locks + blockIdx.x) : "memory");
}

// -- Two groups take turns by named barriers: each multiplies while the other exponentiates.
extern "C" __global__ void ping_pong(float* out, const float* x, int rounds) {
  __shared__ float board[2][128];
  int group = threadIdx.x / 128, t = threadIdx.x % 128;
  float value = x[threadIdx.x], sum = 0;
  if (group == 0) asm volatile("bar.arrive 2, 256;" ::: "memory");
  for (int r = 0; r < rounds; ++r) {
    if (group == 0) asm volatile("bar.sync 1, 256;" ::: "memory");
    else asm volatile("bar.sync 2, 256;" ::: "memory");
    board[group][t] = value;
    asm volatile("bar.sync %0, 128;" ::"r"(group + 3) : "memory");
    sum += board[group][(t + 37) % 128];
    asm volatile("bar.sync %0, 128;" ::"r"(group + 3) : "memory");
    if (group == 0) { if (r + 1 < rounds) asm volatile("bar.arrive 2, 256;" ::: "memory"); }
    else asm volatile("bar.arrive 1, 256;" ::: "memory");
    value = fmaf(value, 0.5f, float(r));
  }
  out[threadIdx.x] = sum;
}

// -- A warp draws tiles and hands them to the others through a ring of mbarriers.
extern "C" __global__ void scheduler(int* out, int* next, const int* x, int tiles) {
  __shared__ int ring[2];
  __shared__ uint64_t full[2], empty[2];
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], 64);
    }
  }
  __syncthreads();
  if (threadIdx.x >= 64) {
    if (threadIdx.x == 64) {
      for (int i = 0;; ++i) {
        int s = i & 1;
        await(&empty[s], (i >> 1 & 1) ^ 1);
        int tile = atomicAdd(next, 1);
        ring[s] = tile;
        ptx::mbarrier_arrive(&full[s]);
        if (tile >= tiles) break;
      }
    }
    return;
  }
  for (int i = 0;; ++i) {
    int s = i & 1;
    await(&full[s], i >> 1 & 1);
    int tile = ring[s];
    ptx::mbarrier_arrive(&empty[s]);
    if (tile >= tiles) break;
    out[64 * tile + threadIdx.x] = x[64 * tile + threadIdx.x] * 2 + tile;
  }
}

// -- A ring of CTAs: each adds what it has received and passes it on by st.async.
extern "C" __global__ void __cluster_dims__(4, 1, 1) ring_sum(int* out, const int* x) {
  auto cluster = cg::this_cluster();
  __shared__ int inbox[3][32];
  __shared__ uint64_t full[3];
  unsigned rank = cluster.block_rank(), next = (rank + 1) % 4;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 3; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[s], 128);
    }
  }
  cluster.sync();
  int mine = x[32 * rank + threadIdx.x], passed = mine, sum = mine;
  for (int s = 0; s < 3; ++s) {
    ptx::st_async(cluster.map_shared_rank(&inbox[s][threadIdx.x], next), passed, cluster.map_shared_rank(&full[s], next));
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &full[s], 0)) {}
    passed = inbox[s][threadIdx.x];
    sum += passed;
  }
  out[32 * rank + threadIdx.x] = sum;
  cluster.sync();
}

// -- Multicast of bulk copies to a pair; a slot is free when both have arrived at its mbarrier.
extern "C" __global__ void __cluster_dims__(2, 1, 1) pair_copy(int* out, const int* x, int steps) {
  auto cluster = cg::this_cluster();
  __shared__ __align__(128) int slots[2][64];
  __shared__ uint64_t full[2], empty[2];
  unsigned rank = cluster.block_rank();
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], 2);
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  cluster.sync();
  int sum = 0;
  for (int i = 0; i < steps; ++i) {
    int s = i & 1;
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[s], 256);
      if (rank == 0) {
        while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &empty[s], (i >> 1 & 1) ^ 1)) {}
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, slots[s], x + 64 * i, 256, &full[s], uint16_t(3));
      }
    }
    await(&full[s], i >> 1 & 1);
    sum += slots[s][threadIdx.x] * (i + 1 + rank);
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cluster, ptx::space_cluster,
                           cluster.map_shared_rank(&empty[s], 0));
    }
  }
  out[64 * rank + threadIdx.x] = sum;
  cluster.sync();
}

// -- 64 complex numbers for each warp: radix 2 by shuffles, the last exchange through shared memory.
extern "C" __global__ void fourier(float2* out, const float2* x) {
  __shared__ float2 room[2][64];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float2* from = x + 128 * blockIdx.x + 64 * warp;
  float2 a = from[lane], b = from[lane + 32];
  for (int span = 32; span >= 1; span /= 2) {
    float2 sum = {a.x + b.x, a.y + b.y}, difference = {a.x - b.x, a.y - b.y};
    float sine, cosine;
    sincospif(-float(lane % span) / span, &sine, &cosine);
    b = {difference.x * cosine - difference.y * sine, difference.x * sine + difference.y * cosine};
    a = sum;
    if (span > 1) {
      // Lanes of the upper half give their a for the b of the lower half.
      int half = span / 2;
      bool upper = lane & half;
      float2 give = upper ? a : b, got;
      got.x = __shfl_xor_sync(~0u, give.x, half);
      got.y = __shfl_xor_sync(~0u, give.y, half);
      if (upper) a = got; else b = got;
    }
  }
  // Results stand in bit-reversed order.
  room[warp][__brev(2 * lane) >> 26] = a;
  room[warp][__brev(2 * lane + 1) >> 26] = b;
  __syncwarp();
  float2* to = out + 128 * blockIdx.x + 64 * warp;
  to[lane] = room[warp][lane];
  to[lane + 32] = room[warp][lane + 32];
}

// -- Tokens by expert: counts in shared memory, offsets by a scan of one warp, places by atomics.
extern "C" __global__ void route(int* order, int* starts, const int* expert, int tokens) {
  __shared__ int counts[32], offsets[33];
  for (int i = threadIdx.x; i < 32; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < tokens; i += blockDim.x) atomicAdd(&counts[expert[i]], 1);
  __syncthreads();
  if (threadIdx.x < 32) {
    int padded = (counts[threadIdx.x] + 7) / 8 * 8, sum = padded;
    for (int step = 1; step < 32; step *= 2) {
      int other = __shfl_up_sync(~0u, sum, step);
      if (threadIdx.x >= step) sum += other;
    }
    offsets[threadIdx.x + 1] = sum;
    if (threadIdx.x == 0) offsets[0] = 0;
    __syncwarp();
    counts[threadIdx.x] = offsets[threadIdx.x];
    starts[threadIdx.x] = offsets[threadIdx.x];
    if (threadIdx.x == 31) starts[32] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < offsets[32]; i += blockDim.x) order[i] = tokens;
  __syncthreads();
  for (int i = threadIdx.x; i < tokens; i += blockDim.x) order[atomicAdd(&counts[expert[i]], 1)] = i;
}

// -- The k largest by a threshold that narrows bit by bit, with votes and a count in shared memory.
extern "C" __global__ void largest(unsigned* out, const unsigned* x, int n, int k) {
  __shared__ int count, place;
  unsigned threshold = 0;
  for (int bit = 31; bit >= 0; --bit) {
    unsigned candidate = threshold | 1u << bit;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      unsigned votes = __ballot_sync(__activemask(), x[i] >= candidate);
      if (threadIdx.x % 32 == 0) atomicAdd(&count, __popc(votes));
    }
    __syncthreads();
    if (count >= k) threshold = candidate;
    __syncthreads();
  }
  if (threadIdx.x == 0) place = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (x[i] > threshold) out[atomicAdd(&place, 1)] = x[i];
  }
  __syncthreads();
  for (int i = place + threadIdx.x; i < k; i += blockDim.x) out[i] = threshold;
}

// -- A hash table in shared memory, filled by compare-and-swap and then read.
extern "C" __global__ void join(int* found, const int* keys, const int* values, const int* asked, int n, int m) {
  __shared__ int table[128], held[128];
  for (int i = threadIdx.x; i < 128; i += blockDim.x) table[i] = -1;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    int at = keys[i] * 37 & 127;
    while (atomicCAS(&table[at], -1, keys[i]) != -1) at = at + 1 & 127;
    held[at] = values[i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < m; i += blockDim.x) {
    int at = asked[i] * 37 & 127;
    while (table[at] != -1 && table[at] != asked[i]) at = at + 1 & 127;
    found[i] = table[at] == asked[i] ? held[at] : -1;
  }
}

// -- The last block of a row of blocks adds the slices of all, in order.
extern "C" __global__ void stream_k(float* out, float* parts, unsigned* arrived, const float* x, int n) {
  __shared__ bool last;
  float sum = 0;
  for (int i = blockIdx.y; i < n; i += gridDim.y) sum += x[i * 64 * gridDim.x + 64 * blockIdx.x + threadIdx.x];
  parts[(blockIdx.x * gridDim.y + blockIdx.y) * 64 + threadIdx.x] = sum;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> counter(arrived[blockIdx.x]);
    last = counter.fetch_add(1, cuda::memory_order_acq_rel) == gridDim.y - 1;
  }
  __syncthreads();
  if (!last) return;
  float total = 0;
  for (int i = 0; i < gridDim.y; ++i) total += __ldcg(&parts[(blockIdx.x * gridDim.y + i) * 64 + threadIdx.x]);
  out[64 * blockIdx.x + threadIdx.x] = total;
}
