"""Products computed as their transposes, where no instruction has so few rows, but one has as few columns.

The transpose of A x B is B transposed x A transposed: the operands change places, and the register tiles are held
transposed, with stores, loads and element work to match.
"""

from __future__ import annotations

from dataclasses import replace

from tilemma.ir import tile as t
from tilemma.ir.expr import Expr, FragmentElement, walk, with_operands
from tilemma.ir.types import Contract
from tilemma.ir.walk import expressions, map_expressions, rewrite
from tilemma.ir.walk import walk as operations
from tilemma.passes.contraction import Fragments, fragment_uses, matrix


def transposed(kernel: t.Kernel, names: set[str]) -> t.Kernel | None:
    """``kernel`` with the products among the fragments ``names`` computed as transposes; None where something else
    depends on which operand is which, or on the rows of the tiles."""
    fragments = Fragments(kernel.body)
    multiplies = [m for m in fragments.multiplies if m.acc.name in names]
    operands = {x.name for m in multiplies for x in (m.a, m.b) if isinstance(x, t.FragmentRef)}
    tiles = names - operands
    if not operands <= fragments.loads.keys() or not all(map(_exchangeable, multiplies)):
        return None
    if any(_depends_on_rows(op, tiles, operands) for op in operations(kernel.body)):
        return None
    return replace(kernel, body=rewrite(kernel.body, lambda op: _turned(op, tiles)))


def _exchangeable(m: t.Mma) -> bool:
    return m.meta is None and m.scale_a is None and m.scale_b is None and m.factor is None and m.wanted is None


def _depends_on_rows(op: t.Op, tiles: set[str], operands: set[str]) -> bool:
    match op:
        case t.DeclareFragment(name=name, shape=shape) if name in tiles:
            return shape is None or len(shape) != 2
        case t.Reduce(src=f):
            return f.name in tiles
        case t.Apply(fragment=f, body=body):
            used = {f.name, *(name for inner in (op, *operations(body)) for name in _elements(inner))}
            return bool(used & tiles) and not used <= tiles
        case t.DeclareFragment() | t.Mma() | t.Fill() | t.Load() | t.Store() | t.SetFragmentElement():
            return False
    return any(ref.name in tiles for _, ref in fragment_uses(op))


def _elements(op: t.Op) -> set[str]:
    """The fragments whose elements an operation inside an `Apply` touches."""
    read = {x.fragment for e in expressions(op) for x in walk(e) if isinstance(x, FragmentElement)}
    return read | {op.fragment.name} if isinstance(op, t.SetFragmentElement) else read


def _turned(op: t.Op, tiles: set[str]) -> t.Op:
    match op:
        case t.DeclareFragment(name=name, shape=shape) if name in tiles and shape is not None:
            return replace(op, shape=shape[::-1])
        case t.Mma(acc=f) if f.name in tiles:
            a, b = op.contract.value.split(".")
            return replace(op, a=op.b, b=op.a, contract=Contract(f"{b}.{a}"))
        case t.Load(fragment=f) if f.name in tiles:
            src = matrix(op.src)
            return replace(op, src=replace(src, axes=src.axes[::-1]))
        case t.Store(fragment=f) if f.name in tiles:
            return replace(op, transpose=not op.transpose, rows=op.columns, columns=op.rows)
        case t.Apply(fragment=f) if f.name in tiles:
            op = replace(op, indices=op.indices[::-1])
    return map_expressions(op, lambda e: _indexed(e, tiles))


def _indexed(e: Expr, tiles: set[str]) -> Expr:
    e = with_operands(e, lambda x: _indexed(x, tiles))
    if isinstance(e, FragmentElement) and e.fragment in tiles:
        return replace(e, indices=e.indices[::-1])
    return e
