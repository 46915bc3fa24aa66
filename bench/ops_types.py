"""The products of 8-bit types and of groups beside torch (cuBLASLt, CUTLASS), in one process, interleaved.

    python bench/ops_types.py --json ops_types.json
    python bench/ops_types.py --only s8 grouped

Random normal data, K contiguous.  Large products: medians of single launches, the L2 cache flushed before each.
Few rows: medians of CUDA-graph replays over copies of the weights that together exceed the L2 cache.  Ratios are
the peer's time over tilemma's: above 1, tilemma is faster.  Every result is checked against float64 on a sample of
rows before it is timed.  A case that fails is reported, and the others run.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from timing import facts, flushed

from tilemma import ops, testing

Call = Callable[[], Any]
MEMORY = 4.35e12
E4M3 = torch.float8_e4m3fn


@dataclass
class Row:
    """Microseconds by contestant; ``ratio`` of the fastest peer's to tilemma's, ``share`` of the error bound."""

    group: str
    name: str
    flops: float
    weights: float
    mine: float = math.nan
    peers: dict[str, float] = field(default_factory=dict)
    share: float = math.nan
    plan: str = ""
    error: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return min(self.peers.values(), default=math.nan) / self.mine

    def __str__(self) -> str:
        if self.error:
            return f"{self.group:14} {self.name:34} {self.error[:300]}"
        peers = "".join(f"  {n} {x:.1f}" for n, x in self.peers.items())
        rate = f"{self.flops / self.mine / 1e6:6.0f} TF {self.weights / self.mine / 1e6:5.2f} TB/s"
        return (
            f"{self.group:14} {self.name:34} {self.share:5.2f} {self.mine:9.1f} us {rate} {self.ratio:6.3f}{peers}"
        )


@dataclass
class Estimate:
    """The plan of a product that has no choice of plans, in the place of `ops.plan`'s."""

    plan: str
    seconds: float


@dataclass
class Contest:
    """One row: mine and the peers' calls by index of the copy of the weights, and the check of a result."""

    group: str
    name: str
    flops: float
    weights: float
    mine: Callable[[int], Any]
    peers: dict[str, Callable[[int], Any]]
    share: Callable[[], float]
    plan: Callable[[], Any]
    copies: int = 1


def normal(*shape: int, kind: Any = E4M3) -> torch.Tensor:
    if kind is torch.int8:
        return torch.randint(-100, 101, shape, device="cuda", dtype=torch.int8)
    return torch.randn(*shape, device="cuda").to(kind)


def sampled(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, scale_a: Any, scale_b: Any) -> float:
    """The share of the error bound on up to 32 rows; scales are expanded to the operands' shapes."""
    rows = torch.linspace(0, len(a) - 1, min(len(a), 32), device="cuda").long()
    # Indexing does not know 8-bit floats.
    wide = a.double() if a.dtype.itemsize == 1 else a
    each = torch.is_tensor(scale_a) and scale_a.ndim > 0 and len(scale_a) == len(a)
    left = wide[rows].double() * (scale_a[rows] if each else scale_a)
    right = b.double() * scale_b
    name = "s8" if a.dtype is torch.int8 else "f8_e4m3" if a.dtype is E4M3 else "bf16"
    kinds = {torch.bfloat16: "bf16", torch.float16: "f16", torch.int32: "s32", torch.float32: "f32"}
    acc = "s32" if name == "s8" else "f32"
    bound = testing.error_bound(left, right, acc, kinds[out.dtype], operands=name)
    return testing.share_of_bound(out[rows].double(), testing.reference("mk,kn->mn", left, right), 1.001 * bound)


