"""The language's kernels with their source positions and their instructions, as files to compare with.

``recorded/positions_LANGUAGE.txt``: the operations that the front end makes of each kernel, each with the range of
its source.  ``recorded/instructions.txt``: the memory accesses, barriers and multiplies of the kernel's PTX in
order, how often each other instruction stands there, how many decisions each pass took, and the threads and bytes
of each launch.  What the instructions compute is tested by running them; here a change of their
number or order, which no result shows, becomes visible in a review.  ``recorded/digests.txt`` and
``recorded/random.txt``: see `digests`; ``recorded/library.txt``: see `library`.  ``python tests/language/recorded.py`` writes the files: read the difference.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import Path

import edited
import library
from digests import Traced, random_digests, random_entries
from edited import CASES
from library import library_digests

from tilemma.ir.walk import walk
from tilemma.modules import load_python

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "recorded"
HOPPER, BOTH = ("sm_90a",), ("sm_80", "sm_90a")
# What is compared in the order of the program.
ORDERED = ("bar.", "barrier.", "mbarrier.", "cp.", "fence.", "wgmma.", "mma.", "ld.global", "ld.shared", "st.", "ldmatrix",
           "stmatrix", "atom.", "red.", "shfl.", "vote.", "elect.", "setmaxnreg", "griddepcontrol", "bra", "ret")  # fmt: skip
# The pipelines of the examples, with their constants.
EXAMPLES = {
    "double_buffer": BOTH, "multistage": BOTH, "event_pipeline(STAGES=3)": BOTH, "tma_pipeline(STAGES=2)": HOPPER,
    "tma_pipeline(STAGES=4)": HOPPER, "warp_specialized(STAGES=3,CONSUMERS=2,TILE_N=128)": HOPPER,
    "warp_specialized(STAGES=2,CONSUMERS=1,TILE_N=128)": HOPPER,
    "persistent(STAGES=3,CONSUMERS=2,TILE_N=128,GRID=2,RASTER=2)": HOPPER,
    "multicast(STAGES=3,CLUSTER=4,TILE_N=128,GRID=1)": HOPPER, "pingpong(STAGES=3,TILE_N=128,GRID=1)": HOPPER,
}  # fmt: skip
_INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+ )?([a-z][\w.:]*)(?=[ ;])", re.M)


def positions(language: str, text: str) -> str:
    """The operations of the kernels of ``text``, outer ones first."""
    found = []
    for kernel in edited.read(language, text):
        for op in walk(kernel.build().body):
            s = op.span
            at = f"{s.line}:{s.column}-{s.end_line}:{s.end_column}" if s else "nowhere"
            found.append(f"{type(op).__name__}@{at}")
    return " ".join(found)


def traced(name: str, arch: str) -> Traced:
    """A kernel of the language's tests, or an example, `NAME(CONSTANT=..)`."""
    if name in CASES:
        return Traced(CASES[name].kernel, arch, {}, CASES[name].constants)
    path, _, settings = name.partition("(")
    constants = dict(x.split("=") for x in settings.rstrip(")").split(",") if x)
    kernel = load_python(ROOT / "examples" / "py" / f"{path}.py").only()
    return Traced(kernel, arch, {}, {k: int(v) for k, v in constants.items()})


def instructions(of: Traced) -> str:
    """The accesses, barriers and multiplies in order, the number of each other instruction, decisions, launches."""
    found = of.compiled
    written = _INSTRUCTION.findall(found.ptx)
    ordered = ((x, len(list(same))) for x, same in groupby(x for x in written if x.startswith(ORDERED)))
    counts = Counter(x for x in written if not x.startswith(ORDERED))
    taken = Counter(d.pass_name for d in found.decisions)
    launches = [[*x.launch.block, x.launch.shared] for x in found.lowered]
    parts = (_times(ordered), _times(sorted(counts.items())), _times(sorted(taken.items())), str(launches))
    return "; ".join(parts)


def _times(found: Iterable[tuple[str, int]]) -> str:
    return " ".join(x if n == 1 else f"{x}*{n}" for x, n in found)


def _instructions_and_digests() -> tuple[dict[str, str], dict[str, str]]:
    written: dict[str, str] = {}
    digests: dict[str, str] = {}
    for name, archs in ({c.name: c.archs for c in CASES.values()} | EXAMPLES).items():
        found: dict[str, list[str]] = {}
        for arch in archs:
            of = traced(name, arch)
            digests[f"{name} {arch}"] = str(of)
            found.setdefault(instructions(of), []).append(arch)
        written |= {" ".join((name, *same)): x for x, same in found.items()}
    return written, digests


def _positions(language: str) -> Iterator[tuple[str, str]]:
    for name, text in edited.programs(language).items():
        if name in CASES and name not in edited.NOT_ALONE:
            with suppress(NameError):
                yield name, positions(language, text)


@cache
def recorded(table: str) -> dict[str, str]:
    parts = ("\n" + (FOLDER / f"{table}.txt").read_text(encoding="utf-8")).split("\n== ")[1:]
    return {name: " ".join(body.split()) for name, _, body in (x.partition("\n") for x in parts)}


def update() -> None:
    FOLDER.mkdir(exist_ok=True)
    tables = {f"positions_{language}": dict(_positions(language)) for language in ("co", "py")}
    tables["instructions"], tables["digests"] = _instructions_and_digests()
    tables["random"] = {entry: random_digests(entry) for entry in random_entries()}
    tables["library"] = {entry: library_digests(entry) for entry in library.entries()}
    for table, found in tables.items():
        entries = (
            f"== {name}\n{textwrap.fill(x, 115, break_long_words=False, break_on_hyphens=False)}\n"
            for name, x in found.items()
        )
        (FOLDER / f"{table}.txt").write_text("".join(entries), encoding="utf-8")


if __name__ == "__main__":
    update()
