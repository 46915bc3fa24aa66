"""Programs that others than the language's tests have: the gallery, random calls of `tilemma.ops`, random pipelines.

``recorded/library.txt`` has their digests (see `digests`).  An entry is `gallery NAME ARCH`, `FAMILY SEED ARCH` with
a family of `CALLS`, or `pipelined SEED ARCH`.
"""

# ruff: noqa: E402
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [x for x in (str(ROOT), str(ROOT / "tests" / "ops")) if x not in sys.path]

import cases
import typed_cases
from digests import Traced
from test_product_forms import FORMS, TILES, share

from dev.fuzz import pipelined
from dev.gallery import ENTRIES
from dev.gallery import kernel as gallery_kernel
from tilemma import croqtile, ops
from tilemma.kernels import Kernel, facts_of

ARCHS = ("sm_80", "sm_90a")
Called = tuple[Kernel, tuple[Any, ...], dict[str, Any]]


@contextmanager
def recorded_calls() -> Iterator[list[Called]]:
    """The kernels that are called inside, with arguments and constants; none runs."""
    found: list[Called] = []
    before = Kernel.on
    Kernel.on = lambda kernel, target, **options: (
        lambda *args, **constants: found.append((kernel, args, constants))
    )
    try:
        yield found
    finally:
        Kernel.on = before


def _product(seed: int) -> None:
    x = cases.case(seed)
    with cases.any_plan(seed):
        ops.matmul(x.a, x.b, out=x.out, c=x.c, bias=x.bias, **x.options)


def _typed_product(seed: int) -> None:
    x = typed_cases.case(seed)
    given = dict(x.arrays)
    operands = [given.pop(n) for n in ("a", "b", "offsets") if n in given]
    with cases.any_plan(seed):
        getattr(ops, x.function)(*operands, **given, **x.options)


CALLS: dict[str, Callable[[int], Any]] = {"product": _product, "typed": _typed_product}
CALLS |= {name: lambda seed, name=name: share(name, seed) for name in FORMS}
# Of the first ones those that have kernels, without their like.
SEEDS: dict[str, Sequence[int]] = {
    "product": (2, 5, 7, 11, 13, 17, 20, 22, 23), "typed": (0, 2, 5, 6, 8, 15, 17, 18, 19, 23, 29, 30, 33, 34, 35),
    **dict.fromkeys(FORMS, range(6)), "pipelined": range(30),
}  # fmt: skip


def entries() -> list[str]:
    found = [f"gallery {e.name} {arch}" for e in ENTRIES.values() for arch in ARCHS if arch >= e.oldest]
    return found + [f"{family} {seed} {ARCHS[seed % 2]}" for family, seeds in SEEDS.items() for seed in seeds]


def traced(entry: str) -> Iterator[Traced]:
    """The kernels of an entry, compiled, each once."""
    family, name, arch = entry.split()
    if family == "gallery":
        yield Traced(gallery_kernel(name), arch, {}, {}, ENTRIES[name].example)
        return
    seed = int(name)
    if family == "pipelined":
        text = pipelined.generate(seed).croqtile
        yield Traced(Kernel(croqtile.load(text, f"{entry}.co", {}).sources["k"]), arch, {}, {})
        return
    with recorded_calls() as called, np.errstate(all="ignore"):
        CALLS[family](seed)
    known = set()
    for kernel, args, constants in called:
        tile = TILES[family][seed // 2 % 2] if family in TILES else {}
        constants |= {n: v for n, v in tile.items() if n in constants}
        arrays = [p.buffer.name for p in kernel.build(**constants).arrays]
        facts = facts_of(dict(zip(arrays, args, strict=False)))
        key = str((kernel.name, constants, facts))
        if key not in known:
            known.add(key)
            # Only sm_90a has the instructions of pipelined products.
            yield Traced(kernel, "sm_90a" if "STAGES" in constants else arch, facts, constants)


def library_digests(entry: str) -> str:
    return " ".join(map(str, traced(entry)))
