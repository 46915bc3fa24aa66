"""Validation of cubins: an ELF file with machine code for an architecture, and with the entries that the PTX has.

ELF-64 as in the System V gABI; the machine, and where the flags hold the architecture, as in LLVM's
BinaryFormat/ELF.h (EM_CUDA, EF_CUDA_SM).
"""

from __future__ import annotations

import re
import struct

_EM_CUDA = 190
_ENTRY = re.compile(r"\.entry\s{1,64}([\w$%]{1,4096})")


def entries_of(ptx: str) -> list[str]:
    """The names of the entries in ``ptx``, in order."""
    return _ENTRY.findall(ptx)


def problem(image: bytes, arch: str, entries: list[str]) -> str | None:
    """The reason why ``image`` is not machine code for ``arch`` with these entries; None when it is."""
    if len(image) < 64 or image[:6] != b"\x7fELF\x02\x01":
        return "it is not an ELF file"
    machine = struct.unpack_from("<H", image, 18)[0]
    if machine != _EM_CUDA:
        return f"it is an ELF file for machine {machine}, not for CUDA"
    flags = struct.unpack_from("<I", image, 48)[0]
    # From version 8 of the ABI on, the second byte is the architecture.
    number = flags >> 8 & 0xFF if image[8] >= 8 else flags & 0xFF
    digits = "".join(c for c in arch if c.isdigit())
    if digits and number != int(digits):
        return f"it is machine code for sm_{number}"
    sections = _section_names(image)
    if sections is None:
        return "its section table is damaged"
    missing = [name for name in entries if f".text.{name}" not in sections]
    return f"it has no entry {missing[0]}" if missing else None


def _section_names(image: bytes) -> set[str] | None:
    """The names of the sections; None where the table reaches beyond the file."""
    start = struct.unpack_from("<Q", image, 40)[0]
    size, count, strings = struct.unpack_from("<HHH", image, 58)
    if size < 64 or strings >= count or start + size * count > len(image):
        return None
    at, length = struct.unpack_from("<QQ", image, start + size * strings + 24)
    if at + length > len(image):
        return None
    table = image[at : at + length]
    names = set()
    for i in range(count):
        offset = struct.unpack_from("<I", image, start + size * i)[0]
        end = table.find(b"\0", offset)
        if offset >= length or end < 0:
            return None
        names.add(table[offset:end].decode("utf-8", "replace"))
    return names
