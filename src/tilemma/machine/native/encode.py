"""Instructions on registers as operations of ``lanes.c``; the forms that it has, by opcode."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tilemma.errors import TilemmaError
from tilemma.machine.native import library
from tilemma.machine.state import ALL_LANES
from tilemma.machine.syntax import TYPE_BYTES, Immediate, Register, Sink, Symbol, Vector

if TYPE_CHECKING:
    from tilemma.machine.decode import Decoder
    from tilemma.machine.program import Step

# Operation, destination, sources a, b, c, e.  The guard follows.
Code = tuple[int, int, int, int, int, int]

_CLASSES = ("16", "32", "64")
_ORDERS = ("EQ", "NE", "LT", "LE", "GT", "GE")
_PLAIN = (
    "ADD", "SUB", "MUL", "MAD", "AND", "OR", "XOR", "NOT", "MOV", "NEG", "SHL", "SELP",
)  # fmt: skip
_SIGNED = ("MIN", "MAX", "SHR", "DIV", "REM", *_ORDERS)
OPERATIONS = (
    *(f"{op}_{bits}" for op in _PLAIN for bits in _CLASSES),
    *(f"{op}_{sign}{bits}" for op in _SIGNED for sign in "US" for bits in _CLASSES),
    "MULHI_U32", "MULHI_S32", "MULWIDE_U32", "MULWIDE_S32", "MULWIDE_U16", "MULWIDE_S16", "MADWIDE_U32",
    "MADWIDE_S32", "PRMT", "BFE_U32", "BFE_S32", "SHF_L_WRAP", "SHF_R_WRAP", "LOP3", "BFI", "POPC_32", "CLZ_32",
    "BREV_32", "BFIND_U32", "BFIND_SHIFT_U32",
    "MOV_P", "AND_P", "OR_P", "XOR_P", "PACK_32", "PACK_64", "UNPACK_32", "UNPACK_64", "CVT_INT",
    "ADD_F32", "SUB_F32", "MUL_F32", "FMA_F32", "NEG_F32", "ABS_F32", "MIN_F32", "MAX_F32", "DIV_F32", "RCP_F32",
    "SQRT_F32", "RSQRT_F32", "EX2_F32", "LG2_F32", "SIN_F32", "COS_F32", "TANH_F32",
    "CVT_F32_S32", "CVT_F32_U32", "CVT_F32_F16", "CVT_F32_BF16",
    *(f"{op}_F32" for op in _ORDERS), *(f"{op}U_F32" for op in _ORDERS), "NAN_F32", "NUM_F32",
    "CVT_F16", "CVT_BF16", "CVT_F16X2", "CVT_BF16X2", "CVT_S32_F32", "CVT_U32_F32", "PARAM_32", "PARAM_64",
)  # fmt: skip
NUMBER = {name: i for i, name in enumerate(OPERATIONS)}
_INTEGERS = {
    f"{kind}{bits}": (sign, bits) for kind, sign in (("u", "U"), ("s", "S"), ("b", "U")) for bits in _CLASSES
}
_TYPE_CODES = {f"{sign}{8 * n}": n + (16 if sign == "s" else 0) for sign in "us" for n in (1, 2, 4, 8)}
_COMPARE = {"lo": "LT", "ls": "LE", "hi": "GT", "hs": "GE", **{x.lower(): x for x in _ORDERS}}
_COMPARE_FLOATS = {
    x: x.upper() for x in (*map(str.lower, _ORDERS), "equ", "neu", "ltu", "leu", "gtu", "geu", "nan", "num")
}
_COMBINE = {"and": 1, "or": 2, "xor": 3}
_INTEGRAL = ("rni", "rzi", "rmi", "rpi")


@cache
def _table() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Opcode -> operation and the types of destination and sources, where each operand is a plain register."""
    table: dict[str, tuple[str, tuple[str, ...]]] = {}
    for kind, (sign, bits) in _INTEGERS.items():
        if kind[0] == "b":
            for op in ("and", "or", "xor"):
                table[f"{op}.{kind}"] = f"{op.upper()}_{bits}", (kind,) * 3
            table[f"not.{kind}"] = f"NOT_{bits}", (kind,) * 2
            table[f"shl.{kind}"] = f"SHL_{bits}", (kind, kind, "u32")
        else:
            for op in ("add", "sub"):
                table[f"{op}.{kind}"] = f"{op.upper()}_{bits}", (kind,) * 3
            table[f"mul.lo.{kind}"] = f"MUL_{bits}", (kind,) * 3
            table[f"mad.lo.{kind}"] = f"MAD_{bits}", (kind,) * 4
            for op in ("min", "max", "div", "rem"):
                table[f"{op}.{kind}"] = f"{op.upper()}_{sign}{bits}", (kind,) * 3
        if kind[0] == "s":
            table[f"neg.{kind}"] = f"NEG_{bits}", (kind,) * 2
        table[f"shr.{kind}"] = f"SHR_{sign}{bits}", (kind, kind, "u32")
        table[f"mov.{kind}"] = f"MOV_{bits}", (kind,) * 2
    table["mov.f32"], table["mov.f64"] = ("MOV_32", ("f32",) * 2), ("MOV_64", ("f64",) * 2)
    for sign in "us":
        narrow, wide, big = f"{sign}16", f"{sign}32", f"{sign}64"
        upper = sign.upper()
        table[f"mul.hi.{wide}"] = f"MULHI_{upper}32", (wide,) * 3
        table[f"mul.wide.{wide}"] = f"MULWIDE_{upper}32", (big, wide, wide)
        table[f"mul.wide.{narrow}"] = f"MULWIDE_{upper}16", (wide, narrow, narrow)
        table[f"mad.wide.{wide}"] = f"MADWIDE_{upper}32", (big, wide, wide, big)
        table[f"bfe.{wide}"] = f"BFE_{upper}32", (wide, wide, "u32", "u32")
    table["prmt.b32"] = "PRMT", ("b32",) * 4
    for side in "lr":
        table[f"shf.{side}.wrap.b32"] = f"SHF_{side.upper()}_WRAP", ("b32", "b32", "b32", "u32")
    table["brev.b32"] = "BREV_32", ("b32", "b32")
    table["bfind.u32"], table["bfind.shiftamt.u32"] = (
        ("BFIND_U32", ("u32",) * 2),
        ("BFIND_SHIFT_U32", ("u32",) * 2),
    )
    table["popc.b32"], table["clz.b32"] = ("POPC_32", ("u32", "b32")), ("CLZ_32", ("u32", "b32"))
    for op in ("add", "sub", "mul"):
        for rounding in ("", ".rn"):
            table[f"{op}{rounding}.f32"] = f"{op.upper()}_F32", ("f32",) * 3
    table["fma.rn.f32"] = "FMA_F32", ("f32",) * 4
    for op in ("neg", "abs"):
        table[f"{op}.f32"] = f"{op.upper()}_F32", ("f32",) * 2
    for op in ("min", "max"):
        table[f"{op}.f32"] = f"{op.upper()}_F32", ("f32",) * 3
    for kind in ("s32", "u32"):
        table[f"cvt.rn.f32.{kind}"] = f"CVT_F32_{kind.upper()}", ("f32", kind)
    for kind in ("f16", "bf16"):
        table[f"cvt.f32.{kind}"] = f"CVT_F32_{kind.upper()}", ("f32", kind)
        table[f"cvt.rn.{kind}.f32"] = f"CVT_{kind.upper()}", (kind, "f32")
        table[f"cvt.rn.{kind}x2.f32"] = f"CVT_{kind.upper()}X2", (f"{kind}x2", "f32", "f32")
    return table


