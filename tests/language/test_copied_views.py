"""Copies of views of views, from one to four dimensions, whatever the strides of the arrays."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
from differential import Strided, agree
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples


@dataclass(frozen=True)
class Tile:
    """A tile in both spellings: ``free`` views may reach over the edge; ``whole`` ones can be read in another shape."""

    co: str
    python: str
    shape: tuple[int, ...]
    free: bool
    whole: bool

    def then(self, co: str, python: str, shape: tuple[int, ...], whole: bool = False) -> Tile:
        return Tile(self.co + co, self.python + python, shape, self.free, whole)


# The chunks of a dimension; `c` is an index over them.
CHUNKS = 2


def text(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def factors(random: Random, total: int) -> tuple[int, ...]:
    """A shape of ``total`` elements."""
    shape: list[int] = []
    while len(shape) < 3 and random.random() < 0.8:
        n = random.choice([d for d in (1, 2, 3, 4, 6) if total % d == 0])
        shape.append(n)
        total //= n
    shape.insert(random.randrange(len(shape) + 1), total)
    return tuple(shape)


def cut(random: Random, tile: Tile) -> Tile:
    """Another view of ``tile``."""
    kind = random.choice(
        ("span_as", "span_as", "subspan", "strided", "view", "chunkat", "modspan", "stepped", "sqz", "none")
    )
    shape = tile.shape
    if kind == "span_as" and tile.whole:
        new = factors(random, prod(shape))
        return tile.then(f".span_as([{text(new)}])", f".span_as({text(new)})", new, True)
    if kind == "sqz":
        kept = tuple(n for n in shape if n != 1)
        return tile.then(".sqz()", ".sqz()", kept) if kept and kept != shape else tile
    room = 2 if tile.free else 0
    small = tuple(random.randint(1, n) for n in shape)
    if kind == "subspan":
        at = tuple(random.randint(0, max(0, n // m - 1 + room)) for n, m in zip(shape, small, strict=True))
        call = f".subspan({text(small)}).at({text(at)})"
        return tile.then(call, call, small)
    if kind == "modspan":
        at = tuple(random.randint(0, (n - 1) // m) for n, m in zip(shape, small, strict=True))
        call = f".modspan({text(small)}).at({text(at)})"
        rest = tuple(min(m, n - i * m) for n, m, i in zip(shape, small, at, strict=True))
        return tile.then(call, call, rest)
    if kind == "chunkat":
        cut_up = [n % CHUNKS == 0 and random.random() < 0.7 for n in shape]
        indices = ["c" if chosen else "_" for chosen in cut_up]
        parts = tuple(n // CHUNKS if chosen else n for n, chosen in zip(shape, cut_up, strict=True))
        call = f".chunkat({', '.join(indices)})"
        return tile.then(call, call.replace("_", "full"), parts)
    if kind == "stepped":
        at = tuple(random.randint(0, n - m + room) for n, m in zip(shape, small, strict=True))
        ones = text((1,) * len(shape))
        call = f".subspan({text(small)}).step({ones}).at({text(at)})"
        return tile.then(call, call, small)
    if kind == "strided":
        steps = tuple(random.randint(1, 2) for _ in shape)
        small = tuple(random.randint(1, (n - 1) // k + 1) for n, k in zip(shape, steps, strict=True))
        zeros = text((0,) * len(shape))
        return tile.then(
            f".subspan({text(small)} : {text(steps)}).at({zeros})",
            f".subspan({text(small)}, strides=({text(steps)},)).at({zeros})",
            small,
        )
    if kind == "view":
        first = tuple(random.randint(0, n - m + room) for n, m in zip(shape, small, strict=True))
        return tile.then(
            f".view({text(small)}).from({text(first)})", f".view({text(small)}).from_({text(first)})", small
        )
    return tile


def program(random: Random) -> tuple[str, str, dict[str, Any]]:
    """x => a buffer => y, with views on the way, by the level that the program is at."""
    of_x = factors(random, random.choice((12, 24, 36, 30)))
    t = random.choice(("s32", "s16", "f32", "u8"))
    source = Tile("x", "x", of_x, True, True)
    for _ in range(random.randint(0, 3)):
        source = cut(random, source)
    space = random.choice(("shared", "shared", "local", "array"))
    lines: list[tuple[str, str]] = []
    if space == "array":
        middle = source
    elif random.random() < 0.5:
        lines.append((f"s = dma.copy {source.co} => {space};", f's = dma.copy({source.python}, to="{space}")'))
        middle = Tile("s.data", "s.data", source.shape, False, True)
    else:
        shape = factors(random, prod(source.shape)) if source.whole else source.shape
        lines.append((f"{space} {t} [{text(shape)}] s;", f's = {space}("{t}", {text(shape)})'))
        into = Tile("s", "s", shape, False, True)
        if shape != source.shape:
            into = into.then(f".span_as([{text(source.shape)}])", f".span_as({text(source.shape)})", source.shape)
        lines.append((f"dma.copy {source.co} => {into.co};", f"dma.copy({source.python}, {into.python})"))
        middle = Tile("s", "s", shape, False, True)
    for _ in range(random.randint(0, 2)):
        middle = cut(random, middle)
    of_y = tuple(n + random.randint(0, 2) for n in middle.shape)
    target = Tile("y", "y", of_y, True, True)
    at = tuple(random.randint(0, 2) for _ in of_y)
    if random.random() < 0.3:  # axes of extent 1 do not count
        kept = [n for n in middle.shape if n != 1]
        kept.insert(random.randrange(len(kept) + 1), 1)
        of_y, target = tuple(kept), Tile("y", "y", tuple(kept), True, True)
    elif of_y != middle.shape or any(at):
        target = target.then(
            f".view({text(middle.shape)}).from({text(at)})",
            f".view({text(middle.shape)}).from_({text(at)})",
            middle.shape,
        )
    lines.append((f"dma.copy {middle.co} => {target.co};", f"dma.copy({middle.python}, {target.python})"))
    level = random.choice(("block", "group", "thread"))
    extent = {"block": 0, "group": 1, "thread": 1}[level]
    inner = f"parallel w by {extent} : {level} {{ " if extent else "{ "
    co = [
        f"__co__ void f(global {t} [{text(of_x)}] x, global {t} [{text(of_y)}] y) {{ parallel b by 1 : block {inner}"
    ]
    python = [
        "@tm.kernel",
        f'def f(x: tm.Global["{t}", {text(of_x)}], y: tm.Global["{t}", {text(of_y)}]):',
        '    for b in parallel(1, level="block"):',
        f'        for w in parallel({extent}, level="{level}"):' if extent else "        if True:",
    ]
    chunked = any("chunkat" in a for a, _ in lines)
    co.append(f"foreach c in {CHUNKS} {{" if chunked else "{")
    python.append(f"            for c in foreach({CHUNKS}):" if chunked else "            if True:")
    for a, b in lines:
        co.append("  " + a)
        python.append("                " + b)
    kind = {"s32": np.int32, "s16": np.int16, "f32": np.float32, "u8": np.uint8}[t]
    x = (np.arange(prod(of_x)) % 100 + 1).astype(kind).reshape(of_x)
    y = np.full(of_y, 55, kind)
    given = {"x": arranged(random, x), "y": arranged(random, y)}
    return "\n".join([*co, "} } }"]), "\n".join(python) + "\n", given


def arranged(random: Random, values: Any) -> Any:
    """``values`` dense in memory, or with gaps, or with its dimensions in another order."""
    if random.random() < 0.5:
        return values
    order = list(range(values.ndim))
    if random.random() < 0.5:
        random.shuffle(order)
    return Strided(values, tuple(random.randint(1, 3) for _ in order), tuple(order))


@settings(max_examples=examples(70), deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_copies_mean_the_same_everywhere(random: Random) -> None:
    co, python, arrays = program(random)
    agree(co, python, arrays, (random.choice(("sm_80", "sm_90a")),))


def test_the_generator_draws_every_view() -> None:
    """A kind that never comes out right, or never comes out at all, tests nothing."""
    drawn: dict[str, int] = {}
    for seed in range(40):
        co, python, arrays = program(Random(seed))
        kinds = [
            k
            for k in ("span_as", ".at(", "strides", ".from(", "chunkat", "modspan", "step", "sqz")
            if k in co + python
        ]
        if any(k not in drawn for k in kinds):
            accepted = not isinstance(agree(co, python, arrays, ("sm_80",)), str)
            drawn |= {k: 1 for k in kinds if accepted}
    assert len(drawn) == 8, drawn


COPIES = {
    "span_as": ("dma.copy x.span_as([2, 6]) => shared", (3, 4), (2, 6)),
    "span_as of another rank": ("dma.copy x.span_as(12) => shared", (3, 4), (12,)),
    "past the edge of another shape": (
        "dma.copy x.span_as([2, 6]).subspan(2, 4).at(0, 1) => shared",
        (3, 4),
        (2, 4),
    ),
    "local": ("dma.copy x => local", (3, 4), (3, 4)),
    "local of another shape": ("dma.copy x.span_as([6, 2]) => local", (3, 4), (6, 2)),
}


@pytest.mark.parametrize("level", ("block", "group", "group-4", "thread"))
@pytest.mark.parametrize("name", COPIES)
def test_through_a_buffer(name: str, level: str) -> None:
    copy, of_x, of_y = COPIES[name]
    inner = "{" if level == "block" else f"parallel w by 1 : {level} {{"
    x = np.arange(prod(of_x), dtype=np.int32).reshape(of_x) + 1
    wanted = x.reshape(2, 6)[:, 4:] if "past" in name else x.reshape(of_y)
    wanted = np.pad(wanted, [(0, n - m) for n, m in zip(of_y, wanted.shape, strict=True)])
    text_ = f"""
    __co__ void f(global s32 [{text(of_x)}] x, global s32 [{text(of_y)}] y) {{ parallel b by 1 : block {inner}
      s = {copy};
      dma.copy s.data => y;
    }} }}"""
    found = agree(text_, None, {"x": x, "y": np.zeros(of_y, np.int32)}, ("sm_80", "sm_90a"))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["y"], wanted)


def test_each_group_has_its_own_local_copy() -> None:
    for copy in ("f = dma.copy.async x.subspan(1, 4).at({w}, 0) => local; wait f;", "f = dma.copy x => local;"):
        copy = copy.format(w="w" if "async" in copy else "")
        rows = 1 if "async" in copy else 2
        text_ = f"""
        __co__ void f(global s32 [2, 4] x, global s32 [2, 2, 4] y) {{ parallel b by 1 : block, w by 2 : group {{
          {copy}
          foreach {{i, j}} in [{rows}, 4] {{ f.data.at(i, j) = f.data.at(i, j) * 10 + w; }}
          dma.copy f.data => y.subspan(1, {rows}, 4).at(w, 0, 0);
        }} }}"""
        x = np.arange(8, dtype=np.int32).reshape(2, 4)
        found = agree(text_, None, {"x": x, "y": np.zeros((2, 2, 4), np.int32)}, ("sm_80", "sm_90a"))
        assert not isinstance(found, str), found
        for w in range(2):
            np.testing.assert_array_equal(found["y"][w, :rows], (x[w : w + 1] if rows == 1 else x) * 10 + w)
