"""The pages of the gallery, from its records, files, plans and measurements.

python -m dev.pages.gallery          # the table of docs/gallery.md; the pages of the kernels are made for the site
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dev.gallery import ENTRIES, FOLDER, Entry, kernel
from dev.pages.plan_picture import plan_svg

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gallery.md"
DATA = ROOT / "docs" / "performance" / "gallery.json"
BEGIN, END = "<!-- dev/pages/gallery.py -->\n", "<!-- end -->"


def measured() -> Mapping[str, Any]:
    """``rows`` by kernel, and ``facts``; both empty where nothing was measured."""
    return json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {"rows": {}, "facts": {}}


def speed(row: Mapping[str, Any]) -> str:
    """The rate of a kernel, with its unit."""
    return f"{row['tflops']:.0f} TFLOP/s" if "tflops" in row else f"{row['gbytes']:.0f} GB/s"


def table(link: str) -> str:
    """All kernels, with their speed; ``link`` has a hole for the name of a kernel."""
    data = measured()
    lines = ["| kernel | shows | size | speed | time | beside |", "|---|---|---|---|---|---|"]
    for e in ENTRIES.values():
        r = data["rows"].get(e.name)
        peer = f"{r['peer_us']:.0f} us {r['peer']}" if r else ""
        numbers = [r["size"], speed(r), f"{r['us']:.0f} us", peer] if r else ["not measured", "", "", ""]
        lines.append(f"| [{e.title}]({link.format(e.name)}) | {e.lesson} | " + " | ".join(numbers) + " |")
    f = data["facts"]
    if f:
        lines += ["", f"{f['device']}, {f['date']}, torch {f['torch']} with CUDA {f['cuda']}, ptxas {f['ptxas']}."]
        lines[-1] += " Medians of single calls, the L2 cache flushed before each, both in turn in one process."
    return "\n".join(lines) + "\n"


def document(text: str) -> str:
    """docs/gallery.md with its table made again."""
    return re.sub(
        f"(?s){re.escape(BEGIN)}.*?{END}", lambda _: BEGIN + table("../examples/gallery/{}.py") + "\n" + END, text
    )


def picture(e: Entry) -> str:
    """SVG: the plan for Hopper."""
    return plan_svg(kernel(e.name).compile("sm_90a", sizes=e.example).explain())


def page(e: Entry) -> str:
    """The page of one kernel: what it shows, its plan as a picture, both texts, a checked call, its speed."""
    py, co = ((FOLDER / f"{e.name}.{x}").read_text(encoding="utf-8").rstrip() for x in ("py", "co"))
    constants = e.problem("odd").constants
    given = "".join(f", {name}={value!r}" for name, value in constants.items())
    r = measured()["rows"].get(e.name)
    timed = ""
    if r:
        timed = f"## Speed\n\n{r['size']}: {r['us']:.1f} us, {speed(r)}; {r['peer']}: {r['peer_us']:.1f} us. "
        timed += "The [table of all kernels](../gallery.md) has the conditions.\n"
    return f"""# {e.title}

{e.lesson}

![The plan of {e.name} on sm_90a]({e.name}.svg)

## Python

```python
{py}
```

A call with NumPy arrays runs on the CPU reference, one on the machine checks the PTX:

```python
from dev.gallery import ENTRIES

problem = ENTRIES["{e.name}"].problem("odd")
{e.name}(*problem.arguments{given})
problem.check(problem.arguments)
{e.name}.on("machine", arch="sm_90a")(*problem.arguments{given})
problem.check(problem.arguments)
```

## Croqtile

```co
{co}
```

{timed}"""


def main() -> None:
    PAGE.write_text(document(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
