"""Statements that are refused by name."""

from __future__ import annotations

from tilemma.croqtile import ast
from tilemma.croqtile.operands import constant, future_of
from tilemma.croqtile.reader import Reader, reads
from tilemma.errors import Note
from tilemma.ir.refusals import NotBuiltYet, WrongValue


@reads(ast.CallStatement)
def call_host(r: Reader, node: ast.CallStatement) -> None:
    way = node.function.removeprefix("croq::cuda::setreg_")
    if way in ("inc", "dec") and way != node.function and len(node.args) == 1:
        set_registers(r, ast.SetRegisters(node.args[0], (ast.Suffix(way, span=node.span),), span=node.span))
        return
    if node.function.removeprefix("croq::cuda::evict_") in ("first", "last") and len(node.args) == 1:
        future_of(r, node.args[0], f"`call {node.function}`")
        r.notes.append(Note("this hint is not used: write it with the copy, `.evict_first`", node.span))
        return
    if node.function not in r.device_functions:
        raise refused_call(node)
    call = ast.Call(ast.Name(node.function, span=node.span), node.args, span=node.span)
    r.statement(ast.Evaluate(call, span=node.span))


def refused_call(node: ast.CallStatement) -> NotBuiltYet:
    return NotBuiltYet(
        node.span,
        what=f"`call {node.function}`",
        fix_text="write its statements here, or make it a macro (`#define`)",
    )


@reads(ast.SetRegisters, inside="`setreg`")
def set_registers(r: Reader, node: ast.SetRegisters) -> None:
    for s in node.suffixes:
        if s.name not in ("inc", "dec") or len(node.suffixes) > 1:
            wanted = "`setreg n`, `setreg.inc n` or `setreg.dec n`"
            raise WrongValue(
                s.span, what="`setreg`", got=f"`.{s.name}`", wanted=wanted, fix_text="write one of these"
            )
    count = constant(r, node.count, "the registers of a thread")
    if count % 8 or not 24 <= count <= 256:
        raise WrongValue(
            node.count.span,
            what="the registers of a thread",
            got=str(count),
            wanted="a multiple of 8 from 24 to 256",
            fix_text="use 40 for a role that copies, 232 for one that multiplies, or remove it",
        )
    # The compiler gives each role its registers (AssignRoles); `explain` prints their numbers.
    text = "the compiler shares out the registers of roles; this count is not used"
    r.notes.append(Note(text, node.span))


@reads(ast.Yield, inside="`yield`")
def yield_(r: Reader, node: ast.Yield) -> None:
    raise NotBuiltYet(node.span, what="`yield`", fix_text="put the rest under an `if`")
