"""The launch cache: finds the prepared launch for a call's arguments in a few microseconds.

The key of a prepared call is address, shape, strides, element type and device of each array, and type and value of
each number.  The checks and the prepared launches depend on nothing else, so a hit needs no second check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tilemma.forking import ForkSafeLock

from ..bounded import Bounded
from .arrays import library_of
from .loading import PreparedLaunch
from .streams import stream_handle

Probe = Callable[[Any], Hashable]


def _torch_probe(x: Any) -> Hashable:
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.get_device(), x.is_neg()


def _cupy_probe(x: Any) -> Hashable:
    memory = x.data
    return memory.ptr, x.shape, x.strides, x.dtype, memory.device_id


def _own_probe(x: Any) -> Hashable:
    return x.pointer, x.shape, x.strides, x.dtype, x.device.ordinal


def _itself(x: Any) -> Hashable:
    return x  # type: ignore[no-any-return]


# Numbers of different types are different arguments though 1 == 1.0 == True, and 0.0 is not -0.0.
_PROBES: dict[type, Probe | None] = {int: _itself, float: float.hex, bool: lambda x: (bool, x)}


def _new_probe(x: Any) -> Probe | None:
    """The probe for the type of ``x``; None if each call must describe the value again.

    Subclasses of tensors may mean anything; JAX arrays have to be waited for; foreign arrays may change.
    """
    kind, library = type(x), library_of(x)
    torch = sys.modules.get("torch")
    if library == "torch" and torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        return _torch_probe
    if library == "cupy" and kind is sys.modules["cupy"].ndarray:
        return _cupy_probe
    if library == "tilemma":
        return _own_probe
    return None


def call_key(args: tuple[Any, ...], probes: dict[type, Probe | None] = _PROBES) -> Hashable | None:
    """The key of a call with ``args``; None if an argument must be described again at each call.

    ``probes``: those of types that are not of arrays; it is filled with those of arrays."""
    try:
        return tuple([probes[type(x)](x) for x in args])  # type: ignore[misc]
    except KeyError:
        for x in args:
            if type(x) not in probes:
                probes[type(x)] = _new_probe(x)
        if any(probes[type(x)] is None for x in args):
            return None
        return call_key(args, probes)
    except Exception:  # an array without readable attributes: `describe` reports the reason
        return None


def _without_addresses(key: tuple[Any, ...]) -> Hashable:
    """``key`` with each array's address replaced by its alignment, as far as hardware cares (128 bytes)."""
    return tuple([(k[0] & 127, *k[1:]) if _is_array_key(k) else k for k in key])


def _is_array_key(k: Any) -> bool:
    return type(k) is tuple and type(k[0]) is int


class CallCache:
    """The prepared launches of one kernel; safe to use from several threads.

    The key has everything that a launch depends on.  If ``order`` names the arguments, a second key omits the
    addresses: a call with arrays at other addresses reuses the launch with its arguments packed again.  The oldest
    entries are dropped.
    """

    __slots__ = ("_entries", "_lock", "_order", "_shapes")

    def __init__(self, order: Sequence[str] = (), capacity: int = 4096) -> None:
        self._order = tuple(order)
        self._entries: Bounded[Hashable, tuple[PreparedLaunch, ...]] = Bounded(capacity)
        self._shapes: Bounded[Hashable, tuple[PreparedLaunch, ...]] = Bounded(capacity)
        self._lock = ForkSafeLock()

    def __len__(self) -> int:
        return len(self._entries)

    def run(self, args: tuple[Any, ...], stream: Any = None) -> bool:
        """Start the launches kept for ``args``; False, and nothing done, when there are none.

        They run on ``stream``, or on the stream that is current now in the first array's library.
        Raises OverlappingArrays, TensorMapRefused, DriverError.
        """
        key = call_key(args)
        entry = self._entries.get(key)
        if entry is None and (key is None or (entry := self._move(key)) is None):
            return False
        for launch in entry:
            launch.start(launch.current_stream() if stream is None else stream_handle(stream))
        return True

    def _move(self, key: Any) -> tuple[PreparedLaunch, ...] | None:
        """The launches of a call that differs from a kept one in addresses only."""
        kept = self._shapes.get(_without_addresses(key)) if self._order else None
        if kept is None:
            return None
        pairs = zip(self._order, key, strict=False)
        pointers = {name: k[0] for name, k in pairs if _is_array_key(k)}
        entry = tuple(launch.moved(pointers) for launch in kept)
        self._keep(key, entry)
        return entry

    def _keep(self, key: Any, entry: tuple[PreparedLaunch, ...]) -> None:
        with self._lock:
            self._entries[key] = entry
            self._shapes[_without_addresses(key)] = entry

    def put(self, args: tuple[Any, ...], *launches: PreparedLaunch) -> None:
        """Keep the launches, in order, that a call with ``args`` consists of."""
        key = call_key(args)
        if key is not None:
            self._keep(key, launches)
