"""Integer arithmetic, logic, shifts and bit fields (PTX ISA, "Integer Arithmetic", "Logic and Shift")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilemma.machine.decode import VIEW, Decoder, instruction

WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_BITS = {"u16": 16, "s16": 16, "u32": 32, "s32": 32, "u64": 64, "s64": 64, "b16": 16, "b32": 32, "b64": 64}


def ufunc2(d: Decoder, ufunc: Any, kind: str) -> None:
    """``d = ufunc(a, b)`` on registers of one type, written in place."""
    d.count(3)
    o, a, b = d.dst(d.operands[0], kind), d.src(d.operands[1], kind), d.src(d.operands[2], kind)
    _in_place(d, ufunc, VIEW[kind], o, a, b)


def _in_place(d: Decoder, ufunc: Any, v: int, o: int, a: int, b: int) -> None:
    """Row ``o`` of the register view ``v`` becomes ``ufunc`` of rows ``a`` and ``b``."""

    def run(w: Any, m: Any) -> None:
        r = w.v[v]
        if m is None:
            ufunc(r[a], r[b], out=r[o])
        else:
            ufunc(r[a], r[b], out=r[o], where=m)

    d.alu(run)


def function(d: Decoder, f: Callable[..., Any], out: str, *kinds: str, operands: Any = None) -> None:
    """``d = f(a, b, ...)`` with sources of the types ``kinds``; ``f`` returns an array of ``out``'s view."""
    operands = d.operands if operands is None else operands
    if len(operands) != len(kinds) + 1:
        d.bad(f"{len(operands)} operands; it takes {len(kinds) + 1}")
    o, vo = d.dst(operands[0], out), VIEW[out]
    sources = [(VIEW[k], d.src(x, k)) for k, x in zip(kinds, operands[1:], strict=True)]

    def run(w: Any, m: Any) -> None:
        v = w.v
        result = f(*[v[k][i] for k, i in sources])
        if m is None:
            v[vo][o][:] = result
        else:
            np.copyto(v[vo][o], result, where=m, casting="unsafe")

    if len(sources) == 1:
        ((ka, a),) = sources

        def of_one(w: Any, m: Any) -> None:
            v = w.v
            result = f(v[ka][a])
            if m is None:
                v[vo][o][:] = result
            else:
                np.copyto(v[vo][o], result, where=m, casting="unsafe")

        d.alu(of_one)
    else:
        d.alu(run)


_S32 = -(1 << 31), (1 << 31) - 1
_HALVES = {"u16x2": np.uint16, "s16x2": np.int16}


def _on_halves(d: Decoder, f: Callable[[Any, Any], Any]) -> None:
    """``d = f(a, b)`` on both halves of words (`.u16x2`, `.s16x2`)."""
    d.needs(90)
    half = _HALVES[d.type]

    def run(a: Any, b: Any) -> Any:
        return f(np.ascontiguousarray(a).view(half), np.ascontiguousarray(b).view(half)).view(np.uint32)

    function(d, run, "b32", "b32", "b32")


def _int_add(d: Decoder, ufunc: Any) -> None:
    kind = d.type
    d.only(kind, "sat")
    if kind in _HALVES:
        _on_halves(d, ufunc)
    elif "sat" in d.mods:
        function(
            d, lambda a, b: np.clip(ufunc(a.astype(np.int64), b.astype(np.int64)), *_S32), "s32", "s32", "s32"
        )
    else:
        ufunc2(d, ufunc, kind)


def add(d: Decoder) -> None:
    _int_add(d, np.add)


def sub(d: Decoder) -> None:
    _int_add(d, np.subtract)


