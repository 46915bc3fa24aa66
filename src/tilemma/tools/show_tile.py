"""Tiles: a TiledMMA over a block tile, a tile in shared memory with its banks."""

from __future__ import annotations

from tilemma.atoms import MmaAtom
from tilemma.cute import TiledMMA
from tilemma.dtypes import names
from tilemma.errors import ToolError
from tilemma.layouts import SharedLayout, bank_conflicts, cute_str, plain_layout, shared_layout
from tilemma.tools.show import NoSuchFormat, record
from tilemma.tools.show_html import picture_page
from tilemma.tools.show_svg import SHOWN_LINES, shared_svg, tiled_svg

_FORMATS = ("text", "svg", "html")
# Rows or columns of a tile: more than shared memory and registers hold.
MOST = 1024


class BadTile(ToolError):
    code = "bad-tile"
    found = "{text!r} is no {what}"
    expected = "{form}"
    fix = "write for instance {example}"


def extents(text: str, count: int, what: str) -> tuple[int, ...]:
    """`128x128x64` as numbers; BadTile for other texts."""
    parts = text.lower().replace(",", "x").split("x")
    if len(parts) != count or not all(p.isdecimal() and len(p) < 9 and 0 < int(p) <= MOST for p in parts):
        example = "x".join(["128", "128", "64"][:count])
        form = f"{count} numbers from 1 to {MOST} with x between them"
        raise BadTile(text=text, what=what, form=form, example=example)
    return tuple(int(p) for p in parts)


def show_tile(name: str, tile: str, units: str = "1x1x1", format: str = "text") -> str:
    """Instruction ``name`` on ``units`` (M, N, K) warps or warpgroups over a block tile M x N x K.

    Raises UnknownAtom, BadTile, NoSuchFormat, and InstructionMisfit where the units do not divide the tile.
    """
    if format not in _FORMATS:
        raise NoSuchFormat(format=format, known=", ".join(_FORMATS))
    atom = record(name)
    if not isinstance(atom, MmaAtom):
        example = "SM80_16x8x16_F32F16F16F32_TN"
        raise BadTile(text=name, what="multiplying instruction", form="mma.sync or wgmma", example=example)
    m, n, k = extents(tile, 3, "block tile M x N x K")
    um, un, uk = extents(units, 3, "number of units along M, N, K")
    mma = TiledMMA(atom, (um, un, uk))
    if format != "text":
        drawn = tiled_svg(mma, (m, n, k))
        return drawn if format == "svg" else picture_page(f"{name} over {tile}", drawn)
    counts = mma.repetitions((m, n, k))
    warps = mma.owners("C", (m, n, k))[::8, ::8, 0] // 32
    lines = [
        f"{name} on {um}x{un}x{uk} units over {m}x{n}x{k}",
        f"  {mma.size} threads; each unit issues {counts[0]} x {counts[1]} x {counts[2]} = "
        f"{mma.issues((m, n, k))} instructions",
        "  the warp that holds each 8x8 block of C:",
        *(f"  m={8 * i:<5}" + " ".join(f"{w:>2}" for w in row) for i, row in enumerate(warps.tolist())),
    ]
    return "\n".join(lines) + "\n"


def shared_tile(spec: str) -> SharedLayout:
    """A tile in shared memory from `TYPE,ROWSxCOLS[,K|MN][,SWIZZLE|plain|pad=N]`, as in `f16,128x64,K,128`.

    Without a swizzle it is the 128-byte one.  Raises BadTile, SwizzleAtomMisfit.
    """
    form = "TYPE,ROWSxCOLS[,K|MN][,0|32|64|128|plain|pad=N]"
    example = "f16,128x64,K,128"
    parts = [p.strip() for p in spec.split(",")]
    if len(parts) < 2 or parts[0] not in names():
        raise BadTile(text=spec, what="tile in shared memory", form=form, example=example)
    rows, cols = extents(parts[1], 2, "tile ROWSxCOLS")
    rest = parts[2:]
    major = rest.pop(0).upper() if rest and rest[0].upper() in ("K", "MN") else "K"
    how = rest.pop(0) if rest else "128"
    if rest or not (
        how in ("plain", "0", "32", "64", "128") or (how[:4] == "pad=" and how[4:].isdecimal() and len(how) < 9)
    ):
        raise BadTile(text=spec, what="tile in shared memory", form=form, example=example)
    if how.isdecimal():
        return shared_layout(parts[0], rows, cols, "MN" if major == "MN" else "K", int(how))
    pad = int(how[4:]) if how.startswith("pad=") else 0
    return plain_layout(parts[0], rows, cols, "MN" if major == "MN" else "K", pad)


