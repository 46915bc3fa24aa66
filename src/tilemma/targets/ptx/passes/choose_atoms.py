"""Instruction selection for multiplies: a matrix-multiply atom (wgmma or mma.sync) from the catalogue for each,
and the register layout of every fragment that follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from tilemma.arithmetic.integers import cdiv
from tilemma.atoms import DECLARED, MmaAtom, catalogue
from tilemma.atoms import Operand as AtomOperand
from tilemma.atoms.choose import Selection, select_from
from tilemma.errors import CompileError, Note, Refusal
from tilemma.ir.builder import KTileOrder
from tilemma.ir.plans import FragmentPlan
from tilemma.ir.tile import DeclareFragment, FragmentRef, Kernel, Load, Mma, Op, Operand, Reduce
from tilemma.ir.types import Space, View
from tilemma.ir.walk import rewrite, walk, with_fields
from tilemma.passes import advice
from tilemma.passes.contraction import Fragments
from tilemma.passes.decision import Decision
from tilemma.passes.scope import sites
from tilemma.records import record
from tilemma.targets.ptx.passes.atom_refusals import FragmentLayouts, NoInstruction, TileTooLarge
from tilemma.targets.ptx.passes.contraction_work import Choice, Work, components, work_of
from tilemma.targets.ptx.passes.element_tiles import element_plans
from tilemma.targets.ptx.passes.k_orders import k_orders
from tilemma.targets.ptx.passes.lane_targets import check_lane_targets
from tilemma.targets.ptx.passes.load_plans import load_plan
from tilemma.targets.ptx.passes.shared_views import SWIZZLE_ATOMS, holds, wgmma_rule
from tilemma.targets.ptx.passes.snapshot import stale_fragments
from tilemma.targets.ptx.passes.swap_operands import transposed
from tilemma.targets.ptx.target import Target

# A tile of more registers cannot be held in registers: refuse it early, because compiling it would take long.
MAX_REGISTERS = 1024


@record(slots=False)
class ChooseAtoms:
    """Fills `Mma.atom`, `Mma.tiles`, `DeclareFragment.plan` and `Load.plan`.

    A group of whole warpgroups takes wgmma where the target has it and the operands can be read through
    descriptors, the widest N first; everything else is mma.sync.  Where the group has several executing units
    they divide the tile along M first, then along N.
    """

    arch: str
    # Fragments of products that are computed as transposes already.
    turned: frozenset[str] = frozenset()

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises NoInstruction with the table of refusals, AtomMismatch, FragmentLayouts, ElementTiles or
        TileWithoutLayout."""
        check_lane_targets(kernel, self.arch)
        fragments = Fragments(kernel.body)
        stale = stale_fragments(kernel.body)
        works = [
            work_of(s.op, s.group.level, fragments, stale)
            for s in sites(kernel.body)
            if isinstance(s.op, Mma) and s.group is not None and s.group.level is not None
        ]
        reduced = {op.src.name for op in walk(kernel.body) if isinstance(op, Reduce)}
        chosen: dict[int, Choice] = {}
        for component, names in components(works, kernel):
            if reduced & names or any(w.a_stored is None for w in component):
                component = [replace(w, whole_rows=True) for w in component]
            try:
                choices = self._choose(component, log)
            except NoInstruction as refused:
                return self._as_transposes(kernel, names, log, refused)
            for work, choice in zip(component, choices, strict=True):
                chosen[id(work.mma)] = choice
        named = _named_operands(works, chosen)
        plans = element_plans(kernel, _plans(works, chosen, named))
        _check_registers(fragments, plans)
        return _decided(kernel, chosen, named, plans, self.arch)

    def _as_transposes(
        self, kernel: Kernel, names: set[str], log: list[Decision], refused: NoInstruction
    ) -> Kernel:
        """The kernel with operands of these products exchanged; raises ``refused`` where that is of no help."""
        turned = None if names & self.turned else transposed(kernel, names)
        if turned is None:
            raise refused
        found: list[Decision] = []
        try:
            decided = ChooseAtoms(self.arch, self.turned | names).run(turned, found)
        except CompileError:
            raise refused from None
        for name in dict.fromkeys(m.acc.name for m in Fragments(kernel.body).multiplies if m.acc.name in names):
            text = "its transpose is computed, with the operands exchanged: no instruction divides its rows"
            log.append(Decision("atoms", name, text))
        log += found
        return decided

    def _choose(self, works: list[Work], log: list[Decision]) -> list[Choice]:
        refusals: list[Refusal] = []
        for attempt in (_preferred, _wgmma, _mma_sync, _fma, _declared):
            choices: list[Choice] = []
            for w in works:
                got = attempt(w, self.arch)
                if isinstance(got, list):
                    refusals += got
                    break
                choices.append(got)
            else:
                for w, c in zip(works, choices, strict=True):
                    _check_order(w, c)
                    log.append(_decision(w, c, refusals))
                return choices
        raise _no_instruction(works[0], self.arch, tuple(dict.fromkeys(refusals)))


