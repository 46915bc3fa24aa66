"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions")."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine.decode import VIEW, Decoder, instruction
from tilemma.machine.exec.floating import _ELEMENT, FLOATS, as_values
from tilemma.machine.exec.integer import function

_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_UNORDERED = {f"{op}u": op for op in ("eq", "ne", "lt", "le", "gt", "ge")}
_BOOL = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def comparison(op: str, kind: str) -> Any:
    """The comparison ``op`` on rows of type ``kind``: booleans; NaN as in the ISA."""
    if kind not in FLOATS:
        return _COMPARE[op]

    def compare(a: Any, b: Any) -> Any:
        a, b = as_values(a, kind), as_values(b, kind)
        nan = np.isnan(a) | np.isnan(b)
        if op == "num":
            return ~nan
        if op == "nan":
            return nan
        if op in _UNORDERED:
            return _COMPARE[_UNORDERED[op]](a, b) | nan
        # NumPy's `!=` is true with NaN, the ordered `ne` is not.
        return _COMPARE[op](a, b) & ~nan

    return compare


@instruction("setp")
def setp(d: Decoder) -> None:
    kind = d.type
    op = d.mods[0]
    if op not in _COMPARE and op not in _UNORDERED and op not in ("num", "nan"):
        d.unsupported()
    combine = d.one_of(tuple(_BOOL), "none") if len(d.operands) == 4 else "none"
    d.has("ftz")
    d.only(op, kind)
    if kind in _ELEMENT:
        _setp_packed(d, op, kind, combine)
        return
    first, second = d.pair(d.operands[0])
    v = VIEW[kind]
    o = d.dst(first, "pred")
    o2 = d.dst(second, "pred") if second is not None else -1
    a, b = d.src(d.operands[1], kind), d.src(d.operands[2], kind)
    compare = comparison(op, kind)
    if combine == "none" and second is None:
        if kind not in FLOATS:

            def quick(w: Any, m: Any) -> None:
                r, p = w.v[v], w.v[9]
                if m is None:
                    compare(r[a], r[b], p[o])
                else:
                    compare(r[a], r[b], out=p[o], where=m)

            d.alu(quick)
        else:
            d.alu(lambda w, m: np.copyto(w.v[9][o], compare(w.v[v][a], w.v[v][b]), where=True if m is None else m))
        return
    c, negated = d.src_pred(d.operands[3]) if combine != "none" else (-1, False)

    def run(w: Any, m: Any) -> None:
        p = w.v[9]
        where: Any = True if m is None else m
        truth = compare(w.v[v][a], w.v[v][b])
        # Both results before either is written: a destination may be the third operand.
        yes, no = truth, ~truth
        if c >= 0:
            third = p[c] ^ negated
            yes, no = _BOOL[combine](truth, third), _BOOL[combine](~truth, third)
        np.copyto(p[o], yes, where=where)
        if o2 >= 0:
            np.copyto(p[o2], no, where=where)

    d.alu(run)


def _setp_packed(d: Decoder, op: str, kind: str, combine: str) -> None:
    """`setp` on pairs: the first predicate is that of the lower half, the second that of the upper."""
    first, second = d.pair(d.operands[0])
    o = d.dst(first, "pred")
    o2 = d.dst(second, "pred") if second is not None else -1
    a, b = d.src(d.operands[1], kind), d.src(d.operands[2], kind)
    c, negated = d.src_pred(d.operands[3]) if combine != "none" else (-1, False)
    compare, v = comparison(op, kind), VIEW[kind]

    def run(w: Any, m: Any) -> None:
        p, where = w.v[9], True if m is None else m
        truth = compare(w.v[v][a], w.v[v][b]).reshape(32, 2)
        if c >= 0:
            truth = _BOOL[combine](truth, (p[c] ^ negated)[:, None])
        np.copyto(p[o], truth[:, 0], where=where)
        if o2 >= 0:
            np.copyto(p[o2], truth[:, 1], where=where)

    d.alu(run)


# The value of `set` for true, by the type of the result (PTX ISA, "set").
_TRUE: dict[str, Any] = {
    "f32": np.float32(1.0), "f16": np.float16(1.0), "bf16": np.uint16(0x3F80), "u32": -1, "s32": -1, "u16": -1,
    "s16": -1,
}  # fmt: skip


@instruction("set")
def set_(d: Decoder) -> None:
    op, out, kind = d.mods[0], d.mods[-2], d.mods[-1]
    combine = d.one_of(tuple(_BOOL), "none") if len(d.operands) == 4 else "none"
    d.has("ftz")
    d.only(op, out, kind)
    packed = kind in _ELEMENT
    if packed:
        # Both halves of the result are of the packed type, or masks of 16 bits.
        true: Any = {"f16x2": np.uint16(0x3C00), "bf16x2": np.uint16(0x3F80)}.get(out, np.uint16(0xFFFF))
    elif out in _TRUE:
        true = _TRUE[out]
    else:
        d.unsupported()
    compare = comparison(op, kind)
    v, vo = VIEW[kind], VIEW[out]
    d.count(4 if combine != "none" else 3)
    o, a, b = d.dst(d.operands[0], out), d.src(d.operands[1], kind), d.src(d.operands[2], kind)
    c, negated = d.src_pred(d.operands[3]) if combine != "none" else (-1, False)

    def run(w: Any, m: Any) -> None:
        truth = compare(w.v[v][a], w.v[v][b])
        if c >= 0:
            third = w.v[9][c] ^ negated
            truth = _BOOL[combine](truth, np.repeat(third, 2) if packed else third)
        result = np.where(truth, true, 0)
        target = w.v[vo][o]
        if packed:
            result = result.astype(np.uint16).view(np.uint32)
        np.copyto(target, result, where=True if m is None else m, casting="unsafe")

    d.alu(run)


@instruction("selp")
def selp(d: Decoder) -> None:
    kind = d.type
    d.count(4)
    v = VIEW[kind]
    o, a, b = d.dst(d.operands[0], kind), d.src(d.operands[1], kind), d.src(d.operands[2], kind)
    c, negated = d.src_pred(d.operands[3])

    def run(w: Any, m: Any) -> None:
        r, p = w.v[v], w.v[9][c]
        chosen = np.where(p, r[b], r[a]) if negated else np.where(p, r[a], r[b])
        if m is None:
            r[o][:] = chosen
        else:
            np.copyto(r[o], chosen, where=m)

    d.alu(run)


@instruction("slct")
def slct(d: Decoder) -> None:
    kind, selector = d.mods[-2], d.mods[-1]
    d.has("ftz")
    function(d, lambda a, b, c: np.where(c >= 0, a, b), kind, kind, kind, selector)
