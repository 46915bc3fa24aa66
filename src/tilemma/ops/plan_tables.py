"""Tables of the plans that `tune=True` has measured, in files that a program can be shipped with."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tilemma.checked import checked, instance
from tilemma.errors import WrongArgument
from tilemma.fingerprint import fingerprint
from tilemma.ops import plans
from tilemma.sources import read_regular

# The first key of a table, and the number of its form.
FORM = "tilemma plans"
NUMBER = 1
# Bytes of a table, at most: some 100,000 plans.
MOST = 1 << 26
_PATH = instance("the path of a file", str, os.PathLike)
# What a table depends on, beside the device and the product: these are in the keys of its plans.
_MADE_BY = ("sources of tilemma", "Python", "NumPy")


@checked(path=_PATH)
def save_plans(path: str | os.PathLike[str]) -> int:
    """Write the plans that calls with ``tune=True`` have used in this process to ``path``, as JSON, in place of a
    file that is there.  Returns their number.

    Raises WrongArgument where the file cannot be written, WrongArgumentType.
    """
    with plans.tuning:
        found = [
            {"device": used.device, "product": used.product, "key": key, "plan": asdict(used.plan)}
            for key, used in sorted(plans.used.items(), key=lambda x: (x[1].device, x[1].product, x[0]))
        ]
    table = {FORM: NUMBER, "made by": _made_by(), "digest": _digest(found), "plans": found}
    _write(path, json.dumps(table, indent=1).encode() + b"\n")
    return len(found)


@checked(path=_PATH)
def load_plans(path: str | os.PathLike[str]) -> int:
    """Let calls with ``tune=True`` use the plans of a file of `save_plans` instead of measuring.  A call that has
    no plan there, of another product or on another device, is measured as before.  Returns the number of plans.

    Raises WrongArgument for a file that is no such table, has been edited, or is of another version of tilemma,
    Python or NumPy, whose plans may be others; CannotRead, WrongArgumentType.
    """
    data = read_regular(path, MOST)
    wanted = "the path of a file that `save_plans` wrote"
    try:
        table = json.loads(data)
        made_by, found, digest = dict(table["made by"]), list(table["plans"]), table["digest"]
        if table[FORM] != NUMBER:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _wrong(path, "which is no table of plans", wanted) from None
    here = _made_by()
    other = [x for x in _MADE_BY if made_by.get(x) != here[x]]
    if other:
        what = " and ".join(f"{x} ({made_by.get(x)}, here {here[x]})" for x in other)
        raise _wrong(path, f"made with other {what}", f"{wanted} with these; tune there again")
    if digest != _digest(found):
        raise _wrong(path, "whose plans were changed after they were written", f"{wanted}, as it was written")
    try:
        entries = {str(x["key"]): plans.Used(x["device"], x["product"], plans.plan_of(x["plan"])) for x in found}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _wrong(path, "which is no table of plans", wanted) from None
    with plans.tuning:
        plans.shipped.update(entries)
    return len(entries)


def _made_by() -> dict[str, str]:
    sources = hashlib.sha256(repr((fingerprint(), plans.own_sources())).encode()).hexdigest()[:16]
    return dict(zip(_MADE_BY, (sources, platform.python_version(), np.__version__), strict=True))


def _digest(found: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _wrong(path: str | os.PathLike[str], what: str, wanted: str) -> WrongArgument:
    return WrongArgument(function="load_plans", name="path", got=f"`{os.fspath(path)!s}`, {what},", wanted=wanted)


def _write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write the file as a whole or not at all."""
    temporary = ""
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise ValueError("it is no regular file")
        number, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:60]}.")
        with os.fdopen(number, "wb") as file:
            file.write(data)
        # As `open` would have made it.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except (OSError, ValueError) as e:
        with suppress(OSError):
            os.unlink(temporary)
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        got = f"`{os.fspath(path)!s}`, which cannot be written ({reason}),"
        raise WrongArgument(
            function="save_plans", name="path", got=got, wanted="the path of a file that can be written"
        ) from None
