"""A hazard with the instructions that it is about."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tilemma.forking import cached_property
from tilemma.machine.hazards import HazardError
from tilemma.machine.repairs.listing import Flow, Listing, Position
from tilemma.machine.syntax import Immediate, Instruction, Operand, Register


@dataclass(frozen=True)
class Problem:
    """``second`` is the instruction at the hazard, ``first`` the earlier access that it collides with."""

    listing: Listing
    hazard: HazardError
    second: Instruction
    first: Instruction | None
    # Threads of a block.
    threads: int

    @classmethod
    def of(cls, listing: Listing, hazard: HazardError, threads: int) -> Problem | None:
        facts = hazard.facts
        second = listing.at_line(int(facts.get("ptx_line", 0)), str(facts.get("instruction", "")))
        if second is None:
            return None
        other = int(facts.get("other_line", 0) or 0)
        return cls(listing, hazard, second, listing.at_line(other) if other else None, threads)

    @property
    def flow(self) -> Flow:
        return self.listing.flow(self.second)

    @cached_property
    def unread(self) -> frozenset[Operand]:
        """The registers that an instruction writes and none reads."""
        written = {
            ins.operands[0] for ins in self.listing if ins.operands and isinstance(ins.operands[0], Register)
        }
        count = Counter(re.findall(r"[%$\w]+", self.listing.text))
        return frozenset(r for r in written if count[str(r)] == 1)

    def places(self) -> list[Position]:
        return self.flow.between(self.first, self.second)

    def numbers(self, unit: str) -> list[int]:
        """The numbers of ``unit`` (arrivals, bytes) that the report names."""
        found = re.findall(r"\b(\d{1,20})(?: of \d{1,20})? (\w{1,20})", self.hazard.render())
        return [int(n) for n, word in found if word.startswith(unit)]

    def having(self, *prefixes: str) -> list[Instruction]:
        """The instructions whose opcodes have one of the prefixes, those near the hazard first."""
        found = [ins for ins in self.listing if ins.opcode.startswith(prefixes)]
        return sorted(found, key=lambda ins: abs(ins.line - self.second.line))

    def guard(self, ins: Instruction | None) -> str:
        """The guard of an instruction as text, with a trailing blank."""
        source = self.listing.source(ins) if ins is not None else ""
        return source[: source.index(ins.opcode.split(".")[0])] if ins is not None and ins.guard else ""


def immediate(ins: Instruction, position: int) -> int | None:
    """The value of an operand that is a constant."""
    operand = ins.operands[position] if -len(ins.operands) <= position < len(ins.operands) else None
    return int(operand.value) if isinstance(operand, Immediate) else None
