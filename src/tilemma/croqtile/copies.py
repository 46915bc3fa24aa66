"""`dma` and `tma` statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilemma.croqtile import ast
from tilemma.croqtile.refusals import NotBuiltYet, WrongArity, WrongMember, WrongValue, one_of
from tilemma.croqtile.values import Events, Filled, kind
from tilemma.errors import nearest
from tilemma.ir.constructs import CHOICES, OPERANDS, SWIZZLES
from tilemma.ir.tiles import FutureValue, Tile
from tilemma.ir.types import EventRef, Space

if TYPE_CHECKING:
    from tilemma.croqtile.build import Reader

WHAT = ("copy", "load", "transp", "pad", "any")
OPTIONS = ("async", "swiz", "swizzle", "zfill", "sp", "promote", "multicast", "evict_first", "evict_last")


class Copies:
    """The part of a `Reader` that knows copies."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def copy(self, node: ast.Copy, name: str | None) -> FutureValue:
        """Emit the copy; the future stands for the tile written."""
        what, options = self._suffixes(node)
        if node.src is None or node.dst is None:
            raise WrongArity(
                node.span,
                what=f"{node.engine}.{what}",
                got=0,
                want="a source and a destination",
                form=f"{node.engine}.{what} src => dst",
            )
        src = self._source(node.src, options)
        self.reader.b.check_arrangement(
            src, options.get("transpose"), options.get("pad", ()), node.suffixes[0].span
        )
        dst = self._destination(node)
        if node.after:
            options["after"] = tuple(self._future_name(f) for f in node.after)
        return self.reader.b.copy(src, dst, engine=node.engine, name=name, span=node.span, **options)

    def _future_name(self, node: ast.Expr) -> str:
        value = self.reader.value(node)
        if not isinstance(value, FutureValue) or not value.name:
            raise WrongValue(
                node.span,
                what="`after`",
                got=kind(value),
                wanted="the future of an asynchronous copy",
                fix_text="name the result of a `dma.copy.async`",
            )
        return value.name

    def _source(self, node: ast.Expr, options: dict[str, Any]) -> Tile:
        value = self.reader.value(node)
        if isinstance(value, Filled):
            options["zfill"] = True
            return value.tile
        return self.reader.views.as_tile(value, node, "the source of a copy")

    def _destination(self, node: ast.Copy) -> Tile | Space:
        if isinstance(node.dst, str):
            if node.dst == "global":
                raise NotBuiltYet(
                    node.span, what="a new buffer in global memory (`=> global`)", fix_text="copy into a parameter"
                )
            return Space(node.dst)
        assert node.dst is not None
        return self.reader.views.tile(node.dst, "the destination of a copy")

    # ---- suffixes ----------------------------------------------------------------------------------------

    def _suffixes(self, node: ast.Copy) -> tuple[str, dict[str, Any]]:
        """What is done, and the options for the builder."""
        first, *rest = node.suffixes
        if first.name not in WHAT or (first.name == "load" and node.engine == "dma"):
            raise self._unknown(first, node.engine, [w for w in WHAT if w != "load" or node.engine == "tma"])
        options: dict[str, Any] = {}
        # `dma.pad.async<...>`: the arguments may stand after the last suffix.
        config = next((s.args for s in node.suffixes if s.had_args and s.name in ("transp", "pad")), ())
        said: set[str] = set()
        for s in rest:
            if s.name.startswith("evict_") and s.name not in OPTIONS:
                raise CHOICES["evict"].refused(s.name.removeprefix("evict_"), s.span)
            if s.name not in OPTIONS:
                raise self._unknown(s, node.engine, OPTIONS)
            about = {"swizzle": "swiz", "evict_first": "evict", "evict_last": "evict"}.get(s.name, s.name)
            if about in said:
                got, wanted = "said before", "each option of a copy once"
                raise WrongValue(s.span, what=f"`.{s.name}`", got=got, wanted=wanted, fix_text="leave one out")
            said.add(about)
            if s.name == "async":
                options["asynchronous"] = True
                if s.args and first.name in ("transp", "pad") and not config:
                    config = s.args
                elif s.args:
                    options["event"] = self._event(s)
            elif s.name in ("swiz", "swizzle"):
                options["swizzle"] = self.swizzle(s)
            elif s.name == "promote":
                options["promote"] = self._number(s, "promote")
            elif s.name == "sp":
                raise NotBuiltYet(s.span, what="a copy of sparse data (`.sp`)", fix_text="copy data and metadata")
            elif s.name.startswith("evict_"):
                options["evict"] = s.name.removeprefix("evict_")
            else:
                options[s.name] = True
        if first.name == "transp":
            options["transpose"] = self._permutation(config)
        elif first.name == "pad":
            options["pad"], options["pad_value"] = self._padding(first, config)
        return first.name, options

    def _unknown(self, s: ast.Suffix, engine: str, known: Sequence[str]) -> WrongMember:
        near = nearest(s.name, known)
        return WrongMember(
            s.span,
            kind=f"`{engine}`",
            name=s.name,
            known=one_of(known),
            suggestion=f"did you mean `.{near}`?" if near else "remove it",
        )

    def _event(self, s: ast.Suffix) -> EventRef:
        value = self.reader.value(s.args[0])
        if len(s.args) != 1 or not isinstance(value, Events):
            raise WrongValue(
                s.span,
                what="`.async<...>`",
                got=kind(value),
                wanted="an event",
                fix_text="write `.async<full[s]>` with an event declared by `shared event`",
            )
        return self.reader.event_ref(value, s.args[0])

    def _number(self, s: ast.Suffix, operand: str) -> int:
        if len(s.args) != 1:
            raise OPERANDS[operand].refused(f"{len(s.args)} numbers", s.span)
        return OPERANDS[operand].checked(self.reader.expressions.constant(s.args[0], f"`.{s.name}`"), s.span)

    def swizzle(self, s: ast.Suffix) -> int:
        """The width in bytes that a ``.swiz<N>`` asks for."""
        return SWIZZLES[self._number(s, "swizzle")]

    def _permutation(self, config: Sequence[ast.Expr]) -> tuple[int, ...]:
        nodes = config[0].items if len(config) == 1 and isinstance(config[0], ast.Tuple) else config
        return tuple(self.reader.expressions.constant(n, "`.transp`") for n in nodes)

    def _padding(self, s: ast.Suffix, config: Sequence[ast.Expr]) -> tuple[Any, Any]:
        """((low, high, inner) for each dimension, value)."""
        lists = [self._numbers(c) for c in config[:3]]
        lengths = {len(x) for x in lists}
        if len(config) not in (3, 4) or len(lengths) != 1:
            raise WrongValue(
                s.span,
                what="`.pad`",
                got=f"{len(config)} arguments of {', '.join(str(len(x)) for x in lists) or 'no'} numbers",
                wanted="low, high and inner counts of at least 0, one for each dimension, and the value",
                fix_text="write `dma.pad<{0, 0}, {0, 1}, {0, 0}, 0.0f> src => dst`",
            )
        value = self.reader.expressions.plain(config[3], "`.pad`") if len(config) == 4 else None
        return tuple(zip(*lists, strict=True)), value

    def _numbers(self, node: ast.Expr) -> list[int]:
        nodes = node.items if isinstance(node, ast.Tuple) else (node,)
        return [self.reader.expressions.constant(n, "`.pad`") for n in nodes]
