"""Which index expressions are alike: a number for each structure, so that what was lowered once is found again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field

from tilemma.ir.expr import Binary, Cast, Const, Dim, Expr, Index, Select
from tilemma.records import record


@record
class Structure:
    """``number`` is the same for equal expressions; ``indices`` are those that they depend on."""

    number: int
    indices: tuple[str, ...] = ()


@record(frozen=False)
class Structures:
    """The structure of each expression asked for.  Passes share subtrees: each is looked at once, by identity."""

    _by_id: dict[int, tuple[Expr, Structure | None]] = field(default_factory=dict)
    _made: dict[Hashable, Structure] = field(default_factory=dict)

    def of(self, x: Expr) -> Structure | None:
        """None where something besides indices and dimensions decides the value (it may change meanwhile)."""
        known = self._by_id.get(id(x))
        if known is None:
            known = self._by_id[id(x)] = x, self._find(x)
        return known[1]

    def _find(self, x: Expr) -> Structure | None:
        match x:
            case Const():
                return self._make(("const", x.value, x.dtype))
            case Dim():
                return self._make(("dim", x.name))
            case Index():
                return self._make(("index", x.name), (x.name,))
            case Binary():
                return self._over(x.op, x.a, x.b)
            case Select():
                return self._over("select", x.cond, x.a, x.b)
            case Cast():
                return self._over(x.dtype, x.a)
        return None

    def _over(self, what: Hashable, *parts: Expr) -> Structure | None:
        found = []
        for p in parts:
            part = self.of(p)
            if part is None:
                return None
            found.append(part)
        key = (what, *(f.number for f in found))
        return self._made.get(key) or self._make(key, tuple(dict.fromkeys(i for f in found for i in f.indices)))

    def _make(self, key: Hashable, indices: tuple[str, ...] = ()) -> Structure:
        return self._made.setdefault(key, Structure(len(self._made), indices))
