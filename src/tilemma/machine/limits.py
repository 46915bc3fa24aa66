"""Limits of the memory and time of a run: a program that needs more is refused, and the limit is named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import gcd
from typing import Any

from tilemma.errors import Span
from tilemma.machine.problems import MachineLimit

# Characters of PTX.
MAX_TEXT = 64 << 20
# Bytes of one variable by state space: CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability" (local: 512 KB a thread; constant: 64 KB); kernel parameters: 32,764 bytes.
MAX_VARIABLE = {"local": 512 << 10, "param": 32764, "const": 64 << 10, "shared": 256 << 10, "global": 1 << 30}
# An alignment in PTX is a power of two; CUDA requires at most this.
MAX_ALIGNMENT = 1 << 16
# Bytes that registers, local and shared memory of the CTAs that run at the same time may take.
MAX_RESIDENT = 4 << 30
# CTAs in each dimension of a grid, and in a cluster (16 where the kernel allows a non-portable size).
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_CLUSTER = 16
# Braces in one another, in an initialiser.
MAX_NESTING = 100
# Grids of up to this many clusters are shuffled as a list; larger ones are run through in another odd order.
SHUFFLED = 1 << 16


def check_size(span: Span, what: str, space: str, size: int, alignment: int) -> None:
    """Refuse a variable that is too large, or has no possible alignment."""
    limit = MAX_VARIABLE[space]
    if not 0 <= size <= limit:
        raise MachineLimit(
            span,
            what=f"{what} has {size if size < 1 << 63 else 'more than 2^63'} bytes",
            limit=f"{limit} bytes in .{space} memory",
            how="make it smaller",
        )
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        limits = f"{MAX_ALIGNMENT}, a power of two"
        raise MachineLimit(span, what=f"{what} is aligned to {alignment} bytes", limit=limits, how="correct it")


def cluster_order(total: int, shuffle: bool, chosen: random.Random) -> Iterator[int]:
    """The numbers below ``total`` in the order in which clusters start; for large grids one after the other."""
    if not shuffle:
        return iter(range(total))
    if total <= SHUFFLED:
        order = list(range(total))
        chosen.shuffle(order)
        return iter(order)
    step = chosen.randrange(1, total)
    while gcd(step, total) != 1:
        step = chosen.randrange(1, total)
    first = chosen.randrange(total)
    return ((first + step * i) % total for i in range(total))


def below(count: int, chosen: random.Random) -> int:
    """`chosen.randrange(count)`, without the checks of its arguments."""
    bits = count.bit_length()
    found = chosen.getrandbits(bits)
    while found >= count:
        found = chosen.getrandbits(bits)
    return found


def sampled(total: int, wanted: int, chosen: random.Random) -> list[int]:
    """``wanted`` of the numbers below ``total``, in order: the first, the last, and random ones."""
    if wanted >= total:
        return list(range(total))
    ends = {0, total - 1} if wanted > 1 else {chosen.randrange(total)}
    while len(ends) < wanted:
        ends.add(chosen.randrange(total))
    return sorted(ends)


def clusters_at_once(program: Any, ctas: int, lanes: int, shared: int) -> int:
    """The number of clusters of ``ctas`` CTAs of ``lanes`` threads that may run together; refuses if none may."""
    width = {"16": 2, "32": 4, "64": 8, "p": 1}
    registers = sum(rows * width[cls] for cls, rows in program.rows.items())
    # Each byte of shared memory has a shadow of some 16 bytes, each pair of threads in a cluster two clocks.
    needed = ctas * (lanes * (registers + program.local_bytes) + 16 * shared) + 8 * (ctas * lanes) ** 2
    if needed > MAX_RESIDENT:
        raise MachineLimit(
            what=f"a cluster of {program.entry.name} takes {needed >> 20} MiB",
            limit=f"{MAX_RESIDENT >> 20} MiB for registers, local and shared memory",
            how="use smaller variables, blocks or clusters",
        )
    return int(MAX_RESIDENT // max(needed, 1))
