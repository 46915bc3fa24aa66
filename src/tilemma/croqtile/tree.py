"""Builds the typed syntax tree (AST) from the reductions of the LR parser."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from tilemma.croqtile import ast
from tilemma.croqtile.lr import Leaf, TokenRange, evaluate
from tilemma.croqtile.node import LEAVES, Node
from tilemma.croqtile.tables import Tables
from tilemma.croqtile.tokens import Token, join
from tilemma.errors import CompileError, Span
from tilemma.ir.constructs import LIMITS

MAX_DEPTH = 90

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}


class NestedTooDeep(CompileError):
    code = "nested-too-deep"
    found = "statements or operations nested more than {limit} deep"
    expected = "at most {limit} levels, the terms of one long sum counted"
    fix = "give names to parts of it, or use loops"


class OctalLiteral(CompileError):
    code = "octal-literal"
    found = "the number `{text}`, which starts with 0"
    expected = "a decimal number, or a hexadecimal one that starts with 0x: C would read this one as octal"
    fix = "write `{decimal}`, or the octal number's value in decimal or hexadecimal"


class LiteralTooLarge(CompileError):
    code = "literal-too-large"
    found = "the number `{text}` does not fit"
    expected = "{range}"
    fix = "use a smaller number"


class MisplacedAttribute(CompileError):
    code = "misplaced-attribute"
    found = "`[[...]]` before {what}"
    expected = "an attribute before `parallel`, `foreach`, `__co__` or an `mma` operation"
    fix = "move it there, or remove it"


class MisplacedName(CompileError):
    code = "misplaced-argument-name"
    found = "`{name} = ...` among the operands of a call"
    expected = (
        "operands without names; settings of `[[pipeline(...)]]` and `atom = NAME` of lane operations have one"
    )
    fix = "leave out `{name} =`"


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
        if type(node) is tuple:
            stack += [(x, depth) for x in node if type(x) not in LEAVES]
        elif isinstance(node, Node):
            if depth > MAX_DEPTH:
                raise NestedTooDeep(node.span, limit=MAX_DEPTH)
            stack += [(x, depth + 1) for x in node.__dict__.values() if type(x) not in LEAVES]


def _expressions(x: Any) -> tuple[ast.Expr, ...]:
    return () if x is None else tuple(x)


def _node(kind: type[Node], values: Callable[[list[Any]], tuple[Any, ...]] = lambda c: ()) -> Callable[..., Any]:
    """The method of `_Build` for a rule whose node has the ``values`` of the rule's children, and no others."""

    def build(self: _Build, covered: TokenRange, c: list[Any]) -> Node:
        return kind(*values(c), span=self.at(covered))

    return build


