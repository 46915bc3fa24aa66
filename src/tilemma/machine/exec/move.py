"""Moves, address conversions and special registers (PTX ISA, "Data Movement and Conversion")."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine.decode import CLASS_BYTES, RAW, VIEW, Decoder, instruction
from tilemma.machine.limits import MAX_CLUSTER
from tilemma.machine.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from tilemma.machine.native.blocks import AccessBlock, PlainAccess, block
from tilemma.machine.state import U32, U64, VIEW_CLASS
from tilemma.machine.syntax import TYPE_BYTES, Special, Symbol, Vector

WINDOWS = {
    "global": 0, "const": 0, "param": PARAM_WINDOW, "param::entry": PARAM_WINDOW, "shared": SHARED_WINDOW,
    "shared::cta": SHARED_WINDOW, "shared::cluster": SHARED_WINDOW, "local": LOCAL_WINDOW,
}  # fmt: skip
_CLOCKS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")


@instruction("mov")
def mov(d: Decoder) -> None:
    kind = d.type
    d.count(2)
    to, source = d.operands
    if kind == "b128":
        _wide(d, to, source)
        return
    if d.has("v2", "v4"):
        _elements(d, to, source)
    elif isinstance(to, Vector):
        _unpack(d, to, source)
    elif isinstance(source, Vector):
        _pack(d, to, source)
    elif isinstance(source, Special) and source.name in _CLOCKS:
        d.check_special(source, kind)
        _clock(d)
    elif kind == "pred":
        a, negated = d.src_pred(source)
        o = d.dst(to, "pred")
        d.alu(lambda w, m: np.copyto(w.v[9][o], w.v[9][a] ^ negated, where=True if m is None else m))
    else:
        v = VIEW[kind]
        # The address of a variable: a generic address where the ISA gives one (param), else its own space.
        o, a = d.dst(to, kind), d.src(source, kind)

        def run(w: Any, m: Any) -> None:
            r = w.v[v]
            if m is None:
                r[o][:] = r[a]
            else:
                np.copyto(r[o], r[a], where=m)

        d.alu(run)


def _elements(d: Decoder, to: Any, source: Any) -> None:
    """`mov.v4.u32 {a, b, c, d}, %tid`: element by element."""
    kind = d.type
    outs = [d.dst(x, kind) for x in d.items(to)]
    ins = [d.src(x, kind) for x in d.items(source)]
    if len(outs) != len(ins):
        d.bad(f"{len(ins)} elements are moved to {len(outs)}")
    v = VIEW[kind]

    def run(w: Any, m: Any) -> None:
        values = [w.v[v][i].copy() for i in ins]
        for o, value in zip(outs, values, strict=True):
            np.copyto(w.v[v][o], value, where=True if m is None else m)

    d.alu(run)


def _wide(d: Decoder, to: Any, source: Any) -> None:
    """`mov.b128`: a register of 128 bits is two rows; a vector names the halves, the lower first."""

    def rows(x: Any, get: Any) -> list[int]:
        if isinstance(x, Vector):
            return [get(item, "b64")[1] for item in x.items]
        cls, row = get(x, "b64")
        return [row, row + 1] if cls == "128" else []

    if isinstance(to, Vector) and isinstance(source, Vector):
        d.refuse("one side of a move is a vector, the other a register")
    outs, ins = rows(to, d.dst_any), rows(source, d.src_any)
    if len(outs) != 2 or len(ins) != 2:
        d.bad("it moves between .b128 registers and pairs of .b64 registers")

    def run(w: Any, m: Any) -> None:
        r = w.v[6]
        values = [r[i].copy() for i in ins]
        for o, value in zip(outs, values, strict=True):
            np.copyto(r[o], value, where=True if m is None else m)

    d.alu(run)


def _width(d: Decoder, cls: str, count: int) -> int:
    """Bits of each of the ``count`` items that a register of class ``cls`` is made of."""
    width, left = divmod(CLASS_BYTES[cls] * 8, count)
    if left or width < 8:
        d.bad(f"{count} items do not make {CLASS_BYTES[cls] * 8} bits")
    return width


def _pack(d: Decoder, to: Any, source: Vector) -> None:
    if d.type[0] != "b":
        d.refuse(f"a vector is moved as .b{8 * TYPE_BYTES[d.type]}")
    cls, o = d.dst_any(to, d.type)
    d.check_type(to, d.type, wider=False)
    width = _width(d, cls, len(source.items))
    part = f"b{width}"
    rows = [d.src(x, part) for x in source.items]
    vo, vi = RAW[cls], VIEW[part]

    def run(w: Any, m: Any) -> None:
        view = w.v
        out = view[vi][rows[0]].astype(view[vo][o].dtype)
        if width == 8:
            out &= 0xFF
        for i, row in enumerate(rows[1:], 1):
            piece = view[vi][row].astype(out.dtype)
            out |= (piece & 0xFF if width == 8 else piece) << out.dtype.type(width * i)
        np.copyto(view[vo][o], out, where=True if m is None else m)

    d.alu(run)


def _unpack(d: Decoder, to: Vector, source: Any) -> None:
    if d.type[0] != "b":
        d.refuse(f"a vector is moved as .b{8 * TYPE_BYTES[d.type]}")
    cls, a = d.src_any(source, d.type)
    d.check_type(source, d.type, wider=False)
    width = _width(d, cls, len(to.items))
    part = f"b{width}"
    rows = [d.dst(x, part) for x in to.items]
    vi, vo = RAW[cls], VIEW[part]

    def run(w: Any, m: Any) -> None:
        view = w.v
        value = view[vi][a].copy()
        for i, row in enumerate(rows):
            piece = value >> value.dtype.type(width * i)
            if width == 8:
                piece &= 0xFF
            np.copyto(view[vo][row], piece, where=True if m is None else m, casting="unsafe")

    d.alu(run)


def _clock(d: Decoder) -> None:
    kind = d.type
    o, v = d.dst(d.operands[0], kind), VIEW[kind]

    def run(f: Any, m: Any) -> None:
        # Time is the number of steps that the grid has taken.
        np.copyto(
            f.w.v[v][o], f.w.cta.machine.steps & 0xFFFFFFFF, where=True if m is None else m, casting="unsafe"
        )

    if v >= U32:
        d.plain = PlainAccess("CLOCK", AccessBlock(*block([])), keep=o << 1 | (v >= U64))
    d.visible(run)


@instruction("cvta")
def cvta(d: Decoder) -> None:
    kind = d.type
    space = d.one_of(WINDOWS)
    to_space = d.has("to")
    d.only(kind, "to")
    o, v = d.dst(d.operands[0], kind), VIEW[kind]
    if isinstance(d.operands[1], Symbol) and kind == "u64":
        a = d.program.constant("64", d.symbol_value(d.operands[1]))
    else:
        a = d.src(d.operands[1], kind)
    delta = np.uint64(space)

    def run(w: Any, m: Any) -> None:
        r = w.v[v]
        value = r[a] if not space else r[a] - delta if to_space else r[a] + delta
        np.copyto(r[o], value, where=True if m is None else m)

    d.alu(run)


@instruction("isspacep")
def isspacep(d: Decoder) -> None:
    space = d.one_of(
        ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry")
    )
    d.needs(90 if space == "shared::cluster" else 0)
    o = d.dst(d.operands[0], "pred")
    cls, a = d.src_any(d.operands[1], "u64")
    if cls not in ("32", "64"):
        d.bad(f"an address of {cls} bits")
    d.check_type(d.operands[1], f"u{cls}", wider=False)
    low, high = {
        "shared": (SHARED_WINDOW, SHARED_WINDOW + (1 << 32)),
        "local": (LOCAL_WINDOW, LOCAL_WINDOW + (1 << 32)),
        "param": (PARAM_WINDOW, PARAM_WINDOW + (1 << 16)),
    }.get(space.split("::")[0], (0, SHARED_WINDOW))

    def run(w: Any, m: Any) -> None:
        x = w.v[RAW[cls]][a]
        np.copyto(w.v[9][o], (x >= low) & (x < high), where=True if m is None else m)

    d.alu(run)


def _rank(given: Any) -> Any:
    """Ranks as addresses hold them; those of no cluster as one of no cluster."""
    return np.minimum(given, MAX_CLUSTER)


@instruction("mapa")
def mapa(d: Decoder) -> None:
    d.needs(90)
    kind = d.type
    shared = d.has("shared::cluster")
    d.only(kind)
    d.count(3)
    if not shared:
        _generic_mapa(d)
        return
    o, v = d.dst(d.operands[0], kind), VIEW[kind]
    a, b = d.src(d.operands[1], kind), d.src(d.operands[2], "u32")

    def run(w: Any, m: Any) -> None:
        r = w.v[v]
        rank = _rank(w.v[3][b]).astype(r[a].dtype)
        value = (r[a] & r[a].dtype.type(0xFFFFFF)) | (rank + r[a].dtype.type(1)) << r[a].dtype.type(24)
        np.copyto(r[o], value, where=True if m is None else m)

    d.alu(run)


def _generic_mapa(d: Decoder) -> None:
    """`mapa` of a generic address: the same, inside the window of shared memory."""
    kind = d.type
    o, v = d.dst(d.operands[0], kind), VIEW[kind]
    a, b = d.src(d.operands[1], kind), d.src(d.operands[2], "u32")
    window = np.uint64(SHARED_WINDOW)

    def run(w: Any, m: Any) -> None:
        address = w.v[v][a].astype(np.uint64) - window
        rank = _rank(w.v[3][b]).astype(np.uint64)
        mapped = window + ((address & np.uint64(0xFFFFFF)) | (rank + np.uint64(1)) << np.uint64(24))
        np.copyto(w.v[v][o], mapped.astype(w.v[v][o].dtype), where=True if m is None else m)

    d.alu(run)


@instruction("getctarank")
def getctarank(d: Decoder) -> None:
    d.needs(90)
    d.has("shared::cluster")
    d.count(2)
    a = d.src(d.operands[1], d.type)
    cls = VIEW_CLASS[VIEW[d.type]]
    o = d.dst(d.operands[0], "u32")

    def run(w: Any, m: Any) -> None:
        high = (w.v[RAW[cls]][a] >> 24) & 0xFF
        np.copyto(
            w.v[3][o], np.where(high == 0, w.cta.rank, high - 1), where=True if m is None else m, casting="unsafe"
        )

    d.alu(run)
