"""The products of f32, tf32 and f64, gated, sparse and mixed products and convolutions beside torch, interleaved.

    python bench/ops_forms.py --json ops_forms.json
    python bench/ops_forms.py --only wide sparse

Random normal data; the method is that of `bench/ops_types.py`.  The peers are cuBLAS for f32, tf32 and f64,
three calls of torch for gated products, cuSPARSELt and cuBLAS's dense product for sparse ones, cuBLAS's product in
bf16 for 4-bit weights, and cuDNN, which measures its kernels first, for convolutions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from ops_types import Contest, Estimate, main

import tilemma as tm
from tilemma import ops, testing
from tilemma.quantized import Quantized

F = torch.nn.functional
HALF, E4M3 = torch.float16, torch.float8_e4m3fn


def rows_of(a: torch.Tensor) -> torch.Tensor:
    """At most 32 rows, spread over ``a``."""
    return torch.linspace(0, len(a) - 1, min(len(a), 32), device="cuda").long()


def name_of(kind: torch.dtype) -> str:
    names = {torch.float64: "f64", torch.float32: "f32", HALF: "f16", torch.bfloat16: "bf16", E4M3: "f8_e4m3"}
    return names[kind]


def shared(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, acc: str, operands: str | None) -> float:
    """The share of the error bound on some rows of ``out`` = a @ b."""
    left, right = a.double(), b.double()
    bound = testing.error_bound(left, right, acc, name_of(out.dtype), operands=operands)
    return testing.share_of_bound(out.double(), testing.reference("mk,kn->mn", left, right), 1.001 * bound)


def kernel(name: str) -> Estimate:
    return Estimate(name, 0.0)


def wide(kind: torch.dtype, size: int, compute: str | None) -> Contest:
    a, b = (torch.randn(size, size, device="cuda", dtype=kind) for _ in range(2))
    b = b.t()
    out, other = torch.empty_like(a), torch.empty_like(a)
    name = name_of(kind)

    def peer(_: int) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = compute == "tf32"
        return torch.mm(a, b, out=other)

    def share() -> float:
        ops.matmul(a, b, out=out, compute=compute)
        rows = rows_of(a)
        return shared(out[rows], a[rows], b, name, compute or name)

    return Contest(
        "wide", f"{compute or name} {size}^3", 2.0 * size**3, float(size * size * a.itemsize),
        lambda i: ops.matmul(a, b, out=out, compute=compute), {"torch.mm": peer}, share,
        lambda: ops.plan(a, b, out=out, compute=compute).chosen,
    )  # fmt: skip


def gated(size: int) -> Contest:
    x, gate, up = (torch.randn(size, size, device="cuda").to(HALF) / 8 for _ in range(3))
    gate, up = gate.t(), up.t()
    out = torch.empty_like(x)

    def share() -> float:
        ops.gated_matmul(x, gate, up, out=out)
        rows = rows_of(x)
        left, right = x[rows].double() @ gate.double(), x[rows].double() @ up.double()
        wanted = F.silu(left) * right
        # Rounding of the result, and of both products.
        bound = 2.0**-11 * wanted.abs() + 2.0**-24 + 1e-4 * (left.abs() + right.abs() + 1)
        return testing.share_of_bound(out[rows].double(), wanted, bound)

    return Contest(
        "gated", f"{size}^3", 4.0 * size**3, 4.0 * size * size, lambda i: ops.gated_matmul(x, gate, up, out=out),
        {"three calls": lambda i: F.silu(x @ gate) * (x @ up)}, share, lambda: kernel("gated_tiles"),
    )  # fmt: skip


def pruned(kind: torch.dtype, size: int) -> tuple[torch.Tensor, tm.sparse.Sparse]:
    """A matrix with the 2:4 pattern, and the same as `tm.sparse.compress` makes it, computed on the device."""
    chunks = torch.randn(size * size // 4, 4, device="cuda")
    places = chunks.abs().topk(2, dim=1).indices.sort(dim=1).values
    values = chunks.gather(1, places)
    whole = torch.zeros_like(chunks).scatter_(1, places, values).view(size, size).to(kind)
    fields = (places[:, 0] | places[:, 1] << 2).view(size, size // 32, 8)
    words = (fields << 4 * torch.arange(8, device="cuda")).sum(-1)
    words = words.where(words < 2**31, words - 2**32).to(torch.int32).view(torch.uint32)
    return whole, tm.sparse.Sparse(values.view(size, size // 2).to(kind), words, (size, size))


def sparse(kind: torch.dtype, size: int) -> Contest:
    whole, a = pruned(kind, size)
    b = torch.randn(size, size, device="cuda").to(kind).t()
    result = torch.bfloat16 if kind is E4M3 else kind
    out = torch.empty(size, size, device="cuda", dtype=result)
    peers: dict[str, Callable[[int], Any]] = {}
    if kind is E4M3:
        one = torch.ones((), device="cuda")
        peers["dense"] = lambda i: torch._scaled_mm(whole, b, one, one, out_dtype=result, use_fast_accum=True)
    else:
        peers["dense"] = lambda i: torch.mm(whole, b)
        packed = torch._cslt_compress(whole)
        peers["cuSPARSELt"] = lambda i: torch._cslt_sparse_mm(packed, b)

    def share() -> float:
        ops.sparse_matmul(a, b, out=out)
        rows = rows_of(out)
        return shared(out[rows], whole.to(torch.float32)[rows], b.to(torch.float32), "f32", name_of(kind))

    return Contest(
        "sparse", f"{name_of(kind)} {size}^3", 2.0 * size**3, float(size * size * whole.itemsize),
        lambda i: ops.sparse_matmul(a, b, out=out), peers, share, lambda: kernel("sparse_tiles"),
    )  # fmt: skip


def quantized(n: int, k: int, group: int) -> Quantized:
    """Random s4 weights."""
    values = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
    scales = (torch.rand(k // group, n, device="cuda") + 0.5) / 8
    return Quantized(values, scales, None, "s4", group, (k, n))


def mixed(rows: int, n: int, k: int, copies: int) -> Contest:
    kind = torch.bfloat16
    a = torch.randn(rows, k, device="cuda").to(kind)
    weights = [quantized(n, k, 128) for _ in range(copies)]
    dense = [torch.randn(n, k, device="cuda").to(kind).t() for _ in range(copies)]
    out, other = (torch.empty(rows, n, device="cuda", dtype=kind) for _ in range(2))

    def share() -> float:
        ops.mixed_matmul(a, weights[0], out=out)
        right = torch.as_tensor(weights[0].dequantize(), device="cuda")
        some = rows_of(a)
        return shared(out[some], a[some], right, "f32", "bf16")

    return Contest(
        "mixed", f"{rows}x{n}x{k}", 2.0 * rows * n * k, n * k / 2.0,
        lambda i: ops.mixed_matmul(a, weights[i], out=out),
        {"torch.mm": lambda i: torch.mm(a, dense[i], out=other)}, share,
        lambda: kernel("mixed_sums"), copies,
    )  # fmt: skip


def convolution(network: str, b: int, h: int, c: int, o: int, r: int, stride: int) -> Contest:
    # cuDNN measures its kernels and takes the fastest.
    torch.backends.cudnn.benchmark = True
    x = torch.randn(b, h, h, c, device="cuda").to(HALF)
    w = torch.randn(o, r, r, c, device="cuda").to(HALF) / (r * c**0.5)
    nchw, filters = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
    padding = r // 2
    size = (h + 2 * padding - r) // stride + 1

    def share() -> float:
        got = ops.conv2d(x, w, stride=stride, padding=padding)[:1].double()
        wanted = F.conv2d(nchw[:1].double(), filters.double(), stride=stride, padding=padding).permute(0, 2, 3, 1)
        total = F.conv2d(nchw[:1].double().abs(), filters.double().abs(), stride=stride, padding=padding)
        bound = 2.0**-11 * wanted.abs() + 2.0**-24 + 2.0**-20 * r * r * c * 2.0**-3 * total.permute(0, 2, 3, 1)
        return testing.share_of_bound(got, wanted, bound)

    return Contest(
        network, f"{b}x{h}x{h}x{c} {o}x{r}x{r} /{stride}", 2.0 * b * size * size * o * r * r * c, 0.0,
        lambda i: ops.conv2d(x, w, stride=stride, padding=padding),
        {"cuDNN": lambda i: F.conv2d(nchw, filters, stride=stride, padding=padding)}, share,
        lambda: kernel("convolution_tiles"),
    )  # fmt: skip


# (extent, channels, filters, extent of the filter, stride) of the distinct convolutions of ResNet-50, whose images
# have 3 channels, and of the U-Net of Stable Diffusion 1.5 (latents of 64 x 64).
RESNET = (
    (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1),
    (56, 256, 128, 1, 1), (56, 128, 128, 3, 2), (28, 128, 512, 1, 1), (28, 512, 128, 1, 1), (28, 128, 128, 3, 1),
    (56, 256, 512, 1, 2), (28, 512, 256, 1, 1), (28, 256, 256, 3, 2), (14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1),
    (14, 256, 256, 3, 1), (28, 512, 1024, 1, 2), (14, 1024, 512, 1, 1), (14, 512, 512, 3, 2), (7, 512, 2048, 1, 1),
    (7, 2048, 512, 1, 1), (7, 512, 512, 3, 1), (14, 1024, 2048, 1, 2),
)  # fmt: skip
UNET = (
    (64, 4, 320, 3, 1), (64, 320, 320, 3, 1), (64, 320, 320, 1, 1), (64, 320, 320, 3, 2), (64, 640, 320, 3, 1),
    (64, 960, 320, 3, 1), (64, 640, 320, 1, 1), (64, 960, 320, 1, 1), (64, 640, 640, 3, 1), (64, 320, 4, 3, 1),
    (32, 320, 640, 3, 1), (32, 320, 640, 1, 1), (32, 640, 640, 3, 1), (32, 640, 640, 1, 1), (32, 640, 640, 3, 2),
    (32, 960, 640, 3, 1), (32, 1280, 640, 3, 1), (32, 1920, 640, 3, 1), (32, 960, 640, 1, 1),
    (32, 1280, 640, 1, 1), (32, 1920, 640, 1, 1), (32, 1280, 1280, 3, 1), (16, 640, 1280, 3, 1),
    (16, 640, 1280, 1, 1),
    (16, 1280, 1280, 3, 1), (16, 1280, 1280, 1, 1), (16, 1280, 1280, 3, 2), (16, 1920, 1280, 3, 1),
    (16, 2560, 1280, 3, 1), (16, 1920, 1280, 1, 1), (16, 2560, 1280, 1, 1), (8, 1280, 1280, 3, 1),
    (8, 1280, 1280, 1, 1), (8, 2560, 1280, 3, 1), (8, 2560, 1280, 1, 1),
)  # fmt: skip
NETWORKS = (("resnet", RESNET, (32, 8)), ("u-net", UNET, (8, 2)))


def contests(groups: list[str]) -> Iterator[tuple[str, str, Callable[[], Contest]]]:
    for size in (4096, 8192):
        yield "wide", f"tf32 {size}", lambda s=size: wide(torch.float32, s, "tf32")
        yield "wide", f"f32 {size}", lambda s=size: wide(torch.float32, s, None)
        yield "wide", f"f64 {size}", lambda s=size: wide(torch.float64, s, None)
        yield "gated", f"{size}", lambda s=size: gated(s)
        for kind in (HALF, E4M3):
            yield "sparse", f"{kind} {size}", lambda t=kind, s=size: sparse(t, s)
    for rows in (1, 8, 16, 32, 64, 4096):
        copies = 3 if rows < 4096 else 1
        yield "mixed", f"{rows}", lambda m=rows, c=copies: mixed(m, 8192, 8192, c)
    for network, layers, images in NETWORKS:
        for batch in images:
            for shape in layers:
                yield network, f"{batch} {shape}", lambda g=network, b=batch, s=shape: convolution(g, b, *s)


if __name__ == "__main__":
    sys.exit(main(contests, __doc__.splitlines()[0]))
