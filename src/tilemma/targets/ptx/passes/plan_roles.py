"""The analysis of a block for warp specialisation: the copies that TMA can issue ahead, and the model's choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilemma.ir import tile as t
from tilemma.ir.effects import declared, name_of, read_views, written_views
from tilemma.ir.expr import Binary, Index, cdiv, const, sub, substitute, value_of
from tilemma.ir.expr import walk as terms
from tilemma.ir.pipeline import PipelineSettings, effective
from tilemma.ir.ranges import interval
from tilemma.ir.types import WARPGROUP, Buffer, Space, View
from tilemma.ir.walk import bodies, expressions, touched, walk
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.decision import Decision
from tilemma.passes.pipeline_legality import LoopCopies, by_hand, leaves, loop_copies
from tilemma.passes.scope import Dependence, control, count, names, sites
from tilemma.passes.split_tiles import of_program, split_tiles
from tilemma.records import record
from tilemma.targets.ptx.passes import pipeline_model
from tilemma.targets.ptx.passes.promote_copies import coefficient, promoted
from tilemma.targets.ptx.passes.shared_views import PADDING
from tilemma.targets.ptx.passes.stage_results import staged_results
from tilemma.targets.ptx.passes.staging_pieces import PIECE_BYTES, pieces_of
from tilemma.targets.ptx.passes.warp_program import FreshNames, NotPipelined, flattened, refuse, warpgroups
from tilemma.targets.ptx.target import Target

# Obstacles of kernels whose program pipelines them itself.
BY_HAND = ("hand-written", "role")


@record(slots=False, eq=False)
class Ring:
    """Copies that follow each other in ``body``, as one ring of stages holds their tiles.

    ``loop``: the innermost loop around them.  ``around``: the operations from the block to ``body``, the loop
    included.  ``released``: the position in ``body`` after which no operation uses the tiles.
    """

    loop: t.For | t.While
    copies: tuple[t.Copy, ...]
    settings: PipelineSettings
    around: tuple[t.Op, ...]
    body: t.Body
    released: int

    @property
    def buffers(self) -> tuple[str, ...]:
        return tuple(c.dst.base.name for c in self.copies)

    @property
    def extent(self) -> t.Body:
        """The operations from the first of the copies to the last use of their tiles."""
        first = next(i for i, op in enumerate(self.body) if op is self.copies[0])
        return self.body[first : self.released + 1]


class BlockPlan:
    """A block as the program of one of its ``groups`` warpgroups, number ``wg`` = 1, 2, ..; its rings of stages,
    and the `Choice` of the model; ``stages`` of each ring, by its first buffer; ``complete``: whether the rings
    have all copies of loops.  The constructor raises NotPipelined."""

    stages: dict[str, int]
    complete: bool

    def __init__(self, kernel: t.Kernel, block: t.Parallel, arch: str, log: list[Decision]) -> None:
        self.kernel, self.block, self.arch, self.log = kernel, block, arch, log
        self.facts = {p.buffer.name: p.facts or t.ArrayFacts(None, 1) for p in kernel.arrays}
        taken = {name_of(x) for op in walk(kernel.body) for x in declared(op)}
        taken |= {
            x.name for op in walk(kernel.body) for e in expressions(op) for x in terms(e) if hasattr(x, "name")
        }
        taken |= {p.buffer.name for p in kernel.arrays} | {p.scalar.name for p in kernel.scalars}
        self.fresh = FreshNames(taken)
        for obstacle in by_hand(block.body):
            raise NotPipelined(obstacle)
        self.groups = warpgroups(block)
        self.wg = Index(self.fresh("wg"), const(self.groups + 1))
        member = sub(self.wg, 1) if self.groups > 1 else const(0)
        program = flattened(block.body, member, self.groups, self.fresh)
        split, self.origin = split_tiles(replace(kernel, body=(replace(block, body=program),)))
        (whole,) = split.body
        assert isinstance(whole, t.Parallel)
        staged, stores = staged_results(whole.body, member, self.groups, self.facts, self.fresh)
        if not stores or not self._staged(staged, stores, whole.body):
            self._analyse(whole.body, log)

    def _analyse(self, program: t.Body, log: list[Decision]) -> None:
        """Rings and choice for ``program``.  Raises NotPipelined."""
        self.program, self.log = program, log
        self.dependence = Dependence(program)
        self.rings = self._rings()
        self.shared = self._shared()
        self.row, self.choice = self._choose()

    def _staged(self, program: t.Body, stores: tuple[t.Store, ...], unstaged: t.Body) -> bool:
        """Whether ``program``, which stages the results of ``stores``, leaves room for enough stages, or for as
        many as ``unstaged``; then the plan is for it."""
        log, said = self.log, list[Decision]()
        try:
            self._analyse(program, said)
            stages = self.choice.stages
            if stages < pipeline_model.ENOUGH_STAGES:
                self._analyse(unstaged, [])
                if self.choice.stages > stages:
                    return False
                said.clear()
                self._analyse(program, said)
        except NotPipelined:
            return False
        if stages < max(ring.settings.stages or 0 for ring in self.rings):
            return False
        for store in stores:
            text = "staged through shared memory, from where TMA writes whole rows"
            said.append(Decision("pipeline", store.dst.base.name, text, span=store.span))
        log += said
        self.log = log
        return True

    def _rings(self) -> list[Ring]:
        """The runs of adjacent copies that TMA can prefetch.  Raises NotPipelined if there are none."""
        flat = replace(self.kernel, body=(replace(self.block, body=self.program),))
        found: list[Ring] = []
        refused: list[tuple[t.Op, NotPipelined]] = []
        for loop in loop_copies(flat, role=True):
            own = loop.loop.pipeline if isinstance(loop.loop, t.For) else None
            settings = effective(own, self.kernel.pipeline)
            if settings is None or settings.off or settings.producer is False or settings.stages == 1:
                refused.append((loop.loop, refuse("off", *_unwanted(settings), loop.loop.span)))
                continue
            refused += [(loop.loop, NotPipelined(o)) for o in loop.obstacles]
            try:
                self._check(loop)
            except NotPipelined as e:
                refused.append((loop.loop, e))
                continue
            for run, body, between in _runs(loop):
                around = (*loop.parents[1:], loop.loop, *between)
                ring = Ring(loop.loop, run, settings, around, body, _released(body, run))
                try:
                    self._check_ring(ring)
                except NotPipelined as e:
                    refused.append((loop.loop, e))
                else:
                    found.append(ring)
        for where, problem in refused:
            if not found or problem.obstacle.rule in BY_HAND:
                raise problem
            some = any(ring.loop is where for ring in found)
            left = "one copy stays where it is" if some else "a loop stays as written"
            self.log.append(of_program(problem.decision(self.kernel, left), self.origin))
        self.complete = not refused
        if not found:
            change = "copy them with `dma.copy` in a loop"
            raise refuse("no-copies", "no loop copies tiles into shared memory", change)
        return found

    def _check(self, loop: LoopCopies) -> None:
        for copy in loop.ahead:
            problem = promoted(copy, self.facts)
            if isinstance(problem, str):
                name = copy.src.base.name
                uneven = self.facts[name].ragged or self.facts[name].alignment < 16
                change = f"pass `{name}` with rows of a multiple of 16 bytes"
                raise refuse(
                    "tma",
                    f"TMA cannot copy `{name}`: {problem}",
                    change if uneven else "see the rules of `tma.copy`",
                    copy.span,
                )
            if self.differs(copy, self.wg):
                raise refuse(
                    "copy-by-instances",
                    f"each warpgroup copies another tile into `{copy.dst.base.name}`",
                    "copy the tiles of all warpgroups at once",
                    copy.span,
                )

    def _check_ring(self, ring: Ring) -> None:
        for around in ring.around:
            if isinstance(around, t.Parallel):
                raise refuse(
                    "level", "each warp of a warpgroup executes the loop", "multiply at `group-4`", around.span
                )
            if self.wg.name in self.dependence.closure(control(around)):
                raise refuse(
                    "control-by-instances",
                    "the warpgroups execute the loop differently",
                    "let all warpgroups execute the same iterations",
                    around.span,
                )
        if (exit_ := leaves(ring.extent)) is not None:
            raise refuse(
                "early-exit",
                f"a `break` or `continue` may leave out a part of the work on `{ring.buffers[0]}`",
                "put it before the copies, or after the last use of their tiles",
                exit_.span,
            )

    def _shared(self) -> dict[str, str]:
        """For buffers that stand for one of the program: the buffer of an earlier ring that can hold their tiles.

        The rings of both copy the same buffers of the program, one after the other: they fill and release the
        stages of one ring in turn.
        """
        found: dict[str, str] = {}
        first: dict[tuple[object, ...], list[Ring]] = {}
        for ring in self.rings:
            key = (*(self.origin.get(name, name) for name in ring.buffers), ring.settings.stages)
            rings = first.setdefault(key, [])
            if not any(_overlap(ring, other) for other in rings):
                found |= zip(ring.buffers, rings[0].buffers, strict=True) if rings else ()
                rings.append(ring)
        return found

    def _choose(self) -> tuple[int, pipeline_model.Choice]:
        """The index of the grid that counts the rows of a band of tiles, and what suits the block."""
        rings = self.rings
        settings = self.kernel.pipeline or PipelineSettings()
        asked = bool(settings.persistent or settings.blocks)
        persistent = settings.persistent is not False and self._may_persist(asked)
        pairs = persistent and settings.blocks != 1
        size = settings.cluster or (2 if pairs else 1)
        row, cluster = self._cluster(size, settings.cluster is not None)
        own = (c for ring in rings for c in ring.copies if c.dst.base.name not in self.shared)
        stage = sum(size_of(c.dst.base) for c in own)
        copied = {c.dst.base.name for ring in rings for c in ring.copies}
        others = [op for op in walk(self.program) if isinstance(op, t.Alloc) and op.buffer.space is Space.SHARED]
        others = [op for op in others if op.buffer.name not in copied]
        other, stages = 0, 0
        for pieces in pipeline_model.STAGING_PIECES:
            other = sum(self._usual_bytes(op, pieces) for op in others)
            stages = pipeline_model.most_stages(self.arch, stage, other)
            if stages >= pipeline_model.ENOUGH_STAGES:
                break
        if stages < 2:
            raise refuse(
                "shared-memory",
                f"one stage takes {stage} bytes of shared memory and the other buffers {other}",
                "use smaller tiles",
                self.block.span,
            )
        result = result_elements(self.block)
        if not pipeline_model.registers_suffice(self.arch, self.groups, result):
            raise refuse(
                "registers",
                f"{self.groups} warpgroups with a producer have too few registers for {result} sums",
                "use smaller tiles, or fewer warpgroups",
                self.block.span,
            )
        self._set_stages(stages, sum(map(self._least_bytes, others)))
        blocks = self._persistent_blocks(settings) if persistent else 0
        if settings.blocks and settings.persistent is False:
            text = f"not as asked: `blocks={settings.blocks}` counts persistent blocks, and `persistent` is false"
            self.log.append(Decision("pipeline", self.kernel.name, text, warning=True, span=self.block.span))
        free = all(ring.settings.order == "any" for ring in rings)
        reverse = bool(blocks) and free and len({id(ring.loop) for ring in rings}) == 1
        reverse = reverse and _is_sum(rings[0].loop, self.copies)
        return row, pipeline_model.Choice(stages, cluster, blocks, reverse)

    def _set_stages(self, usual: int, other: int) -> None:
        """Fill in ``stages``: the number that the program gives, or ``usual``, also where more do not fit beside
        ``other`` bytes."""
        own = [ring for ring in self.rings if not any(name in self.shared for name in ring.buffers)]
        size = {ring: sum(size_of(c.dst.base) for c in ring.copies) for ring in own}
        total = sum((ring.settings.stages or usual) * size[ring] for ring in own)
        fit = pipeline_model.fits(self.arch, total + other)
        self.stages = {}
        for ring in own:
            given = ring.settings.stages or usual
            self.stages[ring.buffers[0]] = given if fit else min(given, usual)
            if given > usual and not fit:
                limit = Target.of(self.arch).shared_limit
                have = f"{given} stages of {size[ring]} bytes and {other} bytes of other buffers"
                text = f"{usual} stages: {have} do not fit in the {limit} bytes of {self.arch}"
                fix = "make the tiles smaller along the loop"
                data = {"stages": usual, "asked": given}
                span = ring.loop.span
                said = Decision("pipeline", ring.buffers[0], f"{text}; {fix}", data, warning=True, span=span)
                self.log.append(of_program(said, self.origin))

    def _persistent_blocks(self, settings: PipelineSettings) -> int:
        """How many persistent blocks there are at most; 0 where each tile has a block."""
        blocks = settings.blocks or pipeline_model.MULTIPROCESSORS
        tiles = prod(value_of(i.extent) or blocks + 1 for i in self.block.indices)
        if tiles > blocks:
            return blocks
        text = f"not persistent: the grid has {tiles} tile{'s' * (tiles > 1)}, one for each block"
        self.log.append(Decision("pipeline", self.kernel.name, text, span=self.block.span))
        return 0

    def _usual_bytes(self, alloc: t.Alloc, most: int) -> int:
        """The bytes of a buffer, or of ``most`` wide pieces of it and the columns beside them: a result that
        is stored in whole rows can be staged.

        Rows to which accumulators of 32 bits are stored may be padded (`assign_layouts`).
        """
        buffer = alloc.buffer
        whole, shape = size_of(buffer), [value_of(e) or 0 for e in buffer.shape]
        staged = self._staging(buffer)
        if staged is None:
            padded = buffer.dtype.bits > 16 and any(isinstance(op, t.Store) for op in self._uses(buffer))
            return whole + prod(shape[:-1]) * PADDING * padded
        store, copy = staged
        by_rows = value_of(store.dst.axes[-1].extent) == shape[1] and store.dst.static_shape is not None
        row = shape[1] * buffer.dtype.bits // 8
        if copy.swizzle == 0 or not by_rows or row <= PIECE_BYTES or isinstance(promoted(copy, self.facts), str):
            return whole
        for pieces in pieces_of(alloc, False):
            # Of whole pieces one less than all: what is staged is smaller than the buffer.
            return pieces.total(max(1, min(most, pieces.equal - (pieces.rest == 0))))
        return whole

    def _least_bytes(self, alloc: t.Alloc) -> int:
        """The least bytes into which `StageThroughShared` may cut a buffer: one of the narrowest pieces."""
        buffer = alloc.buffer
        uses, whole = self._uses(buffer), size_of(buffer)
        stores = [op for op in uses if isinstance(op, t.Store)]
        copies = [op for op in uses if isinstance(op, t.Copy) and op.swizzle != 0]
        if not stores or len(stores) + len(copies) < len(uses) or len(buffer.shape) != 2:
            return whole
        return min((pieces.total(1) for pieces in pieces_of(alloc, stores[0].transpose)), default=whole)

    def _staging(self, buffer: Buffer) -> tuple[t.Store, t.Copy] | None:
        """The store of a result into ``buffer``, and the copy of it to the array, if these are all its uses."""
        match self._uses(buffer):
            case [t.Store() as store, t.Copy() as copy] if len(buffer.shape) == 2:
                return store, copy
        return None

    def _uses(self, buffer: Buffer) -> list[t.Op]:
        return [op for op in walk(self.program) if any(v.base.name == buffer.name for v in touched(op))]

    def _may_persist(self, asked: bool) -> bool:
        block, why = self.block, ""
        copied = {name for ring in self.rings for name in ring.buffers}
        if len(self.kernel.body) and block.cooperative:
            why = "its blocks wait for each other"
        elif any(
            isinstance(op, t.Alloc) and op.init and op.buffer.name not in copied for op in walk(self.program)
        ):
            why = "a buffer is initialised once in each block"
        if why:
            text = f"not persistent: {why}"
            self.log.append(Decision("pipeline", self.kernel.name, text, warning=asked, span=block.span))
        return not why

    def _cluster(self, size: int, asked: bool) -> tuple[int, int]:
        """(the index of the grid in which the blocks of a cluster differ, their number): ``size`` or 1."""
        shared = [
            sum(size_of(c.dst.base) for c in self.copies if not self.differs(c, i)) for i in self.block.indices
        ]
        loops = {id(ring.loop): ring.around for ring in self.rings}.values()
        for d, i in enumerate(self.block.indices):
            # Blocks that share tiles need them equally often.
            needed = any(i.name in self.dependence.closure(control(op)) for around in loops for op in around)
            if needed or (value_of(i.extent) or size) < size:
                shared[d] = 0
        # Where two share the same, one of the last two indices: the others number independent matrices.
        order = sorted(range(len(shared)), key=lambda d: (d < len(shared) - 2, d))
        able = [d for d in order if shared[d] and self._may_exceed(d, size) and self._divides(d, size)]
        row = max(able or order, key=lambda d: shared[d])
        if size > 1 and not able:
            if asked:
                text = "no cluster: its blocks share no tile in equal parts, or would write beyond the grid"
                self.log.append(Decision("pipeline", self.kernel.name, text, warning=True, span=self.block.span))
            size = 1
        if size > 1 and not asked and self._may_be_alone(row):
            text = (
                f"clusters of 1: there may be one tile along `{self.block.indices[row].source_name}` only, "
                "and other indices share the same tiles; state `cluster` where there are more"
            )
            self.log.append(Decision("pipeline", self.kernel.name, text, span=self.block.span))
            size = 1
        if size == 1 and len(self.block.indices) > 1:
            row = len(self.block.indices) - 2
        return row, size

    def _may_be_alone(self, row: int) -> bool:
        """Whether index ``row``, in which the blocks of a cluster differ, may have a single tile.

        It may where more than one further index (one: a batch) leaves the shared tiles the same, so that several
        indices count the rows of the product.  A block of each cluster would then be idle.
        """
        index = self.block.indices[row]
        shared = [c for c in self.copies if not self.differs(c, index)]
        others = (i for i in self.block.indices if i is not index and value_of(i.extent) != 1)
        batches = [i for i in others if any(not self.differs(c, i) for c in shared)]
        # The extent of an index of several dimensions is their product.
        counted = sum(2 if isinstance(i.extent, Binary) and i.extent.op == "mul" else 1 for i in batches)
        return value_of(index.extent) is None and counted > 1

    def _divides(self, row: int, size: int) -> bool:
        """Whether ``size`` blocks can each load an equal part of every tile that they share."""
        shared = (c for c in self.copies if not self.differs(c, self.block.indices[row]))
        return not any(isinstance(promoted(c, self.facts, size), str) for c in shared)

    @property
    def copies(self) -> list[t.Copy]:
        return [c for ring in self.rings for c in ring.copies]

    def differs(self, copy: t.Copy, index: Index) -> bool:
        """Whether the source of ``copy`` depends on ``index``."""
        return any(index.name in self.dependence.of(e) for e in copy.src.expressions())

    def _may_exceed(self, row: int, size: int) -> bool:
        """Whether a block beyond the grid in index ``row`` writes nothing, and reads nothing that others write:
        both are outside the array."""
        i = self.block.indices[row]
        extent = value_of(i.extent)
        if extent is not None and extent % size == 0:
            return True
        ops = list(walk(self.program))
        written = {v.base.name for op in ops for v in written_views(op) if v.base.space is Space.GLOBAL}
        for op in ops:
            writes = [v for v in written_views(op) if v.base.space is Space.GLOBAL]
            if writes and not isinstance(op, (t.Copy, t.Store)):
                return False
            reads = [v for v in read_views(op) if v.base.name in written]
            if not all(any(self._beyond(v, d, i) for d in range(len(v.offsets))) for v in (*writes, *reads)):
                return False
        return True

    def _beyond(self, view: View, dim: int, index: Index) -> bool:
        """Whether ``view`` is outside its array along ``dim`` for every ``index`` not below its extent."""
        factor = coefficient(view.offsets[dim], index.name)
        if not factor or factor < 0 or view.reshape is not None:
            return False
        if cdiv(view.base.shape[dim], factor) != index.extent:
            return False
        rest = [
            substitute(view.offsets[dim], {index.name: const(0), self.wg.name: const(w + 1)})
            for w in range(self.groups)
        ]
        return all(interval(e)[0] >= 0 for e in rest)


def _unwanted(settings: PipelineSettings | None) -> tuple[str, str]:
    """The reason why a loop with ``settings`` has no producer, and the remedy."""
    if settings is None:
        return "the program pipelines other loops", "state `pipeline` for this loop too"
    if settings.off:
        return "the program switches it off", "remove the setting"
    what = "no producer" if settings.producer is False else "one stage"
    return f"the program asks for {what}", "remove the setting"


def _is_sum(loop: t.For | t.While, ahead: list[t.Copy]) -> bool:
    """Whether the iterations of ``loop`` only add products of the tiles that ``ahead`` copies, in any order."""
    plain = (t.DeclareFragment, t.Load, t.Mma, t.For, t.Copy, t.Alloc)
    inner = list(walk(loop.body))
    indices = {loop.index.name} if isinstance(loop, t.For) else set()
    others = (op for op in inner if not any(op is c for c in ahead))
    used = any(indices & names(e) for op in others for e in expressions(op))
    if not isinstance(loop, t.For):
        return False
    counts = value_of(loop.start) == 0 and value_of(loop.step) == 1
    floats = all(op.scale_a is None and op.scale_b is None for op in inner if isinstance(op, t.Mma))
    return counts and floats and not used and all(isinstance(op, plain) for op in inner)


def _runs(loop: LoopCopies) -> Iterator[tuple[tuple[t.Copy, ...], t.Body, tuple[t.Op, ...]]]:
    """The copies that may be issued ahead, those in a row together, the body that contains them, and the branches
    around it."""
    seen: set[int] = set()
    for copy, between in zip(loop.ahead, loop.between, strict=True):
        around = between[-1] if between else loop.loop
        body = next(b for _, b in bodies(around) if any(op is copy for op in b))
        if id(body) not in seen:
            seen.add(id(body))
            yield from ((run, body, between) for run in _in_a_row(body, loop.ahead))


def _in_a_row(body: t.Body, ahead: tuple[t.Copy, ...]) -> Iterator[tuple[t.Copy, ...]]:
    run: list[t.Copy] = []
    for op in body:
        if isinstance(op, t.Copy) and any(op is c for c in ahead):
            run.append(op)
        elif run and not isinstance(op, (t.Alloc, t.DeclareFragment)):
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)


def _released(body: t.Body, copies: tuple[t.Copy, ...]) -> int:
    """The position of the last operation that uses the tiles of ``copies``, or of a later one of the program that
    waits for all multiplies anyway: a release there waits for no multiply that is issued later."""
    buffers, last = {c.dst.base.name for c in copies}, 0
    fragments = {op.fragment.name for op in walk(body) if isinstance(op, t.Load) and op.src.base.name in buffers}
    for at, op in enumerate(body):
        inside = list(walk((op,)))
        uses = any(v.base.name in buffers for x in inside for v in touched(x) if not isinstance(x, t.Alloc))
        uses = uses or any(ref.name in fragments for x in inside for _, ref in fragment_uses(x))
        if uses:
            last = at
    for at in range(last + 1, len(body)):
        op = body[at]
        if leaves((op,)) is not None:
            break
        if isinstance(op, t.MmaWait) and op.pending == 0:
            return at
    return last


def _overlap(a: Ring, b: Ring) -> bool:
    """Whether the tiles of one are copied before the last use of those of the other."""
    return any(op is other.copies[0] for ring, other in ((a, b), (b, a)) for op in walk(ring.extent))


def size_of(b: Buffer) -> int:
    """The bytes of one copy of ``b``."""
    return prod(value_of(e) or 0 for e in b.shape) * b.dtype.bits // 8


def result_elements(block: t.Parallel) -> int:
    """The elements of the accumulators of all warpgroups of ``block``; 0 where warps multiply."""
    shapes = {op.name: op.shape for op in walk(block.body) if isinstance(op, t.DeclareFragment) and op.shape}
    total: dict[str, int] = {}
    for site in sites(block.body):
        if not isinstance(site.op, t.Mma):
            continue
        group = site.group
        if group is None or group.level != WARPGROUP:
            return 0
        total[site.op.acc.name] = prod(shapes.get(site.op.acc.name, (0,))) * (count(group) or 0)
    return max(total.values(), default=0)
