"""Advice about calls of the package's functions and about values of a run: followed, the same call works."""

# A case is easier to read on one line.
# ruff: noqa: E501
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensor_layouts import Layout

sys.path.insert(0, str(Path(__file__).parent / "language"))
from test_advice import co, py

import tilemma as tm
from tilemma.errors import TilemmaError
from tilemma.layouts import shared_layout, tile_to_shape
from tilemma.tools.show_atoms import list_atoms

PARAMETERS = "global f32 [4] x, global f32 [4] y, int n"


def run(text: str) -> Callable[[], Any]:
    """The statements of a block on the CPU, with n = 3."""

    def call() -> Any:
        y = np.zeros(4, np.float32)
        co(f"parallel p by 1 : block {{ {text} }}", PARAMETERS)(np.ones(4, np.float32), y, 3)
        return y

    return call


def kernel(body: str) -> Any:
    return py(f"for p in parallel(1, level='block'):\n    {body}", 'y: tm.Global["f32", 4]')


def called(name: str) -> Callable[[], Any]:
    return lambda: kernel("y[0] = 1.0").on(name)(np.zeros(4, np.float32))


def two(decorated: bool) -> Callable[[], Any]:
    """A kernel that calls another function."""
    mark = "@tm.kernel\n" if decorated else ""

    def call() -> Any:
        text = (
            f"import tilemma as tm\nfrom tilemma import *\n{mark}def part(y: tm.Global['f32', 4]):\n    y[1] = 2.0\n"
            "@tm.kernel\ndef k(y: tm.Global['f32', 4]):\n    for p in parallel(1, level='block'):\n        part(y)\n"
        )
        names: dict[str, Any] = {}
        exec(text, names)
        return names["k"](np.zeros(4, np.float32))

    return call


class Target:
    def run(self, *args: Any, **keywords: Any) -> None:
        pass


def registered(name: Any, target: object) -> Callable[[], Any]:
    def call() -> Any:
        try:
            tm.targets.register(name, target)
        finally:
            tm.targets._registered.pop(name, None)

    return call


ROLES = "parallel g by 2 : group { inthreads.async (g == 0) { A } inthreads.async (g == 1) { B } } y.at(0) = 1.0f;"


def roles(declared: str, a: str, b: str) -> Callable[[], Any]:
    return run(declared + ROLES.replace("{ A }", f"{{ {a} }}").replace("{ B }", f"{{ {b} }}"))


ATOM = Layout((8, 64), (64, 1))


def tuned(name: str, *values: int) -> Callable[[], Any]:
    k = py("for p in parallel(cdiv(4, ROWS), level='block'):\n    y[p] = 1.0", 'y: tm.Global["f32", 4], *, ROWS')
    return lambda: k.tune(np.zeros(4, np.float32), space={name: list(values)}, measure=lambda run: run() or 1.0)


