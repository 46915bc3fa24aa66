"""The program's names of places in shared memory, from the launch plan: ``full[1]`` instead of 0x28408."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilemma.errors import Note, TilemmaError
from tilemma.launch import SharedName

# How hazards write addresses of shared memory.
_ADDRESS = re.compile(r"(?:shared bytes?(?: at)?|shared address|mbarrier at) (0x[0-9a-f]+)")


class SharedNames:
    """Names of shared addresses; ``base`` is the address of the CTA's dynamic shared memory."""

    def __init__(self, names: Sequence[SharedName] = (), base: int = 0) -> None:
        self.base = base
        self.names = tuple(names)

    def all(self, address: int) -> list[str]:
        """The objects that hold the byte at ``address``, each with its slot: buffers may share memory."""
        found = []
        for n in self.names:
            inside = address - self.base - n.offset
            if 0 <= inside < n.bytes * max(1, n.copies):
                found.append(f"{n.name}[{inside // n.bytes}]" if n.copies else n.name)
        return found

    def buffer(self, address: int) -> str:
        """The buffers at ``address``; "" if the plan names none."""
        return " / ".join(self.all(address))

    def event(self, address: int) -> str:
        """The event whose mbarrier is at ``address``."""
        return self.buffer(address) or f"mbarrier {address:#x}"

    def annotate(self, hazard: TilemmaError) -> None:
        """Add a note with the names of the addresses in the hazard's message, if the plan names them."""
        found: dict[str, None] = {}
        for address in _ADDRESS.findall(hazard.message) if self.names else ():
            for n in self.names:
                inside = int(address, 16) - self.base - n.offset
                if 0 <= inside < n.bytes * max(1, n.copies):
                    slot = f"{n.name}[{inside // n.bytes}]" if n.copies else n.name
                    byte = f"byte {inside % n.bytes} of " if n.kind == "buffer" else ""
                    found[f"{address} is {byte}`{slot}`"] = None
        if found:
            hazard.notes = (*hazard.notes, Note("; ".join(found)))
