"""Shared-memory bank conflicts of one warp-wide access."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.checked import checked, integers, one_of
from tilemma.records import record

BANKS = 32
BANK_BYTES = 4


@record
class BankReport:
    """The use of the banks by one warp-wide access.

    ``wavefronts`` is the number of passes through the 32 banks that the access takes, ``ideal`` the least
    that its bytes allow, ``ways`` the most distinct words that one bank has to deliver in a phase.
    """

    wavefronts: int
    ideal: int
    ways: int

    @property
    def conflicts(self) -> int:
        """Passes beyond the ideal: 0 when the access is free of conflicts."""
        return self.wavefronts - self.ideal


@checked(addresses=integers(0, (1 << 63) - 1), width=one_of(1, 2, 4, 8, 16))
def bank_conflicts(addresses: Sequence[int], width: int) -> BankReport:
    """The conflicts when lane i accesses ``width`` bytes (1 to 16) at byte address ``addresses[i]``.

    Accesses of 8 and 16 bytes go through in phases of 16 and 8 lanes, each a full 128 bytes wide; one 8x8
    matrix of ldmatrix or stmatrix is such a phase of eight 16-byte rows.  Lanes that read the same word are
    served together (CUDA C++ Best Practices Guide, "Shared memory and memory banks").
    """
    lanes = min(32, BANKS * BANK_BYTES // max(width, BANK_BYTES))
    phases = [addresses[i : i + lanes] for i in range(0, len(addresses), lanes)]
    passes = [_passes(phase, width) for phase in phases]
    return BankReport(wavefronts=sum(passes), ideal=len(phases), ways=max(passes, default=0))


def _passes(addresses: Sequence[int], width: int) -> int:
    words: dict[int, set[int]] = {}
    for address in addresses:
        for word in range(address // BANK_BYTES, (address + width - 1) // BANK_BYTES + 1):
            words.setdefault(word % BANKS, set()).add(word)
    return max((len(w) for w in words.values()), default=0)
