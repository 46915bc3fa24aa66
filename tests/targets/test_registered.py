"""A target from outside the package: registered by name, run like a built-in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tilemma import foreach, parallel
from tilemma.errors import TilemmaError
from tilemma.ir import tile as t
from tilemma.ir.expr import Binary, Const, Dim, Element, Expr, Index
from tilemma.ir.walk import walk
from tilemma.targets import _registered


@pytest.fixture(autouse=True)
def no_target_stays() -> Iterator[None]:
    before = dict(_registered)
    yield
    _registered.clear()
    _registered.update(before)


class Loops:
    """Runs kernels of loops over elements, one after the other; ``seen`` are the operations that it met."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def run(
        self,
        kernel: t.Kernel,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        scalars: Mapping[str, Any],
        dims: Mapping[str, int],
        *,
        repeat: int = 1,
    ) -> str:
        self.seen += [type(op).__name__ for op in walk(kernel.body)]
        for _ in range(repeat):
            self.body(kernel.body, arrays, dict(dims))
        return f"{kernel.name} ran {repeat} times"

    def body(self, body: t.Body, arrays: Mapping[str, np.ndarray[Any, Any]], names: dict[str, int]) -> None:
        for op in body:
            match op:
                case t.Parallel(indices=indices):
                    extents = [self.value(i.extent, arrays, names) for i in indices]
                    for point in np.ndindex(*extents):
                        self.body(
                            op.body, arrays, names | {i.name: p for i, p in zip(indices, point, strict=True)}
                        )
                case t.For():
                    ends = [self.value(x, arrays, names) for x in (op.start, op.stop, op.step)]
                    for i in range(*ends):
                        self.body(op.body, arrays, names | {op.index.name: i})
                case t.SetElement(view=view):
                    at = tuple(self.value(o, arrays, names) for o in view.offsets)
                    arrays[view.base.name][at] = self.value(op.value, arrays, names)
                case _:
                    raise NotImplementedError(type(op).__name__)

    def value(self, x: Expr, arrays: Mapping[str, np.ndarray[Any, Any]], names: Mapping[str, int]) -> Any:
        match x:
            case Const():
                return x.value
            case Index() | Dim():
                return names[x.name]
            case Element(view=view):
                return arrays[view.base.name][tuple(self.value(o, arrays, names) for o in view.offsets)]
            case Binary(op="add"):
                return self.value(x.a, arrays, names) + self.value(x.b, arrays, names)
            case Binary(op="mul"):
                return self.value(x.a, arrays, names) * self.value(x.b, arrays, names)
        raise NotImplementedError(str(x))


@tm.kernel
def scaled_sum(x: tm.Global["s32", "M", "N"], y: tm.Global["s32", "M", "N"], *, FACTOR=3):
    M, N = x.shape
    for i in parallel(M, level="block"):
        for j in foreach(N):
            y[i, j] = x[i, j] * FACTOR + y[i, j]


def test_a_target_from_outside_runs_the_kernel_that_the_reference_runs() -> None:
    target = Loops()
    tm.targets.register("loops", target)
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    y, expected = np.ones((3, 4), np.int32), np.ones((3, 4), np.int32)
    assert scaled_sum.on("loops")(x, y, FACTOR=5) == "scaled_sum ran 1 times"
    scaled_sum.on("cpu")(x, expected, FACTOR=5)
    np.testing.assert_array_equal(y, expected)
    assert target.seen == ["Parallel", "For", "SetElement"]


def test_options_reach_the_target_and_strides_are_the_callers() -> None:
    tm.targets.register("loops", Loops())
    x = np.arange(12, dtype=np.int32).reshape(4, 3).T
    y = np.zeros((3, 8), np.int32)[:, ::2]
    scaled_sum.on("loops", repeat=2)(x, y)
    np.testing.assert_array_equal(y, 6 * x)


def test_a_later_registration_replaces_an_earlier_one() -> None:
    first, second = Loops(), Loops()
    tm.targets.register("loops", first)
    tm.targets.register("loops", second)
    scaled_sum.on("loops")(np.ones((1, 1), np.int32), np.ones((1, 1), np.int32))
    assert second.seen and not first.seen


@pytest.mark.parametrize("name", ["cpu", "cuda", "machine", "auto", "", "a b", 5, None])
def test_names_that_cannot_be_registered(name: Any) -> None:
    with pytest.raises(TilemmaError) as e:
        tm.targets.register(name, Loops())
    assert e.value.code == "bad-target"


@pytest.mark.parametrize("target", [None, 5, Loops, object(), lambda *a: None])
def test_what_is_no_target(target: Any) -> None:
    with pytest.raises(TilemmaError, match="has no method `run`"):
        tm.targets.register("toy", target)


def test_an_unknown_target_is_told_those_that_exist() -> None:
    tm.targets.register("loops", Loops())
    with pytest.raises(TilemmaError, match="did you mean `loops`"):
        scaled_sum.on("loop")
    with pytest.raises(TilemmaError, match="auto, cpu, machine, cuda, loops"):
        scaled_sum.on("tpu")
