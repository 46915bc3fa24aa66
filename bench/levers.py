"""What each lever of the fast kernels gives: the same kernel with and without it, interleaved on one GPU.

    python bench/levers.py --shapes 4096,8192 --json docs/performance/levers.json

A lever is a pair of contestants of bench/gemm.py: another example or tile, or the same text or PTX with one thing
undone (it stays right: every result is checked).  A gain of 1.03 means that the lever makes the kernel 3 % faster.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "py"


@dataclass(frozen=True)
class Lever:
    """``predicted`` is what bytes and clocks say; ``on`` and ``off`` are kernels as bench/gemm.py names them.

    Where no example does without the lever, ``rewrite`` says what to replace in the text of ``on``, and ``undo``
    edits its PTX.  ``arch``: the target, where it is not the card's own.
    """

    key: str
    title: str
    predicted: str
    on: str = "persistent"
    off: str = ""
    rewrite: tuple[tuple[str, str], ...] = ()
    undo: Callable[[str], str] | None = None
    arch: str | None = None


def _without_overlap(ptx: str) -> str:
    return re.sub(r"wgmma\.wait_group\.sync\.aligned [1-9]\d*;", "wgmma.wait_group.sync.aligned 0;", ptx)


def _without_setmaxnreg(ptx: str) -> str:
    return re.sub(r"(?m)^\s*setmaxnreg\..*\n", "", ptx)


def _without_prefetch(ptx: str) -> str:
    return re.sub(r"(?m)^.*prefetch\.tensormap.*\n", "", ptx)


def _without_overlapped_store(ptx: str) -> str:
    return re.sub(r"cp\.async\.bulk\.wait_group\.read [1-9]\d*;", "cp.async.bulk.wait_group.read 0;", ptx)


def _without_predicate(ptx: str) -> str:
    """Zeroes in the accumulators before the loop, in place of a first multiply that does not add."""
    zeros = "".join(f"mov.f32 {r}, 0f00000000;\n" for r in dict.fromkeys(re.findall(r"%mc_\d+_\d+_r\d+", ptx)))
    ptx = re.sub(r"(?m)^(.*mov\.b32 %empty_held0, -1;\n)", lambda m: m[1] + zeros, ptx)
    return re.sub(r"(wgmma\.mma_async.*), %p\w*, 1, 1, 0, 0;", r"\1, 1, 1, 1, 0, 0;", ptx)


# Accumulators that go straight to the result.
_DIRECT_PERSISTENT = (
    ("            output_s = shared(T, TILE_M, TILE_N)\n", ""),
    (
        """\
                        mma.store(mc, output_s.subspan(WARP_M, TILE_N).at(wg - 1, 0))
                        tma.copy(
                            output_s.subspan(WARP_M, TILE_N).at(wg - 1, 0),
                            output.subspan(WARP_M, TILE_N).at(m * CONSUMERS + wg - 1, n),
                        )
""",
        """\
                        mma.store(mc, output.subspan(WARP_M, TILE_N).at(m * CONSUMERS + wg - 1, n))
""",
    ),
)
# A tile that is also stored elsewhere, if never, is not stored late.
_AT_ONCE = (
    (
        """\
                            output.subspan(WARP_M, TILE_N).at(m * CONSUMERS + wg - 1, n),
                        )
""",
        """\
                            output.subspan(WARP_M, TILE_N).at(m * CONSUMERS + wg - 1, n),
                        )
                        with tm.if_(t == tiles_m * tiles_n):
                            mma.store(mc, output.subspan(WARP_M, TILE_N).at(m, n))
""",
    ),
)
_DIRECT_MULTISTAGE = (
    ('        output_s = shared("f16", TILE_M, TILE_N)\n', ""),
    (
        """\
            mma.store(mc, output_s.subspan(WARP_M, WARP_N).at(p, q))
        dma.copy(output_s, output.subspan(TILE_M, TILE_N).at(block_m, block_n))