def _product(mode: str, kind: str) -> tuple[Callable[[Any, Any], Any], str]:
    """The product function of mul and mad in a mode, and its result type."""
    bits = _BITS[kind]
    if mode == "lo":
        return np.multiply, kind
    if mode == "wide":
        out = WIDE[kind]
        wide = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}[out]
        return lambda a, b: a.astype(wide) * b.astype(wide), out
    if bits == 64:
        signed = kind == "s64"

        def high(a: Any, b: Any) -> Any:
            exact = [(int(x) * int(y)) >> 64 for x, y in zip(a, b, strict=True)]
            return np.array(exact, np.int64 if signed else np.uint64)

        return high, kind
    wide_type = np.int64 if kind[0] == "s" else np.uint64
    shift = wide_type(bits)
    return lambda a, b: (a.astype(wide_type) * b.astype(wide_type)) >> shift, kind


def mul(d: Decoder) -> None:
    kind = d.type
    mode = d.one_of(("lo", "hi", "wide"))
    d.only(kind)
    f, out = _product(mode, kind)
    if mode == "lo":
        ufunc2(d, np.multiply, kind)
    else:
        function(d, f, out, kind, kind)


def mad(d: Decoder) -> None:
    kind = d.type
    mode = d.one_of(("lo", "hi", "wide"))
    saturates = d.has("sat")
    d.only(kind)
    f, out = _product(mode, kind)
    if saturates:
        if (mode, kind) != ("hi", "s32"):
            d.refuse("`.sat` is for `mad.hi.s32`")
        function(d, lambda a, b, c: np.clip(f(a, b) + c, *_S32), "s32", "s32", "s32", "s32")
    elif mode == "lo":
        # Wraps as the result's type does.
        function(d, lambda a, b, c: a * b + c, out, kind, kind, out)
    else:
        function(d, lambda a, b, c: f(a, b).astype(c.dtype) + c, out, kind, kind, out)


@instruction("mul24", "mad24")
def mul24(d: Decoder) -> None:
    kind = d.type
    mode = d.one_of(("lo", "hi"))
    shift = np.int64(0 if mode == "lo" else 16)

    def low24(x: Any) -> Any:
        y = x.astype(np.int64) & 0xFFFFFF
        return (y ^ 0x800000) - 0x800000 if kind == "s32" else y

    def product(a: Any, b: Any) -> Any:
        return ((low24(a) * low24(b)) >> shift).astype(np.uint32).view(a.dtype)

    if d.parts[0] == "mul24":
        function(d, product, kind, kind, kind)
    else:
        function(d, lambda a, b, c: product(a, b) + c, kind, kind, kind, kind)


@instruction("sad")
def sad(d: Decoder) -> None:
    kind = d.type
    function(d, lambda a, b, c: c + np.where(a < b, b - a, a - b), kind, kind, kind, kind)


