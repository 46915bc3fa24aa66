"""From the steps of a parse to the typed syntax tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from tilemma.croqtile import ast
from tilemma.croqtile.lr import Leaf, Reach, evaluate
from tilemma.croqtile.node import Node
from tilemma.croqtile.tables import Tables
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


def build_tree(
    tables: Tables, steps: Sequence[int], terminals: Sequence[str], tokens: Sequence[Token]
) -> ast.Function:
    """The typed tree of ``tokens``, from the steps that derive their terminals; NestedTooDeep, LiteralTooLarge."""
    leaves = []
    for place, (terminal, token) in enumerate(zip(terminals, tokens, strict=True)):
        leaf = Leaf(token.text)
        leaf.place, leaf.type = place, terminal
        leaves.append(leaf)
    function = evaluate(tables, steps, leaves, _Build(tokens))
    _check_depth(function)
    return cast(ast.Function, function)


def _check_depth(root: Node) -> None:
    stack: list[tuple[object, int]] = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, tuple):
            stack.extend((x, depth) for x in node)
        elif isinstance(node, Node):
            if depth > MAX_DEPTH:
                raise NestedTooDeep(node.span, limit=MAX_DEPTH)
            stack.extend((x, depth + 1) for x in vars(node).values() if isinstance(x, (tuple, Node)))


def _expressions(x: Any) -> tuple[ast.Expr, ...]:
    return () if x is None else tuple(x)


class _Build:
    """One method for each rule or alias of the grammar; children that were left out are None."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens

    def at(self, reach: Reach) -> Span:
        if reach.first < 0:
            return self.tokens[0].span
        return join(self.tokens[reach.first].span, self.tokens[reach.last].span)

    def of(self, token: Leaf) -> Span:
        return self.tokens[token.place].span

    # ---- functions and types -----------------------------------------------------------------------------

    def function(self, reach: Reach, c: list[Any]) -> ast.Function:
        _, returns, name, *params, body = c
        found = tuple(p for p in params if p is not None)
        return ast.Function(str(name), returns, found, body, span=self.at(reach), name_span=self.of(name))

    def plain_type(self, reach: Reach, c: list[Any]) -> ast.Type:
        return ast.Type(str(c[0]), span=self.at(reach))

    def array_type(self, reach: Reach, c: list[Any]) -> ast.Type:
        return ast.Type(str(c[0]), dims=tuple(c[1]), span=self.at(reach))

    def ranked_type(self, reach: Reach, c: list[Any]) -> ast.Type:
        return ast.Type(str(c[0]), rank=self._small(c[2]), span=self.at(reach))

    def _small(self, token: Leaf) -> int:
        value = self._integer(token).value
        if not 0 <= value <= 16:
            raise LiteralTooLarge(self.of(token), text=str(token), range="a rank from 0 to 16")
        return value

    def dims(self, reach: Reach, c: list[Any]) -> list[Any]:
        return c

    def unknown(self, reach: Reach, c: list[Any]) -> ast.Unknown:
        return ast.Unknown(str(c[0]) == "??", span=self.at(reach))

    def parameter(self, reach: Reach, c: list[Any]) -> ast.Parameter:
        tokens = {x.type: x for x in c if isinstance(x, Leaf)}
        type_ = next(x for x in c if isinstance(x, ast.Type))
        storage = cast(Any, str(tokens["STORAGE"])) if "STORAGE" in tokens else None
        name = str(tokens["NAME"]) if "NAME" in tokens else None
        return ast.Parameter(type_, name, storage, "AMP" in tokens, span=self.at(reach))

    def stream_parameter(self, reach: Reach, c: list[Any]) -> ast.Parameter:
        name = str(c[1]) if len(c) > 1 else None
        return ast.Parameter(ast.Type("stream", span=self.of(c[0])), name, span=self.at(reach))

    def shape_parameter(self, reach: Reach, c: list[Any]) -> ast.Parameter:
        tokens = {x.type: x for x in c}
        type_ = ast.Type(str(c[0]), rank=self._small(c[1]), span=self.of(c[0]))
        name = str(tokens["NAME"]) if "NAME" in tokens else None
        return ast.Parameter(type_, name, None, "AMP" in tokens, span=self.at(reach))

    # ---- declarations ------------------------------------------------------------------------------------

    def declare(self, reach: Reach, c: list[Any]) -> ast.Declare:
        words = [str(x) for x in c if isinstance(x, Leaf)]
        storages = [w for w in words if w != "mutable"]
        type_ = next((x for x in c if isinstance(x, ast.Type)), None)
        storage = cast(Any, storages[0]) if storages else None
        return ast.Declare(type_, tuple(c[-1]), storage, "mutable" in words, span=self.at(reach))

    def items(self, reach: Reach, c: list[Any]) -> list[Any]:
        return c

    def item(self, reach: Reach, c: list[Any]) -> ast.Item:
        return ast.Item(str(c[0]), tuple(c[1:]), span=self.at(reach))

    def item_value(self, reach: Reach, c: list[Any]) -> ast.Item:
        return ast.Item(str(c[0]), tuple(c[1:-2]), c[-1], span=self.at(reach))

    def item_braces(self, reach: Reach, c: list[Any]) -> ast.Item:
        values = c[-1]
        value = values[0] if len(values) == 1 else ast.Tuple(tuple(values), span=self.at(reach))
        return ast.Item(str(c[0]), tuple(c[1:-1]), value, braces=True, span=self.at(reach))

    def size(self, reach: Reach, c: list[Any]) -> ast.Expr:
        return cast(ast.Expr, c[0])

    def event_item(self, reach: Reach, c: list[Any]) -> ast.Item:
        state = c[-1]
        value = None if state is None else ast.Name(str(state), span=self.of(state))
        return ast.Item(str(c[0]), tuple(x for x in c[1:-2] if x is not None), value, span=self.at(reach))

    def declare_event(self, reach: Reach, c: list[Any]) -> ast.DeclareEvent:
        storage = str(c[0]) if isinstance(c[0], Leaf) and c[0].type == "STORAGE" else None
        rest = c[2:] if storage else c[1:]
        threads = rest[0][0] if rest[0] else None
        return ast.DeclareEvent(tuple(rest[1:]), cast(Any, storage), threads, span=self.at(reach))

    def declare_fragment(self, reach: Reach, c: list[Any]) -> ast.DeclareFragment:
        suffix = next((x for x in c if isinstance(x, ast.Suffix)), None)
        type_ = next((x for x in c if isinstance(x, ast.Type)), None)
        dtype = type_.name if type_ else suffix.name if suffix else None
        return ast.DeclareFragment(tuple(c[-1]), dtype, type_.dims if type_ else None, span=self.at(reach))

    def declare_span(self, reach: Reach, c: list[Any]) -> ast.DeclareSpan:
        return ast.DeclareSpan(str(c[0]), c[1], span=self.at(reach))

    def declare_span_typed(self, reach: Reach, c: list[Any]) -> ast.DeclareSpan:
        rank = self._small(c[1]) if c[1] is not None else None
        return ast.DeclareSpan(str(c[2]), c[-1], rank, span=self.at(reach))

    def declare_tuple(self, reach: Reach, c: list[Any]) -> ast.DeclareTuple:
        rank = self._small(c[1]) if c[1] is not None else None
        return ast.DeclareTuple(str(c[2]), c[-1], rank, span=self.at(reach))

    # ---- statements --------------------------------------------------------------------------------------

    def block(self, reach: Reach, c: list[Any]) -> ast.Block:
        return ast.Block(tuple(c), span=self.at(reach))

    def empty(self, reach: Reach, c: list[Any]) -> ast.Block:
        return ast.Block((), span=self.at(reach))

    def attribute(self, reach: Reach, c: list[Any]) -> list[Any]:
        return cast(list[Any], c[0])

    def attributed(self, reach: Reach, c: list[Any]) -> ast.Statement:
        attributes, statement = c
        target = statement.value if isinstance(statement, ast.Assign) else statement
        if not isinstance(target, (ast.Parallel, ast.Foreach, ast.Mma)):
            words = {ast.Block: "a block", ast.Assign: "an assignment"}
            what = words.get(type(statement), type(statement).__name__.lower())
            raise MisplacedAttribute(self.at(reach), what=what)
        new = target.but(attributes=(*attributes, *target.attributes))
        if isinstance(statement, ast.Assign):
            return statement.but(value=new)
        return new

    def copy(self, reach: Reach, c: list[Any]) -> ast.Copy:
        engine, *suffixes, operands = c
        src, dst, after = operands if operands is not None else (None, None, ())
        return ast.Copy(cast(Any, str(engine)), tuple(suffixes), src, dst, after, span=self.at(reach))

    def copy_operands(self, reach: Reach, c: list[Any]) -> tuple[Any, Any, Any]:
        src, dst, *after = c
        # `[AFTER expr_list]` gives the word and the list, or None for each.
        futures = next((tuple(x) for x in after if isinstance(x, list)), ())
        return src, str(dst) if isinstance(dst, Leaf) else dst, futures

    def mma(self, reach: Reach, c: list[Any]) -> ast.Mma:
        _, *suffixes, args = c
        return ast.Mma(tuple(suffixes), _expressions(args), span=self.at(reach))

    def assign(self, reach: Reach, c: list[Any]) -> ast.Assign:
        return ast.Assign(c[0], c[2], str(c[1])[:-1], span=self.at(reach))

    def evaluate(self, reach: Reach, c: list[Any]) -> ast.Evaluate:
        return ast.Evaluate(c[0], span=self.at(reach))

    def step_before(self, reach: Reach, c: list[Any]) -> ast.Evaluate:
        return ast.Evaluate(ast.Step(c[1], self._sign(c[0]), True, span=self.at(reach)), span=self.at(reach))

    def step_after(self, reach: Reach, c: list[Any]) -> ast.Evaluate:
        return ast.Evaluate(ast.Step(c[0], self._sign(c[1]), False, span=self.at(reach)), span=self.at(reach))

    @staticmethod
    def _sign(token: Leaf) -> int:
        return 1 if token == "++" else -1

    def parallel(self, reach: Reach, c: list[Any]) -> ast.Parallel:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        specs = tuple(x for x in c if isinstance(x, ast.ParallelSpec))
        stream = next((x[0] for x in c if isinstance(x, list)), None)
        if stream is None:
            stream = next((s.args[0] for s in suffixes if s.args), None)
        return ast.Parallel(specs, c[-1], suffixes, stream, span=self.at(reach))

    def foreach(self, reach: Reach, c: list[Any]) -> ast.Foreach:
        items = tuple(x for x in c if isinstance(x, ast.Iteration))
        hints = tuple(x for x in c[:-1] if isinstance(x, ast.Suffix))
        return ast.Foreach(items, c[-1], hints, span=self.at(reach))

    def with_in(self, reach: Reach, c: list[Any]) -> ast.With:
        items = tuple(x for x in c if isinstance(x, ast.Iteration))
        pairs = tuple(x for x in c if isinstance(x, tuple))
        return ast.With(items, c[-1], pairs, span=self.at(reach))

    def binding(self, reach: Reach, c: list[Any]) -> tuple[ast.Name, ast.Name]:
        return self._name(c[0]), self._name(c[2])

    def while_loop(self, reach: Reach, c: list[Any]) -> ast.While:
        return ast.While(c[1], c[2], span=self.at(reach))

    def if_else(self, reach: Reach, c: list[Any]) -> ast.If:
        return ast.If(c[1], c[2], c[-1], span=self.at(reach))

    def inthreads(self, reach: Reach, c: list[Any]) -> ast.InThreads:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        return ast.InThreads(c[-2], c[-1], suffixes, span=self.at(reach))

    def break_out(self, reach: Reach, c: list[Any]) -> ast.Break:
        return ast.Break(span=self.at(reach))

    def continue_on(self, reach: Reach, c: list[Any]) -> ast.Continue:
        return ast.Continue(span=self.at(reach))

    def yield_here(self, reach: Reach, c: list[Any]) -> ast.Yield:
        return ast.Yield(span=self.at(reach))

    def return_value(self, reach: Reach, c: list[Any]) -> ast.Return:
        return ast.Return(c[1], span=self.at(reach))

    def sync(self, reach: Reach, c: list[Any]) -> ast.Sync:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        return ast.Sync(suffixes, c[-1], span=self.at(reach))

    def wait(self, reach: Reach, c: list[Any]) -> ast.Wait:
        return ast.Wait(tuple(c[2]), c[1][0] if c[1] else None, span=self.at(reach))

    def trigger(self, reach: Reach, c: list[Any]) -> ast.Trigger:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        lists = [x for x in c if isinstance(x, list)]
        after = tuple(lists[1]) if len(lists) > 1 else ()
        return ast.Trigger(tuple(lists[0]), after, suffixes, span=self.at(reach))

    def exchange(self, reach: Reach, c: list[Any]) -> ast.Exchange:
        return ast.Exchange(tuple(c[1]), cast(Any, str(c[0])), span=self.at(reach))

    def call_operation(self, reach: Reach, c: list[Any]) -> ast.CallStatement:
        _, name, template, args = c
        return ast.CallStatement(str(name), _expressions(args), _expressions(template), span=self.at(reach))

    def print_out(self, reach: Reach, c: list[Any]) -> ast.Print:
        word = str(c[0])
        return ast.Print(_expressions(c[1]), word.startswith("println"), word.endswith("!"), span=self.at(reach))

    def assert_that(self, reach: Reach, c: list[Any]) -> ast.Assert:
        message = "".join(self._text(x) for x in c[2:] if x is not None)
        return ast.Assert(c[1], message, span=self.at(reach))

    def apply(self, reach: Reach, c: list[Any]) -> ast.Apply:
        return ast.Apply(c[1], c[3], c[4], span=self.at(reach))

    def reduce(self, reach: Reach, c: list[Any]) -> ast.Reduce:
        return ast.Reduce(str(c[0]), tuple(c[1]), span=self.at(reach))

    # ---- parts -------------------------------------------------------------------------------------------

    def suffix(self, reach: Reach, c: list[Any]) -> ast.Suffix:
        return ast.Suffix(str(c[0]), _expressions(c[1]), c[1] is not None, span=self.at(reach))

    def template(self, reach: Reach, c: list[Any]) -> list[Any]:
        return c

    def ratio(self, reach: Reach, c: list[Any]) -> ast.Ratio:
        return ast.Ratio(c[0], c[1], span=self.at(reach))

    def type_name(self, reach: Reach, c: list[Any]) -> ast.Name:
        return self._name(c[0])

    def parallel_spec(self, reach: Reach, c: list[Any]) -> ast.ParallelSpec:
        names, _, extent, level = c
        return ast.ParallelSpec(names, extent, level, span=self.at(reach))

    def level(self, reach: Reach, c: list[Any]) -> ast.LevelSpec:
        return ast.LevelSpec(str(c[0]), _expressions(c[1]), span=self.at(reach))

    def level_of(self, reach: Reach, c: list[Any]) -> ast.LevelSpec:
        return ast.LevelSpec(str(c[0]), (self._name(c[1]),), span=self.at(reach))

    def iteration_over(self, reach: Reach, c: list[Any]) -> ast.Iteration:
        return ast.Iteration(c[0], None, c[1], span=self.at(reach))

    def iteration_in(self, reach: Reach, c: list[Any]) -> ast.Iteration:
        return ast.Iteration(c[0], c[2], span=self.at(reach))

    def iteration_alias(self, reach: Reach, c: list[Any]) -> ast.Iteration:
        names = ast.Names(str(c[0]), (), span=self.of(c[0]))
        return ast.Iteration(names, self._name(c[2]), c[3], span=self.at(reach))

    def one_name(self, reach: Reach, c: list[Any]) -> ast.Names:
        return ast.Names(str(c[0]), (), span=self.at(reach))

    def part_names(self, reach: Reach, c: list[Any]) -> ast.Names:
        return ast.Names(None, tuple(c[0]), span=self.at(reach))

    def all_names(self, reach: Reach, c: list[Any]) -> ast.Names:
        return ast.Names(str(c[0]), tuple(c[2]), span=self.at(reach))

    def names(self, reach: Reach, c: list[Any]) -> list[Any]:
        return [self._name(x) for x in c]

    def range(self, reach: Reach, c: list[Any]) -> ast.Range:
        return ast.Range(c[0], c[1], c[2], span=self.at(reach))

    def range_step(self, reach: Reach, c: list[Any]) -> ast.Range:
        return ast.Range(c[0], None, c[1], span=self.at(reach))

    def hint(self, reach: Reach, c: list[Any]) -> ast.Suffix:
        return ast.Suffix(str(c[0]), _expressions(c[1]), c[1] is not None, span=self.at(reach))

    def expr_list(self, reach: Reach, c: list[Any]) -> list[Any]:
        return c

    def arguments(self, reach: Reach, c: list[Any]) -> tuple[Any, Any]:
        return _expressions(c[0]), _expressions(c[1])

    # ---- expressions -------------------------------------------------------------------------------------

    def _name(self, token: Leaf) -> ast.Name:
        return ast.Name(str(token), span=self.of(token))

    def name(self, reach: Reach, c: list[Any]) -> ast.Name:
        return self._name(c[0])

    def _integer(self, token: Leaf) -> ast.Int:
        text = str(token).lower()
        digits = text.rstrip("ul")
        suffix = text[len(digits) :].replace("ll", "l")
        value = int(digits, 16 if digits.startswith("0x") else 10) if len(digits) <= 22 else 2**65
        limit = 2**64 if suffix.startswith("u") else 2**63
        if value >= limit:
            raise LiteralTooLarge(self.of(token), text=str(token)[:40], range=f"an integer below {limit}")
        return ast.Int(value, suffix, span=self.of(token))

    def integer(self, reach: Reach, c: list[Any]) -> ast.Int:
        return self._integer(c[0])

    def floating(self, reach: Reach, c: list[Any]) -> ast.Float:
        text = str(c[0])
        value = float(text.rstrip("fF"))
        if math.isinf(value):
            raise LiteralTooLarge(self.of(c[0]), text=text[:40], range="a float within the range of f64")
        return ast.Float(value, text[-1] in "fF", span=self.of(c[0]))

    def boolean(self, reach: Reach, c: list[Any]) -> ast.Bool:
        return ast.Bool(str(c[0]) == "true", span=self.at(reach))

    def _text(self, token: Leaf) -> str:
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

    def string(self, reach: Reach, c: list[Any]) -> ast.Str:
        return ast.Str("".join(self._text(t) for t in c), span=self.at(reach))

    def infinity(self, reach: Reach, c: list[Any]) -> ast.Inf:
        return ast.Inf(span=self.at(reach))

    def nullptr(self, reach: Reach, c: list[Any]) -> ast.Nullptr:
        return ast.Nullptr(span=self.at(reach))

    def whole(self, reach: Reach, c: list[Any]) -> ast.Whole:
        return ast.Whole(span=self.at(reach))

    def paren(self, reach: Reach, c: list[Any]) -> ast.Paren:
        return ast.Paren(c[0], span=self.at(reach))

    def count(self, reach: Reach, c: list[Any]) -> ast.Count:
        return ast.Count(c[1], span=self.at(reach))

    def size_of(self, reach: Reach, c: list[Any]) -> ast.SizeOf:
        return ast.SizeOf(str(c[1]), span=self.at(reach))

    def convert(self, reach: Reach, c: list[Any]) -> ast.Convert:
        return ast.Convert(str(c[1]), c[2], span=self.at(reach))

    def tuple(self, reach: Reach, c: list[Any]) -> ast.Tuple:
        return ast.Tuple(tuple(c[0]), span=self.at(reach))

    def derive(self, reach: Reach, c: list[Any]) -> ast.Tuple:
        return ast.Tuple(tuple(c[1]), self._name(c[0]), span=self.at(reach))

    def span_list(self, reach: Reach, c: list[Any]) -> ast.SpanList:
        return ast.SpanList(tuple(c[0]), span=self.at(reach))

    def binary(self, reach: Reach, c: list[Any]) -> ast.Binary:
        return ast.Binary(str(c[1]), c[0], c[2], span=self.at(reach))

    def less(self, reach: Reach, c: list[Any]) -> ast.Binary:
        return ast.Binary("<", c[0], c[1], span=self.at(reach))

    def greater(self, reach: Reach, c: list[Any]) -> ast.Binary:
        return ast.Binary(">", c[0], c[1], span=self.at(reach))

    def ternary(self, reach: Reach, c: list[Any]) -> ast.Ternary:
        return ast.Ternary(c[0], c[2], c[3], span=self.at(reach))

    def unary(self, reach: Reach, c: list[Any]) -> ast.Unary:
        return ast.Unary(str(c[0]), c[1], span=self.at(reach))

    def upper_bound(self, reach: Reach, c: list[Any]) -> ast.Bound:
        return ast.Bound(c[1], span=self.at(reach))

    def step_value(self, reach: Reach, c: list[Any]) -> ast.Step:
        return ast.Step(c[1], self._sign(c[0]), True, span=self.at(reach))

    def value_step(self, reach: Reach, c: list[Any]) -> ast.Step:
        return ast.Step(c[0], self._sign(c[1]), False, span=self.at(reach))

    def member(self, reach: Reach, c: list[Any]) -> ast.Member:
        args, strides = c[2] if len(c) > 2 else (None, ())
        span, name = self.at(reach), self.of(c[1])
        return ast.Member(c[0], str(c[1]), args, strides, span=span, name_span=name)

    def mapped(self, reach: Reach, c: list[Any]) -> ast.Member:
        args, strides = c[3]
        span, name = self.at(reach), self.of(c[1])
        return ast.Member(c[0], str(c[1]), args, strides, tuple(c[2]), span=span, name_span=name)

    def call(self, reach: Reach, c: list[Any]) -> ast.Call:
        args, strides = c[1]
        if strides:
            raise MisplacedColon(strides[0].span)
        return ast.Call(c[0], args, span=self.at(reach))

    def subscript(self, reach: Reach, c: list[Any]) -> ast.Subscript:
        return ast.Subscript(c[0], tuple(c[1]), span=self.at(reach))
