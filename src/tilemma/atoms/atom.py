"""The records of the instruction catalogue.  A record proves itself when it is made.

Two numberings meet here.  *Lane* is the thread within the unit that executes the instruction (0-31 in a
warp, 0-127 in a warpgroup); *value* counts the elements that one lane holds, in register order: value v lies
in register v // pack, bits (v % pack) * element bits and up.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from functools import cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from tensor_layouts import Layout, size

from tilemma.atoms.measured import Measured, measured
from tilemma.checked import checked, instance, integer, one_of
from tilemma.display import Displayed
from tilemma.dtypes import DType
from tilemma.errors import CompileError, described
from tilemma.forking import cached_property
from tilemma.layouts import Major, flat_modes, offsets
from tilemma.records import record

TARGET: Final = instance("a PTX target such as 'sm_90a'", str)
_TEXT: Final = instance("an operand as text", str)
_NOT_PROVABLE: Final = ("section", "rates", "ptx_version", "emulated", "rank", "meaning", "archs")
# Operands that few records have.
_SCALES: Final = ("sfa", "sfb")
# The kind of records that a program declares.
DECLARED: Final = "declared"
# PTX register classes, and a CPU's tile registers: an AMX tile is 16 rows of 64 bytes.
REGISTER_BITS: Final = {"b16": 16, "b32": 32, "f32": 32, "b64": 64, "f64": 64, "tmm": 8192}


class WrongEmission(CompileError, ValueError):
    code = "wrong-emission"
    found = "{atom} got {what}"
    expected = "{wanted}"
    fix = "`tilemma show {atom}` prints the operands, their registers and the qualifiers"


class NoTarget(CompileError, ValueError):
    code = "no-target"
    found = "`{arch}` is no PTX target"
    expected = "a target such as sm_90a"
    fix = "correct it"


class WrongFragment(CompileError, ValueError):
    code = "wrong-fragment"
    found = "operand {operand} got {what}"
    expected = "{wanted}"
    fix = "pass a matrix or fragments of this shape"


@cache
def _table(layout: Any) -> NDArray[np.int64]:
    """The offsets of a thread-value layout; records share layouts, so each is worked out once."""
    table = offsets(layout)
    table.flags.writeable = False
    return table


@cache
def _extents(layout: Any) -> tuple[int, ...]:
    """The number of offsets of each top-level mode of ``layout``: threads and values."""
    return tuple(size(mode) for mode in layout.shape)


@cache
def _is_exact(layout: Any, elements: int) -> bool:
    """Whether ``layout`` reaches each of ``elements`` offsets once, seen from its modes alone.

    So it is when every stride is the product of the extents of the modes with smaller strides: the offset is then
    a number written in mixed radix, each mode a digit of it.
    """
    if not isinstance(layout, Layout):  # composed with a swizzle
        return False
    reached = 1
    for extent, stride in sorted(flat_modes(layout), key=lambda mode: mode[1]):
        if extent > 1 and stride != reached:
            return False
        reached *= extent
    return reached == elements


@cache
def _coverage(layout: Any, elements: int) -> tuple[int, int, int, int]:
    """The least and the largest offset of a layout; how often, at least and at most, it reaches an element."""
    if _is_exact(layout, elements):
        return 0, elements - 1, 1, 1
    table = _table(layout)
    counts = np.bincount(table.reshape(-1), minlength=elements)
    return int(table.min()), int(table.max()), int(counts.min()), int(counts.max())


@record(slots=False)
class Operand:
    """One operand: which lane holds which element, in which register.

    ``shape`` is (rows, cols): A is (M, K), B is (N, K) as in CuTe, C and D are (M, N); of a sparse A, cols
    counts the stored elements.  ``layout`` maps (thread, value) to row + rows * col, CuTe's column-major tile
    coordinates; None when the instruction reads the operand from shared memory through a descriptor, in
    which case ``registers`` is 1 and ``register`` "b64".  ``majors`` are the legal majornesses; an operand in
    registers has none to choose.  ``shared_by`` lanes hold each element (metadata may be replicated).  ``shift``:
    the bits of an element's place that lie below it.
    """

    name: str
    dtype: DType
    shape: tuple[int, int]
    layout: Any | None
    registers: int
    register: str
    majors: tuple[Major, ...] = ()
    shared_by: int = 1
    # Kept out of the hashes of records that GPUs have proven, which have none.
    shift: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        rows, cols = self.shape
        if self.layout is None:
            assert (self.registers, self.register) == (1, "b64") and self.majors, self
            return
        lowest, highest, fewest, most = _coverage(self.layout, rows * cols)
        assert lowest >= 0 and highest < rows * cols, f"{self.name}: outside {self.shape}"
        assert fewest == most == self.shared_by, f"{self.name}: {self.shape} is not covered exactly"
        held = self.registers * REGISTER_BITS[self.register]
        assert held == self.values * self.dtype.bits, f"{self.name}: {self.registers} x {self.register}"

    def __hash__(self) -> int:
        # Layouts take long to hash.
        return hash((self.name, self.shape, self.registers))

    @cached_property
    def coordinates_table(self) -> NDArray[np.int64]:
        """Column-major tile offset of each (lane, value), shape (threads, values)."""
        return _table(self.layout)

    @property
    def in_registers(self) -> bool:
        return self.layout is not None

    @property
    def memory_shape(self) -> tuple[int, int]:
        """``shape`` in elements of memory, which for types of less than a byte are bytes."""
        return self.shape[0], self.shape[1] // self.dtype.per_byte

    @property
    def values(self) -> int:
        """Elements that one lane holds; 0 for an operand in shared memory."""
        return _extents(self.layout)[1] if self.layout is not None else 0

    @property
    def threads(self) -> int:
        return _extents(self.layout)[0] if self.layout is not None else 0

    @property
    def pack(self) -> int:
        """Elements in one register."""
        return REGISTER_BITS[self.register] // self.dtype.bits

    def coordinates(self, lane: int, value: int) -> tuple[int, int]:
        """The (row, col) of value ``value`` of lane ``lane``."""
        integer(0, self.threads - 1).check("coordinates", "lane", lane)
        integer(0, self.values - 1).check("coordinates", "value", value)
        at = int(self.coordinates_table[lane, value])
        return at % self.shape[0], at // self.shape[0]

    def place(self, value: int) -> tuple[int, int]:
        """The place of ``value`` in a lane's registers: (register, lowest bit)."""
        integer(0, self.values - 1).check("place", "value", value)
        return value // self.pack, value % self.pack * self.dtype.bits + self.shift

    def owners(self) -> list[list[list[tuple[int, int]]]]:
        """For each row and column every (lane, value) that holds the element.

        Raises WrongFragment for an operand in shared memory: no lane owns any of it.
        """
        self._in_lanes()
        rows, cols = self.shape
        found: list[list[list[tuple[int, int]]]] = [[[] for _ in range(cols)] for _ in range(rows)]
        for lane, row in enumerate(self.coordinates_table):
            for value, at in enumerate(row):
                found[at % rows][at // rows].append((lane, value))
        return found

    def gather(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """The fragments of ``matrix`` (rows x cols): shape (threads, values)."""
        self._in_lanes()
        return self._array(matrix, self.shape).reshape(-1, order="F")[self.coordinates_table]

    def scatter(self, fragments: NDArray[Any]) -> NDArray[Any]:
        """Inverse of `gather`: (threads, values) to rows x cols."""
        self._in_lanes()
        fragments = self._array(fragments, (self.threads, self.values))
        flat = np.zeros(self.shape[0] * self.shape[1], dtype=fragments.dtype)
        flat[self.coordinates_table.reshape(-1)] = fragments.reshape(-1)
        return flat.reshape(self.shape, order="F")

    def _in_lanes(self) -> None:
        if self.layout is None:
            wanted = "an operand in registers: no lane holds any of this one"
            raise WrongFragment(operand=self.name, what="a call, but is read from shared memory", wanted=wanted)

    def _array(self, given: Any, shape: tuple[int, int]) -> NDArray[Any]:
        """``given`` as an array of ``shape``; WrongFragment where it is none."""
        wanted = f"an array of shape {shape}"
        if not isinstance(given, np.ndarray):
            raise WrongFragment(operand=self.name, what=described(given), wanted=wanted)
        if given.shape != shape:
            raise WrongFragment(operand=self.name, what=f"an array of shape {given.shape}", wanted=wanted)
        return given

    def matrices(self) -> tuple[tuple[int, int], ...] | None:
        """For each register the (row, col) origin of its matrix of 8 rows of 16 bytes, as ldmatrix loads it.

        In such a matrix lane l holds bytes 4 * (l % 4) to 4 * (l % 4) + 3 of row l // 4 (PTX ISA, ldmatrix), the
        lanes of a warp each.  None when the fragment is not made of such matrices.  The origins are those of
        warp 0; the other warps of a warpgroup have theirs 16 rows further each.
        """
        if self.layout is None or self.register != "b32":
            return None
        lane, element = np.arange(32)[:, None], np.arange(self.pack)[None, :]
        pattern = lane // 4 + (self.pack * (lane % 4) + element) * self.shape[0]
        origins = []
        for register in range(self.registers):
            there = self.coordinates_table[:32, self.pack * register : self.pack * (register + 1)]
            if not np.array_equal(there - there[0, 0], pattern):
                return None
            origins.append((int(there[0, 0]) % self.shape[0], int(there[0, 0]) // self.shape[0]))
        return tuple(origins)


@record
class Immediate:
    """A qualifier of the instruction that is chosen when it is emitted: a constant or a predicate."""

    name: str
    legal: tuple[int, ...]
    default: int
    predicate: bool = False

    def text(self, given: int | str | None) -> str:
        if isinstance(given, str):
            wanted = "one of its constants, or for a predicate a register"
            if not self.predicate:
                raise WrongEmission(atom="the instruction", what=f"{self.name} = {given!r:.60}", wanted=wanted)
            return given
        value = self.default if given is None else given
        one_of(*self.legal).check("emit", self.name, value)
        return str(int(value))


# The function of an instruction: D [M, N] of A [M, K], B [N, K] and C [M, N], matrices of values.
Meaning = Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]


@record
class Rate:
    """Multiply-adds per SM and clock at full throughput on one architecture, and the source of the number."""

    arch: str
    fma: int
    source: str


@cache
def arch_number(arch: str) -> tuple[int, str]:
    """`sm_90a` as (90, "a"); NoTarget, a ValueError, for anything that is no PTX target."""
    digits, suffix = arch.removeprefix("sm_"), ""
    if digits and digits[-1] in "af":
        digits, suffix = digits[:-1], digits[-1]
    if not arch.startswith("sm_") or not digits.isdigit():
        raise NoTarget(arch=arch)
    return int(digits), suffix


def _allows(arch: str, target: str) -> bool:
    """Whether PTX for ``target`` may contain an instruction that ``arch`` introduced."""
    if not isinstance(target, str):
        TARGET.check("runs_on", "target", target)
    need, suffix = arch_number(arch)
    have, have_suffix = arch_number(target)
    return (have, have_suffix) == (need, suffix) if suffix else have >= need


@record(slots=False)
class _Instruction(Displayed):
    """The common part of every record: name, threads, architecture, and the PTX as a template."""

    name: str
    kind: str
    threads: int
    arch: str
    ptx_version: tuple[int, int]
    section: str
    ptx: str
    immediates: tuple[Immediate, ...] = ()

    def runs_on(self, target: str) -> bool:
        """Whether PTX for ``target`` may contain it.

        Code for a plain target runs on any later GPU; one with a suffix (`sm_90a`) only on that one.
        """
        return _allows(self.arch, target)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every property that hardware could contradict: PTX, shapes, types, layouts, registers."""
        present = (f.name for f in fields(self) if f.name not in _SCALES or getattr(self, f.name) is not None)
        facts = [f"{name}={getattr(self, name)}" for name in present if name not in _NOT_PROVABLE]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

    @property
    def measured(self) -> Measured | None:
        """Its latency and rate on hardware, None where it has not been measured."""
        return measured(self.name)

    @cached_property
    def holes(self) -> tuple[str, ...]:
        return tuple(n for _, n, _, _ in string.Formatter().parse(self.ptx) if n)

    def _fill(self, texts: Mapping[str, str], chosen: Mapping[str, Any]) -> str:
        known = {i.name for i in self.immediates}
        if not known.issuperset(chosen):
            wanted = f"the qualifiers {', '.join(sorted(known)) or 'none'}"
            raise WrongEmission(atom=self.name, what=", ".join(sorted(set(chosen) - known)), wanted=wanted)
        return self.ptx.format(**texts, **{i.name: i.text(chosen.get(i.name)) for i in self.immediates})


@record(slots=False)
class MmaAtom(_Instruction):
    """D = A x B + C as one instruction.

    ``shape`` is (M, N, K).  ``e`` is the metadata of a sparse A; ``sfa`` and ``sfb`` are the scales of blocks of
    A's and B's rows along K, codes of their type; ``in_place`` says that C and D are the same registers.
    ``effects`` of an asynchronous record end with its wait, not with the statement.
    ``meaning``: the function if it is not the product and sum, else None.  ``rank``: the compiler prefers a
    higher one, and never chooses a record below 0, which programs use by name.  ``emulated``: the
    targets on which ptxas makes several instructions of it (seen in SASS).  ``archs``: further targets that have
    it, besides ``arch``.  A record without ``ptx`` is one for the reference executor only.
    """

    shape: tuple[int, int, int] = (0, 0, 0)
    d: Operand = None  # type: ignore[assignment]
    a: Operand = None  # type: ignore[assignment]
    b: Operand = None  # type: ignore[assignment]
    c: Operand = None  # type: ignore[assignment]
    e: Operand | None = None
    sfa: Operand | None = None
    sfb: Operand | None = None
    asynchronous: bool = False
    in_place: bool = False
    rates: tuple[Rate, ...] = ()
    rank: int = 0
    meaning: Meaning | None = None
    emulated: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        m, n, k = self.shape
        assert self.c.shape == self.d.shape == (m, n), self.name
        assert self.a.shape == (m, k if self.e is None else self.a.shape[1]), self.name
        assert self.b.shape == (n, k), self.name
        assert self.c.layout == self.d.layout or self.c.dtype != self.d.dtype, self.name
        assert self.d.in_registers and self.c.in_registers, self.name
        assert self.d.dtype.name in self.a.dtype.accumulators, f"{self.name}: {self.d.dtype}"
        for operand in self.operands.values():
            assert operand.layout is None or operand.threads == self.threads, f"{self.name}.{operand.name}"
        given = {i.name for i in self.immediates}
        holes = {n.lower() for n in self.operands} - ({"c"} if self.in_place else set())
        assert not self.ptx or set(self.holes) == holes | given, f"{self.name}: holes {self.holes}"

    def runs_on(self, target: str) -> bool:
        """Whether PTX for ``target`` may contain it: see `_Instruction`; one without PTX runs on none."""
        return bool(self.ptx) and any(_allows(arch, target) for arch in (self.arch, *self.archs))

    @cached_property
    def operands(self) -> dict[str, Operand]:
        """Operands by letter, in the order of the name: D, A, B, C, E for metadata, SFA and SFB for scales."""
        found = {"D": self.d, "A": self.a, "B": self.b, "C": self.c}
        more = {"E": self.e, "SFA": self.sfa, "SFB": self.sfb}
        return {**found, **{letter: x for letter, x in more.items() if x is not None}}

    @property
    def flops(self) -> int:
        m, n, k = self.shape
        return 2 * m * n * k

    def emit(
        self,
        *,
        d: Sequence[str],
        a: Sequence[str] | str,
        b: Sequence[str] | str,
        c: Sequence[str] | None = None,
        e: Sequence[str] | str | None = None,
        sfa: Sequence[str] | str | None = None,
        sfb: Sequence[str] | str | None = None,
        **immediates: int | str,
    ) -> str:
        """One PTX statement, without a predicate.

        ``d``, ``a``, ``b``, ``c`` are register names, as many as in the record; an operand read from shared
        memory is the name of the 64-bit register with its descriptor.  Immediates are given by name
        (`scale_d="%p1"`, `trans_b=1`); those left out take the record's default.
        """
        given: dict[str, Any] = {"d": d, "a": a, "b": b, "e": e, "sfa": sfa, "sfb": sfb}
        if self.in_place:
            if c is not None and c != d:
                raise WrongEmission(
                    atom=self.name, what="`c`, another than `d`", wanted="`d` alone: it works in place"
                )
        else:
            given["c"] = d if c is None else c
        texts = {}
        for letter, operand in self.operands.items():
            if letter.lower() in given and letter.lower() in self.holes:
                texts[letter.lower()] = _registers(self.name, operand, given[letter.lower()], self.kind != "fma")
        return self._fill(texts, immediates)


def _registers(name: str, operand: Operand, given: Sequence[str] | str, braces: bool) -> str:
    names = [given] if isinstance(given, str) else given
    try:
        text = ", ".join(names) if isinstance(names, (list, Sequence)) else None
    except TypeError:
        text = None
    if text is None or len(names) != operand.registers:
        wanted = f"{operand.registers} names of registers for {operand.name}"
        if text is None:
            raise WrongEmission(atom=name, what=f"{described(given)} for {operand.name}", wanted=wanted)
        raise WrongEmission(atom=name, what=f"{len(names)} registers for {operand.name}", wanted=wanted)
    # Metadata and scales are one register, not a vector.
    plain = operand.layout is None or not braces or operand.name in ("E", "SFA", "SFB")
    return names[0] if plain else "{" + text + "}"


CopyKind = Literal["ldmatrix", "stmatrix", "cp.async"]


@record(slots=False)
class CopyAtom(_Instruction):
    """A copy between memory and registers, or from global to shared memory.

    ``rows`` x ``row_bytes`` bytes move: for ldmatrix and stmatrix ``rows`` counts the rows of all 8x8
    matrices one below the other, and ``addressing`` maps a row to the lane whose address operand points at
    it; ``fragment`` maps each 16-bit element of that (rows, 8) tile to its lane.  cp.async is one
    lane's copy of one row and leaves no fragment.
    """

    rows: int = 1
    row_bytes: int = 16
    matrices: int = 0
    trans: bool = False
    fragment: Operand | None = None
    addressing: Any | None = None
    asynchronous: bool = False

    def __post_init__(self) -> None:
        if self.fragment is None:
            assert self.rows == 1 and self.matrices == 0, self.name
            return
        assert self.rows == 8 * self.matrices and self.fragment.shape == (self.rows, 8), self.name
        assert self.fragment.registers == self.matrices and self.fragment.threads == self.threads, self.name
        assert self.rows <= self.threads and _is_exact(self.addressing, self.rows), self.name

    @property
    def bytes(self) -> int:
        """Bytes that one execution moves."""
        return self.rows * self.row_bytes

    def lane_of_row(self, row: int) -> int:
        """The lane whose address operand points at row ``row``."""
        if type(row) is not int or not 0 <= row < self.rows:
            integer(0, self.rows - 1).check("lane_of_row", "row", row)
        return int(self.addressing(row)) if self.addressing is not None else 0

    def emit(
        self,
        *,
        address: str,
        registers: Sequence[str] = (),
        source: str = "",
        source_size: str | int | None = None,
    ) -> str:
        """One PTX statement, without a predicate.

        ``address`` is the 32-bit shared-memory address operand; ``registers`` the fragment (ldmatrix,
        stmatrix); ``source`` the 64-bit global address of a cp.async, of which ``source_size`` bytes are
        read and the rest of the row is zero.
        """
        for name, value in (("address", address), ("source", source)):
            _TEXT.check("emit", name, value)
        if self.fragment is not None:
            if source:
                raise WrongEmission(atom=self.name, what="a `source`", wanted="`address` and `registers`")
            texts = {"registers": _registers(self.name, self.fragment, registers, True), "address": address}
            return self._fill(texts, {})
        if not source or not isinstance(registers, (tuple, list)) or registers:
            raise WrongEmission(
                atom=self.name, what="no `source`, or `registers`", wanted="`address` and `source`"
            )
        size = "" if source_size is None else f", {source_size}"
        return self._fill({"address": address, "source": source, "source_size": size}, {})


Atom = MmaAtom | CopyAtom


@checked(atom=instance("a multiplying instruction", MmaAtom))
def contract(atom: MmaAtom, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """The function of ``atom`` on fragments: D's fragments, shape (threads, values).

    ``a``, ``b``, ``c`` are fragments (threads, values) of operands in registers and matrices (rows, cols) of
    those in shared memory.  Products and sums are taken in float64 (int64 for integers) and rounded to D's
    type once; the hardware's own rounding of the accumulation is not modelled.
    """
    if atom.e is not None:
        wanted = "an instruction without metadata: expand the operand first"
        raise WrongFragment(operand="E", what=f"the sparse {atom.name}", wanted=wanted)
    wide = np.int64 if atom.d.dtype.is_integer else np.float64
    lhs, rhs = (
        (o.scatter(x) if o.in_registers else o._array(x, o.shape)).astype(wide)
        for o, x in ((atom.a, a), (atom.b, b))
    )
    total = lhs @ rhs.T + atom.c.scatter(c).astype(wide)
    return atom.d.gather(total.astype(atom.d.dtype.numpy))
