"""The three matmul listings, decided by hand: they assemble cleanly, and the PTX machine gets their results."""

from __future__ import annotations

import numpy as np
import pytest
from listings import listing1, listing2, listing3

from tilemma.assemble import NoPtxas, assemble, disassemble, find_tool, sass_counts
from tilemma.ir.tile import ArrayFacts, Kernel
from tilemma.machine import run
from tilemma.targets.ptx import print_kernel
from tilemma.targets.ptx.lower import Lowered, lower

ALIGNED, ANY = ArrayFacts(1, 16), ArrayFacts(1, 2)


def decided(name: str, arch: str, facts: ArrayFacts = ALIGNED) -> Kernel:
    return {"1": listing1, "2": listing2, "3": listing3}[name](arch, facts)


CASES = [("1", "sm_80"), ("2", "sm_80"), ("3", "sm_80"), ("2", "sm_90a"), ("3", "sm_90a")]


def lowered(name: str, arch: str, facts: ArrayFacts = ALIGNED) -> tuple[Lowered, str]:
    (unit,) = lower(decided(name, arch, facts), arch)
    return unit, print_kernel(unit.lane)


@pytest.fixture(scope="module")
def _assembler() -> None:
    try:
        find_tool("ptxas")
    except NoPtxas:
        pytest.skip("no ptxas")


@pytest.mark.usefixtures("_assembler")
@pytest.mark.parametrize("facts", [ALIGNED, ArrayFacts(1, 4), ANY], ids=["16", "4", "2"])
@pytest.mark.parametrize(("name", "arch"), CASES)
def test_assembles_without_spills_or_warnings(name: str, arch: str, facts: ArrayFacts) -> None:
    _, ptx = lowered(name, arch, facts)
    cubin = assemble(ptx, arch)
    assert cubin.problems == ()
    assert cubin.stack_bytes == 0


@pytest.mark.usefixtures("_assembler")
@pytest.mark.parametrize(("name", "arch"), CASES)
def test_tensor_cores_do_the_work(name: str, arch: str) -> None:
    _, ptx = lowered(name, arch)
    counts = sass_counts(disassemble(assemble(ptx, arch)))
    # Listing 3: 8 steps along K; a warp has 8 columns of 8 in each.
    expected = {"1": 2, "2": 64, "3": 64} if arch == "sm_80" else {"2": 8, "3": 8}
    assert counts["HMMA" if arch == "sm_80" else "HGMMA"] == expected[name]
    assert counts["LDGSTS"] > 0
    assert counts.get("LDL", 0) == counts.get("STL", 0) == 0


SHAPES = [((64, 64, 128), ALIGNED), ((70, 33, 200), ALIGNED)]
SHAPES += [(shape, facts) for shape in ((1, 1, 1), (67, 65, 33)) for facts in (ALIGNED, ArrayFacts(1, 4), ANY)]


def padded(rows: int, cols: int, multiple: int, rng: np.random.Generator) -> np.ndarray:
    """Random rows, each followed by NaN up to a multiple of ``multiple`` elements."""
    whole = np.full((rows + 1, -(-cols // multiple) * multiple), np.nan, np.float16)
    view = whole[:rows, :cols]
    view[...] = rng.standard_normal((rows, cols))
    return view


@pytest.mark.parametrize(("shape", "facts"), SHAPES, ids=lambda x: str(getattr(x, "alignment", x)))
@pytest.mark.parametrize(("name", "arch"), CASES)
def test_results_on_the_machine(name: str, arch: str, shape: tuple[int, int, int], facts: ArrayFacts) -> None:
    m, n, k = shape
    unit, ptx = lowered(name, arch, facts)
    rng = np.random.default_rng(0)
    a, b = (padded(r, k, facts.alignment // 2, rng) for r in (m, n))
    out = padded(m, n, facts.alignment // 2, rng)
    surroundings = np.isnan(out.base).sum()
    report = run(ptx, unit.launch, {"lhs": a, "rhs": b, "output": out})
    assert report.hazards == [] and report.letter == []
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    # One rounding for each product and the store; f16 accumulators round at every step.
    unit_error = 2.0**-11 if name == "3" else 2.0**-11 * (k + 2)
    assert np.all(np.abs(out - exact) <= unit_error * np.maximum(scale, np.abs(exact)) + 1e-7)
    assert np.isnan(out.base).sum() == surroundings


def test_no_elements_no_work() -> None:
    """Without M or N nothing is launched; K = 0 stores zeros."""
    unit, ptx = lowered("3", "sm_90a")
    out = np.ones((64, 64), np.float16)
    a = b = np.zeros((64, 0), np.float16)
    report = run(ptx, unit.launch, {"lhs": a, "rhs": b, "output": out})
    assert report.ok and (out == 0).all()


def test_the_plan_says_what_the_code_reads() -> None:
    unit, _ = lowered("3", "sm_90a")
    plan = unit.launch
    assert [p.name for p in unit.lane.params][:3] == ["lhs", "rhs", "output"]
    assert len(plan.arguments) == len(unit.lane.params)
    assert {a.name: (a.read, a.written) for a in plan.arrays} == {
        "lhs": (True, False), "rhs": (True, False), "output": (False, True),
    }  # fmt: skip
    assert plan.block == (256, 1, 1) and plan.shared == (128 * 128 + 64 * 128 + 128 * 64) * 2


def test_operand_a_through_registers() -> None:
    """wgmma with A from registers: each warp loads its own 16 rows."""
    (unit,) = lower(listing3("sm_90a", ALIGNED, a_from="registers"), "sm_90a")
    ptx = print_kernel(unit.lane)
    assert "ldmatrix.sync.aligned" in ptx and "wgmma.mma_async" in ptx
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, 128)).astype(np.float16) for n in (100, 64))
    out = np.zeros((100, 64), np.float16)
    report = run(ptx, unit.launch, {"lhs": a, "rhs": b, "output": out})
    assert report.ok
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.abs(out - exact).max() <= 0.02
