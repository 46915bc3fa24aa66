"""Kernels in Triton, and how each is compiled: types of the arguments, constants, options.

Run by regenerate.py with Triton installed.
"""

import triton
import triton.language as tl

KERNELS = {}


def kernel(signature, warps=4, stages=3, arch=90, variants=None, **constants):
    """Enter a kernel: ``signature`` are the types of its arguments, ``variants`` more constants by suffix."""

    def enter(function):
        jit = triton.jit(function)
        for suffix, more in (variants or {"": {}}).items():
            KERNELS[function.__name__ + suffix] = (jit, signature, {**constants, **more}, warps, stages, arch)
        return jit

    return enter


@kernel("*fp32 *fp32 *fp32 i32", B=256)
def add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(o + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


@kernel("*fp16 *fp16 i32", B=512)
def gelu(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n).to(tl.float32)
    tl.store(o + i, (v * 0.5 * (1 + tl.math.erf(v * 0.70710678))).to(tl.float16), mask=i < n)


@kernel("*fp32 *fp32 i32", B=128, variants={"": {}, "_wide": {"B": 1024}})
def softmax(x, o, n, B: tl.constexpr):
    r, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + r * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(o + r * n + i, e / tl.sum(e, 0), mask=i < n)


@kernel("*fp32 *fp32 *fp32 *fp32 i32", B=256)
def layer_norm(x, w, b, o, n, B: tl.constexpr):
    r, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + r * n + i, mask=i < n, other=0.0)
    mean = tl.sum(v, 0) / n
    d = tl.where(i < n, v - mean, 0.0)
    s = tl.rsqrt(tl.sum(d * d, 0) / n + 1e-5)
    y = d * s * tl.load(w + i, mask=i < n) + tl.load(b + i, mask=i < n)
    tl.store(o + r * n + i, y, mask=i < n)


@kernel("*bf16 *bf16 i32", B=256)
def rms_norm(x, o, n, B: tl.constexpr):
    r, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + r * n + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(o + r * n + i, (v * tl.rsqrt(tl.sum(v * v, 0) / n + 1e-6)).to(tl.bfloat16), mask=i < n)


@kernel("*i32 *i32", B=256, variants={"": {}, "_one_warp": {"B": 64}})
def scan(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.cumsum(tl.load(x + i), 0))


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@kernel("*i32 *i32", B=256)
def scan_max(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.associative_scan(tl.load(x + i), 0, larger))


