"""Shapes and types: the layout contract against the tiles given, copies, stores, views that must fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from tilemma.arithmetic.sparsity import SECTION
from tilemma.dtypes import DType
from tilemma.errors import CompileError, Note, Span
from tilemma.ir import expr
from tilemma.ir import tile as t
from tilemma.ir.checks import checked_metadata, checked_scale
from tilemma.ir.tiles import describe, shape_text
from tilemma.ir.types import Contract, Space, View
from tilemma.ir.walk import expressions, rewrite, views
from tilemma.ir.walk import walk as operations
from tilemma.passes.check_apply import check_visited
from tilemma.passes.check_extents import launch_checks
from tilemma.passes.contraction import Fragments, extents, fragment_uses, matrix
from tilemma.passes.decision import Decision
from tilemma.passes.prepacked import check_prepacked, loaded_shape
from tilemma.passes.scope import Site, names, sites
from tilemma.records import record, replace


class ContractMismatch(CompileError):
    code = "contract-shapes"
    found = "`mma.{contract}` got A {a} and B {b}: {disagreement}"
    expected = "{contract} takes A{wants_a} and B{wants_b}{stored}"
    fix = "{remedy}"


class OperandShape(CompileError):
    code = "operand-shape"
    found = "operand {which} of `mma.{contract}` is {shape}"
    expected = "a tile of two known extents"
    fix = "cut it with `subspan(h, w).at(i, j)`, or drop dimensions of extent 1 with `sqz()`"


class StoreShape(CompileError):
    code = "store-shape"
    found = "`mma.store` of `{name}` to {shape}"
    expected = "a tile of two dimensions"
    fix = "cut it with `subspan(h, w).at(i, j)`, or drop other dimensions of extent 1 with `sqz()`"


class OperandTypes(CompileError):
    code = "operand-types"
    found = "`mma.{contract}` got A of {a} and B of {b}"
    expected = (
        "operands of one element type; e4m3 and e5m2, s8 and u8, s4 and u4 may be mixed (PTX ISA, 9.7.14.2 and "
        "9.7.15.2, Matrix Data-types)"
    )
    fix = "convert one of them with an element loop, or declare both tiles with one type"


class NegatedOperand(CompileError):
    code = "negated-operand"
    found = "`mma.{contract}` with the sign of an operand of {a} reversed"
    expected = (
        "operands that hold the negative of each of their values: integers narrower than 32 bits do not, and no "
        "instruction negates them (PTX ISA, 9.7.15.5.2: imm-scale-a, imm-scale-b)"
    )
    fix = "multiply into an accumulator of its own, and subtract it: `mc -= md`"


class AccumulatorShape(CompileError):
    code = "accumulator-shape"
    found = "accumulator `{name}` is {have} here and {other} elsewhere"
    expected = "one shape [M, N] in every multiply, load and store of an accumulator"
    fix = "use a tile of {other} here, or a second accumulator"


class OperandLoads(CompileError):
    code = "operand-loads"
    found = "`{name}` is loaded from a tile of {have} here and of {other} elsewhere"
    expected = "one shape and type for all loads of an operand"
    fix = "use a second name for the other tile"


class RegisterOperand(CompileError):
    code = "register-operand"
    found = "operand {which} of `mma.{contract}` is `{name}`, which was computed in registers"
    expected = "operand A of `mma.row.row` or `mma.row.col`, declared with its type and extents; or a loaded tile"
    fix = "store it to a shared buffer, and multiply that"


class CopyTypes(CompileError):
    code = "copy-types"
    found = "a copy from {src} elements (`{src_name}`) to {dst} elements (`{dst_name}`)"
    expected = "equal element types: copies move bytes"
    fix = "declare `{dst_name}` as {src}, or convert with an element loop or `mma.store`"


class CopyExtents(CompileError):
    code = "copy-extents"
    found = "a copy from {src} (`{src_name}`) to {dst} (`{dst_name}`)"
    expected = "equal extents on both sides"
    fix = "{remedy}"


class FragmentSubscript(CompileError):
    code = "fragment-subscript"
    found = "subscript {index} of `{name}` {wrong}"
    expected = "a number known when compiled, at least 0 and below {count}: registers have no run-time subscripts"
    fix = "{remedy}"


class ViewOutside(CompileError):
    code = "view-outside"
    found = "a view of `{name}` {reaches} along dimension {dim}, which has {extent}"
    expected = "a view inside the buffer: only tiles of parameters may reach over the edge"
    fix = "{remedy}"


# Views are checked point by point; beyond this many points the CPU reference and the machine do it.
_MOST_POINTS = 512
_WANTS = {False: ("[M, K]", "[N, K]"), True: ("[K, M]", "[K, N]")}


@record(slots=False)
class CheckContracts:
    """Checks shapes and element types; fills `DeclareFragment.shape`; operands and stores become tiles of two
    dimensions."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises ContractMismatch, OperandShape, OperandTypes, AccumulatorShape, OperandLoads,
        StoreShape, CopyTypes, CopyExtents, ApplyOtherTile or ViewOutside."""
        fragments = Fragments(kernel.body)
        shapes = _operand_shapes(fragments)
        check_prepacked(fragments)
        for m in fragments.multiplies:
            _contract(m, fragments, shapes)
        declared = {n: d.shape for n, d in fragments.declared.items() if d.shape is not None}
        stored = {n: (s[0], s[1]) for n, s in declared.items() if len(s) == 2} | shapes
        for site in sites(kernel.body):
            match site.op:
                case t.Copy() as copy:
                    _copy(copy)
                case t.ScaleMma(acc=f) as scale if f.name in shapes:
                    _scales(scale, shapes[f.name], 1)
                case t.Store(fragment=f, dst=dst) as store if len(declared.get(f.name, ())) != 1:
                    have = _tile(dst)
                    if len(matrix(dst).axes) != 2:
                        raise StoreShape(store.span, name=f.name, shape=shape_text(dst.shape))
                    if have is not None:
                        _same(f.name, have[::-1] if store.transpose else have, stored, store.span)
                    else:
                        _store_part(store, stored)
            for _, ref in fragment_uses(site.op):
                _subscripts(ref, fragments.declared[ref.name], site)
            if isinstance(site.op, t.Apply):
                check_visited(site.op, declared | shapes)
        for site in sites(rewrite(kernel.body, _taken)):
            conditional = any(_conditional(p) for p in site.parents)
            for view, guarded in _views(site.op):
                _inside(view, site, guarded or conditional)

        def shaped(op: t.Op) -> t.Op:
            match op:
                case t.DeclareFragment(shape=None) if op.name in shapes:
                    return replace(op, shape=shapes[op.name])
                case t.Load():
                    return replace(op, src=matrix(op.src))
                case t.Store():
                    return replace(op, dst=matrix(op.dst))
                case t.Mma():
                    a, b = (matrix(x) if isinstance(x, View) else x for x in (op.a, op.b))
                    return replace(op, a=a, b=b)
            return op

        written = {op.name for op in fragments.declared.values() if op.shape is not None}
        for name, shape in shapes.items():
            if name in written and name not in fragments.loads:
                continue
            log.append(Decision("contracts", name, f"a tile of {shape_text(shape)}", {"shape": list(shape)}))
        always = (s.op for s in sites(kernel.body) if not any(_conditional(p) for p in s.parents))
        limits = launch_checks(always, stored)
        return replace(kernel, body=(*limits, *rewrite(kernel.body, shaped)))


def _store_part(store: t.Store, shapes: Mapping[str, tuple[int, int]]) -> None:
    """A store to a view of which the launch knows an extent: the other one is the tile's."""
    given, tile = matrix(store.dst).shape, shapes.get(store.fragment.name)
    if tile is not None:
        wanted = tile[::-1] if store.transpose else tile
        if any(expr.value_of(e) not in (None, n) for e, n in zip(given, wanted, strict=True)):
            have = given[::-1] if store.transpose else given
            raise AccumulatorShape(
                store.span, name=store.fragment.name, have=shape_text(have), other=shape_text(tile)
            )


