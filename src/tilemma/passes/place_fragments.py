"""Register fragment assignment: the role of each register tile (A, B, C), its type, and its level."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.errors import CompileError, Note, spelled
from tilemma.ir import tile as t
from tilemma.ir.checks import checked_constant
from tilemma.ir.expr import Cast, Const, Expr, Index, const, depends_on, value_of
from tilemma.ir.refusals import WrongValue
from tilemma.ir.walk import bodies, expressions, walk, with_fields
from tilemma.passes.contraction import Fragments, fragment_uses
from tilemma.passes.decision import Decision
from tilemma.passes.infer_levels import described
from tilemma.passes.scope import Dependence, Site, control, count, kind, sites
from tilemma.records import record


class FragmentRoles(CompileError):
    code = "fragment-roles"
    found = "`{name}` is used as {first} and as {second}"
    expected = (
        "one role for a fragment: the registers of an operand and of an accumulator are laid out differently"
    )
    fix = "load or fill a second fragment for the other use"


class FragmentNotFilled(CompileError):
    code = "fragment-not-filled"
    found = "`{name}` is used as {use} before anything was put into it"
    expected = "{expectation} before this statement"
    fix = "{remedy}"


class CollectiveScope(CompileError):
    code = "collective-scope"
    found = "this statement works on `{name}` at {where}"
    expected = "a warp (`: group`), a warpgroup (`: group-4`) or more warps that hold the tile together"
    fix = "put it inside `parallel p by 1 : group`, or `: group-4`"
    python_fix = 'put it inside `for p in parallel(1, level="group"):`, or `level="group-4"`'


class CollectiveLanes(CompileError):
    code = "collective-lanes"
    found = "this statement on `{name}` is inside `parallel {names} : thread`, and {reason}"
    expected = "all lanes of the group to run a collective statement together"
    fix = "move it out of the `: thread` level"
    python_fix = 'move it out of the `parallel` with `level="thread"`'


class FragmentHome(CompileError):
    code = "fragment-home"
    found = "`{name}` is held by `{first}` and used in `{second}`"
    expected = "the same level and extents in every `parallel` that uses it: equal index, same warps"
    fix = "use `parallel p {first}` here too, or pass the data through shared memory"
    python_fix = (
        "use the same extents and level here too (held by `{first}`), or pass the data through shared memory"
    )


class SeveralInstances(CompileError):
    code = "fragment-several-instances"
    found = "`{name}` is used outside the `parallel` that holds it, where {count} instances have one each"
    expected = "exactly one instance, or the statement inside a `parallel` of the same shape"
    fix = "put it inside `parallel {shape}` and give each instance its own part of the destination"
    python_fix = (
        "put it inside a `parallel` of the same extents and level, and give each instance its own part of the "
        "destination"
    )


class AccumulatorType(CompileError):
    code = "accumulator-type"
    found = "accumulator `{name}` of {have} for operands of {operand}"
    expected = "one of {legal} (PTX ISA, 9.7.14.2 and 9.7.15.2, Matrix Data-types; for f32 and s32 fma and mad)"
    fix = "write `mma.fill.{first}`, or leave the suffix out"
    python_fix = 'write `mma.fill(0.0, "{first}")`, or leave the type out'


_WHAT = {"C": "accumulator", "A": "operand A", "B": "operand B", "E": "metadata", "R": "a value for each row"}


@record
class Home:
    """The instances that hold a fragment: one each for a parallel of this level and these extents."""

    parallel: t.Parallel
    outer: tuple[t.Parallel, ...]

    @property
    def instances(self) -> int:
        total = 1
        for p in (*self.outer, self.parallel):
            total *= count(p) or 1
        return total

    @property
    def shape(self) -> tuple[object, ...]:
        return tuple((p.level, tuple(i.extent for i in p.indices)) for p in (*self.outer, self.parallel))

    def __str__(self) -> str:
        extents = ", ".join(str(count(p)) for p in (*self.outer, self.parallel))
        return f"by {extents} : {self.parallel.level}"


def home_of(site: Site) -> Home | None:
    """The threads that execute a collective statement at ``site``; None outside every group."""
    group = site.group
    if group is None:
        return None
    chain = [p for p in site.inner if kind(p) == "group"]
    return Home(group, tuple(chain[:-1]))


@record(slots=False)
class PlaceFragments:
    """Fills `DeclareFragment.dtype`, and moves a statement outside the instance that holds its fragment into it,
    where there is exactly one.
    """

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises FragmentRoles, FragmentNotFilled, CollectiveScope, CollectiveLanes, FragmentHome,
        SeveralInstances or AccumulatorType."""
        fragments = Fragments(kernel.body)
        roles = _roles(kernel)
        _Filled(roles).check(kernel.body, set())
        homes = _homes(kernel)
        types = {name: _dtype(name, role, fragments, log) for name, role in roles.items()}
        for name, home in homes.items():
            what = _WHAT[roles[name]]
            text = f"{what}, {types[name]}, in the registers of each `parallel {home}`"
            log.append(Decision("fragments", name, text, {"role": roles[name], "dtype": str(types[name])}))
        fresh = _Fresh(kernel)
        body = _settle(kernel.body, types, homes, False, fresh)
        return replace(kernel, body=body)


