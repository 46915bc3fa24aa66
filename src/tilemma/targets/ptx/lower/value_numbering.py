"""Value numbering of index expressions: structurally equal expressions get one number, the key of the CSE
table."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field

from tilemma.ir.expr import Binary, Cast, Const, Dim, Expr, Index, Select
from tilemma.records import record


@record
class ValueNumber:
    """``number`` is the same for equal expressions; ``indices``: the loop and thread indices they depend on."""

    number: int
    indices: tuple[str, ...] = ()


@record(frozen=False)
class ValueNumbering:
    """The value numbers found so far.  Passes share subtrees: each tree is visited once, by object identity."""

    _by_id: dict[int, tuple[Expr, ValueNumber | None]] = field(default_factory=dict)
    _made: dict[Hashable, ValueNumber] = field(default_factory=dict)

    def of(self, x: Expr) -> ValueNumber | None:
        """The value number of ``x``; None if ``x`` reads anything but indices and dimensions, which may change."""
        known = self._by_id.get(id(x))
        if known is None:
            known = self._by_id[id(x)] = x, self._find(x)
        return known[1]

    def _find(self, x: Expr) -> ValueNumber | None:
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

    def _over(self, operation: Hashable, *parts: Expr) -> ValueNumber | None:
        found = []
        for p in parts:
            part = self.of(p)
            if part is None:
                return None
            found.append(part)
        key = (operation, *(f.number for f in found))
        return self._made.get(key) or self._make(key, tuple(dict.fromkeys(i for f in found for i in f.indices)))

    def _make(self, key: Hashable, indices: tuple[str, ...] = ()) -> ValueNumber:
        return self._made.setdefault(key, ValueNumber(len(self._made), indices))
