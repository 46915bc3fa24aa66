"""Advice in errors: other types and layouts for a multiply without a fitting instruction, and waits for copies."""

from __future__ import annotations

from math import prod

from tilemma.atoms import catalogue
from tilemma.atoms.atom import MmaAtom
from tilemma.dtypes import DType
from tilemma.errors import Span, spelled
from tilemma.ir.tile import Copy
from tilemma.ir.tiles import describe, written
from tilemma.ir.types import Level

# Types that lose bits, as substitutes for types without a wider substitute.
_NARROWER = {"f32": ("tf32", "bf16"), "tf32": ("bf16",)}


# The builder's prefixes for futures of operations whose result has no name.
_UNNAMED = {"mma": "mma...", "copy": "dma.copy"}


def for_multiply(
    arch: str,
    level: Level,
    tile: tuple[int, int, int],
    types: tuple[DType, DType, DType],
    span: Span | None,
    sparse: bool = False,
    wanted: str | None = None,
) -> str:
    """The changes that make an instruction of ``arch`` fit a multiply of ``types`` (A, B, accumulator) for a
    ``tile``,
    (M, N, K), that an instance of ``level`` holds.  ``sparse``: A is stored by half; ``wanted``: the instruction
    that the program names."""
    a, b, d = types
    if wanted is not None:
        return _for_named(wanted, arch)
    runs = [x for x in catalogue.mma("mma.sp" if sparse else "mma.sync") if x.runs_on(arch)]
    plain = [x for x in runs if x.rank >= 0]
    if sparse and not any(x.a.dtype is a and x.b.dtype is b for x in plain):
        return f"multiply the whole A without `.sp`: {arch} has no sparse multiply of {a} by {b}"
    named = next((x for x in runs if x.rank < 0 and x.a.dtype is a and x.b.dtype is b), None)
    operands = [x for x in plain if x.a.dtype is a and x.b.dtype is b]
    if not operands and named is not None:
        return f"compile for a later target, or name {named.name}, whose result is another (`tilemma show`)"
    if not operands:
        return _other_operands({x.a.dtype.name for x in plain}, a, span)
    fitting = [x for x in operands if x.operands["D"].dtype is d]
    if not fitting:
        kinds = " or ".join(sorted({x.operands["D"].dtype.name for x in operands}))
        return f"accumulate in {kinds}"
    shapes = {_rounded(tile, x.shape, level.warps) for x in fitting}
    m, n, k = min(shapes, key=lambda s: (prod(s), s))
    if (m, n, k) == tile:
        return "put both operands into shared memory, and load them from there"
    return f"use a tile of {m}x{n}x{k} (M x N x K); elements beyond the arrays are read as 0 and not stored"


def _for_named(name: str, arch: str) -> str:
    atom = catalogue[name]
    choice = "or name no instruction, and the compiler chooses one"
    if not isinstance(atom, MmaAtom) or not atom.ptx:
        return f"name an instruction that {arch} has, {choice}"
    if not atom.runs_on(arch):
        return f"compile for {' or '.join((atom.arch, *atom.archs))}, {choice}"
    places = [
        f"{x} from {'registers' if o.in_registers else 'shared memory'}"
        for x, o in zip("AB", (atom.a, atom.b), strict=True)
    ]
    return f"give {name} its operands ({', '.join(places)}), types and extents, {choice}"


def _rounded(tile: tuple[int, int, int], atom: tuple[int, int, int], warps: int) -> tuple[int, int, int]:
    """The smallest tile not below ``tile`` that ``warps`` divide into instructions of shape ``atom``."""
    found = []
    for down in (g for g in range(1, warps + 1) if warps % g == 0):
        steps = (atom[0] * down, atom[1] * (warps // down), atom[2])
        m, n, k = (-(-extent // step) * step for extent, step in zip(tile, steps, strict=True))
        found.append((m, n, k))
    return min(found, key=lambda s: (prod(s), s))


def _other_operands(have: set[str], a: DType, span: Span | None) -> str:
    # f16 holds every value of the types of 8 bits and fewer.
    convert = "f16" if a.bits <= 8 and (a.is_float or a.is_integer) else None
    if convert in have:
        every = f"{convert}, which holds every {a.name}"
        return f"convert both operands to {every}, element by element, and accumulate in f32"
    narrow = next((t for t in _NARROWER.get(a.name, ()) if t in have), None)
    loop = spelled(span, "`: thread`", '`level="thread"`')
    loops = f"multiply elements in a loop inside a `parallel` of {loop}"
    if narrow is not None:
        return f"{loops}; or, where fewer bits are enough, convert both operands to {narrow}, element by element"
    return loops


def waited_for(copy: Copy, future: str | None = None) -> tuple[str, str]:
    """("future" or "event", its name in the program): the operand of a wait for ``copy`` (``future``: now)."""
    ref = copy.event
    if ref is None:
        return "future", written(future or copy.future or "")
    if ".future" in ref.event.name:  # the passes' own event for a future
        return "future", written(ref.event.name)
    if ref.order is not None:
        return "event", f"{ref.event.name}.at({describe(ref.order)})"
    return "event", ref.event.name if ref.slot is None else f"{ref.event.name}[{describe(ref.slot)}]"


def for_wait(name: str, span: Span | None) -> str:
    """The statement to insert before one that needs the data of ``name``, a future or an event."""
    if name not in _UNNAMED:
        return f"write `{spelled(span, f'wait {name}', f'wait({name})')}` before this statement"
    start = spelled(span, f"f = {_UNNAMED[name]}.async ...", f"f = {_UNNAMED[name]}(..., async_=True)")
    wait = spelled(span, "wait f", "wait(f)")
    return f"name the result, `{start}`, and write `{wait}` before this statement"
