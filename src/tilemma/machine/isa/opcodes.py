"""Which modifiers and types an instruction takes, on which architecture: instructions on registers, and accesses.

Sources: PTX ISA 9.0, the syntax of each instruction; where ptxas 13 is more lenient than the text (``cvt.rn`` of
bf16 to f32), as ptxas takes them.  The order of modifiers is free, as in ptxas; the types come last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product

from tilemma.machine.isa.accesses import ACCESSES, hints_refused
from tilemma.machine.isa.forms import Arch
from tilemma.machine.isa.rows import Row
from tilemma.machine.isa.synchronising import SYNCHRONISING, key_of


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a form does not exist; or, where ``needs`` is given, the architecture that has it."""

    reason: str
    needs: int = 0
    accelerated: bool = False


_RND, _INTEGRAL = "rn|rz|rm|rp", "rni|rzi|rmi|rpi"
_INTS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
# The integers of arithmetic, and untyped bits.
_WIDE = "u16 s16 u32 s32 u64 s64"
_BITS = "b16 b32 b64"
_ADD = (
    Row("f32", f"[{_RND}] [ftz] [sat]"),
    Row("f64", f"[{_RND}]"),
    Row("f16 f16x2", "[rn] [ftz] [sat]"),
    Row("bf16 bf16x2", "[rn]", 90),
    Row("f32x2", f"[{_RND}] [ftz]", 100),
)
# `add.f32.f16`: sums in f32 of narrower terms.
_MIXED = (Row("f32.f16|bf16", f"[{_RND}] [sat]", 100),)
_CARRIED = "u32 s32 u64 s64"
_EXTREMA = (
    Row(_WIDE), Row("u16x2", "", 90), Row("s16x2", "[relu]", 90), Row("s32", "relu", 90),
    Row("f64", operands=3),
    Row("f32 f16 f16x2", "[ftz] [NaN]", operands=3),
    Row("f32 f16 f16x2", "[ftz] [NaN] xorsign.abs", 86, operands=3),
    Row("bf16 bf16x2", "[NaN]", operands=3),
    Row("bf16 bf16x2", "[NaN] xorsign.abs", 86, operands=3),
    Row("f32", "[ftz] [NaN] [abs]", 100, operands=4),
)  # fmt: skip
_SIGN = (Row("s16 s32 s64 f64 bf16 bf16x2"), Row("f32 f16 f16x2", "[ftz]"))
_WAVES = (Row("f32", "approx [ftz]"),)

_EQUAL, _ORDERED, _UNSIGNED = "eq|ne", "lt|le|gt|ge", "lo|ls|hi|hs"
_UNORDERED = "equ|neu|ltu|leu|gtu|geu|num|nan"
_FLOAT_TESTS = f"{_EQUAL}|{_ORDERED}|{_UNORDERED}"
_OF_INTS = (
    (f"{_EQUAL}|{_ORDERED}", "s16 s32 s64"),
    (f"{_EQUAL}|{_ORDERED}|{_UNSIGNED}", "u16 u32 u64"),
    (_EQUAL, _BITS),
)


def _setp() -> Iterator[Row]:
    for tests, types in _OF_INTS:
        yield Row(types, f"{tests} [and|or|xor]")
    yield Row("f32 f16 f16x2", f"{_FLOAT_TESTS} [and|or|xor] [ftz]")
    yield Row("f64", f"{_FLOAT_TESTS} [and|or|xor]")
    yield Row("bf16 bf16x2", f"{_FLOAT_TESTS} [and|or|xor]", 90)


def _set() -> Iterator[Row]:
    """``set.test{.bool}{.ftz}.dtype.stype``."""
    for results, sm in (("u32|s32|f32|f16", 0), ("bf16", 90)):
        for tests, types in _OF_INTS:
            yield Row(f"{results}.{types.replace(' ', '|')}", f"{tests} [and|or|xor]", sm)
        yield Row(f"{results}.f64", f"{_FLOAT_TESTS} [and|or|xor]", sm)
    floats = f"{_FLOAT_TESTS} [and|or|xor]"
    yield Row("u32|s32|f32|f16.f32 u32|s32|u16|s16|f16.f16 u32|s32|f16x2.f16x2", f"{floats} [ftz]")
    yield Row("bf16.f32|f16|bf16 u32|s32|u16|s16.bf16 u32|s32|bf16x2.bf16x2", floats, 90)


