"""Differential fuzzing: random programs on every target against each other and against NumPy.

`check` runs one program; ``python -m dev.fuzz.check 17 --show`` shows and runs the one of seed 17, with
``--narrow`` that of the older generator.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dev.fuzz import generate, wide
from dev.fuzz.arguments import Arrays, arguments, in_memory
from dev.fuzz.mutate_python import OURS
from dev.fuzz.programs import Program
from dev.fuzz.text import croqtile_text, python_text
from dev.fuzz.values import evaluate
from tilemma import croqtile
from tilemma.errors import TilemmaError
from tilemma.ir.canonical import canonical
from tilemma.kernels import Kernel, facts_of
from tilemma.machine.hazards import HazardError
from tilemma.targets.cpu import execute

ARCHS = ("sm_80", "sm_90a")
GENERATORS: dict[str, Callable[[int], Program]] = {"wide": wide.generate, "narrow": generate.generate}


@dataclass(frozen=True)
class Failure:
    """``where``: the failing stage; ``what``: its message; ``error``: the code of a refusal."""

    seed: int
    where: str
    what: str
    error: str = ""

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.where}: {self.what}"

    @property
    def kind(self) -> str:
        """The key by which failures are counted; of a crash its last line."""
        last = re.sub(r"\d+", "N", self.what.strip().splitlines()[-1])[:90] if self.error == "internal" else ""
        return " ".join(x for x in (self.where, self.error or "difference", last) if x)


@dataclass(frozen=True)
class Outcome:
    """``refused``: the code of the error that all targets agree on; ``failure``: None when all agree."""

    failure: Failure | None = None
    refused: str = ""


@dataclass(frozen=True)
class _Run:
    """The outcome of a call on one target: arrays, or the code and text of an error."""

    arrays: Arrays
    code: str = ""
    text: str = ""


def python_kernel(p: Program) -> Kernel:
    """The program's Python text as a kernel."""
    text, file = python_text(p), f"<fuzz {p.seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {}
    exec(compile(text, file, "exec"), scope)
    kernel: Kernel = scope["k"]
    return kernel


def croqtile_kernel(p: Program) -> Kernel:
    return Kernel(croqtile.load(croqtile_text(p), f"fuzz {p.seed}.co").sources["k"])


def check(
    p: Program, archs: Sequence[str] = ARCHS, *, languages: Sequence[str] = ("python", "croqtile"),
    device: bool = False, decided: bool = True,
) -> Failure | None:  # fmt: skip
    """The first difference, crash, or refusal that not all targets share; None when all agree."""
    return examine(p, archs, languages=languages, device=device, decided=decided).failure


def examine(
    p: Program, archs: Sequence[str] = ARCHS, *, languages: Sequence[str] = ("python", "croqtile"),
    device: bool = False, decided: bool = False,
) -> Outcome:  # fmt: skip
    """Run ``p`` on the CPU reference and on the machine, or with ``device`` on the GPU.

    ``decided``: the CPU reference also runs the IR after the passes.  Where the PTX of two architectures is one
    text but for its target, it runs once.  Where the IR of the two languages differs, one of them runs, both of
    every fourth program.
    """
    kernels: list[tuple[str, Kernel]] = []
    refused: dict[str, TilemmaError] = {}
    for language in (n for n in p.languages if n in languages):
        try:
            kernel = python_kernel(p) if language == "python" else croqtile_kernel(p)
            kernel.build()
        except TilemmaError as e:
            refused[language] = e
            continue
        except Exception:
            return Outcome(Failure(p.seed, f"building ({language})", traceback.format_exc(), "internal"))
        if not kernels or canonical(kernels[0][1].build()) != canonical(kernel.build()):
            kernels.append((language, kernel))
    for language, error in refused.items():
        if kernels or error.code in OURS:
            return Outcome(Failure(p.seed, f"building ({language})", str(error), error.code))
    if refused:
        return Outcome(refused=min(e.code for e in refused.values()))
    if len(kernels) > 1 and p.seed % 4 and p.edges:
        kernels = [kernels[p.seed % 2]]
    given = arguments(p)
    for language, kernel in kernels:
        wanted = evaluate(p, given, language)
        outcome = _compared(
            p, kernel, language, [a for a in archs if a in p.archs], given, wanted, device, decided
        )
        if outcome.failure or outcome.refused:
            return outcome
    return Outcome()


