"""Products of some hundred rows: which they are, and their candidates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from products import problem

from tilemma.ops import few_rows, hundreds
from tilemma.ops.candidates import candidates, ranked
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware
from tilemma.ops.problem import Epilogue

H200 = Hardware()


def test_between_few_rows_and_few_rounds() -> None:
    for shape in ((257, 7168, 4096), (1023, 4096, 4096), (8192, 512, 4096)):
        assert hundreds.applies(problem(*shape)), shape
    # Few rows, few rounds, of middle size, a long K.
    for shape in ((256, 7168, 4096), (1024, 4096, 4096), (512, 4096, 2048), (512, 512, 16384)):
        assert not hundreds.applies(problem(*shape)), shape
    assert not hundreds.applies(problem(300, 7168, 4096, "s8"))
    assert not hundreds.applies(problem(300, 7168, 4096, layout="nn"))


def test_the_transposed_product_divides_the_rows_evenly() -> None:
    """300 rows are two tiles of 152, where tiles of 128 rows multiply 384: 118.5 us, and 72.4 by cuBLAS."""
    for shape in ((300, 3584, 18944), (277, 10112, 9856), (298, 4480, 13312)):
        plan = ranked(problem(*shape), H200)[0].plan
        rows = plan.tile[1] if plan.swap else plan.height
        assert rows * -(-shape[0] // rows) < 1.15 * shape[0], plan


@pytest.mark.parametrize(("activation", "turned"), [("", True), ("relu", True), ("gelu", True), ("silu", False)])
def test_epilogues_for_which_the_transposed_product_has_registers(activation: str, turned: bool) -> None:
    p = replace(problem(300, 7168, 4096), epilogue=Epilogue(bias="columns", activation=activation))
    assert any(x.swap for x in candidates(p, H200)) is turned


def test_rows_are_the_shorter_side() -> None:
    """A tall product is like the transposed of a wide one."""
    wide = next(x for x in candidates(problem(300, 7168, 4096), H200) if x.swap and x.kernel == "pipelined")
    turned = transposed_product(problem(300, 7168, 4096))
    tall = problem(7168, 300, 4096)
    times = [few_rows.timed(p, wide, H200)[0].seconds for p in (turned, tall)]
    assert math.isclose(*times)
