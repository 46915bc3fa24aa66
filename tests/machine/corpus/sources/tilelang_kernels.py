"""Kernels in TileLang for the corpus of the PTX machine: name -> (primitive function, architecture)."""

# ruff: noqa
# mypy: ignore-errors
import tilelang.language as T

KERNELS = {}
F32 = "float32"


def entered(name, *archs):
    def enter(build):
        for arch in archs:
            KERNELS[f"{name}_{arch}" if len(archs) > 1 else name] = (build(), arch)
        return build

    return enter


def matmul(M, N, K, bm, bn, bk, dtype, accumulator, stages, threads=128, transposed=False):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K) if transposed else (K, N), dtype),
        C: T.Tensor((M, N), accumulator),
    ):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
            As = T.alloc_shared((bm, bk), dtype)
            Bs = T.alloc_shared((bn, bk) if transposed else (bk, bn), dtype)
            acc = T.alloc_fragment((bm, bn), accumulator)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, bk), num_stages=stages):
                T.copy(A[by * bm, k * bk], As)
                if transposed:
                    T.copy(B[bx * bn, k * bk], Bs)
                else:
                    T.copy(B[k * bk, bx * bn], Bs)
                T.gemm(As, Bs, acc, transpose_B=transposed)
            T.copy(acc, C[by * bm, bx * bn])

    return main


entered("matmul_f16", "sm_80", "sm_90a")(lambda: matmul(128, 128, 128, 64, 64, 32, "float16", F32, 2))
entered("matmul_f16_deep", "sm_80", "sm_90a")(lambda: matmul(64, 128, 256, 64, 128, 64, "float16", F32, 3))
entered("matmul_bf16_nt", "sm_80", "sm_90a")(
    lambda: matmul(128, 64, 128, 64, 64, 64, "bfloat16", F32, 2, transposed=True)
)
entered("matmul_s8_nt", "sm_80", "sm_90a")(
    lambda: matmul(64, 64, 128, 64, 64, 64, "int8", "int32", 2, transposed=True)
)
entered("matmul_e4m3_nt", "sm_90a")(
    lambda: matmul(64, 64, 256, 64, 64, 128, "float8_e4m3fn", F32, 2, transposed=True)
)
entered("matmul_one_stage", "sm_80", "sm_90a")(lambda: matmul(64, 64, 96, 64, 64, 32, "float16", F32, 1))


