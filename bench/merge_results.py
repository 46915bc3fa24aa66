"""Merges results of runs of one benchmark, of parts of its table each, into a stored file:

    python bench/merge_results.py docs/performance/ops.json large.json rest.json

Rows of the later files replace those of the same product; rows that stay say when they were measured.  For the
results of bench/ops.py, ops_types.py, ops_forms.py and torch_llama.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """What a row measures."""
    return tuple(str(row.get(x, "")) for x in ("group", "name", "dtype"))


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """``old`` with the results of ``new``, and what those were measured on."""
    found = {**old, **new}
    for name in ("host_us", "tokens a second"):
        if name in old or name in new:
            found[name] = {**old.get(name, {}), **new.get(name, {})}
    if "rows" in old and "rows" in new:
        fresh = {key(r): r for r in new["rows"]}
        same = old.get("ptxas") == new.get("ptxas")
        label = old["date"] if same else f"{old['date']} with ptxas {old['ptxas']}"
        dated = [{"date": label, **r} for r in old["rows"]]
        rows = [fresh.pop(key(r), r) for r in dated]
        found["rows"] = [*rows, *fresh.values()]
    if found.get("rows"):
        # A date of its own has only a row of another day.
        found["rows"] = [{k: v for k, v in r.items() if k != "date" or v != found["date"]} for r in found["rows"]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("into", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args()
    data = json.loads(options.into.read_text()) if options.into.exists() else {}
    for path in options.runs:
        data = merged(data, json.loads(path.read_text()))
    options.into.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
