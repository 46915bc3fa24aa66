"""The page: one HTML file that contains its styles and its script and refers to no other file or site."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

from tilemma.atoms.atom import Operand
from tilemma.layouts import bank_conflicts
from tilemma.machine.timeline import Bar
from tilemma.machine.timeline_svg import timeline_svg
from tilemma.tools.palette import colour
from tilemma.tools.picture.code import Listing
from tilemma.tools.picture.drawings import grid_svg, link, shared_svg, text, tiles_svg
from tilemma.tools.picture.model import Buffer, LaunchView, Model
from tilemma.tools.picture.program import Role
from tilemma.tools.picture.run import Ran
from tilemma.tools.show_svg import shared_svg as banks_svg

_HERE = Path(__file__).parent
# Lines of a buffer in the picture of its banks: the swizzles repeat after 8.
BANK_LINES = 16
_KEYS = (
    ("/", "search"), ("n, N", "next and previous match"), ("j, k", "next and previous linked source line"),
    ("Enter or click", "pin a line: all that comes from it stays marked"), ("Esc", "unpin"),
    ("[ and ]", "previous and next block of the timeline"), ("+ and -, 0", "zoom the timeline, all of it"),
    ("1 to 6", "go to a section"), ("t", "light or dark"), ("?", "this list"),
)  # fmt: skip


def page(m: Model) -> str:
    """The whole page of a kernel."""
    sections = [
        ("plan", "Plan", _plan(m)),
        ("grid", "Grid and blocks", "".join(_grid(v) for v in m.launches)),
        ("warps", "Warps and roles", "".join(_warps(v) for v in m.launches)),
        ("memory", "Shared memory", "".join(_memory(v) for v in m.launches)),
        ("fragments", "Fragments by lane", _fragments(m)),
        ("timeline", "Timeline", _timelines(m)),
    ]
    nav = "".join(f'<a href="#{key}">{i} {title}</a>' for i, (key, title, _) in enumerate(sections, 1))
    body = "".join(
        f'<section id="{key}" aria-labelledby="h-{key}"><h2 id="h-{key}">{title}</h2>{inside}</section>'
        for key, title, inside in sections
    )
    style, script = (_HERE.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    # "</" would end the script element early.
    data = json.dumps(_data(m), separators=(",", ":")).replace("</", "<\\/")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(m.kernel)} on {text(m.arch)}</title><style>{style}</style></head><body>"
        f"<header><h1>{text(m.kernel)} <small>{text(m.arch)}{_sizes(m)}</small></h1>"
        f"<nav>{nav}</nav>{_CONTROLS}</header>"
        f'<div id="columns"><main>{body}</main><aside aria-label="code">{_code(m)}</aside></div>'
        f'<div id="status" role="status" aria-live="polite"></div>{_help()}'
        f'<script type="application/json" id="data">{data}</script><script>{script}</script></body></html>\n'
    )


_CONTROLS = (
    '<div id="controls">'
    '<input id="search" type="search" placeholder="search (/)" aria-label="search code and names">'
    '<output id="found"></output><button id="theme" title="light or dark (t)">light / dark</button>'
    '<button id="help-button" title="keyboard (?)">?</button></div>'
)


def _sizes(m: Model) -> str:
    if not m.dims:
        return ""
    return ", " + text(", ".join(f"{k} = {v}" for k, v in m.dims.items()))


def _help() -> str:
    rows = "".join(f"<tr><th><kbd>{text(k)}</kbd></th><td>{text(v)}</td></tr>" for k, v in _KEYS)
    close = '<form method="dialog"><button>close</button></form>'
    return f'<dialog id="help"><h2>Keyboard</h2><table>{rows}</table>{close}</dialog>'


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _plan(m: Model) -> str:
    found = m.explanation.render()
    decisions = "".join(
        f"<tr{link(d.span.line if d.span is not None and d.span.file == m.file else 0)}>"
        f"<td>{text(d.pass_name)}</td><td>{text(d.subject)}</td><td>{text(d.text)}</td></tr>"
        for d in m.explanation.decisions
    )
    table = f"<table><tr><th>pass</th><th>subject</th><th>decision</th></tr>{decisions}</table>"
    hazards = [h for v in m.launches if v.ran for h in v.ran.hazards]
    alarm = f'<pre class="alarm">{text(chr(10).join(hazards))}</pre>' if hazards else ""
    return (
        f'{alarm}<pre class="plan">{text(found)}</pre>'
        f"<details><summary>{len(m.explanation.decisions)} decisions of the passes</summary>"
        f'<div class="scroll">{table}</div></details>'
    )


def _title(v: LaunchView) -> str:
    return f"<h3><code>{text(v.launch.entry)}</code></h3>"


def _grid(v: LaunchView) -> str:
    rows = "".join(
        f"<tr{link(level.line)}><td>{text(level.level)}</td>"
        f"<td><code>{text(', '.join(level.indices))}</code></td></tr>"
        for level in v.levels
    )
    cluster = f", in clusters of {'x'.join(map(str, v.launch.cluster))}" if v.launch.cluster else ""
    formula, drawn = f"<code>{text(' x '.join(v.grid))}</code>", ""
    plan = f"<p>grid {formula}{cluster}"
    if v.counts is not None:
        here = " x ".join(map(str, v.counts))
        plan = f"<p>grid {here}{cluster}" + (
            f": {formula}" if "".join(v.grid) != "".join(map(str, v.counts)) else ""
        )
        drawn = f'<div class="scroll">{grid_svg(v.counts, v.launch.cluster)}</div>' if all(v.counts) else ""
    tiles = ""
    if v.ran is not None:
        drawings = [
            f'<div class="scroll">{tiles_svg(t)}</div>' if t.parts else f"<p>{text(t.array)}: {text(t.note)}</p>"
            for t in v.ran.tiles
        ]
        tiles = f"<div><p>The block that wrote each element last, in the run below:</p>{''.join(drawings)}</div>"
    table = f'<table class="levels"><tr><th>level</th><th>indices</th></tr>{rows}</table>'
    return f'{_title(v)}{plan}</p><div class="scroll">{table}</div><div class="side">{drawn}{tiles}</div>'


def _warps(v: LaunchView) -> str:
    threads = prod(v.launch.block)
    count = -(-threads // 32)
    of = {w: i for i, role in enumerate(v.roles) for w in role.warps}
    cells = "".join(_warp(w, threads, of.get(w, 0), v) for w in range(count))
    cards = "".join(_role(i, role) for i, role in enumerate(v.roles))
    head = f"{_title(v)}<p>{threads} threads, {_count(count, 'warp')}:</p>"
    return f'{head}<div class="warps">{cells}</div><div class="roles">{cards}</div>'


def _warp(w: int, threads: int, role: int, v: LaunchView) -> str:
    own = f"warp {w}, threads {32 * w} to {min(threads, 32 * w + 32) - 1}: {v.roles[role].name}"
    return f'<span class="warp" style="--c:{colour(role)}" title="{text(own)}">{w}</span>'


def _role(i: int, role: Role) -> str:
    facts = [_ranges(role.warps)]
    facts += [f"{role.registers} registers a thread"] if role.registers else []
    facts += ["one elected thread"] if role.solo else []
    acts = "".join(
        f'<li{link(a.line)} class="act {a.kind}"><b>{a.kind}</b> <code>{text(a.text)}</code></li>'
        for a in role.acts
    )
    return (
        f'<article class="role" style="--c:{colour(i)}"><h4{link(role.line)}>{text(role.name)}</h4>'
        f"<p>{text(', '.join(facts))}</p><ul>{acts}</ul></article>"
    )


def _ranges(numbers: tuple[int, ...]) -> str:
    if not numbers:
        return "no warps"
    whole = numbers == tuple(range(numbers[0], numbers[-1] + 1))
    said = f"{numbers[0]} to {numbers[-1]}" if whole and len(numbers) > 1 else ", ".join(map(str, numbers))
    return f"warp{'s' if len(numbers) > 1 else ''} {said}"


def _memory(v: LaunchView) -> str:
    if not v.buffers:
        return f"{_title(v)}<p>It uses no shared memory.</p>"
    rows = "".join(
        f'<tr{link(b.line)} data-n="{text(b.name)}"><td><code>{text(b.name)}</code></td><td>{b.kind}</td>'
        f"<td>{b.offset}</td><td>{b.bytes}{f' x {b.copies}' if b.copies else ''}</td><td>{text(b.about)}</td></tr>"
        for b in v.buffers
    )
    head = "<tr><th>name</th><th>kind</th><th>byte</th><th>bytes</th><th>content</th></tr>"
    share = f"{v.launch.shared} of {v.shared_limit} bytes that a block may have"
    events = " Thin lines are mbarriers." if any(b.kind == "event" for b in v.buffers) else ""
    return (
        f"{_title(v)}<p>{share}. Buffers below each other share bytes.{events}</p>"
        f'<div class="scroll">{shared_svg(v.buffers, v.launch.shared)}</div>'
        f'<div class="scroll"><table>{head}{rows}</table></div>{_banks(v.buffers)}'
    )


def _banks(buffers: Iterable[Buffer]) -> str:
    """A picture of each layout, once, with the buffers that have it."""
    users: dict[Any, list[str]] = {}
    for b in buffers:
        if b.layout is not None:
            users.setdefault((b.layout.dtype.name, b.layout.shape, str(b.layout)), []).append(b.name)
    layouts = {(b.layout.dtype.name, b.layout.shape, str(b.layout)): b.layout for b in buffers if b.layout}
    found: list[str] = []
    for key, names in users.items():
        layout = layouts[key]
        title = f"{', '.join(names)}: swizzle and banks, worst case of 8 rows of 16 bytes: {_worst(layout)}"
        drawn = banks_svg(layout, ", ".join(names), BANK_LINES)
        found.append(
            f"<details{'' if found else ' open'}><summary>{text(title)}</summary>"
            f'<div class="scroll paper">{drawn}</div></details>'
        )
    return "".join(found)


def _worst(layout: Any) -> str:
    step = 128 // layout.dtype.bits
    worst = max(
        (
            bank_conflicts([layout.offset(line, x) for line in range(min(8, layout.lines))], 16).wavefronts
            for x in range(0, layout.extent - step + 1, step)
        ),
        default=1,
    )
    return "no conflict" if worst == 1 else f"{worst} passes through the banks"


def _fragments(m: Model) -> str:
    options = "".join(
        f'<option value="{text(name)}|{letter}">{letter} of {text(name)}</option>'
        for name, operands in m.fragments.items()
        for letter in reversed(list(operands))
    )
    if not options:
        return "<p>It multiplies no fragments.</p>"
    shared = "<p>Operands that are not in the list are read from shared memory through a descriptor.</p>"
    return (
        f'<div class="bar"><label>operand <select id="operand">{options}</select></label>'
        '<label>lane <input id="lane" type="number" min="0" max="127" placeholder="all"></label>'
        '<label>zoom <input id="cell" type="range" min="2" max="40" step="1"></label></div>'
        '<p id="element">Point at an element; click keeps its lane marked.</p><div class="bar" id="lanes"></div>'
        f'<div class="scroll" id="map"><canvas id="canvas" tabindex="0" aria-label="the lane of each element">'
        f"</canvas></div>{shared}"
    )


def _modes(operand: Operand) -> dict[str, Any]:
    """The layout (lane, value) -> row + rows * column, flat: enough to draw the map."""
    owners = operand.owners()
    rows, cols = operand.shape
    lanes, values = [], []
    for r in range(rows):
        for c in range(cols):
            lane, value = owners[r][c][0]
            lanes.append(lane)
            values.append(value)
    return {
        "rows": rows, "cols": cols, "lanes": lanes, "values": values, "pack": operand.pack,
        "threads": operand.threads, "register": operand.register,
    }  # fmt: skip


def _data(m: Model) -> dict[str, Any]:
    return {
        "fragments": {
            f"{name}|{letter}": _modes(operand)
            for name, operands in m.fragments.items()
            for letter, operand in operands.items()
        }
    }


def _timelines(m: Model) -> str:
    if m.why_not:
        return f'<p>There is no run on the PTX machine:</p><pre class="alarm">{text(m.why_not)}</pre>'
    given = " with the sizes given" if m.dims else ""
    sizes = " with the smallest sizes that reach every path" if m.chosen else given
    said = (
        f"<p>One run on the PTX machine{sizes}, seed {m.seed}. Its scheduler picks warps and completes copies "
        "in a hostile order: the picture shows what may overlap and which warp waits for which, not GPU times.</p>"
    )
    lines = {i: line for i, (_, line) in enumerate(m.listings[1].lines, 1)}
    return said + "".join(_timeline(v, v.ran, lines) for v in m.launches if v.ran is not None)


def _timeline(v: LaunchView, ran: Ran, lines: dict[int, int]) -> str:
    def attributes(b: Bar) -> str:
        source = lines.get(b.line, 0) or v.lines.get(b.actor.split("[")[0], 0)
        return f'data-p="{b.line}"' + link(source)

    left_out = ran.blocks - len(ran.shown)
    note = f" Of {left_out} more blocks the page has no timeline: give smaller sizes." if left_out else ""
    tabs = "".join(
        f'<button class="tab" data-block="{",".join(map(str, cta))}">block {",".join(map(str, cta))}</button>'
        for cta in ran.shown
    )
    drawn = "".join(
        f'<div class="scroll strip" data-block="{",".join(map(str, cta))}">'
        f"{timeline_svg(ran.timeline, 900, [cta], attributes)}</div>"
        for cta in ran.shown
    )
    zoom = '<button class="zoom" data-z="1.5">+</button><button class="zoom" data-z="0.667">-</button>'
    zoom += '<button class="zoom" data-z="0">all</button>'
    notes = f"<details><summary>performance notes</summary><pre>{text(chr(10).join(ran.notes))}</pre></details>"
    return (
        f"{_title(v)}<p>{ran.steps} warp instructions, {_count(ran.blocks, 'block')}.{note}</p>"
        f'<div class="bar">{tabs}<span class="gap"></span>{zoom}</div>{drawn}{notes if ran.notes else ""}'
    )


def _code(m: Model) -> str:
    tabs = "".join(
        f'<button class="code-tab" role="tab" data-code="{i}" aria-selected="{"true" if i == 0 else "false"}">'
        f"{text(x.title)}</button>"
        for i, x in enumerate(m.listings)
    )
    panes = "".join(_listing(i, x) for i, x in enumerate(m.listings))
    return f'<div class="bar" role="tablist"><b>{text(Path(m.file).name)}</b>{tabs}</div>{panes}'


def _listing(i: int, x: Listing) -> str:
    hidden = "" if i == 0 else " hidden"
    if not x.lines:
        return f'<div class="code" data-code="{i}"{hidden}><p>{text(x.note)}</p></div>'
    rows = "".join(
        f"<div{f' data-l={line}' if line else ''}><i>{x.first + n}</i>{text(line_text) or ' '}</div>"
        for n, (line_text, line) in enumerate(x.lines)
    )
    cut = f"<p>{text(x.note)}</p>" if x.note else ""
    return f'<div class="code" data-code="{i}" tabindex="0" aria-label="{text(x.title)}"{hidden}>{rows}{cut}</div>'
