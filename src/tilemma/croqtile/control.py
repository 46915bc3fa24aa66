"""Control: `parallel`, `foreach`, `with`, `while`, `if`, `inthreads`, jumps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tilemma.croqtile import ast
from tilemma.croqtile.operands import condition_of, integer, scalars_of, table_operand
from tilemma.croqtile.pipeline import loop_settings
from tilemma.croqtile.reader import Reader, nodes_in, reads
from tilemma.croqtile.refusals import has_suffix
from tilemma.croqtile.storage import called, fixed
from tilemma.croqtile.values import Scalar, Stream, TupleValue, Value, kind
from tilemma.errors import Span
from tilemma.ir import tile as t
from tilemma.ir.checks import checked_indices, checked_start, checked_step, checked_stop
from tilemma.ir.constructs import CHOICES
from tilemma.ir.expr import Expr, add, const, value_of
from tilemma.ir.refusals import MisplacedJump, NotBuiltYet, WrongArity, WrongValue
from tilemma.ir.tiles import Bounded, Unlooped, describe, extent_of, scalar
from tilemma.ir.types import CLUSTER, Level


@reads(ast.Parallel)
def parallel(r: Reader, node: ast.Parallel) -> None:
    options: dict[str, Any] = {}
    if has_suffix(node.suffixes, "async", "`parallel`"):
        options["asynchronous"] = True
    if node.stream is not None:
        # Launches follow one another on the caller's stream, an order that separate streams permit.
        stream = r.value(node.stream)
        if not isinstance(stream, Stream):
            raise WrongValue(
                node.stream.span,
                what="`parallel<...>`",
                got=kind(stream),
                wanted="a parameter of type `stream`",
                fix_text="remove it: calls run on the caller's current stream",
            )
    for attribute in node.attributes:
        options |= _launch_attribute(r, attribute)
    device, *rest = node.specs
    with ExitStack() as stack:
        if device.level is not None and device.level.name == "device":
            _open_device(r, stack, device, bool(rest) or _has_levels(node.body), options)
        else:
            rest = list(node.specs)
        for i, spec in enumerate(rest):
            _open_parallel(r, stack, spec, options if i == 0 else {})
        r.body(_without_yields(node.body))


def _has_levels(body: ast.Statement) -> bool:
    return any(isinstance(n, ast.Parallel) for n in nodes_in(body))


def _open_device(
    r: Reader, stack: ExitStack, spec: ast.ParallelSpec, levels: bool, options: dict[str, Any]
) -> None:
    """``by 1 : device(gpu)`` around launches: one device runs them, that of the arrays of the call.

    Without levels inside, the body is a launch of one instance.
    """
    assert spec.level is not None
    for a in spec.level.args:
        if not isinstance(a, ast.Name) or a.text not in ("cpu", "gpu"):
            raise WrongValue(
                a.span,
                what="`device(...)`",
                got="another device",
                wanted="`device(gpu)` or `device(cpu)`",
                fix_text="write one of these: all launches run on the device of the call's arrays",
            )
    extents = extents_of(r, spec.extent, "`parallel`")
    inside = r.inside_parallel and not r.implicit
    if inside or [value_of(scalar(e)) for e in extents] != [1]:
        raise WrongValue(
            spec.span,
            what="the level `device`",
            got="a place inside another level" if inside else "several devices",
            wanted="`parallel by 1 : device(gpu)` as the outermost level: a kernel runs on one device",
            fix_text="call the kernel once for each device, with the arrays of that device",
        )
    names = _names(spec.names, 1, "p", spec.span)
    indices: Sequence[Bounded] = (Bounded(const(0), const(1)),)
    if not levels:
        indices = stack.enter_context(
            r.b.parallel(names, extents, Level.parse("block"), span=spec.span, **options)
        )
    stack.enter_context(r.scopes.block())
    _bind(r, spec.names, names, indices)


def _without_yields(body: ast.Statement) -> ast.Statement:
    """``if (c) yield; rest`` as ``if (c) {} else { rest }``: the instance has no more to do."""
    if not isinstance(body, ast.Block):
        return body
    for i, s in enumerate(body.body):
        then = _ended(s.then) if isinstance(s, ast.If) else None
        if isinstance(s, ast.If) and then is not None:
            rest = (*((s.otherwise,) if s.otherwise is not None else ()), *body.body[i + 1 :])
            others = _without_yields(ast.Block(rest, span=s.span))
            return body.evolve(body=(*body.body[:i], s.evolve(then=then, otherwise=others)))
    return body


def _ended(body: ast.Statement) -> ast.Block | None:
    """``body`` without the `yield` that ends it; None where none does."""
    statements = body.body if isinstance(body, ast.Block) else (body,)
    if not statements or not isinstance(statements[-1], ast.Yield):
        return None
    return ast.Block(statements[:-1], span=body.span)


def _launch_attribute(r: Reader, node: ast.Expr) -> dict[str, Any]:
    if isinstance(node, ast.Name) and node.text == "overlap" and not r.b.inside_parallel:
        return {"overlap": True}
    name = node.function.text if isinstance(node, ast.Call) and isinstance(node.function, ast.Name) else ""
    args = node.args if isinstance(node, ast.Call) else ()
    word = args[0].text if len(args) == 1 and isinstance(args[0], ast.Name) else ""
    if (name, word) == ("overlap", "before") and not r.b.inside_parallel:
        return {"overlap": "before"}
    if isinstance(node, ast.Name) and node.text == "drained" and not r.b.inside_parallel:
        return {"drained": True}
    if name == "launch_bounds" and len(args) in (1, 2):
        if not isinstance(args[0], ast.Whole):
            table_operand(r, "max-threads", args[0])
        return {"min_blocks": table_operand(r, "min-blocks", args[1])} if len(args) == 2 else {}
    if name == "maxnreg" and len(args) == 1:
        return {"max_registers": table_operand(r, "max-registers", args[0])}
    fix = "write one of these; the threads of a block follow from the levels"
    raise WrongValue(
        node.span,
        what="`[[...]]` before `parallel`",
        got=attribute_text(node),
        wanted="`launch_bounds(threads, blocks)`, `maxnreg(registers)`, or at the outermost level `overlap`, "
        "`overlap(before)` or `drained`",
        fix_text="move it before a `foreach`, or before `__co__` for the kernel" if name == "pipeline" else fix,
    )


def attribute_text(node: ast.Expr) -> str:
    if isinstance(node, ast.Call) and isinstance(node.function, ast.Name):
        return f"`{node.function.text}` of {len(node.args)} operand{'s' * (len(node.args) != 1)}"
    return f"`{node.text}`" if isinstance(node, ast.Name) else "no name"


def _open_parallel(r: Reader, stack: ExitStack, spec: ast.ParallelSpec, options: dict[str, Any]) -> None:
    level, more = level_of(r, spec.level)
    with r.warp_names(level):
        extents = extents_of(r, spec.extent, "`parallel`")
    checked_indices(len(extents), spec.extent.span)
    names = _names(spec.names, len(extents), "p", spec.span)
    if spec.level is not None and spec.level.name in ("cluster", "cluster-rank"):
        indices = stack.enter_context(r.b.ranked_cluster(names, extents, span=spec.span, **options, **more))
    else:
        indices = stack.enter_context(r.b.parallel(names, extents, level, span=spec.span, **options, **more))
    stack.enter_context(r.warp_names(level))
    stack.enter_context(r.scopes.block())
    _bind(r, spec.names, names, indices)


def level_of(r: Reader, spec: ast.LevelSpec | None, operand: str = "level") -> tuple[Level | None, dict[str, Any]]:
    if spec is None:
        return None, {}
    if spec.name == "term":
        raise NotBuiltYet(spec.span, what=f"the level `{spec.name}`", fix_text="use `block`, `group`, `thread`")
    if spec.name == "device" and operand == "level":
        raise WrongValue(
            spec.span,
            what="the level `device`",
            got="a place inside another level",
            wanted="the first level of a `parallel` at the top of the kernel",
            fix_text="remove it: all launches run on the device of the call's arrays",
        )
    options: dict[str, Any] = {}
    for a in spec.args:
        if not isinstance(a, ast.Name) or a.text != "cooperative" or spec.name != "block":
            raise WrongValue(
                a.span,
                what=f"`{spec.name}<...>`",
                got="another option",
                wanted="`block<cooperative>`",
                fix_text="remove it",
            )
        options["cooperative"] = True
    try:
        # The two readings of a cluster are told apart where a level is opened.
        grouped = operand == "level" and spec.name in ("cluster-grid", "cluster-rank")
        return CLUSTER if grouped else Level.parse(spec.name), options
    except (ValueError, AssertionError):
        raise CHOICES[operand].refused(spec.name, spec.span) from None


def extents_of(r: Reader, node: ast.Expr, what: str) -> list[Scalar]:
    """``[a, b]``, a shape, or one number."""
    nodes = node.items if isinstance(node, (ast.SpanList, ast.Tuple)) else (node,)
    found = scalars_of(r, nodes, what)
    # The trip count of a loop is evaluated once, before the loop.
    return [x if isinstance(x, Bounded) else fixed(r, x, "extent") for x in found]


def _names(names: ast.Names | None, count: int, default: str, span: Span) -> list[str]:
    if names is None or (not names.parts and names.whole):
        base = default if names is None or names.whole is None else names.whole
        return [base] if count == 1 else [f"{base}_{i}" for i in range(count)]
    if len(names.parts) != count:
        raise WrongArity(
            names.span,
            what="{...}",
            got=len(names.parts),
            want=f"{count} names, one for each extent",
            form="{" + ", ".join("ijk"[:count]) + "} by [" + ", ".join("abc"[:count]) + "]",
        )
    return [p.text for p in names.parts]


def _bind(r: Reader, names: ast.Names | None, parts: Sequence[str], values: Sequence[Bounded]) -> None:
    """Bind the names of indices: one for each index, and the tuple of all."""
    if names is None:
        return
    scopes = r.scopes
    for part, name, value in zip(names.parts, parts, values, strict=False):
        scopes.define(name, value, part.span)
    if names.whole is not None:
        alone = len(values) == 1 and not names.parts
        whole: Value = values[0] if alone else TupleValue(tuple(values), tuple(p.text for p in names.parts))
        scopes.define(names.whole, whole, names.span)


@reads(ast.With)
def with_(r: Reader, node: ast.With) -> None:
    with r.scopes.block(), r.paired([(a.text, b.text) for a, b in node.where]):
        for item in node.items:
            assert item.extent is not None
            extents = extents_of(r, item.extent, "`with`")
            names = _names(item.names, len(extents), "i", item.span)
            # Outside `foreach` the value of an index is 0.
            _bind(r, item.names, names, [Unlooped(const(0), extent_of(e)) for e in extents])
        for pair in node.where:
            _check_pair(r, *pair)
        r.body(node.body)


def _check_pair(r: Reader, a: ast.Name, b: ast.Name) -> None:
    """``a <-> b``: two indices of the same extents, which one loop runs over together; WrongValue."""
    found = []
    for name in (a, b):
        binding = r.scopes.find(name.text)
        if binding is None:
            raise r.scopes.unknown(name.text, name.span)
        value = binding.value
        items = value.items if isinstance(value, TupleValue) else (value,)
        if not all(isinstance(x, Unlooped) for x in items):
            raise WrongValue(
                name.span,
                what="`where`",
                got=kind(value),
                wanted="two indices of `with`",
                fix_text=f"declare it in this statement: `with {name.text} in n`",
            )
        found.append([x.extent for x in items if isinstance(x, Unlooped)])
    if found[0] != found[1]:
        shown = " and ".join("[" + ", ".join(describe(e) for e in extents) + "]" for extents in found)
        raise WrongValue(
            a.span,
            what="`where`",
            got=f"indices of the extents {shown}",
            wanted="indices of the same extents: one loop runs over both",
            fix_text="give both the same extents",
        )


def _bind_partners(r: Reader) -> None:
    """Give an index that `where` pairs with one of the loop just opened the value of that one."""
    for pair in r.pairs:
        for name, other in (pair, pair[::-1]):
            loop = r.scopes.blocks[-1].get(name)
            known = r.scopes.find(other)
            if loop is None or other in r.scopes.blocks[-1] or known is None:
                continue
            value = loop.value
            if isinstance(value, TupleValue) and isinstance(known.value, TupleValue):
                value = TupleValue(value.items, known.value.names)
                for part, item in zip(value.names, value.items, strict=False):
                    r.scopes.define(part, item, known.span)
            r.scopes.define(other, value, known.span)


@reads(ast.Foreach, inside="`foreach`")
def foreach(r: Reader, node: ast.Foreach) -> None:
    options = _hints(r, node)
    with ExitStack() as stack:
        stack.enter_context(r.scopes.block())
        pipeline = options.pop("pipeline", None)
        for i, item in enumerate(node.items):
            stack.enter_context(r.scopes.block())
            _open_loops(r, stack, item, options, pipeline if i == len(node.items) - 1 else None)
        r.body(node.body)


def _hints(r: Reader, node: ast.Foreach) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for h in (*node.hints, *(_as_hint(a) for a in node.attributes)):
        if h.name in options:
            raise WrongValue(
                h.span,
                what="a loop",
                got=f"a second `{h.name}`",
                wanted="each of `unroll`, `vectorize` and `pipeline` once",
                fix_text="remove one of the two",
            )
        if h.name == "unroll" and len(h.args) <= 1:
            options["unroll"] = table_operand(r, "unroll", h.args[0]) if h.args else 0
        elif h.name == "vectorize" and len(h.args) == 2:
            options["vectorize"] = table_operand(r, "vectorize", h.args[1])
        elif h.name == "pipeline":
            options["pipeline"] = loop_settings(r, h.args)
        else:
            raise WrongValue(
                h.span,
                what="a loop",
                got=f"`: {h.name}`" if h in node.hints else f"`[[{h.name}]]`",
                wanted="`: unroll`, `: unroll(4)`, `: vectorize(i, 8)` or `[[pipeline(stages=4)]]`",
                fix_text="write one of these",
            )
    return options


def _as_hint(a: ast.Expr) -> ast.Suffix:
    if isinstance(a, ast.Call) and isinstance(a.function, ast.Name):
        return ast.Suffix(a.function.text, a.args, True, span=a.span)
    return ast.Suffix(a.text if isinstance(a, ast.Name) else "...", span=a.span)


def _open_loops(
    r: Reader, stack: ExitStack, item: ast.Iteration, options: dict[str, Any], pipeline: t.PipelineSettings | None
) -> None:
    """Open the loops of one item of ``foreach``, the outermost first, and bind their indices.

    ``pipeline``: of the innermost loop.
    """
    names = item.names
    if item.extent is None or item.range is not None:
        # An index that is already declared (`foreach k(1:)`), or an alias of one (`c = a(1:-1)`).
        source = item.extent.text if isinstance(item.extent, ast.Name) else names.whole
        if source is None:
            raise WrongValue(
                names.span,
                what="`foreach`",
                got="names in braces without `in`",
                wanted="`in` and the extents",
                fix_text="write `foreach {i, j} in [m, n]`",
            )
        binding = r.scopes.find(source)
        if binding is None:
            raise r.scopes.unknown(source, names.span)
        value = binding.value
        if not isinstance(value, (Bounded, TupleValue)):
            raise WrongValue(
                names.span,
                what="`foreach`",
                got=kind(value),
                wanted="an index bound by `with`",
                fix_text=f"write `foreach {source} in [n]`, or bind it first: `with {source} in n`",
            )
        items = value.items if isinstance(value, TupleValue) else (value,)
        parts = value.names if isinstance(value, TupleValue) else ()
        extents: list[Scalar] = [_bound(x, names.span) for x in items]
        alias = names.whole if names.whole is not None else source
        loop_names = list(parts) or (
            [alias] if len(extents) == 1 else [f"{alias}_{i}" for i in range(len(extents))]
        )
        shown = ast.Names(alias, tuple(ast.Name(p, span=names.span) for p in parts), span=names.span)
    else:
        extents = extents_of(r, item.extent, "`foreach`")
        loop_names = _names(names, len(extents), "i", names.span)
        shown = names
    if item.range is not None and len(extents) != 1:
        raise WrongValue(
            item.range.span,
            what="a range",
            got=f"an index of {len(extents)} dimensions",
            wanted="an index of one dimension",
            fix_text="loop over its parts, each with its range",
        )
    indices = []
    for i, (n, e) in enumerate(zip(loop_names, extents, strict=True)):
        limits = _range(r, item.range, e)
        more = {**options, "pipeline": pipeline if i == len(extents) - 1 else None}
        indices.append(stack.enter_context(r.b.foreach(n, e, **limits, **more, span=item.span)))
    stack.enter_context(r.scopes.block())
    _bind(r, shown, loop_names, indices)
    if shown is not names:
        _bind_partners(r)


def _bound(x: Scalar, span: Span) -> Scalar:
    if isinstance(x, Bounded):
        return x.extent
    raise WrongValue(
        span,
        what="`foreach`",
        got=f"`{describe(x)}`, which has no upper bound",
        wanted="an index bound by `with`",
        fix_text="write `foreach i in [n]`",
    )


def _range(r: Reader, node: ast.Range | None, extent: Scalar) -> dict[str, Any]:
    """``(start : stop : step)``: offsets added to the bounds."""
    if node is None:
        return {}
    out: dict[str, Any] = {}
    if node.start is not None:
        out["start"] = checked_start(integer(r, node.start, "a range"), node.start.span)
    if node.stop is not None:
        stop = add(scalar(extent), integer(r, node.stop, "a range"))
        out["stop"] = checked_stop(stop, extent_of(extent), node.stop.span)
    if node.step is not None:
        out["step"] = checked_step(integer(r, node.step, "a range"), node.step.span)
    return out


def branch_condition(r: Reader, node: ast.Expr | ast.Statement, what: str) -> Expr:
    if isinstance(node, ast.CallStatement):
        node = called(r, node)
    assert isinstance(node, ast.Expr)
    return condition_of(r, node, what)


@reads(ast.While, inside="`while`")
def while_(r: Reader, node: ast.While) -> None:
    with r.without_effects("the condition of `while`"):
        cond = branch_condition(r, node.cond, "`while`")
    with r.b.while_(cond):
        r.body(node.body)


@reads(ast.If, inside="`if`")
def if_(r: Reader, node: ast.If) -> None:
    cond = branch_condition(r, node.cond, "`if`")
    span = r.b.span
    with r.b.if_(cond):
        r.body(node.then)
    if node.otherwise is not None:
        with r.b.else_(span):
            r.body(node.otherwise)


@reads(ast.InThreads, inside="`inthreads`")
def inthreads(r: Reader, node: ast.InThreads) -> None:
    asynchronous = has_suffix(node.suffixes, "async", "`inthreads`")
    cond = branch_condition(r, node.cond, "`inthreads`")
    with r.b.inthreads(cond, asynchronous):
        r.body(node.body)


@reads(ast.Break, inside="`break`")
@reads(ast.Continue, inside="`continue`")
def jump(r: Reader, node: ast.Break | ast.Continue) -> None:
    word = "break" if isinstance(node, ast.Break) else "continue"
    if not r.b.in_loop:
        raise MisplacedJump(node.span, word=word)
    r.b.emit(t.Break() if word == "break" else t.Continue())
