"""`tilemma check` without `--shape` of a kernel with persistent blocks: a run with fewer blocks.

With its own number of blocks each block would compute one tile of a small problem, and the code between two tiles
would not run.  The kernel is therefore compiled once more, with so few blocks that each computes several tiles.
The two PTX texts are compared: they may differ in the number of blocks only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tilemma.compiler import Compiled
from tilemma.ir import tile as t
from tilemma.ir.expr import Dim, Expr
from tilemma.ir.expr import walk as parts
from tilemma.ir.usage import size
from tilemma.launch import evaluate
from tilemma.records import record
from tilemma.targets.ptx.passes.persistent_grid import FewerBlocks, fewer_blocks
from tilemma.tools.sizes import Sizes, around_rings, tile_extents

# Tiles by which a dimension grows in one step, at most: clusters take several at a time.
_AT_ONCE = 8
# Whole numbers that are no part of a name.
_NUMBER = re.compile(r"(?<![\w.%$])(\d+)(?!\w)")


@record
class FewBlocks:
    """``compiled`` has at most ``fewer`` persistent blocks or clusters in place of ``most``, else the same code.

    ``source``: the kernel before decisions, with fewer blocks too where the program states their number.
    ``sizes``: candidates, from small to large, at which some block computes several tiles.
    """

    source: t.Kernel
    compiled: Compiled
    most: int
    fewer: int
    sizes: tuple[Sizes, ...]


def few_blocks(source: t.Kernel, compiled: Compiled, sizes: Sizes, scalars: Mapping[str, Any]) -> FewBlocks | None:
    """``compiled`` with few persistent blocks; None if it has no such blocks, or would differ in more than that.

    ``sizes``: of a problem in which each block computes one tile.
    """
    found = fewer_blocks(compiled.kernel)
    if found is None:
        return None
    other = replace(compiled, decided=found.kernel, seconds={})
    numbers = _numbers(found)
    plans = [[json.dumps(x.to_json()) for x in c.launches] for c in (compiled, other)]
    if not all(_same_but(a, b, numbers) for a, b in zip(*plans, strict=True)):
        return None
    if not _same_but(compiled.ptx, other.ptx, numbers):
        return None
    larger = tuple(_larger(source, found, sizes, scalars))
    written = fewer_blocks(source)
    source = written.kernel if written is not None else source
    return FewBlocks(source, other, found.most, found.fewer, larger) if larger else None


def _numbers(found: FewerBlocks) -> set[tuple[str, str]]:
    """The constants in which the code may differ: the number, one less, and its logarithm where it is whole."""
    n, m = found.most, found.fewer
    pairs = {(n, m), (n - 1, m - 1)}
    if n & (n - 1) == 0:
        pairs.add((n.bit_length() - 1, m.bit_length() - 1))
    return {(str(a), str(b)) for a, b in pairs}


def _same_but(text: str, other: str, numbers: set[tuple[str, str]]) -> bool:
    """Whether the texts differ in pairs of whole ``numbers`` alone."""
    first, second = _NUMBER.split(text), _NUMBER.split(other)
    if len(first) != len(second):
        return False
    differing = ((i, a, b) for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    # Each second part is a number.
    return all(i % 2 == 1 and (a, b) in numbers for i, a, b in differing)


def _larger(source: t.Kernel, found: FewerBlocks, sizes: Sizes, scalars: Mapping[str, Any]) -> Iterator[Sizes]:
    """Sizes at which some block computes two tiles; then with more iterations for each tile too."""
    for tiles in found.tiles:
        grown = _grown(source, tiles, found.fewer + 1, sizes, scalars)
        if grown is None:
            return
        sizes = grown
    yield sizes
    longer = around_rings(source, found.kernel, sizes)
    if longer != sizes:
        yield longer


def _grown(source: t.Kernel, tiles: Expr, wanted: int, sizes: Sizes, scalars: Mapping[str, Any]) -> Sizes | None:
    """``sizes`` with ``tiles`` at least ``wanted``, by whole tiles of the dimensions that increase it most."""
    extents = tile_extents(source)
    names = [name for name in dict.fromkeys(x.name for x in parts(tiles) if isinstance(x, Dim)) if name in extents]

    def count(of: Sizes) -> int:
        return evaluate(size(tiles), {**scalars, **of})

    while count(sizes) < wanted:
        steps = ({**sizes, n: sizes[n] + k * extents[n]} for k in range(1, _AT_ONCE + 1) for n in names)
        better = [x for x in steps if count(x) > count(sizes)]
        if not better:
            return None
        sizes = min(better, key=lambda x: (sum(x.values()) - sum(sizes.values())) / (count(x) - count(sizes)))
    return sizes
