"""The old value of an atomic operation is one for all threads of the instance that executes it: what it decides, they
decide together."""

from __future__ import annotations

import numpy as np
import pytest
from differential import agree

from tilemma import dtypes

# Control flow that the old value ``v`` decides, with accesses to ``o`` that must be ordered between the threads.
CONTROL = {
    "if": "with if_(v == o[0, 1]):\n    o[0, 1] = v + 1",
    "inthreads": "with inthreads(v < o[0, 1]):\n    o[0, 1] = o[0, 0]",
    "a loop's bound": "for k in foreach(v):\n    o[0, 1] = o[0, 1] + k",
    "break": "for k in foreach(4):\n    o[0, 1] = o[0, 1] + k\n    with if_(v + k > 4):\n        break_()",
    "while": "c = var(0)\nwith while_(lambda: c < v):\n    c.set(c + 1)\n    o[0, 1] = o[0, 1] + c",
    "through a variable": "w = var(0)\nwith if_(v > 1):\n    w.set(v)\nwith if_(w == 3):\n    o[0, 1] = o[0, 0] + w",
}
LEVELS = {
    "block": (),
    "group": ("group",),
    "a thread": ("thread",),
    "groups and threads": ("group", "thread"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("control", CONTROL)
def test_decides_for_the_instance(control: str, level: str) -> None:
    levels = ("block", *LEVELS[level])
    lines = [f'{"    " * (d + 1)}for p{d} in parallel(1, level="{name}"):' for d, name in enumerate(levels)]
    body = ['v = var(atomic.add(o[0, 0], 1), "s32")', *CONTROL[control].splitlines()]
    lines += ["    " * (len(levels) + 1) + line for line in body]
    text = "\n".join(["", "@tm.kernel", 'def f(o: tm.Global["s32", 1, 2]):', *lines, ""])
    for first in (0, 3):
        found = agree(None, text, {"o": np.array([[first, 3]], np.int32)}, ("sm_80", "sm_90a"))
        assert not isinstance(found, str), (found, text)


OPERANDS = {
    "value": "atomic.add(o[0, 0], o[0, 0] * 2)",
    "value in a subscript": "atomic.add(o[0, 0], o[0, o[0, 0] % 2])",
    "expected value": "atomic.cas(o[0, 0], o[0, 0], 9)",
    "both": "atomic.cas(o[0, 0], o[0, 0], o[0, 0] + o[0, 1])",
    "of a loop around compare-and-swap": "atomic.max(h[0], h[0] + h[1])",
}


@pytest.mark.parametrize("level", ("block", "group-2", "group", "thread"))
@pytest.mark.parametrize("operand", OPERANDS)
def test_operands_that_the_operation_changes(operand: str, level: str) -> None:
    """The operands are read once, before the operation, however many threads the instance has."""
    levels = ["block"] if level == "block" else ["block", level]
    lines = [f'{"    " * (d + 1)}for p{d} in parallel(1, level="{name}"):' for d, name in enumerate(levels)]
    body = [f'v = var({OPERANDS[operand]}, "s32")', "y[0] = v"]
    if level == "block":
        body = ['for q in parallel(4, level="group"):', "    z[q] = q", *body]
    lines += ["    " * (len(levels) + 1) + line for line in body]
    arrays = 'o: tm.Global["s32", 1, 2], h: tm.Global["s16", 2], y: tm.Global["s32", 1], z: tm.Global["s32", 4]'
    text = "\n".join(["", "@tm.kernel", f"def f({arrays}):", *lines, ""])
    given = {"o": np.array([[2, 3]], np.int32), "h": np.array([2, 3], np.int16)}
    given |= {"y": np.zeros(1, np.int32), "z": np.zeros(4, np.int32)}
    found = agree(None, text, given, ("sm_80", "sm_90a"))
    assert not isinstance(found, str), (found, text)
    assert found["y"][0] == 2


@pytest.mark.parametrize("level", ["group", "group-4"])
def test_each_element_of_an_apply_has_its_own(level: str) -> None:
    """Every lane executes the body of an `apply` for its own elements: no other lane's old value reaches it."""
    text = f"""
@tm.kernel
def f(o: tm.Global["s32", 64, 16], q: tm.Global["s32", 64, 16]):
    for b in parallel(1, level="block"):
        for g in parallel(1, level="{level}"):
            for i, j in apply(mma.frag("f32", 64, 16, init=0.0)):
                v = var(atomic.exch(o[i, j], i * 16 + j), "s32")
                q[i, j] = v * 2 + o[i, j]
"""
    given = {"o": np.arange(7, 7 + 1024, dtype=np.int32).reshape(64, 16), "q": np.zeros((64, 16), np.int32)}
    found = agree(None, text, given, ("sm_80", "sm_90a"))
    assert not isinstance(found, str), found


@pytest.mark.parametrize("t", ("s32", "u32", "s64", "u64"))
def test_keeps_every_bit(t: str) -> None:
    """Old values that need all bits of the type, beside small ones and lanes that take no part."""
    text = f"""
@tm.kernel
def f(a: tm.Global["{t}", 4], o: tm.Global["{t}", 4]):
    for i in parallel(4, level="thread"):
        with if_(i < 3):
            o[i] = var(atomic.add(a[i], 1), "{t}")
"""
    info = np.iinfo(dtypes.BY_NAME[t].numpy)
    before = np.array([info.max, 1, info.min, 7], info.dtype)
    given = {"a": before, "o": np.zeros(4, info.dtype)}
    found = agree(None, text, given, ("sm_80", "sm_90a"))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["o"][:3], before[:3])
