"""A float that a program writes has the value of its place, rounded once: 0.1 in an f64 is the double 0.1."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

from tilemma import croqtile
from tilemma.kernels import Kernel

# What the place of the literal is; the statement in both languages, `x` being an f64 that holds 0.
PLACES = {
    "element": ("o.at(0) = 0.1;", "o[0] = 0.1"),
    "variable": ("f64 v = 0.1; o.at(0) = v;", "v = var(0.1, 'f64')\n        o[0] = v"),
    "set": ("f64 v = x; v = 0.1; o.at(0) = v;", "v = var(x, 'f64')\n        v.set(0.1)\n        o[0] = v"),
    "updated": ("f64 v = x; v += 0.1; o.at(0) = v;", "v = var(x, 'f64')\n        v += 0.1\n        o[0] = v"),
    "beside": ("o.at(0) = x + 0.1;", "o[0] = x + 0.1"),
    "select": ("o.at(0) = x == 0.0 ? 0.1 : x;", "o[0] = select(x == 0.0, 0.1, x)"),
    "initial": ("local f64 [1] l {0.1}; o.at(0) = l.at(0);", "l = local('f64', 1, init=0.1)\n        o[0] = l[0]"),
    "max": ("o.at(0) = __max(x, 0.1);", "o[0] = tm.math.max(x, 0.1)"),
    "min": ("o.at(0) = __min(0.1, x + 1.0);", "o[0] = tm.math.min(0.1, x + 1.0)"),
    "fma": ("o.at(0) = __fmaf(x, 3.0, 0.1);", "o[0] = tm.math.fma(x, 3.0, 0.1)"),
    "atomic": ("__atomic_add(o.at(0), 0.1);", "atomic.add(o[0], 0.1)"),
    "exchanged": ("__atomic_exch(o.at(0), 0.1);", "atomic.exch(o[0], 0.1)"),
    "padding": (
        "f = dma.pad<{1}, {0}, {0}, 0.1> a => shared; o.at(0) = f.data.at(0);",
        "f = dma.copy(a, to='shared', pad=((1, 0, 0),), pad_value=0.1)\n        o[0] = f.data[0]",
    ),
}


def co(statement: str) -> Kernel:
    text = f"__co__ void k(global f64 [1] o, global f64 [1] a) {{ parallel by 1 : block {{ x = a.at(0); {statement} }} }}"
    return Kernel(croqtile.load(text, "literal.co").sources["k"])


def python(statement: str) -> Kernel:
    text = "\n".join(
        (
            "import tilemma as tm",
            "from tilemma import *",
            "@tm.kernel",
            "def k(o: tm.Global['f64', 1], a: tm.Global['f64', 1]):",
            "    for p in parallel(1, level='block'):",
            "        x = a[0]",
            f"        {statement}",
        )
    )
    linecache.cache["<literal>"] = (len(text), None, text.splitlines(keepends=True), "<literal>")
    scope: dict[str, Any] = {}
    exec(compile(text, "<literal>", "exec"), scope)
    kernel: Kernel = scope["k"]
    return kernel


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("language", ["croqtile", "python"])
def test_a_double_keeps_all_its_digits(place: str, language: str) -> None:
    kernel = co(PLACES[place][0]) if language == "croqtile" else python(PLACES[place][1])
    for target in ("cpu", "machine"):
        o, a = np.zeros(1), np.zeros(1)
        kernel.on(target)(o, a)
        assert o[0] == 0.1, target