def _range(kind: str) -> tuple[int, int]:
    bits, signed = int(kind[1:]), kind[0] == "s"
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def _conversions() -> Iterator[Row]:
    for to, source in product(_INTS, _INTS):
        (low, high), (least, most) = _range(to), _range(source)
        yield Row(f"{to}.{source}", "" if low <= least and most <= high else "[sat]")
    integers, wide = "|".join(_INTS), _WIDE.replace(" ", "|")
    yield Row(f"{integers}.f16|f64", f"{_INTEGRAL} [sat]")
    yield Row(f"{integers}.f32", f"{_INTEGRAL} [ftz] [sat]")
    yield Row(f"{wide}.bf16", _INTEGRAL, 90)
    yield Row(f"f16|f64.{integers}", f"{_RND} [sat]")
    yield Row(f"f32.{integers}", f"{_RND} [ftz] [sat]")
    yield Row(f"bf16.{wide}", _RND, 90)
    yield Row("f16.f16 f64.f64", f"[{_INTEGRAL}] [sat]")
    yield Row("f32.f32", f"[{_INTEGRAL}] [ftz] [sat]")
    yield Row("bf16.bf16", f"[{_INTEGRAL}]", 90)
    yield Row("f32.f16 f64.f32", "[ftz] [sat]")
    yield Row("f64.f16", "[sat]")
    yield Row("f16.f64", f"{_RND} [sat]")
    yield Row("f32.f64 f16.f32", f"{_RND} [ftz] [sat]")
    yield Row("bf16.f32", f"{_RND} [ftz]")
    yield Row("f16.f32 bf16.f32", "rn|rz [relu] [satfinite]")
    yield Row("bf16.f64", _RND, 90)
    yield Row("bf16.f16 f16.bf16 f64.bf16", f"[{_RND}]", 90)
    yield Row("f32.bf16", f"[{_RND}]")
    yield Row("f32.bf16", f"[{_RND}] ftz", 90)
    yield Row("tf32.f32", "rna [satfinite]")
    yield Row("tf32.f32", "rn|rz [relu]", 90)
    yield Row("tf32.f32", "rn|rz satfinite [relu]", 100)
    yield from _packed_conversions()


def _packed_conversions() -> Iterator[Row]:
    yield Row("f16x2|bf16x2.f32", "rn|rz [relu] [satfinite]")
    yield Row("e4m3x2|e5m2x2.f32|f16x2", "rn satfinite [relu]", 89)
    yield Row("f16x2.e4m3x2|e5m2x2", "rn [relu]", 89)
    yield Row("e2m1x2|e2m3x2|e3m2x2.f32", "rn satfinite [relu]", 100, accelerated=True)
    yield Row("f16x2.e2m1x2|e2m3x2|e3m2x2", "rn [relu]", 100, accelerated=True)
    yield Row("ue8m0x2.f32|bf16x2", "rz|rp [satfinite]", 100, accelerated=True)
    yield Row("bf16x2.ue8m0x2", "rn", 100, accelerated=True)
    # By random bits: sm_120 has none.
    yield Row("f16x2|bf16x2.f32", "rs [relu] [satfinite]", 100, accelerated=True)
    yield Row("e4m3x4|e5m2x4|e2m1x4|e2m3x4|e3m2x4.f32", "rs satfinite [relu]", 100, accelerated=True)


