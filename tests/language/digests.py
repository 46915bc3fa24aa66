"""Digests of programs: of the tile IR after each pass that changed it, of the decisions, of the PTX, and of the
reasons for each synchronising operation.

``recorded/digests.txt`` has them for the kernels of the language's tests and the examples; ``recorded/random.txt``
for random programs of the fuzzer, whose arrays have various strides; of a program that is refused the error.  The
first digest that differs names the pass that changed.  ``python tests/language/recorded.py`` writes the files;
``python tests/language/digests.py 'wide 17' sm_80 InsertSync`` prints the text of a digest.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import edited

from dev.fuzz import check
from dev.fuzz.arguments import arguments, in_memory
from tilemma.compiler import Compiled, Facts, default_facts, with_facts
from tilemma.errors import TilemmaError
from tilemma.ir.printer import print_kernel
from tilemma.ir.specialise import specialise
from tilemma.ir.verifier import verify
from tilemma.kernels import Kernel, facts_of
from tilemma.passes.decision import Decision
from tilemma.targets.ptx.passes import PASSES
from tilemma.targets.ptx.passes.insertions import Insertion, insertions

# Seeds of the fuzzer's generators: of the first 420, some that together run each line that any of them runs twice.
RANDOM = {
    "wide": (
        0, 1, 2, 7, 9, 14, 15, 16, 19, 20, 23, 26, 30, 46, 63, 74, 78, 83, 84, 86, 94, 103, 106, 108, 109,
        112, 113, 122, 124, 126, 127, 128, 130, 144, 145, 157, 161, 169, 173, 185, 201, 207, 211, 219, 227,
        228, 234, 235, 238, 253, 255, 258, 271, 278, 281, 289, 292, 298, 302, 313, 314, 318, 337, 338, 353,
        356, 361, 364, 369, 372, 374, 375, 376, 380, 388, 390, 398, 401, 404, 413, 414, 417,
    ),
    "narrow": (
        3, 6, 24, 39, 48, 54, 75, 81, 90, 102, 108, 123, 129, 132, 144, 147, 171, 189, 198, 201, 207, 231,
        234, 240, 246, 249, 258, 273, 318, 336, 339, 351, 357, 378, 381, 390, 402, 417,
    ),
}  # fmt: skip
# Source files have different paths on each machine, and lines of Python tests move.
_FILE, _PLACES = re.compile(r"^\.file.*$", re.M), re.compile(r"^\s*\.(file|loc).*$", re.M)
_PATH = re.compile(r"[^\s(\"]+\.py:\d+:\d+")


class Traced:
    """A kernel compiled pass by pass; ``stages``: the text after each pass that changed it."""

    def __init__(
        self,
        kernel: Kernel,
        arch: str,
        facts: Facts,
        constants: Mapping[str, Any],
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        source = specialise(kernel.traced(**constants), sizes or {})
        tile, log = with_facts(source, {**default_facts(source), **facts}), list[Decision]()
        verify(tile)
        text = print_kernel(tile)
        self.stages = {"front": text}
        for step in PASSES(arch):
            tile = step.run(tile, log)
            before, text = text, print_kernel(tile)
            if text != before:
                self.stages[type(step).__name__] = text
        self.compiled = Compiled(source, tile, arch, tuple(log))
        self.stages["decisions"] = "\n".join(f"{d} {json.dumps(d.data)}" for d in log)
        moving = _PLACES if source.span and source.span.file.endswith(".py") else _FILE
        launch = _PATH.sub("", json.dumps(edited.without_names(self.compiled)))
        self.stages["ptx"] = moving.sub("", self.compiled.ptx) + launch
        self.stages["insertions"] = "\n".join(map(_insertion, insertions(self.compiled.kernel, source)))

    def __str__(self) -> str:
        return " ".join(f"{name}:{edited.digest(text)}" for name, text in self.stages.items())


def _insertion(x: Insertion) -> str:
    """An inserted operation with its reasons, without source positions."""
    serves = (f"{a.access} {a.resource} {a.agent}" for s in x.serves for a in (s.earlier, s.later))
    proxies = sum(s.proxy for s in x.serves)
    return f"{x.number} {x.name}{x.detail}, {proxies} across proxies: {'; '.join(serves)} {x.reason}".rstrip()


def random_entries() -> list[str]:
    return [f"{family} {seed} {check.ARCHS[seed % 2]}" for family, seeds in RANDOM.items() for seed in seeds]


def random_program(entry: str) -> Traced:
    """The program of an entry, `FAMILY SEED ARCH`."""
    family, seed, arch = entry.split()
    program = check.GENERATORS[family](int(seed))
    facts = facts_of({name: h.array for name, h in in_memory(program, arguments(program))})
    return Traced(check.croqtile_kernel(program), arch, facts, {})


def random_digests(entry: str) -> str:
    try:
        return str(random_program(entry))
    except TilemmaError as e:
        return edited.told(e)


if __name__ == "__main__":
    print(random_program(" ".join(sys.argv[1:3])).stages[sys.argv[3]])
