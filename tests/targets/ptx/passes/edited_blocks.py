"""Kernels in front of one pass, with one place of their IR edited, and the result of the pass for each.

``edits/seeds.ir`` has below ``== PASS name arch`` a kernel as text, as it is when that pass begins.  `Verify` is
the verifier, `Lower` the lowering of decided kernels.  ``edits/PASS.txt`` has below ``== name`` the edits of a
kernel, each with its outcome: a digest of the kernel or of the PTX with the decisions, or the error.  The cases of
``cases/`` are edited as well, under their names.

After a change of a pass or of the IR's text, ``python tests/targets/ptx/passes/edited_blocks.py`` writes the
outcomes again: read the difference.  With the arguments ``PASS name 3`` it shows the text behind the third digest
of a kernel.  `grow_blocks` adds edits.
"""

# ruff: noqa: E402
from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path[:0] = [
    x for x in (str(ROOT), str(ROOT / "tests" / "language"), str(Path(__file__).parent)) if x not in sys.path
]

import block_text
from edited import Edit, digest, told

from tilemma.errors import CompileError
from tilemma.ir.parser import parse_kernel
from tilemma.ir.printer import print_kernel
from tilemma.ir.tile import Kernel
from tilemma.ir.verifier import verify
from tilemma.passes.decision import Decision
from tilemma.targets.ptx.lower import lower
from tilemma.targets.ptx.passes import PASSES
from tilemma.targets.ptx.printer import print_module

FOLDER = Path(__file__).parent / "edits"
_EDIT = re.compile(r"(\d+):(\d+) `(.*)` => `(.*)`")
_FILE = re.compile(r"^\s*\.(file|loc).*$", re.M)


@cache
def seeds() -> dict[str, tuple[str, str]]:
    """``PASS name`` -> architecture and text of a kernel."""
    found = {}
    text = (FOLDER / "seeds.ir").read_text(encoding="utf-8") if (FOLDER / "seeds.ir").exists() else ""
    for part in ("\n" + text).split("\n== ")[1:]:
        head, _, body = part.partition("\n")
        name, _, arch = head.rpartition(" ")
        found[name] = arch, body.strip("\n")
    for path in sorted(block_text.FOLDER.glob("*.ir")):
        for case in block_text.parse_cases(path.stem):
            name = "Lower" if path.stem == "PTX" else path.stem
            settings = block_text.SETTINGS | dict(x[1:].split(" ", 1) for x in case.settings.split("\n") if x)
            body = case.before or block_text.without_own(path.stem, case.after)
            kernel = block_text.kernel(body, settings["parameters"], settings["head"])
            found[f"{name} {case.name}"] = settings["arch"], print_kernel(kernel).rstrip("\n")
    return found


def after(pass_name: str, kernel: Kernel, arch: str) -> str:
    """The text of what the pass makes of ``kernel``."""
    if pass_name == "Verify":
        return "sound"
    if pass_name == "Lower":
        return _FILE.sub("", print_module([u.lane for u in lower(kernel, arch)], arch))
    log: list[Decision] = []
    found = next(p for p in PASSES(arch) if type(p).__name__ == pass_name)
    text = print_kernel(found.run(kernel, log))
    return "\n".join((text, *map(str, (f"{d} {d.data} {d.warning}" for d in log))))


def text_of(name: str, edit: Edit) -> str:
    """What becomes of a kernel of `seeds` with ``edit``."""
    arch, text = seeds()[name]
    edited = edit.applied(text)
    if edited is None:
        return "the kernel has changed"
    try:
        kernel = parse_kernel(edited.replace("\\n", "\n") + "\n")
        verify(kernel)
        return after(name.partition(" ")[0], kernel, arch)
    except CompileError as e:
        return told(e) + f" {digest(e.message + e.remedy)}"


def outcome(name: str, edit: Edit) -> str:
    found = text_of(name, edit)
    return found if "\n" not in found else digest(found)


@cache
def parse(pass_name: str) -> dict[str, list[tuple[Edit, str]]]:
    """Name of a kernel -> its edits with their outcomes."""
    found: dict[str, list[tuple[Edit, str]]] = {}
    path = FOLDER / f"{pass_name}.txt"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for part in ("\n" + text).split("\n== ")[1:]:
        name, _, body = part.partition("\n")
        for edit, known in zip(*[iter(body.strip("\n").split("\n"))] * 2, strict=True):
            line, column, old, new = _EDIT.fullmatch(edit).groups()
            found.setdefault(name, []).append((Edit(int(line), int(column), old, new), known.strip()))
    return found


def write(pass_name: str, found: dict[str, list[tuple[Edit, str]]]) -> None:
    def at(x: tuple[Edit, str]) -> tuple[int, int, str]:
        return x[0].line, x[0].column, x[0].new

    parts = (
        "\n".join((f"== {n}", *(f"{e}\n    {t}" for e, t in sorted(edits, key=at)))) for n, edits in found.items()
    )
    (FOLDER / f"{pass_name}.txt").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def names() -> list[str]:
    return sorted(p.stem for p in FOLDER.glob("*.txt"))


def update() -> None:
    """Write the outcomes again; edits of text that is no longer there are left out."""
    for pass_name in names():
        found = {}
        for name, edits in parse(pass_name).items():
            known = seeds().get(f"{pass_name} {name}")
            kept = [e for e, _ in edits if known is not None and e.applied(known[1]) is not None]
            found[name] = [(e, outcome(f"{pass_name} {name}", e)) for e in kept]
        write(pass_name, {name: edits for name, edits in found.items() if edits})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(text_of(f"{sys.argv[1]} {sys.argv[2]}", parse(sys.argv[1])[sys.argv[2]][int(sys.argv[3]) - 1][0]))
    else:
        update()
