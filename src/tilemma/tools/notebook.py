"""Kernels, plans, instructions, layouts, hazards and errors as HTML for notebooks.

A fragment of HTML without scripts or style sheets, so that it suits light and dark pages; pictures are images
with their own styles.  All text of a program is escaped.
"""

from __future__ import annotations

import base64
import inspect
import re
import traceback
from functools import singledispatch
from html import escape

from tilemma.atoms.atom import Atom, CopyAtom, MmaAtom
from tilemma.compiler import Compiled
from tilemma.errors import TilemmaError, debugging, shown_file, visible
from tilemma.explain import Explanation
from tilemma.front_end_cache import TextSource
from tilemma.kernels import Kernel
from tilemma.layouts import SharedLayout
from tilemma.machine.run import Report, Verdict
from tilemma.modules import Module
from tilemma.sources import program_frames
from tilemma.tools.schedule import Schedule
from tilemma.tools.show import operands_of
from tilemma.tools.show_svg import SHOWN_LINES, atom_svg, shared_svg
from tilemma.tools.show_text import facts, memory_layouts, operand_facts

# Elements of all operands in a picture, and pieces of 16 bytes in a line of one.
MOST_ELEMENTS, MOST_PIECES = 2048, 64


def _text(text: str) -> str:
    return escape(re.sub("[\ufffe\uffff]", "\ufffd", visible(text)))


def _block(text: str) -> str:
    return f"<pre>{_text(text)}</pre>"


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{_text(title)}</summary>{inside}</details>"


def _image(svg: str, title: str) -> str:
    encoded = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{_text(title)}" src="data:image/svg+xml;base64,{encoded}"/>'


@singledispatch
def html(value: object) -> str:
    """The HTML of ``value``: one ``div``, well-formed as XML too."""
    return f"<div>{_block(str(value))}</div>"


@html.register
def _(value: TilemmaError) -> str:
    headline, _, rest = value.render().partition("\n")
    return f"<div><pre><b>{_text(headline)}</b>\n{_text(rest)}</pre></div>"


@html.register(Report)
@html.register(Verdict)
def _(value: Report | Verdict) -> str:
    found = [*value.hazards, *value.letter]
    count = f"{len(value.hazards)} hazard{'' if len(value.hazards) == 1 else 's'}"
    title = str(value) if isinstance(value, Verdict) else f"{value.entry}, {value.schedule}: {count}"
    notes = "\n".join(map(str, value.notes))
    parts = [f"<b>{_text(title)}</b>", *map(html, found), _folded("performance", _block(notes)) if notes else ""]
    return f"<div>{''.join(parts)}</div>"


@html.register
def _(value: Kernel) -> str:
    if isinstance(value.source, TextSource):
        text = value.source.file.text
    else:
        try:
            text = inspect.getsource(value)
        except (OSError, TypeError):
            text = ""
    source = _folded("source", _block(text)) if text else ""
    return f"<div><b>kernel <code>{_text(value.name)}</code></b>{source}</div>"


@html.register
def _(value: Module) -> str:
    return f"<div><b>{_text(value.file)}</b>{''.join(map(html, value.kernels.values()))}</div>"


@html.register
def _(value: Explanation) -> str:
    rows = "".join(
        f"<tr><td>{_text(d.pass_name)}</td><td>{_text(d.subject)}</td><td>{_text(d.text)}</td></tr>"
        for d in value.decisions
    )
    head = "<tr><th>pass</th><th>subject</th><th>decision</th></tr>"
    decisions = _folded("decisions", f"<table>{head}{rows}</table>") if rows else ""
    return f"<div>{_block(value.render())}{_inserted(value)}{decisions}</div>"


def _inserted(value: Explanation) -> str:
    """The inserted waits, fences and barriers: a row for each dependence."""
    rows = []
    for x in value.inserted:
        name = _text(f"{x['operation']} {x['detail']}".rstrip())
        for s in x["serves"]:
            sides = (
                f"{y['access']} of {y['buffer']} by {y['agent']}, {y['at']}" for y in (s["earlier"], s["later"])
            )
            cells = "".join(f"<td>{_text(side)}</td>" for side in sides)
            rows.append(f"<tr><td>{name}</td>{cells}<td>{'async' if s['proxy'] else ''}</td></tr>")
        if not x["serves"]:
            rows.append(f'<tr><td>{name}</td><td colspan="3">{_text(x["reason"])}</td></tr>')
    if not rows:
        return ""
    head = "<tr><th>inserted</th><th>earlier</th><th>later</th><th>proxy</th></tr>"
    return _folded("waits, fences and barriers", f"<table>{head}{''.join(dict.fromkeys(rows))}</table>")


@html.register
def _(value: Schedule) -> str:
    pictures = "".join(_image(x.svg(), value.title) for x in value.timelines.values())
    notes = _block("\n".join(value.notes)) if value.notes else ""
    return f"<div><b>{_text(value.title)}</b>{pictures}{notes}</div>"


@html.register
def _(value: Compiled) -> str:
    return html(value.explain())


@html.register(MmaAtom)
@html.register(CopyAtom)
def _(value: Atom) -> str:
    operands = operands_of(value)
    lines = [*facts(value)]
    for letter, operand in operands.items():
        lines += operand_facts(letter, operand)
        lines += [] if operand.in_registers else memory_layouts(operand)
    parts = [f"<b><code>{_text(value.name)}</code></b>", _block("\n".join(lines))]
    held = [o.shape[0] * o.shape[1] for o in operands.values() if o.in_registers]
    if sum(held) > MOST_ELEMENTS:
        parts.append(_block(f"too large for a picture here: tilemma show {value.name} --format html"))
    elif held:
        parts.append(_image(atom_svg(value, operands), f"{value.name}: lanes and registers of the operands"))
    return f"<div>{''.join(parts)}</div>"


@html.register
def _(value: SharedLayout) -> str:
    title = f"{value.shape[0]}x{value.shape[1]} {value.dtype}, {value.major}-major: {value}"
    parts = [_block(title)]
    if value.extent * value.dtype.bits // 128 <= MOST_PIECES:
        parts.append(_image(shared_svg(value), "banks of the tile in shared memory"))
        if value.lines > SHOWN_LINES:
            parts.append(_block(f"the first {SHOWN_LINES} of {value.lines} lines"))
    return f"<div>{''.join(parts)}</div>"


def traceback_of(error: TilemmaError) -> list[str]:
    """The lines that a notebook shows for ``error``: the frames of the program, and the message; all frames if the
    variable TILEMMA_DEBUG is set."""
    if debugging():
        return "".join(traceback.format_exception(error)).splitlines()
    lines = ["Traceback (most recent call last):"]
    for frame in program_frames(error):
        lines.append(f"  {shown_file(frame.filename)}, line {frame.lineno}, in {frame.name}")
        if frame.line:
            lines.append(f"    {frame.line}")
    return [visible(line) for line in lines] + [f"{type(error).__name__}: {error.render()}"]