def code_of(d: Decoder) -> Code | None:
    """The operation of the instruction of ``d``, which its decoder has accepted; None where there is none."""
    if d.kind != 0 or any(isinstance(x, Sink) for x in d.operands):
        return None
    try:
        return _encode(d)
    except TilemmaError:
        # An operand that only the decoder takes.
        return None


def _encode(d: Decoder) -> Code | None:
    special = _SPECIAL.get(d.parts[0])
    code = special(d) if special is not None else None
    if code is not None:
        return code
    found = _table().get(".".join(d.parts))
    if found is None:
        return None
    name, kinds = found
    if len(d.operands) != len(kinds) or any(isinstance(x, Vector) for x in d.operands):
        return None
    rows = [d.dst(d.operands[0], kinds[0]), *map(d.src, d.operands[1:], kinds[1:])]
    return _code(name, *rows)


def _code(name: str, *rows: int) -> Code:
    d, a, b, c, e = (*rows, *(0,) * (5 - len(rows)))
    return NUMBER[name], d, a, b, c, e


def _setp(d: Decoder) -> Code | None:
    kind, op = d.type, d.mods[0]
    combine = [m for m in d.mods if m in _COMBINE]
    if (
        len(d.parts) != 3 + len(combine)
        or len(d.operands) != 3 + len(combine)
        or not isinstance(d.operands[0], Register)
    ):
        return None
    if kind in _INTEGERS and op in _COMPARE:
        sign, bits = _INTEGERS[kind]
        name = f"{_COMPARE[op]}_{sign}{bits}"
    elif kind == "f32" and op in _COMPARE_FLOATS:
        name = f"{_COMPARE_FLOATS[op]}_F32"
    else:
        return None
    third = -1
    if combine:
        row, negated = d.src_pred(d.operands[3])
        third = row << 3 | negated << 2 | _COMBINE[combine[0]]
    return _code(name, d.dst(d.operands[0], "pred"), d.src(d.operands[1], kind), d.src(d.operands[2], kind), third)


