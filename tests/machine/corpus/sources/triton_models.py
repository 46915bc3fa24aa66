"""More kernels in Triton: of models (losses, backward passes, decoding, convolution), and rarer words of Triton.

Run by regenerate.py with Triton installed.
"""

import triton
import triton.language as tl
from triton_kernels import kernel


@kernel("*fp16 *fp16 *fp32 *fp32 i32", M=64, N=64, K=64, variants={"": {"LOOP": 1}, "_loop": {"LOOP": 2}})
def bias(a, b, z, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, LOOP: tl.constexpr):
    i, j, h = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.load(z + j)[None, :] + tl.zeros((M, N), tl.float32)
    if LOOP == 1:
        acc = tl.dot(tl.load(a + i[:, None] * K + h[None, :]), tl.load(b + j[None, :] * K + h[:, None]), acc)
    else:
        for s in range(0, k, K):
            x = tl.load(a + i[:, None] * k + (s + h)[None, :])
            acc = tl.dot(x, tl.load(b + j[None, :] * k + (s + h)[:, None]), acc)
    tl.store(c + i[:, None] * N + j[None, :], acc)


@kernel("*fp16 *fp16 *fp16 i32", M=64, N=64, K=32, stages=2)
def half_sums(a, b, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, h = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((M, N), tl.float16)
    for s in range(0, k, K):
        x = tl.load(a + i[:, None] * k + (s + h)[None, :])
        acc = tl.dot(x, tl.load(b + j[None, :] * k + (s + h)[:, None]), acc, out_dtype=tl.float16)
    tl.store(c + i[:, None] * N + j[None, :], acc)


@kernel("*fp32 *i32 *fp32 *fp32 i32", B=256)
def cross_entropy(x, label, loss, grad, n, B: tl.constexpr):
    r, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + r * n + i, mask=i < n, other=-float("inf"))
    top = tl.max(v, 0)
    total = tl.sum(tl.exp(v - top), 0)
    which = tl.load(label + r)
    tl.store(loss + r, tl.log(total) + top - tl.load(x + r * n + which))
    tl.store(grad + r * n + i, tl.exp(v - top) / total - tl.where(i == which, 1.0, 0.0), mask=i < n)


