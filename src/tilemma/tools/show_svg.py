"""Pictures: fragments of an instruction, a tile in shared memory with its banks, a TiledMMA over a block tile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape

from tilemma.atoms import MmaAtom, Operand
from tilemma.atoms.atom import Atom
from tilemma.cute import TiledMMA
from tilemma.layouts import SharedLayout, bank_conflicts, cute_str
from tilemma.layouts.banks import BANK_BYTES, BANKS
from tilemma.tools.palette import colour, tint
from tilemma.tools.show import AXES

# Lines of a tile in shared memory that its picture has.
SHOWN_LINES = 32
CELL_W, CELL_H, MARGIN, LABEL = 30, 26, 16, 34
# Every rule names the class of these pictures: a style sheet inside a page holds for the whole page.
_STYLE = (
    ".tm text{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:9px;text-anchor:middle;fill:#222}"
    ".tm .h{font-size:14px;text-anchor:start}.tm .n{font-size:11px;text-anchor:start;fill:#555}"
    ".tm .e{font-size:8px;fill:#444}.tm rect{stroke:#fff;stroke-width:1}"
    ".tm .o{fill:none;stroke:#222;stroke-width:1.5}.tm .s{fill:#eee;stroke:#888}.tm .x{fill:#c00}"
)


@dataclass
class Svg:
    """Shapes of one picture; its size follows from them."""

    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def rect(self, x: float, y: float, w: float, h: float, fill: str = "", css: str = "", title: str = "") -> None:
        self._reach(x + w, y + h)
        attributes = (f' class="{css}"' if css else "") + (f' fill="{fill}"' if fill else "")
        inside = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}"{attributes}{inside}')

    def text(self, x: float, y: float, content: str, css: str = "") -> None:
        width = 0.62 * {"h": 14, "n": 11}.get(css, 9) * len(content)
        self._reach(x + (width if css in ("h", "n") else width / 2), y + 4)
        attributes = f' class="{css}"' if css else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{attributes}>{escape(content)}</text>')

    def render(self, title: str) -> str:
        w, h = self.width + MARGIN, self.height + MARGIN
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="tm" viewBox="0 0 {w:g} {h:g}" '
            f'width="{w:g}" height="{h:g}" role="img" aria-label="{escape(title)}">'
            f"<title>{escape(title)}</title><style>{_STYLE}</style>"
            f'<rect width="{w:g}" height="{h:g}" fill="#fff"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def lane_colour(lane: int) -> str:
    """Eight hues for the groups of four lanes that share a row, four shades within a group."""
    return f"hsl({lane // 4 % 8 * 45},75%,{88 - lane % 4 * 7}%)"


def _map(svg: Svg, x: float, y: float, letter: str, operand: Operand, turned: bool = False) -> None:
    """One operand at (x, y); ``turned`` draws columns downwards, for B above C."""
    rows, cols = operand.shape
    down, across = (cols, rows) if turned else (rows, cols)
    name = {"C": "C, D"}.get(letter, letter)
    row_axis, col_axis = AXES[letter]
    if turned:
        row_axis, col_axis = col_axis, row_axis
    if not operand.in_registers:
        svg.rect(x, y, across * CELL_W, down * CELL_H, css="s")
        svg.text(x + across * CELL_W / 2, y + down * CELL_H / 2, f"{name}: shared memory, by descriptor")
        return
    for i in range(down):
        svg.text(x - 14, y + i * CELL_H + 16, f"{row_axis}={i}", "e")
    for j in range(across):
        svg.text(x + j * CELL_W + CELL_W / 2, y - 4, f"{col_axis}={j}", "e")
    for row, line in enumerate(operand.owners()):
        for col, owners in enumerate(line):
            i, j = (col, row) if turned else (row, col)
            lane, value = owners[0]
            register, bit = operand.place(value)
            left, top = x + j * CELL_W, y + i * CELL_H
            note = f"{letter}({row}, {col}): lane {lane}, {letter.lower()}{value}, register {register}, bit {bit}"
            svg.rect(left, top, CELL_W, CELL_H, lane_colour(lane), title=note)
            svg.text(left + CELL_W / 2, top + 11, f"T{lane}")
            svg.text(left + CELL_W / 2, top + 21, f"{letter.lower()}{value}", "e")
    svg.rect(x, y, across * CELL_W, down * CELL_H, css="o")


def atom_svg(atom: Atom, operands: Mapping[str, Operand]) -> str:
    """The fragments of an instruction, arranged as in a product: A left of C, B turned to K x N above C."""
    svg = Svg()
    svg.text(MARGIN, 24, atom.name, "h")
    svg.text(MARGIN, 42, atom.ptx.split(" ")[0], "n")
    top, left = 70, MARGIN + LABEL
    if isinstance(atom, MmaAtom) and set(operands) == {"A", "B", "C"}:
        k, n = atom.shape[2], atom.shape[1]
        right, below = left + k * CELL_W + 2 * LABEL, top + k * CELL_H + LABEL
        _map(svg, right, top, "B", operands["B"], turned=True)
        _map(svg, left, below, "A", operands["A"])
        _map(svg, right, below, "C", operands["C"])
        for x, y, name in (
            (left, below - 16, "A"),
            (right + n * CELL_W + 8, top + 14, "B"),
            (right, below - 16, "C"),
        ):
            svg.text(x, y, f"{name} {operands[name].dtype}" + (", transposed" if name == "B" else ""), "n")
        return svg.render(f"{atom.name}: which lane holds which element")
    for letter, operand in operands.items():
        svg.text(left, top, f"{letter} {operand.dtype}", "n")
        _map(svg, left, top + 20, letter, operand)
        top += 20 + operand.shape[0] * CELL_H + 2 * LABEL
    return svg.render(f"{atom.name}: which lane holds which element")


def bank_colour(bank: int) -> str:
    """Eight hues for the eight 16-byte groups of banks."""
    return f"hsl({bank // 4 * 45},70%,78%)"


def shared_svg(tile: SharedLayout, title: str = "", most: int = SHOWN_LINES) -> str:
    """A tile in shared memory as it is addressed: 16-byte pieces coloured by their banks, at most ``most`` lines;
    the picture says how many it leaves out.

    Below each 8 lines, for every column of pieces, is the number of passes of an 8x8 matrix of ldmatrix (8 lines
    of 16 bytes) through the banks: 1 is free of conflicts, 8 the worst.
    """
    svg = Svg()
    across, down = ("k", "mn") if tile.major == "K" else ("mn", "k")
    step = 128 // tile.dtype.bits
    pieces, shown = tile.extent // step, min(most, tile.lines)
    width, height = 58, 16
    svg.text(MARGIN, 24, title or f"{tile.shape[0]}x{tile.shape[1]} {tile.dtype}, {tile.major}-major", "h")
    svg.text(MARGIN, 42, cute_str(tile.layout, tile.dtype.bits), "n")
    left, y = MARGIN + 46, 70
    for j in range(pieces):
        svg.text(left + j * width + width / 2, y - 5, f"{across}={j * step}..{(j + 1) * step - 1}", "e")
    for first in range(0, shown, 8):
        group = range(first, min(first + 8, shown))
        for line in group:
            svg.text(left - 22, y + 11, f"{down}={line}", "e")
            for j in range(pieces):
                at = _address(tile, line, j * step)
                bank = at // BANK_BYTES % BANKS
                svg.rect(left + j * width, y, width, height, bank_colour(bank), title=f"byte {at}")
                svg.text(left + j * width + width / 2, y + 11, f"bank {bank}")
            y += height
        for j in range(pieces):
            passes = bank_conflicts([_address(tile, line, j * step) for line in group], 16).wavefronts
            svg.text(left + j * width + width / 2, y + 11, f"{passes}x", "x" if passes > 1 else "e")
        svg.text(left + pieces * width + 6, y + 11, "passes", "n")
        y += height + 6
    if shown < tile.lines:
        left_out = f"lines 0 to {shown - 1} of {tile.lines}: {tile.lines - shown} more, not shown"
        svg.text(MARGIN, y + 11, left_out, "n")
    return svg.render(title or "a tile in shared memory and its banks")


def _address(tile: SharedLayout, line: int, x: int) -> int:
    return tile.offset(line, x) if tile.major == "K" else tile.offset(x, line)


def tiled_svg(mma: TiledMMA, tile: tuple[int, int, int]) -> str:
    """C's block tile: every 8x8 block coloured by the warp that holds it, a frame around every instruction."""
    (rows, cols, _), size = tile, 20
    repetitions = mma.repetitions(tile)
    owners = mma.owners("C", tile)[::8, ::8, 0] // 32
    svg = Svg()
    svg.text(MARGIN, 24, f"{mma.atom.name} x {'x'.join(map(str, mma.atom_layout))}", "h")
    svg.text(
        MARGIN,
        42,
        f"C tile {rows}x{cols}: {mma.size} threads, {repetitions[0]} x {repetitions[1]} x {repetitions[2]} "
        "instructions each",
        "n",
    )
    left, top = MARGIN + LABEL, 66
    for i in range(rows // 8):
        if i % 2 == 0:
            svg.text(left - 16, top + i * size + 12, f"m={8 * i}", "e")
        for j in range(cols // 8):
            warp = int(owners[i, j])
            svg.rect(
                left + j * size, top + i * size, size, size, tint(colour(warp), 0.35 if warp // 8 % 2 else 0.75)
            )
            svg.text(left + j * size + size / 2, top + i * size + 13, f"w{warp}", "e")
    m, n = mma.atom.shape[:2]
    for r in range(rows // m):
        for c in range(cols // n):
            wide, high = n // 8 * size, m // 8 * size
            svg.rect(left + c * wide, top + r * high, wide, high, css="o")
    for c in range(0, cols, max(8, cols // 8)):
        svg.text(left + c // 8 * size + 10, top - 5, f"n={c}", "e")
    return svg.render(f"{mma.atom.name} over a {rows}x{cols} tile")


def beside(pictures: Iterable[str]) -> str:
    """Several pictures side by side in one."""
    import re

    x, height, parts = 0.0, 0.0, []
    for picture in pictures:
        found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)" width="[\d.]+" height="[\d.]+"', picture)
        assert found is not None
        parts.append(picture.replace("<svg ", f'<svg x="{x:g}" ', 1))
        x, height = x + float(found[1]), max(height, float(found[2]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {x:g} {height:g}" '
        f'width="{x:g}" height="{height:g}">\n'
        f'<rect width="{x:g}" height="{height:g}" fill="#fff"/>\n' + "".join(parts) + "</svg>\n"
    )
