"""Alpha renaming: entities get canonical names in order of declaration, so that kernels equal up to names are
equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tilemma.dtypes import DType
from tilemma.ir import expr as e
from tilemma.ir import tile
from tilemma.ir import types as ty
from tilemma.ir.forms import hints


def canonical(kernel: tile.Kernel) -> tile.Kernel:
    """``kernel`` with its declared names replaced by ``i.0``, ``b.0``, .. by order of declaration, spans dropped.

    The names that a caller sees (kernel, parameters, dimensions) stay.
    """
    renaming = Renaming(kernel)
    renamed: tile.Kernel = renaming(kernel)
    return renamed


class Renaming:
    """New names, given where the program text first mentions an entity."""

    def __init__(self, kernel: tile.Kernel) -> None:
        self.buffers: dict[str, str] = {p.buffer.name: p.buffer.name for p in kernel.arrays}
        self.scalars: dict[str, str] = {p.scalar.name: p.scalar.name for p in kernel.scalars}
        self.fragments: dict[str, str] = {}
        self.events: dict[str, str] = {}
        self.futures: dict[str, str] = {}

    @staticmethod
    def _in(table: dict[str, str], prefix: str, name: str) -> str:
        return table.setdefault(name, f"{prefix}.{len(table)}")

    def __call__(self, x: Any) -> Any:
        """``x``, a part of the kernel, with names replaced throughout."""
        if isinstance(x, tuple):
            return tuple(self(v) for v in x)
        if not is_dataclass(x) or isinstance(x, type):
            return x
        rename = NAMED.get(type(x))
        changes = {} if rename is None else rename(self, x)
        if isinstance(x, tile.Op):
            changes |= self._futures(x)
        for name in [f.name for f in fields(x)]:
            if name == "span":
                changes["span"] = None
            elif name not in changes and f_holds_parts(getattr(x, name)):
                changes[name] = self(getattr(x, name))
        return replace(x, **changes) if changes else x

    def _futures(self, op: tile.Op) -> dict[str, Any]:
        """Futures are names in plain fields: `future`, `futures`, `after`."""
        changes: dict[str, Any] = {}
        for name in ("future", "futures", "after"):
            if name in hints(type(op)):
                value = getattr(op, name)
                if isinstance(value, str):
                    changes[name] = self._in(self.futures, "t", value)
                elif value is not None:
                    changes[name] = tuple(self._in(self.futures, "t", v) for v in value)
        return changes


def f_holds_parts(value: Any) -> bool:
    """Whether a field's value can hold names further in."""
    return isinstance(value, tuple) or (is_dataclass(value) and not isinstance(value, (type, DType)))


NAMED: dict[type, Callable[[Renaming, Any], dict[str, Any]]] = {
    e.Index: lambda r, x: {"name": r._in(r.scalars, "i", x.name)},
    e.Var: lambda r, x: {"name": r._in(r.scalars, "i", x.name)},
    ty.Buffer: lambda r, x: {"name": r._in(r.buffers, "b", x.name)},
    ty.Event: lambda r, x: {"name": r._in(r.events, "e", x.name)},
    tile.FragmentRef: lambda r, x: {"name": r._in(r.fragments, "f", x.name)},
    tile.DeclareFragment: lambda r, x: {"name": r._in(r.fragments, "f", x.name)},
    e.FragmentElement: lambda r, x: {"fragment": r._in(r.fragments, "f", x.fragment)},
}
