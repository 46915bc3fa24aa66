"""Reading machine code: nvdisasm's text and what it counts to."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from ..errors import ToolError
from .ptxas import Cubin
from .toolchain import find_tool


class DisassemblyFailed(ToolError):
    code = "disassembly-failed"
    found = "nvdisasm {version} cannot read the cubin: {text}"
    expected = "a cubin that this nvdisasm knows"
    fix = "use an nvdisasm at least as new as the ptxas that made the cubin (set TILEMMA_NVDISASM)"


def disassemble(cubin: Cubin | bytes) -> str:
    """The SASS of ``cubin``, code sections only.  Raises NoDisassembler, DisassemblyFailed."""
    tool = find_tool("nvdisasm")
    image = cubin.bytes if isinstance(cubin, Cubin) else cubin
    with tempfile.TemporaryDirectory(prefix="tilemma-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(image)
        run = subprocess.run([tool.path, "-c", str(path)], capture_output=True, text=True, errors="replace")
    if run.returncode != 0:
        text = (run.stderr or run.stdout).strip()[:500] or f"status {run.returncode}"
        raise DisassemblyFailed(version=tool.release, text=text)
    return run.stdout


_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.[\w]+)*)", re.MULTILINE
)


def sass_counts(sass: str, *, modifiers: bool = False) -> dict[str, int]:
    """How often each opcode occurs in ``sass``, most frequent first; NOPs that pad a function not counted.

    With ``modifiers`` the key is the whole mnemonic (`HMMA.16816.F32`), else the opcode (`HMMA`).
    """
    counts: Counter[str] = Counter()
    for match in _INSTRUCTION.finditer(sass):
        if match[1] != "NOP":
            counts[match[1] + (match[2] if modifiers else "")] += 1
    return dict(counts.most_common())


def local_memory_accesses(sass: str) -> int:
    """Instructions that touch local memory (LDL, STL): spills, or arrays that did not fit in registers."""
    counts = sass_counts(sass)
    return counts.get("LDL", 0) + counts.get("STL", 0)
