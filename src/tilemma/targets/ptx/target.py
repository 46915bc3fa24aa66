"""The table of PTX targets: features and resource limits of each architecture.

Numbers: CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications.  Features:
PTX ISA, "Target ISA Notes" of each instruction.
"""

from __future__ import annotations

import re

from tilemma.errors import CompileError, nearest
from tilemma.forking import cached_property
from tilemma.records import record

KB = 1024
# The most registers of a thread that setmaxnreg gives here (PTX ISA: multiples of 8 from 24 to 256; a thread can
# use 255), and those left to a thread of a warpgroup that copies data cooperatively.
MOST_REGISTERS, MOVER_REGISTERS = 240, 40


class UnknownArch(CompileError):
    code = "unknown-arch"
    found = "`{arch}` is not a target"
    expected = "one of {known}"
    fix = "{suggestion}"


# Names of cards and generations.
_NAMED = {
    "turing": "sm_75", "t4": "sm_75", "ampere": "sm_80", "a100": "sm_80", "ada": "sm_89", "l40": "sm_89",
    "hopper": "sm_90a", "h100": "sm_90a", "h200": "sm_90a", "blackwell": "sm_100", "b200": "sm_100",
}  # fmt: skip


def _meant(arch: str) -> str | None:
    """The target of a card's name, of a number (`90`, `8.0`, `compute_80`), or the oldest for one before it."""
    number = re.fullmatch(r"(?:sm_?|compute_)?(\d{1,2})\.?(\d)([af]?)", arch.lower())
    if number is None:
        return _NAMED.get(arch.lower())
    named = f"sm_{number[1]}{number[2]}{number[3]}"
    oldest = min(_TARGETS.values(), key=lambda t: t.number)
    return oldest.arch if int(number[1] + number[2]) < oldest.number else named if named in _TARGETS else None


@record(slots=False)
class Target:
    """A PTX target.

    ``shared_limit`` is the most shared memory of one block, ``shared_per_sm`` that of all blocks of a
    multiprocessor, in bytes.  ``seen``: whether code of this compiler has been run on such a GPU.
    """

    arch: str
    number: int
    shared_limit: int
    shared_per_sm: int
    features: frozenset[str] = frozenset()
    max_threads_per_sm: int = 2048
    max_blocks_per_sm: int = 32
    registers_per_sm: int = 64 * KB
    registers_per_thread: int = 255
    seen: bool = True

    @staticmethod
    def of(arch: str) -> Target:
        """The target called ``arch``; UnknownArch, with the nearest name, when there is none."""
        if arch in _TARGETS:
            return _TARGETS[arch]
        near = _meant(arch) or nearest(arch, tuple(_TARGETS))
        raise UnknownArch(
            arch=arch,
            known=", ".join(_TARGETS),
            suggestion=f"did you mean `{near}`?" if near else "name the compute capability, such as `sm_80`",
        )

    def has(self, feature: str) -> bool:
        return feature in self.features

    @cached_property
    def wgmma(self) -> bool:
        return self.has("wgmma")

    @cached_property
    def tma(self) -> bool:
        return self.has("tma")


_AMPERE = frozenset({"cp.async", "ldmatrix"})
_HOPPER = _AMPERE | {"tma", "stmatrix", "cluster", "mbarrier", "fence.proxy.async", "griddepcontrol", "elect.sync"}
_TARGETS = {
    t.arch: t
    for t in (
        Target("sm_75", 75, 64 * KB, 64 * KB, frozenset({"ldmatrix"}), 1024, 16),
        Target("sm_80", 80, 163 * KB, 164 * KB, _AMPERE),
        Target("sm_86", 86, 99 * KB, 100 * KB, _AMPERE, 1536, 16),
        Target("sm_89", 89, 99 * KB, 100 * KB, _AMPERE, 1536, 24),
        Target("sm_90", 90, 227 * KB, 228 * KB, _HOPPER),
        Target("sm_90a", 90, 227 * KB, 228 * KB, _HOPPER | {"wgmma", "setmaxnreg"}),
        *(Target(f"sm_{n}", n, 227 * KB, 228 * KB, _HOPPER, seen=False) for n in (100, 103)),
        *(
            Target(arch, 120, 99 * KB, 100 * KB, _HOPPER, max_threads_per_sm=1536, seen=False)
            for arch in ("sm_120", "sm_120a")
        ),
    )
}


def targets() -> tuple[str, ...]:
    """The names of all targets."""
    return tuple(_TARGETS)
