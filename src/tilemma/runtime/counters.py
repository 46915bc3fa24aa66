"""Device memory that is zero whenever no kernel uses it, for kernels that count in it and reset what they counted.

Launches on one stream follow each other and share such memory.  A launch in a CUDA graph has its own: the graph
may run on any stream, beside other graphs that were captured on the same one.
"""

from __future__ import annotations

import threading

from tilemma.forking import ForkSafeLock

from .cudadriver import PER_THREAD
from .device import Device

# Bytes that are allocated together, and the smallest part that a stream or a launch gets.
CHUNK, SMALLEST = 1 << 20, 1 << 9

_lock = ForkSafeLock()
# By device: the first free address, and the end of its chunk.
_free: dict[int, tuple[int, int]] = {}
# By device and stream: address and size.
_parts: dict[tuple[int, int, int], tuple[int, int]] = {}


def zeroed(device: Device, stream: int, size: int) -> int:
    """The address of ``size`` bytes for the next launch on ``stream``.

    The memory of a stream is never freed.  Neither is that of a launch in a graph: nothing tells when the last
    copy of the graph is gone.  Raises DriverError where there is no memory left.
    """
    with device.active():
        if device.driver.is_capturing(stream):
            with _lock:
                return _cut(device, size)
        thread = threading.get_ident() if stream == PER_THREAD else 0
        # Another stream may get the handle of one that was destroyed, but never its number.
        key = device.ordinal, device.driver.stream_number(stream), thread
        found = _parts.get(key)
        if found is None or found[1] < size:
            with _lock:
                # Launches that were prepared before keep the smaller part.
                found = _parts[key] = _cut(device, size), size
        return found[0]


def _cut(device: Device, size: int) -> int:
    size = max(SMALLEST, -(-size // SMALLEST) * SMALLEST)
    begin, end = _free.get(device.ordinal, (0, 0))
    if begin + size > end:
        chunk = max(CHUNK, size)
        begin = device.driver.allocate_zeroed(chunk)
        end = begin + chunk
    _free[device.ordinal] = begin + size, end
    return begin


def forget() -> None:
    """Drop all memory: the driver was replaced."""
    _free.clear()
    _parts.clear()
