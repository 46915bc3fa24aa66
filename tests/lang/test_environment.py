"""What a Python kernel reads from outside: changed, the kernel is traced anew; unchanged, it is not."""

from __future__ import annotations

import argparse
import dataclasses
import dis
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tilemma import environment, parallel

FACTOR: Any = 2.0
TABLE = [1.0, 2.0]
NAMED = {"factor": 2.0}
WEIGHTS = np.array([2.0, 5.0])
SPACE = SimpleNamespace(factor=2.0)
SETTINGS = ModuleType("settings_of_this_test")
SETTINGS.factor = 2.0
sys.modules[SETTINGS.__name__] = SETTINGS


class Class:
    factor = 2.0

    def __init__(self, own: float) -> None:
        self.own = own

    def both(self) -> float:
        return self.own * self.factor

    @property
    def doubled(self) -> float:
        return 2 * self.own


class Slots:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor


@dataclass(frozen=True)
class Frozen:
    factor: float


class Colour(Enum):
    RED = 1
    BLUE = 2


OBJECT, SLOTS, COLOUR = Class(2.0), Slots(2.0), Colour.RED


def from_global() -> Any:
    return FACTOR


def through_another() -> Any:
    return from_global()


def with_default(x: Any = TABLE) -> Any:
    return x[0]


def of_object(o: Any) -> Any:
    return o.own


BOUND: Callable[[], Any] = OBJECT.both
PARTIAL: Callable[[], Any] = partial(of_object, OBJECT)

# Name -> (what the kernel reads, how another value is put there).
READS: dict[str, tuple[Callable[[], Any], Callable[[float], None]]] = {
    "global": (lambda: FACTOR, lambda v: globals().__setitem__("FACTOR", v)),
    "function": (from_global, lambda v: globals().__setitem__("FACTOR", v)),
    "function of a function": (lambda: through_another(), lambda v: globals().__setitem__("FACTOR", v)),
    "list": (lambda: TABLE[0], lambda v: TABLE.__setitem__(0, v)),
    "default": (lambda: with_default(), lambda v: TABLE.__setitem__(0, v)),
    "dictionary": (lambda: NAMED["factor"], lambda v: NAMED.__setitem__("factor", v)),
    "array": (lambda: float(WEIGHTS[0]), lambda v: WEIGHTS.__setitem__(0, v)),
    "namespace": (lambda: SPACE.factor, lambda v: setattr(SPACE, "factor", v)),
    "module": (lambda: SETTINGS.factor, lambda v: setattr(SETTINGS, "factor", v)),
    "class": (lambda: Class.factor, lambda v: setattr(Class, "factor", v)),
    "object": (lambda: OBJECT.own, lambda v: setattr(OBJECT, "own", v)),
    "object as a whole": (lambda: of_object(OBJECT), lambda v: setattr(OBJECT, "own", v)),
    "method": (lambda: OBJECT.both(), lambda v: setattr(OBJECT, "own", v)),
    "attribute of the class": (lambda: OBJECT.both(), lambda v: setattr(Class, "factor", v)),
    "property": (lambda: OBJECT.doubled, lambda v: setattr(OBJECT, "own", v)),
    "bound method": (lambda: BOUND(), lambda v: setattr(OBJECT, "own", v)),
    "partial": (lambda: PARTIAL(), lambda v: setattr(OBJECT, "own", v)),
    "slots": (lambda: SLOTS.factor, lambda v: setattr(SLOTS, "factor", v)),
    "comprehension": (lambda: sum([FACTOR for _ in range(2)]), lambda v: globals().__setitem__("FACTOR", v)),
    "inner function": (lambda: (lambda: FACTOR)(), lambda v: globals().__setitem__("FACTOR", v)),
    "enumeration": (
        lambda: COLOUR.value,
        lambda v: globals().__setitem__("COLOUR", Colour.BLUE if v != 2.0 else Colour.RED),
    ),
}