def _tile(view: View) -> tuple[int, int] | None:
    shape = matrix(view).static_shape
    return (shape[0], shape[1]) if shape is not None and len(shape) == 2 else None


def _operand_shapes(fragments: Fragments) -> dict[str, tuple[int, int]]:
    shapes: dict[str, tuple[int, int]] = {
        op.name: (op.shape[0], op.shape[1])
        for op in fragments.declared.values()
        if op.shape is not None and len(op.shape) == 2 and op.name not in fragments.loads
    }
    for name, loads in fragments.loads.items():
        for load in loads:
            shape = loaded_shape(load)
            if shape is None:
                text = shape_text(load.src.shape)
                raise OperandShape(load.span, which=f"`{name}`", contract="load", shape=text)
            if shapes.setdefault(name, shape) != shape or load.element is not loads[0].element:
                raise OperandLoads(
                    load.span,
                    name=name,
                    have=f"{load.element} {shape_text(shape)}",
                    other=f"{loads[0].element} {shape_text(shapes[name])}",
                    notes=[Note("first loaded here", loads[0].span)],
                )
    return shapes


def _contract(m: t.Mma, fragments: Fragments, shapes: dict[str, tuple[int, int]]) -> None:
    for which, x in (("A", m.a), ("B", m.b)):
        if not isinstance(x, t.FragmentRef) or x.name in fragments.loads:
            continue
        if which == "B" or m.contract.a_transposed or x.name not in shapes or m.meta is not None:
            raise RegisterOperand(m.span, which=which, contract=m.contract, name=x.name)
    a, b = (_operand(m, which, x, shapes) for which, x in (("A", m.a), ("B", m.b)))
    types = fragments.dtype(m.a), fragments.dtype(m.b)
    if types[0] is not None and types[1] is not None and not _multiplies(types[0], types[1]):
        raise OperandTypes(m.span, contract=m.contract, a=types[0], b=types[1])
    if m.negated and types[0] is not None and not types[0].is_float and types[0].bits < 32:
        raise NegatedOperand(m.span, contract=m.contract, a=types[0])
    rows, columns, ka, kb = extents(m.contract, a, b)
    sparse = m.meta is not None
    ka *= 2 if sparse else 1
    acc = shapes.get(m.acc.name)
    wrong = ""
    if ka != kb:
        wrong = f"K is {ka} in A and {kb} in B"
    elif acc is not None and acc != (rows, columns) and any(f.name == m.acc.name for f in _c_loads(fragments)):
        wrong = f"the product is {shape_text((rows, columns))}, the accumulator {shape_text(acc)}"
    if wrong:
        raise ContractMismatch(
            m.span,
            contract=f"{m.contract}.sp" if sparse else m.contract,
            a=shape_text(a),
            b=shape_text(b),
            disagreement=wrong,
            stored=f"; half of K is stored in A ({SECTION})" if sparse else "",
            wants_a=_WANTS[m.contract.a_transposed][0].replace("K", "K/2" if sparse else "K"),
            wants_b=_WANTS[m.contract.b_transposed][1],
            remedy=_other_contract(m.contract, a, b, acc, 2 if sparse else 1),
        )
    _same(m.acc.name, (rows, columns), shapes, m.span)
    if m.meta is not None:
        have = _operand(m, f"`{m.meta.name}`", m.meta, shapes)
        if types[0] is not None and (words := fragments.dtype(m.meta)) is not None:
            checked_metadata(m.contract, types[0], (rows, ka), words, have, m.span)
    _scales(m, (rows, columns), ka)


