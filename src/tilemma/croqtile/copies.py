"""`dma` and `tma`: copies of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilemma.croqtile import ast
from tilemma.croqtile.operands import as_tile, constant, event_of, future_of, integer, plain, tile_of
from tilemma.croqtile.reader import Reader, reads
from tilemma.croqtile.values import Filled, Promise
from tilemma.errors import nearest
from tilemma.ir.constructs import CHOICES, KINDS, OPERANDS, SWIZZLES
from tilemma.ir.expr import Expr, value_of
from tilemma.ir.refusals import NotBuiltYet, NotConstant, WrongArity, WrongValue, wrong_member
from tilemma.ir.specialise import open_dimensions
from tilemma.ir.tiles import FutureValue, Tile, describe
from tilemma.ir.types import EventRef, Space

WHAT = ("copy", "load", "transp", "pad", "any")
OPTIONS = ("async", "swiz", "swizzle", "zfill", "sp", "promote", "multicast", "evict_first", "evict_last")


@reads(ast.Copy, inside="a copy")
def copy(r: Reader, node: ast.Copy, name: str | None = None) -> FutureValue | Promise:
    """Emit the copy; the future may be used in place of the written tile."""
    what, options = _suffixes(r, node)
    if what == "any" and name is not None:
        return Promise()
    if node.src is None or node.dst is None:
        raise WrongArity(
            node.span,
            what=f"{node.engine}.{what}",
            got=0,
            want="a source and a destination",
            form=f"{node.engine}.{what} src => dst",
        )
    src = _source(r, node.src, options)
    r.b.check_arrangement(src, options.get("transpose"), options.get("pad", ()), node.suffixes[0].span)
    dst = _destination(r, node)
    if node.after:
        options["after"] = tuple(future_of(r, f) for f in node.after)
    return r.b.copy(src, dst, engine=node.engine, name=name, span=node.span, **options)


def _source(r: Reader, node: ast.Expr, options: dict[str, Any]) -> Tile:
    value = r.value(node)
    if isinstance(value, Filled):
        options["zfill"] = True
        return value.tile
    return as_tile(r, value, node, "the source of a copy")


def _destination(r: Reader, node: ast.Copy) -> Tile | Space:
    if isinstance(node.dst, str):
        if node.dst == "global":
            raise NotBuiltYet(
                node.span, what="a new buffer in global memory (`=> global`)", fix_text="copy into a parameter"
            )
        return Space(node.dst)
    assert node.dst is not None
    name = node.dst.text if isinstance(node.dst, ast.Name) else ""
    if name and r.scopes.find(name) is None and nearest(name, CHOICES["to"].words):
        raise CHOICES["to"].refused(name, node.dst.span)
    return tile_of(r, node.dst, "the destination of a copy")


def _suffixes(r: Reader, node: ast.Copy) -> tuple[str, dict[str, Any]]:
    """The operation, and the options for the builder."""
    first, *rest = node.suffixes
    if first.name not in WHAT or (first.name == "load" and node.engine == "dma"):
        known = [w for w in WHAT if w != "load" or node.engine == "tma"]
        fix = f"write `{node.engine}.copy a => b;`"
        raise wrong_member(first.span, f"`{node.engine}`", first.name, known, fix, None)
    options: dict[str, Any] = {}
    # `dma.pad.async<...>`: the arguments may follow the last suffix.
    config = next((s.args for s in node.suffixes if s.had_args and s.name in ("transp", "pad")), ())
    said: set[str] = set()
    for s in rest:
        if s.name.startswith("evict_") and s.name not in OPTIONS:
            raise CHOICES["evict"].refused(s.name.removeprefix("evict_"), s.span)
        if s.name not in OPTIONS:
            raise wrong_member(s.span, f"`{node.engine}`", s.name, OPTIONS, subject=None)
        about = {"swizzle": "swiz", "evict_first": "evict", "evict_last": "evict"}.get(s.name, s.name)
        if about in said:
            got, wanted = f"`.{about}` twice", "each option of a copy once"
            raise WrongValue(s.span, what=f"`{node.engine}`", got=got, wanted=wanted, fix_text="leave one out")
        said.add(about)
        if s.name == "async":
            options["asynchronous"] = True
            if s.args and first.name in ("transp", "pad") and not config:
                config = s.args
            elif s.args:
                options["event"] = _event(r, s)
        elif s.name in ("swiz", "swizzle"):
            options["swizzle"] = swizzle_of(r, s)
        elif s.name == "promote":
            options["promote"] = _number(r, s, "promote")
        elif s.name == "sp":
            raise NotBuiltYet(s.span, what="a copy of sparse data (`.sp`)", fix_text="copy data and metadata")
        elif s.name.startswith("evict_"):
            options["evict"] = s.name.removeprefix("evict_")
        else:
            options[s.name] = True
    if first.name == "transp":
        options["transpose"] = _permutation(r, config)
    elif first.name == "pad":
        options["pad"], options["pad_value"] = _padding(r, first, config)
    return first.name, options


def _event(r: Reader, s: ast.Suffix) -> EventRef:
    if len(s.args) != 1:
        raise KINDS["event"].refused("`.async<...>`", f"{len(s.args)} arguments", s.span)
    return event_of(r, s.args[0], "`.async<...>`", s.span)


def _number(r: Reader, s: ast.Suffix, operand: str) -> int:
    if len(s.args) != 1:
        raise OPERANDS[operand].refused(f"{len(s.args)} numbers", s.span)
    return OPERANDS[operand].checked(constant(r, s.args[0], f"`.{s.name}`"), s.span)


def swizzle_of(r: Reader, s: ast.Suffix) -> int:
    """The width in bytes of a ``.swiz<N>``."""
    return SWIZZLES[_number(r, s, "swizzle")]


def _permutation(r: Reader, config: Sequence[ast.Expr]) -> tuple[int, ...]:
    nodes = config[0].items if len(config) == 1 and isinstance(config[0], ast.Tuple) else config
    return tuple(constant(r, n, "`.transp`") for n in nodes)


def _padding(r: Reader, s: ast.Suffix, config: Sequence[ast.Expr]) -> tuple[Any, Any]:
    """((low, high, inner) for each dimension, value)."""
    lists = [_numbers(r, c) for c in config[:3]]
    lengths = {len(x) for x in lists}
    if len(config) not in (3, 4) or len(lengths) != 1:
        raise WrongValue(
            s.span,
            what="`.pad`",
            got=f"{len(config)} arguments of {', '.join(str(len(x)) for x in lists) or 'no'} numbers",
            wanted="low, high and inner counts of at least 0, one for each dimension, and the value",
            fix_text="write `dma.pad<{0, 0}, {0, 1}, {0, 0}, 0.0f> src => dst`",
        )
    value = plain(r, config[3], "`.pad`") if len(config) == 4 else None
    return tuple(zip(*lists, strict=True)), value


def _numbers(r: Reader, node: ast.Expr) -> list[int | Expr]:
    """Constants, or what dimensions and parameters determine; NotConstant."""
    nodes = node.items if isinstance(node, ast.Tuple) else (node,)
    found: list[int | Expr] = []
    for n in nodes:
        e = integer(r, n, "`.pad`")
        known = value_of(e)
        if known is None and open_dimensions((e,)) is None:
            raise NotConstant(n.span, what="`.pad`", text=describe(e))
        found.append(e if known is None else known)
    return found
