"""What tracing would get silently wrong is refused, with the line; what is fine passes."""

from __future__ import annotations

import linecache
import textwrap

import pytest

from tilemma.errors import CompileError
from tilemma.lang.source import KernelSource, read_kernel

HEADER = """\
import tilemma as tm
from tilemma import *
from tilemma import parallel as par
def k(a: tm.Global["f32", "M", "N"], b: tm.Global["f32", "M", "N"], *, T=4):
"""
COUNT = iter(range(10**6))


def read(body: str) -> KernelSource:
    """A kernel with this body; the body's first line is line 5."""
    text = HEADER + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    name = f"<kernel {next(COUNT)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, object] = {}
    exec(compile(text, name, "exec"), scope)
    return read_kernel(scope["k"])


REFUSED = {
    "break in a traced loop": (
        """
        for i in foreach(4):
            break
        """,
        "jump-in-traced-block",
        (6, 9),
    ),
    "continue under an alias": (
        """
        for i in tm.foreach(4):
            if T: continue
        """,
        "jump-in-traced-block",
        (6, 15),
    ),
    "return inside a with": (
        """
        with if_(a[0, 0] > 1):
            return
        """,
        "jump-in-traced-block",
        (6, 9),
    ),
    "return from a Python loop inside a traced one": (
        """
        for p in par(2):
            for i in range(3):
                return
        """,
        "jump-in-traced-block",
        (7, 13),
    ),
    "a name rebound and used after": (
        """
        x = 0
        for i in foreach(4):
            x = i
        a[0, 0] = x
        """,
        "rebound-in-traced-block",
        (7, 9),
    ),
    "a name rebound and used in the next iteration": (
        """
        x = 0
        for i in foreach(4):
            a[0, 0] = x
            x = i
        """,
        "rebound-in-traced-block",
        (8, 9),
    ),
    "an augmented assignment to a plain name": (
        """
        x = 0
        for i in foreach(4):
            x += 1
        """,
        "rebound-in-traced-block",
        (7, 9),
    ),
    "branches that disagree": (
        """
        with if_(a[0, 0] > 0):
            x = 1
        with else_():
            x = 2
        a[0, 0] = x
        """,
        "rebound-in-traced-block",
        (8, 9),
    ),
    "a name that was mutable on one path only": (
        """
        x = var(0)
        if T:
            x = a[0, 0]
        for i in foreach(4):
            x += 1
        """,
        "rebound-in-traced-block",
        (9, 9),
    ),
    "a name that is no longer mutable when the Python loop comes back": (
        """
        x = var(0)
        for j in range(2):
            for i in foreach(4):
                x += 1
            x = a[0, 0]
        """,
        "rebound-in-traced-block",
        (8, 13),
    ),
    "a name that becomes mutable later": (
        """
        x = 0
        for i in foreach(4):
            x += 1
        x = var(0)
        """,
        "rebound-in-traced-block",
        (7, 9),
    ),
}

ACCEPTED = {
    "a mutable name bound anew afterwards": """
        x = var(0)
        for i in foreach(4):
            x += i
        x = a[0, 0]
        for i in foreach(4):
            b[i, 0] = x
        """,
    "a mutable name made in the loop, and a plain one afterwards": """
        for i in foreach(4):
            x: object = var(0)
            x += i
        x = a[0, 0]
        b[0, 0] = x
        """,
    "a mutable name on both paths": """
        if T:
            x = var(0)
        else:
            y, x = 1, var(1)
        for i in foreach(4):
            x += i
        """,
    "var": """
        x = var(0)
        for i in foreach(4):
            x += i
        a[0, 0] = x
        """,
    "a Python loop": """
        total = 0
        for i in range(4):
            if i == 2:
                break
            total = total + i
        a[0, 0] = total
        """,
    "a name bound anew before use": """
        for i in foreach(4):
            t = a[i, 0]
            b[i, 0] = t
        t = 3
        b[0, 0] = t
        """,
    "a break of an inner Python loop": """
        for i in foreach(4):
            for j in range(3):
                break
        """,
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, code, place = REFUSED[name]
    with pytest.raises(CompileError) as caught:
        read(body)
    assert caught.value.code == code
    assert caught.value.span is not None
    assert (caught.value.span.line, caught.value.span.column) == place
    assert "^" in caught.value.render()
    assert caught.value.to_json()["span"]["line"] == place[0]


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    read(ACCEPTED[name]).build()


TRACED = {
    "if on a traced value": ("if a[0, 0] > 1:\n    pass", "bool-of-traced-value"),
    "and": ("x = (a[0, 0] > 1) and True", "bool-of-traced-value"),
    "not": ("x = not (a[0, 0] > 1)", "bool-of-traced-value"),
    "while": ("while a[0, 0] > 1:\n    pass", "bool-of-traced-value"),
    "range of a dimension": ("for i in range(a.shape[0]):\n    pass", "traced-value-as-python-number"),
    "true division of integers": ("x = a.shape[0] / 2", "wrong-value"),
    "chunk without at": ("dma.copy(a.chunk(2, 2), b)", "not-a-tile"),
    "a tile where a fragment belongs": ("mma.store(a, b)", "wrong-value"),
    "a wrong level": ('for p in parallel(2, level="warp"):\n    pass', "wrong-value"),
    "a wrong rank": ("x = a[0]", "wrong-rank"),
    "an unknown type": ('x = shared("f12", 4)', "unknown-dtype"),
    "extents not known": ('x = shared("f16", a[0, 0].astype("s32"))', "extents-not-known"),
    "else without if": ("with else_():\n    pass", "else-without-if"),
    "chunkat of a plain number": ("x = a.chunkat(a.shape[0], full)", "unbounded-chunk-index"),
}


@pytest.mark.parametrize("name", TRACED)
def test_refused_while_traced(name: str) -> None:
    body, code = TRACED[name]
    with pytest.raises(CompileError) as caught:
        read(body).build()
    assert caught.value.code == code
    assert caught.value.span is not None and caught.value.span.line == 5


def test_compile_time_parameters() -> None:
    source = read("x = shared('f32', T, T)")
    with pytest.raises(CompileError, match="did you mean `T`"):
        source.build({"t": 1})
    assert source.build({"T": 8}) != source.build({"T": 4})


def test_constructs_outside_a_kernel() -> None:
    import tilemma as tm

    with pytest.raises(CompileError, match="outside a kernel"):
        tm.shared("f32", 4)
