"""Lanes that go different ways, and variables of an outer scope that each lane sets: the reference runs them as PTX."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from differential import Lines, agree, croqtile_kernel, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples

LEVELS = {
    "block": ((), 32),
    "group": ((("w", 2, "group"),), 32),
    "group-4": ((("w", 2, "group-4"),), 128),
}


def program(random: Random, level: str) -> tuple[str, str]:
    line = Lines("x|o")
    around, lanes = LEVELS[level]
    line(0, "__co__ void f(global s32 [256] x, global s32 [256] o) { parallel b by 1 : block {", "@tm.kernel")
    line(0, "", 'def f(x: tm.Global["s32", 256], o: tm.Global["s32", 256]):')
    line(1, "", 'for b in parallel(1, level="block"):')
    depth = 2
    for name, n, kind in around:
        line(depth, f"parallel {name} by {n} : {kind} {{", f'for {name} in parallel({n}, level="{kind}"):')
        depth += 1
    line(depth, "mutable int v = 1;", "v = var(1)")
    at = f"(w * {lanes} + l) % 256" if around else "l"
    for _ in range(random.randint(1, 3)):
        repeated = random.random() < 0.4
        inner = depth
        if repeated:
            k = f"k{random.randint(0, 10**6)}"
            line(inner, f"foreach {k} in 2 {{", f"for {k} in foreach(2):")
            inner += 1
        line(inner, f"parallel l by {lanes} : thread {{", f'for l in parallel({lanes}, level="thread"):')
        for _ in range(random.randint(1, 3)):
            bound = random.randint(0, lanes)
            condition = random.choice((f"l < {bound}", f"x[{at}] > 0", f"(l + {bound}) % 3 == 1"))
            role = random.random() < 0.6
            body = random.choice(("v", "o", "both"))
            line(inner + 1, f"{'inthreads' if role else 'if'} ({condition}) {{",
                 f"with {'inthreads' if role else 'if_'}({condition}):")  # fmt: skip
            if body != "o":
                line(inner + 2, f"v = v * 3 + x[{at}];", f"v.set(v * 3 + x[{at}])")
            if body != "v":
                line(inner + 2, f"o[{at}] = o[{at}] + v;", f"o[{at}] = o[{at}] + v")
            line(inner + 1, "}", "")
        line(inner, "}", "")
        if repeated:
            line(depth, "}", "")
        if random.random() < 0.3:
            line(depth, "v = 5;", "v.set(5)")
    line(depth, f"parallel l by {lanes} : thread {{", f'for l in parallel({lanes}, level="thread"):')
    line(depth + 1, f"o[{at}] = o[{at}] * 2 + v;", f"o[{at}] = o[{at}] * 2 + v")
    line(depth, "}", "")
    line(0, "}" * (2 + len(around)), "")
    return line.co, line.python


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=examples(36), deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_lanes_apart(level: str, random: Random) -> None:
    co, python = program(random, level)
    x = np.random.default_rng(0).integers(-3, 4, 256).astype(np.int32)
    found = agree(co, python, {"x": x, "o": np.zeros(256, np.int32)})
    assert not isinstance(found, str), f"{found}\n{co}"


# Statements of a block, after `v = 0` and before `o[0] = o[0] + v`; whether the block has one value of `v` then.
VALUES = {
    "each lane has its own": ("parallel l by 32 : thread { v = x.at(l); }", False),
    "each lane has its own, through another variable": (
        "parallel l by 32 : thread { int w = l; if (w < 5) { v = 7; } }", False,
    ),
    "each group has its own": ("parallel w by 2 : group { v = w; }", False),
    "some threads have it": ("parallel w by 1 : group { v = 3; } parallel w by 2 : group { o.at(9 + w) = 1; }", False),
    "read by other lanes": ("parallel l by 32 : thread { v = l; } parallel m by 16 : thread { o.at(m) = v; }", False),
    "read before it is set again": ("foreach i in 2 { o.at(1) = v; parallel l by 32 : thread { v = l; } }", False),
    "all threads have it": ("parallel l by 32 : thread { v = x.at(3); }", True),
    "set again": ("parallel l by 32 : thread { v = l; } v = x.at(3);", True),
    "an equal level": (
        "parallel w by 2 : group { v = w + 5; } parallel w by 2 : group { o.at(3 + w) = v; } v = 0;", True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_a_value_of_inner_instances_is_not_read_outside(case: str, target: str) -> None:
    """The scope that declares a variable has one value; which of the instances' it should be is not said."""
    statements, one_value = VALUES[case]
    text = f"""
    __co__ void f(global s32 [32] x, global s32 [32] o) {{ parallel b by 1 : block {{
      mutable int v = 0;
      {statements}
      o.at(0) = o.at(0) + v;
    }} }}"""
    given = {"x": np.arange(32, dtype=np.int32), "o": np.zeros(32, np.int32)}
    found = outcome(croqtile_kernel(text), target, "sm_80" if target == "machine" else "", given)
    if not one_value:
        assert found == "variable-set-inside"
    else:
        assert not isinstance(found, str), found
        if case == "an equal level":
            assert found["o"][3:5].tolist() == [5, 6]