def _check_registers(fragments: Fragments, plans: dict[str, FragmentPlan]) -> None:
    for name, plan in plans.items():
        m, n = plan.shape
        registers = m * n * plan.dtype.bits // 32 // plan.level.threads
        if plan.residence == "registers" and registers > MAX_REGISTERS:
            declared = fragments.declared.get(name)
            raise TileTooLarge(
                declared.span if declared is not None else None,
                name=name,
                shape=f"{m}x{n}",
                dtype=plan.dtype,
                registers=registers,
                level=plan.level,
                limit=MAX_REGISTERS,
            )


def _check_order(w: Work, c: Choice) -> None:
    """KTileOrder unless an order given by the program names every tile of K."""
    assert isinstance(w.mma, Mma)
    order, tiles = w.mma.k_order, c.tiles[2]
    if order and len(order) != tiles:
        raise KTileOrder(
            w.mma.span,
            got=", ".join(map(str, order)),
            why=f"; {c.atom.name} takes K = {w.k} in {tiles} tiles of {c.atom.shape[2]}",
            wanted=f"0 to {tiles - 1}",
            fix_text="name every tile of K once, or leave the order to the compiler",
        )


def _decision(w: Work, c: Choice, refusals: list[Refusal]) -> Decision:
    units = c.grid[0] * c.grid[1]
    how = "" if units == 1 else f", {units} units as {c.grid[0]}x{c.grid[1]} (MxN)"
    instead = ""
    wide = [r for r in refusals if r.candidate.startswith("SM90")]
    if wide and w.level.warps % 4 == 0 and not c.atom.asynchronous:
        instead = f"not wgmma: {wide[0].rule}"
    if w.mma.wanted is not None:
        instead = "the program names it"
    text = f"{c.atom.name}, {'x'.join(map(str, c.tiles))} of it a unit (MxNxK){how}"
    text += f"; {instead}" if instead else ""
    data = {
        "atom": c.atom.name,
        "tile": [w.m, w.n, w.k],
        "tiles": list(c.tiles),
        "grid": list(c.grid),
        "level": str(w.level),
        "refused": [r.to_json() for r in refusals],
    }
    # A reason that only says that the target has no wgmma is left out.
    if instead and "the target is" not in instead:
        data["reason"] = instead
    return Decision(
        "atoms", f"{w.mma.acc.name} += {_name(w.mma.a)} x {_name(w.mma.b)}", text, data, span=w.mma.span
    )


def _name(x: Operand) -> str:
    return x.name if isinstance(x, FragmentRef) else x.base.name


def _no_instruction(w: Work, arch: str, refusals: tuple[Refusal, ...]) -> NoInstruction:
    return NoInstruction(
        w.mma.span,
        arch=arch,
        a=w.a,
        b=w.b,
        d=w.d,
        m=w.m,
        n=w.n,
        k=w.k,
        level=w.level,
        remedy=advice.for_multiply(
            arch,
            w.level,
            (w.m, w.n, w.k),
            (w.a, w.b, w.d),
            w.mma.span,
            sparse=w.mma.meta is not None,
            wanted=w.mma.wanted,
        ),
        refusals=refusals,
    )


