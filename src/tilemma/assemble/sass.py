"""Disassembly (SASS): nvdisasm's text and the counts of its instructions."""

from __future__ import annotations

import re
from collections import Counter

from ..checked import checked, instance
from ..errors import ToolError
from .process import Stopped, output_of, remove, tail, temporary_file
from .ptxas import Cubin
from .toolchain import find_tool


class DisassemblyFailed(ToolError):
    code = "disassembly-failed"
    found = "nvdisasm {version} cannot read the cubin: {text}"
    expected = "a cubin that this nvdisasm knows"
    fix = "use an nvdisasm at least as new as the ptxas that made the cubin (set TILEMMA_NVDISASM)"


@checked(cubin=instance("a cubin: what `assemble` returns, or its bytes", Cubin, bytes))
def disassemble(cubin: Cubin | bytes, *, lines: bool = False) -> str:
    """The SASS of ``cubin``, code sections only.  Raises NoDisassembler, DisassemblyFailed.

    ``lines``: with the source positions that `assemble(..., options=("-lineinfo",))` puts into it.
    """
    tool = find_tool("nvdisasm")
    path = temporary_file(".cubin")
    try:
        path.write_bytes(cubin.bytes if isinstance(cubin, Cubin) else cubin)
        status, said, complaints = output_of([tool.path, "-c", *(("-g",) if lines else ()), str(path)])
    except (OSError, ValueError, Stopped) as error:
        raise DisassemblyFailed(version=tool.release, text=str(error)) from None
    finally:
        remove(path)
    if status != 0:
        raise DisassemblyFailed(version=tool.release, text=f"status {status}, `{tail(complaints or said)}`")
    if ".text." not in said:
        raise DisassemblyFailed(version=tool.release, text=f"it printed no code, `{tail(complaints or said)}`")
    return said


_INSTRUCTION = re.compile(
    r"^[ \t]*+/\*[0-9a-f]{4,16}+\*/[ \t]++(?:@!?U?P\w++[ \t]++)?([A-Z][A-Z0-9_]*+)((?:\.\w++)*)", re.MULTILINE
)


_SASS = instance("the text that `disassemble` returns", str)


@checked(sass=_SASS)
def sass_counts(sass: str, *, modifiers: bool = False) -> dict[str, int]:
    """The count of each opcode in ``sass``, most frequent first, without the NOPs that pad a function.

    With ``modifiers`` the key is the whole mnemonic (`HMMA.16816.F32`), else the opcode (`HMMA`).
    """
    counts: Counter[str] = Counter()
    for match in _INSTRUCTION.finditer(sass):
        if match[1] != "NOP":
            counts[match[1] + (match[2] if modifiers else "")] += 1
    return dict(counts.most_common())


@checked(sass=_SASS)
def local_memory_accesses(sass: str) -> int:
    """Instructions that touch local memory (LDL, STL): spills, or arrays that did not fit in registers."""
    counts = sass_counts(sass)
    return counts.get("LDL", 0) + counts.get("STL", 0)
