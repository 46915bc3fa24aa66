"""The state of a running grid: clusters, CTAs, warps, and the frames of divergent control flow."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tilemma.forking import cached_property
from tilemma.machine.clocks import Clocks, Events
from tilemma.machine.hazards import HazardError, Place
from tilemma.machine.memory import SharedMemory
from tilemma.machine.native import blocks, library, records
from tilemma.machine.native.records import CtaRecord, FrameRecord, WarpRecord
from tilemma.machine.sequential import Fences
from tilemma.machine.special_registers import OF_ONE_CTA, special_value
from tilemma.machine.syntax import Instruction

if TYPE_CHECKING:
    from tilemma.machine.program import Program
    from tilemma.machine.scheduler import Machine

Mask = npt.NDArray[np.bool_]
LANES = np.arange(32)
ALL_LANES = np.ones(32, bool)

# Views of a warp's registers by PTX type: index into ``Warp.v``.
U16, S16, F16, U32, S32, F32, U64, S64, F64, PRED = range(10)
VIEW_DTYPES = (
    np.uint16, np.int16, np.float16, np.uint32, np.int32, np.float32, np.uint64, np.int64, np.float64, np.bool_,
)  # fmt: skip
VIEW_CLASS = ("16", "16", "16", "32", "32", "32", "64", "64", "64", "p")
CLASS_DTYPE = {"16": np.uint16, "32": np.uint32, "64": np.uint64, "p": np.bool_}


class Access(NamedTuple):
    """The access of an event.  ``kind``: ld, st, atom, cp.async, tma, wgmma, bulk-store, mbarrier."""

    kind: str
    warp: Warp
    instruction: Instruction
    detail: Any = None

    @property
    def place(self) -> Place:
        return self.warp.place(self.instruction)


class Frame:
    """Lanes of one warp that run together.

    A divergent branch makes a frame for each side; they meet again at ``rpc``, the branch's immediate
    post-dominator, where their parent continues.  Sides are scheduled independently, as on Volta and later.
    """

    __slots__ = (
        "_pc",
        "_timeout",
        "address",
        "awaited",
        "blocked",
        "lanes",
        "m",
        "met",
        "parent",
        "record",
        "resume",
        "rows",
        "rpc",
        "w",
    )  # fmt: skip

    def __init__(self, w: Warp, pc: int, m: Mask | None, rpc: int, parent: Frame | None) -> None:
        self.w, self._pc, self.rpc, self.parent = w, pc, rpc, parent
        # The record of the native library, made when that needs it, and its address.
        self.address = 0
        self.record: Any = None
        # Why it waits: a text, or a function that gives one.
        self.blocked: Any = ""
        self.resume: Any = None
        # The mbarrier and the parity that the last wait of the frame did not find complete.
        self.awaited: Any = None
        # A wait of it on an mbarrier has timed out.
        self._timeout = False
        # Lanes of several frames that execute a `.sync` instruction together: all of them in the frame that
        # executes it for all, none in the others.
        self.met: Mask | None = None
        self.set_mask(m)

    def set_mask(self, m: Mask | None) -> None:
        """Run the lanes of ``m`` (None: all 32)."""
        self.m = m
        self.lanes = LANES if m is None else np.flatnonzero(m)
        self.rows: Any = self.w.rows_of(m)
        if self.record is not None:
            self._tell()

    def _tell(self) -> None:
        """Tell the native library the lanes."""
        self.record.lanes, self.record.whole = len(self.lanes), self.m is None
        if self.m is not None:
            ctypes.memmove(self.address + FrameRecord.mask0.offset, self.m.tobytes(), 32)

    def share(self) -> Any:
        """The record of the native library, at ``address``."""
        if self.address == 0:
            above = 0 if self.parent is None else self.parent.shared_address()
            record = self.record = FrameRecord(self.w.native, self.rpc, parent=above, pc=self._pc)
            self.address = ctypes.addressof(record)
            self._tell()
        return self.record

    def shared_address(self) -> int:
        self.share()
        return self.address

    @property
    def pc(self) -> int:
        """The step that it executes next."""
        record = self.record
        return self._pc if record is None else record.pc

    @pc.setter
    def pc(self, pc: int) -> None:
        if self.record is None:
            self._pc = pc
        else:
            self.record.pc = pc

    @property
    def timeout(self) -> bool:
        """Whether a wait of it on an mbarrier has timed out."""
        return self._timeout

    @timeout.setter
    def timeout(self, late: bool) -> None:
        if late is not self._timeout:
            self._timeout = late
            self.share().late = late

    @property
    def children(self) -> int:
        """The sides of a branch that it waits for."""
        return 0 if self.record is None else int(self.record.children)

    @children.setter
    def children(self, count: int) -> None:
        self.share().children = count

    def follow(self) -> None:
        """The native library has changed lanes or place."""
        self.record.changed = 0
        mask = None
        if not self.record.whole:
            at = FrameRecord.mask0.offset
            mask = np.frombuffer(self.record, np.bool_, 32, at).copy()
        self.set_mask(mask)

    @staticmethod
    def of(w: Warp, record: Any, parent: Frame | None) -> Frame:
        """A frame that the native library has made."""
        f = Frame(w, record.pc, None, record.reconverge, parent)
        f.record, f.address = record, ctypes.addressof(record)
        record.fresh = 0
        f.follow()
        return f


class Rows(dict[int, npt.NDArray[Any]]):
    """The rows of ``file``, each made at its first use."""

    def __init__(self, file: npt.NDArray[Any]) -> None:
        super().__init__()
        self.file = file

    def __missing__(self, row: int) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self.file[row]
        self[row] = found
        return found


class Views(dict[int, Rows]):
    """The rows of a warp's registers by PTX type, made at the first use of the type."""

    def __init__(self, registers: dict[str, npt.NDArray[Any]], index: int) -> None:
        super().__init__()
        self.registers, self.index = registers, index

    def __missing__(self, view: int) -> Rows:
        rows = self[view] = Rows(self.registers[VIEW_CLASS[view]][self.index].view(VIEW_DTYPES[view]))
        return rows


