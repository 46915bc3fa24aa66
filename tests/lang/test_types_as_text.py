"""Types of parameters that are text (`from __future__ import annotations`): names of the scope around the kernel."""

from __future__ import annotations

from typing import Any

import pytest

import tilemma as tm
from tilemma import parallel
from tilemma.errors import CompileError


def kernel_of(T: str, width: int) -> Any:
    """``T`` and ``width`` are in the types alone."""

    @tm.kernel
    def f(x: tm.Global[T, "M", width], y: tm.Global["f32", "M"]):
        for i in parallel(x.shape[0], level="block"):
            y[i] = x[i, 0].astype("f32")

    return f


def test_names_of_the_function_around() -> None:
    (x, _) = kernel_of("f16", 64).build().arrays
    assert (x.buffer.dtype.name, x.buffer.shape[1].value) == ("f16", 64)


def test_a_name_without_a_value_is_refused_where_it_stands() -> None:
    with pytest.raises(CompileError) as caught:

        @tm.kernel
        def f(x: tm.Global["f32", "M"], y: tm.Global[Missing, "M"]):
            for i in parallel(x.shape[0], level="block"):
                y[i] = x[i]

    shown = caught.value.render()
    assert "parameter `y`" in shown and "names `Missing`, which is not defined here" in shown
    assert caught.value.span is not None and caught.value.span.column == 41