# code, part of the advice, the wrong call, the call with the advice followed.
CASES: list[tuple[str, str, Callable[[], Any], Callable[[], Any]]] = [
    ("unwritten-read", "write or copy to `s` first", run("shared f32 [4] s; y.at(0) = s.at(0);"), run("shared f32 [4] s; s.at(0) = 1.0f; y.at(0) = s.at(0);")),
    ("unwritten-read", "or give it an initial value", run("shared f32 [4] s; y.at(0) = s.at(0);"), run("shared f32 [4] s {0.0f}; y.at(0) = s.at(0);")),
    ("slot-outside", "index it modulo its number of slots", run("shared f32 [4] s[2]; foreach i in n { s[i].at(0) = 1.0f; }"), run("shared f32 [4] s[2]; foreach i in n { s[i % 2].at(0) = 1.0f; }")),
    ("write-conflict", "give each its own place", run("parallel t by 4 : thread { y.at(0) = t; }"), run("parallel t by 4 : thread { y.at(t) = t; }")),
    ("write-conflict", "or use an atomic operation", run("parallel t by 4 : thread { y.at(0) = t; }"), run("parallel t by 4 : thread { __atomic_max(y.at(0), __to<f32>(t)); }")),
    ("deadlock", "that every wait has its trigger", run("shared event e; if (n > 5) { trigger e; } wait e;"), run("shared event e; trigger e; wait e;")),
    ("deadlock", "(`= ready`)", run("shared event e; if (n > 5) { trigger e; } wait e;"), run("shared event e = ready; if (n > 5) { trigger e; } wait e;")),
    ("event-overrun", "make the triggering side wait for a release before its next iteration",
     roles("shared event e;", "foreach i in n { trigger e; }", "foreach i in n { wait e; }"),
     roles("shared event e, f = ready;", "foreach i in n { wait f; trigger e; }", "foreach i in n { wait e; trigger f; }")),
    ("unknown-target", "did you mean `cpu`?", called("cpuu"), called("cpu")),
    ("wrong-type", "pass options of 'machine': arch, seed", lambda: kernel("y[0] = 1.0").on("machine", schedules=3), lambda: kernel("y[0] = 1.0").on("machine", schedule="late")),
    ("bad-target", "pass an instance of a class with that method", registered("mine", Target), registered("mine", Target())),
    ("bad-target", "choose another name", registered("cpu", Target()), registered("mine", Target())),
    ("bad-target", "use a name made of letters", registered("my target", Target()), registered("my_target", Target())),
    ("not-a-kernel", "write it with `def`", lambda: tm.kernel(lambda y: y), lambda: kernel("y[0] = 1.0")(np.zeros(4, np.float32))),
    ("outside-kernel", "move it into a kernel, and call the kernel with arrays", lambda: tm.shared("f32", 4), lambda: kernel("s = shared('f32', 4)")(np.zeros(4, np.float32))),
    ("kernel-in-kernel", "make the part that both need a plain Python function", two(True), two(False)),
    ("tile-swizzle-atom", "make the tile a multiple of 64 along K", lambda: shared_layout("f16", 8, 32, "K", 128), lambda: shared_layout("f16", 8, 64, "K", 128)),
    ("tile-swizzle-atom", "or take a narrower swizzle", lambda: shared_layout("f16", 8, 32, "K", 128), lambda: shared_layout("f16", 8, 32, "K", 64)),
    ("no-such-arch", "give the target that ptxas -arch takes", lambda: list_atoms("volta"), lambda: list_atoms("sm_75")),
    ("wrong-type", "pass ", lambda: shared_layout("f16", "8", 64, "K", 128), lambda: shared_layout("f16", 8, 64, "K", 128)),
    ("wrong-argument", "pass ", lambda: shared_layout("f16", 8, 64, "Q", 128), lambda: shared_layout("f16", 8, 64, "K", 128)),
    ("wrong-argument", "pass one of 0, 32, 64, 128", lambda: shared_layout("f16", 8, 64, "K", 100), lambda: shared_layout("f16", 8, 64, "K", 64)),
    ("tile-to-shape", "make each extent of the shape a multiple of the atom's", lambda: tile_to_shape(ATOM, (12, 64)), lambda: tile_to_shape(ATOM, (16, 64))),
    ("tile-to-shape", "give each of 0 to 1 once", lambda: tile_to_shape(ATOM, (16, 64), (0, 0)), lambda: tile_to_shape(ATOM, (16, 64), (1, 0))),
    ("tune-unknown-constant", "use the names of the kernel's compile-time parameters", tuned("ROW", 2), tuned("ROWS", 2)),
    ("tune-nothing-runs", "add values that the kernel can be compiled with", tuned("ROWS", 0), tuned("ROWS", 0, 2)),
    ("unknown-dtype", "use one of these names", lambda: shared_layout("f61", 8, 64, "K", 128), lambda: shared_layout("f16", 8, 64, "K", 128)),
]  # fmt: skip
FOLLOWED = frozenset(c[0] for c in CASES)


@pytest.mark.parametrize("n", range(len(CASES)), ids=lambda n: f"{CASES[n][0]}-{n}")
def test_followed_it_works(n: int) -> None:
    code, advice, wrong, right = CASES[n]
    with pytest.raises(TilemmaError) as caught:
        wrong()
    assert caught.value.code == code and advice in caught.value.remedy, caught.value.render()
    right()
