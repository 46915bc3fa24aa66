"""A plan in sentences, and the commands to try next: the end of `tilemma run --plan`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tilemma.atoms import MmaAtom, catalogue
from tilemma.explain import Explanation

_ENGINES = {
    "tma": "by TMA, one thread for a whole tile",
    "cp.async": "by cp.async, which does not pass through registers",
    "ldst": "by loads and stores",
}


def in_words(plan: Explanation) -> list[str]:
    """The plan in words, for a reader who does not know its terms."""
    return [f"- {sentence}" for sentence in _sentences(plan)]


def _sentences(plan: Explanation) -> Iterator[str]:
    if plan.copies:
        loads = [c for c in plan.copies if c["to"] in {b["name"] for b in plan.buffers}]
        for engine in dict.fromkeys(c["engine"] for c in loads):
            tiles = ", ".join(dict.fromkeys(c["from"] for c in loads if c["engine"] == engine))
            yield f"A block copies {tiles} to shared memory {_ENGINES.get(engine, 'by ' + engine)}."
    swizzled = [b["name"] for b in plan.buffers if "swizzle" in b["layout"]]
    if swizzled:
        order = "pieces of 16 bytes in a permuted order, so that reads of a column meet no bank twice"
        yield f"{', '.join(swizzled)}: {order}."
    for m in {m["atom"]: m for m in plan.multiplies}.values():
        atom = catalogue[m["atom"]]
        if isinstance(atom, MmaAtom):
            rows, columns, depth = atom.shape
            yield f"One instruction of a {m['unit']} ({atom.name}) multiplies {rows} x {columns}, {depth} deep."
    for f in plan.fragments:
        if f["role"] == "C" and f["registers"]:
            held = f"{f['registers']} registers of each thread"
            yield f"The sums of `{f['name']}` stay in {held} until they are stored."
    inserted = sum(plan.synchronisation.values())
    if inserted:
        yield f"The compiler added {inserted} waits, fences and barriers; `tilemma explain` says what each is for."


def next_steps(file: str, arch: str, dims: Mapping[str, int]) -> list[str]:
    """Commands, each with what it shows."""
    small = ",".join(f"{name}={70 + 30 * i}" for i, name in enumerate(dims))
    shape = f" --shape {small}" if small else ""
    # `make demo` runs the command of a virtual environment that the reader has not activated.
    called = Path(sys.argv[0])
    name = "tilemma" if shutil.which("tilemma") or called.name != "tilemma" else os.path.relpath(called)
    steps = {
        f"{name} explain {file} --arch {arch}": "every decision of the compiler",
        f"{name} check {file} --arch {arch}{shape}": "races and missing waits in the PTX",
        f"{name} show {file} --html": "the kernel as a page",
        f"{name} compile {file} --arch {arch} --emit ptx": "the PTX, with the lines of the program",
    }
    width = max(map(len, steps))
    return [f"{command:{width}}   {what}" for command, what in steps.items()]