def grids(units: int) -> list[tuple[int, int]]:
    """The arrangements of ``units`` along M and N, most along M first."""
    return [(g, units // g) for g in range(units, 0, -1) if units % g == 0]


def _select(w: Work, arch: str, kind: str, **wanted: Any) -> tuple[tuple[MmaAtom, ...], list[Refusal]]:
    types: dict[str, Any] = {"a": w.a, "b": w.b, "d": w.d}
    if w.mma.wanted is not None:
        only = select_from(
            (catalogue[w.mma.wanted],),
            arch=arch,
            kind=kind,
            sparse=kind.endswith(".sp"),
            named=True,
            **types,
            **wanted,
        )
        # That it is of another kind is no news: the attempt of its own kind says what it needs.
        other = f"is {catalogue[w.mma.wanted].kind}, not {kind}"
        return only.candidates, [x for x in only.refusals if x.rule != other]

    def selected(atoms: Iterable[MmaAtom]) -> Selection:
        return select_from(atoms, arch=arch, kind=kind, sparse=kind.endswith(".sp"), **types, **wanted)

    near: dict[str, Any] = {**types, "a_from": wanted.get("a_from")}
    if (found := selected(catalogue.mma(kind, wanted["tile"][1], by_name=False, **near))).candidates:
        return found.candidates, []
    nearest = selected(catalogue.mma(kind, **near))
    others = list(catalogue.mma(kind, a=w.a, b=w.b))
    found = selected(others)
    if found.candidates or others:
        # The instructions of these types and sources come first: their rules are nearest to the program.
        return found.candidates, list(dict.fromkeys((*nearest.refusals, *found.refusals)))
    if kind == DECLARED:
        return (), []
    every = {f"{t.a} x {t.b}": None for t in catalogue.families(kind)}
    rule = f"does not multiply {w.a} by {w.b}; it takes {', '.join(every)}"
    return (), [Refusal(_FAMILIES[kind], rule, _SECTIONS[kind])]


_FAMILIES = {
    "wgmma": "SM90_64xNx.. (wgmma)",
    "mma.sync": "SM80_16x8x.. (mma.sync)",
    "fma": "fma, mad",
    "wgmma.sp": "SM90_SPARSE_64xNx.. (wgmma.sp)",
    "mma.sp": "SM80_SPARSE_16x8x.. (mma.sp)",
    DECLARED: "declared instructions",
}
_SECTIONS = {
    "wgmma": "PTX ISA, 9.7.15.5",
    "mma.sync": "PTX ISA, 9.7.14.5",
    "fma": "PTX ISA, 9.7.3.6",
    "wgmma.sp": "PTX ISA, 9.7.15.6",
    "mma.sp": "PTX ISA, 9.7.14.6",
    DECLARED: "tilemma.instruction",
}


def _first_grid(
    w: Work, arch: str, units: int, **wanted: Any
) -> tuple[tuple[MmaAtom, ...], tuple[int, int], list[Refusal]]:
    """The instructions for the first division of the tile among ``units`` for which there are any."""
    refusals: list[Refusal] = []
    order = [(units, 1)] if w.whole_rows else grids(units)
    if wanted["kind"] == "fma" or w.a.bits == 64:
        # The division that loads the fewest elements. On the CUDA cores, a lane has every eighth row and every
        # fourth column.
        high, wide = (8, 4) if wanted["kind"] == "fma" else (1, 1)
        order.sort(key=lambda g: cdiv(w.m, high * g[0]) + cdiv(w.n, wide * g[1]))
    for gm, gn in order:
        if w.m % gm or w.n % gn:
            refusals.append(Refusal(f"{gm}x{gn} units", f"do not divide a tile of {w.m}x{w.n}"))
            continue
        found, refused = _select(w, arch, tile=(w.m // gm, w.n // gn, w.k), **wanted)
        if found:
            return found, (gm, gn), refusals
        refusals += refused
    return (), (1, 1), refusals


def _tiles(w: Work, atom: MmaAtom, grid: tuple[int, int]) -> tuple[int, int, int]:
    m, n, k = atom.shape
    return w.m // grid[0] // m, w.n // grid[1] // n, w.k // k


def _preferred(w: Work, arch: str) -> Choice | list[Refusal]:
    """A declared instruction that its rank puts before those of the catalogue."""
    if not any(atom.rank > 0 for atom in catalogue.declared()):
        return []
    found = _declared(w, arch)
    return found if isinstance(found, list) or found.atom.rank > 0 else []


def _declared(w: Work, arch: str) -> Choice | list[Refusal]:
    """An instruction that the program declares."""
    declared = catalogue.declared()
    refusals: list[Refusal] = []
    if w.mma.meta is None and any(atom.asynchronous for atom in declared) and w.level.warps % 4 == 0:
        found = _by_descriptors(w, arch, DECLARED)
        if not isinstance(found, list):
            return found
        refusals += found
    for threads in sorted({atom.threads for atom in declared if not atom.asynchronous}, reverse=True):
        if w.level.threads % threads == 0:
            found = _in_registers(w, arch, DECLARED, threads)
            if not isinstance(found, list):
                return found
            refusals += found
    return refusals


def _wgmma(w: Work, arch: str) -> Choice | list[Refusal]:
    family = _FAMILIES["wgmma"]
    if not Target.of(arch).wgmma:
        return [Refusal(family, f"needs sm_90a, the target is {arch}", "PTX ISA, 9.7.15")]
    if w.level.warps % 4:
        return [Refusal(family, f"is executed by 4 warps, `{w.level}` has {w.level.warps}", "PTX ISA, 9.7.15")]
    return _by_descriptors(w, arch, "wgmma" if w.mma.meta is None else "wgmma.sp")


def _by_descriptors(w: Work, arch: str, kind: str) -> Choice | list[Refusal]:
    """An instruction of a warpgroup that reads B, and A where it can, through matrix descriptors."""
    family = _FAMILIES["wgmma"] if kind != DECLARED else "declared, asynchronous"
    a = w.a_stored
    placed = a is not None and a.view.base.space is Space.SHARED and holds(a.view.dtype, w.a)
    if not holds(w.b_stored.view.dtype, w.b):
        rule = f"reads B from shared memory, where it is {w.b_stored.view.dtype} and not {w.b}"
        return [Refusal(family, rule, "PTX ISA, 9.7.15.5")]
    if w.b_stored.view.base.space is not Space.SHARED:
        return [Refusal(family, "reads B from shared memory, not from global", "PTX ISA, 9.7.15.5")]
    if w.b_stale is not None:
        where = f" (line {w.b_stale.span.line})" if w.b_stale.span else ""
        rule = f"reads B from shared memory, which is written{where} between the load and the multiply"
        return [Refusal(family, rule, "PTX ISA, 9.7.15.5")]
    refusals: list[Refusal] = []
    for source in ("shared", "registers") if placed and w.a_stale is None else ("registers",):
        found, grid, refused = _first_grid(
            w,
            arch,
            w.level.warps // 4,
            kind=kind,
            a_from=source,
            a_major=a.major if a is not None and source == "shared" else None,
            b_major=w.b_stored.major,
        )
        refusals += refused
        for atom in found:
            broken = _layout_rule(w, atom)
            if broken is None:
                return Choice(atom, grid, _tiles(w, atom, grid))
            refusals.append(Refusal(atom.name, broken, atom.section))
    return list(dict.fromkeys(refusals))


def _layout_rule(w: Work, atom: MmaAtom) -> str | None:
    """The reason why no shared-memory layout serves ``atom`` here, or None."""
    m, n, _ = atom.shape
    parts = [("B", w.b_stored, n, atom.b)]
    if w.a_stored is not None and not atom.a.in_registers:
        parts.append(("A", w.a_stored, m, atom.a))
    for letter, operand, rows, read in parts:
        if operand.major is None:
            return f"{letter} is contiguous along neither axis"
        rules = [wgmma_rule(operand, atom_bytes, rows, read.memory_shape[1]) for atom_bytes in SWIZZLE_ATOMS]
        if all(r is not None for r in rules):
            return f"{letter}: {rules[-1]}"
    return None


def _mma_sync(w: Work, arch: str) -> Choice | list[Refusal]:
    return _by_warps(w, arch, "mma.sync" if w.mma.meta is None else "mma.sp")


def _fma(w: Work, arch: str) -> Choice | list[Refusal]:
    """The CUDA cores, for types that they alone multiply."""
    if w.mma.meta is not None:
        return []
    return _by_warps(w, arch, "fma")


def _by_warps(w: Work, arch: str, kind: str) -> Choice | list[Refusal]:
    return _in_registers(w, arch, kind, 32)


def _in_registers(w: Work, arch: str, kind: str, threads: int) -> Choice | list[Refusal]:
    """An instruction of ``threads`` threads that reads both operands from registers."""
    units = w.level.threads // threads
    found, grid, refusals = _first_grid(w, arch, units, kind=kind, threads=threads)
    held = [atom for atom in found if not atom.asynchronous]
    if not held:
        return refusals
    return Choice(held[0], grid, _tiles(w, held[0], grid))


def _plans(works: list[Work], chosen: dict[int, Choice], named: dict[int, Mma]) -> dict[str, FragmentPlan]:
    plans: dict[str, FragmentPlan] = {}
    for w in works:
        c, mma = chosen[id(w.mma)], named[id(w.mma)]
        tm, tn, tk = c.tiles
        name = c.atom.name
        wanted = [(mma.acc, FragmentPlan("C", w.d, (w.m, w.n), w.level, "registers", name, (tm, tn), c.grid))]
        if isinstance(mma.a, FragmentRef):
            plan = FragmentPlan(
                "A", w.a, (w.m, tk * c.atom.a.shape[1]), w.level, _residence(c.atom.a), name, (tm, tk), c.grid
            )
            wanted.append((mma.a, plan))
        if isinstance(mma.b, FragmentRef):
            plan = FragmentPlan("B", w.b, (w.n, w.k), w.level, _residence(c.atom.b), name, (tn, tk), c.grid)
            wanted.append((mma.b, plan))
        if mma.meta is not None:
            assert c.atom.e is not None
            shape = (w.m, tk * c.atom.e.shape[1])
            plan = FragmentPlan("E", c.atom.e.dtype, shape, w.level, "registers", name, (tm, tk), c.grid)
            wanted.append((mma.meta, plan))
        for ref, plan in wanted:
            known = plans.setdefault(ref.name, plan)
            if known != plan and not _interchangeable(known, plan):
                raise FragmentLayouts(
                    w.mma.span,
                    name=ref.name,
                    first=f"{known.atom} {known.repeat}",
                    second=f"{plan.atom} {plan.repeat}",
                    notes=[Note("a fragment has one layout for its whole life")],
                )
    return plans


def _residence(x: AtomOperand) -> Literal["registers", "shared"]:
    return "registers" if x.in_registers else "shared"


def _interchangeable(x: FragmentPlan, y: FragmentPlan) -> bool:
    """Whether two plans with different atoms have the same register layout."""
    if x.residence != y.residence or replace(x, atom="", repeat=(0, 0)) != replace(y, atom="", repeat=(0, 0)):
        return False
    if x.residence == "shared":
        return True
    p, q = catalogue[x.atom], catalogue[y.atom]
    assert isinstance(p, MmaAtom) and isinstance(q, MmaAtom)
    return x.repeat == y.repeat and p.operands[x.role].layout == q.operands[y.role].layout


def _named_operands(works: list[Work], chosen: dict[int, Choice]) -> dict[int, Mma]:
    """The multiplies, with a fragment in place of each memory view that the instruction reads from registers."""
    named: dict[int, Mma] = {}
    for w in works:
        atom, changes = chosen[id(w.mma)].atom, {}
        for which, operand, x in (("a", atom.a, w.mma.a), ("b", atom.b, w.mma.b)):
            if isinstance(x, View) and operand.in_registers:
                changes[which] = FragmentRef(f"{x.base.name}.{which}{len(named)}")
        named[id(w.mma)] = with_fields(w.mma, changes)
    return named


def _decided(
    kernel: Kernel, chosen: dict[int, Choice], named: dict[int, Mma], plans: dict[str, FragmentPlan], arch: str
) -> Kernel:
    orders = k_orders(kernel, {n: (c.atom, c.tiles[2], named[n]) for n, c in chosen.items()}, plans, arch)
    operands = ((x, m.contract, i) for m in named.values() for i, x in enumerate((m.a, m.b)))
    transposed = {
        x.name: (c.a_transposed, c.b_transposed)[i] for x, c, i in operands if isinstance(x, FragmentRef)
    }

    def load(op: Load) -> Load:
        name = op.fragment.name
        return replace(op, plan=load_plan(op, plans[name], transposed.get(name, False), arch, orders.get(name)))

    def decide(op: Op) -> Op | tuple[Op, ...]:
        match op:
            case Mma() if id(op) in chosen:
                c, m = chosen[id(op)], named[id(op)]
                before: list[Op] = []
                for view, ref in ((op.a, m.a), (op.b, m.b)):
                    if isinstance(view, View) and isinstance(ref, FragmentRef):
                        plan = plans[ref.name]
                        before.append(DeclareFragment(ref.name, (), plan.dtype, plan.shape, plan, span=op.span))
                        before.append(load(Load(ref, view, span=op.span)))
                return (*before, replace(m, atom=c.atom.name, tiles=c.tiles))
            case DeclareFragment(name=name) if name in plans:
                return replace(op, plan=plans[name])
            case Load(fragment=f) if f.name in plans:
                return load(op)
        return op

    return replace(kernel, body=rewrite(kernel.body, decide))