@kernel("*i32 *i32 i32", B=256)
def histogram(x, bins, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(bins + tl.load(x + i, mask=i < n, other=0), 1, mask=i < n)


@kernel("*i32 *i32", B=256)
def histogram_op(x, bins, B: tl.constexpr):
    h = tl.histogram(tl.load(x + tl.arange(0, B)), 32)
    tl.store(bins + tl.arange(0, 32), h)


@kernel("*i32 *i32", B=256)
def sort(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.sort(tl.load(x + i)))


@kernel("*fp32 *i32 i32", B=256)
def argmax(x, o, n, B: tl.constexpr):
    r, i = tl.program_id(0), tl.arange(0, B)
    tl.store(o + r, tl.argmax(tl.load(x + r * n + i, mask=i < n, other=-float("inf")), 0))


@kernel("*fp32 *fp32", M=64, N=32)
def transpose(x, o, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(o + tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :], tl.trans(tl.load(x + i * N + j)))


@kernel("*fp32 *fp32", M=32, N=64, variants={"_rows": {"AXIS": 1}, "_columns": {"AXIS": 0}})
def reduce(x, o, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    v = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(o + tl.arange(0, M if AXIS == 1 else N), tl.sum(v, AXIS))


@kernel("*fp32 *fp32 i32", B=256)
def dropout(x, o, seed, B: tl.constexpr):
    i = tl.arange(0, B)
    keep = tl.rand(seed, i) > 0.5
    tl.store(o + i, tl.where(keep, tl.load(x + i) * 2, 0.0))


@kernel("*fp32 *i32 *fp32", M=16, N=64)
def embedding(table, index, o, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.load(index + tl.arange(0, M)), tl.arange(0, N)
    tl.store(o + tl.arange(0, M)[:, None] * N + j[None, :], tl.load(table + i[:, None] * N + j[None, :]))


@kernel("*i32 *i32", B=128)
def lock(counters, guard, B: tl.constexpr):
    i = tl.arange(0, B)
    while tl.atomic_cas(guard, 0, 1) == 1:
        pass
    tl.store(counters + i, tl.load(counters + i) + i)
    tl.debug_barrier()
    tl.atomic_xchg(guard, 0)


@kernel("*fp32 *fp32 *i32 *fp32 i32", B=128)
def last_block(x, parts, count, o, n, B: tl.constexpr):
    r = tl.program_id(0)
    tl.store(parts + r, tl.sum(tl.load(x + r * B + tl.arange(0, B)), 0))
    if tl.atomic_add(count, 1) == n - 1:
        i = tl.arange(0, 8)
        tl.store(o, tl.sum(tl.load(parts + i, mask=i < n, other=0.0, volatile=True), 0))


@triton.jit
def product(a, b, c, m, n, k, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for s in range(0, k, BK):
        x = tl.load(
            a + i[:, None] * am + (s + inner)[None, :] * ak,
            mask=(i < m)[:, None] & (s + inner < k)[None, :],
            other=0.0,
        )
        y = tl.load(
            b + (s + inner)[:, None] * bk + j[None, :] * bn,
            mask=(s + inner < k)[:, None] & (j < n)[None, :],
            other=0.0,
        )
        acc += tl.dot(x, y)
    tl.store(c + i[:, None] * cm + j[None, :] * cn, acc, mask=(i < m)[:, None] & (j < n)[None, :])


def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    product(a, b, c, m, n, k, k, 1, n, 1, n, 1, BM, BN, BK)


def matmul_nt(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    product(a, b, c, m, n, k, k, 1, 1, k, n, 1, BM, BN, BK)


for _name, _type, _arch in (
    ("f16_sm80", "fp16", 80), ("bf16_sm80", "bf16", 80), ("tf32_sm80", "fp32", 80), ("f16_sm90", "fp16", 90),
    ("bf16_sm90", "bf16", 90), ("tf32_sm90", "fp32", 90), ("e4m3_sm90", "fp8e4nv", 90),
):  # fmt: skip
    for _function in (matmul, matmul_nt):
        if _type == "fp8e4nv" and _function is matmul:
            continue
        for _stages in (1, 3):
            _constants = {"BM": 64, "BN": 64, "BK": 32 if _type != "fp8e4nv" else 64}
            KERNELS[f"{_function.__name__}_{_name}_{_stages}"] = (
                triton.jit(_function), f"*{_type} *{_type} *fp32 i32 i32 i32", _constants, 4, _stages, _arch,
            )  # fmt: skip


@kernel(
    "*fp16 *fp16 *fp16 *fp32 i32",
    B=64,
    D=64,
    stages=2,
    variants={"": {"CAUSAL": False}, "_causal": {"CAUSAL": True}},
)
def attention(q, k, v, o, n, B: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    i, d = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, D)
    x = tl.load(q + i[:, None] * D + d[None, :])
    top = tl.full((B,), -float("inf"), tl.float32)
    total = tl.zeros((B,), tl.float32)
    acc = tl.zeros((B, D), tl.float32)
    for s in range(0, n, B):
        j = s + tl.arange(0, B)
        y = tl.load(k + j[None, :] * D + d[:, None])
        p = tl.dot(x, y) * 0.125
        if CAUSAL:
            p = tl.where(i[:, None] >= j[None, :], p, -float("inf"))
        high = tl.maximum(top, tl.max(p, 1))
        e = tl.exp(p - high[:, None])
        scale = tl.exp(top - high)
        total = total * scale + tl.sum(e, 1)
        acc = acc * scale[:, None] + tl.dot(e.to(tl.float16), tl.load(v + j[:, None] * D + d[None, :]))
        top = high
    tl.store(o + i[:, None] * D + d[None, :], acc / total[:, None])


@kernel("*fp16 *fp16 *fp32 i32 i32 i32", BM=64, BN=64, BK=32)
def persistent(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        i = tile // tl.cdiv(n, BN) * BM + tl.arange(0, BM)
        j = tile % tl.cdiv(n, BN) * BN + tl.arange(0, BN)
        inner = tl.arange(0, BK)
        acc = tl.zeros((BM, BN), tl.float32)
        for s in range(0, k, BK):
            acc += tl.dot(
                tl.load(a + i[:, None] * k + (s + inner)[None, :]),
                tl.load(b + j[None, :] * k + (s + inner)[:, None]),
            )
        tl.store(c + i[:, None] * n + j[None, :], acc)


@kernel("*fp16 *fp16 *fp32 i32 i32 i32", BM=64, BN=64, BK=32)
def split_k(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j, h = tl.arange(0, BM), tl.arange(0, BN), tl.program_id(0) * BK + tl.arange(0, BK)
    part = tl.dot(tl.load(a + i[:, None] * k + h[None, :]), tl.load(b + j[None, :] * k + h[:, None]))
    tl.atomic_add(c + i[:, None] * n + j[None, :], part)
