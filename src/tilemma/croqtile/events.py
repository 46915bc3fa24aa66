"""Events, futures and barriers."""

from __future__ import annotations

from tilemma.croqtile import ast
from tilemma.croqtile.control import level_of
from tilemma.croqtile.operands import arguments, constant, event_of, event_ref, future_of, integer, table_operand
from tilemma.croqtile.reader import Reader, defines, reads
from tilemma.croqtile.refusals import has_suffix
from tilemma.croqtile.values import Events, Operation, Value, kind
from tilemma.ir import tile as t
from tilemma.ir.checks import checked_index
from tilemma.ir.constructs import KINDS, LIMITS
from tilemma.ir.refusals import NotBuiltYet, OutsideParallel, WrongArity, WrongValue, wrong_member
from tilemma.ir.tiles import FutureValue
from tilemma.ir.types import BLOCK, WARP, EventRef


def event_member(r: Reader, base: Events, node: ast.Member) -> Value:
    if node.name != "at":
        raise wrong_member(node.name_span or node.span, "an event", node.name, ("at",))
    if base.slot is not None or base.order is not None:
        raise WrongValue(
            node.span,
            what="`.at`",
            got=f"an event of `{base.event.name}` that is chosen already",
            wanted="an array of events",
            fix_text="leave `.at(...)` or the subscript before it out",
        )
    if not base.event.slots:
        raise WrongValue(
            node.span,
            what="`.at`",
            got=f"the single event `{base.event.name}`",
            wanted="an array of events",
            fix_text="declare it with a size, `event e[2]`",
        )
    args = node.args or ()
    if len(args) != 1:
        raise WrongArity(node.span, what=".at", got=len(args), want="one", form="e.at(order)")
    order = integer(r, args[0], "`.at`")
    return Events(base.event, order=checked_index(order, "`.at`", args[0].span))


@reads(ast.DeclareEvent)
def declare_event(r: Reader, node: ast.DeclareEvent) -> None:
    if node.storage != "shared":
        raise NotBuiltYet(
            node.span, what=f"an event in `{node.storage or 'no'}` storage", fix_text="write `shared event`"
        )
    threads = table_operand(r, "threads", node.threads) if node.threads is not None else None
    for item in node.items:
        if len(item.sizes) > 1:
            raise NotBuiltYet(item.span, what="an array of events of rank 2", fix_text="use one subscript")
        slots = table_operand(r, "slots", item.sizes[0]) if item.sizes else 0
        ready = isinstance(item.value, ast.Name)
        if isinstance(item.value, ast.Name) and item.value.text != "ready":
            raise WrongValue(
                item.span,
                what="an event",
                got=f"`= {item.value.text}`",
                wanted="`= ready` or nothing",
                fix_text="write `= ready`",
            )
        r.scopes.define(item.name, Events(r.b.event(item.name, slots, threads, ready)), item.span)


@reads(ast.Sync)
def sync(r: Reader, node: ast.Sync) -> None:
    what = node.suffixes[0].name
    if not r.inside_parallel:
        # The launches of a kernel follow one another: each sees the writes of those before it.
        if what == "global" and node.level is None and len(node.suffixes) == 1:
            return
        raise OutsideParallel(node.span, what="`sync`")
    if what == "shared" and node.level is None:
        r.b.emit(t.Sync("barrier", BLOCK))
    elif what in ("barrier", "fence") and not (node.level and node.level.args and what == "barrier"):
        spec = ast.LevelSpec(node.level.name, span=node.level.span) if node.level else None
        level, _ = level_of(r, spec, what)
        if what == "barrier":
            r.b.barrier(level)
        else:
            r.b.emit(t.Sync("fence", level))
    elif what in ("global", "local"):
        raise NotBuiltYet(node.span, what=f"`sync.{what}`", fix_text="use `sync.barrier : block`")
    else:
        raise WrongValue(
            node.span,
            what="`sync`",
            got=f"`.{what}`",
            wanted="`sync.shared`, `sync.barrier : level` or `sync.fence : level`",
            fix_text="write one of these",
        )


@defines("__bar_sync", "__bar_arrive", effect=True)
def named_barrier(r: Reader, node: ast.Call, name: str, used: bool = True) -> None:
    """``__bar_sync(number, threads)`` arrives at a barrier of the block and waits, ``__bar_arrive`` arrives."""
    if used:
        raise KINDS["scalar"].refused("an operation", f"`{name}`, which has no result", node.span)
    first, second = arguments(node, name, 2, f"{name}(number, threads)")
    number, threads = constant(r, first, f"`{name}`"), constant(r, second, f"`{name}`")
    barriers, most = LIMITS["barriers"].most, LIMITS["threads"].most
    whole = f"a multiple of {WARP} threads up to {most}"
    for ok, place, got, wanted in (
        (0 <= number < barriers, first, number, f"the number of a barrier, 0 to {barriers - 1}"),
        (0 < threads <= most and not threads % WARP, second, threads, whole),
    ):
        if not ok:
            raise WrongValue(place.span, what=f"`{name}`", got=str(got), wanted=wanted, fix_text=f"write {wanted}")
    r.effect(node.span, f"`{name}`")
    event = EventRef(r.b.named_barrier(number, threads, node.span))
    r.b.emit(t.TriggerEvent(event))
    if name == "__bar_sync":
        r.b.emit(t.WaitEvent(event))


@reads(ast.Wait, inside="`wait`")
def wait(r: Reader, node: ast.Wait) -> None:
    if node.phase is not None:
        raise NotBuiltYet(node.phase.span, what="`wait<phase>`", fix_text="write `wait e.at(order)`")
    futures: list[str] = []
    for target in node.targets:
        value = r.value(target)
        if isinstance(value, Events):
            r.b.emit(t.WaitEvent(event_ref(value, target)))
        elif isinstance(value, Operation) or (isinstance(value, FutureValue) and value.name):
            futures.append(value.name)
        else:
            synchronous = isinstance(value, FutureValue)
            got = "a synchronous copy, which is complete" if synchronous else kind(value)
            fix = "remove it" if synchronous else None
            raise KINDS["event or future"].refused("`wait`", got, target.span, fix)
    if futures:
        r.b.emit(t.WaitFuture(tuple(futures)))


@reads(ast.Exchange, inside="`swap`")
def exchange(r: Reader, node: ast.Exchange) -> None:
    """`swap` and `rotate`: each name refers to the buffer of the next one."""
    names = []
    for target in node.names:
        value = r.value(target)
        if not isinstance(value, FutureValue):
            raise KINDS["copy"].refused(f"`{node.word}`", kind(value), target.span)
        names.append(value.name or value.data.view.base.name)
    if len(node.names) < 2:
        want, form = "2 or more: the results of copies", f"{node.word}(f, g)"
        raise WrongArity(node.span, what=node.word, got=len(node.names), want=want, form=form)
    r.b.emit(t.SwapFutures(tuple(names)))


@reads(ast.Trigger, inside="`trigger`")
def trigger(r: Reader, node: ast.Trigger) -> None:
    cluster = has_suffix(node.suffixes, "cluster", "`trigger`")
    after = tuple(future_of(r, f) for f in node.after)
    for target in node.targets:
        r.b.emit(t.TriggerEvent(event_of(r, target, "`trigger`"), after, cluster))
