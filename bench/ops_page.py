"""Writes the tables of results of one GPU into the pages: python bench/ops_page.py.

| stored results, docs/performance/ | by | tables |
|---|---|---|
| ops.json | bench/ops.py | README.md, docs/ops.md, ops.svg |
| ops_types.json | bench/ops_types.py | docs/ops.md |
| ops_forms.json | bench/ops_forms.py | docs/ops.md |
| torch_llama.json | bench/torch_llama.py --ways eager graphs | docs/torch.md |

`bench/merge_results.py` puts the results of parts of a table into these files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "performance" / "ops.json"
PICTURE = DATA.with_suffix(".svg")
PAGES = (ROOT / "README.md", ROOT / "docs" / "ops.md")
TYPES = DATA.with_name("ops_types.json")
TYPES_BEGIN = "<!-- bench/ops_types.py -->"
FORMS = DATA.with_name("ops_forms.json")
FORMS_BEGIN = "<!-- bench/ops_forms.py -->"
LLAMA = DATA.with_name("torch_llama.json")
LLAMA_PAGE, LLAMA_BEGIN = ROOT / "docs" / "torch.md", "<!-- bench/torch_llama.py -->"
# Networks, of whose many layers the table has those that are slower than the vendor's.
NETWORKS = ("resnet", "u-net")
# Regimes, and the heads of their columns.
REGIMES = {"flushed": "ratio", "graph": "graph replay, ratio", "steady": "steady, ratio"}
BEGIN, END = "<!-- bench/ops_page.py -->", "<!-- end -->"


def ratio(row: dict[str, Any], regime: str, who: str = "ours") -> float | None:
    """The peer's time over tilemma's; None where it was not measured."""
    mine, peer = row[who].get(regime), row["peer"].get(regime)
    return None if mine is None or peer is None else float(peer / mine)


def lowest(row: dict[str, Any]) -> float:
    """The lowest ratio of a product, untuned."""
    return min(x for x in (ratio(row, regime) for regime in REGIMES) if x is not None)


def first_below(rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> list[dict[str, Any]]:
    """The rows below 1.00 first, the slowest at the top; then the others as they are."""
    return sorted(rows, key=lambda r: (value(r) >= 1, value(r) if value(r) < 1 else 0))


def dates(data: dict[str, Any]) -> list[str]:
    """The days of rows that were not measured with the others."""
    found = []
    for date in sorted({r["date"] for r in data["rows"] if "date" in r} - {data["date"]}):
        groups = dict.fromkeys(r["group"] for r in data["rows"] if r.get("date") == date)
        found.append(f"rows of {', '.join(groups)}: {date}")
    return found


def _cell(row: dict[str, Any], regime: str) -> str:
    plain, tuned = ratio(row, regime), ratio(row, regime, "tuned")
    if plain is None:
        return ""
    return f"{plain:.3f}" if tuned is None else f"{plain:.3f} ({tuned:.3f})"


def table(data: dict[str, Any]) -> str:
    """Ratios of every product by regime, with tuning in brackets, and what they were measured on.

    The rows with a ratio below 1.00 are first.
    """
    rows = first_below(data["rows"], lowest)
    measured = [x for x in REGIMES if any(ratio(row, x) is not None for row in rows)]
    lines = ["| M x N x K | type | flushed, TFLOP/s | " + " | ".join(REGIMES[x] for x in measured) + " |"]
    lines.append("|---|---|---|" + "---|" * len(measured))
    for row in rows:
        speed = row["flops"] / row["ours"]["flushed"] / 1e6
        name = row["name"].replace("x", " x ")
        cells = [name, row["dtype"], f"{speed:.0f}", *(_cell(row, x) for x in measured)]
        lines.append("| " + " | ".join(cells) + " |")
    notes = [
        f"{data['device']}, {data['date']}, torch {data['torch']} with CUDA {data['cuda']}, ptxas {data['ptxas']}"
    ]
    notes += dates(data)
    large = [r for r in rows if r["group"] == "large"]
    for regime in ("flushed", "steady"):
        found = [x for x in (ratio(r, regime) for r in large) if x is not None]
        if found:
            notes.append(f"geometric mean of the {len(found)} largest, {regime}: {geometric_mean(found):.3f}")
    if data.get("host_us"):
        notes.append("host time of a call, us: " + ", ".join(f"{n} {t:.1f}" for n, t in data["host_us"].items()))
    return "\n".join([*lines, "", "; ".join(notes) + "."])


def types_table(data: dict[str, Any]) -> str:
    """Every product of `bench/ops_types.py`: the rows below 1.00 first, the slowest at the top."""
    lines = ["| group | product | us | TFLOP/s | TB/s of weights | ratio | share of the error bound |"]
    lines.append("|---|---|---|---|---|---|---|")
    rows = [r for r in data["rows"] if not r["error"]]
    for row in first_below(rows, lambda r: float(r["ratio"])):
        time = row["mine"]
        speeds = f"{row['flops'] / time / 1e6:.0f} | {row['weights'] / time / 1e6:.2f}"
        cells = [row["group"], row["name"], f"{time:.1f}", speeds, f"{row['ratio']:.3f}", f"{row['share']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    notes = [
        f"{data['device']}, {data['date']}, torch {data['torch']}, CUDA {data['cuda']}, ptxas {data['ptxas']}"
    ]
    notes += dates(data)
    for group in dict.fromkeys(r["group"] for r in rows):
        found = [r["ratio"] for r in rows if r["group"] == group]
        notes.append(f"{group}: geometric mean {geometric_mean(found):.3f}, lowest {min(found):.3f}")
    failed = [r["name"] for r in data["rows"] if r["error"]]
    return "\n".join([*lines, "", "; ".join(notes + [f"failed: {', '.join(failed)}"] * bool(failed)) + "."])


def forms_table(data: dict[str, Any]) -> str:
    """The products of `bench/ops_forms.py` beside their peers; of networks the layers below 1.00."""
    lines = ["| group | product | us | TFLOP/s | peers, us | ratio |", "|---|---|---|---|---|---|"]
    rows = [r for r in data["rows"] if not r["error"]]
    for row in rows:
        if row["group"] in NETWORKS and row["ratio"] >= 1:
            continue
        peers = ", ".join(f"{name} {us:.1f}" for name, us in row["peers"].items())
        speed = row["flops"] / row["mine"] / 1e6
        cells = [row["group"], row["name"], f"{row['mine']:.1f}", f"{speed:.0f}", peers, f"{row['ratio']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    notes = [
        f"{data['device']}, {data['date']}, torch {data['torch']}, CUDA {data['cuda']}, ptxas {data['ptxas']}"
    ]
    notes += dates(data)
    for group in NETWORKS:
        found = [r["ratio"] for r in rows if r["group"] == group]
        if found:
            mean = f"geometric mean {geometric_mean(found):.3f}"
            notes.append(f"{group}: {len(found)} layers, {mean}, lowest {min(found):.3f}")
    failed = [r["name"] for r in data["rows"] if r["error"]]
    return "\n".join([*lines, "", "; ".join(notes + [f"failed: {', '.join(failed)}"] * bool(failed)) + "."])


def llama_table(data: dict[str, Any]) -> str:
    """Tokens a second of `bench/torch_llama.py` by contestant."""
    rates = data["tokens a second"]
    names = list(dict.fromkeys(n for row in rates.values() for n in row))
    lines = ["| | " + " | ".join(f"`{n.split()[-1]}`" if " " in n else n for n in names) + " |"]
    lines.append("|---|" + "---|" * len(names))
    for title, row in sorted(rates.items(), key=lambda x: x[0].startswith("decode")):
        cells = [f"{row[n]:,.0f}" if n in row else "" for n in names]
        lines.append("| " + " | ".join([title, *cells]) + " |")
    versions = f"torch {data['torch']}, CUDA {data['cuda']}, ptxas {data['ptxas']}"
    return "\n".join([*lines, "", f"{data['device']}, {data['date']}, {versions}."])


def picture(data: dict[str, Any]) -> str:
    """Ratios as bars, one for each product and regime, as SVG."""
    colors = {"flushed": "#26c", "graph": "#283", "steady": "#b80"}
    bars = [(r["name"], x, ratio(r, x)) for r in data["rows"] for x in REGIMES if ratio(r, x) is not None]
    left, right, high, top, most = 210, 400, 16, 30, 1.5
    width, height = left + right + 60, top + high * len(bars) + 20
    one = left + right / most
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, (regime, color) in enumerate(colors.items()):
        lines.append(f'<text x="{left + 90 * i}" y="16" fill="{color}">{regime}</text>')
    before = ""
    for i, (name, regime, value) in enumerate(bars):
        assert value is not None
        y = top + high * i
        if name != before:
            lines.append(f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{name}</text>')
        before = name
        size = right * min(value, most) / most
        lines.append(
            f'<rect x="{left}" y="{y + 2}" width="{size:.1f}" height="{high - 4}" fill="{colors[regime]}"/>'
        )
        lines.append(f'<text x="{left + size + 4:.1f}" y="{y + 12}">{value:.3f}</text>')
    lines.append(f'<line x1="{one:.1f}" y1="{top - 6}" x2="{one:.1f}" y2="{height - 14}" stroke="black"/>')
    lines.append(f'<text x="{one:.1f}" y="{height - 3}" text-anchor="middle">cuBLAS</text>')
    return "\n".join([*lines, "</svg>", ""])


def rewritten(text: str, block: str, begin: str = BEGIN) -> str:
    """``text`` with what stands between the marks replaced.  Raises ValueError without marks."""
    found, count = re.subn(
        f"(?s){re.escape(begin)}.*?{re.escape(END)}", lambda _: f"{begin}\n{block}\n{END}", text
    )
    if count != 1:
        raise ValueError(f"{count} places between {begin} and {END}")
    return found


def main() -> int:
    data = json.loads(DATA.read_text())
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8"), table(data)), encoding="utf-8")
    PICTURE.write_text(picture(data))
    page, types = PAGES[1], json.loads(TYPES.read_text())
    page.write_text(rewritten(page.read_text(encoding="utf-8"), types_table(types), TYPES_BEGIN), encoding="utf-8")
    forms = forms_table(json.loads(FORMS.read_text()))
    page.write_text(rewritten(page.read_text(encoding="utf-8"), forms, FORMS_BEGIN), encoding="utf-8")
    if LLAMA.exists():
        text, rates = LLAMA_PAGE.read_text(encoding="utf-8"), llama_table(json.loads(LLAMA.read_text()))
        LLAMA_PAGE.write_text(rewritten(text, rates, LLAMA_BEGIN), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
