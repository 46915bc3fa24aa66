"""The kernels of examples/gallery beside the function of torch that does the same: one process, alternating calls,
medians of single calls with the L2 cache flushed.

python bench/gallery.py --json docs/performance/gallery.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import timing

import tilemma as tm
from dev.gallery import ENTRIES, kernel

F = torch.nn.functional


@dataclass(frozen=True)
class Race:
    """``arguments`` of the kernel, the one at ``output`` written; ``peer`` returns the same.  ``work``: operations
    of products, or else bytes that have to move."""

    size: str
    arguments: list[Any]
    output: int
    peer: Callable[[], Any] | None
    peer_name: str
    flops: float = 0.0
    bytes: float = 0.0
    tolerance: float = 2.0**-7
    constants: dict[str, Any] = field(default_factory=dict)
    wanted: Callable[[], Any] | None = None


def normal(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def empty(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=dtype)


def moved(*tensors: torch.Tensor) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors))


def softmax() -> Race:
    x, y = normal(8192, 8192), empty(8192, 8192)
    return Race("8192 x 8192, f16", [x, y], 1, lambda: F.softmax(x, 1), "torch softmax", bytes=moved(x, y))


def layer_norm() -> Race:
    x, g, b, y = normal(8192, 8192), normal(8192), normal(8192), empty(8192, 8192)

    def peer():
        return F.layer_norm(x, (8192,), g, b)

    return Race("8192 x 8192, f16", [x, g, b, y, 1e-5], 3, peer, "torch layer_norm", bytes=moved(x, y))


def reduction() -> Race:
    x, sums, y = (
        normal(1 << 26, dtype=torch.float32),
        empty(528, dtype=torch.float32),
        empty(1, dtype=torch.float32),
    )
    return Race("2^26, f32", [x, sums, y], 2, lambda: x.sum().view(1), "torch sum", bytes=moved(x), tolerance=1e-2)


def scan() -> Race:
    n = 1 << 26
    x, y = torch.rand(n, device="cuda"), empty(n, dtype=torch.float32)
    sums = empty(-(-n // (256 * 31)), dtype=torch.float32)
    return Race(
        "2^26, f32", [x, sums, y], 2, lambda: x.cumsum(0), "torch cumsum", bytes=moved(x, y), tolerance=1e-2
    )


def transpose() -> Race:
    x, y = normal(8192, 8192, dtype=torch.float32), empty(8192, 8192, dtype=torch.float32)
    return Race("8192 x 8192, f32", [x, y], 1, lambda: x.t().contiguous(), "torch contiguous", bytes=moved(x, y))


def gemv() -> Race:
    a, x, y = normal(8192, 8192), normal(8192), empty(8192, dtype=torch.float32)
    return Race("8192 x 8192, f16", [a, x, y], 2, lambda: torch.mv(a, x), "torch mv (cuBLAS)", bytes=moved(a))


def batched() -> Race:
    a, b, c = normal(16, 2048, 2048), normal(16, 2048, 2048), empty(16, 2048, 2048)

    def peer():
        return torch.bmm(a, b.mT)

    return Race("16 x 2048^3, f16", [a, b, c], 2, peer, "torch bmm (cuBLAS)", flops=2 * 16 * 2048.0**3)


def experts() -> Race:
    e, rows, n, k = 16, 1024, 4096, 4096
    x, w, y = normal(e * rows, k), normal(e, n, k), empty(e * rows, n)
    first = torch.arange(0, (e + 1) * rows, rows, device="cuda", dtype=torch.int32)
    gate = torch.ones(e * rows, device="cuda")
    starts = torch.arange(0, e * rows, 128, device="cuda", dtype=torch.int32)
    tiles = torch.stack([starts // rows, starts], 1).contiguous()
    ends = first[1:].contiguous()
    bx, bw = x.bfloat16(), w.bfloat16()

    # torch has it for bf16 alone: the work is the same.
    def peer():
        return torch._grouped_mm(bx, bw.mT, ends)

    name = "torch _grouped_mm of bf16"
    return Race(
        "16 of 1024 x 4096 x 4096, f16", [x, w, first, tiles, gate, y], 5, peer, name, flops=2.0 * e * rows * n * k
    )


def gated_mlp() -> Race:
    m, n, k = 4096, 14336, 4096
    x, g, u, y = normal(m, k), normal(n, k) / 64, normal(n, k) / 64, empty(m, n)

    def peer():
        return F.silu(x @ g.T) * (x @ u.T)

    return Race("4096 x 14336 x 4096, f16", [x, g, u, y], 3, peer, "torch, two products", flops=4.0 * m * n * k)


def convolution() -> Race:
    x, w, y = normal(32, 58, 130, 256), normal(256, 3, 3, 256) / 48, empty(32, 56, 128, 256)
    xt, wt = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)

    def peer():
        return F.conv2d(xt, wt).permute(0, 2, 3, 1)

    flops = 2.0 * 32 * 56 * 128 * 256 * 256 * 9
    return Race("32 x 56 x 128 x 256, 3 x 3 x 256, f16", [x, w, y], 2, peer, "torch conv2d (cuDNN)", flops=flops)


def attention() -> Race:
    b, h, s, d = 4, 32, 4096, 64
    q, k, v, o = (normal(b, h, s, d) for _ in range(4))
    scale = 1.4426950408889634 / d**0.5

    def peer():
        return F.scaled_dot_product_attention(q, k, v)

    flops = 4.0 * b * h * s * s * d
    return Race("4 x 32 x 4096 x 64, f16", [q, k, v, o, scale, False], 3, peer, "torch attention", flops=flops)


def dequantized() -> Race:
    m = n = k = 4096
    a, b = (normal(m, k).to(torch.float8_e4m3fn) for _ in range(2))
    rows, tiles = torch.rand(k // 128, m, device="cuda"), torch.rand(k // 128, n // 128, device="cuda")
    y = empty(m, n, dtype=torch.bfloat16)
    one = torch.ones((), device="cuda")

    # The same product with one scale for each operand.
    def peer():
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)

    def wide(x):
        return x.float()

    columns = tiles.repeat_interleave(128, 1).repeat_interleave(128, 0)

    def wanted():
        return (wide(a) * rows.T.repeat_interleave(128, 1)) @ (wide(b).T * columns)

    name = "torch _scaled_mm, one scale"
    return Race("4096^3, e4m3", [a, b, rows, tiles, y], 4, peer, name, flops=2.0 * m * n * k, wanted=wanted)


def sparse() -> Race:
    m = n = k = 4096
    a, b, y = normal(m, k), normal(n, k), empty(m, n)
    a = tm.sparse.prune(a)
    stored = tm.sparse.compress(a, "u16")
    # Of the dense matrix: what the pattern saves.
    return Race(
        "4096^3, f16",
        [stored.values, stored.metadata, b, y],
        3,
        lambda: a @ b.T,
        "torch mm, dense",
        2.0 * m * n * k,
    )


def w4a16() -> Race:
    m, n, k = 64, 8192, 8192
    x, y = normal(m, k), empty(m, n)
    w = torch.randint(-8, 8, (n, k), device="cuda", dtype=torch.int32)
    scales = (torch.rand(k // 128, n, device="cuda") / 64).half()
    packed = ((w[:, ::2] & 15) | ((w[:, 1::2] & 15) << 4)).to(torch.uint8)
    dense = (w * scales.T.repeat_interleave(128, 1)).half()

    def peer():
        return x @ dense.T

    return Race(
        "64 x 8192 x 8192, f16", [x, packed, scales, y], 3, peer, "torch mm, f16 weights", flops=2.0 * m * n * k
    )


def histogram() -> Race:
    x, y = torch.randint(0, 256, (1 << 26,), device="cuda", dtype=torch.uint8), empty(256, dtype=torch.int32)

    def peer():
        return torch.bincount(x, minlength=256)

    return Race("2^26, u8", [x, y], 1, peer, "torch bincount", bytes=moved(x))


def stencil() -> Race:
    x, y = normal(8192, 8192, dtype=torch.float32), empty(8192, 8192, dtype=torch.float32)
    w = torch.tensor([[0.0, 0.25, 0.0], [0.25, 0.0, 0.25], [0.0, 0.25, 0.0]], device="cuda")[None, None]

    def peer():
        return F.conv2d(x[None, None], w, padding=1)[0, 0]

    return Race("8192 x 8192, f32", [x, y, 0.25], 1, peer, "torch conv2d", bytes=moved(x, y))


def triangular_solve() -> Race:
    n, r = 2048, 8192
    a = torch.tril(normal(n, n, dtype=torch.float32), -1) / n**0.5 + 2 * torch.eye(n, device="cuda")
    b, x = normal(n, r, dtype=torch.float32), empty(n, r, dtype=torch.float32)

    def peer():
        return torch.linalg.solve_triangular(a, b, upper=False)

    name = "torch solve_triangular (cuBLAS)"
    return Race("2048 x 2048, 8192 columns, f32", [a, b, x], 2, peer, name, flops=float(n) * n * r)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Check the kernel against its peer, then time both."""
    race: Race = globals()[name]()
    run = kernel(name)

    def call():
        return run(*race.arguments, **race.constants)

    call()
    torch.cuda.synchronize()
    got, expected = race.arguments[race.output].float(), (race.wanted or race.peer)().float()
    off = ((got - expected).abs().max() / expected.abs().max()).item()
    del expected
    contestants = [call, race.peer]
    for contestant in contestants:
        for _ in range(5):
            contestant()
    ours, theirs = timing.flushed(contestants, rounds)
    found = {"size": race.size, "us": ours, "peer": race.peer_name, "peer_us": theirs, "off": off}
    found |= {"tflops": race.flops / ours / 1e6} if race.flops else {"gbytes": race.bytes / ours / 1e3}
    print(
        f"{name:18} {race.size:38} {ours:10.1f} us {theirs:10.1f} us  {theirs / ours:6.3f}  off {off:.1e}",
        flush=True,
    )
    assert off <= race.tolerance, f"{name} is off by {off} of its largest element"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default=",".join(ENTRIES))
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows, failed = {}, []
    for name in options.only.split(","):
        try:
            rows[name] = measure(name, options.rounds)
        except Exception as e:
            failed.append(name)
            print(f"{name}: {type(e).__name__}: {str(e)[:800]}", file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    if options.json:
        facts = timing.facts()
        known = json.loads(options.json.read_text()) if options.json.exists() else {"facts": facts, "rows": {}}
        # Rows of an earlier run under the same conditions stay.
        kept = known["rows"] if known["facts"] == facts else {}
        ordered = {name: row for name in ENTRIES if (row := rows.get(name) or kept.get(name))}
        options.json.write_text(json.dumps({"facts": facts, "rows": ordered}, indent=1) + "\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
