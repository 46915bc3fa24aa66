"""Checks the arguments of `run` and `check`: PTX text, launch, options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilemma.errors import described
from tilemma.launch import Launch
from tilemma.machine.arguments import refuse
from tilemma.machine.limits import MAX_TEXT
from tilemma.machine.problems import MachineLimit

FIELDS = ("entry", "grid", "block", "cluster", "shared", "arch", "read_only")
# Beyond any number that PTX holds.
_LARGEST = (1 << 64) - 1
# The largest value of each numeric option: a run beyond it does not end in reasonable time.
_MOST = {"seed": (1 << 63) - 1, "max_steps": 1 << 40, "schedules": 100_000}
SCHEDULES = ("random", "late", "early", "starve")
_ARCH = re.compile(r"sm_(?:(?:5[023]|6[012]|7[025]|8[0679]|88)|(?:90|10[0-9]|11[0-9]|12[0-9])[af]?)")


def check_call(ptx: Any, launch: Any, args: Any) -> None:
    """Refuse PTX, a launch or arguments of the wrong type."""
    if not isinstance(ptx, str):
        refuse(f"the PTX is {_kind(ptx)}", "text", "read the file: Path(...).read_text()")
    if "\n" not in ptx and ptx.endswith((".ptx", ".s", ".txt", ".cubin")):
        refuse(f"the PTX is the path `{ptx}`", "the text of the file", "read it: Path(...).read_text()")
    if not isinstance(launch, (Launch, Mapping)):
        refuse(f"the launch is {_kind(launch)}", "a launch plan, or a dict with `grid` and `block`", "pass one")
    if len(ptx) > MAX_TEXT:
        raise MachineLimit(what=f"PTX of {len(ptx)} characters", limit=f"{MAX_TEXT} characters", how="cut it")
    if isinstance(args, Mapping) and not all(isinstance(name, str) for name in args):
        refuse("an argument's name is no text", "names as text", 'pass {"x": x, "y": y}')
    if not isinstance(args, Mapping):
        refuse(
            f"the arguments are {_kind(args)}",
            "a dict of names and values in the order of the parameters",
            'pass {"x": x, "y": y}',
        )


def simple_launch(launch: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a launch that is no plan, each of its type; BadMachineCall where one is not."""
    for key in launch:
        if key not in FIELDS:
            refuse(
                f"the launch has no field `{key!s:.60}`",
                f"the fields {', '.join(sorted(FIELDS))}",
                "drop or rename it",
            )
    if "grid" not in launch or "block" not in launch:
        refuse("the launch lacks `grid` or `block`", "both, as one to three integers", "add them")
    out: dict[str, Any] = {key: triple(key, launch[key]) for key in ("grid", "block")}
    if launch.get("cluster") is not None:
        out["cluster"] = triple("cluster", launch["cluster"])
    out["shared"] = integer("`shared`", launch.get("shared", 0))
    out["arch"] = architecture(launch.get("arch"))
    out["entry"] = entry_name(launch)
    names = launch.get("read_only", ())
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(n, str) for n in names):
        refuse(f"`read_only` is {_kind(names)}", "a list of argument names", 'write read_only=["x"]')
    out["read_only"] = set(names)
    return out


def entry_name(launch: Mapping[str, Any]) -> str | None:
    """The entry that a launch names, if any."""
    name = launch.get("entry")
    if not (name is None or isinstance(name, str)):
        refuse(f"`entry` is {_kind(name)}", "the name of a kernel", "give its name as text")
    return name


def architecture(arch: Any) -> str | None:
    """A target, or None for the PTX's own."""
    if not (arch is None or (isinstance(arch, str) and _ARCH.fullmatch(arch))):
        refuse(f"the target is {described(arch)}", "a target such as sm_90a", "correct it")
    return arch


def options(**given: Any) -> dict[str, Any]:
    """The options of a run: numbers as integers, flags as booleans."""
    out: dict[str, Any] = {}
    for name, value in given.items():
        if name in ("seed", "max_steps", "schedules"):
            out[name] = integer(f"`{name}`", value, negative=name == "seed")
            most = _MOST[name]
            if abs(out[name]) > most or (name != "seed" and out[name] < 1):
                refuse(f"`{name}` is {described(value)}", f"a number from 1 to {most}", f"pass another `{name}`")
        elif isinstance(value, (bool, np.bool_)):
            out[name] = bool(value)
        else:
            refuse(f"`{name}` is {_kind(value)}", "True or False", f"write {name}=True")
    return out


def sample(ctas: object) -> int | None:
    """The number of CTAs that `sample:8` asks for; None for `all`."""
    found = re.fullmatch(r"all|sample:([1-9][0-9]{0,8})", ctas) if isinstance(ctas, str) else None
    if found is None:
        refuse(
            f"`ctas` is {described(ctas)}", "`all`, or `sample:8` for 8 of the grid's CTAs", "write one of these"
        )
    return int(found[1]) if found[1] else None


def schedule(name: object) -> None:
    """Refuse an unknown schedule."""
    if not isinstance(name, str) or name not in SCHEDULES:
        refuse(f"the schedule {described(name)}", f"one of {', '.join(SCHEDULES)}", "pick one of these")


def integer(what: str, value: Any, *, negative: bool = False) -> int:
    """``value`` as an integer, 0 or more unless ``negative``."""
    low = -_LARGEST if negative else 0
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= _LARGEST:
        refuse(f"{what} is {described(value)}", f"an integer from {low} to {_LARGEST}", "correct it")
    return int(value)


def triple(what: str, value: Any, *, rest: int = 1) -> tuple[int, int, int]:
    """One to three integers as three; those that are missing are ``rest``."""
    items = list(np.atleast_1d(value)) if isinstance(value, np.ndarray) else value
    items = list(items) if isinstance(items, (tuple, list)) else [items]
    if not 1 <= len(items) <= 3:
        refuse(f"`{what}` is {described(value)}", "one to three integers", "give x, y and z")
    x, y, z = [*(integer(f"`{what}`", i, negative=True) for i in items), rest, rest][:3]
    return x, y, z


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
