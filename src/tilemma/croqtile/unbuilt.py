"""Statements that are refused by name."""

from __future__ import annotations

from tilemma.croqtile import ast
from tilemma.croqtile.reader import Reader, reads
from tilemma.croqtile.refusals import NotBuiltYet


@reads(ast.CallStatement)
def call_host(r: Reader, node: ast.CallStatement) -> None:
    what = f"`call {node.function}`"
    fix = "write it in the language itself"
    if node.function.startswith("croq::cuda::setreg_"):
        fix = "remove it: registers are shared out by the compiler"
    raise NotBuiltYet(node.span, what=what, fix_text=fix)


@reads(ast.Yield, inside="`yield`")
def yield_(r: Reader, node: ast.Yield) -> None:
    raise NotBuiltYet(node.span, what="`yield`", fix_text="put the rest under an `if`")


@reads(ast.Reduce, inside="a reduction")
def reduce_(r: Reader, node: ast.Reduce) -> None:
    raise NotBuiltYet(node.span, what=f"`{node.word}`", fix_text="reduce through shared memory")
