"""`docs/atoms.md` and the pictures in `docs/img`, written from the catalogue.

python -m dev.pages.atoms docs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dev.pages.forms import taken_by_ptxas
from dev.pages.proofs import proof_summary, read_proofs
from tilemma.atoms import CopyAtom, MmaAtom, catalogue
from tilemma.cute import TiledMMA
from tilemma.layouts import SWIZZLES, Major, canonical_atom, cute_str, plain_layout, shared_layout
from tilemma.tools.show import show
from tilemma.tools.show_atoms import types_of
from tilemma.tools.show_svg import beside, shared_svg, tiled_svg
from tilemma.tools.show_text import runs_on

_PICTURED = "SM80_16x8x16_F32F16F16F32_TN"


def family(name: str) -> str:
    """The name without the number in which its family differs: wgmma comes in 32 widths."""
    return re.sub(r"^(SM90_(?:SPARSE_)?64x)\d+(x\d+_)", r"\1N\2", name)


def _tiled_mma() -> str:
    wgmma = catalogue["SM90_64x64x16_F16F16F16_SS"]
    assert isinstance(wgmma, MmaAtom)
    return tiled_svg(TiledMMA(wgmma, (2, 1, 1)), (128, 128, 64))


def _shared_memory_banks() -> str:
    return beside(
        [
            shared_svg(plain_layout("f16", 16, 64), "a plain row-major tile"),
            shared_svg(shared_layout("f16", 16, 64, "K", 128), "the same with the 128-byte swizzle"),
        ]
    )


# File name -> what makes its SVG text.
PICTURES: dict[str, Callable[[], str]] = {
    "fragment_m16n8k16.svg": lambda: show(_PICTURED, format="svg"),
    "fragment_m64n8k16.svg": lambda: show("SM90_64x8x16_F32F16F16_RS", format="svg"),
    "ldmatrix_x4.svg": lambda: show("SM75_U32x4_LDSM_N", format="svg"),
    "shared_memory_banks.svg": _shared_memory_banks,
    "tiled_mma.svg": _tiled_mma,
}


def atoms_page(proofs: Mapping[str, Mapping[str, Any]]) -> str:
    """`docs/atoms.md` as text; ``proofs`` as `read_proofs` gives them."""
    lines = [
        "# The instruction catalogue",
        "",
        "Generated from the records by `python -m dev.pages.atoms docs`; do not edit.",
        "",
        "`tilemma show NAME` prints the register layout of an instruction's fragments, as text, JSON, CSV, "
        "Markdown, SVG or an HTML page. The names are CuTe's. A file in `src/tilemma/atoms/` adds an instruction.",
        "",
        f"![fragments of {_PICTURED}](img/fragment_m16n8k16.svg)",
        "",
        *_multiplying(),
        *_rates(),
        *taken_by_ptxas(),
        *_copying(),
        *_shared_memory(),
        *_proofs(proofs),
    ]
    return "\n".join(lines) + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _families() -> list[tuple[str, list[MmaAtom]]]:
    return [(name, list(group)) for name, group in groupby(catalogue.mma(), key=lambda a: family(a.name))]


def _multiplying() -> Iterator[str]:
    yield "## Multiplying"
    yield ""
    yield (
        "The register counts are for one lane. B is N x K, as in CuTe. An operand marked *descriptor* is read "
        "from shared memory; the table lists its legal majornesses. "
        "Where an instruction is *emulated*, ptxas makes several others of it (seen in SASS)."
    )
    yield ""
    rows = []
    for name, members in _families():
        first, last = members[0], members[-1]
        n = str(first.shape[1])
        if len(members) > 1:
            n = f"{first.shape[1]}, {members[1].shape[1]}, ..., {last.shape[1]}"
        rows.append(
            (
                f"`{name}`",
                f"{first.shape[0]} x {n} x {first.shape[2]}",
                types_of(first),
                str(first.threads),
                *(_operand(members, letter) for letter in "ABC"),
                runs_on(first),
                ", ".join(first.emulated),
                f"{first.ptx_version[0]}.{first.ptx_version[1]}",
                first.section.removeprefix("PTX ISA, "),
            )
        )
    head = ("name", "M x N x K", "types", "lanes", "A", "B", "C and D", "runs on", "emulated on", "PTX", "PTX ISA")
    yield from _table(head, rows)


def _operand(members: list[MmaAtom], letter: str) -> str:
    operand = members[0].operands[letter]
    if not operand.in_registers:
        return "descriptor, " + " or ".join(operand.majors) + "-major"
    counts = [m.operands[letter].registers for m in members]
    span = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return f"{span} {operand.register}"


def _rates() -> Iterator[str]:
    yield "## Rates and latencies"
    yield ""
    yield "Peaks, in dense multiply-adds per SM and clock:"
    yield ""
    peaks: dict[tuple[str, int, str], list[str]] = {}
    for name, members in _families():
        for r in members[0].rates:
            peaks.setdefault((r.arch, r.fma, r.source), []).append(f"`{name}`")
    yield from _table(
        ("architecture", "peak", "instructions", "source"),
        [(arch, str(fma), ", ".join(names), source) for (arch, fma, source), names in sorted(peaks.items())],
    )
    (facts,) = {(x.device, x.arch, x.date) for a in catalogue.values() if (x := a.measured)}
    yield "Measured by `bench/time_atoms.py` on {} ({}), {}: multiply-adds per SM and clock".format(*facts)
    yield (
        "(of sparse instructions those of the dense product), and clocks from one instruction to the next that "
        "needs its result; for wgmma from the instruction to the end of the wait for its group."
    )
    yield ""
    rows = []
    for name, members in _families():
        shown = [m for m in members if len(members) == 1 or m.shape[1] in (8, 32, 64, 128, 192, 256)]
        for m in shown:
            if (found := m.measured) is not None:
                width = f"`{name}`, N = {m.shape[1]}" if len(members) > 1 else f"`{name}`"
                rows.append((width, f"{found.rate:g}", f"{found.latency:g}"))
    for copy in catalogue.copies():
        if copy.measured is not None:
            rows.append((f"`{copy.name}`", "", f"{copy.measured.latency:g}"))
    yield from _table(("instruction", "rate", "latency"), rows)


def _copying() -> Iterator[str]:
    yield "## Copying"
    yield ""
    rows = []
    for atom in catalogue.copies():
        assert isinstance(atom, CopyAtom)
        registers = f"{atom.fragment.registers} {atom.fragment.register}" if atom.fragment else "none"
        rows.append(
            (
                f"`{atom.name}`",
                f"`{atom.ptx}`",
                str(atom.bytes),
                registers,
                runs_on(atom),
                f"{atom.ptx_version[0]}.{atom.ptx_version[1]}",
                atom.section.removeprefix("PTX ISA, "),
            )
        )
    yield from _table(("name", "PTX", "bytes", "registers", "runs on", "PTX version", "PTX ISA"), rows)
    yield "![ldmatrix](img/ldmatrix_x4.svg)"
    yield ""


def _shared_memory() -> Iterator[str]:
    yield "## Shared memory that wgmma reads"
    yield ""
    yield (
        "The canonical atoms for 16-bit elements, as (M/N, K), in CuTe's spelling; a tile repeats one of them. "
        "The buffer starts on a multiple of the alignment. LBO and SBO are fields of the matrix descriptor "
        "(PTX ISA, 9.7.15.5.1)."
    )
    yield ""
    rows = []
    majors: tuple[Major, ...] = ("K", "MN")
    for major in majors:
        for swizzle in SWIZZLES:
            tile = shared_layout("f16", 128, 64, major, swizzle)
            if major == "K":
                lbo = "ignored" if swizzle else "to the next 16 bytes along K"
                sbo = "to the next 8 rows"
            else:
                lbo = f"to the next {swizzle} bytes along M/N" if swizzle else "to the next 8 along K"
                sbo = "to the next 8 along K" if swizzle else "to the next 16 bytes along M/N"
            spelled = f"`{cute_str(canonical_atom(16, major, swizzle), 16)}`"
            rows.append((major, str(swizzle or "none"), spelled, str(tile.alignment), lbo, sbo))
    yield from _table(("major", "swizzle", "atom", "alignment", "LBO", "SBO"), rows)
    yield "![banks of a tile with and without swizzle](img/shared_memory_banks.svg)"
    yield ""
    yield "![warps over a 128x128 tile](img/tiled_mma.svg)"
    yield ""


def _proofs(proofs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "## Proofs on hardware"
    yield ""
    yield (
        "`bench/prove_atoms.py` sets one element of A to 1 and numbers those of B, for every element of A and "
        "every record, and reads off which lane and register each element is in."
    )
    yield ""
    rows = []
    for gpu, proof in proofs.items():
        found = proof_summary(proof, catalogue.values())
        rows.append(
            (
                f"[{proof['device']}](proofs/{gpu}.json)",
                *(str(proof[key]) for key in ("date", "driver", "ptxas")),
                *(str(len(found[status])) for status in ("proven", "changed", "unproven", "refuted")),
            )
        )
    head = ("GPU", "date", "driver", "ptxas", "proven", "changed since", "not tried", "refuted")
    yield from _table(head, rows) if rows else iter(["None yet.", ""])
    others = [a for a in catalogue.values() if not any(a.runs_on(proof["arch"]) for proof in proofs.values())]
    targets = ", ".join(sorted({a.arch for a in others}))
    yield f"No GPU has proven the {len(others)} records that only {targets} has; the PTX machine executes them."
    yield ""


def write(docs: Path) -> list[Path]:
    """Write the page and the pictures under ``docs``; returns the files."""
    (docs / "img").mkdir(parents=True, exist_ok=True)
    files = {docs / "atoms.md": atoms_page(read_proofs(docs / "proofs"))}
    files |= {docs / "img" / name: draw() for name, draw in PICTURES.items()}
    for path, content in files.items():
        path.write_text(content)
    return list(files)


if __name__ == "__main__":
    for path in write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")):
        print(path)