class Warp:
    """32 lanes: registers by class and type, and the frames that run them."""

    def __init__(self, cta: Cta, index: int, live: int) -> None:
        self.cta, self.index = cta, index
        # Position in the cluster: the warp's threads are rows 32*row .. 32*row + 31 of the clocks.
        self.row = cta.first_warp + index
        self.first = 32 * self.row
        registers = cta.registers
        self.v = Views(registers, index)
        # Where the native library finds the warp's registers and the parameters.
        self.registers = cta.register_table[index]
        # What the native library shares, and its address, 0 where it makes no accesses; the warp as a reader of
        # shared memory.
        self.record = blocks.warp_record(self)
        self.native = 0 if cta.machine.native is None else records.address(self.record)
        self.reader: Any = None
        # Lanes that have not left; the native library has them too.
        self.live: Mask = np.frombuffer(self.record, np.bool_, 32, WarpRecord.live0.offset)
        self.live[:live] = True
        # Lanes in which tracked registers are defined; where others are not: the first read, and its register.
        self.defined: dict[int, Mask] = {}
        self.undefined: dict[int, tuple[Instruction, str]] = {}
        # Frames that wait at a `.sync` instruction for other lanes: (frame, step, its lanes).
        self.gathered: list[tuple[Frame, Any, Mask]] = []
        self.steps = 0
        self.full = live == 32
        self.root = Frame(self, 0, None if self.full else self.live.copy(), -1, None)
        self.done = False
        self.accesses: dict[tuple[str, int], Access] = {}
        # mbarriers initialised and not yet fenced.
        self.inits: list[Any] = []
        # What the warp knew at its last proxy fence of global memory: other clusters' clocks, its cluster's.
        self.global_fence: Any = None
        # The last phase of the cluster barrier that the warp arrived at.
        self.cluster_phase = -1
        # Lanes that have waited since the last arrival.
        self.cluster_waited = 0
        # wgmma: registers an unfinished group uses -> its issue; registers touched since the last fence.
        self._in_flight: dict[int, Any] = {}
        self.touched: dict[int, Any] = {}
        # What the native library has done with them since: an issue, or the wait that ends those up to a number.
        self.flights: list[Any] = []
        self.register_count = 0
        # cp.async: pending copies not committed, and committed groups in order (each a list of agents).
        self.copies: Any = None
        # Global origins of the halves of registers that ldmatrix loaded: register -> [32, 2].
        self.origins: dict[int, npt.NDArray[np.int64]] = {}
        # Operands of mma.sync that were found regular: the origins of their registers then, and their contraction.
        self.regular_tiles: dict[Any, Any] = {}
        # The last product on accumulators, by their registers: its PTX line and its operands.
        self.products: dict[Any, Any] = {}
        self.bulk: dict[int, Any] = {}
        self.local: npt.NDArray[np.uint8] | None = None
        # Strong accesses: clocks of relaxed reads, which a later fence acquires; clocks that a fence released.
        self.brought: Any = None
        self.fence_message: Any = None
        self.fences = Fences()
        # The clocks that `fence.mbarrier_init` releases to relaxed arrivals.
        self.init_message: Any = None

    @cached_property
    def flat(self) -> dict[str, npt.NDArray[Any]]:
        """All registers of a class, one row after the other."""
        return {cls: file[self.index].reshape(-1) for cls, file in self.cta.registers.items()}

    @property
    def floor(self) -> int:
        """Last barrier's event number: shared accesses up to it are ordered before this warp."""
        return int(self.record.floor)

    @property
    def in_flight(self) -> dict[int, Any]:
        """The issue of each register that an unfinished wgmma uses."""
        flights, self.flights = self.flights, []
        for one in flights:
            if isinstance(one, int):
                self.land(one)
            else:
                one.fly(self._in_flight)
        return self._in_flight

    def land(self, end: int) -> None:
        """The wgmma before number ``end`` no longer use registers."""
        flying = self._in_flight
        for r in [r for r, issue in flying.items() if issue.serial < end]:
            del flying[r]

    def rows_of(self, m: Mask | None) -> Any:
        """Clock rows of the lanes in ``m``: a slice for the whole warp, else an index array."""
        if m is None:
            return slice(self.first, self.first + 32)
        return self.first + np.flatnonzero(m)

    def access(self, kind: str, instruction: Instruction) -> Access:
        """The event info for an instruction of this warp; one object however often it is executed."""
        key = (kind, id(instruction))
        found = self.accesses.get(key)
        if found is None:
            found = self.accesses[key] = Access(kind, self, instruction)
        return found

    def place(self, instruction: Any) -> Place:
        return Place(self.cta.machine.module_name, instruction, self.index, self.cta.index)

    def report(self, hazard: type[HazardError], instruction: Any, *, fatal: bool = False, **facts: Any) -> None:
        """Report ``hazard`` with its ``facts`` at an instruction of this warp; see `HazardError.at`."""
        self.cta.machine.report(hazard.at(self.place(instruction), **facts), fatal=fatal)


