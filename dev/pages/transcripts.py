"""The listings, transcripts and times of docs/tutorial.md: files as they are, commands with what they print, and
what bench/gemm.py measured.

python -m dev.pages.transcripts      # rewrite them; `dev.pages.stages` does so too
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
import sys
from pathlib import Path
from typing import Any

PAGE = "docs/tutorial.md"
_LISTING = re.compile(r"(<!-- file: (\S+) -->\n```\w+\n).*?(```\n)", re.S)
_CONSOLE = re.compile(r"(```console\n)(.*?)(```\n)", re.S)
_TIMES = re.compile(r"(<!-- times: (\S+) -->\n)(?:\|.*\n)*(?:\nOne .*\n)?")
# Differs between machines and assemblers: times, errors that depend on the order of sums, registers, releases.
_VARIES = re.compile(
    r"(?<=time: ).*|(?<=largest error: )[\d.]+|\d+(?= registers a thread)|(?<=assembler ptxas ).*"
)
# The path of a tool on the machine that writes the page is left out.
_FOLDER = re.compile(r"(?<=: )/\S+/(?=ptxas )")


def transcript(command: str) -> str:
    """``$ tilemma ...`` and its output, run in this process; of a shell's operators only ``| head -N`` is
    supported."""
    from click.testing import CliRunner

    from tilemma.cli import main

    line, _, limit = command.partition(" | head -")
    program, *arguments = shlex.split(line)
    assert program == "tilemma", command
    lines = _FOLDER.sub(".../", CliRunner().invoke(main, arguments).output).splitlines()
    lines = [line for line in lines if not line.startswith("  assembler ")]  # a path of this machine
    return "\n".join([f"$ {command}", *(lines[: int(limit)] if limit else lines)]) + "\n"


def times(data: dict[str, Any]) -> str:
    """Measurements by bench/gemm.py as a table."""
    what, results = data["versions"], data["results"]
    size = " = ".join("MNK") + f" = {results[0]['shape'][0]}"
    lines = [f"| {size} | microseconds | TFLOP/s | of {results[0]['kernel']} |", "|---|---|---|---|"]
    for r in results:
        rate = 2e-6 * math.prod(r["shape"]) / r["flushed_us"]
        ratio = r["flushed_ratio"]
        row = (
            f"`{r['kernel']}`",
            f"{r['flushed_us']:.0f}",
            f"{rate:.3g}",
            f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.1g}",
        )
        lines.append(f"| {' | '.join(row)} |")
    where = f"{what['device']} ({what['driver, power limit, top clock']}), torch {what['torch']}"
    return "\n".join([*lines, "", f"One {where}; f16, L2 flushed, medians; written by `bench/gemm.py`."]) + "\n"


def document(text: str, root: Path) -> str:
    """``text`` with its listings, and those transcripts that would differ, as they are now."""

    def listing(m: re.Match[str]) -> str:
        return m[1] + (root / m[2]).read_text(encoding="utf-8") + m[3]

    def console(m: re.Match[str]) -> str:
        commands = [line.removeprefix("$ ") for line in m[2].splitlines() if line.startswith("$ ")]
        now = "".join(map(transcript, commands))
        return m[0] if settled(now) == settled(m[2]) else m[1] + now + m[3]

    def measured(m: re.Match[str]) -> str:
        return m[1] + times(json.loads((root / m[2]).read_text(encoding="utf-8")))

    with contextlib.chdir(root):
        return _CONSOLE.sub(console, _TIMES.sub(measured, _LISTING.sub(listing, text)))


def settled(text: str) -> str:
    """``text`` without parts that differ between machines."""
    return _VARIES.sub("...", text)


def main(root: Path) -> None:
    page = root / PAGE
    page.write_text(document(page.read_text(encoding="utf-8"), root), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