def _truncated(a: Any, b: Any) -> tuple[Any, Any]:
    """Quotient toward zero and remainder; a division by zero gives all ones and the dividend."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    with np.errstate(all="ignore"):
        q = a // safe
        r = a - q * safe
    if a.dtype.kind == "i":
        fix = (r != 0) & ((a < 0) != (safe < 0))
        q = np.where(fix, q + 1, q)
        r = np.where(fix, r - safe, r)
    zero = b == 0
    ones = a.dtype.type(-1) if a.dtype.kind == "i" else a.dtype.type(np.iinfo(a.dtype).max)
    return np.where(zero, ones, q), np.where(zero, a, r)


def div(d: Decoder) -> None:
    function(d, lambda a, b: _truncated(a, b)[0], d.type, d.type, d.type)


@instruction("rem")
def rem(d: Decoder) -> None:
    function(d, lambda a, b: _truncated(a, b)[1], d.type, d.type, d.type)


def minimum(d: Decoder) -> None:
    relu = d.has("relu")
    d.only(d.type)
    ufunc = np.minimum if d.parts[0] == "min" else np.maximum
    if relu and d.type not in ("s32", "s16x2"):
        d.refuse("`.relu` is for .s32 and .s16x2")

    def clamped(a: Any, b: Any) -> Any:
        return np.maximum(ufunc(a, b), a.dtype.type(0))

    if d.type in _HALVES:
        _on_halves(d, clamped if relu else ufunc)
    elif relu:
        d.needs(90)
        function(d, clamped, d.type, d.type, d.type)
    else:
        ufunc2(d, ufunc, d.type)


def negative(d: Decoder) -> None:
    function(d, np.negative if d.parts[0] == "neg" else np.abs, d.type, d.type)


_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@instruction("and", "or", "xor")
def logic(d: Decoder) -> None:
    kind = d.type
    if kind != "pred":
        ufunc2(d, _LOGIC[d.parts[0]], kind)
        return
    (a, na), (b, nb) = d.src_pred(d.operands[1]), d.src_pred(d.operands[2])
    o, f = d.dst(d.operands[0], "pred"), _LOGIC[d.parts[0]]

    def run(w: Any, m: Any) -> None:
        p = w.v[9]
        if m is None and not (na or nb):
            f(p[a], p[b], p[o])
        else:
            np.copyto(p[o], f(p[a] ^ na, p[b] ^ nb), where=True if m is None else m)

    d.alu(run)


@instruction("not")
def invert(d: Decoder) -> None:
    if d.type != "pred":
        function(d, np.invert, d.type, d.type)
        return
    a, na = d.src_pred(d.operands[1])
    o = d.dst(d.operands[0], "pred")
    d.alu(lambda w, m: np.copyto(w.v[9][o], w.v[9][a] ^ (not na), where=True if m is None else m))


@instruction("cnot")
def cnot(d: Decoder) -> None:
    function(d, lambda a: a == 0, d.type, d.type)


@instruction("lop3")
def lop3(d: Decoder) -> None:
    boolean = d.one_of(("and", "or"), "none")
    d.has("BoolOp")
    table = d.immediate(d.operands[4])

    def run(a: Any, b: Any, c: Any) -> Any:
        out = np.zeros_like(a)
        for i in range(8):
            if table >> i & 1:
                out |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return out

    if boolean == "none":
        function(d, run, "b32", "b32", "b32", "b32", operands=d.operands[:4])
        return
    # `lop3.or.b32 d|p, a, b, c, table, q`: p is whether d is not zero, combined with q.
    d.count(6)
    to, predicate = d.pair(d.operands[0])
    if predicate is None:
        d.bad("`d|p` is needed")
    o, p = d.dst(to, "b32"), d.dst(predicate, "pred")
    rows = [d.src(x, "b32") for x in d.operands[1:4]]
    q, negated = d.src_pred(d.operands[5])
    combine = _LOGIC[boolean]

    def with_predicate(w: Any, m: Any) -> None:
        r, where = w.v[3], True if m is None else m
        out = run(*(r[i] for i in rows))
        truth = combine(out != 0, w.v[9][q] ^ negated)
        np.copyto(r[o], out, where=where)
        np.copyto(w.v[9][p], truth, where=where)

    d.alu(with_predicate)


@instruction("shl", "shr")
def shift(d: Decoder) -> None:
    kind = d.type
    bits = _BITS[kind]
    left = d.parts[0] == "shl"

    def run(a: Any, n: Any) -> Any:
        # Amounts beyond the width shift everything out (PTX ISA); NumPy leaves them undefined.
        amount = np.minimum(n, bits - 1).astype(a.dtype)
        over = n >= bits
        if left:
            out = a << amount
            return np.where(over, a.dtype.type(0), out)
        out = a >> amount
        return out if a.dtype.kind == "i" else np.where(over, a.dtype.type(0), out)

    if len(d.operands) == 3 and getattr(d.operands[2], "kind", "") == "int" and d.operands[2].value < bits:  # type: ignore[union-attr]
        amount = d.operands[2].value  # type: ignore[union-attr]
        ufunc = np.left_shift if left else np.right_shift
        o, a = d.dst(d.operands[0], kind), d.src(d.operands[1], kind)
        _in_place(d, ufunc, VIEW[kind], o, a, d.program.constant(str(bits), amount))
        return
    function(d, run, kind, kind, "u32")


@instruction("shf")
def funnel(d: Decoder) -> None:
    left = d.one_of(("l", "r")) == "l"
    clamp = d.one_of(("clamp", "wrap")) == "clamp"

    def run(a: Any, b: Any, c: Any) -> Any:
        n = (np.minimum(c, 32) if clamp else c & np.uint32(31)).astype(np.uint64)
        both = b.astype(np.uint64) << np.uint64(32) | a
        return (both << n >> np.uint64(32) if left else both >> n).astype(np.uint32)

    function(d, run, "b32", "b32", "b32", "u32")


# The selectors of the modes, by the low two bits of c (PTX ISA, "prmt").
_PERMUTE = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543), "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333), "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210), "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}  # fmt: skip


@instruction("prmt")
def permute(d: Decoder) -> None:
    mode = d.one_of(tuple(_PERMUTE), "none")
    d.only("b32")
    selectors = np.array(_PERMUTE.get(mode, (0, 0, 0, 0)), np.uint32)

    def run(a: Any, b: Any, c: Any) -> Any:
        if mode != "none":
            c = selectors[c & np.uint32(3)]
        both = b.astype(np.uint64) << np.uint64(32) | a
        out = np.zeros(32, np.uint32)
        for i in range(4):
            select = (c >> np.uint32(4 * i)) & np.uint32(15)
            byte = (both >> ((select & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint32) & 0xFF
            byte = np.where(select & 8, np.where(byte & 0x80, np.uint32(0xFF), np.uint32(0)), byte)
            out |= byte << np.uint32(8 * i)
        return out

    function(d, run, "b32", "b32", "b32", "b32")


@instruction("bfe")
def extract(d: Decoder) -> None:
    kind = d.type
    bits = _BITS[kind]

    def run(a: Any, b: Any, c: Any) -> Any:
        out = []
        for x, p, n in zip(a.tolist(), (b & 0xFF).tolist(), (c & 0xFF).tolist(), strict=True):
            x &= (1 << bits) - 1
            if kind[0] == "s" and x >> (bits - 1):
                x -= 1 << bits
            field = (x >> p) & ((1 << n) - 1) if n else 0
            if kind[0] == "s" and n and (x >> min(p + n - 1, bits - 1)) & 1:
                field |= -1 << n
            out.append(field & ((1 << bits) - 1))
        return np.array(out, np.uint64).astype(f"u{bits // 8}").view(a.dtype)

    function(d, run, kind, kind, "u32", "u32")


@instruction("bfi")
def insert(d: Decoder) -> None:
    kind = d.type
    bits = _BITS[kind]

    def run(a: Any, b: Any, c: Any, n: Any) -> Any:
        out = []
        for x, y, p, k in zip(a.tolist(), b.tolist(), (c & 0xFF).tolist(), (n & 0xFF).tolist(), strict=True):
            mask = (((1 << k) - 1) << p) & ((1 << bits) - 1)
            out.append((y & ~mask) | ((x << p) & mask))
        return np.array(out, np.uint64).astype(a.dtype)

    function(d, run, kind, kind, kind, "u32", "u32")


def _leading_zeros(a: Any, bits: int) -> Any:
    x = a.astype(np.uint64)
    out = np.full(x.shape, bits, np.uint32)
    for i in range(bits):
        out = np.where(x >> np.uint64(i) & np.uint64(1), np.uint32(bits - 1 - i), out)
    return out


@instruction("popc", "clz", "brev", "bfind")
def bits(d: Decoder) -> None:
    kind = d.type
    n = _BITS[kind]
    op = d.parts[0]
    if op == "popc":
        function(d, np.bitwise_count, "u32", kind)
    elif op == "clz":
        function(d, lambda a: _leading_zeros(a, n), "u32", kind)
    elif op == "brev":
        swap = lambda a: np.array([int(f"{x:0{n}b}"[::-1], 2) for x in a.tolist()], a.dtype)  # noqa: E731
        function(d, swap, kind, kind)
    else:
        shift_amount = d.has("shiftamt")

        def find(a: Any) -> Any:
            x = np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
            zeros = _leading_zeros(x.astype(f"u{n // 8}"), n)
            found = zeros if shift_amount else np.uint32(n - 1) - zeros
            return np.where(zeros == n, np.uint32(0xFFFFFFFF), found)

        function(d, find, "u32", kind)


@instruction("bmsk")
def bit_mask(d: Decoder) -> None:
    clamp = d.one_of(("clamp", "wrap")) == "clamp"

    def run(a: Any, b: Any) -> Any:
        start, count = a.astype(np.uint64), b.astype(np.uint64)
        if not clamp:
            start, count = start & np.uint64(31), count & np.uint64(31)
        start, count = np.minimum(start, np.uint64(32)), np.minimum(count, np.uint64(32))
        one = np.uint64(1)
        return ((((one << count) - one) << start) & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    function(d, run, "u32", "u32", "u32")


def _parts(x: Any, word: Any) -> Any:
    return np.ascontiguousarray(x).view(word).reshape(32, -1).astype(np.int64)


@instruction("dp4a", "dp2a")
def dot(d: Decoder) -> None:
    """Four products of bytes, or two of halves with the lower or upper two bytes, and a sum."""
    ta, tb = d.mods[-2:]
    if not {ta, tb} <= {"u32", "s32"}:
        d.unsupported()
    half = d.one_of(("lo", "hi")) if d.parts[0] == "dp2a" else ""
    d.only(ta, tb)
    out = "s32" if "s32" in (ta, tb) else "u32"
    bytes_of = {"s32": np.int8, "u32": np.uint8}
    halves_of = {"s32": np.int16, "u32": np.uint16}
    chosen = {"": slice(0, 4), "lo": slice(0, 2), "hi": slice(2, 4)}[half]

    def run(a: Any, b: Any, c: Any) -> Any:
        left = _parts(a, halves_of[ta] if half else bytes_of[ta])
        total = (left * _parts(b, bytes_of[tb])[:, chosen]).sum(1) + c
        return total.astype(np.uint32).view(c.dtype)

    function(d, run, out, ta, tb, out)


@instruction("szext")
def extend(d: Decoder) -> None:
    """The low b bits of a, with sign or zeros above."""
    kind = d.type
    clamp = d.one_of(("clamp", "wrap")) == "clamp"
    d.only(kind)

    def run(a: Any, b: Any) -> Any:
        count = b.astype(np.int64) & 0xFFFFFFFF
        count = np.minimum(count, 32) if clamp else count & 31
        value = a.astype(np.int64) & ((np.int64(1) << count) - 1)
        negative = (kind == "s32") & (count > 0) & (value >> np.maximum(count - 1, 0) & 1 == 1)
        return np.where(negative, value - (np.int64(1) << count), value).astype(np.uint32).view(a.dtype)

    function(d, run, kind, kind, "u32")


@instruction("fns")
def find_nth_set(d: Decoder) -> None:
    """The position of the n-th set bit of a mask, from a base up or down."""
    d.only("b32")

    def one(mask: int, base: int, offset: int) -> int:
        if offset == 0:
            return base if base < 32 and mask >> base & 1 else 0xFFFFFFFF
        position, left, step = base, abs(offset) - 1, 1 if offset > 0 else -1
        while 0 <= position < 32:
            if mask >> position & 1:
                if left == 0:
                    return position
                left -= 1
            position += step
        return 0xFFFFFFFF

    def run(mask: Any, base: Any, offset: Any) -> Any:
        rows = zip(mask.tolist(), base.tolist(), offset.tolist(), strict=True)
        return np.array([one(*x) for x in rows], np.uint32)

    function(d, run, "b32", "b32", "b32", "s32")
