"""The main loop in machine code: python bench/sass_loop.py [FILE.py[@KEY=VALUE,..]] [--arch sm_90a] [--text].

Disassembles a kernel, finds the innermost loop with matrix instructions, and counts its instructions by purpose
next to the same loop written by hand in PTX, and to what no loop does without.  Needs ptxas and nvdisasm, no GPU.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hand_loop import hand_ptx

from tilemma.assemble import assemble, disassemble
from tilemma.kernels import load_python

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "py" / "persistent.py"

MATRIX, WARPGROUP, BARRIER, BRANCH = "matrix instructions", "wgmma fence, wait", "mbarrier", "branches"
UNIFORM, LANE = "uniform arithmetic", "arithmetic of every lane"
KINDS = (MATRIX, WARPGROUP, BARRIER, BRANCH, UNIFORM, LANE)
# One K step of 64 with f16 operands and a ring of slots, one accumulator: what cannot be left out without
# unrolling over the slots.
FLOOR = {
    MATRIX: (4, "64 / 16 steps along K"),
    WARPGROUP: (2, "`wgmma.fence`; `wgmma.wait_group 1` (the commit is a bit of the last HGMMA)"),
    BARRIER: (2, "`try_wait` on the full slot; the arrival that releases the previous one"),
    BRANCH: (2, "`try_wait` gave up; next step"),
    UNIFORM: (
        16,
        "low words of 4 x 2 descriptors (the high words stay): 8; addresses of two mbarriers: 2; slot + 1, "
        "compare, select: 3; k + 1, compare: 2; scale-d predicate: 1",
    ),
    LANE: (2, "the phase bit, which `try_wait` takes from a lane's register: 1; the loop's predicate: 1"),
}

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


def main_loop(sass: str) -> list[tuple[str, str]]:
    """The body of the shortest loop that multiplies; empty when there is none.

    A loop is what lies between a label and a branch back to it.
    """
    found, labels = instructions(sass)
    loops = []
    for i, (opcode, operands) in enumerate(found):
        target = re.search(r"`\((\.L_x_\d+)\)", operands)
        if opcode.startswith("BRA") and target and labels.get(target[1], i + 1) <= i:
            body = found[labels[target[1]] : i + 1]
            if any(kind_of(o) == MATRIX for o, _ in body):
                loops.append(body)
    return min(loops, key=len, default=[])


def kind_of(opcode: str) -> str:
    """What an instruction is there for."""
    head = opcode.split(".")[0]
    if head.endswith("MMA"):
        return MATRIX
    if head == "WARPGROUP":
        return WARPGROUP
    if head == "SYNCS":
        return BARRIER
    if head in ("BRA", "BSSY", "BSYNC", "WARPSYNC"):
        return BRANCH
    return UNIFORM if re.match(r"U[A-Z]", head) else LANE


def counts(sass: str) -> dict[str, int]:
    """Instructions of the main loop by purpose."""
    found = Counter(kind_of(opcode) for opcode, _ in main_loop(sass))
    return {kind: found[kind] for kind in KINDS}


def sass_of(path: Path = EXAMPLE, arch: str = "sm_90a", **constants: int) -> str:
    return load_python(path).only().compile(arch, **constants).sass()


def by_hand() -> dict[str, int]:
    """The same counts of the loop written by hand, through the same assembler."""
    return counts(disassemble(assemble(hand_ptx(), "sm_90a")))


def table(found: dict[str, int], hand: dict[str, int]) -> list[str]:
    """Rows in Markdown."""
    lines = ["| | this compiler | PTX by hand | floor | what the floor is |", "|---|---|---|---|---|"]
    lines += [f"| {kind} | {found[kind]} | {hand[kind]} | {FLOOR[kind][0]} | {FLOOR[kind][1]} |" for kind in KINDS]
    total = sum(n for n, _ in FLOOR.values())
    return [*lines, f"| all | {sum(found.values())} | {sum(hand.values())} | {total} | |"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", nargs="?", default=str(EXAMPLE))
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--text", action="store_true", help="print the loop")
    options = parser.parse_args()
    file, _, settings = options.kernel.partition("@")
    constants = {k: int(v) for k, v in (s.split("=") for s in settings.split(",") if s)}
    sass = sass_of(Path(file), options.arch, **constants)
    if options.text:
        print(*(f"{opcode}{operands}" for opcode, operands in main_loop(sass)), sep="\n")
    print(*table(counts(sass), by_hand()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