def _roles(kernel: t.Kernel) -> dict[str, str]:
    """Fragment -> "A", "B", "C", "E" or "R" (a vector); FragmentRoles for two of them."""
    letter = {"accumulator": "C", "store": "C", "A": "A", "B": "B", "metadata": "E"}
    words = {"C": "an accumulator", "A": "operand A", "B": "operand B", "E": "metadata", "R": "a vector"}
    declared = [op for op in walk(kernel.body) if isinstance(op, t.DeclareFragment)]
    found: dict[str, tuple[str, t.Op]] = {
        op.name: ("R", op) for op in declared if op.shape is not None and len(op.shape) == 1
    }
    for op in walk(kernel.body):
        for use, ref in fragment_uses(op):
            role = letter.get(use)
            if role is None:
                continue
            first, where = found.setdefault(ref.name, (role, op))
            if first != role:
                raise FragmentRoles(
                    op.span,
                    name=ref.name,
                    first=words[first],
                    second=words[role],
                    notes=[Note(f"used as {words[first]} here", where.span)],
                )
    roles = {name: role for name, (role, _) in found.items()}
    for op in walk(kernel.body):
        for use, ref in fragment_uses(op):
            if use in ("fill", "apply", "read"):
                roles.setdefault(ref.name, "C")
    for op in walk(kernel.body):
        if isinstance(op, (t.DeclareFragment, t.Load)):
            roles.setdefault(op.name if isinstance(op, t.DeclareFragment) else op.fragment.name, "A")
    return roles


class _Filled:
    """The fragments that have values on every path to a statement; loops are taken to run."""

    def __init__(self, roles: dict[str, str]) -> None:
        self.roles = roles
        self.sometimes: dict[str, t.Op] = {}
        self.writing: set[str] = set()

    def check(self, body: t.Body, filled: set[str]) -> set[str]:
        """``filled`` and the fragments that ``body`` fills.  Raises FragmentNotFilled."""
        for op in body:
            if isinstance(op, t.Apply):
                self.writing = {x.fragment.name for x in op.body if isinstance(x, t.SetFragmentElement)}
            else:
                self._statement(op, filled)
            inner = [x for _, x in bodies(op)]
            known = value_of(op.cond) if isinstance(op, (t.If, t.InThreads)) else None
            if known is not None:
                inner = inner[:1] if known else inner[1:]
            parts = [self.check(x, set(filled)) for x in inner]
            if isinstance(op, (t.If, t.InThreads)) and known is None:
                for name in set().union(*parts) - filled:
                    self.sometimes.setdefault(name, op)
                parts = [set.intersection(*parts)] if isinstance(op, t.If) else []
            filled |= set().union(*parts)
        return filled

    def _statement(self, op: t.Op, filled: set[str]) -> None:
        for use, ref in sorted(fragment_uses(op), key=lambda found: found[0] != "read"):
            whole = isinstance(op, t.Reduce) or (isinstance(op, t.SetFragmentElement) and ref.name in self.writing)
            if use in ("fill", "load") or (use == "apply" and whole):
                filled.add(ref.name)
            elif ref.name not in filled:
                raise self._refusal(op, use, ref.name)

    def _refusal(self, op: t.Op, use: str, name: str) -> FragmentNotFilled:
        operand = self.roles.get(name) != "C"
        load = spelled(op.span, f"{name} = mma.load tile", f"{name} = mma.load(tile)")
        zero = spelled(op.span, f"{name} = mma.fill 0.0", f"{name} = mma.fill(0.0)")
        place, notes = "it", []
        if (branch := self.sometimes.get(name)) is not None:
            word = spelled(op.span, "if", "if_") if isinstance(branch, t.If) else "inthreads"
            place = f"the `{word}` as well"
            notes = [Note("without values where this is not executed", branch.span)]
        return FragmentNotFilled(
            op.span,
            name=name,
            use=f"the {use}" if use == "accumulator" else use,
            expectation="`mma.load`" if operand else "`mma.fill` (or `mma.load`)",
            remedy=f"write `{load if operand else zero}` before {place}",
            notes=notes,
        )