class Traces:
    """How often a kernel was traced; an iterator's position is none of the values that are compared."""

    def __init__(self) -> None:
        self.marks = count()

    def __len__(self) -> int:
        return int(repr(self.marks).removeprefix("count(").removesuffix(")"))


def scaled(read: Callable[[], Any]) -> tuple[tm.Kernel, Traces]:
    """A kernel that multiplies by what ``read`` gives, and how often it was traced."""
    traces = Traces()
    marks = traces.marks

    @tm.kernel
    def scale(x: tm.Global["f32", 4], y: tm.Global["f32", 4]):
        next(marks)
        for i in parallel(4, level="block"):
            y[i] = x[i] * read()

    return scale, traces


def result(kernel: tm.Kernel, **constants: Any) -> float:
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    kernel(x, y, **constants)
    return float(y[0])


@pytest.fixture(autouse=True)
def restored() -> Any:
    yield
    for _, put in READS.values():
        put(2.0)


@pytest.mark.parametrize("name", READS)
def test_a_changed_value_is_seen(name: str) -> None:
    read, put = READS[name]
    kernel, traces = scaled(read)
    before = float(read())
    assert result(kernel) == before and result(kernel) == before
    assert len(traces) == 1, "traced once for equal values"
    put(3.0)
    after = float(read())
    assert after != before and result(kernel) == after
    assert len(traces) == 2
    put(2.0)
    assert result(kernel) == before
    assert len(traces) == 2, "an earlier value's trace is found again"


def test_what_tracing_itself_changes_is_no_change() -> None:
    seen: list[int] = []

    @tm.kernel
    def copy(x: tm.Global["f32", 4], y: tm.Global["f32", 4]):
        seen.append(1)
        for i in parallel(4, level="block"):
            y[i] = x[i]

    for _ in range(3):
        assert result(copy) == 1
    assert len(seen) == 1


def test_a_changed_cell_is_seen() -> None:
    factor, holder = 2.0, Class(2.0)

    @tm.kernel
    def scale(x: tm.Global["f32", 4], y: tm.Global["f32", 4]):
        for i in parallel(4, level="block"):
            y[i] = x[i] * factor * holder.own

    assert result(scale) == 4
    factor = 3.0
    assert result(scale) == 6
    holder.own = 5.0
    assert result(scale) == 15
    holder = Class(1.0)
    assert result(scale) == 3


def test_what_constants_read_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    @tm.kernel
    def scale(x: tm.Global["f32", 4], y: tm.Global["f32", 4], *, f=from_global, o=None):
        for i in parallel(4, level="block"):
            y[i] = x[i] * f() * (1 if o is None else o.factor)

    given = lambda: FACTOR + 1  # noqa: E731
    changing = SimpleNamespace(factor=10)
    assert (result(scale), result(scale, f=given), result(scale, o=changing)) == (2, 3, 20)
    monkeypatch.setitem(globals(), "FACTOR", 7.0)
    changing.factor = 100
    assert (result(scale), result(scale, f=given), result(scale, o=changing)) == (7, 8, 700)
    assert result(scale, o=Frozen(2)) == result(scale, o=Frozen(2)) == 14


def test_a_replaced_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, traces = scaled(lambda: from_global())
    assert result(kernel) == 2
    monkeypatch.setitem(globals(), "from_global", lambda: 9.0)
    assert result(kernel) == 9
    assert result(kernel) == 9 and len(traces) == 2


def test_code_that_is_exchanged_in_place_is_seen() -> None:
    def helper() -> float:
        return 2.0

    kernel, _ = scaled(lambda: helper())
    assert result(kernel) == 2
    helper.__code__ = (lambda: 5.0).__code__
    assert result(kernel) == 5


def test_a_builtin_that_is_covered_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = scaled(lambda: abs(-2.0))
    assert result(kernel) == 2
    monkeypatch.setitem(globals(), "abs", lambda x: 6.0)
    assert result(kernel) == 6


