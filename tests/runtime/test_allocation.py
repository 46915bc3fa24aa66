"""Arrays that a call allocates: their extents, their library and their device."""

from __future__ import annotations

import numpy as np
import pytest
from fake_driver import FakeDriver

from tilemma.errors import WrongArgument
from tilemma.launch import ArrayParam
from tilemma.runtime import DeviceArray, cuda_device
from tilemma.runtime.allocation import with_allocated

PARAMS = ArrayParam("a", "f32", ("M", "K"), False), ArrayParam("out", "f16", ("M", 8), True)
ORDER = ("a", "out")


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_result_has_the_extents_of_what_is_given(rows: int) -> None:
    (_, out), named, created = with_allocated(PARAMS, ORDER, "out", (), (np.zeros((rows, 3), np.float32),), {})
    assert out.shape == (rows, 8) and out.dtype == np.float16 and not named and created == {"out"}


def test_a_result_is_made_where_the_first_array_is(fake: FakeDriver) -> None:
    a = DeviceArray.from_host(cuda_device(1), np.zeros((4, 3), np.float32))
    (_, out), _, _ = with_allocated(PARAMS, ORDER, "out", (), (a,), {})
    assert isinstance(out, DeviceArray) and out.device == a.device and out.shape == (4, 8)


def test_nothing_is_made_of_what_does_not_fit() -> None:
    a, out = np.zeros((4, 3), np.float32), np.zeros((4, 8), np.float16)
    for args, named in (((a, out), {}), ((a, out, out), {}), ((), {"b": a}), ((a,), {"out": out})):
        assert with_allocated(PARAMS, ORDER, "out", (), args, named) == (list(args), named, frozenset())


def test_extents_below_0_are_refused() -> None:
    shrunk = ArrayParam("a", "f32", ("M",), False), ArrayParam("out", "f16", (("sub", "M", 2),), True)
    with pytest.raises(WrongArgument):
        with_allocated(shrunk, ORDER, "out", (), (np.zeros(1, np.float32),), {})
