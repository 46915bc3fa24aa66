"""Errors of the machine that are not hazards: unsupported PTX, and calls that do not fit the program."""

from __future__ import annotations

from tilemma.errors import CompileError, LaunchError


class UnsupportedInstruction(CompileError):
    """An instruction or a form of it that the machine does not execute."""

    code = "ptx-unsupported"
    found = "the machine does not execute `{opcode}`{detail}"
    expected = "an instruction and a form that the machine models; docs/machine.md lists them by section{section}"
    fix = "write it with modelled instructions, or run on a GPU"


class BadOperand(CompileError):
    """An operand that does not fit its instruction."""

    code = "ptx-operand"
    found = "`{opcode}`: {what}"
    expected = "operands as the PTX ISA gives them for this instruction"
    fix = "correct the operand; `ptxas` refuses it too"


class MachineLimit(CompileError):
    """A program that would take more of this computer than the machine takes."""

    code = "machine-limit"
    found = "{what}"
    expected = "at most {limit}"
    fix = "{how}"


class MachineFailure(CompileError):
    """``cause`` is the internal exception, with its traceback."""

    code = "machine-failure"
    found = "the PTX machine failed while it executed `{entry}`: {what}"
    expected = "a result, or an error that says what is wrong with the program"
    fix = "this is a mistake in tilemma, not in your program: please report it with the PTX"
    cause: BaseException | None = None


class BadMachineCall(LaunchError, TypeError):
    """Arguments of a machine run that do not fit the program or its launch plan."""

    code = "machine-arguments"
    found = "{what}"
    expected = "{want}"
    fix = "{how}"