""",
        """\
            there = output.subspan(WARP_M, WARP_N).at(block_m * WARPS_M + p, block_n * WARPS_N + q)
            mma.store(mc, there)
""",
    ),
)

LEVERS = [
    Lever(
        "ring",
        "TMA ring and a producer warpgroup, against TMA issued by the multiplying warps",
        "A K step of a 128x128x64 tile multiplies for 512 clocks and copies 32 KB. Multiplying warps that "
        "also issue "
        "copies do so between steps: some 100 clocks of each step, unless other warps multiply meanwhile: "
        "1.05 to 1.15",
        "warp_specialized@TILE_N=128,STAGES=3",
        "tma_pipeline",
    ),
    Lever(
        "width",
        "Widest wgmma (N = 256 against 128)",
        "From shared memory m64n256k16 reads 10 KB in 128 clocks (80 bytes a clock of 128), m64n128k16 6 KB "
        "in 64 "
        "(96), m64n64k16 4 KB in 32 (128, the limit). L2 gives 48 bytes a clock and SM for a 128x256 tile, "
        "64 for "
        "128x128. Both are energy at steady state: 1.03 to 1.08",
        off="persistent@TILE_N=128",
    ),
    Lever(
        "stages",
        "Four stages against two",
        "A copy takes about 1000 clocks from L2 and more from memory; a step multiplies for 1024. Two slots "
        "leave one "
        "step to hide it, four leave three: 1.05 to 1.2",
        off="persistent@STAGES=2",
    ),
    Lever(
        "in_flight",
        "wgmma in flight across K steps: `wait_group 1`, the previous slot released",
        "Draining costs the pipeline's depth and the issue, about 60 to 100 of the 512 clocks that a "
        "warpgroup's step "
        "multiplies; the other consumer fills most of the gap: 1.00 to 1.05 with two consumers",
        undo=_without_overlap,
    ),
    Lever(
        "in_flight_one",
        "The same with one consumer (64x256 tiles)",
        "No other consumer fills the gap: 1.1 to 1.15",
        on="persistent@CONSUMERS=1",
        undo=_without_overlap,
    ),
    Lever(
        "setmaxnreg",
        "`setmaxnreg`: 24 registers for the producer, 240 for consumers",
        "168 registers a thread hold a 64x256 accumulator without spilling, so only the epilogue gains room: 1.00",
        undo=_without_setmaxnreg,
    ),
    Lever(
        "persistent",
        "Persistent CTAs and grouped raster, against a CTA for each tile",
        "At K = 4096 a tile multiplies for 65536 clocks. Filling the ring (about 1500) and the epilogue "
        "(about 3000) "
        "are not hidden with a CTA for each tile, because shared memory holds only one CTA at a time: "
        "1.04 to 1.07, "
        "less at longer K",
        off="warp_specialized",
    ),
    Lever(
        "raster",
        "Raster in groups of 16 tile rows against 1",
        "132 tiles of a wave, 16 rows high, need 2048 rows of A and about 2100 of B; in one row of tiles at N = "
        "8192, 4.1 rows: 530 and 8192. That is 68 against 143 MB a wave at K = 8192, 0.7 against 1.5 TB/s of "
        "4.3. This saves energy, but no stalls: 1.00 flushed, 1.01 to 1.02 at steady state",
        off="persistent@RASTER=1",
    ),
    Lever(
        "raster8",
        "The same against groups of 8",
        "86 MB a wave become 68, which is a fifth of the reduction of the row above: 1.00 flushed, 1.00 to "
        "1.005 at steady state",
        off="persistent@RASTER=4",
    ),
    Lever(
        "store",
        "Output parts stored while the next is staged (`bulk.wait_group.read 1`)",
        "A part of 8 KB takes 64 clocks to stage, and 430 to store when all SMs write at once (19 bytes a clock "
        "each); four parts a tile of 65536 clocks at K = 4096, and SMs seldom write at once: 1.00 to 1.02",
        undo=_without_overlapped_store,
    ),
    Lever(
        "multicast",
        "Clusters of two CTAs, B multicast",
        "L2 gives each SM 32 KB a step in place of 48, a third less. Hand-written PTX gained 1.018 at steady "
        "state "
        "(649 to 661 TFLOP/s at 8192^3)",
        off="persistent@CLUSTER=1,RASTER=16",
    ),
    Lever(
        "cluster4",
        "Clusters of four, 30 of them, in place of two",
        "L2 gives each SM 24 KB a step in place of 32. But of clusters of four an H200 holds 30 at a time "
        "(`cuOccupancyMaxActiveClusters`), of clusters of two 66: 120 SMs work, which gives 0.91 where "
        "stalls count; and 33 "
        "persistent clusters take two rounds, 0.6",
        "persistent@CLUSTER=4,RASTER=4,GRID=120",
        "persistent",
    ),
    Lever(
        "prefetch",
        "Tensor maps prefetched",
        "Each CTA fetches 128 bytes from memory once, in about 600 clocks: below 1.01 from 2048^3 on",
        undo=_without_prefetch,
    ),
    Lever(
        "predicate",
        "Scale-d predicate on the first wgmma in place of 128 zeroed accumulators",
        "128 moves of 65536 clocks at K = 4096: 0.2 %; ptxas takes 0.09 s where zeroing took 0.4 s",
        undo=_without_predicate,
    ),
    Lever(
        "epilogue",
        "Epilogue through swizzled staging (stmatrix) and TMA",
        "Without staging a warp writes 16-byte pieces of rows, half of every 32-byte sector: up to 6000 "
        "clocks a tile against 3000 that the write rate sets, and the producer is already loading: 1.02 to "
        "1.05 at K = 4096",
        rewrite=_DIRECT_PERSISTENT,
    ),
    Lever(
        "late_store",
        "Results packed in registers, stored while the next tile is multiplied",
        "By %clock64, a tile at K = 4096 takes a consumer 65500 clocks to multiply and 2000 to store, in which "
        "the tensor cores idle; packing takes some 200: 1.025 at K = 4096 and 1.013 at K = 8192 where clocks "
        "count, less where power does",
        rewrite=_AT_ONCE,
    ),
    Lever(
        "raster_mma_sync",
        "On mma.sync: tiles in groups of 16 tile rows against 1 (double_buffer)",
        "132 tiles of a wave need 4160 rows of A and B in place of 8720: 68 in place of 143 MB a wave at "
        "K = 8192. This saves energy, but no stalls: 1.00 flushed, 1.02 at steady state (computed after "
        "the measurement)",
        on="double_buffer",
        off="double_buffer@RASTER=1",
        arch="sm_80",
    ),
    Lever(
        "epilogue_mma_sync",
        "On mma.sync: results through shared memory (multistage)",
        "Without staging a warp writes half of every 32-byte sector, with a branch for every pair: "
        "some 4000 of 230000 clocks a tile: 1.01 to 1.02 (computed after the measurement)",
        on="multistage",
        rewrite=_DIRECT_MULTISTAGE,
        arch="sm_80",
    ),
]


def edited(name: str, undo: Callable[[str], str], dtype: str, processors: int) -> Any:
    """The contestant ``name`` with its PTX edited.  SystemExit when the edit finds nothing to undo."""
    from gemm import Contestant

    from tilemma import runtime
    from tilemma.assemble import assemble
    from tilemma.kernels import facts_of
    from tilemma.modules import load_python

    stem, _, settings = name.partition("@")
    kernel = load_python(EXAMPLES / f"{stem}.py").only()
    constants: dict[str, Any] = {k: int(v) for k, v in (s.split("=") for s in settings.split(",") if s)}
    constants |= {k: v for k, v in (("GRID", processors), ("T", dtype)) if k in kernel.source.constants}
    device = runtime.cuda_device(0)
    prepared: dict[tuple[int, ...], Any] = {}

    def run(*tensors: Any) -> None:
        key = tuple(x.data_ptr() for x in tensors)
        if key not in prepared:
            arrays = dict(zip(("lhs", "rhs", "output"), tensors, strict=True))
            compiled = kernel.compile("sm_90a", facts=facts_of(arrays), **constants)
            ptx = undo(compiled.ptx)
            if ptx == compiled.ptx:
                raise SystemExit(f"{name}: nothing to undo in its PTX")
            (launch,) = compiled.launches
            loaded = runtime.LoadedKernel(assemble(ptx, "sm_90a").bytes, launch, device, arch="sm_90a")
            prepared.clear()
            prepared[key] = loaded.prepare(runtime.bind(launch, tensors))
        prepared[key]()

    return Contestant(f"{name} without {undo.__name__.removeprefix('_without_')}", run)


def rewritten(lever: Lever) -> Path:
    """The example that has the lever, written anew without it.  SystemExit when its text is another."""
    stem = lever.on.partition("@")[0]
    text = (EXAMPLES / f"{stem}.py").read_text(encoding="utf-8")
    for old, new in lever.rewrite:
        if text.count(old) != 1:
            raise SystemExit(
                f"{stem}.py: the lever {lever.key} replaces what stands there {text.count(old)} times"
            )
        text = text.replace(old, new)
    path = Path(tempfile.mkdtemp()) / f"{stem}_without_{lever.key}.py"
    path.write_text(text, encoding="utf-8")
    return path


def contestant(name: str, dtype: str, processors: int, arch: str | None, folder: Path = EXAMPLES) -> Any:
    from gemm import parse_kernel

    stem, _, settings = name.partition("@")
    return parse_kernel(f"{folder / stem}.py" + (f"@{settings}" if settings else ""), dtype, processors, arch)


def pair(lever: Lever, dtype: str, processors: int) -> tuple[Any, Any]:
    """The contestants without the lever and with it."""
    on = contestant(lever.on, dtype, processors, lever.arch)
    if lever.undo is not None:
        return edited(lever.on, lever.undo, dtype, processors), on
    if lever.rewrite:
        path = rewritten(lever)
        name = path.stem + "".join(lever.on.partition("@")[1:])
        return contestant(name, dtype, processors, lever.arch, path.parent), on
    return contestant(lever.off, dtype, processors, lever.arch), on


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="4096,8192")
    parser.add_argument("--dtype", default="f16")
    parser.add_argument("--only", default="", help="keys, comma-separated: " + ", ".join(x.key for x in LEVERS))
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--seconds", type=float, default=1.0, help="of steady state for each; 0 for none")
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from gemm import measure, parse_shape, versions

    info = versions()
    chosen = [x for x in LEVERS if not options.only or x.key in options.only.split(",")]
    found: dict[str, Any] = {}
    wrong = 0
    for lever in chosen:
        off, on = pair(lever, options.dtype, info["processors"])
        results = []
        for shape in map(parse_shape, options.shapes.split(",")):
            results.append(measure([off, on], shape, options.dtype, options))
        failed = [r.failed for pair in results for r in pair if r.failed]
        failed += [f"{r.kernel}: error {r.error:.2f}" for pair in results for r in pair if not r.error <= 1]
        wrong += bool(failed)
        regimes = ["flushed", *(["steady"] if options.seconds else [])] if not failed else []
        gains = {r: geometric_mean(getattr(better, f"{r}_ratio") for _, better in results) for r in regimes}
        found[lever.key] = {"gain": gains, "failed": failed, "results": [asdict(r) for p in results for r in p]}
        text = ", ".join(f"{k} {v:.3f}" for k, v in gains.items()) or f"failed: {failed[0]}"
        print(f"{lever.key:14} {on.name} against {off.name}: {text}", flush=True)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            data = {"versions": info, "shapes": options.shapes, "levers": found}
            options.json.write_text(json.dumps(data, indent=1, default=str) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