FORMS: dict[str, tuple[Row, ...]] = {
    "add": (*_ADD, *_MIXED, Row(_WIDE), Row("s32", "sat"), Row("u16x2 s16x2", "", 90), Row(_CARRIED, "cc")),
    "sub": (*_ADD, *_MIXED, Row(_WIDE), Row("s32", "sat"), Row(_CARRIED, "cc")),
    "mul": (*_ADD, Row(_WIDE, "hi|lo"), Row("u16 s16 u32 s32", "wide")),
    "fma": (
        Row("f32", f"{_RND} [ftz] [sat]"), Row("f64", _RND), Row("f16 f16x2", "rn [ftz] [sat]"),
        Row("f16 f16x2", "rn [ftz] relu"), Row("bf16 bf16x2", f"{_RND} [relu]"),
        Row("f16 f16x2 bf16 bf16x2", "rn oob [relu]", 90),
        Row("f32x2", f"{_RND} [ftz]", 100), Row("f32.f16|bf16", f"{_RND} [sat]", 100),
    ),
    "mad": (
        Row("f32", f"{_RND} [ftz] [sat]"), Row("f64", _RND), Row(_WIDE, "hi|lo"), Row("u16 s16 u32 s32", "wide"),
        Row("s32", "hi sat"), Row(_CARRIED, "hi|lo cc"),
    ),
    "div": (
        Row("f32", f"{_RND} [ftz]"), Row("f32", "approx|full [ftz]"), Row("f64", _RND), Row(_WIDE),
    ),
    "rcp": (Row("f32 f64", f"{_RND} [ftz]"), Row("f32", "approx [ftz]"), Row("f64", "approx.ftz")),
    "sqrt": (Row("f32", f"{_RND} [ftz]"), Row("f64", _RND), Row("f32", "approx [ftz]")),
    "rsqrt": (Row("f32 f64", "approx [ftz]"),),
    "sin": _WAVES, "cos": _WAVES, "lg2": _WAVES,
    "ex2": (Row("f32", "approx [ftz]"), Row("f16 f16x2", "approx"), Row("bf16 bf16x2", "approx.ftz", 90)),
    "tanh": (Row("f32 f16 f16x2", "approx"), Row("bf16 bf16x2", "approx", 90)),
    "min": _EXTREMA, "max": _EXTREMA, "neg": _SIGN, "abs": _SIGN,
    "copysign": (Row("f32 f64"),),
    "testp": (Row("f32 f64", "finite|infinite|number|notanumber|normal|subnormal"),),
    "rem": (Row(_WIDE),), "sad": (Row(_WIDE),),
    "mul24": (Row("u32 s32", "hi|lo"),), "mad24": (Row("u32 s32", "hi|lo"), Row("s32", "hi sat")),
    "addc": (Row(_WIDE), Row(_CARRIED, "cc"), Row("s32", "sat")),
    "subc": (Row(_WIDE), Row(_CARRIED, "cc"), Row("s32", "sat")),
    "madc": (Row(_WIDE, "hi|lo"), Row(_CARRIED, "hi|lo cc")),
    "and": (Row(f"{_BITS} pred"),), "or": (Row(f"{_BITS} pred"),), "xor": (Row(f"{_BITS} pred"),),
    "not": (Row(f"{_BITS} pred"),), "cnot": (Row(_BITS),),
    "shl": (Row(_BITS),), "shr": (Row(f"{_BITS} {_WIDE}"),), "shf": (Row("b32", "l|r clamp|wrap"),),
    "lop3": (Row("b32", operands=5), Row("b32", "and|or", operands=6)),
    "brev": (Row("b32 b64"),), "popc": (Row("b32 b64"),), "clz": (Row("b32 b64"),),
    "bfind": (Row(_CARRIED, "[shiftamt]"),), "fns": (Row("b32"),), "bfe": (Row(_CARRIED),),
    "bfi": (Row("b32 b64"),),
    "bmsk": (Row("b32", "clamp|wrap"),), "szext": (Row("u32 s32", "clamp|wrap"),),
    "dp4a": (Row("u32|s32.u32|s32"),), "dp2a": (Row("u32|s32.u32|s32", "lo|hi"),),
    "prmt": (Row("b32 b32.f4e|b4e|rc8|ecl|ecr|rc16"),),
    "selp": (Row(f"{_BITS} {_WIDE} f32 f64"),),
    "slct": (
        Row(f"{_BITS} {_WIDE} f32 f64".replace(" ", "|") + ".s32|f32"),
        Row(f"{_BITS} {_WIDE} f32 f64".replace(" ", "|") + ".f32", "ftz"),
    ),
    "setp": tuple(_setp()), "set": tuple(_set()), "cvt": tuple(_conversions()),
    "redux": (
        Row("b32", "sync and|or|xor", 80), Row("u32 s32", "sync add|min|max", 80),
        Row("f32", "sync min|max [abs] [NaN]", 100, accelerated=True),
    ),
    "match": (Row("b32 b64", "sync any|all", 70),),
    "mov": (Row(f"{_BITS} {_WIDE} f32 f64", "[v2|v4]"), Row("b128 pred")),
    "cvta": (
        Row("u32 u64", "[to] global|shared|shared::cta|local|const|param|param::entry"),
        Row("u32 u64", "[to] shared::cluster", 90),
    ),
    "activemask": (Row("b32"),),
    "mapa": (Row("u32 s32 u64", "[shared::cluster]", 90),),
    "getctarank": (Row("u32 s32 u64", "[shared::cluster]", 90),),
    **ACCESSES, **SYNCHRONISING,
}  # fmt: skip
# Instructions of their own that share a first word with those above.
_OTHERS = {("cvt", "pack"), ("st", "bulk")}
# Hints on caches, which are not in the tables.
_HINTS = ("L1::", "L2::", "level::")


