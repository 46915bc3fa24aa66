"""The plan of a kernel as a picture: a block's copies, shared memory to scale, registers and stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tilemma.explain import Explanation
from tilemma.tools.show_svg import Svg

WIDTH, BOX, GAP, LEFT = 760, 46, 14, 120
# Of the font's characters.
CHARACTER = 5.6
_COLOURS = ("#cfe3ff", "#d7f0d2", "#ffe3c2", "#ead9f7", "#ffd6d6", "#d5f1f1", "#f3eebc", "#e2e2e2")
_ENGINES = {"tma": "TMA", "cp.async": "cp.async", "ldst": "loads and stores"}


def plan_svg(plan: Explanation) -> str:
    """The plan as SVG text."""
    data = plan.to_json()
    buffers = data["buffers"]
    colours = {b["name"]: _COLOURS[i % len(_COLOURS)] for i, b in enumerate(buffers)}
    svg = Svg()
    svg.text(16, 24, f"{data['kernel']} on {data['arch']}", "h")
    launches = "; ".join(f"{x['threads']} threads a block, {_bytes(x['shared'])} shared" for x in data["launches"])
    svg.text(16, 42, launches, "n")
    y = 60.0
    into = [(f"{c['from']}", _engine(c), colours[c["to"]]) for c in data["copies"] if c["to"] in colours]
    y = _row(svg, y, "copied from", into)
    y = _memory(svg, y, buffers, colours)
    y = _row(
        svg, y, "instructions", [(m["atom"], f"{m['a']} x {m['b']}, {m['tile']}", "#f6f6f6") for m in _once(data)]
    )
    held = [f for f in data["fragments"] if f["registers"]]
    parts = [
        (f"{f['name']}: {f['dtype']} {f['shape']}", f"{f['registers']} registers a lane", "#fff7d6") for f in held
    ]
    y = _row(svg, y, "registers", parts)
    out = [(s["to"], f"from {s['fragment']}", "#f6f6f6") for s in data["stores"]]
    out += [(c["to"], _engine(c), colours[c["from"]]) for c in data["copies"] if c["from"] in colours]
    _row(svg, y, "stored to", out)
    return svg.render(f"the plan of {data['kernel']}")


def _once(data: Mapping[str, Any]) -> list[Any]:
    return list({(m["atom"], m["a"], m["b"], m["tile"]): m for m in data["multiplies"]}.values())


def _engine(copy: Mapping[str, Any]) -> str:
    return f"{_ENGINES.get(copy['engine'], copy['engine'])}, {copy['vector']} bytes"


def _bytes(n: int) -> str:
    return f"{n / 1024:.4g} KiB" if n >= 1024 else f"{n} bytes"


def _row(svg: Svg, y: float, name: str, boxes: Iterable[tuple[str, str, str]]) -> float:
    """Labelled boxes side by side, in as many lines as they need; the next free y."""
    found = list(dict.fromkeys(boxes))
    if not found:
        return y
    svg.text(16, y + BOX / 2 + 4, name, "n")
    x: float = LEFT
    for text, below, colour in found:
        width = max(len(text), len(below)) * CHARACTER + 16
        if x + width > WIDTH and x > LEFT:
            x, y = LEFT, y + BOX + 6
        svg.rect(x, y, width, BOX - 8, colour, title=f"{text}: {below}")
        svg.text(x + width / 2, y + 16, text)
        svg.text(x + width / 2, y + 29, below, "e")
        x += width + 8
    return y + BOX + GAP


def _memory(svg: Svg, y: float, buffers: list[Any], colours: Mapping[str, str]) -> float:
    """Shared memory to scale, by lines: two buffers may use the same bytes at different times."""
    if not buffers:
        return y
    svg.text(16, y + 18, "shared memory", "n")
    scale = (WIDTH - LEFT) / max(b["offset"] + b["bytes"] for b in buffers)
    lines: list[int] = []
    for b in sorted(buffers, key=lambda b: b["offset"]):
        line = next((i for i, end in enumerate(lines) if end <= b["offset"]), len(lines))
        lines[line : line + 1] = [b["offset"] + b["bytes"]]
        x, width, top = LEFT + b["offset"] * scale, b["bytes"] * scale, y + 30 * line
        stages = int(b["shape"].partition(" x")[2] or 1)
        for i in range(stages):
            part = width / stages
            layout = b["layout"].partition(",")[0]
            svg.rect(
                x + i * part,
                top,
                part,
                26,
                colours[b["name"]],
                "",
                f"{b['name']}: {b['dtype']} {b['shape']}, {layout}",
            )
    y += 30 * len(lines) + 4
    for b in buffers:
        svg.rect(LEFT, y, 10, 10, colours[b["name"]])
        layout = b["layout"].partition(",")[0]
        svg.text(LEFT + 16, y + 9, f"{b['name']}: {b['dtype']} {b['shape']}, {_bytes(b['bytes'])}, {layout}", "n")
        y += 16
    return y + GAP
