"""The forms of the matrix instructions that ptxas takes, as `bench/probe_forms.py` found them, as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tilemma.records import record

FILE = Path(__file__).parents[2] / "docs" / "proofs" / "forms.json"
_TYPES = {
    "f16", "bf16", "tf32", "f32", "f64", "s32", "s8", "u8", "s4", "u4", "b1",
    "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "ue8m0", "ue4m3",
}  # fmt: skip


@record
class Form:
    """The parts of an opcode: ``types`` are those of D, A, B, of C where it has one, and of scales."""

    instruction: str
    shape: str
    layout: str
    kind: str
    saturates: bool
    bitop: str
    types: tuple[str, ...]


def parsed(name: str) -> Form:
    """The form of a name in the file: an opcode, and for wgmma where A lies."""
    opcode, _, source = name.partition(" ")
    parts = opcode.split(".")
    shape = next(i for i, part in enumerate(parts) if part[0] == "m" and part[1:2].isdigit())
    rest = parts[shape + 1 :]
    bitop = next((x for x in rest if x in ("xor", "and")), "")
    layout = ".".join(x for x in rest if x in ("row", "col"))
    types = tuple(x for x in rest if x in _TYPES)
    words = [x for x in rest if x not in _TYPES and x not in ("row", "col", "satfinite", "xor", "and", "popc")]
    instruction = ".".join(x for x in parts[:shape] if x not in ("sync", "aligned")).removesuffix(".mma_async")
    if source:
        instruction = (
            f"{instruction.replace('.mma_async', '')}, A in {'registers' if source == 'RS' else 'shared memory'}"
        )
    return Form(instruction, parts[shape], layout, " ".join(words), "satfinite" in rest, bitop, types)


def read_forms() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text())
    return content


def taken_by_ptxas() -> Iterator[str]:
    """The section of `docs/atoms.md`."""
    file = read_forms()
    yield "## Forms that ptxas takes"
    yield ""
    yield (
        f"`bench/probe_forms.py` asked ptxas {file['ptxas']} on {file['date']} about every combination of shape, "
        "types, majorness and qualifiers of `mma.sync`, `mma.sp` and `wgmma`, for "
        f"{', '.join(file['candidates_for'])} ([forms.json](proofs/forms.json)). It refused all others. The "
        "catalogue has a record of each form, except those that sm_120a alone has: the ones with a *kind*, and "
        "the sparse products of 8-bit floats with f16 sums, which are `kind::f8f6f4` without its name. The PTX "
        "machine executes all of them. No GPU of sm_100, sm_103 or sm_120 has proven any; the H200 has proven "
        "those of sm_90a."
    )
    yield ""
    targets: Sequence[str] = file["candidates_for"]
    groups: dict[tuple[str, ...], list[Form]] = {}
    for name, row in file["forms"].items():
        form = parsed(name)
        d, _, _, *others = form.types
        end = ", ".join(x for x in (form.kind, form.bitop) if x)
        scale = others[1] if len(others) > 1 else ""
        sums = d if not others or others[0] == d else f"{d}, C {others[0]}"
        key = (form.instruction, form.shape, end, scale, sums, _widths(row), _targets(row["targets"], targets))
        groups.setdefault(key, []).append(form)
    yield "| instruction | shape | A x B | D and C | qualifiers | targets |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for (instruction, shape, end, scale, sums, widths, where), forms in groups.items():
        layouts = sorted({f.layout for f in forms} - {"", "row.col"})
        notes = [end, f"scales of {scale}" if scale else "", "each majorness" if layouts else ""]
        notes += ["also `.satfinite`" if any(f.saturates for f in forms) else "", widths]
        pairs = sorted({f.types[1:3] for f in forms})
        row = (instruction, shape, _pairs(pairs), sums, ", ".join(x for x in notes if x), where)
        yield "| " + " | ".join(row) + " |"
    yield ""


def _pairs(pairs: Sequence[tuple[str, ...]]) -> str:
    """Types of A and B: those that mix freely as a product of two lists."""
    left, right = ([*dict.fromkeys(p[i] for p in pairs)] for i in (0, 1))
    if len(pairs) > 1 and sorted(product(left, right)) == sorted(pairs):
        return f"{', '.join(left)} x {', '.join(right)}"
    return "; ".join(" x ".join(p) for p in pairs)


def _widths(row: Mapping[str, Any]) -> str:
    widths = row.get("widths")
    if not widths:
        return ""
    return (
        "N = 8, 16, 24, ..., 256"
        if len(widths) == 32
        else f"N = {', '.join(map(str, widths[:5]))}, ..., {widths[-1]}"
    )


def _targets(have: Sequence[str], every: Sequence[str]) -> str:
    first = every.index(have[0])
    if list(have) == list(every[first:]):
        return f"{have[0]} and later" if len(have) > 1 else have[0]
    return ", ".join(have)
