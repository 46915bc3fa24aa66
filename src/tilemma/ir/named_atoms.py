"""Instructions that a program names: `atom=NAME` of a multiply."""

from __future__ import annotations

from collections.abc import Iterator

from tilemma.atoms import DECLARED, MmaAtom, UnknownAtom, catalogue
from tilemma.atoms.atom import arch_number
from tilemma.dtypes import BY_NAME, DType
from tilemma.errors import CompileError, Span, described
from tilemma.ir.types import WARP


class NoSuchAtom(CompileError):
    code = "no-such-atom"
    found = "the instruction `{name}`, which {problem}"
    expected = "the name of a multiplying instruction, such as SM80_16x8x16_F32F16F16F32_TN"
    fix = "{suggestion}"


class AtomMismatch(CompileError):
    code = "atom-mismatch"
    found = "`{atom}` {problem}"
    expected = "{rule}"
    fix = "{remedy}"


def multiplying(name: object, span: Span | None) -> MmaAtom:
    """The record called ``name``, in any of the spellings that `catalogue` knows; NoSuchAtom, or AtomMismatch for
    one that cannot add up a product in place."""
    listed = "`tilemma atoms` lists all names"
    if not isinstance(name, str):
        raise NoSuchAtom(span, name=described(name), problem="is no name", suggestion=listed)
    try:
        atom = catalogue[name]
    except UnknownAtom as e:
        problem, suggestion = "is not in the catalogue", str(e.facts.get("suggestion", listed))
        raise NoSuchAtom(span, name=name, problem=problem, suggestion=suggestion) from None
    if not isinstance(atom, MmaAtom):
        raise NoSuchAtom(span, name=atom.name, problem=f"is {atom.kind}: it copies", suggestion=listed)
    if atom.c.dtype is not atom.d.dtype:
        raise AtomMismatch(
            span,
            atom=atom.name,
            problem=f"adds to {atom.c.dtype} and returns {atom.d.dtype}",
            rule="an instruction whose C and D have one type: the sums stay in their registers",
            remedy=f"name the instruction that adds to {atom.d.dtype}",
        )
    return atom


class NoFragment(CompileError):
    code = "no-fragment"
    found = "`{what}[{shape}]` of {dtype}"
    expected = "M, N, K and the element type of an instruction of a warp: {shapes}"
    fix = "{remedy}"


def of_lanes(atom: MmaAtom) -> bool:
    """Whether a warp executes ``atom`` with all operands in registers."""
    return atom.threads == WARP and all(x.in_registers for x in (atom.a, atom.b, atom.c, atom.d))


def fragment_atom(
    letter: str, shape: tuple[int, int, int], dtype: DType, named: object, what: str, span: Span | None
) -> MmaAtom:
    """The record whose operand ``letter`` a lane loads or stores: the one called ``named``, else that of this
    shape and type.  NoSuchAtom, AtomMismatch, NoFragment."""
    if named is not None:
        atom = multiplying(named, span)
        check_lanes(atom, span)
        if letter not in atom.operands:
            sparse = letter == "E"
            raise AtomMismatch(
                span,
                atom=atom.name,
                problem="has a dense A, without metadata" if sparse else "has no scales of blocks",
                rule="an instruction with a sparse A" if sparse else "an instruction with scales",
                remedy=f"name an instruction with {'SPARSE' if sparse else 'MXF8F6F4'} in its name",
            )
        if atom.shape != shape:
            raise AtomMismatch(
                span,
                atom=atom.name,
                problem=f"is {_by(atom.shape)}, not {_by(shape)}",
                rule="the M, N and K of the instruction",
                remedy=f"write `{what}[{', '.join(map(str, atom.shape))}]`, or name another instruction",
            )
        return atom
    known = [
        x for x in _candidates() if letter in x.operands and (letter == "E" or x.operands[letter].dtype is dtype)
    ]
    found = sorted((x for x in known if x.shape == shape), key=_preference)
    if not found:
        shapes = ", ".join(sorted({_by(x.shape) for x in known})) or f"none has {letter} of {dtype}"
        have = ", ".join(map(str, shape))
        remedy = "use one of these shapes, or name the instruction: `atom=NAME`"
        raise NoFragment(span, what=what, shape=have, dtype=dtype, shapes=shapes, remedy=remedy)
    layouts = {(x.operands[letter].layout, x.operands[letter].values) for x in found if x.kind == found[0].kind}
    if len(layouts) > 1:
        several = ", ".join(x.name for x in found[:4])
        remedy = "name the instruction: `atom=NAME`"
        raise NoFragment(
            span, what=what, shape=", ".join(map(str, shape)), dtype=dtype, shapes=several, remedy=remedy
        )
    return found[0]


