"""From lark's parse tree to the typed syntax tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, cast

import lark
from lark.visitors import Transformer_NonRecursive, v_args

from tilemma.croqtile import ast
from tilemma.croqtile.tokens import Token, join
from tilemma.errors import CompileError, Span

MAX_DEPTH = 90

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}


class NestedTooDeep(CompileError):
    code = "nested-too-deep"
    found = "statements or operations nested more than {limit} deep"
    expected = "at most {limit} levels, the terms of one long sum counted"
    fix = "give names to parts of it, or use loops"


class LiteralTooLarge(CompileError):
    code = "literal-too-large"
    found = "the number `{text}` does not fit"
    expected = "{range}"
    fix = "use a smaller number"


class MisplacedAttribute(CompileError):
    code = "misplaced-attribute"
    found = "`[[...]]` before {what}"
    expected = "an attribute before `parallel`, `foreach` or an `mma` operation"
    fix = "move it there, or remove it"


class MisplacedColon(CompileError):
    code = "misplaced-colon"
    found = "`:` among the arguments of a call"
    expected = "strides after `:` in `subspan(h, w : s0, s1)` or `view(...)`, a range in `foreach k(1:)`"
    fix = "separate the arguments with `,`"


def build_tree(tree: Any, tokens: Sequence[Token]) -> ast.Function:
    """The typed tree; NestedTooDeep, LiteralTooLarge."""
    try:
        function = _Build(tokens).transform(tree)
    except lark.exceptions.VisitError as e:
        raise e.orig_exc from None
    _check_depth(function)
    return cast(ast.Function, function)


def _check_depth(root: ast.Node) -> None:
    stack: list[tuple[object, int]] = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, tuple):
            stack.extend((x, depth) for x in node)
        elif isinstance(node, ast.Node):
            if depth > MAX_DEPTH:
                raise NestedTooDeep(node.span, limit=MAX_DEPTH)
            stack.extend((getattr(node, f.name), depth + 1) for f in fields(node))


def _expressions(x: Any) -> tuple[ast.Expr, ...]:
    return () if x is None else tuple(x)


@v_args(meta=True)
class _Build(Transformer_NonRecursive[Any, Any]):
    """One method for each rule or alias of the grammar; children that were left out are None."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__()
        self.tokens = tokens

    def at(self, meta: Any) -> Span:
        if getattr(meta, "empty", True):
            return self.tokens[0].span
        return join(self.tokens[meta.start_pos].span, self.tokens[meta.end_pos - 1].span)

    def of(self, token: lark.Token) -> Span:
        assert token.start_pos is not None
        return self.tokens[token.start_pos].span

    # ---- functions and types -----------------------------------------------------------------------------

    def function(self, meta: Any, c: list[Any]) -> ast.Function:
        _, returns, name, *params, body = c
        found = tuple(p for p in params if p is not None)
        return ast.Function(str(name), returns, found, body, span=self.at(meta), name_span=self.of(name))

    def plain_type(self, meta: Any, c: list[Any]) -> ast.Type:
        return ast.Type(str(c[0]), span=self.at(meta))

    def array_type(self, meta: Any, c: list[Any]) -> ast.Type:
        return ast.Type(str(c[0]), dims=tuple(c[1]), span=self.at(meta))

    def ranked_type(self, meta: Any, c: list[Any]) -> ast.Type:
        return ast.Type(str(c[0]), rank=self._small(c[2]), span=self.at(meta))

    def _small(self, token: lark.Token) -> int:
        value = self._integer(token).value
        if not 0 <= value <= 16:
            raise LiteralTooLarge(self.of(token), text=str(token), range="a rank from 0 to 16")
        return value

    def dims(self, meta: Any, c: list[Any]) -> list[Any]:
        return c

    def unknown(self, meta: Any, c: list[Any]) -> ast.Unknown:
        return ast.Unknown(str(c[0]) == "??", span=self.at(meta))

    def parameter(self, meta: Any, c: list[Any]) -> ast.Parameter:
        tokens = {x.type: x for x in c if isinstance(x, lark.Token)}
        type_ = next(x for x in c if isinstance(x, ast.Type))
        storage = cast(Any, str(tokens["STORAGE"])) if "STORAGE" in tokens else None
        name = str(tokens["NAME"]) if "NAME" in tokens else None
        return ast.Parameter(type_, name, storage, "AMP" in tokens, span=self.at(meta))

    def stream_parameter(self, meta: Any, c: list[Any]) -> ast.Parameter:
        name = str(c[1]) if len(c) > 1 else None
        return ast.Parameter(ast.Type("stream", span=self.of(c[0])), name, span=self.at(meta))

    def shape_parameter(self, meta: Any, c: list[Any]) -> ast.Parameter:
        tokens = {x.type: x for x in c}
        type_ = ast.Type(str(c[0]), rank=self._small(c[1]), span=self.of(c[0]))
        name = str(tokens["NAME"]) if "NAME" in tokens else None
        return ast.Parameter(type_, name, None, "AMP" in tokens, span=self.at(meta))

    # ---- declarations ------------------------------------------------------------------------------------

    def declare(self, meta: Any, c: list[Any]) -> ast.Declare:
        words = [str(x) for x in c if isinstance(x, lark.Token)]
        storages = [w for w in words if w != "mutable"]
        type_ = next((x for x in c if isinstance(x, ast.Type)), None)
        storage = cast(Any, storages[0]) if storages else None
        return ast.Declare(type_, tuple(c[-1]), storage, "mutable" in words, span=self.at(meta))

    def items(self, meta: Any, c: list[Any]) -> list[Any]:
        return c

    def item(self, meta: Any, c: list[Any]) -> ast.Item:
        return ast.Item(str(c[0]), tuple(c[1:]), span=self.at(meta))

    def item_value(self, meta: Any, c: list[Any]) -> ast.Item:
        return ast.Item(str(c[0]), tuple(c[1:-2]), c[-1], span=self.at(meta))

    def item_braces(self, meta: Any, c: list[Any]) -> ast.Item:
        values = c[-1]
        value = values[0] if len(values) == 1 else ast.Tuple(tuple(values), span=self.at(meta))
        return ast.Item(str(c[0]), tuple(c[1:-1]), value, braces=True, span=self.at(meta))

    def size(self, meta: Any, c: list[Any]) -> ast.Expr:
        return cast(ast.Expr, c[0])

    def event_item(self, meta: Any, c: list[Any]) -> ast.Item:
        state = c[-1]
        value = None if state is None else ast.Name(str(state), span=self.of(state))
        return ast.Item(str(c[0]), tuple(x for x in c[1:-2] if x is not None), value, span=self.at(meta))

    def declare_event(self, meta: Any, c: list[Any]) -> ast.DeclareEvent:
        storage = str(c[0]) if isinstance(c[0], lark.Token) and c[0].type == "STORAGE" else None
        rest = c[2:] if storage else c[1:]
        threads = rest[0][0] if rest[0] else None
        return ast.DeclareEvent(tuple(rest[1:]), cast(Any, storage), threads, span=self.at(meta))

    def declare_fragment(self, meta: Any, c: list[Any]) -> ast.DeclareFragment:
        suffix = next((x for x in c if isinstance(x, ast.Suffix)), None)
        type_ = next((x for x in c if isinstance(x, ast.Type)), None)
        dtype = type_.name if type_ else suffix.name if suffix else None
        return ast.DeclareFragment(tuple(c[-1]), dtype, type_.dims if type_ else None, span=self.at(meta))

    def declare_span(self, meta: Any, c: list[Any]) -> ast.DeclareSpan:
        return ast.DeclareSpan(str(c[0]), c[1], span=self.at(meta))

    def declare_span_typed(self, meta: Any, c: list[Any]) -> ast.DeclareSpan:
        rank = self._small(c[1]) if c[1] is not None else None
        return ast.DeclareSpan(str(c[2]), c[-1], rank, span=self.at(meta))

    def declare_tuple(self, meta: Any, c: list[Any]) -> ast.DeclareTuple:
        rank = self._small(c[1]) if c[1] is not None else None
        return ast.DeclareTuple(str(c[2]), c[-1], rank, span=self.at(meta))

    # ---- statements --------------------------------------------------------------------------------------

    def block(self, meta: Any, c: list[Any]) -> ast.Block:
        return ast.Block(tuple(c), span=self.at(meta))

    def empty(self, meta: Any, c: list[Any]) -> ast.Block:
        return ast.Block((), span=self.at(meta))

    def attribute(self, meta: Any, c: list[Any]) -> list[Any]:
        return cast(list[Any], c[0])

    def attributed(self, meta: Any, c: list[Any]) -> ast.Statement:
        attributes, statement = c
        target = statement.value if isinstance(statement, ast.Assign) else statement
        if not isinstance(target, (ast.Parallel, ast.Foreach, ast.Mma)):
            words = {ast.Block: "a block", ast.Assign: "an assignment"}
            what = words.get(type(statement), type(statement).__name__.lower())
            raise MisplacedAttribute(self.at(meta), what=what)
        new = replace(target, attributes=(*attributes, *target.attributes))
        if isinstance(statement, ast.Assign):
            return replace(statement, value=new)
        return new

    def copy(self, meta: Any, c: list[Any]) -> ast.Copy:
        engine, *suffixes, operands = c
        src, dst, after = operands if operands is not None else (None, None, ())
        return ast.Copy(cast(Any, str(engine)), tuple(suffixes), src, dst, after, span=self.at(meta))

    def copy_operands(self, meta: Any, c: list[Any]) -> tuple[Any, Any, Any]:
        src, dst, *after = c
        # `[AFTER expr_list]` gives the word and the list, or None for each.
        futures = next((tuple(x) for x in after if isinstance(x, list)), ())
        return src, str(dst) if isinstance(dst, lark.Token) else dst, futures

    def mma(self, meta: Any, c: list[Any]) -> ast.Mma:
        _, *suffixes, args = c
        return ast.Mma(tuple(suffixes), _expressions(args), span=self.at(meta))

    def assign(self, meta: Any, c: list[Any]) -> ast.Assign:
        return ast.Assign(c[0], c[2], str(c[1])[:-1], span=self.at(meta))

    def evaluate(self, meta: Any, c: list[Any]) -> ast.Evaluate:
        return ast.Evaluate(c[0], span=self.at(meta))

    def step_before(self, meta: Any, c: list[Any]) -> ast.Evaluate:
        return ast.Evaluate(ast.Step(c[1], self._sign(c[0]), True, span=self.at(meta)), span=self.at(meta))

    def step_after(self, meta: Any, c: list[Any]) -> ast.Evaluate:
        return ast.Evaluate(ast.Step(c[0], self._sign(c[1]), False, span=self.at(meta)), span=self.at(meta))

    @staticmethod
    def _sign(token: lark.Token) -> int:
        return 1 if token == "++" else -1

    def parallel(self, meta: Any, c: list[Any]) -> ast.Parallel:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        specs = tuple(x for x in c if isinstance(x, ast.ParallelSpec))
        stream = next((x[0] for x in c if isinstance(x, list)), None)
        if stream is None:
            stream = next((s.args[0] for s in suffixes if s.args), None)
        return ast.Parallel(specs, c[-1], suffixes, stream, span=self.at(meta))

    def foreach(self, meta: Any, c: list[Any]) -> ast.Foreach:
        items = tuple(x for x in c if isinstance(x, ast.Iteration))
        hints = tuple(x for x in c[:-1] if isinstance(x, ast.Suffix))
        return ast.Foreach(items, c[-1], hints, span=self.at(meta))

    def with_in(self, meta: Any, c: list[Any]) -> ast.With:
        items = tuple(x for x in c if isinstance(x, ast.Iteration))
        pairs = tuple(x for x in c if isinstance(x, tuple))
        return ast.With(items, c[-1], pairs, span=self.at(meta))

    def binding(self, meta: Any, c: list[Any]) -> tuple[ast.Name, ast.Name]:
        return self._name(c[0]), self._name(c[2])

    def while_loop(self, meta: Any, c: list[Any]) -> ast.While:
        return ast.While(c[1], c[2], span=self.at(meta))

    def if_else(self, meta: Any, c: list[Any]) -> ast.If:
        return ast.If(c[1], c[2], c[-1], span=self.at(meta))

    def inthreads(self, meta: Any, c: list[Any]) -> ast.InThreads:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        return ast.InThreads(c[-2], c[-1], suffixes, span=self.at(meta))

    def break_out(self, meta: Any, c: list[Any]) -> ast.Break:
        return ast.Break(span=self.at(meta))

    def continue_on(self, meta: Any, c: list[Any]) -> ast.Continue:
        return ast.Continue(span=self.at(meta))

    def yield_here(self, meta: Any, c: list[Any]) -> ast.Yield:
        return ast.Yield(span=self.at(meta))

    def return_value(self, meta: Any, c: list[Any]) -> ast.Return:
        return ast.Return(c[1], span=self.at(meta))

    def sync(self, meta: Any, c: list[Any]) -> ast.Sync:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        return ast.Sync(suffixes, c[-1], span=self.at(meta))

    def wait(self, meta: Any, c: list[Any]) -> ast.Wait:
        return ast.Wait(tuple(c[2]), c[1][0] if c[1] else None, span=self.at(meta))

    def trigger(self, meta: Any, c: list[Any]) -> ast.Trigger:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        lists = [x for x in c if isinstance(x, list)]
        after = tuple(lists[1]) if len(lists) > 1 else ()
        return ast.Trigger(tuple(lists[0]), after, suffixes, span=self.at(meta))

    def exchange(self, meta: Any, c: list[Any]) -> ast.Exchange:
        return ast.Exchange(tuple(c[1]), cast(Any, str(c[0])), span=self.at(meta))

    def call_operation(self, meta: Any, c: list[Any]) -> ast.CallStatement:
        _, name, template, args = c
        return ast.CallStatement(str(name), _expressions(args), _expressions(template), span=self.at(meta))

    def print_out(self, meta: Any, c: list[Any]) -> ast.Print:
        word = str(c[0])
        return ast.Print(_expressions(c[1]), word.startswith("println"), word.endswith("!"), span=self.at(meta))

    def assert_that(self, meta: Any, c: list[Any]) -> ast.Assert:
        message = "".join(self._text(x) for x in c[2:] if x is not None)
        return ast.Assert(c[1], message, span=self.at(meta))

    def apply(self, meta: Any, c: list[Any]) -> ast.Apply:
        return ast.Apply(c[1], c[3], c[4], span=self.at(meta))

    def reduce(self, meta: Any, c: list[Any]) -> ast.Reduce:
        return ast.Reduce(str(c[0]), tuple(c[1]), span=self.at(meta))

    # ---- parts -------------------------------------------------------------------------------------------

    def suffix(self, meta: Any, c: list[Any]) -> ast.Suffix:
        return ast.Suffix(str(c[0]), _expressions(c[1]), c[1] is not None, span=self.at(meta))

    def template(self, meta: Any, c: list[Any]) -> list[Any]:
        return c

    def ratio(self, meta: Any, c: list[Any]) -> ast.Ratio:
        return ast.Ratio(c[0], c[1], span=self.at(meta))

    def type_name(self, meta: Any, c: list[Any]) -> ast.Name:
        return self._name(c[0])

    def parallel_spec(self, meta: Any, c: list[Any]) -> ast.ParallelSpec:
        names, _, extent, level = c
        return ast.ParallelSpec(names, extent, level, span=self.at(meta))

    def level(self, meta: Any, c: list[Any]) -> ast.LevelSpec:
        return ast.LevelSpec(str(c[0]), _expressions(c[1]), span=self.at(meta))

    def level_of(self, meta: Any, c: list[Any]) -> ast.LevelSpec:
        return ast.LevelSpec(str(c[0]), (self._name(c[1]),), span=self.at(meta))

    def iteration_over(self, meta: Any, c: list[Any]) -> ast.Iteration:
        return ast.Iteration(c[0], None, c[1], span=self.at(meta))

    def iteration_in(self, meta: Any, c: list[Any]) -> ast.Iteration:
        return ast.Iteration(c[0], c[2], span=self.at(meta))

    def iteration_alias(self, meta: Any, c: list[Any]) -> ast.Iteration:
        names = ast.Names(str(c[0]), (), span=self.of(c[0]))
        return ast.Iteration(names, self._name(c[2]), c[3], span=self.at(meta))

    def one_name(self, meta: Any, c: list[Any]) -> ast.Names:
        return ast.Names(str(c[0]), (), span=self.at(meta))

    def part_names(self, meta: Any, c: list[Any]) -> ast.Names:
        return ast.Names(None, tuple(c[0]), span=self.at(meta))

    def all_names(self, meta: Any, c: list[Any]) -> ast.Names:
        return ast.Names(str(c[0]), tuple(c[2]), span=self.at(meta))

    def names(self, meta: Any, c: list[Any]) -> list[Any]:
        return [self._name(x) for x in c]

    def range(self, meta: Any, c: list[Any]) -> ast.Range:
        return ast.Range(c[0], c[1], c[2], span=self.at(meta))

    def range_step(self, meta: Any, c: list[Any]) -> ast.Range:
        return ast.Range(c[0], None, c[1], span=self.at(meta))

    def hint(self, meta: Any, c: list[Any]) -> ast.Suffix:
        return ast.Suffix(str(c[0]), _expressions(c[1]), c[1] is not None, span=self.at(meta))

    def expr_list(self, meta: Any, c: list[Any]) -> list[Any]:
        return c

    def arguments(self, meta: Any, c: list[Any]) -> tuple[Any, Any]:
        return _expressions(c[0]), _expressions(c[1])

    # ---- expressions -------------------------------------------------------------------------------------

    def _name(self, token: lark.Token) -> ast.Name:
        return ast.Name(str(token), span=self.of(token))

    def name(self, meta: Any, c: list[Any]) -> ast.Name:
        return self._name(c[0])

    def _integer(self, token: lark.Token) -> ast.Int:
        text = str(token).lower()
        digits = text.rstrip("ul")
        suffix = text[len(digits) :].replace("ll", "l")
        value = int(digits, 16 if digits.startswith("0x") else 10) if len(digits) <= 22 else 2**65
        limit = 2**64 if suffix.startswith("u") else 2**63
        if value >= limit:
            raise LiteralTooLarge(self.of(token), text=str(token)[:40], range=f"an integer below {limit}")
        return ast.Int(value, suffix, span=self.of(token))

    def integer(self, meta: Any, c: list[Any]) -> ast.Int:
        return self._integer(c[0])

    def floating(self, meta: Any, c: list[Any]) -> ast.Float:
        text = str(c[0])
        value = float(text.rstrip("fF"))
        if math.isinf(value):
            raise LiteralTooLarge(self.of(c[0]), text=text[:40], range="a float within the range of f64")
        return ast.Float(value, text[-1] in "fF", span=self.of(c[0]))

    def boolean(self, meta: Any, c: list[Any]) -> ast.Bool:
        return ast.Bool(str(c[0]) == "true", span=self.at(meta))

    def _text(self, token: lark.Token) -> str:
        text = str(token)
        if text.startswith("R"):
            return text[text.index("(") + 1 : text.rindex(")")]
        out, body = [], iter(text[1:-1])
        for ch in body:
            if ch == "\\":
                ch = next(body)
                ch = _ESCAPES.get(ch, ch)
            out.append(ch)
        return "".join(out)

    def string(self, meta: Any, c: list[Any]) -> ast.Str:
        return ast.Str("".join(self._text(t) for t in c), span=self.at(meta))

    def infinity(self, meta: Any, c: list[Any]) -> ast.Inf:
        return ast.Inf(span=self.at(meta))

    def nullptr(self, meta: Any, c: list[Any]) -> ast.Nullptr:
        return ast.Nullptr(span=self.at(meta))

    def whole(self, meta: Any, c: list[Any]) -> ast.Whole:
        return ast.Whole(span=self.at(meta))

    def paren(self, meta: Any, c: list[Any]) -> ast.Paren:
        return ast.Paren(c[0], span=self.at(meta))

    def count(self, meta: Any, c: list[Any]) -> ast.Count:
        return ast.Count(c[1], span=self.at(meta))

    def size_of(self, meta: Any, c: list[Any]) -> ast.SizeOf:
        return ast.SizeOf(str(c[1]), span=self.at(meta))

    def convert(self, meta: Any, c: list[Any]) -> ast.Convert:
        return ast.Convert(str(c[1]), c[2], span=self.at(meta))

    def tuple(self, meta: Any, c: list[Any]) -> ast.Tuple:
        return ast.Tuple(tuple(c[0]), span=self.at(meta))

    def derive(self, meta: Any, c: list[Any]) -> ast.Tuple:
        return ast.Tuple(tuple(c[1]), self._name(c[0]), span=self.at(meta))

    def span_list(self, meta: Any, c: list[Any]) -> ast.SpanList:
        return ast.SpanList(tuple(c[0]), span=self.at(meta))

    def binary(self, meta: Any, c: list[Any]) -> ast.Binary:
        return ast.Binary(str(c[1]), c[0], c[2], span=self.at(meta))

    def less(self, meta: Any, c: list[Any]) -> ast.Binary:
        return ast.Binary("<", c[0], c[1], span=self.at(meta))

    def greater(self, meta: Any, c: list[Any]) -> ast.Binary:
        return ast.Binary(">", c[0], c[1], span=self.at(meta))

    def ternary(self, meta: Any, c: list[Any]) -> ast.Ternary:
        return ast.Ternary(c[0], c[2], c[3], span=self.at(meta))

    def unary(self, meta: Any, c: list[Any]) -> ast.Unary:
        return ast.Unary(str(c[0]), c[1], span=self.at(meta))

    def upper_bound(self, meta: Any, c: list[Any]) -> ast.Bound:
        return ast.Bound(c[1], span=self.at(meta))

    def step_value(self, meta: Any, c: list[Any]) -> ast.Step:
        return ast.Step(c[1], self._sign(c[0]), True, span=self.at(meta))

    def value_step(self, meta: Any, c: list[Any]) -> ast.Step:
        return ast.Step(c[0], self._sign(c[1]), False, span=self.at(meta))

    def member(self, meta: Any, c: list[Any]) -> ast.Member:
        args, strides = c[2] if len(c) > 2 else (None, ())
        span, name = self.at(meta), self.of(c[1])
        return ast.Member(c[0], str(c[1]), args, strides, span=span, name_span=name)

    def mapped(self, meta: Any, c: list[Any]) -> ast.Member:
        args, strides = c[3]
        span, name = self.at(meta), self.of(c[1])
        return ast.Member(c[0], str(c[1]), args, strides, tuple(c[2]), span=span, name_span=name)

    def call(self, meta: Any, c: list[Any]) -> ast.Call:
        args, strides = c[1]
        if strides:
            raise MisplacedColon(strides[0].span)
        return ast.Call(c[0], args, span=self.at(meta))

    def subscript(self, meta: Any, c: list[Any]) -> ast.Subscript:
        return ast.Subscript(c[0], tuple(c[1]), span=self.at(meta))
