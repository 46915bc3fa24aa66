"""Stand-ins for ptxas and nvdisasm: Python programs, and the smallest files that pass for machine code."""

from __future__ import annotations

import stat
import struct
import sys
from pathlib import Path

VERSION = "if '--version' in sys.argv: sys.exit(print('V13.5.0'))"


def elf_image(sm: int, *entries: str, machine: int = 190, abi: int = 8) -> bytes:
    """An ELF-64 file for ``sm`` that has a section `.text.NAME` for each entry, and nothing in it."""
    names = ["", ".shstrtab", *(f".text.{e}" for e in entries)]
    table = b"".join(n.encode() + b"\0" for n in names)
    start = 64 + len(table)
    offsets = [sum(len(n.encode()) + 1 for n in names[:i]) for i in range(len(names))]
    flags = sm << 8 if abi >= 8 else sm
    ident = b"\x7fELF\x02\x01\x01\x41" + bytes([abi]) + b"\0" * 7
    head = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, start, flags, 64, 56, 0, 64, len(names), 1)
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", at, 3 if i == 1 else 1, 0, 0, 64, len(table), 0, 0, 1, 0)
        for i, at in enumerate(offsets)
    )
    return ident + head + table + sections


def fake_tool(folder: Path, script: str, name: str = "ptxas", head: str = VERSION) -> str:
    """A program ``name`` in ``folder`` that runs ``script``; ``head`` comes first and answers `--version`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, signal, sys, time\n{head}\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def writes(image: bytes) -> str:
    """A script that writes ``image`` where `-o` says."""
    return f"open(sys.argv[sys.argv.index('-o') + 1], 'wb').write({image!r})"
