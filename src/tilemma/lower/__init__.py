"""Tile IR with every decision made -> lane IR, one file for each kind of operation.

Importing this package registers what each file lowers; `lower` is the way in.
"""

from __future__ import annotations

from tilemma.lower import (
    control,
    copies,
    diagnostics,
    elements,
    events,
    fragments,
    futures,
    loads,
    mma,
    storage,
    stores,
    sync,
    tma,
)
from tilemma.lower.context import NotLowered
from tilemma.lower.launches import GridNotComputable, Lowered, lower

__all__ = [
    "GridNotComputable",
    "Lowered",
    "NotLowered",
    "control",
    "copies",
    "diagnostics",
    "elements",
    "events",
    "fragments",
    "futures",
    "loads",
    "lower",
    "mma",
    "storage",
    "stores",
    "sync",
    "tma",
]
