"""`tilemma.ops.matmul` beside torch (cuBLAS), in one process, interleaved.

    python bench/ops.py                                   # the table, plans by the model
    python bench/ops.py --tune --steady 2 --json out.json # with tuning beside it, and the power-limited state
    python bench/ops.py --only small decode               # some groups of the table

Random normal data; the peer is the fastest of torch's ways to compute the same function. "flushed": the median
of single launches, the L2 cache flushed before each. "graph": the median of CUDA-graph replays of 20 calls, for
small and decode shapes, where the host would be measured otherwise. "steady": the mean over launches back to
back. Ratios are the peer's time over tilemma's: above 1, tilemma is faster. Every result is checked against
float64
within the error bound on a sample of rows before it is timed. `bench/ops_page.py` makes tables of the JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from timing import facts, flushed, steady

from tilemma import ops, testing
from tilemma.ops import product

Call = Callable[[], Any]
LARGE = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 8192),
    (4096, 14336, 4096),
    (4096, 4096, 14336),
    (8192, 28672, 8192),
)
SMALL = ((512, 512, 512), (1024, 1024, 1024), (1000, 1000, 1000))
DECODE = ((16, 8192, 8192), (128, 8192, 8192))
MISALIGNED = ((4095, 4097, 4104), (4095, 4097, 4099))
GROUPS = ("large", "small", "decode", "misaligned", "layouts", "epilogue", "host")
REPLAYED = 20
# Its gelu is the one with tanh: another function, up to 5e-4 away from the one with erf that we compute.
APPROXIMATE = ("_addmm_activation",)


@dataclass(frozen=True)
class Contest:
    """One line of the table: a product and who computes it.  ``layout``: how A and B are stored, R or C."""

    group: str
    m: int
    n: int
    k: int
    dtype: str = "f16"
    layout: str = "RC"
    fused: bool = False

    def __str__(self) -> str:
        text = f"{self.m}x{self.n}x{self.k}"
        return text + (f" {self.layout}" if self.group == "layouts" else "") + (" bias+gelu" if self.fused else "")


@dataclass
class Row:
    """Microseconds by regime, tilemma's and the peer's; ``share`` of the error bound that tilemma's result uses.

    ``others``: of every way that torch has, near equivalents included.
    """

    name: str
    group: str
    dtype: str
    flops: float
    share: float
    plan: str
    tuned_plan: str
    ours: dict[str, float]
    tuned: dict[str, float]
    peer: dict[str, float]
    others: dict[str, dict[str, float]]

    def ratio(self, regime: str, tuned: bool = False) -> float:
        return self.peer[regime] / (self.tuned if tuned else self.ours)[regime]


def contests(groups: list[str], dtypes: list[str]) -> list[Contest]:
    found: list[Contest] = []
    for t in dtypes:
        tables = {"large": LARGE, "small": SMALL, "decode": DECODE, "misaligned": MISALIGNED}
        found += [Contest(g, *s, dtype=t) for g, shapes in tables.items() for s in shapes]
        found += [Contest("layouts", 4096, 4096, 4096, t, x) for x in ("RC", "RR", "CC", "CR")]
        found.append(Contest("epilogue", 4096, 4096, 4096, t, fused=True))
    return [c for c in found if c.group in groups]


def stored(rows: int, columns: int, how: str, kind: torch.dtype) -> torch.Tensor:
    """A random matrix, row-major (R) or column-major (C)."""
    if how == "C":
        return torch.randn(columns, rows, device="cuda").to(kind).t()
    return torch.randn(rows, columns, device="cuda").to(kind)


def peers(
    c: Contest, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, out: torch.Tensor, compiled: bool
) -> dict[str, Call]:
    """torch's ways to compute it; the fastest counts, but for those of `APPROXIMATE`."""
    if not c.fused:
        return {"torch.mm": lambda: torch.mm(a, b, out=out)}
    gelu = torch.nn.functional.gelu
    found: dict[str, Call] = {
        "gelu(addmm)": lambda: gelu(torch.addmm(bias, a, b)),
        "_addmm_activation": lambda: torch._addmm_activation(bias, a, b, use_gelu=True),
    }
    if compiled:
        try:
            fused = torch.compile(lambda x, y, z: gelu(torch.addmm(z, x, y)), mode="max-autotune-no-cudagraphs")
            fused(a, b, bias)
            found["torch.compile"] = lambda: fused(a, b, bias)
        except Exception as e:
            print(f"no torch.compile: {type(e).__name__}", file=sys.stderr)
    return found


def share_of_bound(c: Contest, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> float:
    """How much of the error bound the result uses on up to 64 rows: the first and last, and some between."""
    rows = torch.linspace(0, c.m - 1, min(c.m, 64), device="cuda").long()
    left = a[rows]
    value = testing.reference("mk,kn->mn", left, b)
    extra = {"bias": bias, "activation": "gelu"} if c.fused else {}
    if c.fused:
        value = testing.ACTIVATIONS["gelu"].value(value + testing.to_float64(bias))
    return testing.share_of_bound(out[rows], value, testing.error_bound(left, b, out=c.dtype, **extra))


def replayed(runs: list[Call], rounds: int) -> list[float]:
    """Median microseconds of one call in a CUDA graph of `REPLAYED`, contestants taking turns."""
    graphs = []
    for run in runs:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPLAYED):
                run()
        graphs.append(graph)
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for i, graph in enumerate(graphs):
            graph.replay()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            times[i].append(start.elapsed_time(stop) * 1e3 / REPLAYED)
    return [statistics.median(t) for t in times]


