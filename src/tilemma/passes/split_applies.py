"""Splits the body of an `apply` that writes several register tiles or vectors, one `apply` for each.

A statement on a vector, ``m.at(i) = ...`` inside ``apply {i, j}``, runs once for each row, before the statements
on elements that follow it.  Each statement on elements works on the visited element alone, so that all elements
may finish it before the next one starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilemma.errors import CompileError, spelled
from tilemma.ir import tile as t
from tilemma.ir.effects import assigned, element_reads, touches
from tilemma.ir.expr import Const, Expr, FragmentElement, Index, Var, substitute
from tilemma.ir.expr import walk as terms
from tilemma.ir.types import View
from tilemma.ir.walk import expressions, map_expressions, rewrite, walk, with_bodies
from tilemma.passes.decision import Decision
from tilemma.records import record


class ApplyRow(CompileError):
    code = "apply-row"
    found = "{what} beside a statement on `{name}`, which has one value for each row"
    expected = "statements on rows that use the row's index and vectors alone"
    fix = "{remedy}"


@record(slots=False)
class SplitApplies:
    """One `Apply` for each tile or vector that the body of an `Apply` writes."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises ApplyRow."""
        declared = {op.name: op for op in walk(kernel.body) if isinstance(op, t.DeclareFragment)}
        numbers = iter(range(1 << 30))

        def split(op: t.Op) -> t.Op | t.Body:
            return tuple(_split(op, declared, numbers)) if isinstance(op, t.Apply) else op

        if not declared or not any(isinstance(op, t.Apply) for op in walk(kernel.body)):
            return kernel
        return replace(kernel, body=rewrite(kernel.body, split))


def _split(op: t.Apply, declared: dict[str, t.DeclareFragment], numbers: Iterator[int]) -> list[t.Op]:
    vectors = {name for name, d in declared.items() if d.shape is not None and len(d.shape) == 1}
    rows = op.fragment.name not in vectors and bool(_written(op.body) & vectors)
    if not rows and _written(op.body) <= {op.fragment.name}:
        return [op]
    parts = _parts(op, vectors, rows)
    if len(parts) > 1 or rows:
        return [_over(op, part, vectors, numbers) for part in parts]
    # Packed registers of another tile are written by halves, which needs a first value.
    others = {x.fragment: x for x in op.body if isinstance(x, t.SetFragmentElement) and x.fragment != op.fragment}
    read = _read_first(op.body)
    types = {ref: d.dtype for ref in others if ref.name not in read and (d := declared.get(ref.name)) is not None}
    zeros = [
        (ref, Const(0.0 if dtype.is_float else 0, dtype)) for ref, dtype in types.items() if dtype is not None
    ]
    if all(isinstance(x, t.SetFragmentElement) for x in op.body) and len(others) == 1:
        return [_over(op, op.body, vectors, numbers)]
    return [*(t.Fill(ref, zero, zero.dtype, span=op.span) for ref, zero in zeros), op]


def _read_first(body: t.Body) -> set[str]:
    """The fragments of which an element is read before the body writes it."""
    read, written = set[str](), set[str]()
    for x in walk(body):
        read |= {e.fragment for e in element_reads(x) if isinstance(e, FragmentElement)} - written
        if isinstance(x, t.SetFragmentElement):
            written.add(x.fragment.name)
    return read


def _written(body: t.Body) -> set[str]:
    return {x.fragment.name for x in walk(body) if isinstance(x, t.SetFragmentElement)}


def _parts(op: t.Apply, vectors: set[str], rows: bool) -> list[t.Body]:
    """The statements of the body in runs that write one tile, or vectors; all in one where variables connect
    statements on elements."""
    name = next(iter(sorted(_written(op.body) & vectors)), "")
    column = op.indices[-1].name
    changing = {v.name for x in walk(op.body) for v in assigned(x)}
    shared: list[t.Declare] = []
    parts: list[tuple[bool, set[t.FragmentRef], list[t.Op]]] = []
    for x in op.body:
        if any(isinstance(y, (t.Break, t.Continue)) for y in walk((x,))):
            if rows:
                raise _refusal(x, "`break` or `continue`", name, _APART)
            return [op.body]
        if isinstance(x, t.Declare):
            if x.var.name in changing or element_reads(x):
                if rows:
                    raise _refusal(x, f"`{x.var.name}`, a variable,", name, _of_rows(x, name))
                return [op.body]
            shared.append(x)
            continue
        written = {y.fragment for y in walk((x,)) if isinstance(y, t.SetFragmentElement)}
        in_vectors = {ref for ref in written if ref.name in vectors}
        on_rows = rows and bool(written) and written == in_vectors
        if rows and in_vectors and not on_rows:
            name, remedy = (
                min(ref.name for ref in in_vectors),
                f"write one {spelled(x.span, '`if`', '`if_`')} for each of the two",
            )
            raise _refusal(x, "a statement on elements", name, remedy)
        if on_rows:
            _check_row(x, column, vectors, [d for d in shared if _mentions(d, {column})])
        key = set[t.FragmentRef]() if on_rows else written
        last = parts[-1] if parts else None
        if last is None or last[0] != on_rows or (key and last[1] and key != last[1]):
            last = (on_rows, set(key), [])
            parts.append(last)
        last[1].update(key)
        last[2].append(x)
    return [(*_used(shared, body), *body) for _, _, body in parts]


