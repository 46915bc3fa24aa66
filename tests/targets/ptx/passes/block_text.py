"""Blocks as text, for tests of one pass: the operations of a block go in, and come out, as IR text.

``cases/PASS.ir`` has the cases of one pass.  ``== name`` starts a case; then comes a block, ``-->``, and what the
pass makes of the block: operations, ``unchanged``, or the code and the place of an error; ``#`` are decisions.
A block alone is both: the pass puts back the operations and attributes that are its own (`OWN`).  A first line
``@arch sm_80``, ``@parameters ..`` or ``@head ..`` changes the target, the kernel's parameters, the block's line.

In ``PTX.ir`` the blocks are decided, and their PTX follows.

A plan of a copy is written ``@engine:vector(level, threads)``, with other fields behind; without a vector it is 4.
After a change of a pass, ``python tests/targets/ptx/passes/block_text.py`` writes the files: read the difference.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

from tilemma.errors import CompileError
from tilemma.ir.parser import parse_kernel
from tilemma.ir.printer import print_kernel
from tilemma.ir.tile import Kernel
from tilemma.passes.decision import Decision
from tilemma.targets.ptx.lower import lower
from tilemma.targets.ptx.passes import PASSES
from tilemma.targets.ptx.printer import print_module

FOLDER = Path(__file__).parent / "cases"
SETTINGS = {
    "arch": "sm_90a",
    "parameters": "global f32 x[M, K], global f32 y[M, K]",
    "head": "parallel (b: 1) : block",
}
# The operations and the attributes that a pass puts back.
OWN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "InsertSync": (("barrier", "copy_commit", "copy_wait", "proxy_fence", "mma_fence", "mma_commit", "mma_wait",
                    "bulk_wait"), ()),
    "PlanEvents": ((), ("arrivals", "by", "bytes", "counted")),
    "OrderEventWaits": (("barrier",), ()),
    "UnifyRingParity": ((), ("one_parity",)),
}  # fmt: skip
_REST = r"((?:, [^()]*(?:\([^()]*\))?)*)\)"
_SHORT = re.compile(rf"@([\w.]+)(?::(\d+))?\(([\w-]+), (\d+){_REST}")
_LONG = re.compile(
    rf"plan = CopyPlan\(engine = ([\w.]+), vector = (\d+), level = ([\w-]+), threads = (\d+){_REST}"
)


@dataclass(frozen=True)
class Case:
    name: str
    settings: str
    before: str
    after: str

    def __str__(self) -> str:
        return "\n".join(
            x for x in (f"== {self.name}", self.settings, self.before, self.before and "-->", self.after) if x
        )


def parse_cases(pass_name: str) -> list[Case]:
    found = ("\n" + (FOLDER / f"{pass_name}.ir").read_text(encoding="utf-8")).split("\n== ")[1:]
    return [_case(*c.strip("\n").partition("\n")[::2]) for c in found]


def _case(name: str, body: str) -> Case:
    lines = body.split("\n")
    settings = [x for x in lines if x.startswith("@")]
    before, _, after = "\n".join(lines[len(settings) :]).rpartition("\n-->\n")
    return Case(name, "\n".join(settings), before, after)


def result(pass_name: str, case: Case) -> str:
    """What the pass makes of the case's block."""
    settings = SETTINGS | dict(x[1:].split(" ", 1) for x in case.settings.split("\n") if x)
    before = kernel(case.before or without_own(pass_name, case.after), settings["parameters"], settings["head"])
    if pass_name == "PTX":
        return print_module([u.lane for u in lower(before, settings["arch"])], settings["arch"]).rstrip("\n")
    found = next(p for p in PASSES(settings["arch"]) if type(p).__name__ == pass_name)
    log: list[Decision] = []
    try:
        after = text(found.run(before, log))
    except CompileError as e:
        line = print_kernel(before).split("\n")[e.span.line - 1].strip() if e.span else ""
        notes = "".join(f"\nnote: {n.text}" for n in e.notes)
        return _short(f"error {e.code}: {e.message}\nat {line}\nfix: {e.remedy}{notes}")
    if case.before and after == text(before):
        after = "unchanged"
    return "\n".join((after, *map(_told, log)))


def _told(d: Decision) -> str:
    data = f" {json.dumps(d.data)}" if d.data else ""
    return f"# {'warning: ' * d.warning}{d.subject}: {d.text}{data}"


def kernel(body: str, parameters: str = SETTINGS["parameters"], head: str = SETTINGS["head"]) -> Kernel:
    inside = indent(dedent(_SHORT.sub(_long, body)).strip("\n"), " " * 4)
    return parse_kernel(f"kernel k({parameters}) {{\n  {head} {{\n{inside}\n  }}\n}}\n")


def text(k: Kernel) -> str:
    """The operations of the block."""
    lines = print_kernel(k).rstrip("\n").split("\n")[2:-2]
    return _short(dedent("\n".join(lines)))


def _short(body: str) -> str:
    return _LONG.sub(lambda m: f"@{m[1]}{'' if m[2] == '4' else f':{m[2]}'}({m[3]}, {m[4]}{m[5]})", body)


def _long(m: re.Match[str]) -> str:
    return f"plan = CopyPlan(engine = {m[1]}, vector = {m[2] or 4}, level = {m[3]}, threads = {m[4]}{m[5]})"


def without_own(pass_name: str, after: str) -> str:
    """``after`` without what the pass puts there."""
    operations, attributes = OWN[pass_name]
    lines = (x for x in after.split("\n") if not x.strip().split(" ")[0].startswith(("#", *operations)))
    body = "\n".join(lines)
    for name in attributes:
        one = rf"\b{name} = [^,(){{}}]+"
        body = re.sub(rf", {one}| \{{{one}\}}", "", body)
        body = re.sub(rf"\{{{one}, ", "{", body)
    return body


def update() -> None:
    """Write every file with what the passes make of the blocks now."""
    for path in sorted(FOLDER.glob("*.ir")):
        found = [Case(c.name, c.settings, c.before, result(path.stem, c)) for c in parse_cases(path.stem)]
        path.write_text("\n\n".join(map(str, found)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    update()