def _scales(op: t.Mma | t.ScaleMma, shape: tuple[int, int], k: int) -> None:
    for letter, view, extent in (("A", op.scale_a, shape[0]), ("B", op.scale_b, shape[1])):
        if view is not None:
            checked_scale(letter, view.static_shape or view.shape, extent, k, op.span)


def _c_loads(fragments: Fragments) -> Iterator[t.FragmentRef]:
    return (load.fragment for loads in fragments.loads.values() for load in loads)


def _multiplies(a: DType, b: DType) -> bool:
    """Whether there may be instructions for both: of 8 bits and fewer, they mix formats and signs."""
    return a is b or (a.bits == b.bits <= 8 and a.is_float == b.is_float and a.is_integer == b.is_integer)


def _operand(m: t.Mma, which: str, x: t.Operand, shapes: dict[str, tuple[int, int]]) -> tuple[int, int]:
    shape = shapes.get(x.name) if isinstance(x, t.FragmentRef) else _tile(x)
    if shape is None:
        text = shape_text(x.shape) if isinstance(x, View) else "of unknown extents"
        raise OperandShape(m.span, which=which, contract=m.contract, shape=text)
    return shape


def _other_contract(
    contract: Contract, a: tuple[int, int], b: tuple[int, int], acc: tuple[int, int] | None, stored: int
) -> str:
    """Which contract fits the tiles; ``stored``: columns of K for each that A stores."""
    fits = []
    for other in Contract:
        m, n, ka, kb = extents(other, a, b)
        if ka * stored == kb and (acc is None or acc == (m, n)):
            fits.append(other)
    if not fits:
        return "cut both tiles so that their K extents agree"
    if len(fits) == 1:
        return f"write `mma.{fits[0]}` if that is how the tiles are stored, or cut tiles that fit {contract}"
    return (
        "one of " + ", ".join(f"`mma.{f}`" for f in fits) + f" fits these tiles; or cut tiles that fit {contract}"
    )


