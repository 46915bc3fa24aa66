"""What the parts of a main loop on mma.sync cost at steady state: the same kernel with and without them.

    python bench/mma_energy.py --json docs/performance/mma_energy.json

The PTX of examples/py/multistage.py for sm_80 is edited: in the main loop the copies read the same tiles in every
turn, or there are no copies (the multiplies take the two tiles that the kernel began with, in turns), or no
loads of fragments (the registers keep the first two K steps), or neither.  All multiply as often and on random
data, what they compute is wrong.  Steady state comes in rounds that each begin with another contestant.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "py" / "multistage.py"
ARCH = "sm_80"
# Of the card at this moment: `power.draw` is a mean of the last second, in which others ran.
POWER = "power.draw.instant"
MEASURED = ("kernel", "shape", "dtype", "steady_us", "steady_ratio", "sm_clock", "power")
MULTIPLIES = 128  # in a turn of a warp: 4 steps of 4 x 8 atoms


class NoSuchLoop(ValueError):
    """The PTX is not what the edits were written for."""


def _replaced(pattern: str, by: str | Callable[[re.Match[str]], str], text: str, count: int) -> str:
    text, found = re.subn(pattern, by, text, flags=re.MULTILINE)
    if found != count:
        raise NoSuchLoop(f"{pattern}: found {found} times, expected {count}")
    return text


def parts(ptx: str) -> tuple[str, str, str]:
    """What stands before the loop that multiplies, the loop with its label and branch, and the rest."""
    loops = re.finditer(r"^ *(\$\w+_loop_\d+):\n.*?bra\.uni \1;\n", ptx, re.DOTALL | re.MULTILINE)
    found = [m for m in loops if "mma.sync" in m[0]]
    counts = [m[0].count("mma.sync") for m in found]
    if counts != [MULTIPLIES]:
        raise NoSuchLoop(f"multiplies in loops: {counts}, expected {[MULTIPLIES]}")
    return ptx[: found[0].start()], found[0][0], ptx[found[0].end() :]


def same_tiles(ptx: str) -> str:
    """The copies of each turn read the tiles of the first."""
    before, loop, after = parts(ptx)
    # Whole tiles and ragged ones are copied in two places, for either operand.
    loop = _replaced(r"mad\.wide\.s32 (%[lr]hs_at_\d), %k, 128, (%[lr]hs_at_1);", r"mov.b64 \1, \2;", loop, 4)
    return before + loop + after


def no_copies(ptx: str) -> str:
    """No copies in the loop; its waits, and the two tiles copied before it, stay."""
    before, loop, after = parts(ptx)
    # 4 + 8 for a thread's share of whole tiles, and one for either operand in the loops of ragged ones.
    loop = _replaced(r"^ *(@%\w+ )?cp\.async\.cg\.shared\.global .*;\n", "", loop, 14)
    # The third buffer was never written: only the first two are used, alternately.
    turn = r"mov\.b32 %([lr]hs)1_place, %\1(2)_place;(\s*)mov\.b32 %\1\2_place, (%place\w*);"
    loop = _replaced(turn, r"mov.b32 %\g<1>1_place, \g<4>;", loop, 2)
    return before + loop + after


def no_fragments(ptx: str) -> str:
    """No ldmatrix in the loop; what it would load first is loaded before it, into the second set of registers."""
    before, loop, after = parts(ptx)
    pattern = r"^ *ldmatrix\.\S+ \{(%m[ab]_0_\w+, ){3}%m[ab]_0_\w+\}, \[(%\w+)(\+\d+)?\];\n"
    second = ["{", ".reg .b32 %second;"]
    for m in re.finditer(pattern, before, re.MULTILINE):
        # The next K step is 32 bytes on; the swizzle turns the sum into an exclusive or.
        line = re.sub(r"%(m[ab])_0_", r"%\1_1_", m[0]).replace(m[2], "%second")
        second += [f"xor.b32 %second, {m[2]}, 32;", line.strip()]
    if len(second) != 2 + 2 * 8:
        raise NoSuchLoop(f"lines that load fragments before the loop: {len(second) - 2}, expected 16")
    loop = _replaced(r"^ *ldmatrix\..*;\n", "", loop, 32)
    return before + "\n".join([*second, "}", ""]) + loop + after


EDITS: dict[str, Callable[[str], str] | None] = {
    "all": None,
    "copies always from the same tiles": same_tiles,
    "no copies": no_copies,
    "no ldmatrix": no_fragments,
    "neither": lambda ptx: no_fragments(no_copies(ptx)),
}


def contestant(kernel: Any, title: str, edit: Callable[[str], str] | None, tensors: tuple[Any, Any, Any]) -> Any:
    """``kernel`` compiled for ``tensors``, its PTX edited, as a contestant of bench/gemm.py."""
    from gemm import Contestant

    from tilemma import runtime
    from tilemma.assemble import assemble
    from tilemma.kernels import facts_of

    compiled = kernel.compile(ARCH, facts=facts_of(dict(zip(("lhs", "rhs", "output"), tensors, strict=True))))
    (launch,) = compiled.launches
    device = runtime.cuda_device(0)
    where = runtime.assembly_arch(ARCH, device)
    image = assemble(edit(compiled.ptx) if edit else compiled.ptx, where).bytes
    prepared = runtime.LoadedKernel(image, launch, device, arch=where).prepare(runtime.bind(launch, tensors))
    return Contestant(title, lambda a, b, c: prepared())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8192, help="of a cube")
    parser.add_argument("--seconds", type=float, default=2.0, help="of steady state in each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch
    from gemm import Measured, error_of, steady, versions

    from tilemma.modules import load_python

    torch.manual_seed(0)
    kernel = load_python(EXAMPLE).only()
    a, b, c = (torch.randn(options.size, options.size, device="cuda").half() for _ in range(3))
    contestants = [contestant(kernel, title, edit, (a, b, c)) for title, edit in EDITS.items()]
    results = [Measured(x.name, (options.size,) * 3, "f16") for x in contestants]
    contestants[0].run(a, b, c)
    results[0].error = error_of(a, b, c)
    runs: list[list[tuple[float, float, float]]] = [[] for _ in contestants]
    guess_us = results[0].flops / 4e8
    for i in range(options.rounds):
        for j in range(len(contestants)):
            which = (i + j) % len(contestants)
            runs[which].append(steady(contestants[which], (a, b, c), options.seconds, guess_us, power=POWER))
    for r, of_rounds in zip(results, runs, strict=True):
        r.steady_us, r.sm_clock, r.power = (mean(x) for x in zip(*of_rounds, strict=True))
        r.steady_ratio = results[0].steady_us / r.steady_us
        speed = f"{r.tflops(r.steady_us):5.0f} TFLOP/s {r.steady_ratio:6.3f}"
        print(f"{r.kernel:36} {speed} {r.sm_clock:6.0f} MHz {r.power:5.0f} W", flush=True)
    if options.json:
        found = [{name: getattr(r, name) for name in MEASURED} for r in results]
        protocol = {name: getattr(options, name) for name in ("seconds", "rounds")}
        data = {"versions": versions(), "protocol": protocol, "results": found}
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    return int(not results[0].error <= 1)


if __name__ == "__main__":
    sys.exit(main())
