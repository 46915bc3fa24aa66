"""Which declared types of registers an operand of an instruction takes (PTX ISA, "Type Checking of Instruction
Operands" and "Operand Size Exceeding Instruction-Type Size")."""

from __future__ import annotations

from tilemma.machine.syntax import TYPE_BYTES


def fits(declared: str, kind: str, *, wider: bool) -> bool:
    """Whether a register of type ``declared`` may be an operand of type ``kind``.

    ``wider``: in loads, stores and conversions it may have more bits than the type.  Untyped bits go with every
    type; signed and unsigned integers with each other; floats with the same float.  For ptxas, .f16x2 goes with
    integers too.
    """
    size, wanted = TYPE_BYTES[declared], TYPE_BYTES[kind]
    if size < wanted or (size > wanted and not wider):
        return False
    if kind[0] == "b" and kind[1:].isdigit():
        return True
    if declared[0] == "b":
        return True
    if kind[0] in "us" and kind[1:].isdigit():
        return declared[0] in "us" or declared == "f16x2"
    return declared == kind


def vector_fits(declared: list[str], kind: str, *, wider: bool) -> bool:
    """`fits` for the registers of a vector, where ptxas looks at all of them.

    They have one size, and floats do not stand beside integers.  Integers go with a float of their size, and
    floats with an integer beside registers of untyped bits.
    """
    bits = f"b{8 * TYPE_BYTES[kind]}"
    if not all(fits(one, bits, wider=wider) for one in declared) or len({TYPE_BYTES[x] for x in declared}) > 1:
        return False
    letters = {one[0] for one in declared}
    if "f" in letters and not letters.isdisjoint("us"):
        return kind[0] == "b"
    if "b" in letters or not letters:
        return True
    if kind[0] == "f" and "f" not in letters:
        return all(TYPE_BYTES[one] == TYPE_BYTES[kind] for one in declared)
    return all(fits(one, kind, wider=wider) for one in declared)


def constant_fits(form: str, kind: str) -> bool:
    """Whether a constant of ``form`` (``int``; ``f32`` for `0f...`; ``f64`` for `0d...` and decimals) may be an
    operand of type ``kind``."""
    if kind in ("f32", "f64"):
        return form != "int"
    if kind[0] in "us" or kind in ("b8", "b16", "pred"):
        return form == "int"
    if kind in ("b32", "b64"):
        return form in ("int", f"f{kind[1:]}")
    return False
