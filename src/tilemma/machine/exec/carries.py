"""Arithmetic with the carry flag CC.CF (PTX ISA, "Extended-Precision Integer Arithmetic Instructions")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilemma.machine.decode import RAW, Decoder, instruction
from tilemma.machine.syntax import Register

_TYPES = ("u32", "s32", "u64", "s64")


def _flag(d: Decoder) -> int:
    """The row of CC.CF."""
    return d.program.register(Register("CC.CF@flags", "pred"))[1]


def _arithmetic(d: Decoder, kind: str, count: int, f: Callable[..., int], *, takes: bool, gives: bool) -> None:
    """``f(a, b[, c], carry)`` on Python integers; the bits above the type are the carry out.

    Without a carry in, f gets 0.
    """
    bits = int(kind[1:])
    d.count(count + 1)
    o = d.dst(d.operands[0], kind)
    sources = [d.src(x, kind) for x in d.operands[1:]]
    flag = _flag(d)
    number = d.program.register_ids["p", flag]
    if takes:
        d.reads.add(number)
    if gives:
        d.writes.add(number)
    view, word = RAW[str(bits)], np.uint64 if bits == 64 else np.uint32
    mask = (1 << bits) - 1

    def run(w: Any, m: Any) -> None:
        rows = [w.v[view][i].tolist() for i in sources]
        carries = w.v[9][flag].tolist() if takes else [False] * 32
        results = [f(*values, int(carry)) for *values, carry in zip(*rows, carries, strict=True)]
        where: Any = True if m is None else m
        np.copyto(w.v[view][o], np.array([x & mask for x in results], word), where=where)
        if gives:
            np.copyto(w.v[9][flag], np.array([x > mask for x in results]), where=where)

    d.alu(run)


def carry_out(d: Decoder) -> None:
    """``add.cc``, ``sub.cc``, ``mad.lo.cc`` and ``mad.hi.cc``."""
    _decode(d, d.parts[0], takes=False)


@instruction("addc", "subc", "madc")
def carry_in(d: Decoder) -> None:
    _decode(d, d.parts[0][:-1], takes=True)


def _decode(d: Decoder, op: str, *, takes: bool) -> None:
    kind, gives = d.type, d.has("cc")
    if kind not in _TYPES:
        d.unsupported()
    if op == "mad":
        high = d.one_of(("lo", "hi")) == "hi"
        d.only(kind)
        _product(d, kind, high=high, takes=takes, gives=gives)
        return
    d.only(kind)
    if op == "add":
        _arithmetic(d, kind, 2, lambda a, b, carry: a + b + carry, takes=takes, gives=gives)
    else:
        # The flag of a subtraction is the carry of a + ~b + 1: set where nothing is borrowed.  Chains of sub alone
        # do not show it; nvcc's 128-bit division reads the flag of `subc.cc` with `addc`, and relies on it.
        mask = (1 << int(kind[1:])) - 1
        _arithmetic(
            d, kind, 2, lambda a, b, carry: a + (b ^ mask) + (carry if takes else 1), takes=takes, gives=gives
        )


def _product(d: Decoder, kind: str, *, high: bool, takes: bool, gives: bool) -> None:
    bits, signed = int(kind[1:]), kind[0] == "s"
    mask = (1 << bits) - 1

    def f(a: int, b: int, c: int, carry: int) -> int:
        if signed:
            a, b = (x - (1 << bits) if x >> (bits - 1) else x for x in (a, b))
        product = a * b
        part = (product >> bits if high else product) & mask
        return part + c + carry

    _arithmetic(d, kind, 3, f, takes=takes, gives=gives)
