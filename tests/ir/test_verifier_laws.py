"""Laws of the verifiers at every place of a program: names are declared, registers written, types kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from test_verifier import LANE, TILE

from tilemma.ir import tile as t
from tilemma.ir.lane import AtomInstr, CopyInstr, Instr, LaneFor, LaneIf, LanePrint, Mem, Reg
from tilemma.ir.lane_verifier import InvalidLaneIR, fits, wider, width
from tilemma.ir.parser import parse_kernel, parse_lane
from tilemma.ir.types import Buffer, Event
from tilemma.ir.verifier import InvalidIR, verify, verify_lane

# Where a statement declares a name instead of using one.
DECLARING = {
    t.Alloc: ("buffer",), t.DeclareEvent: ("event",), t.DeclareFragment: ("fragment",), t.Declare: ("var",),
    t.For: ("var",), t.Parallel: ("indices",), t.Apply: ("indices",),
}  # fmt: skip


def variants(x: Any, change: Callable[[Any], Any], skipped: tuple[str, ...] = ()) -> Iterator[Any]:
    """``x`` with one part changed, for each part of which ``change`` makes another."""
    other = change(x)
    if other is not None:
        yield other
    if isinstance(x, tuple):
        for n, part in enumerate(x):
            for new in variants(part, change):
                yield (*x[:n], new, *x[n + 1 :])
    elif is_dataclass(x) and not isinstance(x, type):
        left_out = (*skipped, *DECLARING.get(type(x), ()))
        for f in fields(x):
            if f.init and f.name not in left_out:
                for new in variants(getattr(x, f.name), change):
                    yield replace(x, **{f.name: new})


def renamed(kind: type) -> Callable[[Any], Any]:
    return lambda x: replace(x, name="nowhere") if type(x) is kind else None


@pytest.mark.parametrize("kind", [Buffer, Event])
def test_what_a_statement_mentions_is_declared(kind: type) -> None:
    kernel = parse_kernel(TILE)
    changed = list(variants(kernel.body, renamed(kind)))
    assert len(changed) > 2
    for body in changed:
        with pytest.raises(InvalidIR):
            verify(replace(kernel, body=body))


@pytest.mark.parametrize("wide", [True, False], ids=["another width", "another type of its width"])
def test_a_register_has_one_type(wide: bool) -> None:
    kernel = parse_lane(LANE)
    met: Counter[str] = Counter()

    def retyped(x: Any) -> Any:
        if type(x) is not Reg:
            return None
        met[x.name] += 1
        if wide or x.type == "pred":
            return replace(x, type="f64" if x.type != "f64" else "s32")
        bits = BITS[x.type]
        return replace(x, type=f"b{bits}" if x.type != f"b{bits}" else f"u{bits}")

    list(variants(kernel.body, retyped))
    # A register that stands in one place alone may have any type that its instruction takes.
    often = {name for name, count in met.items() if count > 1}

    changed = list(variants(kernel.body, lambda x: retyped(x) if getattr(x, "name", "") in often else None))
    assert len(changed) > 45
    for body in changed:
        with pytest.raises(InvalidLaneIR):
            verify_lane(replace(kernel, body=body))


def test_every_register_that_is_read_was_written() -> None:
    """Each operand in turn is one that nothing writes."""
    kernel = parse_lane(LANE)
    counted = 0
    for place, op in enumerate(kernel.body):
        for new in _reading_elsewhere(op):
            counted += 1
            with pytest.raises(InvalidLaneIR):
                verify_lane(replace(kernel, body=(*kernel.body[:place], new, *kernel.body[place + 1 :])))
    assert counted > 25


def _reading_elsewhere(op: Any) -> Iterator[Any]:
    elsewhere = renamed(Reg)
    match op:
        case Instr():
            yield from (replace(op, src=s) for s in variants(op.src, elsewhere))
            yield from (replace(op, dst=d) for d in variants(op.dst, _address))
            if op.guard is not None:
                yield replace(op, guard=elsewhere(op.guard))
        case AtomInstr():
            for name in ("a", "b", "c"):
                yield from (replace(op, **{name: s}) for s in variants(getattr(op, name), elsewhere))
        case CopyInstr():
            yield from (replace(op, address=a) for a in variants(op.address, elsewhere))
        case LanePrint():
            yield from (replace(op, args=a) for a in variants(op.args, elsewhere))
        case LaneIf():
            yield replace(op, cond=elsewhere(op.cond))
            for name in ("then", "otherwise"):
                body = getattr(op, name)
                for n, inner in enumerate(body):
                    for new in _reading_elsewhere(inner):
                        yield replace(op, **{name: (*body[:n], new, *body[n + 1 :])})
        case LaneFor():
            for name in ("start", "stop", "step"):
                yield from (replace(op, **{name: s}) for s in variants(getattr(op, name), elsewhere))
            for n, inner in enumerate(op.body):
                for new in _reading_elsewhere(inner):
                    yield replace(op, body=(*op.body[:n], new, *op.body[n + 1 :]))


def _address(x: Any) -> Any:
    """The address of a store in a register that nothing writes."""
    if isinstance(x, Mem) and isinstance(x.base, Reg):
        return replace(x, base=replace(x.base, name="nowhere"))
    return None


# Bits of the types of PTX's registers and instructions (PTX ISA, Fundamental Types; Packed Data Types).
BITS = {
    **{f"{kind}{n}": n for kind in "bsu" for n in (8, 16, 32, 64)}, "b128": 128, "pred": 1, "f16": 16, "bf16": 16,
    "f32": 32, "f64": 64, "tf32": 32, "f16x2": 32, "bf16x2": 32, "e4m3x2": 16, "e5m2x2": 16,
}  # fmt: skip


def test_types_of_registers_and_instructions() -> None:
    """A register serves a type of its width, of its kind or of bits; integers and bits serve narrower ones too."""
    for r, bits in BITS.items():
        assert width(r) == bits
        for i, wanted in BITS.items():
            whole = {r, i} & {"pred"} == set() and bits == wanted
            kinds = {r[0], i[0]}
            alike = "b" in kinds or kinds <= {"s", "u"} or r.endswith("x2") or i.endswith("x2")
            assert fits(r, i) == (r == i or (whole and alike)), (r, i)
            part = "pred" not in (r, i) and bits >= wanted
            assert wider(r, i) == (part and (r[0] == "b" or (r[0] in "su" and i[0] in "bsu"))), (r, i)
