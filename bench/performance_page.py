"""Writes docs/performance.md, and the ratios of gemm.json in README.md, from docs/performance/*.json:
python bench/performance_page.py.

`gemm.json`, `mma_sync.json` (bench/mma_ceiling.py), `mma_energy.json`, `levers.json`, `compile.json`
(bench/compile_time.py), `machine.json` (bench/machine_speed.py) and `machine_vs_gpu.json` are read.  What is
missing is "not measured".
The counts of the main loop come from ptxas and nvdisasm here and now.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import levers
import ops_page
import sass_loop

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
MARK = "<!-- bench/performance_page.py -->"
DATA = ROOT / "docs" / "performance"
MISSING = "not measured"
REGIMES = ("flushed", "steady")

RERUN = """\
```sh
pip install -e ".[cuda,dev]" torch                     # one Hopper GPU; nothing else on it
python bench/gemm.py examples/py/persistent.py examples/py/plain.py --dtypes f16,bf16 \\
    --shapes 4096,8192,16384x16384x8192,4096x14336x4096,4096x4096x14336,8192x28672x8192 \\
    --json docs/performance/gemm.json --svg docs/performance/roofline.svg
python bench/gemm.py examples/py/plain.py examples/py/persistent.py tilelang tilelang@stages=4 --dtypes f16,bf16 \\
    --shapes 4096,8192,8192x28672x8192,4096x4096x14336 --json docs/performance/tilelang.json
python bench/mma_ceiling.py --shapes 4096,8192 --json docs/performance/mma_sync.json
python bench/mma_energy.py --json docs/performance/mma_energy.json
python bench/units.py --json docs/performance/units.json --svg docs/performance/units.svg
python bench/levers.py --json docs/performance/levers.json
python bench/compile_time.py --json docs/performance/compile.json   # without a GPU: no warm calls
python bench/machine_speed.py --json docs/performance/machine.json  # no GPU
python bench/machine_vs_gpu.py --json docs/performance/machine_vs_gpu.json
python bench/performance_page.py                       # this page
```"""

RULES = """\
Method: the operands are random normal numbers; the kernels alternate in one process; the results are medians.
"Flushed" is a single launch at boost clocks after the L2 cache was overwritten. "Steady" is launches back to back
for several seconds. In this regime power limits large products, so the energy for each FLOP decides, not stalls.
A ratio is the speed relative to `torch.mm` (cuBLAS) in the same regime: above 1 is faster. The flushed ratio is
the median of the ratios of each round, because a warm GPU slows all kernels down. Clock and power are means of the
steady runs."""


def load(name: str) -> dict[str, Any] | None:
    path = DATA / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def number(x: Any, spec: str = ".3f") -> str:
    if not isinstance(x, (int, float)) or math.isnan(x):
        return MISSING
    return format(x, spec)


def rows(head: Sequence[str], body: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(r)} |" for r in (head, ["---"] * len(head), *body)]


def speed(data: Mapping[str, Any] | None) -> list[str]:
    """The products of bench/gemm.py, the vendor's library first."""
    if data is None:
        return [f"Speed: {MISSING}."]
    found = data["results"]
    lines = [f"{k}: {v}" for k, v in data["versions"].items()]
    lines = ["; ".join(lines) + ".", "", *products(found), "", *remark(data)]
    for kernel in dict.fromkeys(r["kernel"] for r in found if r["kernel"] != "torch.mm"):
        means = []
        for regime in REGIMES:
            ratios = [r[f"{regime}_ratio"] for r in found if r["kernel"] == kernel and not r["failed"]]
            ratios = [x for x in ratios if not math.isnan(x)]
            means.append(f"{regime} {geometric_mean(ratios):.3f}" if ratios else f"{regime} {MISSING}")
        lines.append(f"- {kernel}, geometric mean of the ratios: {', '.join(means)}")
    if (DATA / "roofline.svg").is_file():
        lines += ["", "![The products under the card's roof](performance/roofline.svg)"]
    return lines


def beside_tilelang(data: Mapping[str, Any] | None) -> list[str]:
    """The plain kernel beside TileLang's, of the same tile and in the same process."""
    if data is None:
        return [f"Beside TileLang: {MISSING}."]
    return [
        "TileLang 0.1.15's plain pipelined kernel (`bench/tilelang_plain.py`) has the same tile, 128x256x64, and",
        "3 or 4 stages. All ran in one process, in turns; other work ran on other cores of the host.",
        "",
        *products(data["results"]),
    ]


