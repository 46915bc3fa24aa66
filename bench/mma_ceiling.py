"""Kernels on mma.sync against what mma.sync reaches at all, in one process.

    python bench/mma_ceiling.py --shapes 4096,8192 --json docs/performance/mma_sync.json

The ceiling is a loop of m16n8k16 (f16 operands, f32 sums) whose operands never leave the registers: random
normal data, eight warps on each multiprocessor, 32 independent sums a warp.  The kernels are the examples that
pipeline copies by cp.async, compiled for sm_80; torch.mm (cuBLAS, free to use wgmma) runs beside them.
All run alternately, each does as many FLOP as the ceiling, and a ratio is the share of it in the same regime
(regimes as in bench/gemm.py) and run: the card sets both by its clocks, which heat and power move from run to run.
Single launches each follow a rest and a millisecond of writing memory, so that none gets clocks that others do
not; steady state comes in rounds that each begin with another contestant.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ("examples/py/double_buffer.py", "examples/py/multistage.py")
WARPS, ROWS, COLUMNS = 8, 4, 8
FLOP = 2 * 16 * 8 * 16


def ceiling_ptx() -> str:
    """PTX of ``ceiling(operands, sums, turns)``: each turn multiplies ROWS x COLUMNS atoms in every warp."""
    a = [[f"%a{4 * i + x}" for x in range(4)] for i in range(ROWS)]
    b = [[f"%b{2 * j + x}" for x in range(2)] for j in range(COLUMNS)]
    words = [r for atom in (*a, *b) for r in atom]
    loads = [f"  ld.global.b32 {r}, [%from+{4 * n}];" for n, r in enumerate(words)]
    turn = []
    for i in range(ROWS):
        for j in range(COLUMNS):
            d = ", ".join(f"%d{4 * (i * COLUMNS + j) + x}" for x in range(4))
            operands = f"{{{d}}}, {{{', '.join(a[i])}}}, {{{', '.join(b[j])}}}, {{{d}}}"
            turn.append(f"  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {operands};")
    sums = [f"%d{n}" for n in range(4 * ROWS * COLUMNS)]
    newline = "\n"
    return f"""\
.version 7.0
.target sm_80
.address_size 64
.visible .entry ceiling(.param .u64 operands, .param .u64 sums, .param .s32 turns)
.maxntid {32 * WARPS}, 1, 1
.minnctapersm 1
{{
  .reg .u64 %from, %to, %offset;
  .reg .s32 %thread, %turns;
  .reg .b32 %a<{4 * ROWS}>, %b<{2 * COLUMNS}>;
  .reg .f32 %d<{len(sums)}>;
  .reg .pred %more;
  ld.param.u64 %from, [operands];
  ld.param.u64 %to, [sums];
  ld.param.s32 %turns, [turns];
  mov.u32 %thread, %tid.x;
  mul.wide.s32 %offset, %thread, {4 * len(words)};
  add.s64 %from, %from, %offset;
  mul.wide.s32 %offset, %thread, 4;
  add.s64 %to, %to, %offset;
{newline.join(loads)}
{newline.join(f"  mov.f32 {d}, 0f00000000;" for d in sums)}
TURN:
  .pragma "nounroll";
{newline.join(turn)}
  add.s32 %turns, %turns, -1;
  setp.gt.s32 %more, %turns, 0;
  @%more bra TURN;
{newline.join(f"  add.f32 %d0, %d0, {d};" for d in sums[1:])}
  st.global.f32 [%to], %d0;
  ret;
}}
"""


def ceiling_flop(processors: int, turns: int) -> float:
    """FLOP of a launch with a block on each multiprocessor."""
    return float(FLOP * ROWS * COLUMNS * WARPS) * processors * turns


def ceiling(processors: int, shape: tuple[int, int, int]) -> Any:
    """The contestant of bench/gemm.py that does as many FLOP as a product of ``shape``, but for a last turn."""
    import torch
    from gemm import Contestant

    from tilemma import runtime
    from tilemma.assemble import assemble
    from tilemma.launch import ArrayParam, Launch, PointerArgument, ScalarParam, ValueArgument

    turns = round(2.0 * math.prod(shape) / ceiling_flop(processors, 1))
    a = torch.randn(32 * WARPS * (4 * ROWS + 2 * COLUMNS) * 2, device="cuda").half()
    sums = torch.empty(32 * WARPS, device="cuda")
    launch = Launch(
        "ceiling",
        "sm_80",
        (ArrayParam("operands", "f16", ("N",), False), ArrayParam("sums", "f32", (32 * WARPS,), True, False)),
        (ScalarParam("turns", "s32"),),
        (PointerArgument("operands"), PointerArgument("sums"), ValueArgument("turns", "s32")),
        (processors, 1, 1),
        (32 * WARPS, 1, 1),
    )
    device = runtime.cuda_device(0)
    loaded = runtime.LoadedKernel(assemble(ceiling_ptx(), device.arch).bytes, launch, device, arch=device.arch)
    prepared = loaded.prepare(runtime.bind(launch, (a, sums, turns)))

    return Contestant("ceiling", lambda *product: prepared())


def shares(results: list[Any]) -> None:
    """Prints each kernel's speed as shares of both ceilings of this run; the first result is the ceiling."""
    top = results[0]
    for r in results[1:]:
        if not r.failed:
            single, steady = r.tflops(r.flushed_us), r.tflops(r.steady_us)
            print(
                f"{r.kernel}: single launches {single:.0f} TFLOP/s, {r.flushed_ratio:.3f} of the ceiling's, "
                f"{single / top.tflops(top.steady_us):.3f} of its steady state; "
                f"steady {steady:.0f}, {r.steady_ratio:.3f}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", default=list(KERNELS), help="FILE[:NAME][@KEY=VALUE,..]")
    parser.add_argument("--shapes", default="8192", help="comma-separated: N for a cube, or MxNxK")
    parser.add_argument("--arch", default="sm_80")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--seconds", type=float, default=2.0, help="of steady state")
    # The card tells its power as a mean of the last second: rests between would be in it.
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of rest before each steady run")
    parser.add_argument("--rounds", type=int, default=3, help="that the steady seconds come in")
    parser.add_argument("--rest", type=float, default=0.012, help="seconds of rest before each single launch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch
    from gemm import Contestant, measure, parse_kernel, parse_shape, report, versions

    info = versions()
    others = [parse_kernel(k, "f16", info["processors"], options.arch) for k in options.kernels]
    others.append(Contestant("torch.mm", lambda a, b, c: torch.mm(a, b.T, out=c)))
    results: list[Any] = []
    for shape in map(parse_shape, options.shapes.split(",")):
        contestants = [ceiling(info["processors"], shape), *others]
        results += measure(contestants, shape, "f16", options, rest=options.rest, rounds=options.rounds)
        report(results[-1 - len(others) :])
        shares(results[-1 - len(others) :])
        sys.stdout.flush()
    if options.json:
        protocol = {name: getattr(options, name) for name in ("rest", "rounds", "seconds", "pause")}
        data = {"versions": info, "protocol": protocol, "results": [asdict(r) for r in results]}
        options.json.write_text(json.dumps(data, indent=1, default=str) + "\n")
    return int(any(r.failed for r in results))


if __name__ == "__main__":
    sys.exit(main())
