"""The families of random kernels, and the check of those that are described rather than built of statements.

A family makes a kernel from a seed.  `bench/fuzz_kernels.py` runs any of them.
"""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from dev.fuzz import check, fragments, generate, lanes, products, wide
from dev.fuzz.arguments import hosted
from dev.fuzz.check import Failure, Outcome
from dev.fuzz.features import features
from dev.fuzz.mutate_python import OURS
from dev.fuzz.programs import Program
from dev.fuzz.shrink import shrink
from dev.fuzz.text import croqtile_text, python_text
from tilemma import croqtile
from tilemma.errors import TilemmaError
from tilemma.kernels import Kernel
from tilemma.machine.hazards import HazardError

IMPORTS = "import tilemma as tm\nfrom tilemma import *\n\n\n"


class Described(Protocol):
    """A kernel ``k`` that a record describes: its texts, its arguments and its result by NumPy."""

    @property
    def seed(self) -> int: ...

    @property
    def archs(self) -> tuple[str, ...]: ...

    def python(self) -> str: ...

    def croqtile(self) -> str: ...

    def arguments(self) -> dict[str, Any]: ...

    def expected(self, given: dict[str, Any]) -> dict[str, Any]: ...

    def features(self) -> set[str]: ...


@dataclass(frozen=True)
class Family:
    """``make``: the kernel of a seed; ``examine``: (kernel, on a GPU) to its outcome; ``smaller``: a kernel that
    fails as the given one does."""

    make: Callable[[int], Any]
    examine: Callable[[Any, bool], Outcome]
    features: Callable[[Any], set[str]]
    texts: Callable[[Any], str]
    smaller: Callable[[Any, Callable[[Any], bool]], Any]
    archs: tuple[str, ...] = check.ARCHS


def _built(make: Callable[[int], Program]) -> Family:
    """A family of programs that are built of statements."""
    return Family(
        make,
        lambda p, device: check.examine(p, device=device),
        features,
        lambda p: (
            f"sizes {p.sizes}, scalars {p.scalars}, in memory {p.hosted}\n\n{python_text(p)}\n{croqtile_text(p)}"
        ),
        lambda p, fails: shrink(p, fails, 250),
    )


def _described(make: Callable[[int], Described], archs: tuple[str, ...]) -> Family:
    return Family(
        make,
        examine,
        lambda p: p.features(),
        lambda p: f"{p}\n\n{p.python()}\n{p.croqtile()}",
        lambda p, fails: p,
        archs,
    )


def python_kernel(p: Described) -> Kernel:
    """The program's Python text as a kernel."""
    text, file = IMPORTS + p.python(), f"<fuzz {type(p).__name__} {p.seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {}
    exec(compile(text, file, "exec"), scope)
    kernel: Kernel = scope["k"]
    return kernel


def croqtile_kernel(p: Described) -> Kernel:
    return Kernel(croqtile.load(p.croqtile(), f"fuzz {p.seed}.co").sources["k"])


def runs(p: Described, device: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(where, the kernel there): each language on each target, and unless on a GPU on the CPU reference."""
    for language, build in (("Python", python_kernel), ("Croqtile", croqtile_kernel)):
        kernel: list[Kernel] = []

        def on(target: str, arch: str = "", build: Any = build, kernel: Any = kernel) -> Any:
            if not kernel:
                kernel.append(build(p))
            return kernel[0].on(target, arch=arch) if arch else kernel[0].on(target)

        if not device:
            yield f"CPU reference ({language})", partial(on, "cpu")
        for arch in p.archs:
            target = "cuda" if device else "machine"
            where = f"{'GPU' if device else 'machine'}, {arch} ({language})"
            yield where, partial(on, target, arch)


def examine(p: Described, device: bool = False, kinds: Sequence[str] = ("rows", "packed", "late")) -> Outcome:
    """Whether all runs of ``p`` give what NumPy gives.  These kernels are legal: a refusal is a failure too.

    ``kinds``: how arrays lie in memory, one of them for each seed.
    """
    given = p.arguments()
    wanted = p.expected(given)
    kind = "rows" if "operands by tma" in p.features() else kinds[p.seed % len(kinds)]
    for where, kernel in runs(p, device):
        placed = {n: hosted(v, kind) for n, v in given.items() if isinstance(v, np.ndarray)}
        try:
            kernel()(**{**given, **{n: h.array for n, h in placed.items()}})
            for h in placed.values():
                h.check()
        except HazardError as e:
            return Outcome(Failure(p.seed, where, str(e), f"hazard {e.code}"))
        except TilemmaError as e:
            return Outcome(Failure(p.seed, where, str(e), "internal" if e.code in OURS else e.code))
        except AssertionError as e:
            return Outcome(Failure(p.seed, where, str(e), "written-outside"))
        except Exception:
            return Outcome(Failure(p.seed, where, traceback.format_exc(), "internal"))
        for name, want in wanted.items():
            got = placed[name].array
            wrong = np.argwhere(~((got == want) | ((got != got) & (want != want))))
            if len(wrong):
                at = tuple(int(i) for i in wrong[0])
                text = f"{name}{list(at)} is {got[at]}, not {want[at]}"
                return Outcome(Failure(p.seed, where, f"{text} ({len(wrong)} of {want.size} elements differ)"))
    return Outcome()


FAMILIES = {
    "wide": _built(wide.generate),
    "narrow": _built(generate.generate),
    "products": _described(products.generate, products.ARCHS),
    "lanes": _described(
        lambda seed: fragments.generate(seed) if seed % 4 else lanes.generate(seed), products.ARCHS
    ),
}
