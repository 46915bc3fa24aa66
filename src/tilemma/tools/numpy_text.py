"""NumPy text of the command line, evaluated in a child process within limits of time and memory."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilemma.dtypes import dtype, from_numpy

# Seconds that an expression may take, and bits of an integer that it may give.
SECONDS = 30.0
_BITS = 4096
# NumPy's methods import.
_BUILTINS = {"__builtins__": {f.__name__: f for f in (__import__, abs, float, int, len, max, min, range, sum)}}


class NotComputed(ValueError):
    """The text cannot be evaluated; the message gives the reason."""


def value_of(text: str, names: Mapping[str, Any], most: int) -> Any:
    """The value of ``text``, a number or an array; ``np`` and ``names`` are defined, names with underscores are
    not.

    The result has at most ``most`` bytes.  Raises NotComputed, also for what takes more than `SECONDS`, or more
    than eight times that memory.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
        for node in ast.walk(tree):
            word = getattr(node, "attr", getattr(node, "id", ""))
            if word.startswith("_"):
                raise NotComputed(f"`{word}` is not allowed")
        with contextlib.suppress(ValueError):
            return ast.literal_eval(tree)
        code = compile(tree, "<NumPy text>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise NotComputed(str(e) or type(e).__name__) from None
    if not hasattr(os, "fork"):
        return _decoded(_encoded(code, names, most))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _limit_memory(8 * most)
            with os.fdopen(writing, "wb") as out:
                out.write(_encoded(code, names, most))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return _decoded(_received(reading, most + (1 << 16)))
    finally:
        os.close(reading)
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _limit_memory(more: int) -> None:
    """Limit the memory of this process to ``more`` bytes above its present size, if the system supports that."""
    import resource

    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + more if hard < 0 else min(size + more, hard), hard))


def _encoded(code: Any, names: Mapping[str, Any], most: int) -> bytes:
    """The value of the text: a line of JSON, then the elements of an array."""
    try:
        value = eval(code, dict(_BUILTINS, np=np), dict(names))
        if isinstance(value, int) and value.bit_length() > _BITS:
            raise ValueError(f"an integer of {value.bit_length()} bits")
        if type(value) in (bool, int, float):
            return json.dumps({"number": value}).encode() + b"\n"
        array = np.asarray(value)
        element = from_numpy(array.dtype) if array.dtype.kind == "V" else None
        if (
            array.dtype.hasobject
            or array.dtype.kind not in "biufV"
            or (array.dtype.kind == "V" and element is None)
        ):
            raise ValueError(f"a {type(value).__name__} is no number and no array of numbers")
        if array.nbytes > most:
            raise ValueError(f"an array of {array.nbytes} bytes, more than the limit of {most}")
        head = {"type": element.name if element else array.dtype.str, "shape": array.shape}
        return json.dumps(head).encode() + b"\n" + np.ascontiguousarray(array).tobytes()
    except BaseException as e:
        return json.dumps({"error": f"{str(e)[:500] or type(e).__name__}"}).encode() + b"\n"


def _received(file: int, most: int) -> bytes:
    """The output of the child, until it ends; NotComputed after `SECONDS`."""
    parts, size, end = [], 0, time.monotonic() + SECONDS
    while size <= most:
        ready, _, _ = select.select([file], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            raise NotComputed(f"it takes more than {SECONDS:g} s")
        part = os.read(file, 1 << 20)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _decoded(data: bytes) -> Any:
    line, _, content = data.partition(b"\n")
    head = json.loads(line) if line else {"error": "the process that evaluates it was ended"}
    if "error" in head:
        raise NotComputed(head["error"])
    if "number" in head:
        return head["number"]
    kind = np.dtype(head["type"]) if head["type"][0] in "<>|=" else dtype(head["type"]).numpy
    return np.frombuffer(bytearray(content), kind).reshape(head["shape"])
