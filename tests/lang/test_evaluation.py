"""The names that statements read and bind, compared with what Python does when it executes them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from typing import Any

import pytest

from tilemma.lang.evaluation import Evaluation, _inside


class Thing:
    """Stands for any value."""

    def __getattr__(self, name: str) -> Thing:
        return Thing()

    def __getitem__(self, key: object) -> Thing:
        return Thing()

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __call__(self, *args: object, **named: object) -> Thing:
        return Thing()

    def __add__(self, other: object) -> Thing:
        return Thing()

    __radd__ = __mul__ = __lt__ = __iadd__ = __add__

    def __iter__(self) -> Iterator[Thing]:
        return iter((Thing(), Thing()))

    def __enter__(self) -> Thing:
        return Thing()

    def __exit__(self, *_: object) -> None:
        pass


class Names(dict[str, Any]):
    """What is read and bound, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    def __getitem__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        self.seen.append((name, False))
        return Thing()

    def __setitem__(self, name: str, value: object) -> None:
        self.seen.append((name, True))


SNIPPETS = (
    "x = y",
    "x = y = z + w",
    "a, b = c, d",
    "a, (b, *e) = c",
    "x[i] = y[j]",
    "x.field = y.other",
    "x[i].field[j] = y",
    "x += y",
    "x[i] += y[j]",
    "x.field += y",
    "x[i + j][k] += y",
    "x: int = y",
    "x: int",
    "x[i]: int = y",
    "f(a, b, key=c, *d, **{})",
    "(n := m) + n",
    "x = z[c:d:e]",
    "x = a < b",
    "x = f'{a} {b}'",
    "with c as d: e",
    "with c, d as e: f",
    "with c as (d, e): f",
    "with c as d[e]: f",
    "x = [a, (b, c)]",
    "x = {a: b}",
    "del_ = not_ = a if True else b",
    "if y: x = z",
    "if (y := z): x = w",
    "try: x = y\nfinally: z = w",
    "try: x = y\nexcept ValueError: pass\nelse: z = w",
    "match y:\n    case _: z = w",
    "assert x",
    "f(y)",
)


@pytest.mark.parametrize("text", SNIPPETS)
def test_in_the_order_of_execution(text: str) -> None:
    found = Evaluation(lambda value: False)
    found.statements(ast.parse(text).body)
    names = Names()
    exec(compile(text, "snippet", "exec"), {"__annotations__": {}}, names)
    executed = [x for x in names.seen if not x[0].startswith("__")]
    events = [(e.name, e.bound) for e in found.events if not hasattr(builtins, e.name)]
    # Both sides of a choice count.
    assert [e for e in events if e != ("b", False) or "if True" not in text] == executed
    assert not any(e.target for e in found.events)


def test_loops_and_what_their_bodies_are() -> None:
    text = "for i, j in a:\n    x = i\nelse:\n    y = b\nwhile c:\n    z = d\nelse:\n    w = e\n"
    found = Evaluation(lambda value: False)
    module = ast.parse(text)
    found.statements(module.body)
    assert [(e.name, e.bound, e.target) for e in found.events] == [
        ("a", False, False), ("i", True, True), ("j", True, True), ("i", False, False), ("x", True, False),
        ("b", False, False), ("y", True, False), ("c", False, False), ("d", False, False), ("z", True, False),
        ("e", False, False), ("w", True, False),
    ]  # fmt: skip
    assert [found.ranges[s] for s in module.body] == [(3, 5), (7, 10)]


def test_names_that_are_a_comprehension_s_or_a_function_s_own() -> None:
    text = (
        "x = [a + i for i in b for j in i if c]\ny = lambda p, q=d: p + e\n"
        "def f(u, v=g):\n    global s\n    s = t = u + h\n    return t\n"
    )
    found = Evaluation(lambda value: False)
    found.statements(ast.parse(text).body)
    assert [(e.name, e.bound) for e in found.events] == [
        ("b", False), ("c", False), ("a", False), ("x", True), ("d", False), ("e", False), ("y", True),
        ("g", False), ("h", False), ("s", True),
    ]  # fmt: skip


def test_an_update_in_place_binds_nothing() -> None:
    found = Evaluation(lambda value: isinstance(value, ast.List))
    found.statements(ast.parse("x = []\nx += y\nz += y").body)
    assert [(e.name, e.bound) for e in found.events] == [
        ("x", True), ("x", False), ("y", False), ("z", False), ("y", False), ("z", True),
    ]  # fmt: skip


@pytest.mark.parametrize("inner", ["def f():\n    x = []", "def f():\n    global x\n    x = []", "if c:\n    x = []",
                                   "while c:\n    x = []", "for c in d:\n    x = []", "try: x = []\nexcept E: pass",
                                   "with c: x = y", "f = lambda: (x := [])"])  # fmt: skip
def test_a_binding_that_may_not_have_been_reached_leaves_the_one_before(inner: str) -> None:
    """``x`` is no list for certain: `x += z` binds it."""
    found = Evaluation(lambda value: isinstance(value, ast.List))
    found.statements(ast.parse(f"x = y\n{inner}\nx += z").body)
    assert [(e.name, e.bound) for e in found.events][-2:] == [("z", False), ("x", True)]


def test_the_statements_inside_are_found_without_their_expressions() -> None:
    """Statements of every kind, in each place that a statement may have."""
    text = """
def outer(a=lambda x: x):
    async def inner():
        async for i in a:
            b = [k for k in i if (c := k)]
        else:
            d: int = 1
        async with a as e, a as f:
            g = 1
    class H:
        i: int = 0
        j = 1
    while a:
        k = 1
        continue
    else:
        l = 1
    try:
        m = 1
    except ValueError as n:
        o = 1
    else:
        p = 1
    finally:
        q = 1
    try:
        r = 1
    except* OSError:
        s = 1
    match a:
        case [t, *u] if t:
            v = 1
        case {"w": 1, **x}:
            y = 1
    if a:
        z = 1
    elif b:
        aa = 1
    else:
        for ab in a:
            ac = ad = 1
    return a
"""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.stmt, ast.Module)):
            found = [id(n) for n in _inside(node) if isinstance(n, ast.stmt)]
            assert len(found) == len(set(found))
            assert set(found) == {id(n) for n in ast.walk(node) if isinstance(n, ast.stmt)}
