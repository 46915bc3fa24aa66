// Tensor cores: wmma, and mma.sync with ldmatrix and asynchronous copies.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void wmma_half(float* c, const half* a, const half* b, int n) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  for (int k = 0; k < n; k += 16) {
    wmma::load_matrix_sync(fa, a + blockIdx.y * 16 * n + k, n);
    wmma::load_matrix_sync(fb, b + k * n + blockIdx.x * 16, n);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] *= 0.5f;
  wmma::store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, fc, n, wmma::mem_row_major);
}
extern "C" __global__ void wmma_shared(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b, int n) {
  __shared__ __nv_bfloat16 s[16 * 24], t[16 * 24];
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  for (int k = 0; k < n; k += 16) {
    for (int i = threadIdx.x; i < 256; i += 32) {
      s[i / 16 * 24 + i % 16] = a[(blockIdx.y * 16 + i / 16) * n + k + i % 16];
      t[i / 16 * 24 + i % 16] = b[(blockIdx.x * 16 + i / 16) * n + k + i % 16];
    }
    __syncthreads();
    wmma::load_matrix_sync(fa, s, 24);
    wmma::load_matrix_sync(fb, t, 24);
    wmma::mma_sync(fc, fa, fb, fc);
    __syncthreads();
  }
  wmma::store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, fc, n, wmma::mem_row_major);
}
extern "C" __global__ void wmma_int8(int* c, const signed char* a, const signed char* b) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, int> fc;
  wmma::fill_fragment(fc, 0);
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
__device__ unsigned shared_of(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
// One warp: C[16, 8] = A[16, n] B[8, n] with ldmatrix from two stages that cp.async fills.
extern "C" __global__ void mma_pipelined(float* c, const half* a, const half* b, int n) {
  __shared__ alignas(128) half s[2][16 * 16], t[2][8 * 16];
  float d[4] = {0, 0, 0, 0};
  int lane = threadIdx.x;
  auto fetch = [&](int k) {
    __pipeline_memcpy_async(&s[k & 1][lane * 8], a + (lane / 2) * n + k * 16 + lane % 2 * 8, 16);
    if (lane < 16) __pipeline_memcpy_async(&t[k & 1][lane * 8], b + (lane / 2) * n + k * 16 + lane % 2 * 8, 16);
    __pipeline_commit();
  };
  fetch(0);
  for (int k = 0; k < n / 16; k++) {
    if (k + 1 < n / 16) { fetch(k + 1); __pipeline_wait_prior(1); } else __pipeline_wait_prior(0);
    __syncwarp();
    unsigned x[4], y[2];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_of(&s[k & 1][(lane % 16) * 16 + lane / 16 * 8])) : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(y[0]), "=r"(y[1]) : "r"(shared_of(&t[k & 1][(lane % 8) * 16 + lane / 8 % 2 * 8])) : "memory");
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    __syncwarp();
  }
  for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}