@entered("persistent", "sm_90a")
def persistent(M=128, N=128, K=64, bm=64, bn=64, bk=32):
    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), F32)):
        with T.Kernel(2, threads=128) as block:
            As = T.alloc_shared((bm, bk), "float16")
            Bs = T.alloc_shared((bk, bn), "float16")
            acc = T.alloc_fragment((bm, bn), F32)
            for by, bx in T.Persistent([M // bm, N // bn], 2, block):
                T.clear(acc)
                for k in T.Pipelined(K // bk, num_stages=2):
                    T.copy(A[by * bm, k * bk], As)
                    T.copy(B[k * bk, bx * bn], Bs)
                    T.gemm(As, Bs, acc)
                T.copy(acc, C[by * bm, bx * bn])

    return main


@entered("split_k", "sm_80", "sm_90a")
def split_k(M=64, N=64, K=128, bk=32, parts=2):
    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), F32)):
        with T.Kernel(parts, threads=128) as part:
            As = T.alloc_shared((M, bk), "float16")
            Bs = T.alloc_shared((bk, N), "float16")
            acc = T.alloc_fragment((M, N), F32)
            T.clear(acc)
            for k in T.Pipelined(K // parts // bk, num_stages=2):
                T.copy(A[0, part * (K // parts) + k * bk], As)
                T.copy(B[part * (K // parts) + k * bk, 0], Bs)
                T.gemm(As, Bs, acc)
            for i, j in T.Parallel(M, N):
                T.atomic_add(C[i, j], acc[i, j])

    return main


def attention(causal, S=128, D=64, block=64):
    @T.prim_func
    def main(
        Q: T.Tensor((S, D), "float16"),
        K: T.Tensor((S, D), "float16"),
        V: T.Tensor((S, D), "float16"),
        O: T.Tensor((S, D), "float16"),
    ):
        with T.Kernel(S // block, threads=128) as bx:
            Qs = T.alloc_shared((block, D), "float16")
            Ks = T.alloc_shared((block, D), "float16")
            Vs = T.alloc_shared((block, D), "float16")
            s = T.alloc_fragment((block, block), F32)
            p = T.alloc_fragment((block, block), "float16")
            o = T.alloc_fragment((block, D), F32)
            high = T.alloc_fragment((block,), F32)
            before = T.alloc_fragment((block,), F32)
            scale = T.alloc_fragment((block,), F32)
            part = T.alloc_fragment((block,), F32)
            total = T.alloc_fragment((block,), F32)
            T.copy(Q[bx * block, 0], Qs)
            T.fill(o, 0)
            T.fill(total, 0)
            T.fill(high, -1e30)
            for k in T.Pipelined(bx + 1 if causal else S // block, num_stages=2):
                T.copy(K[k * block, 0], Ks)
                if causal:
                    for i, j in T.Parallel(block, block):
                        s[i, j] = T.if_then_else(bx * block + i >= k * block + j, 0.0, -1e30)
                else:
                    T.clear(s)
                T.gemm(Qs, Ks, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(high, before)
                T.reduce_max(s, high, dim=1, clear=False)
                for i in T.Parallel(block):
                    scale[i] = T.exp2((before[i] - high[i]) * 0.18033688)
                for i, j in T.Parallel(block, block):
                    s[i, j] = T.exp2((s[i, j] - high[i]) * 0.18033688)
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(block):
                    total[i] = total[i] * scale[i] + part[i]
                T.copy(s, p)
                for i, j in T.Parallel(block, D):
                    o[i, j] *= scale[i]
                T.copy(V[k * block, 0], Vs)
                T.gemm(p, Vs, o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block, D):
                o[i, j] /= total[i]
            T.copy(o, O[bx * block, 0])

    return main


entered("attention", "sm_80", "sm_90a")(lambda: attention(False))
entered("attention_causal", "sm_90a")(lambda: attention(True))


@entered("softmax", "sm_90a")
def softmax(M=4, N=256):
    @T.prim_func
    def main(X: T.Tensor((M, N), F32), Y: T.Tensor((M, N), F32)):
        with T.Kernel(M, threads=128) as row:
            x = T.alloc_fragment((1, N), F32)
            high = T.alloc_fragment((1,), F32)
            total = T.alloc_fragment((1,), F32)
            T.copy(X[row, 0], x)
            T.reduce_max(x, high, dim=1)
            for i, j in T.Parallel(1, N):
                x[i, j] = T.exp(x[i, j] - high[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(1, N):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[row, 0])

    return main


@entered("rms_norm", "sm_80", "sm_90a")
def rms_norm(M=8, N=256, block=4):
    @T.prim_func
    def main(X: T.Tensor((M, N), F32), Y: T.Tensor((M, N), F32)):
        with T.Kernel(M // block, threads=128) as bx:
            shared = T.alloc_shared((block, N), F32)
            x = T.alloc_fragment((block, N), F32)
            squares = T.alloc_fragment((block, N), F32)
            total = T.alloc_fragment((block,), F32)
            T.copy(X[bx * block, 0], shared)
            T.copy(shared, x)
            for i, j in T.Parallel(block, N):
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, total, dim=1)
            for i in T.Parallel(block):
                total[i] = T.rsqrt(total[i] / N + 1e-6)
            for i, j in T.Parallel(block, N):
                x[i, j] *= total[i]
            T.copy(x, Y[bx * block, 0])

    return main


@entered("transpose", "sm_90a")
def transpose(M=64, N=64, block=32):
    @T.prim_func
    def main(X: T.Tensor((M, N), F32), Y: T.Tensor((N, M), F32)):
        with T.Kernel(N // block, M // block, threads=128) as (bx, by):
            x = T.alloc_shared((block, block), F32)
            y = T.alloc_shared((block, block), F32)
            T.copy(X[by * block, bx * block], x)
            for i, j in T.Parallel(block, block):
                y[j, i] = x[i, j]
            T.copy(y, Y[bx * block, by * block])

    return main


@entered("cumsum", "sm_90a")
def cumsum(M=4, N=128):
    @T.prim_func
    def main(X: T.Tensor((M, N), F32), Y: T.Tensor((M, N), F32)):
        with T.Kernel(1, threads=128) as _:
            x = T.alloc_shared((M, N), F32)
            T.copy(X, x)
            T.cumsum(src=x, dim=1)
            T.copy(x, Y)

    return main


@entered("histogram", "sm_90a")
def histogram(N=1024, bins=32, threads=128):
    @T.prim_func
    def main(X: T.Tensor((N,), "int32"), H: T.Tensor((bins,), "int32")):
        with T.Kernel(N // 512, threads=threads) as bx:
            for i in T.Parallel(512):
                T.atomic_add(H[X[bx * 512 + i]], 1)

    return main


@entered("gemv", "sm_90a")
def gemv(N=64, K=256, rows=8, lanes=32):
    @T.prim_func
    def main(A: T.Tensor((N, K), "float16"), x: T.Tensor((K,), "float16"), y: T.Tensor((N,), F32)):
        with T.Kernel(N // rows, threads=(lanes, rows)) as bx:
            lane = T.get_thread_binding(0)
            row = T.get_thread_binding(1)
            acc = T.alloc_local((1,), F32)
            T.clear(acc)
            for k in T.serial(K // lanes):
                acc[0] += A[bx * rows + row, k * lanes + lane].astype(F32) * x[k * lanes + lane].astype(F32)
            whole = T.alloc_local((1,), F32)
            with T.attr(
                T.comm_reducer(lambda a, b: a + b, [T.Cast(F32, 0)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(T.tvm_thread_allreduce(T.uint32(1), acc[0], True, whole[0], lane, dtype="handle"))
            if lane == 0:
                y[bx * rows + row] = whole[0]

    return main


@entered("convolution", "sm_90a")
def convolution(N=1, H=8, W=8, C=32, F=64, R=3, bm=64, bk=32):
    @T.prim_func
    def main(
        X: T.Tensor((N, H, W, C), "float16"), K: T.Tensor((R, R, C, F), "float16"), Y: T.Tensor((N, H, W, F), F32)
    ):
        with T.Kernel(1, T.ceildiv(N * H * W, bm), threads=128) as (bx, by):
            x = T.alloc_shared((bm, bk), "float16")
            k_tile = T.alloc_shared((bk, F), "float16")
            acc = T.alloc_fragment((bm, F), F32)
            flat_k = T.Tensor((R * R * C, F), "float16", K.data)
            flat_y = T.Tensor((N * H * W, F), F32, Y.data)
            T.clear(acc)
            for k in T.Pipelined(R * R * C // bk, num_stages=2):
                T.c2d_im2col(X, x, by, k, R, 1, 1, 1)
                T.copy(flat_k[k * bk, 0], k_tile)
                T.gemm(x, k_tile, acc)
            T.copy(acc, flat_y[by * bm, 0])

    return main