def show_shared(spec: str, format: str = "text") -> str:
    """A tile in shared memory (see `shared_tile`): its layout, its banks, and the cost of reading 8x8 matrices.

    Raises BadTile, SwizzleAtomMisfit, NoSuchFormat.
    """
    if format not in _FORMATS:
        raise NoSuchFormat(format=format, known=", ".join(_FORMATS))
    tile = shared_tile(spec)
    if format != "text":
        drawn = shared_svg(tile, f"{spec}: banks", tile.lines if format == "html" else SHOWN_LINES)
        return drawn if format == "svg" else picture_page(f"{spec}: banks", drawn)
    step = 128 // tile.dtype.bits
    pieces = range(0, tile.extent - step + 1, step)
    across, down = ("k", "mn") if tile.major == "K" else ("mn", "k")

    def address(line: int, x: int) -> int:
        return tile.offset(line, x) if tile.major == "K" else tile.offset(x, line)

    spelled = cute_str(tile.layout, tile.dtype.bits)
    lines = [
        f"{tile.shape[0]}x{tile.shape[1]} {tile.dtype}, {tile.major}-major: {spelled}",
        f"  {tile.size_bytes} bytes, on a multiple of {tile.alignment}",
        "  first bank of each 16 bytes, and under each 8 lines the passes that an 8x8 matrix takes:",
        "          " + " ".join(f"{across}={x:<4}" for x in pieces),
    ]
    for first in range(0, tile.lines, 8):
        group = range(first, min(first + 8, tile.lines))
        for line in group:
            banks = (address(line, x) // 4 % 32 for x in pieces)
            lines.append(f"  {down}={line:<6}" + " ".join(f"{b:<{5 + len(across)}}" for b in banks).rstrip())
        passes = (bank_conflicts([address(line, x) for line in group], 16).wavefronts for x in pieces)
        lines.append("  passes  " + " ".join(f"{p}x".ljust(5 + len(across)) for p in passes).rstrip())
    return "\n".join([*lines, *_core_matrices(tile)]) + "\n"


def core_matrices(tile: SharedLayout) -> list[list[tuple[int, int]]]:
    """(swizzle atom, core matrix in it) of each 8 lines and 16 bytes of a canonical layout of wgmma.

    Atoms count in the order of memory, core matrices (8 lines of 16 bytes, PTX ISA, wgmma) along the contiguous
    dimension.  The 16-byte pieces of an atom's core matrices are interleaved by the swizzle.
    """
    width = max(tile.swizzle, 16)
    step = 128 // tile.dtype.bits

    def atom(line: int, x: int) -> int:
        found = (tile.offset(i, x) if tile.major == "K" else tile.offset(x, i) for i in range(line, line + 8))
        return min(found) // (8 * width)

    columns = range(0, tile.extent, step)
    return [
        [(atom(line, x), x * tile.dtype.bits // 8 % width // 16) for x in columns]
        for line in range(0, tile.lines, 8)
    ]


def _core_matrices(tile: SharedLayout) -> list[str]:
    """The map of `core_matrices`, for the layouts that wgmma reads."""
    width = max(tile.swizzle, 16)
    canonical = tile.line_bytes == width and tile.lines % 8 == 0 and tile.extent * tile.dtype.bits % 128 == 0
    if not canonical:
        return []
    across, down = ("k", "mn") if tile.major == "K" else ("mn", "k")
    step = 128 // tile.dtype.bits
    found = core_matrices(tile)
    cell = max(len(f"{a}.{c}") for row in found for a, c in row)
    cell = max(cell, len(f"{across}={tile.extent - step}"))
    head = " ".join(f"{across}={step * i}".ljust(cell) for i in range(len(found[0])))
    return [
        f"  core matrices of 8 lines and 16 bytes, as atom.matrix; an atom is 8 lines of {width} bytes:",
        "          " + head.rstrip(),
        *(
            f"  {down}={8 * i:<6}" + " ".join(f"{a}.{c}".ljust(cell) for a, c in row).rstrip()
            for i, row in enumerate(found)
        ),
    ]