def _selp(d: Decoder) -> Code | None:
    kind = d.type
    if len(d.operands) != 4 or kind not in (*_INTEGERS, "f32", "f64"):
        return None
    row, negated = d.src_pred(d.operands[3])
    bits = _INTEGERS[kind][1] if kind in _INTEGERS else kind[1:]
    rows = d.dst(d.operands[0], kind), d.src(d.operands[1], kind), d.src(d.operands[2], kind)
    return _code(f"SELP_{bits}", *rows, row << 1 | negated)


def _mov(d: Decoder) -> Code | None:
    to, source = d.operands
    if len(d.parts) != 2:
        return None
    if d.type == "pred":
        row, negated = d.src_pred(source)
        return _code("MOV_P", d.dst(to, "pred"), row, 0, int(negated))
    bits = d.type[1:]
    half = {"32": "b16", "64": "b32"}.get(bits)
    if half is None:
        return None
    if isinstance(source, Vector) and isinstance(to, Register) and len(source.items) == 2:
        return _code(f"PACK_{bits}", d.dst(to, d.type), *(d.src(x, half) for x in source.items))
    if isinstance(to, Vector) and not isinstance(source, Vector) and len(to.items) == 2:
        low, high = (d.dst(x, half) for x in to.items)
        return _code(f"UNPACK_{bits}", low, d.src(source, d.type), high)
    return None


def _logic(d: Decoder) -> Code | None:
    if d.type != "pred" or len(d.parts) != 2:
        return None
    (a, not_a), *rest = (d.src_pred(x) for x in d.operands[1:])
    to = d.dst(d.operands[0], "pred")
    if d.parts[0] == "not":
        return _code("MOV_P", to, a, 0, 1 - int(not_a))
    ((b, not_b),) = rest
    return _code(f"{d.parts[0].upper()}_P", to, a, b, int(not_a) | int(not_b) << 1)


