"""The timeline as SVG: for files, for documents and inside HTML pages, light and dark.

The colours are those of Okabe and Ito, which people with any colour vision tell apart; each kind has a pattern of
its own too (full, striped, outlined), and the legend names all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape

from tilemma.errors import visible
from tilemma.machine.timeline import Bar, Cta, Timeline

# kind -> colour, name in the legend.
KINDS = {
    "warp": ("#9aa5b1", "a warp, from start to exit"),
    "wait": ("#e69f00", "a warp waits"),
    "tma": ("#0072b2", "TMA copy in flight"),
    "cp.async": ("#56b4e9", "cp.async in flight"),
    "cp.async.arrive": ("#56b4e9", "arrival after cp.async"),
    "wgmma": ("#d55e00", "wgmma in flight"),
    "mma": ("#d55e00", "a warp multiplies (mma.sync)"),
    "store": ("#009e73", "a warp stores to global memory"),
    "bulk-store": ("#009e73", "TMA store in flight"),
    "phase": ("#cc79a7", "an mbarrier completes a phase"),
}
_OTHER = ("#777777", "")
ROW = 20
_STYLE = (
    # A page sets --ink, --muted and --ground; a file follows the viewer's preference.
    ".tl{--i:var(--ink,#1f2933);--m:var(--muted,#52606d);--b:var(--ground,#fff)}"
    "@media(prefers-color-scheme:dark){"
    ".tl{--i:var(--ink,#e4e7eb);--m:var(--muted,#9aa5b1);--b:var(--ground,#12181f)}}"
    ".tl text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:var(--i)}"
    ".tl .t{font-size:11px;fill:var(--m)}.tl .g{stroke:var(--m);stroke-opacity:.22}"
    ".tl .band{fill:var(--m);fill-opacity:.07}.tl .phase{stroke-width:2}.tl .bg{fill:var(--b)}"
)


def describe(bar: Bar) -> str:
    """The description of a bar."""
    where = f", PTX line {bar.line}" if bar.line else ""
    if bar.what == "phase":
        return f"{bar.about or bar.actor} complete at {bar.start}"
    about = f" {'for' if bar.what == 'wait' else 'on'} {bar.about}" if bar.about else ""
    return f"{bar.actor}: {bar.what}{about}, {bar.start} to {bar.end}{where}"


def _text(text: str) -> str:
    """Escaped, without the characters that XML cannot hold."""
    return escape(re.sub("[\ufffe\uffff]", "\ufffd", visible(text)))


def _ticks(length: int) -> list[int]:
    """About eight round times."""
    step = 1
    while length / step > 8:
        step *= 5 if str(step).startswith(("2", "1")) and length / step > 40 else 2
    return list(range(0, length, step))


def timeline_svg(
    timeline: Timeline,
    width: int = 1200,
    ctas: Iterable[Cta] | None = None,
    attributes: Callable[[Bar], str] | None = None,
) -> str:
    """One row for each actor of ``ctas`` (default: all).

    ``attributes(bar)`` gives more attributes of a bar's element, such as ``data-`` ones for a page's script.
    """
    chosen = sorted(timeline.ctas if ctas is None else ctas)
    rows = [(cta, timeline.of_cta(cta)) for cta in chosen]
    bars = [b for _, of in rows for each in of.values() for b in each]
    start, end = min((b.start for b in bars), default=0), max((b.end for b in bars), default=0) + 1
    left = 7.4 * max((len(a) for _, of in rows for a in of), default=0) + 22
    scale = (width - left - 12) / (end - start)
    kinds = [k for k in KINDS if any(b.what == k for b in bars)]
    hatching = _hatching(bars)
    legend, head = _legend(kinds, min(width, 700), hatching)
    height = head + sum(ROW * len(of) + 24 for _, of in rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tl" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="timeline of a run on the PTX machine"><style>{_STYLE}</style>'
        f'<defs><pattern id="{hatching}" width="5" height="5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path class="h" d="M0 0V5" stroke="#e69f00" stroke-width="5" '
        'stroke-opacity=".55"/></pattern></defs>'
        f'<path class="bg" d="M0 0H{width}V{height}H0Z"/>'
    ]
    out += legend
    for tick in _ticks(end - start):
        at = left + tick * scale
        out.append(f'<path class="g" d="M{at:.1f} {head - 12}V{height}"/>')
        out.append(f'<text class="t" x="{at + 3:.1f}" y="{head - 14}">{start + tick}</text>')
    out.append(f'<text class="t" x="8" y="{head - 14}">warp instructions</text>')
    top = head
    for cta, of in rows:
        out.append(f'<text x="8" y="{top + 12}" font-weight="bold">block {",".join(map(str, cta))}</text>')
        top += 20
        for i, (actor, each) in enumerate(of.items()):
            if i % 2 == 0:
                out.append(f'<path class="band" d="M0 {top}H{width}v{ROW}H0z"/>')
            out.append(f'<text x="16" y="{top + 14}">{_text(actor)}</text>')
            for b in each:
                more = " " + attributes(b) if attributes is not None else ""
                out.append(
                    _bar(b, left + (b.start - start) * scale, (b.end - b.start) * scale, top, more, hatching)
                )
            top += ROW
        top += 4
    return "\n".join([*out, "</svg>\n"])


def _legend(kinds: Iterable[str], width: int, hatching: str) -> tuple[list[str], int]:
    """The names of the kinds, in as many lines as they need, and the y of the first row below them."""
    out, x, y = [], 8.0, 8
    for k in kinds:
        wide = 19 + 6.9 * len(KINDS[k][1]) + 22
        if x > 8 and x + wide > width:
            x, y = 8.0, y + 20
        out.append(
            f'<path d="M{x:g} {y}h14v12h-14z" {_paint(k, hatching)}/>'
            f'<text class="t k" x="{x + 19:g}" y="{y + 10}">{KINDS[k][1]}</text>'
        )
        x += wide
    return out, y + 56


def _hatching(bars: Sequence[Bar]) -> str:
    """The id of the pattern of waits: a page with several timelines, of which one is visible, needs several."""
    first = min((b.start for b in bars), default=0)
    return "wait-" + "-".join(map(str, [*(bars[0].cta if bars else ()), first, len(bars)]))


def _paint(kind: str, hatching: str) -> str:
    colour = KINDS.get(kind, _OTHER)[0]
    if kind == "wait":
        return f'fill="url(#{hatching})" stroke="#e69f00" stroke-width=".6"'
    if kind == "phase":
        return f'class="phase" stroke="{colour}" fill="{colour}"'
    opacity = {"warp": ".45", "cp.async.arrive": ".4"}.get(kind, ".8")
    return f'fill="{colour}" fill-opacity="{opacity}"'


def _bar(b: Bar, x: float, length: float, top: float, more: str, hatching: str) -> str:
    title = f"<title>{_text(describe(b))}</title>"
    if b.what == "phase":
        return f'<path d="M{x:.1f} {top + 2}v{ROW - 4}" {_paint(b.what, hatching)}{more}>{title}</path>'
    inset = 6 if b.what == "warp" else 3
    return (
        f'<rect x="{x:.1f}" y="{top + inset}" width="{max(1.5, length):.1f}" height="{ROW - 2 * inset}" '
        f"{_paint(b.what, hatching)}{more}>{title}</rect>"
    )
