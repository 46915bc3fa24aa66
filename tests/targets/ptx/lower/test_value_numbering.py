"""CSE of index expressions; expressions over other values are not reused."""

from __future__ import annotations

import pytest

from tilemma import dtypes
from tilemma.ir.expr import Binary, Cast, Const, Dim, Index, Select, Var, const
from tilemma.ir.lane import Instr, Special
from tilemma.ir.tile import Kernel
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.value_numbering import ValueNumbering


def index(name: str) -> Index:
    return Index(name, const(64))


def choice(name: str = "t") -> Select:
    t = index(name)
    over = Binary("gt", Binary("add", t, Const(16)), Dim("M"))
    return Select(over, Binary("mod", Dim("M"), Const(16)), Binary("floordiv", t, Const(3)))


def test_expressions_made_apart_are_alike() -> None:
    structures = ValueNumbering()
    first, second = structures.of(choice()), structures.of(choice())
    assert first is not None and first is second
    assert first.indices == ("t",)


OTHERS = {
    "another index": choice("u"),
    "another operation": Binary("floordiv", index("t"), Const(4)),
    "its operands the other way": Binary("floordiv", Const(3), index("t")),
    "a part of it": choice().b,
    "converted": Cast(choice(), dtypes.s32),
    "converted to another type": Cast(choice(), dtypes.u32),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_differs_is_not_alike(other) -> None:
    structures = ValueNumbering()
    known = [structures.of(x) for x in (choice(), Const(3), index("t"), *OTHERS.values()) if x != other]
    assert structures.of(other).number not in [k.number for k in known]


def test_what_may_change_is_never_found_again() -> None:
    assert ValueNumbering().of(Binary("add", index("t"), Var("count", dtypes.s32))) is None


@pytest.fixture
def lo() -> Lowering:
    made = Lowering(Kernel("k", (), (), ()), "sm_90a", 128)
    t = made.e.pure("mov.u32", "s32", Special("%ctaid.x"), hint="t")
    made.indices["t"] = Linear.of(made.e.bounded(t, 0, 63))
    return made


def instructions(ops) -> list[str]:
    return [op.mnemonic for op in ops if isinstance(op, Instr)]


def test_alike_expressions_are_lowered_once(lo: Lowering) -> None:
    first = linear(lo, choice())
    count = len(lo.e.regions[0].ops)
    assert linear(lo, choice()) == first
    assert len(lo.e.regions[0].ops) == count


def test_an_index_with_another_value_counts(lo: Lowering) -> None:
    x = Binary("floordiv", index("t"), Const(3))
    unknown = linear(lo, x)
    lo.indices["t"] = Linear(const=10)
    assert linear(lo, x).known == 3
    lo.indices["t"] = Linear(const=7)
    assert linear(lo, x).known == 2 != unknown


def test_what_a_closed_branch_computed_is_computed_again(lo: Lowering) -> None:
    x = Binary("floordiv", index("t"), Const(3))
    with lo.e.collect() as inside:
        within = linear(lo, x)
    assert "mul.hi.u32" in instructions(inside)
    with lo.e.collect() as other:
        assert linear(lo, x) != within
    assert "mul.hi.u32" in instructions(other)
