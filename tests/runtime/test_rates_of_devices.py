"""The rates of a device as the cost model of products takes them from its driver."""

from __future__ import annotations

import math

from fake_driver import FakeDriver

from tilemma.ops.plan import Hardware, hardware
from tilemma.runtime import cudadriver


def test_rates_follow_the_architecture_and_the_memory_bus() -> None:
    """The driver's clock and bus of memory are those of the H200 whose rates are the defaults."""
    with cudadriver.using(FakeDriver(((9, 0), (8, 0), (8, 6)))):
        found = [hardware(("cuda", n)) for n in range(3)]
    usual = Hardware()
    assert math.isclose(found[0].memory, usual.memory, rel_tol=0.01)
    assert (found[0].tensor, found[0].shared) == (usual.tensor, usual.shared)
    # Per clock and SM, A100 has half of the operations of H100, and GeForce a quarter.
    assert [x.tensor / usual.tensor for x in found] == [1, 0.5, 0.25]
    assert [x.pipelines for x in found] == [True, False, False]


def test_arrays_on_the_host_are_planned_for_the_default_device() -> None:
    assert hardware(("cpu", 0)) == Hardware()