def _same(name: str, have: tuple[int, int], shapes: dict[str, tuple[int, int]], span: Span | None) -> None:
    other = shapes.setdefault(name, have)
    if other != have:
        raise AccumulatorShape(span, name=name, have=shape_text(have), other=shape_text(other))


def _copy(copy: t.Copy) -> None:
    src, dst = copy.src, copy.dst
    bases: dict[str, Any] = {"src_name": src.base.name, "dst_name": dst.base.name}
    if src.dtype is not dst.dtype:
        raise CopyTypes(copy.span, src=src.dtype, dst=dst.dtype, **bases)
    moved = copy.arriving
    a = [e for e in moved if expr.value_of(e) != 1]
    b = [e for e in dst.shape if expr.value_of(e) != 1]
    clash = len(a) != len(b)
    for x, y in zip(a, b, strict=False):
        vx, vy = expr.value_of(x), expr.value_of(y)
        clash |= vx is not None and vy is not None and vx != vy
    if clash:
        small = dst.shape if dst.base.space is not Space.GLOBAL else src.shape
        what = ", ".join(describe(e) for e in small)
        remedy = f"take a tile of the buffer's extents on the other side: `.subspan({what}).at(...)`"
        if copy.transpose is not None or copy.pad:
            remedy = f"make the destination {shape_text(moved)}"
        raise CopyExtents(copy.span, src=shape_text(moved), dst=shape_text(dst.shape), remedy=remedy, **bases)


def _taken(op: t.Op) -> t.Op | t.Body:
    """The branch of a condition that is a constant."""
    if isinstance(op, t.If) and isinstance(op.cond, expr.Const):
        return op.then if op.cond.value else op.otherwise
    return op


def _conditional(op: t.Op) -> bool:
    """Whether the indices around ``op`` do not determine every repetition of the operations inside it."""
    if isinstance(op, t.For):
        return any(isinstance(x, (t.Break, t.Continue)) for x in operations(op.body))
    return isinstance(op, (t.If, t.InThreads, t.While))


def _views(op: t.Op) -> Iterator[tuple[View, bool]]:
    """The views that ``op`` touches, those of elements included, and whether a condition in ``op`` guards them."""
    yield from ((v, False) for v in views(op))
    for e in expressions(op):
        yield from _elements(e, False)


def _elements(e: expr.Expr, guarded: bool) -> Iterator[tuple[View, bool]]:
    match e:
        case expr.Element(view=view):
            yield view, guarded
        case expr.Select(cond=cond, a=a, b=b):
            yield from _elements(cond, guarded)
            known = expr.value_of(cond)
            for branch, other in ((a, known == 0), (b, known not in (None, 0))):
                if not other:
                    yield from _elements(branch, guarded or known is None)
            return
        case expr.Binary(op="land" | "lor", a=a, b=b):
            yield from _elements(a, guarded)
            yield from _elements(b, True)
            return
    for part in expr.children(e):
        yield from _elements(part, guarded)