def _preference(x: MmaAtom) -> tuple[bool, bool, int, str]:
    """The order of records for a fragment: dense ones first, those that programs declare last."""
    return x.kind == DECLARED, x.e is not None, -x.rank, x.name


def _candidates() -> Iterator[MmaAtom]:
    """The instructions of a warp with all operands in registers, those that programs declare last."""
    return (x for kind in ("mma.sync", "mma.sp", DECLARED) for x in catalogue.mma(kind) if of_lanes(x))


def lane_multiply_atom(
    named: object,
    types: tuple[DType, DType, DType],
    counts: tuple[int, int, int],
    span: Span | None,
    sparse: bool = False,
    scaled: bool = False,
) -> MmaAtom:
    """The record that multiplies a lane's values of these ``types`` and ``counts`` (A, B, C): the one called
    ``named``, else the only instruction that fits.  NoSuchAtom, AtomMismatch, NoFragment."""
    if named is not None:
        atom = multiplying(named, span)
        check_lanes(atom, span)
        if sparse != (atom.e is not None):
            raise AtomMismatch(
                span,
                atom=atom.name,
                problem=f"has a {'dense' if sparse else 'sparse'} A",
                rule="metadata for a sparse A, and none for a dense one",
                remedy="write `mma.row.col(d, a, b)`" if sparse else "write `mma.row.col.sp(d, a, b, e)`",
            )
        if scaled != (atom.sfa is not None):
            raise AtomMismatch(
                span,
                atom=atom.name,
                problem=f"has {'no ' if scaled else ''}scales of blocks",
                rule="two words of scales for an instruction with scales of blocks, and none for others",
                remedy="leave `.scale` out"
                if scaled
                else "load them with `load_matrix_sfa` and `load_matrix_sfb`, and write `.scale`",
            )
        for letter, t, n in zip("ABC", types, counts, strict=True):
            operand = atom.operands[letter]
            if operand.dtype is not t or operand.values != n:
                raise AtomMismatch(
                    span,
                    atom=atom.name,
                    problem=f"got {n} values of {t} as {letter}",
                    rule=f"{operand.values} values of {operand.dtype} of each lane",
                    remedy=f"load {letter} with `{'load_matrix_' + letter.lower()}`, or name another instruction",
                )
        return atom
    every = [x for x in _candidates() if x.rank >= 0 and sparse == (x.e is not None) and not scaled]
    fitting = [
        x
        for x in every
        if tuple(x.operands[i].dtype for i in "ABC") == types
        and tuple(x.operands[i].values for i in "ABC") == counts
    ]
    if len({x.ptx for x in fitting}) != 1:
        have = ", ".join(f"{n} of {t}" for n, t in zip(counts, types, strict=True))
        names = ", ".join(x.name for x in fitting[:4])
        remedy = "name the instruction: `atom=NAME`"
        if not fitting:
            names = "none takes these values (PTX ISA, 9.7.14.5, Matrix Fragments)"
            remedy = (
                "load the operands with `load_matrix_a` and `load_matrix_b`, and name the instruction: `atom=NAME`"
            )
        raise NoFragment(span, what="mma", shape=have, dtype="one lane's values", shapes=names, remedy=remedy)
    # Of the records of one text, the one that the most targets have.
    return min(fitting, key=lambda x: arch_number(x.arch))


def check_lanes(atom: MmaAtom, span: Span | None) -> None:
    """AtomMismatch for a record whose operands are not all values of a warp's lanes."""
    _check_types(atom, span)
    if of_lanes(atom):
        return
    raise AtomMismatch(
        span,
        atom=atom.name,
        problem=f"is executed by {atom.threads} threads",
        rule="an instruction of a warp, with operands in registers",
        remedy="multiply register tiles at the level of the group instead",
    )


def check_level(atom: MmaAtom, span: Span | None) -> None:
    """AtomMismatch for a record that a multiply of register tiles cannot name."""
    _check_types(atom, span)
    if atom.sfa is not None:
        raise AtomMismatch(
            span,
            atom=atom.name,
            problem="takes scales of blocks along K",
            rule="an instruction without them: register tiles have none",
            remedy="multiply one lane's registers: `mma.row.col.scale` with `load_matrix_sfa`, `load_matrix_sfb`",
        )


def _check_types(atom: MmaAtom, span: Span | None) -> None:
    """AtomMismatch for a record of elements that no array has."""
    if (t := atom.a.dtype).name not in BY_NAME:
        raise AtomMismatch(
            span,
            atom=atom.name,
            problem=f"takes two elements of {t.ptx} in a byte, and the language has one in a byte",
            rule="an instruction whose elements are of a type of the language",
            remedy="name an instruction of the kinds f8f6f4 or mxf8f6f4; `tilemma show` and `emit` know this one",
        )


def _by(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))
