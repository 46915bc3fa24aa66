"""The targets that run kernels: built-in ones in the folders of this package, others registered from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tilemma.errors import LaunchError, WrongArgumentType, described, nearest
from tilemma.ir.tile import Kernel

# The built-in names of `Kernel.on`, each with its options.  The reference has no architecture: a loop over targets
# may name one.
_OPTIONS = {
    "auto": ("arch", "stream"),
    "cpu": ("arch",),
    "machine": ("arch", "seed", "schedule", "strict", "collect", "max_steps", "trace"),
    "cuda": ("arch", "stream"),
}
BUILT_IN = tuple(_OPTIONS)
# Other words for a target, each with the target's name.
_OTHER_NAMES = {
    **dict.fromkeys(("gpu", "nvidia", "device"), "cuda"),
    **dict.fromkeys(("host", "numpy", "reference"), "cpu"),
    **dict.fromkeys(("emulator", "simulator", "ptx"), "machine"),
}


@runtime_checkable
class Target(Protocol):
    """Runs kernels.

    ``kernel`` is the tile IR after the passes of every target (`tilemma.passes.FRONT_PASSES`): levels are
    inferred, register tiles placed, contracts checked.  ``arrays`` holds a NumPy view of each array parameter by
    name, of its own element type and strides; what the kernel writes is written in place.  ``scalars`` has the
    scalar parameters, ``dims`` the run-time dimensions by name; ``options`` are those given to `Kernel.on`.  The
    value returned is what the call returns, unless the kernel itself returns an array.
    """

    def run(
        self,
        kernel: Kernel,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        scalars: Mapping[str, Any],
        dims: Mapping[str, int],
        **options: Any,
    ) -> Any: ...


class BadTarget(LaunchError):
    code = "bad-target"
    found = "`tm.targets.register` got {what}"
    expected = "a name, and an object with a method `run(kernel, arrays, scalars, dims, **options)`"
    fix = "{fix_text}"


class UnknownTarget(LaunchError):
    code = "unknown-target"
    found = "`{target}` is not a target"
    expected = "one of {known}"
    fix = "{fix_text}"


_registered: dict[str, Target] = {}


def register(name: str, target: Target) -> None:
    """Make `kernel.on(name)` run kernels on ``target``; a later registration of a name replaces an earlier one.

    Raises BadTarget for the name of a built-in target, and for an object without a method ``run``.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise BadTarget(what=f"the name {described(name)}", fix_text="use a name made of letters, digits and `_`")
    if name in BUILT_IN:
        raise BadTarget(what=f"the name of a built-in target, `{name}`", fix_text="choose another name")
    if isinstance(target, type) or not isinstance(target, Target) or not callable(target.run):
        raise BadTarget(
            what=f"{type(target).__name__} for `{name}`, which has no method `run`",
            fix_text="pass an instance of a class with that method",
        )
    _registered[name] = target


def registered() -> Mapping[str, Target]:
    """The targets that were registered, by name."""
    return dict(_registered)


def check_choice(target: str, options: Mapping[str, Any]) -> None:
    """Raises WrongArgumentType and UnknownTarget, unless `Kernel.on` takes these arguments."""
    known = (*BUILT_IN, *_registered)
    if not isinstance(target, str):
        wanted = f"one of {', '.join(known)}"
        raise WrongArgumentType(function="on", name="target", got=described(target), wanted=wanted)
    if target not in known:
        near = _OTHER_NAMES.get(target.lower()) or nearest(target, known)
        fix = f"did you mean `{near}`?" if near else "use one of these, or register it"
        raise UnknownTarget(target=target, known=", ".join(known), fix_text=fix)
    for name, value in options.items():
        if name not in _OPTIONS.get(target, options):
            wanted = f"options of {target!r}: {', '.join(_OPTIONS[target])}"
            raise WrongArgumentType(function="on", name=name, got=described(value), wanted=wanted)


__all__ = ["BUILT_IN", "BadTarget", "Target", "UnknownTarget", "register", "registered"]