def _inside(view: View, site: Site, guarded: bool) -> None:
    """Refuse a view of a shared or local buffer that leaves it whenever it is used, and an element of a parameter
    whose constant index lies outside.

    Conditions may rule out values of the indices, which is left to run time, but no constants.
    """
    if any(expr.value_of(a.extent) == 0 for a in view.axes):
        return
    if view.base.space is Space.GLOBAL and (view.axes or guarded):
        return
    ranges = {} if guarded else _ranges(site)
    for d, size in enumerate(view.base_shape):
        if view.base.space is Space.GLOBAL and not isinstance(view.offsets[d], expr.Const):
            continue
        limit, reach, offset = expr.value_of(size), _reach(view, d), view.offsets[d]
        highest, lowest = largest(offset, ranges), largest(expr.sub(0, offset), ranges)
        facts: dict[str, Any] = {"name": view.base.name, "dim": d, "extent": limit}
        what = "a tile within" if isinstance(offset, expr.Const) else "indices and extents that stay below"
        if limit is not None and reach is not None and highest is not None and highest + reach > limit:
            remedy = f"use {what} {limit}, or a larger buffer"
            raise ViewOutside(site.op.span, reaches=f"reaches {highest + reach}", remedy=remedy, **facts)
        if lowest is not None and lowest > 0:
            raise ViewOutside(site.op.span, reaches=f"starts at {-lowest}", remedy="start at 0", **facts)
    if view.slot is not None:
        copies = view.base.copies
        facts = {"name": view.base.name, "dim": "of its copies", "extent": copies}
        highest, lowest = largest(view.slot, ranges), largest(expr.sub(0, view.slot), ranges)
        if highest is not None and highest >= copies:
            remedy = f"take the index modulo {copies}"
            raise ViewOutside(site.op.span, reaches=f"reaches {highest + 1}", remedy=remedy, **facts)
        if lowest is not None and lowest > 0:
            raise ViewOutside(site.op.span, reaches=f"starts at {-lowest}", remedy="start at 0", **facts)


def _reach(view: View, dim: int) -> int | None:
    """Elements from the offset along ``dim`` to the end of the view."""
    reach = 1
    for axis in view.axes:
        if axis.dim == dim:
            extent, step = expr.value_of(axis.extent), expr.value_of(axis.step)
            if extent is None or step is None:
                return None
            reach += (extent - 1) * step
    return reach


def _subscripts(ref: t.FragmentRef, declared: t.DeclareFragment, site: Site) -> None:
    """Refuse subscripts of an array of fragments that the compiler cannot count out."""
    loops = {p.index.name for p in site.parents if isinstance(p, t.For)}
    ranges = {n: r for n, r in _ranges(site).items() if n in loops}
    for index, copies in zip(ref.index, declared.copies, strict=True):
        facts: dict[str, Any] = {"index": describe(index), "name": ref.name, "count": copies}
        run_time = sorted(names(index) - set(ranges))
        run_time += [x.name for x in expr.walk(index) if isinstance(x, (expr.Dim, expr.Scalar))]
        if run_time:
            wrong = f"depends on `{run_time[0]}`, which is known only at run time"
            remedy = "use constants, or indices of loops with constant bounds"
            raise FragmentSubscript(site.op.span, wrong=wrong, remedy=remedy, **facts)
        high, low = largest(index, ranges), largest(expr.sub(0, index), ranges)
        if high is not None and high >= copies:
            raise FragmentSubscript(
                site.op.span, wrong=f"reaches {high}", remedy="use a shorter loop, or a larger array", **facts
            )
        if low is not None and low > 0:
            raise FragmentSubscript(site.op.span, wrong=f"reaches {-low}", remedy="start at 0", **facts)


def _ranges(site: Site) -> dict[str, range]:
    """The values of indices at ``site``, if constant."""
    found: dict[str, range] = {}
    for p in site.parents:
        if isinstance(p, t.Parallel):
            for i in p.indices:
                n = expr.value_of(i.extent)
                if n is not None:
                    found[i.name] = range(n)
        elif isinstance(p, t.For):
            start, stop, step = expr.value_of(p.start), expr.value_of(p.stop), expr.value_of(p.step)
            if start is not None and stop is not None and step is not None and step > 0:
                found[p.index.name] = range(start, stop, step)
    return found


def largest(e: expr.Expr, ranges: dict[str, range]) -> int | None:
    """The largest value of ``e`` over its indices; None if it cannot be computed exactly."""
    indices = sorted({x.name for x in expr.walk(e) if isinstance(x, expr.Index)})
    if any(n not in ranges or not ranges[n] for n in indices):
        return None
    if not indices:
        return expr.value_of(e)
    if prod(len(ranges[n]) for n in indices) > _MOST_POINTS:
        return None
    best: int | None = None
    for point in product(*(ranges[n] for n in indices)):
        v = expr.value_of(expr.substitute(e, {n: expr.const(p) for n, p in zip(indices, point, strict=True)}))
        if v is None:
            return None
        best = v if best is None else max(best, v)
    return best