@cache
def _table(op: str) -> dict[tuple[str, ...], list[tuple[Row, frozenset[frozenset[str]]]]]:
    """The rows of each list of types."""
    out: dict[tuple[str, ...], list[tuple[Row, frozenset[frozenset[str]]]]] = {}
    for row in FORMS[op]:
        sets = frozenset(row.modifier_sets())
        for types in row.type_lists():
            out.setdefault(types, []).append((row, sets))
    return out


def _rows_of(op: str, modifiers: tuple[str, ...]) -> tuple[int, list[tuple[Row, frozenset[frozenset[str]]]]]:
    """The number of the last ``modifiers`` that are types, and their rows."""
    table = _table(op)
    for n in (2, 1, 0):
        found = table.get(modifiers[len(modifiers) - n :]) if len(modifiers) >= n else None
        if found is not None:
            return n, found
    return 0, []


@lru_cache(4096)
def refusal(parts: tuple[str, ...], operands: int, arch: str) -> Refusal | None:
    """The reason why ``arch`` does not have the form of an opcode; None if it has it, or if no table covers it."""
    op, modifiers = _split(parts)
    if op not in FORMS or parts[:2] in _OTHERS or (op.endswith(".async") and "global" in modifiers):
        return None
    if op in ("ld", "st") and (reason := hints_refused(op, parts)):
        return Refusal(reason)
    n, rows = _rows_of(op, modifiers)
    rows = [(row, sets) for row, sets in rows if row.operands in (0, operands)]
    types, rest = ".".join(modifiers[len(modifiers) - n :]), modifiers[: len(modifiers) - n]
    if not rows:
        return Refusal(_unknown_types(op, modifiers, n, operands))
    fitting = [row for row, sets in rows if frozenset(rest) in sets and len(set(rest)) == len(rest)]
    target = Arch.parse(arch)
    if any(target.number >= row.sm and (target.suffix or not row.accelerated) for row in fitting):
        return None
    if fitting:
        return Refusal("", fitting[0].sm, fitting[0].accelerated)
    takes = " or ".join(
        dict.fromkeys(f"`{_shown(row.modifiers)}`" if row.modifiers else "no modifier" for row, _ in rows)
    )
    of = f" of .{types}" if types else ""
    return Refusal(f"{op}{of} takes {takes}, not {_dotted(rest) or 'none'}")


def _split(parts: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The name of the table and the modifiers that it is about, types last."""
    found = key_of(parts)
    if found is not None:
        return found
    op, modifiers = parts[0], parts[1:]
    if op not in ACCESSES:
        return op, modifiers
    if "async" in modifiers:
        op += ".async"
    modifiers = tuple(m for m in modifiers if not m.startswith(_HINTS))
    # `red.global.v4.f32.add`: the type may stand before the operation.
    if modifiers[-1:] not in _table(op):
        types = [m for m in modifiers if (m,) in _table(op)]
        modifiers = (*(m for m in modifiers if m not in types), *types)
    return op, modifiers


def _unknown_types(op: str, modifiers: tuple[str, ...], n: int, operands: int) -> str:
    if n:
        return f"{op} of {_dotted(modifiers[-n:])} does not have {operands} operands"
    last = modifiers[-2:] if any(len(types) == 2 for types in _table(op)) else modifiers[-1:]
    names = dict.fromkeys(".".join(types) for types in _table(op))
    if op != "cvt" and len(names) < 20:
        return f"its last part is a type, one of {', '.join('.' + x for x in names)}"
    verb = "convert these types" if op == "cvt" else "take these types"
    return f"{op} does not {verb}: {_dotted(last)}"


def _dotted(modifiers: tuple[str, ...]) -> str:
    return "".join(f".{x}" for x in modifiers)


def _shown(modifiers: str) -> str:
    """``[rn|rz] [ftz]`` as the ISA writes it: ``{.rn|.rz}{.ftz}``."""
    out = ""
    for word in modifiers.split():
        inner = "|".join("." + x for x in word.strip("[]").split("|"))
        out += "{" + inner + "}" if word[0] == "[" else (f"({inner})" if "|" in inner else inner)
    return out
