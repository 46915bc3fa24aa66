"""The wgmma operations of a warpgroup: the decoded form, the group's state, and the asynchronous operation.

The four warps of a warpgroup issue the same operations; the n-th of each is one operation of the warpgroup.  It
starts when all four have issued it, reads shared memory through its descriptors at any moment until its group is
waited for, and operations of a warpgroup run in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilemma.dtypes import dtype
from tilemma.machine import accumulation, async_access, provenance
from tilemma.machine import catalogue as hz
from tilemma.machine.agents import Agent
from tilemma.machine.async_access import Knowledge
from tilemma.machine.clocks import NEVER
from tilemma.machine.decode import Decoder
from tilemma.machine.exec.matrix import check_metadata
from tilemma.machine.exec.wgmma_tiles import Operand, elements
from tilemma.machine.isa import forms, fragments, sparse, sums
from tilemma.machine.memory import SHIFT
from tilemma.machine.native.blocks import address_of
from tilemma.machine.native.products import TileProduct, tile_product
from tilemma.machine.native.records import WarpgroupRecord, address
from tilemma.machine.state import Cta, Frame, Warp
from tilemma.machine.syntax import Immediate, Instruction, Register, Vector

_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
_WORD = (1 << 64) - 1
# Compiled products, and pairs of operands, that a form keeps.
_PRODUCTS = 256


class Form:
    """One decoded ``wgmma.mma_async``: shapes, types, registers, immediates."""

    def __init__(self, d: Decoder) -> None:
        match = next((x for x in map(_SHAPE.match, d.mods) if x), None)
        if match is None:
            d.unsupported("the shape")
        d.used.add(match[0])
        self.n, self.k = int(match[1]), int(match[2])
        self.sparse = d.has("sp")
        self.satfinite = d.has("satfinite")
        self.bitop: Any = d.one_of(("and", "xor"), "none") if d.has("popc") else None
        types = [m for m in d.mods if m in ("f16", "bf16", "tf32", "f32", "e4m3", "e5m2", "s8", "u8", "b1", "s32")]
        if len(types) != 3:
            d.unsupported("the types")
        d.used.update(types)
        d.only("mma_async", "sync", "aligned")
        self.td, self.ta, self.tb = types
        # Bits are addressed in bytes: ``per`` elements of A or B to an addressed unit.
        self.per = 8 if self.ta == "b1" else 1
        self.bits = dtype(self.ta).bits * self.per
        # A, compressed, has half of K.
        self.ka = self.k // 2 if self.sparse else self.k
        operands = list(d.operands)
        d_items = d.items(operands[0])
        self.d_rows = np.array([d.dst(x, "b32") for x in d_items])
        if self.td == "f32":
            d.check_vector(d_items, "f32", wider=False)
        self.d_ids = [d.register_id(x) for x in d_items]
        need = self.n // 2 // fragments.elements_per_register("f32" if self.td in ("f32", "s32") else "f16")
        if len(self.d_rows) != need:
            d.bad(f"D has {len(self.d_rows)} registers, it needs {need}")
        self.in_registers = isinstance(operands[1], Vector)
        if self.in_registers:
            self.a_rows = np.array([d.src(x, "b32") for x in d.items(operands[1])])
            self.a_ids = [d.register_id(x) for x in d.items(operands[1]) if isinstance(x, Register)]
            if len(self.a_rows) != 4:
                d.bad("A in registers has 4")
            self.a_descriptor = -1
        else:
            self.a_ids = []
            self.a_descriptor = d.src(operands[1], "u64")
        self.b_descriptor = d.src(operands[2], "u64")
        self.metadata = self.selector = -1
        self._accumulators: Any = None
        if self.sparse:
            self.metadata, self.selector = d.src(operands[3], "u32"), d.immediate(operands[4])
            self.a_ids.append(d.register_id(operands[3]))
            del operands[3:5]
        scale = operands[3]
        self.scale_d: Any = scale.value != 0 if isinstance(scale, Immediate) else d.src_pred(scale)
        if self.scale_d is not False:
            for register, item in zip(self.d_ids, d_items, strict=True):
                d.conditional[register] = str(item)
        rest = [d.immediate(x) for x in operands[4:]]
        scales, trans = rest[:2], rest[2:]
        self.scale_a, self.scale_b = scales if len(scales) == 2 else (1, 1)
        self.a_major: Any = "MN" if trans and not self.in_registers and trans[0] else "K"
        self.b_major: Any = "MN" if trans and trans[-1] else "K"
        self.a_set, self.d_set = frozenset(self.a_ids), frozenset(self.d_ids)
        self._products: dict[Any, Any] = {}
        self._operands: dict[Any, tuple[Operand, ...]] = {}
        self._check(d, scales, trans)
        d.async_registers = frozenset([*self.d_ids, *self.a_ids])
        self.names = {r: d.program.register_names[r] for r in d.async_registers}

    def _check(self, d: Decoder, scales: list[int], trans: list[int]) -> None:
        """Refuse a form that the ISA does not have."""
        verdict = forms.legal_wgmma(
            self.n, self.k, self.ta, self.tb, self.td, d.program.arch, a_in_registers=self.in_registers,
            trans_a=trans[0] if len(trans) == 2 else None, trans_b=trans[-1] if trans else None,
            scale_a=scales[0] if scales else None, scale_b=scales[1] if len(scales) == 2 else None,
            satfinite=self.satfinite, bitop=self.bitop, sparse=self.sparse,
            selector=self.selector if self.sparse else None,
        )  # fmt: skip
        if not verdict:
            d.refuse(verdict.reason)

    def accumulators(self, rows: int) -> Any:
        """For each element of D, its place in the warpgroup's register files of ``rows`` registers a warp."""
        if self._accumulators is None:
            per = fragments.elements_per_register(self.td)
            at = fragments.wgmma_fragment(self.n, self.k, "D", self.td)
            thread, value = np.arange(128)[:, None], np.arange(at[0].shape[1])
            row = (thread // 32 * rows + self.d_rows[value // per]) * 32 + thread % 32
            self._accumulators = np.empty((64, self.n), np.int64)
            self._accumulators[at] = row * per + value % per
        return self._accumulators

    def product(self, rows: int, a: Any, b: Any) -> TileProduct | None:
        """The product of operands at ``a`` (None: in registers) and ``b`` as the compiled library computes it.

        ``rows`` is the number of registers of a warp's file.
        """
        key = rows, id(a), id(b)
        found = self._products.get(key)
        if found is None:
            if len(self._products) > _PRODUCTS:
                self._products.clear()
            made, c = None, self.accumulators(rows)
            if not self.sparse and self.per == 1:
                made = tile_product(
                    "wgmma", (self.td, self.ta, self.tb, self.td),
                    (self._held(rows) if a is None else a, b, c, c), in_memory="B" if a is None else "AB",
                    turned=True, negative=(self.scale_a == -1, self.scale_b == -1),
                )  # fmt: skip
            # With the arrays, so that no other gets their identity.
            found = self._products[key] = made, a, b
        product: TileProduct | None = found[0]
        return product

    def _held(self, rows: int) -> Any:
        """For each element of A in registers, its place as in `accumulators`."""
        at = fragments.wgmma_fragment(self.n, self.ka, "A", self.ta)
        per = fragments.elements_per_register(self.ta)
        thread, value = np.arange(128)[:, None], np.arange(at[0].shape[1])
        places = np.empty((64, self.ka), np.int64)
        row = (thread // 32 * rows + self.a_rows[value // per]) * 32 + thread % 32
        places[at] = row * per + value % per
        return places

    def operands(self, a: int, b: int, limit: int) -> tuple[Operand, ...]:
        """The operands in shared memory, which ends at ``limit``, by their descriptors."""
        key = a, b, limit
        found = self._operands.get(key)
        if found is None:
            if len(self._operands) > _PRODUCTS:
                self._operands.clear()
            # Of the bytes that a product of all of K has; compressed A has half of them.
            width, per = self.k * self.bits // self.per // 8, self.per
            found = (Operand.of("B", b, (self.n, self.k // per, width), self.bits, self.b_major, limit),)
            if not self.in_registers:
                left = Operand.of("A", a, (64, self.ka // per, width), self.bits, self.a_major, limit)
                found = left, *found
            self._operands[key] = found
        return found

    def descriptors(self, w: Warp) -> tuple[int, int]:
        """Those of A, 0 where it is in registers, and B."""
        u64 = w.v[6]
        a = int(u64[self.a_descriptor][0]) if self.a_descriptor >= 0 else 0
        return a, int(u64[self.b_descriptor][0])

    def scales(self, w: Warp) -> bool:
        """Whether D is added to (scale-d)."""
        if isinstance(self.scale_d, bool):
            return self.scale_d
        row, negated = self.scale_d
        return bool(w.v[9][row][0] ^ negated)


class Issue:
    """One warp's part in an operation, for the registers in flight."""

    __slots__ = ("a_ids", "d_ids", "instruction", "serial", "shape")

    def __init__(self, ins: Instruction, form: Form, serial: int) -> None:
        self.instruction, self.serial = ins, serial
        self.a_ids, self.d_ids = form.a_set, form.d_set
        self.shape = (form.n, form.k, form.td)

    def reads_only(self, register: int) -> bool:
        return register not in self.d_ids

    def fly(self, flying: dict[int, Any]) -> None:
        """Enter the registers in those that unfinished operations use."""
        for r in self.a_ids:
            known = flying.get(r)
            if known is None or known.reads_only(r):
                flying[r] = self
        flying.update(dict.fromkeys(self.d_ids, self))


class Group:
    """The state of one warpgroup."""

    def __init__(self, cta: Cta, number: int) -> None:
        self.cta, self.number = cta, number
        self.warps = cta.warps[4 * number : 4 * number + 4]
        self.operations: dict[int, Operation] = {}
        # For each committed group, one past its last operation; for each warp, how many it has committed.
        self.ends: dict[int, int] = {}
        # One for the warpgroup, then one for each of its warps.
        clocks = cta.cluster.clocks
        self.column = clocks.column(("wgmma", cta.rank, number), 5)
        # The operations that have started.
        self.started = 0
        # Events of operations that have started and belong to no group yet.
        self.uncommitted: dict[int, int] = {}
        self.waiters: list[Frame] = []
        # By the registers of D, the products on them of the last two tiles.
        self.products: dict[frozenset[int], list[accumulation.Product]] = {}
        # What the native library shares: operations that it has seen some warps issue, with what those know.
        self.record = WarpgroupRecord(self.column, capacity=clocks.seen.shape[1])
        self._clocks = np.zeros((WarpgroupRecord.JOINING, 2, clocks.seen.shape[1]), np.int32)
        for one, clock in zip(self.record.joining, self._clocks, strict=True):
            one.serial, one.seen, one.fenced = -1, address_of(clock[0]), address_of(clock[1])
        self.tell()
        if len(self.warps) == 4:
            for w in self.warps:
                w.record.warpgroup = address(self.record)

    def tell(self) -> None:
        """Tell the native library what has changed."""
        record = self.record
        record.started, record.loose = self.started, len(self.uncommitted)
        record.unfinished = min(self.operations, default=1 << 62)

    def issued(self, w: Warp) -> int:
        """The operations that ``w`` has issued."""
        return int(self.record.issued[w.index % 4])

    def committed(self, w: Warp) -> int:
        """The groups that ``w`` has committed."""
        return int(self.record.committed[w.index % 4])

    def issue(self, w: Warp) -> int:
        """The number of the operation that ``w`` issues."""
        serial = self.issued(w)
        self.record.issued[w.index % 4] = serial + 1
        return serial

    def commit(self, w: Warp) -> tuple[int, int]:
        """The number of the group that ``w`` commits, and one past its last operation."""
        number = self.committed(w) + 1
        self.record.committed[w.index % 4] = number
        return number, self.issued(w)

    def end(self, number: int, end: int) -> None:
        """Group ``number`` has the operations before ``end``."""
        self.ends[number] = end
        at = number % WarpgroupRecord.ENDS
        self.record.numbers[at], self.record.ends[at] = number, end

    def joined(self, serial: int) -> Operation | None:
        """An operation that the native library has seen some warps issue."""
        for one, clock in zip(self.record.joining, self._clocks, strict=True):
            if one.serial == serial:
                one.serial = -1
                w = self.cta.warps[one.first - self.cta.first_warp]
                step = self.cta.machine.program.steps[one.pc]
                assert step.plain is not None
                given = one.a & _WORD, one.b & _WORD
                found = Operation(self, w, step.instruction, step.plain.form, serial, given, bool(one.scale))
                found.there = {4 * self.number + i for i in range(4) if one.there >> i & 1}
                found.knowledge = Knowledge(*(x[: one.length].copy() for x in clock))
                self.operations[serial] = found
                return found
        return None

    def clock_of(self, serial: int) -> int:
        """The group that operation ``serial`` belongs to; NEVER while it is not committed."""
        for number, end in sorted(self.ends.items()):
            if serial < end:
                return number
        return int(NEVER)


def group_of(f: Frame, ins: Instruction) -> Group:
    """The warpgroup of a frame; its four warps must exist."""
    cta = f.w.cta
    number = f.w.index // 4
    found: Group | None = cta.warpgroups.get(number)
    if found is None:
        found = cta.warpgroups[number] = Group(cta, number)
        if len(found.warps) != 4:
            f.w.report(
                hz.WgmmaNotUniform, ins, what="the last warps of the CTA do not make a whole warpgroup", fatal=True
            )
    return found


class Operation(Agent):
    """One wgmma.mma_async of a warpgroup."""

    kind = "wgmma"

    def __init__(
        self, group: Group, w: Warp, ins: Instruction, form: Form, serial: int, given: tuple[int, int], scale: bool
    ) -> None:
        super().__init__(w, ins)
        self.group, self.form, self.serial = group, form, serial
        self.descriptors, self.scale = given, scale
        self.there: set[int] = set()
        self.knowledge: Knowledge | None = None
        self.finished = False

    @property
    def actor(self) -> str:
        return f"warpgroup {self.group.number}"

    @property
    def about(self) -> str:
        names = self.group.cta.machine.names
        starts = [(d & 0x3FFF) << 4 for d in self.descriptors if d]
        return " x ".join(n for n in map(names.buffer, starts) if n)

    def before(self) -> Sequence[Agent]:
        earlier = self.group.operations.get(self.serial - 1)
        return (earlier,) if earlier is not None and not earlier.finished else ()

    def join(self, f: Frame, ins: Instruction, given: tuple[int, int], scale: bool) -> None:
        """One more warp issues the operation, with its descriptors and scale-d; the fourth starts it."""
        w = f.w
        if ins is not self.instruction:
            self._differ(f, ins, f"warp {w.index} executes another wgmma than warp {self.warp.index} does")
        if given != self.descriptors or scale != self.scale:
            self._differ(
                f, ins, f"warp {w.index} has other descriptors or another scale-d than warp {self.warp.index}"
            )
        # The operands must be ordered before all four warps.
        seen, fenced = w.cta.cluster.clocks.known_to_all(
            w.first, None if self.knowledge is None else (self.knowledge.seen, self.knowledge.fenced)
        )
        self.knowledge = Knowledge(seen, fenced)
        self.there.add(w.index)
        if len(self.there) == 4:
            self.start(f)

    def _differ(self, f: Frame, ins: Instruction, what: str) -> None:
        f.w.report(hz.WgmmaNotUniform, ins, other=self.warp.place(self.instruction), what=what, fatal=True)

    def operands(self) -> tuple[Operand, ...]:
        """The operands in shared memory."""
        return self.form.operands(*self.descriptors, self.group.cta.shared.limit)

    def start(self, f: Frame) -> None:
        """All four warps have issued it: check the operands and start the operation."""
        cta, group = self.group.cta, self.group
        machine, events = cta.machine, cta.cluster.events
        ins, w = self.instruction, f.w
        assert self.knowledge is not None
        clock = group.clock_of(self.serial)
        self.event = events.new(group.column, clock, w.access("wgmma", ins), unordered=True)
        if clock == NEVER:
            group.uncommitted[self.serial] = self.event
        operands, copies = self.operands(), []
        for x in operands:
            if x.problems:
                w.report(
                    hz.InadmissibleDescriptor,
                    ins,
                    operand=x.letter,
                    descriptor=x.raw,
                    problem=x.problems[0],
                    advice='PTX ISA, "Strides" and "Canonical Layouts", say which strides a layout uses',
                    fatal=any("beyond" in p for p in x.problems),
                )
            async_access.read_tile(
                w, ins, cta, (x.tile.units, x.delta, x.tile.width), self.knowledge, self.event,
                ("wgmma", group.number), f"wgmma operand {x.letter}",
            )  # fmt: skip
            copies.append(self._copy(w, x))
        self._tiles(w, operands, copies)
        group.started += 1
        group.tell()
        machine.issue(self)
        waiters, group.waiters = group.waiters, []
        for waiting in waiters:
            machine.wake(waiting)

    def _tiles(self, w: Warp, operands: tuple[Operand, ...], copies: list[int]) -> None:
        """Check that the operands, which ``copies`` brought, are tiles, and their steps along K since the last
        product on D."""
        form, group, ins = self.form, self.group, self.instruction
        before = group.products.pop(form.d_set, [])
        if not provenance.wanted(w, ins):
            return
        # Compressed A skips columns of K: only dense operands are tiles.
        dense = [(x.letter, x.tile.at, x.delta) for x in operands if x.letter == "B" or not form.sparse]
        contractions = provenance.check_wgmma(w, ins, group.cta, dense)
        if len(contractions) < 2:
            return
        before = before if self.scale else []
        a, b = (_slice(*each) for each in zip(operands, contractions, copies, strict=True))
        committed = group.committed(w)
        if a is None or b is None:
            if before and before[-1].group == committed:
                self._strays(w, before[-1], [x for x, part in zip(operands, (a, b), strict=True) if part is None])
            return
        here = accumulation.Product(ins.line, committed, a, b)
        k = form.k // form.per
        group.products[form.d_set] = accumulation.check_step(w, ins, before, k, here)

    def _strays(self, w: Warp, before: accumulation.Product, operands: list[Operand]) -> None:
        """Check the operands that are no tile known."""
        origin = self.group.cta.shared.origins()
        for x in operands:
            accumulation.check_strays(w, self.instruction, x.letter, before, x.first, origin[x.tile.at + x.delta])

    def _copy(self, w: Warp, x: Operand) -> int:
        """The event of the tensor copy that wrote the tile, whose map must have the swizzle of the descriptor that
        reads it; -1 where something else wrote it."""
        cta = self.group.cta
        writer = int(cta.shared.writer[x.first])
        event = cta.cluster.events.of(writer) if writer > 0 else None
        if event is None or event.kind != "tma":
            return -1
        if event.detail != x.swizzle:
            w.report(
                hz.SwizzleMismatch,
                self.instruction,
                other=event.place,
                operand=x.letter,
                reader=f"{x.swizzle} B" if x.swizzle else "none",
                writer=f"{event.detail} B" if event.detail else "none",
            )
        return writer

    def complete(self) -> None:
        """Multiply: operands as they are in shared memory now."""
        form, cta, group = self.form, self.group.cta, self.group
        self.finished = True
        group.operations.pop(self.serial, None)
        group.tell()
        if cta.machine.native is not None and self._compiled():
            return
        size = form.bits // 8
        values = {}
        for x in self.operands():
            name = form.ta if x.letter == "A" else form.tb
            words = cta.shared.words[size][(x.tile.at + x.delta) >> SHIFT[size]]
            values[x.letter] = (
                np.unpackbits(words, axis=1, bitorder="little") if form.per > 1 else elements(words, name)
            )
        warps = slice(4 * group.number, 4 * group.number + 4)
        file = cta.registers["32"]
        if form.in_registers:
            regs = np.ascontiguousarray(file[warps, form.a_rows].transpose(0, 2, 1)).reshape(128, -1)
            held_a = np.empty((64, form.ka), np.float64)
            held_a[fragments.wgmma_fragment(form.n, form.ka, "A", form.ta)] = fragments.unpack(regs, form.ta)
            values["A"] = held_a
        a, b = values["A"].astype(np.float64), values["B"].astype(np.float64)
        if form.scale_a != 1:
            a *= form.scale_a
        if form.scale_b != 1:
            b *= form.scale_b
        held = file[warps].reshape(-1)
        accumulators, at = held.view(dtype(form.td).numpy), form.accumulators(file.shape[1])
        total = accumulators.take(at) if self.scale else np.zeros((64, form.n))
        columns, options = None, {} if form.sparse else {"bitop": form.bitop}
        if form.sparse:
            fields = sparse.metadata_fields(
                file[warps, form.metadata].reshape(128), form.k, form.ta, form.selector
            )
            check_metadata(self.warp.root, self.instruction, fields, form.ta, ordered=False)
            columns = sparse.stored_columns(fields, form.ta)
        types = form.ta, form.tb, form.td
        result = sums.multiply("wgmma", a, b.T, total, *types, columns, satfinite=form.satfinite, **options)
        accumulators.put(at, result)

    def _compiled(self) -> bool:
        """Whether the compiled library has multiplied."""
        form, cta, operands = self.form, self.group.cta, self.operands()
        b, a = operands[-1], None if form.in_registers else operands[0]
        product = form.product(cta.registers["32"].shape[1], None if a is None else a.tile.at, b.tile.at)
        if product is None:
            return False
        registers, memory = self.group.warps[0].registers, cta.shared.record.data
        there = (0, 0) if a is None else (memory, a.delta)
        product.tiles(cta.machine.native, there, (memory, b.delta), registers, added=self.scale)
        return True


def _slice(x: Operand, contraction: provenance.Contraction | None, copy: int) -> accumulation.Slice | None:
    """An operand as a slice of its tile, where its origin is known."""
    if contraction is None or contraction.first is None:
        return None
    return accumulation.Slice(contraction, x.first, copy, x.swizzle, x.more, x.less)