def _compared(
    p: Program, kernel: Kernel, language: str, archs: Sequence[str], given: Arrays, wanted: Arrays, device: bool,
    decided: bool,
) -> Outcome:  # fmt: skip
    scalars = {n: v for n, _, v in p.scalars}

    def fail(where: str, what: str, code: str = "") -> Outcome:
        return Outcome(Failure(p.seed, f"{where} ({language})", what, code))

    reference = _run(p, given, lambda a: kernel.on("cpu")(**a, **scalars))
    if reference.code in ("internal", *OURS):
        return fail("CPU reference", reference.text, reference.code)
    if not reference.code and (difference := _differs(reference.arrays, wanted)):
        return fail("CPU reference", difference)
    seen: set[str] = set()
    for arch in archs:
        target = "cuda" if device else "machine"

        def on_target(a: Arrays, arch: str = arch, target: str = target) -> None:
            text = _untargeted(kernel.compile(arch, facts=facts_of(a)).ptx)
            if text in seen and not device:
                raise _Known
            seen.add(text)
            kernel.on(target, arch=arch)(**a, **scalars)

        try:
            found = _run(p, given, on_target)
        except _Known:
            continue
        where = f"{'GPU' if device else 'machine'}, {arch}"
        if found.code != reference.code:
            both = f"{found.text or 'runs'}\n\nCPU reference: {reference.text or 'runs'}"
            return fail(where, both, found.code or f"only the CPU refuses: {reference.code}")
        if not found.code and (difference := _differs(found.arrays, reference.arrays, bits=True)):
            return fail(where, difference)
        if decided and not found.code:
            again = _run(p, given, partial(_execute, p, kernel, arch, scalars))
            if again.code or (difference := _differs(again.arrays, wanted)):
                return fail(f"decided IR, {arch}", again.text or difference, again.code)
    return Outcome(refused=reference.code)


class _Known(Exception):
    """The same PTX ran before."""


def _untargeted(ptx: str) -> str:
    return re.sub(r"^\.(version|target) .*$", "", ptx, flags=re.M)


def _execute(p: Program, kernel: Kernel, arch: str, scalars: Arrays, arrays: Arrays) -> None:
    execute(kernel.compile(arch).kernel, arrays, scalars, dims=p.sizes)


def _run(p: Program, given: Arrays, run: Callable[[Arrays], Any]) -> _Run:
    placed = dict(in_memory(p, given))
    try:
        run({name: h.array for name, h in placed.items()})
        for name, h in placed.items():
            try:
                h.check()
            except AssertionError as e:
                return _Run({}, "written-outside", f"{name}: {e}")
    except _Known:
        raise
    except HazardError as e:
        return _Run({}, f"hazard {e.code}", str(e))
    except TilemmaError as e:
        return _Run({}, e.code, str(e))
    except Exception:
        return _Run({}, "internal", traceback.format_exc())
    return _Run({name: h.array for name, h in placed.items()})


def _differs(found: Arrays, right: Arrays, bits: bool = False) -> str:
    """``bits``: zeros of both signs are not one."""
    for name, want in right.items():
        got = found[name]
        same = (got == want) | ((got != got) & (want != want))
        if bits and got.dtype.kind not in "iub":
            same &= (np.signbit(got) == np.signbit(want)) | (got != got)
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            count = f"{int((~same).sum())} of {same.size} elements differ"
            return f"{name}{list(at)} is {got[at]}, not {want[at]} ({count})"
    return ""


def main(argv: Sequence[str]) -> int:
    family = "narrow" if "--narrow" in argv else "wide"
    for seed in (int(a) for a in argv if a.isdigit()):
        p = GENERATORS[family](seed)
        if "--show" in argv:
            print(f"# sizes {p.sizes}, scalars {p.scalars}\n{python_text(p)}\n{croqtile_text(p)}")
        outcome = examine(p, decided="--decided" in argv)
        print(outcome.failure or f"seed {seed}: {outcome.refused or 'all agree'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