@pytest.mark.parametrize(("a", "b"), [(1, 1.0), (True, 1), (0.0, -0.0)])
def test_equal_numbers_of_other_types_are_told_apart(a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, traces = scaled(lambda: FACTOR)
    for value in (a, b, a, b):
        monkeypatch.setitem(globals(), "FACTOR", value)
        result(kernel)
    assert len(traces) == 2


def test_kernels_keep_a_bounded_number_of_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = scaled(lambda: FACTOR)
    for i in range(40):
        monkeypatch.setitem(globals(), "FACTOR", float(i))
        kernel.traced()
    assert len(kernel._by_environment) <= 16

    @tm.kernel
    def add(x: tm.Global["f32", 4], *, N=0):
        for i in parallel(4, level="block"):
            x[i] = N

    for i in range(300):
        add.traced(N=i)
    assert len(add._known.traced) <= 256


def test_compiled_code_follows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = scaled(lambda: FACTOR)
    first = kernel.compile("sm_80").ptx
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert kernel.compile("sm_80").ptx != first
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert kernel.compile("sm_80").ptx == first


def test_names_are_read_from_bytecode_as_dis_reads_them() -> None:
    def names(code: CodeType) -> Any:
        found: dict[tuple[str, bool, tuple[str, ...]], None] = {}
        name, attributes = "", list[str]()
        for i in dis.get_instructions(code):
            if i.opname in ("EXTENDED_ARG", "CACHE"):
                continue
            if i.opname in ("LOAD_ATTR", "LOAD_METHOD") and name:
                attributes.append(str(i.argval))
                continue
            if name:
                found[name, name in code.co_freevars + code.co_cellvars, tuple(attributes)] = None
            loads = i.opname in ("LOAD_GLOBAL", "LOAD_NAME") or i.opname.endswith(("DEREF", "_OR_GLOBALS"))
            name, attributes = (str(i.argval) if loads and i.opname.startswith("LOAD") else ""), []
        return tuple(found)

    waiting = [compile(inspect.getsource(m), str(m), "exec") for m in (argparse, dataclasses, environment)]
    seen = 0
    while waiting:
        code = waiting.pop()
        assert environment._loaded(code) == names(code)
        waiting += [c for c in code.co_consts if isinstance(c, CodeType)]
        seen += 1
    assert seen > 100


def test_comparing_costs_the_same_for_many_names() -> None:
    """One comparison for all names of a module, however many the kernel reads of it and of the language."""
    names = {f"n{i}": f"value {i}" for i in range(40)} | {"mma": tm.mma}
    exec(f"def many(): return {', '.join(names)}, mma.row.row\ndef few(): return n0, n1", names)

    def calls(function: Any) -> int:
        unchanged, count = environment.Environment(function), []
        unchanged.key()
        sys.setprofile(lambda *event: count.append(event))
        try:
            assert unchanged.unchanged()
        finally:
            sys.setprofile(None)
        return len(count)

    assert calls(names["many"]) == calls(names["few"])


@pytest.mark.parametrize("indent", ["", "    "])
def test_places_in_a_file_that_is_broken_elsewhere(tmp_path: Path, indent: str) -> None:
    """A file may change after its import: the places of an error are those of the function's own text."""
    lines = [
        "@tm.kernel",
        "def k(v: tm.Global['s32', 4]):",
        "    for p in parallel(1, level='block'):",
        "        i = v[0]",
        "        with if_(i > 0):",
        "            i = i + 1",
        "        v[0] = i",
    ]
    head = ["import tilemma as tm", "from tilemma import *", "", "if True:" if indent else ""]
    text = "\n".join([*head, *(indent + line for line in lines), ""])
    places = []
    for tail in ("", "x = (\n"):
        path = tmp_path / f"m{len(tail)}.py"
        path.write_text(text + tail)
        names: dict[str, Any] = {}
        with pytest.raises(tm.CompileError) as refused:
            exec(compile(text, str(path), "exec"), names)
            names["k"].compile("sm_80")
        span = refused.value.span
        assert span is not None and refused.value.code == "rebound-in-traced-block"
        places.append((span.line, span.column, span.end_line, span.end_column))
    assert places[0] == places[1] == (10, 13 + len(indent), 10, 14 + len(indent))
