"""The cache on disk of front-end results for `.co` files.

A `.co` kernel depends on its text only, so a kernel that was compiled before starts without the front end. The
keys of kernel names, signatures, PTX and launch plans are the text, the definitions and the compiler's
fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, field
from typing import Any

from tilemma.assemble import DiskCache
from tilemma.compiler import uncollected
from tilemma.dtypes import registered_key
from tilemma.errors import Note, Span, register_source
from tilemma.fingerprint import fingerprint
from tilemma.forking import cached_property
from tilemma.ir import tile as t
from tilemma.ir.specialise import wanted_sizes
from tilemma.ir.usage import array_params, checks, scalar_params
from tilemma.launch import Launch
from tilemma.records import record


@record(slots=False)
class Signature:
    """The parameters of a call.  ``plan`` has no entry point: each target checks calls against its parameters and
    checks.  ``order``: the parameters as they are passed.  ``returns``: the array that the caller receives.
    ``sizes``: the dimensions and scalars that the kernel is compiled for.  ``scratch``: arrays that a call
    allocates, and no caller receives."""

    plan: Launch
    order: tuple[str, ...]
    returns: str | None
    sizes: tuple[str, ...]
    scratch: tuple[str, ...] = ()


def signature(kernel: t.Kernel) -> Signature:
    none = (1, 1, 1)
    plan = Launch(
        kernel.name, "", array_params(kernel), scalar_params(kernel), (), none, none, checks=checks(kernel)
    )
    order = tuple(p.buffer.name if isinstance(p, t.ArrayParameter) else p.scalar.name for p in kernel.params)
    sizes = tuple(wanted_sizes(kernel))
    returns = kernel.returns.name if kernel.returns is not None else None
    return Signature(plan, order, returns, sizes, tuple(p.buffer.name for p in kernel.arrays if p.scratch))


def known_signature(identity: Callable[[], str], make: Callable[[], t.Kernel]) -> Signature:
    """The signature of the kernel of that identity; ``make`` gives the kernel where it is not known yet."""
    store = DiskCache("signature")
    if not store.is_empty() and (found := store.read(identity(), _read_signature)) is not None:
        return found
    made = signature(make())
    data = {"plan": made.plan.to_json(), "order": made.order, "returns": made.returns, "sizes": made.sizes}
    data["scratch"] = made.scratch
    store.put_later(identity, json.dumps(data).encode())
    return made


def _read_signature(data: bytes) -> Signature:
    kept = json.loads(data)
    names = (tuple(kept[field]) for field in ("sizes", "scratch"))
    return Signature(Launch.from_json(kept["plan"]), tuple(kept["order"]), kept["returns"], *names)


def _read_outline(data: bytes) -> Mapping[str, Any]:
    """The kernels of a file, and its notes, as `File` keeps them."""
    kept: dict[str, Any] = json.loads(data)
    notes = tuple(Note(n["text"], Span(**n["span"]) if n["span"] else None) for n in kept["notes"])
    return {"kernels": {str(name): dict(values) for name, values in kept["kernels"].items()}, "notes": notes}


@record(slots=False)
class File:
    """A `.co` file with definitions; ``kernels``: the constants of each, in the file's order.

    Raises, where it is not known, the errors of the preprocessor and the parser.
    """

    text: str = field(repr=False)
    name: str
    defines: Mapping[str, Any]

    @cached_property
    def identity(self) -> str:
        defines = repr(sorted(self.defines.items(), key=repr))
        return DiskCache.key(fingerprint(), self._registered, self.text, self.name, defines)

    @cached_property
    def _registered(self) -> str:
        """The types that the program had registered when the file was read."""
        return registered_key()

    @cached_property
    def module(self) -> Any:
        """The file as the front end gives it."""
        with uncollected():
            from tilemma import croqtile

            return croqtile.load(self.text, self.name, self.defines)

    @cached_property
    def _outline(self) -> Mapping[str, Any]:
        store, _ = DiskCache("co"), self._registered
        if not store.is_empty() and (known := store.read(self.identity, _read_outline)) is not None:
            register_source(self.name, self.text)
            return known
        made = {
            "kernels": {name: dict(source.constants) for name, source in self.module.sources.items()},
            "notes": [asdict(note) for note in self.module.notes],
        }
        store.put_later(lambda: self.identity, json.dumps(made).encode())
        return {"kernels": made["kernels"], "notes": self.module.notes}

    @property
    def kernels(self) -> Mapping[str, Mapping[str, Any]]:
        kernels: Mapping[str, Mapping[str, Any]] = self._outline["kernels"]
        return kernels

    @property
    def notes(self) -> tuple[Note, ...]:
        return tuple(self._outline["notes"])


@record(slots=False)
class TextSource:
    """One kernel of a file; the file is read by the front end when the kernel has to be built."""

    file: File
    name: str

    @property
    def constants(self) -> Mapping[str, Any]:
        return self.file.kernels[self.name]

    def build(self, given: Mapping[str, Any] | None = None) -> t.Kernel:
        """The tile IR; ``given`` overrides definitions of the file.  Raises the front end's errors."""
        kernel: t.Kernel = self.file.module.sources[self.name].build(given)
        return kernel

    def identity(self, given: Mapping[str, Any]) -> str:
        """The key of the result of `build`."""
        return DiskCache.key(self.file.identity, self.name, repr(sorted(given.items())))
