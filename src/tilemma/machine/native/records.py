"""The records that Python and the native library share, field by field as in ``shadow.c`` and ``steps.c``.

Python reads and writes them where they are, so that a call needs no copies of them.
"""

from __future__ import annotations

import ctypes
from typing import Any

_NUMBER, _FLOAT = ctypes.c_int64, ctypes.c_double


def _record(name: str, fields: str, *, floats: tuple[str, ...] = ()) -> Any:
    """A structure of integers and addresses of 64 bits, and of doubles."""
    kinds = [(f, _FLOAT if f in floats else _NUMBER) for f in fields.split()]
    return type(name, (ctypes.Structure,), {"_fields_": kinds, "__slots__": ()})


# `now`: the clock of each warp; `foreign`: whether it knows of other clusters; `used`: columns in the tables.
ClockRecord = _record("ClockRecord", "seen capacity fenced used now foreign")
EventRecord = _record("EventRecord", "column clock alone made collective count capacity")
SharedRecord = _record(
    "SharedRecord",
    "base limit data writer reads readers stride last wgmma origin low high last_write last_read rooms"
    " mbarriers mbarrier origins",
)
# `floor`: shared accesses up to this event are ordered before the warp.  `known_clock`: up to it the lanes know of
# its collective reads, in `known_column`.  `copies`: the column of its cp.async, or -1.
# `touched`: registers of wgmma since its last wgmma.fence; `inits`: mbarriers not yet fenced.
# `sure`: the step, counted from 1, of the last wgmma whose registers were found defined, or 0.
# `bulk`: its lanes may have bulk groups.
# `gathered`: frames of it wait for others of its lanes; `live`: a byte for each lane that has not left.
# `fences`: it may know of sequentially consistent fences; `in_flight`: wgmma uses some of its registers.
WarpRecord = _record(
    "WarpRecord",
    "registers first clocks events shared reader memory serial cta floor known_clock known_column copies fences"
    " in_flight starved priority groups gathered live0 live1 live2 live3"
    " warpgroup touched fenced_once fence_open inits sure bulk",
    floats=("priority",),
)
# `partial`: barriers at which some warps have arrived in Python; the rest is used within one call.
CtaRecord = _record("CtaRecord", "first_thread warps live_warps partial arrived number")
# `whole`: all 32 lanes; else `mask` has a byte each.  `pc` is up to date where the frame waits for its `children`.
FrameRecord = _record(
    "FrameRecord",
    "warp reconverge lanes whole index mask0 mask1 mask2 mask3 parent children pc listed fresh changed late",
)
GridRecord = _record(
    "GridRecord",
    # The same in all calls.
    "steps covered counted surplus random by_priority rate eagerness schedule queue looked"
    # Given for a call: `entries` are the frames, first those that are ready, then those that wait at a barrier;
    # `resumed` is one that goes on, or 0.  `pool`: room for so many new frames.
    " entries ready parked skip limit until timeouts starving polling starved_at origins copies"
    " pool rooms resumed"
    # Changed by a call.  `at`: the operation in flight that Python is to complete, or -1; `made`: new frames;
    # `moved`: frames have divided, met or lost lanes.
    " executed progress chosen pc budget done loaded registers issued at loads touched touches"
    " made moved spare list all impatience records recorded stored",
    floats=("rate", "eagerness", "impatience"),
)
# Operations in flight: for each a copy (or 0), its warp and its group; what a call has done with them.
QueueRecord = _record("QueueRecord", "operations pending capacity log logged room")


class GroupsRecord(ctypes.Structure):
    """The groups of cp.async of a warp; `open` are the events of its open copies."""

    MOST = 64
    _fields_ = (*((name, _NUMBER) for name in ("plain", "number", "waited", "opened")), ("open", _NUMBER * MOST))
    __slots__ = ()


MbarrierRecord = _record(
    "MbarrierRecord",
    "address count pending tx phase init_column init_clock column waiters forgiven foreign room taken released"
    " message0 message1 done0 done1 awaited",
)


class JoiningRecord(ctypes.Structure):
    """An operation of a warpgroup that not all its warps have issued."""

    NAMES = "serial", "pc", "a", "b", "scale", "there", "first", "length", "seen", "fenced"
    _fields_ = tuple((name, _NUMBER) for name in NAMES)
    __slots__ = ()


class WarpgroupRecord(ctypes.Structure):
    """The state of a warpgroup, as in ``warpgroups.c``."""

    JOINING, ENDS = 16, 16
    _fields_ = (
        *((name, _NUMBER) for name in ("column", "started", "unfinished", "loose", "capacity")),
        ("issued", _NUMBER * 4), ("committed", _NUMBER * 4), ("numbers", _NUMBER * ENDS), ("ends", _NUMBER * ENDS),
        ("joining", JoiningRecord * JOINING),
    )  # fmt: skip
    __slots__ = ()


def address(record: Any) -> int:
    return ctypes.addressof(record)
