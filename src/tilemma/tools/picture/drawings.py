"""The pictures inside a page, as SVG that follows the page's colours: grid, tiles of arrays, shared memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from tilemma.errors import visible
from tilemma.tools.palette import colour, ink
from tilemma.tools.picture.model import Buffer
from tilemma.tools.picture.run import Tiles

WIDTH = 860


def text(value: object) -> str:
    """Escaped, without control characters and the characters that XML cannot hold."""
    return escape(re.sub("[\ufffe\uffff]", "\ufffd", visible(str(value))))


def link(line: int) -> str:
    """The attributes of an element that belongs to a source line."""
    return f' data-l="{line}" tabindex="0"' if line else ""


def _svg(width: float, height: float, title: str, parts: Sequence[str], kind: str = "pic") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{text(title)}">{"".join(parts)}</svg>'
    )


def tiles_svg(tiles: Tiles) -> str:
    """The array, each element in the colour of the block that wrote it."""
    rows = 1
    for extent in tiles.shape[:-1]:
        rows *= extent
    cols = tiles.shape[-1] if tiles.shape else 1
    scale = min(420 / max(cols, 1), 300 / max(rows, 1), 12)
    wide, high = max(40.0, cols * scale), max(24.0, rows * scale)
    left, top = 44, 22
    parts = [
        f'<text class="m" x="{left}" y="14">{text(tiles.array)} {"x".join(map(str, tiles.shape))}</text>',
        f'<rect class="empty" x="{left}" y="{top}" width="{wide:.1f}" height="{high:.1f}"/>',
    ]
    sx, sy = wide / cols, high / rows
    for r, c, h, w, owner in tiles.parts:
        block = ",".join(map(str, tiles.blocks[owner]))
        title = f"block {block} wrote {tiles.array}[{r}:{r + h}, {c}:{c + w}]"
        parts.append(
            f'<g data-b="{block}"><rect class="tile" x="{left + c * sx:.2f}" y="{top + r * sy:.2f}" '
            f'width="{w * sx:.2f}" height="{h * sy:.2f}" fill="{colour(owner)}"><title>{title}</title></rect>'
        )
        if w * sx > 7 * len(block) and h * sy > 12:
            x, y = left + (c + w / 2) * sx, top + (r + h / 2) * sy + 4
            parts.append(f'<text class="in" x="{x:.1f}" y="{y:.1f}" fill="{ink(colour(owner))}">{block}</text>')
        parts.append("</g>")
    parts.append(f'<text class="m" x="4" y="{top + 10}">row 0</text>')
    return _svg(left + wide + 8, top + high + 10, f"blocks that wrote {tiles.array}", parts)


def lanes_of(buffers: Sequence[Buffer]) -> dict[str, int]:
    """A row for each buffer: those that share bytes are in different ones."""
    rows: dict[str, int] = {}
    for b in buffers:
        end = b.offset + b.bytes * max(1, b.copies)
        taken = {
            rows[o.name]
            for o in buffers
            if o.name in rows and o.offset < end and b.offset < o.offset + o.bytes * max(1, o.copies)
        }
        rows[b.name] = next(i for i in range(len(buffers) + 1) if i not in taken)
    return rows


def shared_svg(buffers: Sequence[Buffer], total: int) -> str:
    """The block's shared memory to scale, each slot of a ring a box of its own; events are thin marks, named
    below."""
    left, high, top = 8, 40, 26
    scale = (WIDTH - 2 * left) / max(total, 1)
    blocks = [b for b in buffers if b.kind == "buffer"]
    rows = lanes_of(blocks)
    count = max(rows.values(), default=0) + 1
    parts = []
    for tick in _ticks(total):
        x = left + tick * scale
        parts.append(f'<path class="g" d="M{x:.1f} {top - 6}V{top + count * (high + 6)}"/>')
        if x < WIDTH - 50:
            parts.append(f'<text class="m" x="{x + 2:.1f}" y="{top - 9}">{_bytes(tick)}</text>')
    for i, b in enumerate(blocks):
        y = top + rows[b.name] * (high + 6)
        for slot in range(max(1, b.copies)):
            at, name = b.offset + slot * b.bytes, f"{b.name}[{slot}]" if b.copies else b.name
            x, wide = left + at * scale, max(2.0, b.bytes * scale)
            title = f"{name}: {b.about}, bytes {at} to {at + b.bytes - 1}"
            parts.append(
                f'<g class="slot" data-n="{text(name)}"{link(b.line)}>'
                f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{high}" '
                f'fill="{colour(i)}"><title>{text(title)}</title></rect>'
            )
            labels = [name, _bytes(b.bytes)] if wide > 6.7 * len(name) + 4 else [f"[{slot}]"] if b.copies else []
            for k, label in enumerate(labels if wide > 24 else []):
                at_y = y + (17 if k == 0 else 32)
                parts.append(
                    f'<text class="in{" s" if k else ""}" x="{x + wide / 2:.1f}" y="{at_y}" '
                    f'fill="{ink(colour(i))}">{text(label)}</text>'
                )
            parts.append("</g>")
        ring = b.bytes * scale * max(1, b.copies)
        if b.bytes * scale <= 6.7 * (len(b.name) + 3 * bool(b.copies)) + 4 and ring > 6.7 * len(b.name):
            x = left + b.offset * scale + ring / 2
            parts.append(
                f'<text class="in" x="{x:.1f}" y="{y + 32}" fill="{ink(colour(i))}">{text(b.name)}</text>'
            )
    bottom = top + count * (high + 6)
    for b in buffers:
        if b.kind == "event":
            x = left + b.offset * scale
            parts.append(f'<path class="ev" d="M{x:.1f} {top}V{bottom}"><title>{text(b.name)}</title></path>')
    return _svg(WIDTH, bottom + 8, "shared memory of a block", parts, "pic fit")


def _bytes(n: int) -> str:
    return (
        f"{n // 1024} KiB"
        if n and n % 1024 == 0
        else f"{n / 1024:.1f} KiB"
        if n > 4096
        else f"{n} B"
        if n
        else "0"
    )


def _ticks(total: int) -> list[int]:
    step = 1024
    while total / step > 8:
        step *= 2
    return list(range(0, total + 1, step)) if total >= 1024 else [0]


def grid_svg(counts: Sequence[int], cluster: Sequence[int] | None) -> str:
    """The grid, x to the right and y downwards, z one below the other; large ones are cut, and say so."""
    x, y, z = ([*counts, 1, 1, 1])[:3]
    across, down, deep = min(x, 32), min(y, 16), min(z, 4)
    size, left, top = 24, 34, 20
    parts = []
    for k in range(deep):
        for j in range(down):
            for i in range(across):
                px, py = left + i * size, top + (k * (down + 1) + j) * size
                shade = ((i // cluster[0]) + (j // cluster[1])) % 2 if cluster else 0
                parts.append(
                    f'<rect class="cta{" odd" if shade else ""}" data-b="{i},{j},{k}" tabindex="0" '
                    f'x="{px}" y="{py}" width="{size - 2}" height="{size - 2}">'
                    f"<title>block {i},{j},{k}</title></rect>"
                )
        parts.append(f'<text class="m" x="2" y="{top + k * (down + 1) * size + 15}">z={k}</text>' if z > 1 else "")
    parts.append(f'<text class="m" x="{left}" y="13">x = 0 .. {x - 1}</text>')
    cut = (across, down, deep) != (x, y, z)
    high = top + deep * (down + 1) * size
    if cut:
        parts.append(f'<text class="m" x="{left}" y="{high}">the first {across} x {down} x {deep} blocks</text>')
    return _svg(max(260, left + across * size + 8), high + 6, "grid of blocks", parts)
