"""Instructions declared from outside the package: the checks that make a declaration a record."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray
from tensor_layouts import Layout

from tilemma.atoms import DECLARED, catalogue
from tilemma.atoms.atom import REGISTER_BITS, Meaning, MmaAtom, NoTarget, Operand, arch_number
from tilemma.checked import is_integer
from tilemma.dtypes import DType, UnknownDtype, dtype
from tilemma.errors import CompileError, described
from tilemma.layouts import offsets

LETTERS: Final = ("D", "A", "B", "C")
# The one effect besides reading and writing the registers of the operands.
ASYNC: Final = "async"
# Matrix instructions run on Turing and later; the PTX version is that of CUDA 12.8, the first to know sm_120.
_FIRST_ARCH, _PTX_VERSION = "sm_75", (8, 7)
_NAME = re.compile(r"[A-Za-z_]\w*\Z")


class WrongInstruction(CompileError, ValueError):
    code = "wrong-instruction"
    found = "instruction {name}: {what}"
    expected = "{wanted}"
    fix = "correct the declaration: `tm.instruction(name, shape, types, layouts, ptx)`"


class Declaration:
    """A declaration being checked; ``record`` is the result."""

    def __init__(self, name: object, shape: object, types: object, layouts: object) -> None:
        self.name = name if isinstance(name, str) else described(name)
        if not isinstance(name, str) or not _NAME.match(name):
            self._wrong(f"the name is {described(name)}", "letters, digits and `_`, as in MY_16x8x16_F16")
        known = catalogue.get(name)
        if known is not None and known.kind != DECLARED:
            self._wrong("an instruction of the catalogue has this name", "a name of its own")
        self.shape = self._shape(shape)
        self.types = self._types(types)
        m, n, k = self.shape
        self.extents = {"D": (m, n), "A": (m, k), "B": (n, k), "C": (m, n)}
        self.operands = self._operands(layouts)
        self.threads = self._threads()

    def _wrong(self, what: str, wanted: str) -> NoReturn:
        raise WrongInstruction(name=self.name, what=what, wanted=wanted)

    def _shape(self, given: object) -> tuple[int, int, int]:
        if (
            not isinstance(given, (tuple, list))
            or len(given) != 3
            or not all(is_integer(x) and 1 <= x <= 1 << 16 for x in given)
        ):
            have = ", ".join(map(described, given[:4])) if isinstance(given, (tuple, list)) else described(given)
            self._wrong(f"its shape is {have or 'empty'}", "M, N and K, three integers from 1 to 65536")
        m, n, k = map(int, given)
        return m, n, k

    def _types(self, given: object) -> dict[str, DType]:
        wanted = "the types of D, A, B and C, such as ('f16', 'f16', 'f16', 'f16')"
        if isinstance(given, Mapping):
            if unknown := [x for x in given if x not in LETTERS]:
                self._wrong(f"its types have operand {described(unknown[0])}", wanted)
            given = [given.get(letter, given.get("D") if letter == "C" else None) for letter in LETTERS]
        if not isinstance(given, (tuple, list)) or len(given) not in (3, 4):
            self._wrong(f"its types are {described(given)}", wanted)
        try:
            found = [dtype(t) for t in given]
        except UnknownDtype as error:
            self._wrong(f"its types have {error.facts['got']}", wanted)
        d, a, b = found[:3]
        c = found[3] if len(found) == 4 else d
        if c is not d:
            self._wrong(f"C is {c} and D is {d}", "one type for both: sums stay in the same registers")
        for letter, operand in (("A", a), ("B", b)):
            if d.name not in operand.accumulators:
                legal = ", ".join(operand.accumulators) or "no type"
                self._wrong(f"{letter} of {operand} is summed in {d}", f"an accumulator of {operand}: {legal}")
        return {"D": d, "A": a, "B": b, "C": c}

    def _operands(self, layouts: object) -> dict[str, Operand]:
        if not isinstance(layouts, Mapping) or not {"A", "B"} <= layouts.keys() <= set(LETTERS):
            got = f"for {', '.join(map(str, layouts))}" if isinstance(layouts, Mapping) else described(layouts)
            self._wrong(f"its layouts are {got}", "a layout for each of 'A', 'B' and 'C' (D is as C)")
        accumulator = layouts.get("C", layouts.get("D"))
        if layouts.get("D", accumulator) != accumulator:
            self._wrong("C and D have two layouts", "one layout: sums stay in the same registers")
        given = {"D": accumulator, "A": layouts["A"], "B": layouts["B"], "C": accumulator}
        return {letter: self._operand(letter, layout) for letter, layout in given.items()}

    def _operand(self, letter: str, layout: object) -> Operand:
        t, extents = self.types[letter], self.extents[letter]
        if layout is None and letter in "AB":
            return Operand(letter, t, extents, None, 1, "b64", ("K",))
        rows, cols = extents
        if not isinstance(layout, Layout) or not isinstance(layout.shape, tuple) or len(layout.shape) != 2:
            self._wrong(
                f"the layout of {letter} is {described(layout)}",
                f"a Layout of (thread, value) to row + {rows} * column of its {rows}x{cols} elements",
            )
        table = offsets(layout)
        outside = table[(table < 0) | (table >= rows * cols)]
        if outside.size:
            wanted = f"offsets below {rows * cols}: {letter} is {rows}x{cols}"
            self._wrong(f"{letter} reaches offset {outside[0]}", wanted)
        counts = np.bincount(table.reshape(-1), minlength=rows * cols)
        if not counts.all():
            at = int(np.flatnonzero(counts == 0)[0])
            self._wrong(
                f"no lane holds element ({at % rows}, {at // rows}) of {letter}",
                f"a layout that covers all {rows}x{cols} elements",
            )
        if len(np.unique(counts)) > 1 or (letter in "CD" and counts[0] != 1):
            at = int(counts.argmax())
            times = "once" if letter in "CD" else "equally often"
            self._wrong(
                f"{counts[at]} values are element ({at % rows}, {at // rows}) of {letter}", f"each element {times}"
            )
        self._check_separable(letter, table, rows)
        register, registers = self._registers(letter, t, table.shape[1])
        return Operand(letter, t, extents, layout, registers, register, shared_by=int(counts[0]))

    def _check_separable(self, letter: str, table: NDArray[np.int64], rows: int) -> None:
        """A lane's position must be a sum of one step for each set bit of its number: code computes it so."""
        row, col = table % rows - table[0] % rows, table // rows - table[0] // rows
        bits = 1 << np.arange((len(table) - 1).bit_length())
        inside = bits[bits < len(table)]
        chosen = (np.arange(len(table))[:, None] & inside > 0).astype(np.int64)
        for axis in (row, col):
            if (axis != axis[:, :1]).any() or (axis[:, 0] != chosen @ axis[inside, 0]).any():
                self._wrong(
                    f"the elements of a lane of {letter} are no sum of steps of the bits of its number",
                    "a layout whose thread mode has extents that are powers of two",
                )

    def _registers(self, letter: str, t: DType, values: int) -> tuple[str, int]:
        """Class and number of the registers of a lane."""
        register = "f64" if t.bits == 64 else "f32" if letter in "CD" and t.name == "f32" else "b32"
        bits = values * t.bits
        if bits % REGISTER_BITS[register]:
            self._wrong(
                f"a lane holds {values} elements of {t} of {letter}, {bits} bits",
                f"whole registers of {REGISTER_BITS[register]} bits",
            )
        return register, bits // REGISTER_BITS[register]

    def _threads(self) -> int:
        counts = {letter: o.threads for letter, o in self.operands.items() if o.in_registers}
        if len(set(counts.values())) > 1:
            text = ", ".join(f"{letter} {n}" for letter, n in counts.items() if letter != "D")
            self._wrong(f"its operands are distributed over different numbers of threads: {text}", "one number")
        threads = counts["D"]
        if threads not in (32, 128):
            self._wrong(f"it is executed by {threads} threads", "32 (a warp) or 128 (a warpgroup)")
        return threads

    def record(self, ptx: object, effects: object, meaning: object, archs: object, rank: object) -> MmaAtom:
        if meaning is not None and not _takes_three(meaning):
            self._wrong(f"its meaning is {described(meaning)}", "a function of A [M, K], B [N, K] and C [M, N]")
        if not is_integer(rank):
            self._wrong(f"its rank is {described(rank)}", "an integer; below 0 it is used by name only")
        text, in_place = self._text(ptx)
        targets = self._archs(archs)
        operands = self.operands
        return MmaAtom(
            name=self.name,
            kind=DECLARED,
            threads=self.threads,
            arch=targets[0],
            ptx_version=_PTX_VERSION,
            section="declared by the program",
            ptx=text,
            shape=self.shape,
            d=operands["D"],
            a=operands["A"],
            b=operands["B"],
            c=operands["C"],
            asynchronous=self._asynchronous(effects),
            in_place=in_place,
            rank=int(rank),  # type: ignore[call-overload]
            meaning=_checked(self.name, meaning, self.shape) if meaning is not None else None,
            archs=targets[1:],
        )

    def _text(self, given: object) -> tuple[str, bool]:
        """The template, and whether D is updated in place."""
        if given is None:
            return "", False
        wanted = "one PTX statement with {d}, {a}, {b} and {c} (without {c}: it adds to {d}), ended by `;`"
        if not isinstance(given, str) or not given.strip().endswith(";"):
            self._wrong(f"its text is {described(given)}", wanted)
        text = given.strip()
        try:
            holes = {hole for _, hole, _, _ in string.Formatter().parse(text) if hole is not None}
        except ValueError as error:
            self._wrong(f"its text is {text!r} ({error})", wanted)
        if unknown := sorted(holes - {"d", "a", "b", "c"}):
            self._wrong(f"its text names operand {{{unknown[0]}}}", wanted)
        if missing := sorted({"d", "a", "b"} - holes):
            self._wrong(f"its text does not name operand {{{missing[0]}}}", wanted)
        operands = [part.strip() for part in text.partition(" ")[2].rstrip("; ").split(",")]
        for hole in sorted(holes):
            if operands.count("{" + hole + "}") != 1:
                self._wrong(f"operand {{{hole}}} of its text is {text!r}", "each operand once, between commas")
        return text, "c" not in holes

    def _archs(self, given: object) -> tuple[str, ...]:
        wanted = (
            "PTX targets that have it, such as ('sm_80',); later ones have it too, unless they end in a letter"
        )
        if not isinstance(given, (tuple, list)) or not all(isinstance(a, str) for a in given):
            self._wrong(f"its archs are {described(given)}", wanted)
        for arch in given:
            try:
                known = arch_number(arch) >= arch_number(_FIRST_ARCH)
            except NoTarget:
                known = False
            if not known:
                self._wrong(f"its archs have `{arch}`", f"{wanted}; the first is {_FIRST_ARCH}")
        return tuple(given) or (_FIRST_ARCH,)

    def _asynchronous(self, given: object) -> bool:
        wanted = f"() or ({ASYNC!r},): it reads shared memory, and ends with the wait for its group, as wgmma"
        if not isinstance(given, (tuple, list)) or not all(x == ASYNC for x in given):
            self._wrong(f"its effects are {described(given)}", wanted)
        shared = [letter for letter, o in self.operands.items() if not o.in_registers]
        if shared and not given:
            self._wrong(f"{shared[0]} has no layout (shared memory), and its effects are ()", wanted)
        if given and (self.threads != 128 or not shared):
            why = (
                "A and B are in registers" if self.threads == 128 else f"it is executed by {self.threads} threads"
            )
            self._wrong(
                f"its effects are ({ASYNC!r},), and {why}", "a warpgroup, and B (or both) in shared memory"
            )
        return bool(given)


def _takes_three(meaning: object) -> bool:
    """Whether ``meaning`` can be called with three arguments; True where Python cannot tell."""
    if not callable(meaning):
        return False
    try:
        inspect.signature(meaning).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _checked(name: str, meaning: Any, shape: tuple[int, int, int]) -> Meaning:
    """``meaning``, whose result must be a matrix [M, N]."""
    m, n, _ = shape

    def checked(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
        result = np.asarray(meaning(a, b, c))
        if result.shape != (m, n) or result.dtype.kind not in "fiub":
            got = f"an array of {result.dtype} and shape {list(result.shape)}"
            wanted = f"numbers of shape [{m}, {n}]"
            raise WrongInstruction(name=name, what=f"its meaning returned {got}", wanted=wanted)
        return result

    return checked
