"""Conversion of a caller's stream to the integer handle that the driver takes."""

from __future__ import annotations

from typing import Any

from ..errors import LaunchError


class NotAStream(LaunchError):
    code = "not-a-stream"
    found = "a `{type}` was passed as a stream"
    expected = "a CUstream as int, a torch, cupy or cuda.core stream, or an object with __cuda_stream__"
    fix = "pass such a stream, or none: the caller's current stream is used then"


def stream_handle(stream: Any) -> int:
    """The CUstream of ``stream`` as int: 0 is the legacy default stream, 2 the per-thread default.

    Takes ints, objects with `__cuda_stream__` (NVIDIA's stream protocol), torch's `cuda_stream`, cupy's
    `ptr`.  Raises NotAStream.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if handle is not None:
            return int(handle)
    raise NotAStream(type=type(stream).__name__)
