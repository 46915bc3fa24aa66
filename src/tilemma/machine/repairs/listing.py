"""The text of an entry as a list of instructions with basic blocks and loops, and edits of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilemma.forking import cached_property
from tilemma.machine.syntax import Body, Instruction, Module, Symbol

_ENTRY = re.compile(r"(?:\.(?:visible|weak)\s+)?\.entry\s+([\w$%]+)")
_BRACE, _INK = re.compile(r"[{}]"), re.compile(r"\S")
_ENDS = ("bra", "brx", "ret", "exit", "trap")


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters ``start`` to ``end`` of the text are replaced by ``text``; none are removed by an insertion."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Repair:
    """A candidate: its description, and the edits."""

    advice: str
    edits: tuple[Edit, ...]

    def applied(self, ptx: str) -> str:
        for edit in sorted(self.edits, key=lambda e: -e.start):
            ptx = ptx[: edit.start] + edit.text + ptx[edit.end :]
        return ptx


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two instructions."""

    at: int
    words: str


def without_other_entries(ptx: str, name: str) -> str:
    """The text with the other entries blank, each character at its place: it is read faster."""
    out, start = [], 0
    for head in _ENTRY.finditer(ptx):
        at = ptx.find("{", ptx.find(")", head.end()) if "(" in ptx[head.end() : head.end() + 80] else head.end())
        if head[1] == name or at < 0 or head.start() < start:
            continue
        depth, end = 1, at + 1
        for brace in _BRACE.finditer(ptx, end):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                end = brace.end()
                break
        out += [ptx[start : head.start()], _INK.sub(" ", ptx[head.start() : end])]
        start = end
    return "".join([*out, ptx[start:]])


def before(ins: Instruction) -> Position:
    return Position(ins.start, f"before PTX line {ins.line}")


def after(ins: Instruction) -> Position:
    return Position(ins.end, f"after PTX line {ins.line}")


def insertion(position: Position, text: str) -> Repair:
    return Repair(f"add `{text}` {position.words}", (Edit(position.at, position.at, f" {text} "),))


def unique(positions: Iterable[Position]) -> list[Position]:
    seen: dict[int, Position] = {}
    for p in positions:
        seen.setdefault(p.at, p)
    return list(seen.values())


class Listing:
    """The bodies of an entry and of the functions of its module; each search is limited to one body."""

    def __init__(self, module: Module, entry: str) -> None:
        self.text = module.text
        bodies = [module.entries[entry].body, *(f.body for f in module.functions.values() if f.body is not None)]
        self.flows = [Flow(b) for b in bodies if b.instructions]

    def __iter__(self) -> Iterator[Instruction]:
        for flow in self.flows:
            yield from flow.instructions

    def source(self, ins: Instruction) -> str:
        """The instruction as it is written."""
        return self.text[ins.start : ins.end]

    def at_line(self, line: int, shown: str = "") -> Instruction | None:
        """The instruction on a PTX line; of several the one that a report shows as ``shown``."""
        there = [ins for ins in self if ins.line == line]
        same = [ins for ins in there if shown and ins.text[:60] == shown[:60]]
        return (same or there or [None])[0]  # type: ignore[list-item]

    def flow(self, ins: Instruction) -> Flow:
        return next(f for f in self.flows if ins in f.index)


class Flow:
    """Basic blocks and loops of one body."""

    def __init__(self, body: Body) -> None:
        self.instructions = body.instructions
        self.index = {ins: i for i, ins in enumerate(body.instructions)}
        self.labels = body.labels
        self.leaders = {0, *body.labels.values()}
        self.loops: list[tuple[int, int]] = []
        for i, ins in enumerate(body.instructions):
            if ins.parts[0] in _ENDS:
                self.leaders.add(i + 1)
            target = ins.operands[0] if ins.parts[0] == "bra" and ins.operands else None
            if isinstance(target, Symbol) and body.labels.get(target.name, i + 1) <= i:
                self.loops.append((body.labels[target.name], i))

    @cached_property
    def starts(self) -> list[int]:
        return sorted(x for x in self.leaders if x < len(self.instructions))

    def block(self, i: int) -> tuple[int, int]:
        """First and last instruction of the block of instruction ``i``."""
        first = max(x for x in self.starts if x <= i)
        last = min([x for x in self.starts if x > i], default=len(self.instructions)) - 1
        return first, last

    def following(self, first: int) -> list[int]:
        """The first instructions of the blocks that may follow the block of ``first``."""
        last = self.block(first)[1]
        ins = self.instructions[last]
        target = ins.operands[0] if ins.parts[0] == "bra" and ins.operands else None
        jump = [self.labels[target.name]] if isinstance(target, Symbol) and target.name in self.labels else []
        return jump if ins.parts[0] in _ENDS and ins.guard is None else [*jump, last + 1]

    def block_end(self, i: int) -> Position:
        last = self.instructions[self.block(i)[1]]
        return before(last) if last.parts[0] in _ENDS else after(last)

    def loops_of(self, i: int) -> list[tuple[int, int]]:
        """The loops that contain instruction ``i``, the innermost first."""
        return sorted(((a, b) for a, b in self.loops if a <= i <= b), key=lambda loop: loop[1] - loop[0])

    def between(self, first: Instruction | None, second: Instruction) -> list[Position]:
        """Places for an instruction that must be ordered after ``first`` and before ``second``, likely ones
        first."""
        list_, at = self.instructions, self.index
        b = at[second]
        a = at[first] if first is not None and first in at else None
        near = [before(list_[self.block(b)[0]]), before(second)]
        found: list[Position] = []
        if a is None:
            found = near
        elif a < b:
            if self.block(b)[0] <= a:
                near = [before(second)]
            # Accesses come in runs: behind the last one like the first.
            run = [x for x in range(a, b) if list_[x].parts[0] == list_[a].parts[0]]
            found = [*near, after(list_[run[-1]]), after(list_[a]), self.block_end(a)]
            found += [before(list_[x]) for x in reversed(self.starts) if a < x <= b]
        else:
            found = [self.block_end(a), after(list_[a])]
        for top, end in self.loops_of(b):
            edges = [before(list_[end]), self.block_end(end), before(list_[top])]
            if top:
                edges.append(after(list_[top - 1]))
            found = [*edges, *found] if a is not None and a >= b and end >= a else [*found, *edges]
        if a is not None and a >= b:
            found += near
        barriers = [ins for ins in list_ if ins.parts[0] in ("bar", "barrier")]
        found += [p for ins in barriers for p in (before(ins), after(ins))]
        return unique([*found, *(before(list_[x]) for x in self.starts)])