def measure(c: Contest, options: argparse.Namespace) -> Row:
    torch.manual_seed(0)
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[c.dtype]
    a, b = stored(c.m, c.k, c.layout[0], kind), stored(c.k, c.n, c.layout[1], kind)
    bias = torch.randn(c.n, device="cuda").to(kind)
    out, other = (torch.full((c.m, c.n), float("nan"), device="cuda", dtype=kind) for _ in range(2))
    extra: dict[str, Any] = {"bias": bias, "activation": "gelu"} if c.fused else {}

    def ours() -> None:
        ops.matmul(a, b, out=out, **extra)

    def tuned() -> None:
        ops.matmul(a, b, out=out, tune=True, **extra)

    mine = [ours, tuned] if options.tune else [ours]
    share = 0.0
    for run in mine:
        out.fill_(float("nan"))
        run()
        torch.cuda.synchronize()
        share = max(share, share_of_bound(c, a, b, bias, out))
    theirs = peers(c, a, b, bias, other, not options.no_compile)
    runs: list[Call] = [*mine, *theirs.values()]
    for run in runs * 3:
        run()
    results: list[dict[str, float]] = [{} for _ in runs]
    regimes: list[tuple[str, Callable[[], list[float]]]] = [("flushed", lambda: flushed(runs, options.rounds))]
    if c.group in ("small", "decode"):
        regimes.append(("graph", lambda: replayed(runs, options.rounds)))
    if options.steady and c.group == "large":
        regimes.append(
            (
                "steady",
                lambda: [steady(r, options.steady, x["flushed"])[0] for r, x in zip(runs, results, strict=True)],
            )
        )
    for regime, go in regimes:
        for i, value in enumerate(go()):
            results[i][regime] = value
    others = dict(zip(theirs, results[len(mine) :], strict=True))
    peer = {r: min(x[r] for n, x in others.items() if n not in APPROXIMATE) for r, _ in regimes}
    plan = ops.plan(a, b, out=out, **extra).chosen.plan
    best = ops.plan(a, b, out=out, tune=True, **extra).chosen.plan if options.tune else None
    return Row(
        str(c), c.group, c.dtype, 2.0 * c.m * c.n * c.k, share, str(plan), str(best or ""),
        results[0], results[1] if options.tune else {}, peer, others,
    )  # fmt: skip


def host_times() -> dict[str, float]:
    """Microseconds of host time of one call, tilemma's and torch.mm's, without waiting for the device."""
    a, b, out = (torch.randn(256, 256, device="cuda").half() for _ in range(3))
    calls: dict[str, Call] = {
        "ops.matmul(out=)": lambda: ops.matmul(a, b, out=out),
        "torch.mm(out=)": lambda: torch.mm(a, b, out=out),
        "ops.matmul": lambda: ops.matmul(a, b),
        "torch.mm": lambda: torch.mm(a, b),
    }
    found = {}
    for name, call in calls.items():
        samples = []
        for _ in range(30):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                call()
            samples.append((time.perf_counter() - begin) / 100 * 1e6)
        found[name] = statistics.median(samples)
    return found


def line(row: Row) -> str:
    text = f"{row.group:10} {row.name:28} {row.dtype:4} {row.share:5.2f}"
    for regime in row.peer:
        text += f"  {regime} {row.ours[regime]:9.1f} us {row.flops / row.ours[regime] / 1e6:6.0f} TF"
        text += f" {row.ratio(regime):6.3f}"
        if row.tuned:
            text += f" tuned {row.ratio(regime, True):6.3f}"
    if len(row.others) > 1:
        text += "".join(f"  {n} {x['flushed']:.1f} us" for n, x in row.others.items())
    return text


def write(path: Path, about: dict[str, Any], host: dict[str, float], rows: list[Row], groups: list[str]) -> None:
    """The JSON of a run; what is there already of groups that were not measured now stays."""
    found = [asdict(r) for r in rows]
    before = json.loads(path.read_text()) if path.exists() else {}
    # A row that stays says when it was measured.
    kept = [{"date": before["date"], **r} for r in before.get("rows", ()) if r["group"] not in groups]
    ordered = sorted((*kept, *found), key=lambda r: GROUPS.index(r["group"]))
    data = {**about, "host_us": host or before.get("host_us", {}), "rows": ordered}
    path.write_text(json.dumps(data, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--dtype", nargs="+", choices=["f16", "bf16"], default=["f16"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steady", type=float, default=0.0, help="seconds of steady state for large shapes")
    parser.add_argument("--tune", action="store_true", help="also with measured plans")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes a minute")
    parser.add_argument("--json", type=Path, help="rows in it of groups that are not measured now stay")
    options = parser.parse_args()
    about = facts()
    print(", ".join(f"{k} {v}" for k, v in about.items()), flush=True)
    rows = []
    for c in contests(options.only, options.dtype):
        try:
            rows.append(measure(c, options))
            print(line(rows[-1]), "|", rows[-1].tuned_plan or rows[-1].plan, flush=True)
        except Exception as e:
            print(f"{c}: {type(e).__name__}: {e}", flush=True)
        product._WARM.clear()
        torch.cuda.empty_cache()
    host = host_times() if "host" in options.only else {}
    for name, value in host.items():
        print(f"host time of {name}: {value:.1f} us")
    if options.json:
        write(options.json, about, host, rows, options.only)
    return 0 if all(r.share <= 1 for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
