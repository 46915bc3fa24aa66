"""Canonical names: kernels are compared up to the names of their declarations."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from ir_strategies import tile_kernels

from tests.sampling import examples
from tilemma.ir.canonical import canonical
from tilemma.ir.parser import parse_kernel
from tilemma.ir.printer import print_kernel
from tilemma.ir.tile import Kernel

TEXT = """kernel f(global f16 a[M], n: s32) {
  parallel (i: M) : block {
    alloc shared f16 s[8]
    event e
    fragment %x
    var v: s32 = n
    copy.dma a[i +: 8] => s {asynchronous = true, future = g}
    wait_future (g)
    load %x, s
    wait e
    element a[v] = s[i]
  }
}
"""
OWN = ("i", "s", "e", "x", "v", "g")


def renamed(table: dict[str, str]) -> Kernel:
    return parse_kernel(re.sub(r"\b\w+\b", lambda m: table.get(m.group(), m.group()), TEXT))


def test_own_names_do_not_matter() -> None:
    other = renamed({n: f"{n}_other" for n in OWN})
    swapped = renamed({"i": "v", "v": "i"})
    assert other != parse_kernel(TEXT) != swapped
    assert canonical(other) == canonical(parse_kernel(TEXT)) == canonical(swapped)


@pytest.mark.parametrize(("old", "new"), [("a", "b"), ("n", "m"), ("M", "N"), ("f", "h")])
def test_names_that_callers_see_do(old: str, new: str) -> None:
    assert canonical(renamed({old: new})) != canonical(parse_kernel(TEXT))


@pytest.mark.parametrize(("old", "new"), [("a[v]", "a[i]"), ("a[i +: 8]", "a[v +: 8]"), ("= s[i]", "= s[v]")])
def test_which_name_is_used_does(old: str, new: str) -> None:
    assert canonical(parse_kernel(TEXT.replace(old, new))) != canonical(parse_kernel(TEXT))


def test_places_do_not_matter() -> None:
    assert all(op.span is None for op in canonical(parse_kernel(TEXT)).body)


@settings(deadline=None, max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])
@given(tile_kernels())
def test_canonical_again_changes_nothing(kernel: Kernel) -> None:
    once = canonical(kernel)
    assert canonical(once) == once
    assert parse_kernel(print_kernel(once)) == once