def _cvt(d: Decoder) -> Code | None:
    if len(d.parts) == 4 and d.parts[1] in _INTEGRAL and d.parts[2:] in (("s32", "f32"), ("u32", "f32")):
        to, source = d.parts[2:]
        rows = d.dst(d.operands[0], to), d.src(d.operands[1], source)
        return _code(f"CVT_{to.upper()}_F32", *rows, _INTEGRAL.index(d.parts[1]))
    if len(d.parts) != 3 or not set(d.parts[1:]) <= _TYPE_CODES.keys():
        return None
    to, source = d.parts[1:]
    (to_class, o), (from_class, a) = d.dst_any(d.operands[0], to), d.src_any(d.operands[1], source)
    if not {to_class, from_class} <= set(_CLASSES):
        return None
    bytes_ = int(to_class) // 8 | int(from_class) // 8 << 4
    return _code("CVT_INT", o, a, bytes_, _TYPE_CODES[to], _TYPE_CODES[source])


def _lop3(d: Decoder) -> Code | None:
    if d.parts != ("lop3", "b32") or not isinstance(d.operands[4], Immediate):
        return None
    rows = [d.src(x, "b32") for x in d.operands[1:4]]
    return _code("LOP3", d.dst(d.operands[0], "b32"), *rows, d.operands[4].value & 255)


def _bfi(d: Decoder) -> Code | None:
    if d.parts != ("bfi", "b32"):
        return None
    return _code(
        "BFI",
        d.dst(d.operands[0], "b32"),
        *(d.src(x, k) for x, k in zip(d.operands[1:], ("b32", "b32", "u32", "u32"), strict=True)),
    )


def _parameter(d: Decoder) -> Code | None:
    size = TYPE_BYTES.get(d.type)
    base = getattr(d.operands[1], "base", None)
    if (
        d.parts[1] not in ("param", "param::entry")
        or len(d.parts) != 3
        or size not in (4, 8)
        or not isinstance(base, Symbol)
    ):
        return None
    if base.name in d.program.local_offsets or isinstance(d.operands[0], Vector):
        return None
    cls, row = d.dst_any(d.operands[0], d.type)
    if int(cls) != 8 * size:
        return None
    return _code(f"PARAM_{cls}", row, d.symbol_value(base) + d.operands[1].offset)  # type: ignore[union-attr]


def _approximate(d: Decoder) -> Code | None:
    """Functions and quotients that are made in double precision, with or without ``.ftz``."""
    name, *rest = d.parts
    ftz = "ftz" in rest
    if [x for x in rest if x != "ftz"] != ["full" if name == "div" else "approx", "f32"]:
        return None
    to, *sources = (d.dst(d.operands[0], "f32"), *(d.src(x, "f32") for x in d.operands[1:]))
    if len(sources) != 1 + (name == "div"):
        return None
    return _code(f"{name.upper()}_F32", to, sources[0], sources[-1], 0, int(ftz))


def _cvta(d: Decoder) -> Code | None:
    from tilemma.machine.exec.move import WINDOWS

    to_space = d.parts[1] == "to"
    if d.type != "u64" or len(d.parts) != 3 + to_space or d.parts[1 + to_space] not in WINDOWS:
        return None
    given, window = d.operands[1], WINDOWS[d.parts[1 + to_space]]
    row = d.program.constant("64", d.symbol_value(given)) if isinstance(given, Symbol) else d.src(given, "u64")
    if not window:
        return _code("MOV_64", d.dst(d.operands[0], "u64"), row)
    name = "SUB_64" if to_space else "ADD_64"
    return _code(name, d.dst(d.operands[0], "u64"), row, d.program.constant("64", window))


_SPECIAL: dict[str, Callable[[Decoder], Code | None]] = {
    "setp": _setp, "selp": _selp, "mov": _mov, "and": _logic, "or": _logic, "xor": _logic, "not": _logic,
    "cvt": _cvt, "lop3": _lop3, "bfi": _bfi, "ld": _parameter, "cvta": _cvta,
    **dict.fromkeys(("div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"), _approximate),
}  # fmt: skip


Operations = ctypes.Array[ctypes.c_int32]


