"""Fresh names (renaming) for the indices of duplicated parallels and loops: index names are unique in a kernel."""

from __future__ import annotations

from dataclasses import replace

from tilemma.ir.effects import declared
from tilemma.ir.expr import Expr, Index, Var, substitute, with_bounds
from tilemma.ir.tile import Body, For, Op, Parallel
from tilemma.ir.walk import map_expressions, walk, with_bodies
from tilemma.records import record


@record(slots=False)
class Names:
    """The names of indices and variables that a kernel has."""

    taken: set[str]

    @staticmethod
    def of(body: Body) -> Names:
        return Names({x.name for op in walk(body) for x in declared(op) if isinstance(x, (Index, Var))})

    def fresh(self, index: Index) -> Index:
        """``index`` under a name that is not taken yet."""
        stem = index.source_name
        name = next(n for n in (f"{stem}.{i}" for i in range(1, len(self.taken) + 2)) if n not in self.taken)
        self.taken.add(name)
        return replace(index, name=name)

    def _fresh_in(self, index: Index, table: dict[str, Expr]) -> Index:
        """A fresh index whose bounds mention the renamed indices."""
        return self.fresh(with_bounds(index, lambda e: substitute(e, table)))

    def renamed(self, op: Op) -> Op:
        """``op`` with fresh names for its own indices and for those inside it."""
        return self._renamed(op, {})

    def _renamed(self, op: Op, table: dict[str, Expr]) -> Op:
        if isinstance(op, Parallel):
            new = {i.name: self._fresh_in(i, table) for i in op.indices}
            table = {**table, **new}
            op = replace(op, indices=tuple(new[i.name] for i in op.indices))
        elif isinstance(op, For):
            index = self._fresh_in(op.index, table)
            table = {**table, op.index.name: index}
            op = replace(op, index=index)
        op = map_expressions(op, lambda e: substitute(e, table))
        return with_bodies(op, lambda inner: tuple(self._renamed(x, table) for x in inner))
