"""Which forms of the matrix instructions exist, on which architecture, from which PTX version.

Sources: PTX ISA, ``mma``, ``mma.sp`` and ``wgmma.mma_async{.sp}``: syntax, "Target ISA Notes", "PTX ISA
Notes"; wgmma's n = 240 and 256 for integers, which the text omits, as ptxas takes them.

Every verdict on an illegal form says which rule it breaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ...dtypes import dtype

Shape = tuple[int, int, int]
Ptx = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a form exists; ``reason`` is empty if it does.  True in a condition if it does."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


LEGAL = Verdict()


@dataclass(frozen=True, slots=True)
class Arch:
    """An architecture, such as ``sm_90a``: its number, and whether it has the accelerated features."""

    number: int
    suffix: str

    @staticmethod
    def parse(name: str) -> Arch:
        m = re.fullmatch(r"sm_(\d+)([af]?)", name)
        assert m, name
        return Arch(int(m[1]), m[2])


@dataclass(frozen=True, slots=True)
class Family:
    """The forms that share their types.

    ``shapes`` maps each shape (k alone for wgmma) to the lowest architecture and PTX version.  ``accumulators``
    are the (D, C) pairs; ``mixed`` says that A and B may be different members of ``types``.  ``selectors`` of
    a sparse family maps a shape to the sparsity selectors it takes.
    """

    types: tuple[str, ...]
    accumulators: tuple[tuple[str, str], ...]
    shapes: dict[Shape, tuple[int, Ptx]]
    mixed: bool = False
    selectors: dict[Shape, tuple[int, ...]] | None = None


_FP8 = ("f8_e4m3", "f8_e5m2")
_F16_ACC = (("f16", "f16"), ("f32", "f32"))
_F32_ACC = (("f32", "f32"),)
_S32_ACC = (("s32", "s32"),)

MMA: tuple[Family, ...] = (
    Family(("f16",), (*_F16_ACC, ("f32", "f16")), {(8, 8, 4): (70, (6, 4))}),
    Family(("f16",), _F16_ACC, {(16, 8, 8): (75, (6, 5)), (16, 8, 16): (80, (7, 0))}),
    Family(("bf16",), _F32_ACC, {(16, 8, 8): (80, (7, 0)), (16, 8, 16): (80, (7, 0))}),
    Family(("tf32",), _F32_ACC, {(16, 8, 4): (80, (7, 0)), (16, 8, 8): (80, (7, 0))}),
    Family(
        ("f64",),
        (("f64", "f64"),),
        {(8, 8, 4): (80, (7, 0)), (16, 8, 4): (90, (7, 8)), (16, 8, 8): (90, (7, 8)), (16, 8, 16): (90, (7, 8))},
    ),
    Family(_FP8, _F32_ACC, {(16, 8, 32): (89, (8, 4)), (16, 8, 16): (89, (8, 7))}, mixed=True),
    Family(_FP8, (("f16", "f16"),), {(16, 8, 32): (89, (8, 7)), (16, 8, 16): (89, (8, 7))}, mixed=True),
    Family(
        ("s8", "u8"),
        _S32_ACC,
        {(8, 8, 16): (75, (6, 5)), (16, 8, 16): (80, (7, 0)), (16, 8, 32): (80, (7, 0))},
        mixed=True,
    ),
    Family(
        ("s4", "u4"),
        _S32_ACC,
        {(8, 8, 32): (75, (6, 5)), (16, 8, 32): (80, (7, 0)), (16, 8, 64): (80, (7, 0))},
        mixed=True,
    ),
    Family(("b1",), _S32_ACC, {(8, 8, 128): (75, (7, 0)), (16, 8, 128): (80, (7, 0)), (16, 8, 256): (80, (7, 0))}),
)

_ALL4, _TWO, _ONE = (0, 1, 2, 3), (0, 1), (0,)
_SPARSE = (80, (7, 1))

MMA_SPARSE: tuple[Family, ...] = (
    Family(
        ("tf32",),
        _F32_ACC,
        {(16, 8, 8): _SPARSE, (16, 8, 16): _SPARSE},
        selectors={(16, 8, 8): _ALL4, (16, 8, 16): _TWO},
    ),
    Family(
        ("f16",),
        _F16_ACC,
        {(16, 8, 16): _SPARSE, (16, 8, 32): _SPARSE},
        selectors={(16, 8, 16): _ALL4, (16, 8, 32): _TWO},
    ),
    Family(
        ("bf16",),
        _F32_ACC,
        {(16, 8, 16): _SPARSE, (16, 8, 32): _SPARSE},
        selectors={(16, 8, 16): _ALL4, (16, 8, 32): _TWO},
    ),
    Family(_FP8, _F32_ACC, {(16, 8, 64): (89, (8, 4))}, mixed=True, selectors={(16, 8, 64): _ONE}),
    Family(
        ("s8", "u8"),
        _S32_ACC,
        {(16, 8, 32): _SPARSE, (16, 8, 64): _SPARSE},
        mixed=True,
        selectors={(16, 8, 32): _TWO, (16, 8, 64): _ONE},
    ),
    Family(
        ("s4", "u4"),
        _S32_ACC,
        {(16, 8, 64): _SPARSE, (16, 8, 128): _SPARSE},
        mixed=True,
        selectors={(16, 8, 64): _TWO, (16, 8, 128): _ONE},
    ),
)

# wgmma: the number of B's columns is free within a set, so m and n stand as 64 and 0.
_WGMMA, _WGMMA_SPARSE = (90, (8, 0)), (90, (8, 2))
_WGMMA_FLOAT_N = tuple(range(8, 257, 8))
_WGMMA_INT_N = (8, 24, *range(16, 257, 16))


def _wgmma(types: tuple[str, ...], ds: tuple[str, ...], k: int, mixed: bool, sparse: tuple[int, ...]) -> Family:
    """Dense where ``sparse`` is empty, else the sparse form of twice the k with those selectors."""
    shape = (64, 0, 2 * k if sparse else k)
    since = _WGMMA_SPARSE if sparse else _WGMMA
    pairs = tuple((d, d) for d in ds)
    return Family(types, pairs, {shape: since}, mixed, {shape: sparse} if sparse else None)


WGMMA: tuple[Family, ...] = (
    _wgmma(("f16",), ("f16", "f32"), 16, False, ()),
    _wgmma(("bf16",), ("f32",), 16, False, ()),
    _wgmma(("tf32",), ("f32",), 8, False, ()),
    _wgmma(_FP8, ("f16", "f32"), 32, True, ()),
    _wgmma(("s8", "u8"), ("s32",), 32, True, ()),
    _wgmma(("b1",), ("s32",), 256, False, ()),
)

WGMMA_SPARSE: tuple[Family, ...] = (
    _wgmma(("f16",), ("f16", "f32"), 16, False, _TWO),
    _wgmma(("bf16",), ("f32",), 16, False, _TWO),
    _wgmma(("tf32",), ("f32",), 8, False, _TWO),
    _wgmma(_FP8, ("f16", "f32"), 32, True, _ONE),
    _wgmma(("s8", "u8"), ("s32",), 32, True, _ONE),
)


@dataclass(frozen=True, slots=True)
class Form:
    """One form: shape and element types (n is 0 in wgmma's shape)."""

    shape: Shape
    a: str
    b: str
    c: str
    d: str


def forms(families: tuple[Family, ...]) -> Iterator[Form]:
    """Every form of some families."""
    for f in families:
        for shape in f.shapes:
            for a in f.types:
                for b in f.types if f.mixed else (a,):
                    for d, c in f.accumulators:
                        yield Form(shape, a, b, c, d)


def wgmma_widths(a_type: str) -> tuple[int, ...]:
    """The values of n that wgmma takes for an element type."""
    return tuple(sorted(_WGMMA_FLOAT_N if dtype(a_type).is_float else _WGMMA_INT_N))


def _name(shape: Shape) -> str:
    m, n, k = shape
    return f"m{m}n{n or 'N'}k{k}"


def _find(
    families: tuple[Family, ...],
    what: str,
    shape: Shape,
    a: str,
    b: str,
    c: str,
    d: str,
    arch: Arch,
    ptx: Ptx | None,
) -> tuple[Verdict, Family | None]:
    """The family of a form, or the first rule that no family satisfies."""
    typed = [f for f in families if a in f.types and b in f.types]
    if not typed:
        return Verdict(f"{what} does not multiply {a} by {b}"), None
    mixed = [f for f in typed if a == b or f.mixed]
    if not mixed:
        return Verdict(f"{what} needs A and B of one type for {a}, got {a} and {b}"), None
    shaped = [f for f in mixed if shape in f.shapes]
    if not shaped:
        known = sorted({_name(s) for f in mixed for s in f.shapes})
        return Verdict(f"{what} has no shape {_name(shape)} for {a}, only {', '.join(known)}"), None
    fitting = [f for f in shaped if (d, c) in f.accumulators]
    if not fitting:
        known = [f"D {x} with C {y}" for f in shaped for x, y in f.accumulators]
        return Verdict(f"{what} {_name(shape)} of {a} takes {' or '.join(known)}, not D {d} with C {c}"), None
    since, version = fitting[0].shapes[shape]
    if arch.number < since:
        return Verdict(f"{what} {_name(shape)} of {a} needs sm_{since}, the target is sm_{arch.number}"), None
    if ptx is not None and ptx < version:
        return Verdict(f"{what} {_name(shape)} of {a} needs PTX {version[0]}.{version[1]}"), None
    return LEGAL, fitting[0]


def _modifiers(what: str, a: str, satfinite: bool, bitop: str | None, bitops: tuple[str, ...]) -> Verdict:
    if satfinite and not dtype(a).is_integer:
        return Verdict(f".satfinite is for s8, u8, s4 and u4 operands, not {a}")
    if a == "b1" and bitop not in bitops:
        return Verdict(f"{what} of b1 takes .{' or .'.join(bitops)} with .popc, not {bitop or 'neither'}")
    if a != "b1" and bitop is not None:
        return Verdict(f".{bitop}.popc is for b1 operands, not {a}")
    return LEGAL


def _sparse(what: str, family: Family, shape: Shape, selector: int | None) -> Verdict:
    allowed = (family.selectors or {})[shape]
    if selector not in allowed:
        return Verdict(f"{what} {_name(shape)} takes sparsity selector {list(allowed)}, not {selector}")
    return LEGAL


def legal_mma(
    shape: Shape,
    a: str,
    b: str,
    c: str,
    d: str,
    arch: str,
    *,
    layouts: tuple[str, str] = ("row", "col"),
    satfinite: bool = False,
    bitop: str | None = None,
    sparse: bool = False,
    ordered: bool = False,
    selector: int | None = None,
    ptx: Ptx | None = None,
) -> Verdict:
    """Whether ``mma.sync`` (``mma.sp{::ordered_metadata}.sync`` if ``sparse``) has this form on ``arch``.

    Types are names of ``dtypes`` (aliases count); ``ptx`` is the module's ``.version``, unchecked if None.
    """
    a, b, c, d = (dtype(t).name for t in (a, b, c, d))
    what = "mma.sp" if sparse else "mma"
    target = Arch.parse(arch)
    verdict, family = _find(MMA_SPARSE if sparse else MMA, what, shape, a, b, c, d, target, ptx)
    if family is None:
        return verdict
    if layouts != ("row", "col") and not (shape == (8, 8, 4) and a == "f16"):
        return Verdict(f"{what} {_name(shape)} of {a} is .row.col only, not .{layouts[0]}.{layouts[1]}")
    if not (verdict := _modifiers(what, a, satfinite, bitop, ("xor", "and"))):
        return verdict
    if bitop == "and" and (target.number < 80 or (ptx is not None and ptx < (7, 1))):
        return Verdict("mma of b1 with .and.popc needs sm_80 and PTX 7.1")
    if sparse and ordered and ptx is not None and ptx < (8, 5):
        return Verdict("mma.sp::ordered_metadata needs PTX 8.5")
    return _sparse(what, family, shape, selector) if sparse else LEGAL


def legal_wgmma(
    n: int,
    k: int,
    a: str,
    b: str,
    d: str,
    arch: str,
    *,
    a_in_registers: bool = False,
    trans_a: int | None = None,
    trans_b: int | None = None,
    scale_a: int | None = None,
    scale_b: int | None = None,
    satfinite: bool = False,
    bitop: str | None = None,
    sparse: bool = False,
    selector: int | None = None,
    ptx: Ptx | None = None,
) -> Verdict:
    """Whether ``wgmma.mma_async{.sp}`` m64 has this form on ``arch``.

    ``trans_*`` and ``scale_*`` are the immediates, None where the instruction has none.
    """
    a, b, d = (dtype(t).name for t in (a, b, d))
    what, target, shape = "wgmma.sp" if sparse else "wgmma", Arch.parse(arch), (64, 0, k)
    if target != Arch(90, "a"):
        return Verdict(f"{what} exists on sm_90a only, the target is {arch}")
    verdict, family = _find(WGMMA_SPARSE if sparse else WGMMA, what, shape, a, b, d, d, target, ptx)
    if family is None:
        return verdict
    if n not in wgmma_widths(a):
        return Verdict(f"{what} of {a} takes n in {list(wgmma_widths(a))}, not {n}")
    if a != b and dtype(a).is_integer and ptx is not None and ptx < (8, 4):
        return Verdict(f"{what} of {a} by {b} needs PTX 8.4")
    if not (verdict := _modifiers(what, a, satfinite, bitop, ("and",))):
        return verdict
    if not (verdict := _wgmma_immediates(what, a, a_in_registers, trans_a, trans_b, scale_a, scale_b)):
        return verdict
    return _sparse(what, family, shape, selector) if sparse else LEGAL


def _wgmma_immediates(
    what: str, a: str, rs: bool, trans_a: int | None, trans_b: int | None, scale_a: int | None, scale_b: int | None
) -> Verdict:
    is_float, is_half = dtype(a).is_float, a in ("f16", "bf16")
    for name, scale in (("imm-scale-a", scale_a), ("imm-scale-b", scale_b)):
        if is_float and scale not in (-1, 1):
            return Verdict(f"{name} of {what} is -1 or 1, not {scale}")
        if not is_float and scale is not None:
            return Verdict(f"{what} of {a} has no {name}")
    for name, trans, exists in (("imm-trans-a", trans_a, is_half and not rs), ("imm-trans-b", trans_b, is_half)):
        if exists and trans not in (0, 1):
            return Verdict(f"{name} of {what} is 0 or 1, not {trans}")
        if not exists and trans is not None:
            why = "A in registers has no majorness" if is_half else "only f16 and bf16 have a transposed form"
            return Verdict(f"{what} of {a} has no {name} here: {why}")
    return LEGAL


Kind = Literal["mma", "mma.sp", "wgmma", "wgmma.sp"]
FAMILIES: dict[Kind, tuple[Family, ...]] = {
    "mma": MMA,
    "mma.sp": MMA_SPARSE,
    "wgmma": WGMMA,
    "wgmma.sp": WGMMA_SPARSE,
}