def spread(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Blocks of scales as an array of the operand's extents, in float64."""
    x = scale.double()
    for axis, extent in ((0, rows), (1, columns)):
        if x.shape[axis] not in (1, extent):
            x = x.repeat_interleave(128, axis).narrow(axis, 0, extent)
    return x


def scaled(form: str, m: int, n: int, k: int, group: str, copies: int = 1) -> Contest:
    a, weights = normal(m, k), [normal(n, k) for _ in range(copies)]
    b = [w.t() for w in weights]
    out, other = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    steps, blocks = -(-k // 128), -(-n // 128)
    shapes = {"tensor": ((), ()), "rows": ((m, 1), (1, n)), "blocks": ((steps, m), (steps, blocks))}[form]
    sa, sb = (torch.rand(s, device="cuda") + 0.5 for s in shapes)
    if form == "blocks":
        sa = sa.t()
    common = {"out_dtype": torch.bfloat16}

    def torch_call(i: int) -> Any:
        return torch._scaled_mm(
            a, b[i], scale_a=sa, scale_b=sb, use_fast_accum=form != "blocks", out=other, **common
        )

    def torch_blocks(i: int) -> Any:
        return torch._scaled_mm(a, b[i], scale_a=sa, scale_b=sb_peer, out_dtype=torch.bfloat16)

    peers: dict[str, Callable[[int], Any]] = {"torch._scaled_mm": torch_call}
    if form == "blocks":
        # cuBLASLt wants the rows of K blocks padded to four.
        padded = torch.zeros(blocks, -(-steps // 4) * 4, device="cuda")
        padded[:, :steps] = sb.t()
        sb_peer = padded[:, :steps].t()
        peers = {"torch._scaled_mm": torch_blocks}

    def share() -> float:
        ops.scaled_matmul(a, b[0], sa, sb, out=out)
        wide = (spread(sa, m, k), spread(sb, k, n)) if form == "blocks" else (sa.double(), sb.double())
        return sampled(a, b[0], out, *wide)

    return Contest(
        group, f"{form} {m}x{n}x{k}", 2.0 * m * n * k, float(n * k),
        lambda i: ops.scaled_matmul(a, b[i], sa, sb, out=out), peers, share,
        lambda: ops.plan(a, b[0], sa, sb, out=out).chosen, copies,
    )  # fmt: skip


def integers(size: int) -> Contest:
    a, b = normal(size, size, kind=torch.int8), normal(size, size, kind=torch.int8).t()
    out, other = (torch.empty(size, size, device="cuda", dtype=torch.int32) for _ in range(2))

    def share() -> float:
        ops.matmul(a, b, out=out)
        return sampled(a, b, out, 1.0, 1.0)

    return Contest(
        "s8", f"s8 {size}^3", 2.0 * size**3, float(size * size), lambda i: ops.matmul(a, b, out=out),
        {"torch._int_mm": lambda i: torch._int_mm(a, b, out=other)}, share,
        lambda: ops.plan(a, b, out=out).chosen,
    )  # fmt: skip


def uneven(experts: int, tokens: int, seed: int) -> torch.Tensor:
    """Ends of uneven groups."""
    torch.manual_seed(seed)
    shares = torch.rand(experts) ** 2 + 0.05
    return (shares.cumsum(0) / shares.sum() * tokens).round().int()


@lru_cache(1)
def operands_of_groups(experts: int, tokens: int, n: int, k: int, kind: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(tokens, k, kind=kind), normal(experts, n, k, kind=kind).transpose(-1, -2)


def grouped(
    experts: int, tokens: int, n: int, k: int, kind: Any, ends: torch.Tensor | None = None, label: str = ""
) -> Contest:
    ends = uneven(experts, tokens, experts) if ends is None else ends
    a, b = operands_of_groups(experts, tokens, n, k, kind)
    offsets = ends.cuda()
    out = torch.empty(tokens, n, device="cuda", dtype=torch.bfloat16)
    scales: dict[str, Any] = {}
    if kind is E4M3:
        sa, sb = torch.rand(tokens, 1, device="cuda") + 0.5, torch.rand(experts, 1, n, device="cuda") + 0.5
        scales = {"scale_a": sa, "scale_b": sb}
        flat_a, flat_b = sa.reshape(-1), sb.reshape(experts, n)
        peers: dict[str, Callable[[int], Any]] = {
            "torch._scaled_grouped_mm": lambda i: torch._scaled_grouped_mm(
                a, b, flat_a, flat_b, offs=offsets, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        }
    else:
        peers = {"torch._grouped_mm": lambda i: torch._grouped_mm(a, b, offs=offsets)}

    def share() -> float:
        ops.grouped_matmul(a, b, offsets, out=out, **scales)
        worst, begin = 0.0, 0
        for e, end in enumerate(ends.tolist()):
            if e % max(experts // 4, 1) == 0 and end > begin:
                left, right = (sa[begin:end].double(), sb[e].double()) if scales else (1.0, 1.0)
                worst = max(worst, sampled(a[begin:end], b[e], out[begin:end], left, right))
            begin = end
        return worst

    filled = int((ends.diff(prepend=torch.zeros(1, dtype=torch.int32)) > 0).sum())
    return Contest(
        "grouped", f"{'e4m3' if scales else 'bf16'} {experts}, {tokens}, {n}, {k}{label}", 2.0 * tokens * n * k,
        float(filled * n * k * a.itemsize), lambda i: ops.grouped_matmul(a, b, offsets, out=out, **scales),
        peers, share, lambda: ops.plan(a, b, offsets=offsets, out=out, **scales).chosen,
    )  # fmt: skip


def plain(m: int, n: int, k: int, group: str, kind: Any = torch.bfloat16, copies: int = 1) -> Contest:
    a, b = normal(m, k, kind=kind), [normal(n, k, kind=kind).t() for _ in range(copies)]
    out, other = (torch.empty(m, n, device="cuda", dtype=kind) for _ in range(2))

    def share() -> float:
        ops.matmul(a, b[0], out=out)
        return sampled(a, b[0], out, 1.0, 1.0)

    return Contest(
        group, f"{m}x{n}x{k}", 2.0 * m * n * k, 2.0 * n * k, lambda i: ops.matmul(a, b[i], out=out),
        {"torch.mm": lambda i: torch.mm(a, b[i], out=other)}, share,
        lambda: ops.plan(a, b[0], out=out).chosen, copies,
    )  # fmt: skip


GROUPED = ((8, 4096, 4096, 4096), (64, 8192, 2048, 7168), (128, 16384, 1536, 4096), (64, 512, 2048, 7168))
DECODE = ((8192, 8192), (28672, 4096), (7168, 18432))


def contests(groups: list[str]) -> Iterator[tuple[str, str, Callable[[], Contest]]]:
    for size in (2048, 4096, 8192):
        for form in ("tensor", "rows", "blocks"):
            if size > 2048 or form == "tensor":
                yield "e4m3", f"{form} {size}", lambda f=form, s=size: scaled(f, s, s, s, "e4m3")
    for size in (4096, 8192):
        yield "s8", f"s8 {size}", lambda s=size: integers(s)
    for shape in GROUPED:
        for kind in (torch.bfloat16, E4M3):
            yield "grouped", f"{shape} {kind}", lambda s=shape, t=kind: grouped(*s, t)
    for n, k in DECODE:
        for m in (1, 16, 64, 128):
            form = "tensor" if m in (1, 64) else "rows"
            yield "e4m3 few rows", f"{m}x{n}x{k}", lambda f=form, s=(m, n, k): scaled(f, *s, "e4m3 few rows", 3)
    for m, n, k in ((1, 8192, 8192), (16, 8192, 8192), (64, 4096, 14336), (256, 8192, 8192)):
        yield "bf16 few rows", f"{m}x{n}x{k}", lambda s=(m, n, k): plain(*s, "bf16 few rows", copies=2)
    for m, n, k in ((128, 128, 16384), (512, 512, 16384), (256, 512, 65536), (64, 64, 32768)):
        yield "long K", f"{m}x{n}x{k}", lambda s=(m, n, k): plain(*s, "long K", copies=2)
    for m, n, k in ((4096, 4096, 4096), (5120, 5120, 5120), (8192, 8192, 8192)):
        yield "bf16", f"{m}x{n}x{k}", lambda s=(m, n, k): plain(*s, "bf16")


def replayed(runs: list[Callable[[int], Any]], copies: int, rounds: int) -> list[float]:
    """Median microseconds of a call in CUDA graphs of 12, over copies of the weights, contestants taking turns, in
    another order in each round."""
    graphs, count, turns = [], 12, random.Random(0)
    for run in runs:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for i in range(copies):
                run(i)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(count):
                run(i % copies)
        graphs.append(graph)
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for i, graph in turns.sample(list(enumerate(graphs)), len(graphs)):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            times[i].append(start.elapsed_time(stop) * 1e3 / count)
    return [statistics.median(t) for t in times]


def measure(c: Contest, rounds: int) -> Row:
    row = Row(c.group, c.name, c.flops, c.weights)
    estimate = c.plan()
    row.plan = f"{estimate.plan}; {estimate.seconds * 1e6:.1f} us by the model"
    row.share = c.share()
    usable = {}
    for name, run in c.peers.items():
        try:
            run(0)
            torch.cuda.synchronize()
            usable[name] = run
        except Exception as e:
            row.notes.append(f"{name}: {type(e).__name__}: {str(e)[:300]}")
    runs = [c.mine, *usable.values()]
    for run in runs * 2:
        run(0)
    if c.copies > 1:
        found = replayed(runs, c.copies, rounds)
    else:
        found = flushed([lambda r=r: r(0) for r in runs], rounds)
    row.mine, row.peers = found[0], dict(zip(usable, found[1:], strict=True))
    return row


Table = Callable[[list[str]], Iterator[tuple[str, str, Callable[[], Contest]]]]


def main(contests: Table, description: str) -> int:
    """Measure the rows of ``contests`` that the command line selects."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0, help="start no row after so many, if not 0")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    begin = time.time()
    for group, name, make in contests(options.only or []):
        if options.only and group not in options.only:
            continue
        if options.seconds and time.time() - begin > options.seconds:
            print(f"no time for {group} {name}", flush=True)
            continue
        torch.manual_seed(0)
        try:
            row = measure(make(), options.rounds)
        except Exception as e:
            row = Row(group, name, 0.0, 0.0, error=f"{type(e).__name__}: {e}")
        rows.append(row)
        print(row, "|", row.plan, "|", *row.notes, flush=True)
        torch.cuda.empty_cache()
        if options.json:
            data = {**facts(), "rows": [{**asdict(r), "ratio": r.ratio} for r in rows]}
            options.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0 if all(r.share <= 1 for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main(contests, __doc__.splitlines()[0]))