def fused(
    steps: list[Step], runs: list[Callable[..., Any]]
) -> tuple[list[Callable[..., Any]], Operations | None, Around | None]:
    """``runs`` of ALU steps, encoded ones in a row as one call; the operations, if one call has all, and what is
    around them."""
    native = library.lanes()
    if native is None:
        return runs, None, None
    out: list[Callable[..., Any]] = []
    start = 0
    table: Operations | None = None
    around: Around | None = None
    while start < len(steps):
        kinds = {_kind(steps[start])}
        end = start + 1
        while _OWN not in kinds and end < len(steps) and _kind(steps[end]) != _OWN:
            kinds.add(_kind(steps[end]))
            end += 1
        chunk, closures = steps[start:end], runs[start:end]
        table = around = None
        if _OWN in kinds:
            out += closures
        elif _CHECKED in kinds:
            around = Around.of(chunk)
            run, table = _checked(native, chunk, closures, around)
            out.append(run)
        else:
            run, table = _chunk(native, chunk, closures)
            out.append(run)
        start = end
    if len(out) > 1 or (around is not None and around.reads):
        table = None
    return out, table, around


# How a step runs: by its own closure, as an operation, or as one with checks around it.
_OWN, _WHOLE, _CHECKED = range(3)


def _kind(step: Step) -> int:
    if _whole(step):
        return _WHOLE
    checks = step.checks
    unguarded = step.guard < 0 and step.check_guard is None
    return _CHECKED if step.code and unguarded and checks is not None and checks.run is step.run else _OWN


@dataclass(frozen=True, slots=True)
class Around:
    """The checks around a sequence: registers that it reads and must be defined, that it defines, those of wgmma,
    and those whose origins it ends."""

    reads: tuple[int, ...]
    defines: dict[int, Any]
    touches: dict[int, Any]
    forgets: frozenset[int]

    @staticmethod
    def of(steps: list[Step]) -> Around:
        """What stands around all of ``steps``."""
        reads: list[int] = []
        defines: dict[int, Any] = {}
        touches: dict[int, Any] = {}
        forgets: set[int] = set()
        for step in steps:
            checks = step.checks if _kind(step) == _CHECKED else None
            if checks is None:
                continue
            reads += (r for r in checks.reads if r not in defines)
            defines.update(dict.fromkeys(checks.defines, ALL_LANES))
            touches.update(dict.fromkeys(checks.touches, step.instruction))
            forgets.update(checks.forgets)
        return Around(tuple(reads), defines, touches, frozenset(forgets))

    def enter(self, w: Any, *, touching: bool = True) -> None:
        """All lanes of ``w`` have run it, and no check finds anything; not ``touching``: before a wgmma.fence."""
        if touching and self.touches:
            w.touched.update(self.touches)
            w.record.touched = 1
        w.defined.update(self.defines)


def _checked(
    native: Any, steps: list[Step], runs: list[Callable[..., Any]], around: Around
) -> tuple[Callable[..., Any], Operations]:
    """Steps with checks: where all lanes run and no check can find anything, one call for all of them."""
    call, table = _chunk(native, steps, runs)
    reads, touches, forgets = around.reads, around.touches, around.forgets

    def run(w: Any, m: Any) -> None:
        known = w.defined
        if (
            m is not None
            or not w.full
            or (touches and w.record.in_flight)
            or any(known.get(r) is not ALL_LANES for r in reads)
        ):
            for one in runs:
                one(w, m)
            return
        around.enter(w)
        for r in forgets:
            w.origins.pop(r, None)
        call(w, m)

    return run, table


def _whole(step: Step) -> bool:
    """Whether the operation stands for all that the step does: no check has been wrapped around it."""
    return step.code is not None and step.run is step.encoded and step.check_guard is None


def _chunk(
    native: Any, steps: list[Step], runs: list[Callable[..., Any]]
) -> tuple[Callable[..., Any], Operations]:
    numbers: list[int] = []
    for step in steps:
        assert step.code is not None
        numbers += (*step.code, -1 if step.guard < 0 else step.guard << 1 | step.negated)
    table = (ctypes.c_int32 * len(numbers))(*numbers)
    count = len(steps)

    def run(w: Any, m: Any) -> None:
        done = native(w.registers, ctypes.addressof(table), count, None if m is None else m.tobytes())
        if done != count:
            for left in runs[done:]:
                left(w, m)

    return run, table
