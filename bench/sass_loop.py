"""The main loop in machine code: python bench/sass_loop.py [FILE.py[@KEY=VALUE,..]] [--arch sm_90a] [--text].

Disassembles a kernel, finds the innermost loop with matrix instructions and that with copies by TMA, and counts
their instructions by purpose next to the same loops written by hand in PTX, and to what no loop does without.
Needs ptxas and nvdisasm, no GPU.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hand_loop import consumer_ptx, producer_ptx

from tilemma.assemble import assemble, disassemble
from tilemma.modules import load_python

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "py" / "persistent.py"

MATRIX, COPIES, WARPGROUP = "matrix instructions", "copies by TMA", "wgmma fence, wait"
BARRIER, BRANCH, UNIFORM, LANE = (
    "mbarriers, barriers",
    "branches",
    "uniform arithmetic",
    "arithmetic of every lane",
)
KINDS = (MATRIX, COPIES, WARPGROUP, BARRIER, BRANCH, UNIFORM, LANE)


@dataclass(frozen=True)
class Loop:
    """A loop of the kernel: its purpose, the same loop by hand, and the instructions that each iteration needs
    without unrolling over the slots (how many, and which)."""

    title: str
    purpose: str
    by_hand: str
    floor: Mapping[str, tuple[int, str]]


# One K step of 64 with f16 operands and a ring of slots, one accumulator.
CONSUMER = Loop(
    "a consumer's K step",
    MATRIX,
    consumer_ptx(),
    {
        MATRIX: (4, "64 / 16 steps along K"),
        WARPGROUP: (2, "`wgmma.fence`; `wgmma.wait_group 1` (the commit is a bit of the last HGMMA)"),
        BARRIER: (
            4,
            "`try_wait` on the full slot; a barrier of the warpgroup, and the arrivals that release the previous "
            "slot, at home and in the peer",
        ),
        BRANCH: (
            4,
            "`try_wait` gave up; a piece of the tile before is due; the place of the result is due, behind the "
            "first step; next step",
        ),
        UNIFORM: (
            18,
            "low words of 4 x 2 descriptors (the high words stay): 8; addresses of three mbarriers: 3; slot + 1, "
            "compare, select: 3; parity: 1; k + 1, compare: 2; scale-d predicate: 1",
        ),
        LANE: (
            6,
            "the parity, which `try_wait` takes from a lane's register: 1; the loop's predicate: 1; whether "
            "there is a previous slot, for the two lanes that release it: 2; a piece, the place is due: 2",
        ),
    },
)
PRODUCER = Loop(
    "the producer's K step",
    COPIES,
    producer_ptx(),
    {
        COPIES: (2, "a box of A and half a box of B, which goes to both blocks"),
        BARRIER: (2, "`try_wait` on the empty slot; the arrival that announces the bytes"),
        BRANCH: (2, "`try_wait` gave up; next step"),
        UNIFORM: (
            12,
            "the slot's mbarriers: 1; boxes: 2; the full slot among the operands of each copy: 2; slot + 1, "
            "compare, select: 3; parity: 1; the place along K: 1; k + 1, compare: 2",
        ),
        LANE: (2, "the parity, which `try_wait` takes from a lane's register: 1; the loop's predicate: 1"),
    },
)
LOOPS = (CONSUMER, PRODUCER)

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?(U?P\w+)\s+)?([A-Z][\w.]*)(.*)")
_LABEL = re.compile(r"^(\.L_x_\d+):")


def instructions(sass: str) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """(opcode, operands) of every instruction, and the index that each label stands before."""
    found: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif match := _LINE.search(line):
            found.append((match[3], match[4]))
    return found, labels


def main_loop(sass: str, purpose: str = MATRIX) -> list[tuple[str, str]]:
    """The body of the shortest loop that multiplies (or copies); empty when there is none.

    A loop is what lies between a label and a branch back to it; past an `EXIT`, where the assembler puts what
    seldom happens, branches lead back into loops and make none.
    """
    found, labels = instructions(sass)
    loops = []
    for i, (opcode, operands) in enumerate(found):
        target = re.search(r"`\((\.L_x_\d+)\)", operands)
        if opcode.startswith("BRA") and target and labels.get(target[1], i + 1) <= i:
            body = _usual(found, labels, labels[target[1]], i)
            if any(kind_of(o) == purpose for o, _ in body) and all(o != "EXIT" for o, _ in body):
                loops.append(body)
    return min(loops, key=len, default=[])


def _usual(found: list[tuple[str, str]], labels: dict[str, int], first: int, last: int) -> list[tuple[str, str]]:
    """The loop from ``first`` to ``last`` without what a branch leaps over: what few turns do."""
    out, i = [], first
    while i <= last:
        out.append(found[i])
        target = re.search(r"`\((\.L_x_\d+)\)", found[i][1])
        beyond = labels.get(target[1], 0) if found[i][0].startswith("BRA") and target else 0
        i = beyond if i < beyond <= last else i + 1
    return out


def kind_of(opcode: str) -> str:
    """What an instruction is there for."""
    head = opcode.split(".")[0]
    if head.endswith("MMA"):
        return MATRIX
    if head.startswith("UTMALDG"):
        return COPIES
    if head == "WARPGROUP":
        return WARPGROUP
    if head in ("SYNCS", "BAR"):
        return BARRIER
    if head in ("BRA", "BSSY", "BSYNC", "WARPSYNC"):
        return BRANCH
    return UNIFORM if re.match(r"U[A-Z]", head) else LANE


def counts(sass: str, purpose: str = MATRIX) -> dict[str, int]:
    """Instructions of the loop by purpose."""
    found = Counter(kind_of(opcode) for opcode, _ in main_loop(sass, purpose))
    return {kind: found[kind] for kind in KINDS}


def sass_of(path: Path = EXAMPLE, arch: str = "sm_90a", **constants: int) -> str:
    return load_python(path).only().compile(arch, **constants).sass()


def by_hand(loop: Loop) -> dict[str, int]:
    """The same counts of the loop written by hand, through the same assembler."""
    return counts(disassemble(assemble(loop.by_hand, "sm_90a")), loop.purpose)


def table(loop: Loop, found: dict[str, int], hand: dict[str, int]) -> list[str]:
    """Rows in Markdown."""
    lines = [
        f"| {loop.title} | this compiler | PTX by hand | floor | instructions of the floor |",
        "|---|---|---|---|---|",
    ]
    kinds = [kind for kind in KINDS if kind in loop.floor or found[kind] or hand[kind]]
    for kind in kinds:
        least, why = loop.floor.get(kind, (0, ""))
        lines.append(f"| {kind} | {found[kind]} | {hand[kind]} | {least} | {why} |")
    total = sum(n for n, _ in loop.floor.values())
    return [*lines, f"| all | {sum(found.values())} | {sum(hand.values())} | {total} | |"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", nargs="?", default=str(EXAMPLE))
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--text", action="store_true", help="print the loops")
    options = parser.parse_args()
    file, _, settings = options.kernel.partition("@")
    constants = {k: int(v) for k, v in (s.split("=") for s in settings.split(",") if s)}
    sass = sass_of(Path(file), options.arch, **constants)
    for loop in LOOPS:
        if options.text:
            print(*(f"{opcode}{operands}" for opcode, operands in main_loop(sass, loop.purpose)), sep="\n")
        print(*table(loop, counts(sass, loop.purpose), by_hand(loop)), "", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
