"""`dma` and `tma` statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilemma.croqtile import ast
from tilemma.croqtile.refusals import NotBuiltYet, WrongArity, WrongMember, WrongValue, one_of
from tilemma.croqtile.values import Events, Filled, kind
from tilemma.errors import nearest
from tilemma.ir.tiles import FutureValue, Tile
from tilemma.ir.types import EventRef, Space

if TYPE_CHECKING:
    from tilemma.croqtile.build import Reader

WHAT = ("copy", "load", "transp", "pad", "any")
OPTIONS = ("async", "swiz", "swizzle", "zfill", "sp", "promote", "multicast", "evict_first", "evict_last")
# `swiz<1..3>` are the tutorial's numbers for the widths in bytes that the compiler takes; 0 is none.
SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128, 32: 32, 64: 64, 128: 128}


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
                options["promote"] = self._number(s, (64, 128, 256))
            elif s.name == "sp":
                raise NotBuiltYet(s.span, what="a copy of sparse data (`.sp`)", fix_text="copy data and metadata")
            elif s.name.startswith("evict_"):
                options["evict"] = s.name.removeprefix("evict_")
            else:
                options[s.name] = True
        if first.name == "transp":
            options["transpose"] = self._permutation(first, config)
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

    def _number(self, s: ast.Suffix, legal: Sequence[int]) -> int:
        values = [self.reader.expressions.constant(a, f"`.{s.name}`") for a in s.args]
        if len(values) != 1 or values[0] not in legal:
            raise WrongValue(
                s.span,
                what=f"`.{s.name}`",
                got=", ".join(str(v) for v in values) or "nothing",
                wanted="one of " + ", ".join(str(v) for v in legal),
                fix_text=f"write `.{s.name}<{legal[-1]}>`",
            )
        return values[0]

    def swizzle(self, s: ast.Suffix) -> int:
        """The width in bytes that a ``.swiz<N>`` asks for."""
        return SWIZZLES[self._number(s, tuple(SWIZZLES))]

    def _permutation(self, s: ast.Suffix, config: Sequence[ast.Expr]) -> tuple[int, ...]:
        nodes = config[0].items if len(config) == 1 and isinstance(config[0], ast.Tuple) else config
        found = tuple(self.reader.expressions.constant(n, "`.transp`") for n in nodes)
        if sorted(found) != list(range(len(found))) or not found:
            raise WrongValue(
                s.span,
                what="`.transp`",
                got=", ".join(map(str, found)) or "nothing",
                wanted="a permutation of the dimensions, each once, counted from 0",
                fix_text="write `dma.transp<1, 0> src => dst` for a matrix",
            )
        return found

    def _padding(self, s: ast.Suffix, config: Sequence[ast.Expr]) -> tuple[Any, Any]:
        """((low, high, inner) for each dimension, value)."""
        lists = [self._numbers(c) for c in config[:3]]
        lengths = {len(x) for x in lists}
        if len(config) not in (3, 4) or len(lengths) != 1 or any(v < 0 for x in lists for v in x):
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