def _check_row(op: t.Op, column: str, vectors: set[str], by_column: list[t.Declare]) -> None:
    """Raises ApplyRow where a statement on rows depends on a column."""
    name = next(iter(_written((op,))))
    names = {column, *(d.var.name for d in by_column)}
    for x in walk((op,)):
        for e in element_reads(x):
            if isinstance(e, FragmentElement) and e.fragment not in vectors:
                raise _refusal(x, f"an element of `{e.fragment}`", name, _reduced(x, e.fragment))
        if _mentions(x, names):
            remedy = "write the number of the column, or the row's index, in its place"
            raise _refusal(x, "the index of the column", name, remedy)
        if any(isinstance(term.what, View) for term in touches(x)):
            raise _refusal(x, "an access to memory", name, _APART)


_APART = "write it in an `apply` of its own, before or after this one"


def _refusal(op: t.Op, what: str, name: str, remedy: str) -> ApplyRow:
    return ApplyRow(op.span, what=what, name=name, remedy=remedy)


def _of_rows(op: t.Declare, name: str) -> str:
    tile = next((e.fragment for e in element_reads(op) if isinstance(e, FragmentElement)), None)
    if tile is not None:
        return f"{_reduced(op, tile)}; a variable of the elements goes into an `apply` of its own"
    form = spelled(op.span, f"`apply {{i}} in {name}.span {{ ... }}`", f"`for i in apply({name}):`")
    return f"write the statements on `{name}` in an `apply` over it: {form}"


def _reduced(op: t.Op, tile: str) -> str:
    form = spelled(op.span, f"`reduce_sum(v, {tile}, 1);`", f"`mma.reduce_sum(v, {tile})`")
    return f"sum up each row of the tile first, {form} (or `reduce_max`), and use the vector `v`"


def _mentions(op: t.Op, names: set[str]) -> bool:
    return any(isinstance(term, (Index, Var)) and term.name in names for e in expressions(op) for term in terms(e))


def _used(shared: list[t.Declare], body: list[t.Op]) -> list[t.Op]:
    """The variables that ``body`` reads, and those that these read."""
    wanted = {
        term.name for x in walk(tuple(body)) for e in expressions(x) for term in terms(e) if isinstance(term, Var)
    }
    kept: list[t.Op] = []
    for d in reversed(shared):
        if d.var.name in wanted:
            kept.insert(0, d)
            wanted |= {term.name for term in terms(d.value) if isinstance(term, Var)}
    return kept


def _over(op: t.Apply, body: t.Body, vectors: set[str], numbers: Iterator[int]) -> t.Apply:
    """``body`` as an `Apply` over the tile or vector that it writes, with indices and variables of its own."""
    targets = list(dict.fromkeys(x.fragment for x in walk(body) if isinstance(x, t.SetFragmentElement)))
    over = targets[0] if targets and op.fragment not in targets else op.fragment
    n = next(numbers)
    indices = op.indices[:1] if over.name in vectors else op.indices
    fresh: dict[str, Expr] = {i.name: Index(f"{i.name}.part{n}", i.extent) for i in indices}
    fresh |= {
        x.var.name: Var(f"{x.var.name}.part{n}", x.var.dtype) for x in walk(body) if isinstance(x, t.Declare)
    }

    def renamed(x: t.Op) -> t.Op:
        return with_bodies(
            map_expressions(x, lambda e: substitute(e, fresh)), lambda b: tuple(renamed(y) for y in b)
        )

    made = tuple(i for i in fresh.values() if isinstance(i, Index))
    return t.Apply(over, made, tuple(renamed(x) for x in body), span=op.span)
