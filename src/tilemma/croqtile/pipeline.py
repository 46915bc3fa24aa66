"""`[[pipeline(...)]]` before a loop or before `__co__`: the settings of automatic pipelining."""

from __future__ import annotations

from typing import Any

from tilemma.croqtile import ast
from tilemma.croqtile.operands import table_operand
from tilemma.croqtile.reader import Reader, reads
from tilemma.croqtile.tree import MisplacedName
from tilemma.croqtile.values import Value
from tilemma.ir.constructs import CHOICES
from tilemma.ir.pipeline import KERNEL_ONLY, OFF, ORDERS, PipelineSettings, kernel_setting_on_loop
from tilemma.ir.refusals import WrongValue

_SETTINGS = ("stages", "producer", "cluster", "persistent", "blocks", "order")


@reads(ast.NamedArgument)
def named_argument(_: Reader, node: ast.NamedArgument) -> Value:
    raise MisplacedName(node.span, name=node.name)


def pipeline_settings(r: Reader, node: ast.Expr) -> PipelineSettings | None:
    """The settings of ``[[node]]``; None if it is another attribute."""
    name, args = (node.function, node.args) if isinstance(node, ast.Call) else (node, ())
    return settings_of(r, args) if isinstance(name, ast.Name) and name.text == "pipeline" else None


def settings_of(r: Reader, args: tuple[ast.Expr, ...]) -> PipelineSettings:
    if len(args) == 1 and isinstance(args[0], ast.Name) and args[0].text == "off":
        return OFF
    found: dict[str, Any] = {}
    for a in args:
        if not isinstance(a, ast.NamedArgument) or a.name not in _SETTINGS:
            got = f"`{a.name}`" if isinstance(a, ast.NamedArgument) else "an operand without a name"
            if isinstance(a, ast.Name):
                got = f"`{a.text}`"
            raise _refused(a, got)
        if a.name in found:
            raise _refused(a, f"`{a.name}` twice")
        found[a.name] = _setting(r, a)
    return PipelineSettings(**found)


def _refused(node: ast.Expr, got: str) -> WrongValue:
    return WrongValue(
        node.span,
        what="`[[pipeline(...)]]`",
        got=got,
        wanted=f"`off` alone, or settings, each once: {', '.join(f'`{x}`' for x in _SETTINGS)}",
        fix_text="write `[[pipeline(stages=4)]]` or `[[pipeline(off)]]`",
    )


def _setting(r: Reader, a: ast.NamedArgument) -> Any:
    if a.name in ("stages", "cluster", "blocks"):
        return table_operand(r, a.name, a.value)
    if a.name == "order":
        word = a.value.text if isinstance(a.value, ast.Name) else "..."
        word = a.value.value if isinstance(a.value, ast.Str) else word
        if word not in ORDERS:
            raise CHOICES["order"].refused(word, a.value.span)
        return word
    if not isinstance(a.value, ast.Bool):
        raise WrongValue(
            a.value.span,
            what=f"`pipeline({a.name}=)`",
            got="no truth value",
            wanted="`true` or `false`",
            fix_text=f"write `{a.name}=true`",
        )
    return a.value.value


def loop_settings(r: Reader, args: tuple[ast.Expr, ...]) -> PipelineSettings:
    """The settings of a loop, from the operands of its attribute."""
    for a in args:
        if isinstance(a, ast.NamedArgument) and a.name in KERNEL_ONLY:
            raise kernel_setting_on_loop(a.name, a.span)
    return settings_of(r, args)


def kernel_settings(r: Reader) -> PipelineSettings | None:
    """The settings of the kernel, from the attributes before `__co__`."""
    found: PipelineSettings | None = None
    for node in r.function.attributes:
        settings = pipeline_settings(r, node)
        if settings is None or found is not None:
            raise WrongValue(
                node.span,
                what="`[[...]]` before `__co__`",
                got="a second `pipeline`" if settings is not None else "another attribute",
                wanted="`pipeline(...)`, once",
                fix_text="write `[[pipeline(stages=4)]] __co__ void ...`",
            )
        found = settings
    return found
