"""Which forms of the matrix instructions ptxas takes, on each target: `docs/proofs/forms.json`.

    python bench/probe_forms.py                 # asks ptxas about every candidate; needs no GPU

Candidates are combinations of shapes, types, majornesses and qualifiers that the PTX ISA's grammar allows for any
matrix instruction, legal or not, each as one line of a module.  ptxas names the lines that it refuses.  That ptxas
takes a form proves neither that the ISA has it nor what it computes; `bench/prove_atoms.py` does the latter.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilemma.assemble import find_tool

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_103", "sm_120", "sm_120a")
VERSION = "9.1"
BITS = {
    "f64": 64, "s32": 32, "f32": 32, "tf32": 32, "f16": 16, "bf16": 16, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8,
    "e3m2": 8, "e2m3": 8, "e2m1": 8, "s4": 4, "u4": 4, "b1": 1,
}  # fmt: skip
_SUMS = ("f16", "bf16", "f32", "f64", "s32")
# Pairs of A and B; the second row crosses types that no instruction is known to mix.
_PAIRS = (
    *((t, t) for t in ("f16", "bf16", "tf32", "f64", "b1")),
    *(pair for t in (("e4m3", "e5m2"), ("s8", "u8"), ("s4", "u4")) for pair in itertools.product(t, repeat=2)),
    ("f16", "bf16"), ("bf16", "f16"), ("f16", "e4m3"), ("e4m3", "s8"), ("s8", "s4"), ("s4", "s8"), ("f32", "f32"),
    ("tf32", "f16"), ("f16", "s8"), ("bf16", "s8"),
)  # fmt: skip
_SHAPES = (
    (8, 8, 4),
    (8, 8, 8),
    (8, 8, 16),
    (8, 8, 32),
    (8, 8, 64),
    (8, 8, 128),
    (16, 16, 16),
    *((16, 8, 2**i) for i in range(2, 10)),
)
_MIXED = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
HEAD = """.version {version}
.target {target}
.address_size 64
.visible .entry k()
{{
.reg .b32 %r<300>; .reg .f32 %f<300>; .reg .b64 %d<4>; .reg .f64 %g<40>; .reg .b16 %h<4>; .reg .pred %p<2>;
"""


def _vector(kind: str, elements: int, lanes: int = 32) -> str:
    """The registers of one lane for ``elements`` of type ``kind``."""
    letter = {"f32": "f", "f64": "g"}.get(kind, "r")
    count = max(1, elements * BITS[kind] // (64 if letter == "g" else 32) // lanes)
    return "{" + ", ".join(f"%{letter}{i}" for i in range(count)) + "}"


def _warp(shape: tuple[int, int, int], d: str, a: str, b: str, c: str, sparse: bool = False) -> str:
    """Operands of mma.sync; the four products of m8n8k4 of f16 take those of one of 16x16x4 by pairs of quads."""
    m, n, k = shape
    if shape == (8, 8, 4) and a == "f16":
        return ", ".join((_vector(d, 256), _vector(a, 128), _vector(b, 128), _vector(c, 256)))
    left = _vector("f32" if a == "f32" else a, m * k // (2 if sparse else 1))
    parts = (_vector(d, m * n), left.replace("%f", "%r"), _vector(b, n * k).replace("%f", "%r"), _vector(c, m * n))
    return ", ".join(parts)


def dense() -> Iterator[str]:
    """mma.sync: every layout of m8n8k4, the usual one and its opposite of the others."""
    for shape, (a, b), d, c in itertools.product(_SHAPES, _PAIRS, _SUMS, _SUMS):
        size = "m{}n{}k{}".format(*shape)
        operands = _warp(shape, d, a, b, c)
        layouts = itertools.product(("row", "col"), repeat=2) if shape[2] <= 16 else (("row", "col"),)
        for (x, y), finite in itertools.product(layouts, ("", ".satfinite")):
            if finite and (x, y) != ("row", "col"):
                continue
            for bits in (".xor.popc", ".and.popc", "") if a == "b1" else ("",):
                yield f"mma.sync.aligned.{size}.{x}.{y}{finite}.{d}.{a}.{b}.{c}{bits} {operands};"


def sparse() -> Iterator[str]:
    for shape, (a, b), d in itertools.product(_SHAPES, _PAIRS, _SUMS):
        size = "m{}n{}k{}".format(*shape)
        operands = _warp(shape, d, a, b, d, sparse=True)
        for word, finite in itertools.product(("", "::ordered_metadata"), ("", ".satfinite")):
            yield f"mma.sp{word}.sync.aligned.{size}.row.col{finite}.{d}.{a}.{b}.{d} {operands}, %r99, 0;"


def scaled() -> Iterator[str]:
    """The kinds of sm_120: floats of 8, 6 and 4 bits, with and without scales of blocks."""
    for (a, b), d, kind in itertools.product(
        itertools.product(_MIXED, repeat=2), ("f32", "f16"), ("f8f6f4", "mxf8f6f4", "mxf4", "mxf4nvf4")
    ):
        packed = kind.startswith("mxf4")
        for word, k in (("", 32), ("", 64), ("::ordered_metadata", 64), ("::ordered_metadata", 128)):
            half = 2 if word else 1
            factor = 2 if packed else 1  # two elements of 4 bits in a byte, one of any type otherwise
            operands = (
                _vector(d, 128),
                _vector(a, 16 * k // half // factor),
                _vector(b, 8 * k // factor),
                _vector(d, 128),
            )
            metadata = ", %r99, 0" if word else ""
            text = f"mma{'.sp' + word if word else ''}.sync.aligned.m16n8k{k}.row.col.kind::{kind}"
            types = f"{d}.{a}.{b}.{d}"
            if kind == "f8f6f4":
                yield f"{text}.{types} {', '.join(operands)}{metadata};"
                continue
            for count, scale in itertools.product((1, 2, 4), ("ue8m0", "ue4m3")):
                scales = f"{metadata}, %r90, {{0, 0}}, %r91, {{0, 0}}"
                form = f"{text}.block_scale.scale_vec::{count}X.{types}.{scale}"
                yield f"{form} {', '.join(operands)}{scales};"


_IMMEDIATES = ("", "1, 1", "1, 1, 0, 0", "1, 1, 0")


def warpgroup(widths: tuple[int, ...] = (8, 40, 256)) -> Iterator[str]:
    """wgmma of some N."""
    kinds = ("", ".sp", ".sp::ordered_metadata")
    for (a, b), d, sp, k, n in itertools.product(_PAIRS, _SUMS, kinds, (4, 8, 16, 32, 64, 128, 256, 512), widths):
        if k * BITS[a] not in (128, 256, 512):
            continue
        left = _vector(a, 64 * k // (2 if sp else 1), 128).replace("%f", "%r")
        for source, finite, immediates in itertools.product(("%d0", left), ("", ".satfinite"), _IMMEDIATES):
            bits = (".and.popc", ".xor.popc") if a == "b1" else ("",)
            for bit in bits:
                head = f"wgmma.mma_async{sp}.sync.aligned.m64n{n}k{k}{finite}.{d}.{a}.{b}{bit}"
                operands = f"{_vector(d, 64 * n, 128)}, {source}, %d1{', %r299, 0' if sp else ''}"
                yield f"{head} {operands}, 1{', ' + immediates if immediates else ''};"


def refused(texts: list[str], target: str, folder: Path, version: str = VERSION) -> set[int]:
    """Positions of the lines for which ptxas has an error."""
    # The last line is one that ptxas refuses: it stops when it has read the module, before the long work.
    head = HEAD.format(target=target, version=version)
    left, found = list(range(len(texts))), set()
    path = folder / f"{target}.ptx"
    while left:
        path.write_text("\n".join((head + "\n".join(texts[i] for i in left), "mma;", "ret;", "}", "")))
        command = [
            find_tool("ptxas").path,
            "-O0",
            "--compile-only",
            f"-arch={target}",
            "-o",
            "/dev/null",
            str(path),
        ]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = {int(x) - head.count("\n") - 1 for x in re.findall(r"line (\d+); error", run.stderr)}
        if len(left) not in lines:
            raise RuntimeError(run.stderr[:2000])
        if len(lines) == 1:
            break
        found |= {left[line] for line in lines - {len(left)}}
        left = [i for i in left if i not in found]
    return found


_TEXT = re.compile(r"(\S+) \{[^}]*\}, (\{|%d)")


def named(text: str) -> tuple[str, str]:
    """The opcode of a line, and where A lies: "R" in registers, "S" in shared memory."""
    found = _TEXT.match(text)
    assert found, text
    return found[1], "R" if found[2] == "{" else "S"


def taken(texts: list[str], target: str, folder: Path) -> list[str]:
    outside = refused(texts, target, folder)
    return [text for i, text in enumerate(texts) if i not in outside]


def every_width(texts: list[str], target: str, folder: Path) -> dict[tuple[str, str], list[int]]:
    """For each form of wgmma, named without its N, every N that ptxas takes."""
    spread = []
    for text in texts:
        opcode, rest = text.split(" ", 1)
        width = re.search(r"m64n(\d+)k", opcode)
        d = next(part for part in opcode.split(".")[4 if ".sp." not in opcode else 5 :] if part in BITS)
        assert width
        for n in (*range(4, 268, 4), 512):
            if width[1] == "8":
                spread.append(
                    f"{opcode.replace('n8k', f'n{n}k')} {_vector(d, 64 * n, 128)}{rest[rest.index('}') + 1 :]}"
                )
    found: dict[tuple[str, str], list[int]] = {}
    for text in taken(spread, target, folder):
        opcode, source = named(text)
        n = re.search(r"m64n(\d+)k", opcode)
        assert n
        found.setdefault((opcode.replace(f"n{n[1]}k", "nNk"), source), []).append(int(n[1]))
    return found


def probe(targets: tuple[str, ...] = TARGETS) -> dict[str, dict[str, object]]:
    """Every form that one of the targets takes: its targets, and for wgmma its widths."""
    forms: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for target in targets:
            warps = [*dense(), *sparse(), *scaled()]
            for text in taken(warps, target, folder):
                forms.setdefault(named(text)[0], {"targets": []})["targets"].append(target)
            wide = (
                taken(list(warpgroup()), target, folder)
                if target in ("sm_90", "sm_90a", "sm_100", "sm_120a")
                else []
            )
            for (opcode, source), widths in every_width(wide, target, folder).items():
                row = forms.setdefault(f"{opcode} {source}S", {"targets": [], "widths": sorted(set(widths))})
                row["targets"].append(target)
    for row in forms.values():
        row["targets"] = list(dict.fromkeys(row["targets"]))
    return dict(sorted(forms.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "proofs" / "forms.json")
    options = parser.parse_args()
    found = probe()
    facts = {"ptxas": ".".join(map(str, find_tool("ptxas").version)), "date": datetime.date.today().isoformat()}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
    head = json.dumps({**facts, "ptx": VERSION, "candidates_for": list(TARGETS)}, indent=1)[:-2]
    options.out.write_text(f'{head},\n "forms": {{\n{rows}\n }}\n}}\n')
    print(f"{len(found)} forms: {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