def _homes(kernel: t.Kernel) -> dict[str, Home]:
    dependence = Dependence(kernel.body)
    homes: dict[str, Home] = {}
    outside: list[tuple[str, Site]] = []
    for site in sites(kernel.body):
        for use, ref in fragment_uses(site.op):
            if use == "fill" and site.group is None and site.block is not None:
                continue
            home = home_of(site)
            if home is None:
                outside.append((ref.name, site))
                continue
            _check_lanes(site, ref, dependence)
            known = homes.setdefault(ref.name, home)
            if known.shape != home.shape:
                raise FragmentHome(
                    site.op.span,
                    name=ref.name,
                    first=f"by {described(known.parallel).split(' by ')[1]} : {known.parallel.level}",
                    second=f"parallel {described(home.parallel)} : {home.parallel.level}",
                )
    for name, site in outside:
        if name not in homes or isinstance(site.op, t.Mma):
            where = "block scope" if site.block is not None else "kernel scope"
            if any(kind(p) == "thread" for p in site.parallels):
                where = "thread scope"
            raise CollectiveScope(site.op.span, name=name, where=where)
        if homes[name].instances != 1:
            p = homes[name].parallel
            shape = f"{described(p)} : {p.level}"
            raise SeveralInstances(site.op.span, name=name, count=homes[name].instances, shape=shape)
    return homes


def _check_lanes(site: Site, ref: t.FragmentRef, dependence: Dependence) -> None:
    """A collective statement below a thread level needs all lanes of the group, on one path."""
    inside = site.parents[site.parents.index(site.group) + 1 :] if site.group is not None else ()
    threads = [p for p in inside if isinstance(p, t.Parallel)]
    for p in threads:
        assert site.group is not None and site.group.level is not None
        names = {i.name for i in p.indices}
        reason = ""
        if count(p) != site.group.level.threads:
            reason = f"it has {count(p)} of the group's {site.group.level.threads} lanes"
        elif any(_mentions(e, names, dependence) for op in _worked(site.op) for e in expressions(op)):
            reason = "its operands differ from lane to lane"
        elif any(names & dependence.closure(control(q)) for q in inside if q is not p):
            reason = "whether it runs differs from lane to lane"
        if reason:
            raise CollectiveLanes(site.op.span, name=ref.name, names=described(p), reason=reason)


def _worked(op: t.Op) -> Iterable[t.Op]:
    """``op`` and, for element work, its operations for each element."""
    return walk((op,)) if isinstance(op, t.Apply) else (op,)


def _mentions(e: Expr, names: set[str], dependence: Dependence) -> bool:
    return depends_on(e, names) or bool(dependence.of(e) & names)