@kernel("*fp16 *fp32 *fp32 *fp16", H=4, D=64)
def rotary(x, cosine, sine, o, H: tl.constexpr, D: tl.constexpr):
    t, h, d = tl.program_id(0), tl.arange(0, H), tl.arange(0, D // 2)
    at = x + t * H * D + h[:, None] * D + d[None, :]
    to = o + t * H * D + h[:, None] * D + d[None, :]
    c, s = tl.load(cosine + t * (D // 2) + d)[None, :], tl.load(sine + t * (D // 2) + d)[None, :]
    u, v = tl.load(at).to(tl.float32), tl.load(at + D // 2).to(tl.float32)
    tl.store(to, u * c - v * s)
    tl.store(to + D // 2, v * c + u * s)


@triton.jit
def recurrence(a, b, c, d):
    return a * c, b * c + d


@kernel("*fp32 *fp32 *fp32", T=64, N=8, variants={"": {"BACK": False}, "_reverse": {"BACK": True}})
def linear_scan(a, x, o, T: tl.constexpr, N: tl.constexpr, BACK: tl.constexpr):
    i = tl.arange(0, T)[:, None] * N + tl.arange(0, N)[None, :]
    _, h = tl.associative_scan((tl.load(a + i), tl.load(x + i)), 0, recurrence, reverse=BACK)
    tl.store(o + i, h)


@triton.jit
def welford(mean, m2, count, mean_b, m2_b, count_b):
    total = count + count_b
    delta = mean_b - mean
    share = count_b / total
    return mean + delta * share, m2 + m2_b + delta * delta * count * share, total


@kernel("*fp32 *fp32 *fp32", B=512, warps=8)
def variance(x, mean, var, B: tl.constexpr):
    r, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + r * B + i)
    m, m2, count = tl.reduce((v, tl.zeros_like(v), tl.full((B,), 1.0, tl.float32)), 0, welford)
    tl.store(mean + r, m)
    tl.store(var + r, m2 / count)


@kernel("*fp32 *fp32 *fp32 *fp32 *fp32 *i32 i32", B=128)
def norm_backward(x, w, dy, dx, dw, guard, n, B: tl.constexpr):
    r, i = tl.program_id(0), tl.arange(0, B)
    v, g = tl.load(x + r * n + i, mask=i < n, other=0.0), tl.load(dy + r * n + i, mask=i < n, other=0.0)
    s = tl.rsqrt(tl.sum(v * v, 0) / n + 1e-6)
    h = g * tl.load(w + i, mask=i < n, other=0.0)
    tl.store(dx + r * n + i, s * (h - v * s * s * tl.sum(h * v, 0) / n), mask=i < n)
    while tl.atomic_cas(guard, 0, 1) == 1:
        pass
    tl.store(dw + i, tl.load(dw + i, mask=i < n) + g * v * s, mask=i < n)
    tl.debug_barrier()
    tl.atomic_xchg(guard, 0)


@kernel("*fp16 *i8 *fp16 *fp32 i32", M=16, N=64, K=64, G=32)
def int4_weights(a, packed, scales, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, G: tl.constexpr):
    i, j, h = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((M, N), tl.float32)
    for s in range(0, k, K):
        w = tl.load(packed + j[:, None] * (k // 2) + s // 2 + tl.arange(0, K // 2)[None, :])
        low = (w << 4).to(tl.int8) >> 4
        both = tl.join(low, w >> 4).reshape(N, K).to(tl.float16)
        scale = tl.load(scales + j[:, None] * (k // G) + ((s + h) // G)[None, :])
        acc = tl.dot(tl.load(a + i[:, None] * k + (s + h)[None, :]), (both * scale).trans(), acc)
    tl.store(c + i[:, None] * N + j[None, :], acc)


@kernel("*i8 *i8 *fp32 *fp32 *bf16 i32", M=64, N=64, K=64, stages=3, variants={"": {"SPLIT": 1}})
def int8_scaled(a, b, sa, sb, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SPLIT: tl.constexpr):
    i, j, h = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((M, N), tl.int32)
    for s in range(0, k, K):
        x = tl.load(a + i[:, None] * k + (s + h)[None, :])
        acc += tl.dot(x, tl.load(b + j[None, :] * k + (s + h)[:, None]))
    y = acc.to(tl.float32) * tl.load(sa + i)[:, None] * tl.load(sb + j)[None, :]
    tl.store(c + i[:, None] * N + j[None, :], y.to(tl.bfloat16))


@kernel("*fp8e5 *fp8e5 *fp32 i32", M=64, N=64, K=64)
def e5m2_pipelined(a, b, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, h = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((M, N), tl.float32)
    for s in tl.range(0, k, K, num_stages=2):
        x = tl.load(a + i[:, None] * k + (s + h)[None, :])
        acc = tl.dot(x, tl.load(b + j[None, :] * k + (s + h)[:, None]), acc, max_num_imprecise_acc=64)
    tl.store(c + i[:, None] * N + j[None, :], tl.maximum(acc, 0.0))


@kernel(
    "*fp32 *fp32 *fp32",
    M=32, N=32, K=32,
    variants={"_ieee": {"HOW": "ieee"}, "_tf32x3": {"HOW": "tf32x3"}, "_bf16x3": {"HOW": "bf16x3"}},
)  # fmt: skip
def precise(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, HOW: tl.constexpr):
    i, j, h = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x, y = tl.load(a + i[:, None] * K + h[None, :]), tl.load(b + h[:, None] * N + j[None, :])
    tl.store(c + i[:, None] * N + j[None, :], tl.dot(x, y, input_precision=HOW))


@kernel("*fp64 *fp64 *fp64", M=32, N=32, K=32)
def doubles(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, h = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x, y = tl.load(a + i[:, None] * K + h[None, :]), tl.load(b + h[:, None] * N + j[None, :])
    tl.store(c + i[:, None] * N + j[None, :], tl.dot(x, y, out_dtype=tl.float64))


@kernel("*i32 *fp32 *i32 *i64 *fp16 i32", B=128)
def atomics(x, high, bits, total, halves, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_max(high + v % 4, v.to(tl.float32), mask=i < n)
    tl.atomic_or(bits + i * 0, 1 << (v % 32), mask=i < n, sem="relaxed")
    tl.atomic_add(total, tl.sum(v.to(tl.int64), 0), scope="sys")
    tl.atomic_add(halves + i % 8, v.to(tl.float16), mask=i < n)


@kernel("*i32 *i32 *i32 *i32", B=128, K=8)
def pieces(x, top, turned, picked, B: tl.constexpr, K: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(top + tl.arange(0, K), tl.topk(v, K))
    tl.store(turned + i, tl.flip(v, 0))
    tl.store(picked + i, tl.gather(v, (i * 7 + 3) % B, 0))


@kernel("*fp32 *fp32 *fp32", B=64)
def woven(x, y, o, B: tl.constexpr):
    i = tl.arange(0, B)
    both = tl.interleave(tl.load(x + i), tl.load(y + i))
    a, b = tl.reshape(tl.permute(both.reshape(2, B // 2, 2), (1, 0, 2)), (B, 2)).split()
    tl.store(o + i, a)
    tl.store(o + B + i, b)


@kernel("*i32 *i32 *i32", B=128)
def assembly(x, y, o, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.inline_asm_elementwise(
        "{ .reg .b32 t; prmt.b32 t, $1, $2, 0x5140; xor.b32 $0, t, $2; }",
        "=r,r,r", [tl.load(x + i), tl.load(y + i)], tl.int32, True, 1,
    )  # fmt: skip
    tl.store(o + i, v)


@kernel("*fp32 *fp32 i32 i32", B=256)
def normals(o, u, seed, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.randn(seed, i), mask=i < n)
    a, b, _, d = tl.randint4x(seed, i)
    tl.store(u + i, (a ^ b ^ d).to(tl.float32, bitcast=True) * 0.0 + i, mask=i < n)


@kernel("*fp32 *fp32 *i32 i32", B=64)
def search(edges, x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i)
    low, high = tl.zeros((B,), tl.int32), tl.full((B,), 0, tl.int32) + n
    while tl.max(high - low, 0) > 0:
        middle = (low + high) // 2
        right = (tl.load(edges + middle, mask=middle < n, other=0.0) < v) & (low < high)
        high = tl.where(right | (low >= high), high, middle)
        low = tl.where(right, middle + 1, low)
    tl.store(o + i, low)


@kernel("*i32 *i32 *fp32 *fp32 *fp32", B=32)
def sparse_rows(starts, columns, values, x, y, B: tl.constexpr):
    r = tl.program_id(0)
    first, last = tl.load(starts + r), tl.load(starts + r + 1)
    total = tl.zeros((B,), tl.float32)
    for s in range(first, last, B):
        i = s + tl.arange(0, B)
        there = i < last
        total += tl.load(values + i, mask=there, other=0.0) * tl.load(
            x + tl.load(columns + i, mask=there, other=0), mask=there, other=0.0
        )
    tl.store(y + r, tl.sum(total, 0))


@kernel("*fp16 *fp16 *fp16 *i32 *i32 *fp32 i32", P=16, D=64, G=16)
def paged(q, keys, values, table, lengths, o, pages, P: tl.constexpr, D: tl.constexpr, G: tl.constexpr):
    s, g, d, p = tl.program_id(0), tl.arange(0, G), tl.arange(0, D), tl.arange(0, P)
    length = tl.load(lengths + s)
    x = tl.load(q + s * G * D + g[:, None] * D + d[None, :])
    top, total = tl.full((G,), -float("inf"), tl.float32), tl.zeros((G,), tl.float32)
    acc = tl.zeros((G, D), tl.float32)
    for t in range(tl.cdiv(length, P)):
        page = tl.load(table + s * pages + t)
        k = tl.load(keys + page * P * D + p[None, :] * D + d[:, None])
        logits = tl.where((t * P + p < length)[None, :], tl.dot(x, k) * 0.125, -float("inf"))
        high = tl.maximum(top, tl.max(logits, 1))
        e, old = tl.exp(logits - high[:, None]), tl.exp(top - high)
        v = tl.load(values + page * P * D + p[:, None] * D + d[None, :])
        acc, total, top = acc * old[:, None] + tl.dot(e.to(tl.float16), v), total * old + tl.sum(e, 1), high
    tl.store(o + s * G * D + g[:, None] * D + d[None, :], acc / total[:, None])


@kernel("*fp16 *fp16 *fp32 i32 i32 i32", M=64, N=32, K=32)
def convolution(x, w, y, height, width, channels, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """3 x 3 without padding: x [height, width, channels], w [9, channels, N]."""
    p = tl.program_id(0) * M + tl.arange(0, M)
    row, column, j, h = p // (width - 2), p % (width - 2), tl.arange(0, N), tl.arange(0, K)
    inside = p < (height - 2) * (width - 2)
    acc = tl.zeros((M, N), tl.float32)
    for tap in range(9):
        at = (row + tap // 3) * width + column + tap % 3
        for s in range(0, channels, K):
            a = tl.load(x + at[:, None] * channels + (s + h)[None, :], mask=inside[:, None], other=0.0)
            acc += tl.dot(a, tl.load(w + (tap * channels + s + h)[:, None] * N + j[None, :]))
    tl.store(y + p[:, None] * N + j[None, :], acc, mask=inside[:, None])


@kernel("*fp16 *fp16 *fp16 *fp32 *i32 i32 i32", M=32, N=32, K=32)
def experts(x, w, o, gate, order, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    e, i, j, h = tl.program_id(0), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    row = tl.load(order + e * M + i)
    there = row < n
    acc = tl.zeros((M, N), tl.float32)
    for s in range(0, k, K):
        a = tl.load(x + row[:, None] * k + (s + h)[None, :], mask=there[:, None], other=0.0)
        acc += tl.dot(a, tl.load(w + e * N * k + j[None, :] * k + (s + h)[:, None]))
    acc *= tl.load(gate + row, mask=there, other=0.0)[:, None]
    tl.store(o + row[:, None] * N + j[None, :], acc.to(tl.float16), mask=there[:, None])


@kernel("*fp16 *fp16 *fp16 *fp16 *fp32 *fp32 *fp32 *fp32 *fp32", B=64, D=64, stages=1)
def attention_backward(q, k, v, do, top, delta, dq, dk, dv, B: tl.constexpr, D: tl.constexpr):
    i, d = tl.arange(0, B), tl.arange(0, D)
    at = i[:, None] * D + d[None, :]
    x, y, z, g = tl.load(q + at), tl.load(k + at), tl.load(v + at), tl.load(do + at)
    p = tl.exp(tl.dot(x, y.trans()) * 0.125 - tl.load(top + i)[:, None])
    tl.store(dv + at, tl.dot(p.to(tl.float16).trans(), g))
    ds = (p * (tl.dot(g, z.trans()) - tl.load(delta + i)[:, None]) * 0.125).to(tl.float16)
    tl.store(dq + at, tl.dot(ds, y))
    tl.store(dk + at, tl.dot(ds.trans(), x))


@kernel(
    "*fp16 *fp16 *fp16 i32 i32 i32", M=64, N=64, K=64, variants={"": {"BLOCKS": 0}, "_persistent": {"BLOCKS": 2}}
)
def descriptors(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCKS: tl.constexpr):
    x = tl.make_tensor_descriptor(a, [m, k], [k, 1], [M, K])
    y = tl.make_tensor_descriptor(b, [n, k], [k, 1], [N, K])
    z = tl.make_tensor_descriptor(c, [m, n], [n, 1], [M, N])
    tiles = tl.cdiv(m, M) * tl.cdiv(n, N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=BLOCKS > 0):
        i, j = tile // tl.cdiv(n, N) * M, tile % tl.cdiv(n, N) * N
        acc = tl.zeros((M, N), tl.float32)
        for s in range(0, k, K):
            acc = tl.dot(x.load([i, s]), y.load([j, s]).T, acc)
        z.store([i, j], acc.to(tl.float16))


@kernel("*bf16 *bf16 *fp32 i32", M=64, N=64, K=64)
def descriptor_reduce(a, b, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    x = tl.make_tensor_descriptor(a, [M, k], [k, 1], [M, K])
    y = tl.make_tensor_descriptor(b, [N, k], [k, 1], [N, K])
    z = tl.make_tensor_descriptor(c, [M, N], [N, 1], [M, N])
    s = tl.program_id(0) * K
    z.atomic_add([0, 0], tl.dot(x.load([0, s]), y.load([0, s]).T))


@kernel("*fp32 *fp32 *i32", B=16, warps=1)
def checked(x, o, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.device_assert(v >= 0, "negative")
    tl.store(o + i, tl.sqrt(v) + tl.floor(v) + tl.clamp(v, 1.0, 2.0) + tl.fma(v, v, 1.0) + tl.erf(v))


@kernel("*fp32 *fp32", B=128)
def functions(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    a = tl.sin(v) + tl.cos(v) + tl.exp2(v) + tl.log2(tl.abs(v) + 1.0) + tl.math.div_rn(v, 3.0)
    tl.store(o + i, a + tl.sigmoid(v) + tl.ceil(v) + tl.math.sqrt_rn(tl.abs(v)) + v % 1.5 + tl.softmax(v))


@kernel("*i64 *i64 *i32 *i32", B=128)
def integers(x, y, high, o, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(high + i, tl.umulhi(a.to(tl.int32), b.to(tl.int32)))
    tl.store(o + i, (a // b + a % b + (a ^ b) + (a >> 3)).to(tl.int32))


@kernel("*fp16 *fp16 *fp32", G=4, M=16, N=16, K=32)
def batched(a, b, c, G: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    g, i, j, h = tl.arange(0, G), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + (g[:, None, None] * M + i[None, :, None]) * K + h[None, None, :])
    y = tl.load(b + (g[:, None, None] * K + h[None, :, None]) * N + j[None, None, :])
    tl.store(c + (g[:, None, None] * M + i[None, :, None]) * N + j[None, None, :], tl.dot(x, y))
