"""Subscripts whose parts leave s32, or are negative, while the subscript itself is a place in the array.

A subscript wraps in s32 like any other integer. An address has more bits: the parts of a subscript must not be widened
one by one where their sum has another value than the subscript.
"""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
from differential import Strided, agree
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples

LEAVES = ("n", "n", "m", "p", "b", "k", "p", "b")
EDGES = (-(2**31), -(2**31) + 1, -1073741824, -7, -1, 0, 1, 5, 1073741823, 2**30, 2**31 - 2, 2**31 - 1)


def subscript(random: Random, extent: int) -> str:
    """An expression over `LEAVES` with a value in [0, extent)."""
    terms = [random.choice(LEAVES)]
    for _ in range(random.randint(0, 3)):
        terms.append(f"{random.choice(LEAVES)} * {random.choice((-(2**16), -6, -2, -1, 1, 2, 3, 7, 2**30))}")
    x = " + ".join(terms)
    if random.random() < 0.3:
        x = f"({x}) * ({random.choice(LEAVES)} - {random.choice(EDGES[1:])})"
    by = random.randint(1, extent)
    form = random.choice(("({0}) - ({0}) // {1} * {1}", "({0}) - tm.math.aligndown({0}, {1})", "({0}) % {1}"))
    reduced = form.format(x, by)
    # Large and negative multiples that cancel each other.
    leaf, factor = random.choice(LEAVES), random.choice((1, 3, 2**20, 2**31 - 1))
    return reduced if random.random() < 0.7 else f"{leaf} * {factor} + ({reduced}) - {leaf} * {factor}"


def cut(random: Random, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """A view of the array ``name`` and its shape."""
    text = name
    if random.random() < 0.6:
        parts = random.choice(((prod(shape),), (prod(shape) // shape[-1], shape[-1]), (shape[0], prod(shape[1:]))))
        text, shape = f"{text}.span_as({', '.join(map(str, parts))})", parts
    if random.random() < 0.6:
        inner = tuple(random.randint(1, n) for n in shape)
        at = [subscript(random, n // m) for n, m in zip(shape, inner, strict=True)]
        text, shape = f"{text}.subspan({', '.join(map(str, inner))}).at({', '.join(at)})", inner
    return text, shape


def program(random: Random) -> tuple[str, dict[str, Any]]:
    shape = tuple(random.randint(2, 6) for _ in range(random.randint(1, 3)))
    extents = ", ".join(map(str, shape))
    source = random.choice(("x", "x", "shared", "local"))
    lines = []
    if source != "x":
        lines = [f's = {source}("s32", {extents})', "dma.copy(x, s)"]
    lines += ['for p in parallel(4, level="thread"):', "    for k in foreach(3):"]
    for i in range(3):
        text, of_view = cut(random, "x" if source == "x" else "s", shape)
        at = ", ".join(subscript(random, n) for n in of_view)
        lines.append(f"        y[{i}, b, p, k] = {text}[{at}]")
    python = f"""
@tm.kernel
def f(x: tm.Global["s32", {extents}], y: tm.Global["s32", 3, 2, 4, 3], n: tm.Scalar["s32"], m: tm.Scalar["s32"]):
    for b in parallel(2, level="block"):
""" + "".join(f"        {line}\n" for line in lines)
    values = np.arange(prod(shape), dtype=np.int32).reshape(shape) + 1
    order = list(range(len(shape)))
    random.shuffle(order)
    x = values if random.random() < 0.3 else Strided(values, (1,) * len(shape), tuple(order))
    y = np.zeros((3, 2, 4, 3), np.int32)
    return python, {"x": x, "y": y, "n": random.choice(EDGES), "m": random.choice(EDGES)}


@settings(max_examples=examples(60), deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_a_place_is_the_same_on_every_target(random: Random) -> None:
    python, arrays = program(random)
    found = agree(None, python, arrays, (random.choice(("sm_80", "sm_90a")),))
    assert not isinstance(found, str), (found, python)
    assert (found["y"] > 0).all(), python


SUMS = ("n", "b - p", "n + p", "n * 2 + m", "n - m * 3 - p", "n + k - b * 7", "m * n - p", "k * 2**30 * 2 + n")
VIEWS = {
    "x": (5, 6), "x.span_as(30)": (30,), "x.span_as(6, 5)": (6, 5), "x.span_as(30).subspan(7).at(p % 2)": (7,),
    "x.subspan(2, 3).at(b, p % 2)": (2, 3), "x.view(3, 2).from_(k % 2, (n - p) - (n - p) // 3 * 3)": (3, 2),
}  # fmt: skip


@pytest.mark.parametrize("order", ((0, 1), (1, 0)))
@pytest.mark.parametrize("view", VIEWS)
def test_sums_that_wrap_or_are_negative(view: str, order: tuple[int, ...]) -> None:
    """A remainder is a place, though the dividend and the multiple that is taken off are not."""
    reduced = [
        ", ".join(f"({e}) - ({e}) // {by} * {by}" for by in (min(d, extent) for extent in VIEWS[view]))
        for e in SUMS
        for d in (2, 5)
    ]
    stores = "".join(f"            y[{i}, b, p, k] = {view}[{at}]\n" for i, at in enumerate(reduced))
    python = f"""
@tm.kernel
def f(x: tm.Global["s32", 5, 6], y: tm.Global["s32", {len(reduced)}, 2, 4, 2], n: tm.Scalar["s32"], m: tm.Scalar["s32"]):
    for b in parallel(2, level="block"):
        for p in parallel(4, level="thread"):
          for k in foreach(2):
{stores}"""
    x = Strided(np.arange(30, dtype=np.int32).reshape(5, 6) + 1, (1, 1), order)
    y = np.zeros((len(reduced), 2, 4, 2), np.int32)
    for n, m in ((-(2**31) + 1, 3), (2**31 - 1, -(2**31)), (2**30 + 1, 2**31 - 2)):
        found = agree(None, python, {"x": x, "y": y, "n": n, "m": m}, ("sm_80",))
        assert not isinstance(found, str), found
        assert (found["y"] > 0).all()
