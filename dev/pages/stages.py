"""A kernel that is not pipelined at every stage, as docs/architecture.md shows it.

python -m dev.pages.stages      # rewrite docs/stages, the blocks in docs/architecture.md, and docs/tutorial.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dev.pages import transcripts
from tilemma.compiler import Compiled
from tilemma.ir.printer import print_kernel
from tilemma.modules import loads

EXAMPLE = "examples/co/matmul_wgmma_2group.co"
ARCH = "sm_90a"
# Lines of a long stage after its first fence, and the width at which they are cut.
SHOWN = 12
WIDTH = 150
_BLOCK = re.compile(r"(<!-- stage: (\w+) -->\n```\w*\n).*?(```\n)", re.S)


def stages(root: Path) -> dict[str, str]:
    """Stage -> text.  Source positions are left out: they would name the folder this is run from."""
    text = (root / EXAMPLE).read_text().replace("__co__", "[[pipeline(off)]] __co__", 1)
    compiled: Compiled = loads(text, name=EXAMPLE).only().compile(ARCH)
    ptx = "\n".join(line for line in compiled.ptx.splitlines() if not line.lstrip().startswith((".loc", ".file")))
    return {
        "tile": print_kernel(compiled.source),
        "decided": compiled.ir,
        "lane": compiled.lane_ir,
        "ptx": ptx + "\n",
        "plan": compiled.explain().render() + "\n",
    }


def excerpt(stage: str, text: str) -> str:
    """The excerpt in the document: short stages whole, of the long ones the first multiplies of the main loop."""
    if stage not in ("lane", "ptx"):
        return text
    lines = [line if len(line) <= WIDTH else line[: WIDTH - 4] + " ..." for line in text.splitlines()]
    first = next(i for i, line in enumerate(lines) if "wgmma.fence" in line)
    last = next(i for i, line in enumerate(lines) if "wgmma.wait_group" in line)
    head, tail = lines[max(0, first - 6) : first + SHOWN], lines[last - 3 : last + 2]
    return "\n".join([*head, "    ...", *tail]) + "\n"


def document(text: str, found: dict[str, str]) -> str:
    """``text`` with each ``<!-- stage: NAME -->`` block replaced by the stage as it is now."""
    return _BLOCK.sub(lambda m: m[1] + excerpt(m[2], found[m[2]]) + m[3], text)


def main(root: Path) -> None:
    found = stages(root)
    for name, text in found.items():
        (root / "docs/stages" / f"{name}.txt").write_text(text)
    page = root / "docs/architecture.md"
    page.write_text(document(page.read_text(), found))
    transcripts.main(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