@dataclass
class NamedBarrier:
    """One of the 16 barriers of a CTA."""

    expected: int = 0
    arrived: int = 0
    rows: list[Any] = field(default_factory=list)
    waiting: list[Frame] = field(default_factory=list)
    warps: list[int] = field(default_factory=list)
    message: Any = None
    # Fences of warps that have arrived without waiting.
    fences: list[Fences] = field(default_factory=list)
    first: Any = None
    values: list[Any] = field(default_factory=list)


class Cta:
    """One CTA: its registers (by class: [warps, registers, 32]), shared memory and barriers."""

    def __init__(self, machine: Machine, cluster: Cluster, rank: int, index: tuple[int, int, int]) -> None:
        self.machine, self.cluster, self.rank, self.index = machine, cluster, rank, index
        program = machine.program
        warps = machine.warps_per_cta
        self.first_warp = rank * warps
        self.registers = self.new_registers(program)
        self.register_table, self.register_pointers = library.register_table(
            [*self.registers.values(), program.parameter_bytes], warps
        )
        self.shared = SharedMemory(machine.shared_base, machine.shared_bytes)
        self.record = CtaRecord(32 * self.first_warp, warps, warps)
        self.barriers: dict[int, NamedBarrier] = {}
        threads = machine.threads_per_cta
        self.warps = [Warp(self, w, min(32, threads - 32 * w)) for w in range(warps)]
        self.live_warps = warps
        self.warpgroups: dict[int, Any] = {}
        self.exited = False
        # The events of its cluster before its last proxy fence of global memory.
        self.globally_fenced = 0
        # Tensor maps in global memory, for each warp that has fenced one: its thread, its clock, and the writes to
        # the map at that time.
        self.map_fences: dict[int, dict[int, tuple[int, int, npt.NDArray[np.int64]]]] = {}
        # Asynchronous operations on it that completed before any thread waited for them.
        self.unawaited: list[Any] = []
        self.register_pool = -1
        self.pool_waiters: list[Frame] = []

    def new_registers(self, program: Program) -> dict[str, npt.NDArray[Any]]:
        """The register files; those of later CTAs start as copies of the first one's."""
        machine = self.machine
        first = machine.first_registers
        if first is None:
            files = program.new_registers(machine.warps_per_cta)
        else:
            files = {cls: file.copy() for cls, file in first.items()}
        for (cls, row), name in program.special_rows.items():
            if first is None or name.partition(".")[0] in OF_ONE_CTA:
                files[cls][:, row] = special_value(machine, name, self)
        if first is None and machine.grid != machine.cluster_shape:
            machine.first_registers = {cls: file.copy() for cls, file in files.items()}
        return files

    def __repr__(self) -> str:
        return f"CTA {self.index}"


