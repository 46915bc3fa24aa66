"""Statements that are refused by name."""

from __future__ import annotations

from tilemma.croqtile import ast
from tilemma.croqtile.reader import Reader, reads
from tilemma.errors import Note
from tilemma.ir.refusals import NotBuiltYet


@reads(ast.CallStatement)
def call_host(r: Reader, node: ast.CallStatement) -> None:
    if node.function in ("croq::cuda::setreg_inc", "croq::cuda::setreg_dec"):
        # The compiler gives each role its registers (AssignRoles); `explain` prints their numbers.
        text = "the compiler shares out the registers of roles; this count is not used"
        r.notes.append(Note(text, node.span))
        return
    what = f"`call {node.function}`"
    raise NotBuiltYet(node.span, what=what, fix_text="write it in the language itself")


@reads(ast.Yield, inside="`yield`")
def yield_(r: Reader, node: ast.Yield) -> None:
    raise NotBuiltYet(node.span, what="`yield`", fix_text="put the rest under an `if`")


@reads(ast.Reduce, inside="a reduction")
def reduce_(r: Reader, node: ast.Reduce) -> None:
    raise NotBuiltYet(node.span, what=f"`{node.word}`", fix_text="reduce through shared memory")