def _dtype(name: str, role: str, fragments: Fragments, log: list[Decision]) -> DType | None:
    loads = fragments.loads.get(name, [])
    if role != "C":
        return loads[0].element if loads else fragments.declared[name].dtype
    multiplies = [m for m in fragments.multiplies if m.acc.name == name]
    operands = [dtype for m in multiplies if (dtype := fragments.dtype(m.a)) is not None]
    explicit = [f.dtype for f in fragments.fills.get(name, ()) if f.dtype is not None]
    declared = fragments.declared[name].dtype if name in fragments.declared else None
    legal = operands[0].accumulators if operands else ()
    if declared is not None and (explicit or not legal or declared.name != legal[0]):
        explicit.insert(0, declared)
    if explicit:
        chosen, how = explicit[0], "as written"
    elif loads and (not legal or loads[0].element.name in legal):
        chosen, how = loads[0].element, "as loaded"
    elif legal:
        chosen, how = dtypes.dtype(legal[0]), f"inferred from operands of {operands[0]}"
    else:
        chosen, how = dtypes.f32, "nothing else is known"
    for m in multiplies:
        operand = fragments.dtype(m.a)
        if operand is not None and operand.accumulators and chosen.name not in operand.accumulators:
            legal = operand.accumulators
            raise AccumulatorType(
                m.span, name=name, have=chosen, operand=operand, legal=", ".join(legal), first=legal[0]
            )
    log.append(Decision("fragments", name, f"accumulates in {chosen} ({how})", {"dtype": str(chosen)}))
    if chosen is dtypes.f16 and multiplies:
        text = "sums in f16: 11 bits, and 65504 is the largest; for a long K write `mma.fill.f32`"
        log.append(Decision("fragments", name, text, warning=True, span=multiplies[0].span))
    return chosen


class _Fresh:
    """Names that the kernel does not use yet."""

    def __init__(self, kernel: t.Kernel) -> None:
        self._used = {i.name for op in walk(kernel.body) if isinstance(op, t.Parallel) for i in op.indices}

    def __call__(self, name: str) -> str:
        candidates = chain([name], (f"{name}.{i}" for i in itertools.count(1)))
        n = next(c for c in candidates if c not in self._used)
        self._used.add(n)
        return n


def _settle(
    body: t.Body, types: dict[str, DType | None], homes: dict[str, Home], grouped: bool, fresh: _Fresh
) -> t.Body:
    out: list[t.Op] = []
    for op in body:
        inside = grouped or (isinstance(op, t.Parallel) and kind(op) == "group")
        changes = {name: _settle(inner, types, homes, inside, fresh) for name, inner in bodies(op)}
        if isinstance(op, t.DeclareFragment):
            op = replace(op, dtype=types.get(op.name, op.dtype))
        elif isinstance(op, t.Fill):
            dtype = types[op.fragment.name]
            if dtype is None:
                raise WrongValue(
                    op.span,
                    what="`mma.fill`",
                    got=f"no type for `{op.fragment.name}`, and no multiply adds to it",
                    wanted="a type, where no operands decide it",
                    fix_text="write " + spelled(op.span, "`mma.fill.f16 0.0f`", '`mma.fill(0.0, "f16")`'),
                )
            op = replace(op, value=_converted(checked_constant(op.value, dtype, op.span), dtype))
        elif changes:
            op = with_fields(op, changes)
        if not grouped and isinstance(op, (t.Store, t.Load, t.Apply, t.Reduce, t.ScaleMma)):
            ref = op.acc if isinstance(op, t.ScaleMma) else op.src if isinstance(op, t.Reduce) else op.fragment
            name = ref.name
            op = _into(homes[name], op, fresh)
        out.append(op)
    return tuple(out)


def _converted(e: Expr, dtype: DType) -> Expr:
    if e.type == dtype:
        return e
    if isinstance(e, Const):
        return Const(float(e.value) if dtype.is_float else int(e.value), dtype)
    return Cast(e, dtype)


def _into(home: Home, op: t.Op, fresh: _Fresh) -> t.Op:
    """``op`` inside the single instance that holds its fragment."""
    for p in reversed((*home.outer, home.parallel)):
        indices = tuple(Index(fresh(i.name), const(1)) for i in p.indices)
        op = t.Parallel(indices, (op,), p.level, span=op.span)
    return op