class _Maker:
    """Makes the `Access` of an event of the native library."""

    def __init__(self, machine: Machine, warps: list[Warp]) -> None:
        self.machine, self.warps = machine, warps

    def __call__(self, row: int, step: int) -> Access:
        made = self.machine.program.steps[step]
        kind = "ld" if made.plain is None else blocks.EVENTS[made.plain.kind]
        return Access(kind, self.warps[row], made.instruction)


class Cluster:
    """CTAs that can reach each other's shared memory; alone, one CTA."""

    def __init__(self, machine: Machine, index: tuple[int, int, int], serial: int) -> None:
        self.machine, self.index, self.serial = machine, index, serial
        shape = machine.cluster_shape
        size = shape[0] * shape[1] * shape[2]
        self.clocks = Clocks(32 * machine.warps_per_cta * size, serial)
        self.events = Events()
        self.ctas: list[Cta] = []
        for rank in range(size):
            x, y, z = rank % shape[0], rank // shape[0] % shape[1], rank // (shape[0] * shape[1])
            cta_index = (index[0] * shape[0] + x, index[1] * shape[1] + y, index[2] * shape[2] + z)
            self.ctas.append(Cta(machine, self, rank, cta_index))
        self.events.maker = _Maker(machine, [w for cta in self.ctas for w in cta.warps])
        self.barrier_arrived: set[int] = set()
        self.barrier_message: Any = None
        self.barrier_phase = 0
        self.barrier_done: Any = None
        self.barrier_waiting: list[Frame] = []
        self.live_warps = size * machine.warps_per_cta

    def retire(self) -> None:
        """Drop unneeded state after the last warp has exited; the events stay, for races on global memory.

        Events name their warp and its CTA, with which a report describes the place of an access.
        """
        for cta in self.ctas:
            for warp in cta.warps:
                _keep(warp, "cta", "index", "row", "first", "done")
            _keep(cta, "machine", "cluster", "rank", "index", "exited", "live_warps", "globally_fenced")
        self.events.trim()
        _keep(self, "machine", "index", "serial", "events", "live_warps")


def _keep(record: object, *names: str) -> None:
    """Drop all other attributes; a dictionary made anew is smaller than one with its entries deleted."""
    record.__dict__ = {name: record.__dict__[name] for name in names}