class _Build:
    """One method for each rule or alias of the grammar; children that were left out are None."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens

    def at(self, covered: TokenRange) -> Span:
        if covered.first < 0:
            return self.tokens[0].span
        return join(self.tokens[covered.first].span, self.tokens[covered.last].span)

    def of(self, token: Leaf) -> Span:
        return self.tokens[token.place].span

    def _children(self, covered: TokenRange, c: list[Any]) -> list[Any]:
        return c

    dims = items = template = expr_list = argument_list = _children

    # ---- functions and types -----------------------------------------------------------------------------

    def function(self, covered: TokenRange, c: list[Any]) -> ast.Function:
        attributes = tuple(e for x in c if isinstance(x, list) for e in x)
        _, returns, name, *params, body = (x for x in c if not isinstance(x, list))
        found = tuple(p for p in params if p is not None)
        span, place = self.at(covered), self.of(name)
        return ast.Function(str(name), returns, found, body, span=span, name_span=place, attributes=attributes)

    plain_type = _node(ast.Type, lambda c: (str(c[0]),))
    array_type = _node(ast.Type, lambda c: (str(c[0]), tuple(c[1])))

    def ranked_type(self, covered: TokenRange, c: list[Any]) -> ast.Type:
        return ast.Type(str(c[0]), rank=self._small(c[2]), span=self.at(covered))

    def _small(self, token: Leaf) -> int:
        value = self._integer(token).value
        most = LIMITS["rank"].most
        if not 0 <= value <= most:
            raise LiteralTooLarge(self.of(token), text=str(token), range=f"a rank from 0 to {most}")
        return value

    unknown = _node(ast.Unknown, lambda c: (str(c[0]) == "??",))

    def parameter(self, covered: TokenRange, c: list[Any]) -> ast.Parameter:
        tokens = {x.type: x for x in c if isinstance(x, Leaf)}
        type_ = next(x for x in c if isinstance(x, ast.Type))
        storage = cast(Any, str(tokens["STORAGE"])) if "STORAGE" in tokens else None
        name = str(tokens["NAME"]) if "NAME" in tokens else None
        return ast.Parameter(type_, name, storage, "AMP" in tokens, span=self.at(covered))

    def stream_parameter(self, covered: TokenRange, c: list[Any]) -> ast.Parameter:
        name = str(c[1]) if len(c) > 1 else None
        return ast.Parameter(ast.Type("stream", span=self.of(c[0])), name, span=self.at(covered))

    def shape_parameter(self, covered: TokenRange, c: list[Any]) -> ast.Parameter:
        tokens = {x.type: x for x in c}
        type_ = ast.Type(str(c[0]), rank=self._small(c[1]), span=self.of(c[0]))
        name = str(tokens["NAME"]) if "NAME" in tokens else None
        return ast.Parameter(type_, name, None, "AMP" in tokens, span=self.at(covered))

    # ---- declarations ------------------------------------------------------------------------------------

    def declare(self, covered: TokenRange, c: list[Any]) -> ast.Declare:
        words = [str(x) for x in c if isinstance(x, Leaf)]
        storages = [w for w in words if w != "mutable"]
        type_ = next((x for x in c if isinstance(x, ast.Type)), None)
        storage = cast(Any, storages[0]) if storages else None
        return ast.Declare(type_, tuple(c[-1]), storage, "mutable" in words, span=self.at(covered))

    item = _node(ast.Item, lambda c: (str(c[0]), tuple(c[1:])))
    item_value = _node(ast.Item, lambda c: (str(c[0]), tuple(c[1:-2]), c[-1]))

    def item_braces(self, covered: TokenRange, c: list[Any]) -> ast.Item:
        values = c[-1]
        value = values[0] if len(values) == 1 else ast.Tuple(tuple(values), span=self.at(covered))
        return ast.Item(str(c[0]), tuple(c[1:-1]), value, braces=True, span=self.at(covered))

    def size(self, covered: TokenRange, c: list[Any]) -> ast.Expr:
        return cast(ast.Expr, c[0])

    def event_item(self, covered: TokenRange, c: list[Any]) -> ast.Item:
        state = c[-1]
        value = None if state is None else ast.Name(str(state), span=self.of(state))
        return ast.Item(str(c[0]), tuple(x for x in c[1:-2] if x is not None), value, span=self.at(covered))

    def declare_event(self, covered: TokenRange, c: list[Any]) -> ast.DeclareEvent:
        storage = str(c[0]) if isinstance(c[0], Leaf) and c[0].type == "STORAGE" else None
        rest = c[2:] if storage else c[1:]
        threads = rest[0][0] if rest[0] else None
        return ast.DeclareEvent(tuple(rest[1:]), cast(Any, storage), threads, span=self.at(covered))

    def declare_fragment(self, covered: TokenRange, c: list[Any]) -> ast.DeclareFragment:
        suffix = next((x for x in c if isinstance(x, ast.Suffix)), None)
        type_ = next((x for x in c if isinstance(x, ast.Type)), None)
        dtype = type_.name if type_ else suffix.name if suffix else None
        return ast.DeclareFragment(tuple(c[-1]), dtype, type_.dims if type_ else None, span=self.at(covered))

    declare_span = _node(ast.DeclareSpan, lambda c: (str(c[0]), c[1]))

    def declare_span_typed(self, covered: TokenRange, c: list[Any]) -> ast.DeclareSpan:
        rank = self._small(c[1]) if c[1] is not None else None
        return ast.DeclareSpan(str(c[2]), c[-1], rank, span=self.at(covered))

    def declare_tuple(self, covered: TokenRange, c: list[Any]) -> ast.DeclareTuple:
        rank = self._small(c[1]) if c[1] is not None else None
        return ast.DeclareTuple(str(c[2]), c[-1], rank, span=self.at(covered))

    # ---- statements --------------------------------------------------------------------------------------

    block = _node(ast.Block, lambda c: (tuple(c),))
    empty = _node(ast.Block, lambda c: ((),))

    def attribute(self, covered: TokenRange, c: list[Any]) -> list[Any]:
        return cast(list[Any], c[0])

    def attributed(self, covered: TokenRange, c: list[Any]) -> ast.Statement:
        attributes, statement = c
        target = statement.value if isinstance(statement, ast.Assign) else statement
        if not isinstance(target, (ast.Parallel, ast.Foreach, ast.Mma)):
            words = {ast.Block: "a block", ast.Assign: "an assignment"}
            what = words.get(type(statement), type(statement).__name__.lower())
            raise MisplacedAttribute(self.at(covered), what=what)
        new = target.evolve(attributes=(*attributes, *target.attributes))
        if isinstance(statement, ast.Assign):
            return statement.evolve(value=new)
        return new

    def copy(self, covered: TokenRange, c: list[Any]) -> ast.Copy:
        engine, *suffixes, operands = c
        src, dst, after = operands if operands is not None else (None, None, ())
        return ast.Copy(cast(Any, str(engine)), tuple(suffixes), src, dst, after, span=self.at(covered))

    def copy_operands(self, covered: TokenRange, c: list[Any]) -> tuple[Any, Any, Any]:
        src, dst, *after = c
        # `[AFTER expr_list]` gives the word and the list, or None for each.
        futures = next((tuple(x) for x in after if isinstance(x, list)), ())
        return src, str(dst) if isinstance(dst, Leaf) else dst, futures

    def mma(self, covered: TokenRange, c: list[Any]) -> ast.Mma:
        _, *suffixes, args = c
        return ast.Mma(tuple(suffixes), _expressions(args), span=self.at(covered))

    assign = _node(ast.Assign, lambda c: (c[0], c[2], str(c[1])[:-1]))
    evaluate = _node(ast.Evaluate, lambda c: (c[0],))

    def step_before(self, covered: TokenRange, c: list[Any]) -> ast.Evaluate:
        return ast.Evaluate(ast.Step(c[1], self._sign(c[0]), True, span=self.at(covered)), span=self.at(covered))

    def step_after(self, covered: TokenRange, c: list[Any]) -> ast.Evaluate:
        return ast.Evaluate(ast.Step(c[0], self._sign(c[1]), False, span=self.at(covered)), span=self.at(covered))

    @staticmethod
    def _sign(token: Leaf) -> int:
        return 1 if token == "++" else -1

    def parallel(self, covered: TokenRange, c: list[Any]) -> ast.Parallel:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        specs = tuple(x for x in c if isinstance(x, ast.ParallelSpec))
        stream = next((x[0] for x in c if isinstance(x, list)), None)
        if stream is None:
            stream = next((s.args[0] for s in suffixes if s.args), None)
        return ast.Parallel(specs, c[-1], suffixes, stream, span=self.at(covered))

    def foreach(self, covered: TokenRange, c: list[Any]) -> ast.Foreach:
        items = tuple(x for x in c if isinstance(x, ast.Iteration))
        hints = tuple(x for x in c[:-1] if isinstance(x, ast.Suffix))
        return ast.Foreach(items, c[-1], hints, span=self.at(covered))

    def with_in(self, covered: TokenRange, c: list[Any]) -> ast.With:
        items = tuple(x for x in c if isinstance(x, ast.Iteration))
        pairs = tuple(x for x in c if isinstance(x, tuple))
        return ast.With(items, c[-1], pairs, span=self.at(covered))

    def binding(self, covered: TokenRange, c: list[Any]) -> tuple[ast.Name, ast.Name]:
        return self._name(c[0]), self._name(c[2])

    while_loop = _node(ast.While, lambda c: (c[1], c[2]))
    if_else = _node(ast.If, lambda c: (c[1], c[2], c[-1]))

    def inthreads(self, covered: TokenRange, c: list[Any]) -> ast.InThreads:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        return ast.InThreads(c[-2], c[-1], suffixes, span=self.at(covered))

    break_out = _node(ast.Break)
    continue_on = _node(ast.Continue)
    yield_here = _node(ast.Yield)
    return_value = _node(ast.Return, lambda c: (c[1],))

    def sync(self, covered: TokenRange, c: list[Any]) -> ast.Sync:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        return ast.Sync(suffixes, c[-1], span=self.at(covered))

    wait = _node(ast.Wait, lambda c: (tuple(c[2]), c[1][0] if c[1] else None))

    def trigger(self, covered: TokenRange, c: list[Any]) -> ast.Trigger:
        suffixes = tuple(x for x in c if isinstance(x, ast.Suffix))
        lists = [x for x in c if isinstance(x, list)]
        after = tuple(lists[1]) if len(lists) > 1 else ()
        return ast.Trigger(tuple(lists[0]), after, suffixes, span=self.at(covered))

    exchange = _node(ast.Exchange, lambda c: (tuple(c[1]), cast(Any, str(c[0]))))

    def call_operation(self, covered: TokenRange, c: list[Any]) -> ast.CallStatement:
        _, name, template, args = c
        return ast.CallStatement(str(name), _expressions(args), _expressions(template), span=self.at(covered))

    def print_out(self, covered: TokenRange, c: list[Any]) -> ast.Print:
        word = str(c[0])
        return ast.Print(_expressions(c[1]), word.startswith("println"), word.endswith("!"), span=self.at(covered))

    def assert_that(self, covered: TokenRange, c: list[Any]) -> ast.Assert:
        message = "".join(self._text(x) for x in c[2:] if x is not None)
        return ast.Assert(c[1], message, span=self.at(covered))

    apply = _node(ast.Apply, lambda c: (c[1], c[3], c[4]))
    reduce = _node(ast.Reduce, lambda c: (str(c[0]), tuple(c[1])))

    def set_registers(self, covered: TokenRange, c: list[Any]) -> ast.SetRegisters:
        _, *suffixes, count = c
        return ast.SetRegisters(count, tuple(suffixes), span=self.at(covered))

    # ---- parts -------------------------------------------------------------------------------------------

    suffix = hint = _node(ast.Suffix, lambda c: (str(c[0]), _expressions(c[1]), c[1] is not None))

    ratio = _node(ast.Ratio, lambda c: (c[0], c[1]))

    def stream_argument(self, covered: TokenRange, c: list[Any]) -> list[Any]:
        return c

    def parallel_spec(self, covered: TokenRange, c: list[Any]) -> ast.ParallelSpec:
        names, _, extent, level = c
        return ast.ParallelSpec(names, extent, level, span=self.at(covered))

    level = _node(ast.LevelSpec, lambda c: (str(c[0]), _expressions(c[1])))

    def level_of(self, covered: TokenRange, c: list[Any]) -> ast.LevelSpec:
        return ast.LevelSpec(str(c[0]), (self._name(c[1]),), span=self.at(covered))

    iteration_over = _node(ast.Iteration, lambda c: (c[0], None, c[1]))
    iteration_in = _node(ast.Iteration, lambda c: (c[0], c[2]))

    def iteration_alias(self, covered: TokenRange, c: list[Any]) -> ast.Iteration:
        names = ast.Names(str(c[0]), (), span=self.of(c[0]))
        return ast.Iteration(names, self._name(c[2]), c[3], span=self.at(covered))

    one_name = _node(ast.Names, lambda c: (str(c[0]), ()))
    part_names = _node(ast.Names, lambda c: (None, tuple(c[0])))
    all_names = _node(ast.Names, lambda c: (str(c[0]), tuple(c[2])))

    def names(self, covered: TokenRange, c: list[Any]) -> list[Any]:
        return [self._name(x) for x in c]

    range = _node(ast.Range, lambda c: (c[0], c[1], c[2]))
    range_step = _node(ast.Range, lambda c: (c[0], None, c[1]))

    def named_argument(self, covered: TokenRange, c: list[Any]) -> ast.NamedArgument:
        return ast.NamedArgument(str(c[0]), c[2], span=self.at(covered))

    def arguments(self, covered: TokenRange, c: list[Any]) -> tuple[Any, Any]:
        return _expressions(c[0]), _expressions(c[1])

    # ---- expressions -------------------------------------------------------------------------------------

    def _name(self, token: Leaf) -> ast.Name:
        return ast.Name(str(token), span=self.of(token))

    def name(self, covered: TokenRange, c: list[Any]) -> ast.Name:
        return self._name(c[0])

    type_name = name

    def _integer(self, token: Leaf) -> ast.Int:
        text = str(token).lower()
        digits = text.rstrip("ul")
        suffix = text[len(digits) :].replace("ll", "l")
        if digits[0] == "0" and digits.isdigit() and len(digits) > 1:
            raise OctalLiteral(self.of(token), text=str(token)[:40], decimal=digits.lstrip("0")[:40] or "0")
        value = int(digits, 16 if digits.startswith("0x") else 10) if len(digits) <= 22 else 2**65
        limit = 2**64 if suffix.startswith("u") else 2**63
        if value >= limit:
            raise LiteralTooLarge(self.of(token), text=str(token)[:40], range=f"an integer below {limit}")
        return ast.Int(value, suffix, span=self.of(token))

    def integer(self, covered: TokenRange, c: list[Any]) -> ast.Int:
        return self._integer(c[0])

    def floating(self, covered: TokenRange, c: list[Any]) -> ast.Float:
        text = str(c[0])
        value = float(text.rstrip("fF"))
        if math.isinf(value):
            raise LiteralTooLarge(self.of(c[0]), text=text[:40], range="a float within the range of f64")
        return ast.Float(value, text[-1] in "fF", span=self.of(c[0]))

    boolean = _node(ast.Bool, lambda c: (str(c[0]) == "true",))

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

    def string(self, covered: TokenRange, c: list[Any]) -> ast.Str:
        return ast.Str("".join(self._text(t) for t in c), span=self.at(covered))

    infinity = _node(ast.Inf)
    nullptr = _node(ast.Nullptr)
    whole = _node(ast.Whole)
    paren = _node(ast.Paren, lambda c: (c[0],))
    count = _node(ast.Count, lambda c: (c[1],))
    size_of = _node(ast.SizeOf, lambda c: (str(c[1]),))
    convert = _node(ast.Convert, lambda c: (str(c[1]), c[2]))

    def lane_matrix(self, covered: TokenRange, c: list[Any]) -> ast.LaneMatrix:
        args, strides = c[2]
        if strides:
            raise MisplacedColon(strides[0].span)
        return ast.LaneMatrix(str(c[0]), tuple(c[1]), args, span=self.at(covered))

    tuple = _node(ast.Tuple, lambda c: (tuple(c[0]),))

    def derive(self, covered: TokenRange, c: list[Any]) -> ast.Tuple:
        return ast.Tuple(tuple(c[1]), self._name(c[0]), span=self.at(covered))

    span_list = _node(ast.SpanList, lambda c: (tuple(c[0]),))
    binary = _node(ast.Binary, lambda c: (str(c[1]), c[0], c[2]))
    less = _node(ast.Binary, lambda c: ("<", c[0], c[1]))
    greater = _node(ast.Binary, lambda c: (">", c[0], c[1]))
    ternary = _node(ast.Ternary, lambda c: (c[0], c[2], c[3]))
    unary = _node(ast.Unary, lambda c: (str(c[0]), c[1]))
    upper_bound = _node(ast.Bound, lambda c: (c[1],))

    def step_value(self, covered: TokenRange, c: list[Any]) -> ast.Step:
        return ast.Step(c[1], self._sign(c[0]), True, span=self.at(covered))

    def value_step(self, covered: TokenRange, c: list[Any]) -> ast.Step:
        return ast.Step(c[0], self._sign(c[1]), False, span=self.at(covered))

    def member(self, covered: TokenRange, c: list[Any]) -> ast.Member:
        args, strides = c[2] if len(c) > 2 else (None, ())
        span, name = self.at(covered), self.of(c[1])
        return ast.Member(c[0], str(c[1]), args, strides, span=span, name_span=name)

    def mapped(self, covered: TokenRange, c: list[Any]) -> ast.Member:
        args, strides = c[3]
        span, name = self.at(covered), self.of(c[1])
        return ast.Member(c[0], str(c[1]), args, strides, tuple(c[2]), span=span, name_span=name)

    def call(self, covered: TokenRange, c: list[Any]) -> ast.Call:
        args, strides = c[1]
        if strides:
            raise MisplacedColon(strides[0].span)
        return ast.Call(c[0], args, span=self.at(covered))

    subscript = _node(ast.Subscript, lambda c: (c[0], tuple(c[1])))
