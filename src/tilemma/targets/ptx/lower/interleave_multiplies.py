"""Interleaving of mma.sync with the loads and copies of a main loop, in the order of the text.

The steps of a loop over K come as runs of multiplies, each behind the loads of the next step's operands and
the copies of a later tile.  ptxas at -O3 finds an order in which the multiplies hide the latencies; it spends
more than half of its time on that.  With fast compilation it mostly keeps the order of the text, which is then::

    load, load, .., copy, copy, ..              load; multiply x 2; load; multiply x 2; ..
    multiply x 32                        =>     copy; multiply x 2; ..; wait; barrier; multiply x 10
    wait; barrier; load, load, ..               multiply x 14; load; multiply x 2; ..
    multiply x 32

No dependence changes: an operation stays behind those that write its registers, and behind those that read the
registers that it writes.  Memory operations, waits and barriers keep their order, and so do the multiplies.
Address arithmetic sinks to its first use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from tilemma.atoms import MmaAtom, catalogue
from tilemma.dtypes import f32
from tilemma.ir import tile
from tilemma.ir.expr import value_of
from tilemma.ir.lane import (
    AtomInstr,
    Comment,
    CopyInstr,
    Imm,
    Instr,
    LaneBody,
    LaneFor,
    LaneIf,
    LaneKernel,
    LaneOp,
    Reg,
    registers,
)
from tilemma.ir.walk import bodies, walk
from tilemma.records import record
from tilemma.targets.ptx.passes.double_buffer_fragments import OTHER_REGISTERS
from tilemma.targets.ptx.target import Target

# The option of ptxas that keeps the order.
FAST = "-Ofc=min"
# The fewest multiplies of a step and threads of a block for which the order is as fast as that of -O3.  Of shorter
# steps, and of less than two warps for each scheduler of a multiprocessor, fewer latencies are hidden.
STEP, THREADS = 32, 256
# Elements of the accumulator of most instructions.
_ATOM = 16 * 8
# K of an instruction, and bits of its operands.
_DEPTH, _BITS = 16, 16
# Arithmetic on registers.
_PURE = frozenset(
    ("add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor", "not", "selp", "setp", "cvt", "mov")
)


def with_multiplies_interleaved(kernel: LaneKernel) -> LaneKernel:
    """``kernel`` with the operations of its main loops interleaved, for `FAST` compilation if it has any."""
    if kernel.threads < THREADS:
        return kernel
    body = _interleaved(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body, option=FAST)


def _interleaved(body: LaneBody) -> LaneBody:
    out = tuple(map(_with_loops_ordered, body))
    return body if all(x is y for x, y in zip(out, body, strict=True)) else out


def _with_loops_ordered(op: LaneOp) -> LaneOp:
    if isinstance(op, LaneIf):
        then, otherwise = _interleaved(op.then), _interleaved(op.otherwise)
        same = then is op.then and otherwise is op.otherwise
        return op if same else replace(op, then=then, otherwise=otherwise)
    if not isinstance(op, LaneFor):
        return op
    body = _ordered(op.body) if _is_main_loop(op.body) else _interleaved(op.body)
    return op if body is op.body else replace(op, body=body)


def expected_option(kernel: tile.Kernel, arch: str) -> str:
    """The option of ptxas for the code of ``kernel``, as far as it can be told before the passes for ``arch``."""
    if not all(p.facts is None or p.facts.has_whole_rows for p in kernel.arrays):
        return ""  # the loop has a branch for vectors that an edge cuts
    warpgroups = 4 if Target.of(arch).wgmma else sys.maxsize
    shapes = {x.name: x.shape for x in walk(kernel.body) if isinstance(x, tile.DeclareFragment)}

    def loads_ahead(rows: int, columns: int) -> bool:
        """Whether registers of a warp hold the sums of a tile and two sets of its operands."""
        words = rows * columns + 2 * (rows + columns) * _DEPTH * _BITS // 32
        return words // 32 + OTHER_REGISTERS <= Target.of(arch).registers_per_thread

    def is_long(op: tile.Op, warps: int, threads: int, inside: bool) -> bool:
        if isinstance(op, tile.Mma):
            rows, columns = shapes.get(op.acc.name) or (0, 0)
            long = rows * columns // warps >= STEP * _ATOM and threads >= THREADS
            return inside and long and warps < warpgroups and loads_ahead(rows // warps, columns)
        if isinstance(op, tile.Parallel) and op.level is not None and op.level.kind == "block":
            joins = not op.apart and not any(isinstance(x, tile.Copy) and x.asynchronous for x in walk(op.body))
            threads = 2 if joins else 1  # neighbouring blocks may be joined
        elif isinstance(op, tile.Parallel) and op.level is not None and op.level.kind == "group":
            warps = op.level.warps
            threads *= op.level.threads * prod(value_of(i.extent) or 1 for i in op.indices)
        inside = inside or (isinstance(op, tile.For) and any(isinstance(x, tile.Copy) for x in op.body))
        return any(is_long(x, warps, threads, inside) for _, body in bodies(op) for x in body)

    return FAST if any(is_long(x, 1, 1, False) for x in kernel.body) else ""


# ---- which loops -----------------------------------------------------------------------------------------


@record
class _Step:
    """A run of multiplies, the operations before it, and how many multiplies come ``first``, in earlier steps."""

    before: tuple[LaneOp, ...]
    multiplies: tuple[AtomInstr, ...]
    first: int


def _steps(body: LaneBody) -> list[_Step]:
    """The steps of ``body``; the last one may have no multiplies."""
    found: list[_Step] = []
    before: list[LaneOp] = []
    run: list[AtomInstr] = []
    first = 0
    for op in body:
        if isinstance(op, AtomInstr):
            run.append(op)
            continue
        if run:
            found.append(_Step(tuple(before), tuple(run), first))
            first += len(run)
            before, run = [], []
        before.append(op)
    return [*found, _Step(tuple(before), tuple(run), first)]


def _is_main_loop(body: LaneBody) -> bool:
    """Whether ``body`` is straight-line code of long steps, each of which loads operands of the next one, with
    copies and barriers, and nothing else: such loops were measured."""
    if not all(_is_expected(x) for x in body):
        return False
    steps = [s for s in _steps(body) if s.multiplies]
    if len(steps) < 2 or any(len(s.multiplies) < STEP or _waits_for_loads(s) for s in steps):
        return False
    return any(map(_is_copy, body)) and any(map(_is_barrier, body)) and _was_measured(steps[0].multiplies[0])


def _is_expected(op: LaneOp) -> bool:
    if isinstance(op, Instr):
        return is_pure(op) or op.mnemonic.startswith(("bar.", "cp.async."))
    return isinstance(op, (AtomInstr, CopyInstr, Comment))


def _waits_for_loads(step: _Step) -> bool:
    loaded = {r for x in step.before if isinstance(x, CopyInstr) for r in x.registers}
    return any(not loaded.isdisjoint(registers_read(m)) for m in step.multiplies)


def _was_measured(multiply: AtomInstr) -> bool:
    """Whether ``multiply`` is an mma.sync of f16 or bf16 with f32 sums."""
    atom = catalogue[multiply.atom]
    assert isinstance(atom, MmaAtom)
    return atom.kind == "mma.sync" and atom.a.dtype.bits == 16 and atom.d.dtype is f32


def _is_barrier(op: LaneOp) -> bool:
    return isinstance(op, Instr) and op.mnemonic.startswith(("bar.", "barrier.", "cp.async.wait"))


def _is_copy(op: LaneOp) -> bool:
    return isinstance(op, CopyInstr) and op.source is not None


def _is_load(op: LaneOp) -> bool:
    return isinstance(op, CopyInstr) and op.source is None


def is_pure(op: LaneOp) -> bool:
    """Whether ``op`` is arithmetic on registers."""
    if not isinstance(op, Instr) or op.mnemonic.partition(".")[0] not in _PURE:
        return False
    return all(isinstance(x, (Reg, Imm)) for x in (*op.dst, *op.src))


def _is_kept(op: LaneOp) -> bool:
    """Whether ``op`` keeps its place among the others, multiplies and arithmetic apart."""
    return not isinstance(op, (AtomInstr, Comment)) and not is_pure(op)


# ---- their order -----------------------------------------------------------------------------------------


@record
class Paces:
    """The places of loads and copies of a loop, in multiplies.

    ``start``: multiplies of a step before its first load.  ``loads`` and ``copies``: behind each load of the first
    half (one operand) and of the second one, behind each copy.  ``barrier``: multiplies between the barrier and
    the step that it precedes in the program; copies follow it at once.  ``last_start`` and ``last_loads``: those
    of that step.  Starts are for steps of `STEP` multiplies.
    """

    start: float
    loads: tuple[float, float]
    copies: float
    barrier: int
    last_start: float
    last_loads: tuple[float, float]


# Of loops that copy before their barrier, into a buffer that the present iteration does not read, and of loops
# that copy behind it.  `bench/fit_paces.py` finds such paces, and times them beside ptxas -O3.
BEFORE = Paces(1.0, (2.0, 2.0), 2.0, 10, 14.0, (2.0, 2.0))
BEHIND = Paces(6.0, (2.5, 2.0), 1.25, 18, 18.0, (1.25, 1.5))


def _ordered(body: LaneBody) -> LaneBody:
    """``body`` with its loads and copies between its multiplies."""
    steps = _steps(body)
    behind = any(_is_copy(x) for s in steps for x in s.before[_lead(s.before) :] if _lead(s.before))
    total = steps[-1].first + len(steps[-1].multiplies)
    places = [int(x + 1e-9) for s in steps for x in _places(s, BEHIND if behind else BEFORE, total)]
    order = _Order(body)
    limit = total
    for i in reversed(range(len(places))):
        limit = places[i] if _is_barrier(body[order.kept[i]]) else limit
        places[i] = min(places[i], limit)
    done = 0
    for kept, place in zip(order.kept, places, strict=True):
        for i in (*order.multiplies[done:place], kept):
            order.emit(i)
        done = max(done, place)
    for i in (*order.multiplies[done:], *range(len(body))):
        order.emit(i)
    return tuple(order.out)


def _lead(ops: Sequence[LaneOp]) -> int:
    """The number of ``ops`` up to the last barrier."""
    return max((i for i, x in enumerate(ops, 1) if _is_barrier(x)), default=0)


def _places(step: _Step, paces: Paces, total: int) -> Iterator[float]:
    """The number of multiplies, of ``total``, before each operation of ``step`` that `_is_kept`."""
    ops, count = list(filter(_is_kept, step.before)), len(step.multiplies)
    lead = _lead(ops)
    yield from [float(max(0, step.first - paces.barrier))] * lead
    rest = ops[lead:]
    loads, copies = sum(map(_is_load, rest)), sum(map(_is_copy, rest))
    first, second = paces.last_loads if lead else paces.loads
    start = step.first + (paces.last_start if lead else paces.start) * count / STEP
    behind = [first] * (loads - loads // 2) + [second] * (loads // 2)
    place = start
    if lead:
        # The last load is followed by no other operation of its iteration.
        place, wanted = max(0.0, step.first - paces.barrier), sum(behind[:-1])
        factor = min(1.0, (total - 1 - max(start, place + copies * paces.copies)) / max(wanted, 1.0))
    else:
        factor = min(1.0, (step.first + count - start) / max(sum(behind) + copies * paces.copies, 1.0))
    for op in rest:
        if _is_load(op):
            place = max(place, start)
            yield place
            place += factor * behind.pop(0)
        else:
            yield place
            place += (1.0 if lead else factor) * (paces.copies if _is_copy(op) else 0.0)


class _Order:
    """Operations in a new order: each is emitted behind those that it depends on.

    ``kept``: the operations that keep their order, by their place in the body; so do the ``multiplies``.
    """

    def __init__(self, body: LaneBody) -> None:
        self.body, self.out = body, list[LaneOp]()
        self.kept = [i for i, x in enumerate(body) if _is_kept(x)]
        self.multiplies = [i for i, x in enumerate(body) if isinstance(x, AtomInstr)]
        self._waiting = [True] * len(body)
        self._before: list[set[int]] = [set() for _ in body]
        for chain in (self.kept, self.multiplies):
            for earlier, later in pairwise(chain):
                self._before[later].add(earlier)
        writers: dict[str, int] = {}
        readers: dict[str, set[int]] = {}
        for i, op in enumerate(body):
            read, written = {r.name for r in registers_read(op)}, {r.name for r in registers_written(op)}
            self._before[i].update(writers[r] for r in read | written if r in writers)
            self._before[i].update(*(readers.get(r, ()) for r in written))
            for r in written:
                writers[r], readers[r] = i, set()
            for r in read:
                readers.setdefault(r, set()).add(i)
            self._before[i].discard(i)

    def emit(self, op: int) -> None:
        """Appends operation ``op``, and those that it needs, unless it is there."""
        waiting = self._waiting
        stack = [op] if waiting[op] else []
        while stack:
            i = stack[-1]
            needed = [x for x in self._before[i] if waiting[x]]
            if needed:
                stack += sorted(needed, reverse=True)
                continue
            stack.pop()
            if waiting[i]:
                waiting[i] = False
                self.out.append(self.body[i])


# ---- registers -------------------------------------------------------------------------------------------


def registers_read(op: LaneOp) -> Iterator[Reg]:
    """The registers that ``op``, or an operation in its branches, reads."""
    match op:
        case AtomInstr():
            yield from (*op.a, *op.b, *op.c, *op.e, *op.scales)
            yield from (x for _, x in op.immediates if isinstance(x, Reg))
        case CopyInstr():
            for x in (op.address, op.source, op.source_size, op.guard):
                yield from () if x is None else registers(x)
        case Instr():
            for y in op.src if op.guard is None else (*op.src, op.guard):
                yield from registers(y)
        case LaneIf():
            yield op.cond
            for z in (*op.then, *op.otherwise):
                yield from registers_read(z)


def registers_written(op: LaneOp) -> Iterator[Reg]:
    """The registers that ``op``, or an operation in its branches, writes."""
    match op:
        case AtomInstr():
            yield from op.d
        case CopyInstr():
            yield from op.registers
        case Instr():
            for x in op.dst:
                yield from registers(x)
        case LaneIf():
            for y in (*op.then, *op.otherwise):
                yield from registers_written(y)