def remark(data: Mapping[str, Any]) -> list[str]:
    """The remark on the runs that a table combines."""
    return [data["remark"], ""] if "remark" in data else []


def products(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of the results of bench/gemm.py; ratios are relative to the first kernel of each shape."""
    head = ("kernel", "M x N x K", "type", "flushed TFLOP/s", "ratio", "steady TFLOP/s", "ratio", "MHz", "W")

    def body() -> Iterator[Sequence[str]]:
        for r in found:
            shape = " x ".join(map(str, r["shape"]))
            if r["failed"]:
                yield (r["kernel"], shape, r["dtype"], r["failed"], *[""] * 5)
                continue
            flops = 2.0 * math.prod(r["shape"])
            each = [(number(flops / r[f"{x}_us"] / 1e6, ".0f"), number(r[f"{x}_ratio"])) for x in REGIMES]
            rest = (number(r["sm_clock"], ".0f"), number(r["power"], ".0f"))
            yield (r["kernel"], shape, r["dtype"], *each[0], *each[1], *rest)

    return rows(head, body())


def lever_table(data: Mapping[str, Any] | None) -> list[str]:
    gains = {key: x["gain"] for key, x in (data or {"levers": {}})["levers"].items()}

    def body() -> Iterator[Sequence[str]]:
        for lever in levers.LEVERS:
            gave = gains.get(lever.key, {})
            yield (lever.title, lever.predicted, *(number(gave.get(regime)) for regime in REGIMES))

    lines = rows(("optimization", "predicted", "measured, flushed", "measured, steady"), body())
    if data is not None:
        device = data["versions"].get("device", "a GPU")
        lines += ["", f"Geometric means over {data['shapes']}, {device}."]
    return lines


def loop_tables(sass: str) -> list[str]:
    lines: list[str] = []
    for loop in sass_loop.LOOPS:
        lines += [*sass_loop.table(loop, sass_loop.counts(sass, loop.purpose), sass_loop.by_hand(loop)), ""]
    each, busy = 2 * sum(sass_loop.counts(sass).values()), 2 * 4 * 128
    return [
        *lines,
        '"PTX by hand" is `bench/hand_loop.py`, assembled by the same ptxas. The floor is the number of necessary',
        "instructions. ptxas adds moves, because a descriptor needs four neighbouring uniform",
        "registers, and it computes",
        "the addresses of tensor maps again.",
        f"The warps of both consumers on one scheduler issue {each} instructions in the {busy} clocks in",
        "which their",
        "eight HGMMA occupy the tensor cores. The instructions of a step overlap with the multiplies of",
        "the previous",
        "step, so they cost energy but no time.",
    ]


# The stages of bench/compile_time.py by part; those left out are passes.
_PART = {"read": 0, "trace": 0, "lower": 2, "verify lane IR": 2, "check code": 2, "print": 2, "ptxas": 3}


def compile_table(data: Mapping[str, Any] | None) -> list[str]:
    if data is None:
        return [f"Compile time: {MISSING}."]
    parts = ("reading, tracing", "passes", "code", "ptxas, loading")
    head = ("example", "cold, ms", *(f"{p}, %" for p in parts), "from the cache, ms")

    def body() -> Iterator[Sequence[str]]:
        for name, x in data["kernels"].items():
            shares = dict.fromkeys(parts, 0.0)
            for stage, ms in x["stages"]["stages"].items():
                if not stage.startswith("import"):
                    shares[parts[_PART.get(stage, 1)]] += ms
            whole = sum(shares.values())
            yield (
                name,
                number(x["cold"]["median"], ".0f"),
                *(number(shares[p] / whole * 100, ".0f") for p in parts),
                number(x["cached"]["median"], ".0f"),
            )

    warm = data["warm_call_us"]
    text = MISSING
    if isinstance(warm, dict):
        text = ", ".join(f"{name} {us:.1f} us" for name, us in warm.items())
    bars = "The times start after `import tilemma`. The limits are 300 ms cold and 50 ms from the cache."
    every = data.get("every_example", {})
    slowest = sorted(every, key=lambda name: -every[name]["median"])
    others = ", ".join(f"{name} {every[name]['median']:.0f}" for name in slowest)
    listed = [f"Cold compile time of every example, in ms: {others}."] if every else []
    return [*rows(head, body()), "", bars, *listed, f"Host time of a warm call: {text}."]


def machine_table(data: Mapping[str, Any] | None) -> list[str]:
    if data is None:
        return [f"Speed of the PTX machine: {MISSING}."]
    head = ("run", "s", "CPU s", "target, s", "warp instructions a CPU second")
    return rows(
        head,
        [
            (
                r["title"],
                number(r["seconds"], ".2f"),
                number(r["cpu_seconds"], ".2f"),
                number(r["target"], ".0f") if r["target"] else "",
                number(r["instructions"] / r["cpu_seconds"], ".0f"),
            )
            for r in data["results"]
        ],
    )


def agreement(data: Mapping[str, Any] | None) -> str:
    if data is None:
        return f"Agreement of the PTX machine with a GPU: {MISSING}."
    wrong = sum(bool(r["differences"]) for r in data["results"])
    total = len(data["results"])
    return (
        f"{total - wrong} of {total} launches agree on {data['device']}: bit for bit where no sum is rounded, "
        "within the error bound of float64 elsewhere."
    )


def memory(data: Mapping[str, Any] | None) -> str:
    if data is None:
        return f"compute-sanitizer: {MISSING}."
    return (
        f"`{data['command']}` (`make memcheck`): {data['errors']} errors in {data['launches']} launches of the "
        f"examples on {data['device']}, both languages, the pipelined ones with 2, 3 and 4 stages, ragged."
        f"{library(data['ops'])}"
    )


def library(data: Mapping[str, Any]) -> str:
    """What the checkers say of the kernels of `tilemma.ops`."""
    errors = ", ".join(f"{tool} {count}" for tool, count in data["errors"].items())
    return (
        f"\n\n`{data['command']}`: one kernel of each of {data['kinds']} kinds of plans of `tilemma.ops`, for "
        f"two ragged shapes, with exact results on {data['device']}. Errors: {errors}. racecheck reports one pair "
        f"of lines, in the {data['queues']} kinds whose blocks take tiles from a queue: the lanes of a warp read "
        "a task, and behind `bar.warp.sync` one of them arrives, for its warp, at the mbarrier that the writer of "
        "the next task waits for. The checker knows of an arrival what the arriving lane has read: where every "
        f"lane arrives (`--every-lane`), it reports {data['every_lane']} errors in these kinds. The memory of the "
        "arrays ends at multiples of 16 bytes, since memcheck and initcheck take copies of fewer (`cp.async` with "
        "a source size) for whole ones."
    )


def rests(data: Mapping[str, Any] | None) -> Iterator[str]:
    """A note on pauses between steady runs, which lower the reported power."""
    pause = (data or {}).get("protocol", {}).get("pause", 0.0)
    if pause:
        yield "The GPU reports its power as a mean of the last second,"
        yield f"which includes the pauses of {pause} s between the rounds."
        yield ""


def energy(data: Mapping[str, Any] | None) -> Iterator[str]:
    """The results of bench/mma_energy.py."""
    if data is None:
        yield f"Parts of the loop left out: {MISSING}."
        return
    shape = " x ".join(map(str, data["results"][0]["shape"]))
    yield f"`bench/mma_energy.py` removes parts of the loop of multistage, or makes them cheaper: {shape}"
    yield "at steady"
    yield "state. All variants execute the same number of multiplies on random data. The share is"
    yield "relative to the speed of"
    yield "the whole loop. W is the instantaneous power of the GPU, not the mean of a second."
    yield ""
    head = ("variant of the loop", "TFLOP/s", "share", "MHz", "W", "J a product")

    def body() -> Iterator[Sequence[str]]:
        for r in data["results"]:
            us, watts = r["steady_us"], r["power"]
            speed = number(2.0 * math.prod(r["shape"]) / us / 1e6, ".0f")
            card = (number(r["sm_clock"], ".0f"), number(watts, ".0f"), number(watts * us / 1e6, ".2f"))
            yield (r["kernel"], speed, number(r["steady_ratio"]), *card)

    yield from rows(head, body())


def units(data: Mapping[str, Any] | None) -> Iterator[str]:
    """The results of bench/units.py."""
    if data is None:
        yield f"One product by each type: {MISSING}."
        return
    yield f"`bench/units.py`: {data['size']}^3 on an {data['versions']['device']}, flushed. Factors are relative"
    yield 'to the FMA of cuBLAS; "FMA" alone is that of `ops.matmul`. From sm_90 on ptxas makes 8-bit products'
    yield "of the 4-bit ones."
    yield ""
    head = ("operands", "sum", "by", "us", "TFLOP/s or TOP/s", "x FMA")

    def body() -> Iterator[Sequence[str]]:
        for r in data["units"]:
            figures = (number(r["us"], ".1f"), number(r["tflops"], ".1f"), number(r["times_fma"], ".2f"))
            yield (r["type"], r["sum"], r["by"], *figures)

    yield from rows(head, body())
    yield ""
    yield "![FP32 units against tensor cores](performance/units.svg)"


def page() -> str:
    mma_sync = load("mma_sync")
    parts = [
        "# Performance",
        "",
        "`bench/performance_page.py` writes this page from the results of the benchmarks. These",
        "commands repeat them:",
        "",
        RERUN,
        "",
        RULES,
        "",
        "## Speed",
        "",
        *speed(load("gemm")),
        "",
        "### Beside TileLang",
        "",
        *beside_tilelang(load("tilelang")),
        "",
        "## On mma.sync",
        "",
        "These are the examples with cp.async copies, compiled for sm_80. The ceiling is the speed of",
        "m16n8k16 with f32",
        "accumulators and random operands that stay in registers, with eight warps on each",
        "multiprocessor and as many",
        "FLOP as the product. The ratios are relative to the ceiling, in the same regime and process.",
        "torch.mm can use",
        "wgmma. A pause of 12 ms and a millisecond of memory writes precede each single launch, so that",
        "all kernels run",
        "at equal clocks. The steady runs have three rounds, and each round starts with another kernel.",
        "",
        *(products(mma_sync["results"]) if mma_sync is not None else [f"Kernels on mma.sync: {MISSING}."]),
        "",
        *rests(mma_sync),
        *energy(load("mma_energy")),
        "",
        "## FP32 units against tensor cores",
        "",
        *units(load("units")),
        "",
        "## Optimizations, predicted and measured",
        "",
        "Each optimization has a predicted and a measured factor of speed. The prediction uses the",
        "bytes and clocks of an",
        "H200 (132 SMs; 4096 FLOP and 128 bytes of shared memory for each clock and SM; 4.3 TB/s). The",
        "measured factor",
        "compares the same kernel with and without the optimization.",
        "",
        *lever_table(load("levers")),
        "",
        "## The main loop in machine code",
        "",
        "The tables count the machine instructions of `examples/py/persistent.py` for sm_90a: one K",
        "step of a consumer",
        "and one of the producer. `python bench/sass_loop.py --text` prints the instructions.",
        "",
        *loop_tables(sass_loop.sass_of()),
        "",
        "## Compile time",
        "",
        *compile_table(load("compile")),
        "",
        "## The PTX machine",
        "",
        *machine_table(load("machine")),
        "",
        agreement(load("machine_vs_gpu")),
        "",
        "## Memory",
        "",
        memory(load("memcheck")),
    ]
    return "\n".join(parts) + "\n"


def ratios(gemm: Mapping[str, Any]) -> str:
    """For README: a row for each product, the ratios of each kernel and type, flushed and steady."""
    rows = {(r["kernel"].split("@")[0], r["dtype"], tuple(r["shape"])): r for r in gemm["results"]}
    names = [n for n in dict.fromkeys(kernel for kernel, _, _ in rows) if n != "torch.mm"]
    kernels = [(name, dtype) for name in names for dtype in dict.fromkeys(dtype for _, dtype, _ in rows)]
    titles = [f"{kernel}, {dtype}, {regime}" for kernel, dtype in kernels for regime in REGIMES]
    lines = ["| M x N x K | " + " | ".join(titles) + " |", "|---|" + "---|" * len(titles)]
    for shape in dict.fromkeys(s for _, _, s in rows):
        found = [rows[kernel, dtype, shape] for kernel, dtype in kernels]
        cells = [number(r[f"{regime}_ratio"]) for r in found for regime in REGIMES]
        lines.append("| " + " | ".join([" x ".join(map(str, shape)), *cells]) + " |")
    return "\n".join([*lines, "", *remark(gemm)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    PAGE.write_text(page())
    gemm = load("gemm")
    if gemm is not None:
        README.write_text(
            ops_page.rewritten(README.read_text(encoding="utf-8"), ratios(gemm), MARK), encoding="utf-8"
        )
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
