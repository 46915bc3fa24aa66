"""Errors of the machine that are no hazards: what it cannot run, and calls that do not fit the program."""

from __future__ import annotations

from tilemma.errors import CompileError, LaunchError


class UnsupportedInstruction(CompileError):
    """An instruction or a form of it that the machine does not execute."""

    code = "ptx-unsupported"
    found = "the machine does not execute `{opcode}`{detail}"
    expected = "an instruction that the machine models (docs/machine.md lists them)"
    fix = "write it with modelled instructions, or run on a GPU"


class BadOperand(CompileError):
    """An operand that does not fit its instruction."""

    code = "ptx-operand"
    found = "`{opcode}`: {what}"
    expected = "operands as the PTX ISA gives them for this instruction"
    fix = "correct the operand; `ptxas` refuses it too"


class BadMachineCall(LaunchError):
    """Arguments of a machine run that do not fit the program or its launch plan."""

    code = "machine-arguments"
    found = "{what}"
    expected = "{want}"
    fix = "{how}"
