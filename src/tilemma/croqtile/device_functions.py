"""The parser of `__device__` functions: a subset of C++, as the syntax tree of kernels.

Typed scalars and pointers, `if`, `for`, `while`, `return`, calls, casts, and C++'s operators with their
precedences.  Anything else is refused with its place, where a kernel calls the function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from tilemma.croqtile import ast
from tilemma.croqtile.node import Node
from tilemma.croqtile.tokens import Token, join
from tilemma.croqtile.words import DEVICE_MARKS
from tilemma.errors import CompileError, Span
from tilemma.records import record

_IGNORED = frozenset((
    *DEVICE_MARKS, "__forceinline__", "__inline__", "__noinline__", "__host__", "inline", "static", "constexpr",
    "const", "__restrict__", "volatile", "extern",
))  # fmt: skip
TYPES = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16",
    "nv_bfloat16": "bf16",
    "int": "s32", "unsigned": "u32", "bool": "bool", "void": "void", "auto": "auto", "uint32_t": "u32",
    "int32_t": "s32", "int64_t": "s64", "uint64_t": "u64", "int16_t": "s16", "uint16_t": "u16", "int8_t": "s8",
    "uint8_t": "u8", "f64": "f64", "f32": "f32", "f16": "f16", "bf16": "bf16", "s64": "s64", "u64": "u64",
    "s32": "s32", "u32": "u32", "s16": "s16", "u16": "u16", "s8": "s8", "u8": "u8", "short": "s16", "char": "s8",
    "size_t": "u64", "ptrdiff_t": "s64", "uint": "u32",
}  # fmt: skip
# Loosest first (C++ standard, [expr]).
_PRECEDENCE = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"),
               ("+", "-"), ("*", "/", "%"))  # fmt: skip
# CUDA's exchanges between the lanes of a warp, as this language names them.
_EXCHANGES = {
    "__shfl_xor_sync": "__shfl_xor", "__shfl_up_sync": "__shfl_up", "__shfl_down_sync": "__shfl_down",
    "__shfl_sync": "__shfl_idx", "__ballot_sync": "__ballot",
}  # fmt: skip
_COMPOUND = (">>", "<<", "&", "|", "^")
# C++'s functions, as this language names them.
_FUNCTIONS = {
    "fmaxf": "__max", "fmax": "__max", "max": "__max", "fminf": "__min", "fmin": "__min", "min": "__min",
    "fabsf": "__fabs", "fabs": "__fabs", "expf": "__exp", "exp": "__exp", "exp2f": "__exp2f", "logf": "__log",
    "log": "__log", "__expf": "__exp", "__logf": "__log", "sqrtf": "__sqrt", "sqrt": "__sqrt", "rsqrtf": "__rsqrt",
    "tanhf": "__tanh", "tanh": "__tanh", "sinf": "__sin", "cosf": "__cos", "powf": "__pow", "pow": "__pow",
    "floorf": "__floor", "floor": "__floor", "ceilf": "__ceil", "ceil": "__ceil", "fmaf": "__fmaf",
    "roundf": "__round", "round": "__round", "tanf": "__tan", "asinf": "__asin", "acosf": "__acos",
    "atanf": "__atan", "atan2f": "__atan2", "sinhf": "__sinh", "coshf": "__cosh", "expm1f": "__expm1",
    "log1pf": "__log1p", "log2f": "__log2", "erff": "__erf", "rsqrt": "__rsqrt", "sin": "__sin", "cos": "__cos",
    "__sinf": "__sin", "__cosf": "__cos", "__powf": "__pow", "abs": "__abs",
}  # fmt: skip
# CUDA's conversions between its element types and float.
_CONVERSIONS = {
    "__half2float": "f32", "__bfloat162float": "f32", "__float2half": "f16", "__float2half_rn": "f16",
    "__float2bfloat16": "bf16", "__float2bfloat16_rn": "bf16", "__int2float_rn": "f32",
}  # fmt: skip
_ATOMICS = {
    "atomicAdd": "add", "atomicSub": "sub", "atomicExch": "exch", "atomicMin": "min", "atomicMax": "max",
    "atomicAnd": "and", "atomicOr": "or", "atomicXor": "xor", "atomicCAS": "cas",
}  # fmt: skip


class NotOfTheSubset(CompileError):
    code = "device-function"
    found = "{what} in a device function"
    expected = "typed scalars and pointers, `if`, `for`, `while`, `return`, calls and operators"
    fix = "write it with these, or in the kernel"


class OverloadedFunction(CompileError):
    code = "device-function-overloaded"
    found = "`{name}` is the name of several device functions"
    expected = "one function of each name: calls do not choose by the types of their arguments"
    fix = "give each function a name of its own"


class CCast(ast.Convert):
    """A conversion of C++: a float becomes an integer without its fraction."""


class WarpCall(ast.Expr):
    """``__shfl_xor_sync(mask, value, lane, width)`` and its siblings: ``call`` without mask and width."""

    call: ast.Call
    mask: ast.Expr
    width: ast.Expr | None = None


@record
class DeviceFunction:
    """``pointers``: the names of the parameters that are pointers.  ``templates``: the names of the types that the
    arguments of a call decide, ``template <typename T>``; ``tokens``: of a template, from which its instances are
    parsed."""

    name: str
    returns: str
    params: tuple[tuple[str, str], ...]
    pointers: frozenset[str]
    body: ast.Block
    span: Span
    templates: frozenset[str] = frozenset()
    tokens: tuple[Token, ...] = ()


@record
class Unparsed:
    """A function with text outside the subset: the kernels that call it are refused with ``error``."""

    name: str
    error: CompileError


def parse_device_function(tokens: Sequence[Token]) -> DeviceFunction | Unparsed | None:
    """The function whose tokens begin at its mark; None for a declaration of another kind."""
    parser = _Parser(list(tokens))
    at = next((i for i, t in enumerate(tokens) if t.text == "("), None)
    if at is None or at == 0 or tokens[at - 1].kind != "name" or any(t.text in ("=", "{") for t in tokens[:at]):
        return None
    try:
        return parser.function()
    except CompileError as e:
        return Unparsed(tokens[at - 1].text, e)


def instance(f: DeviceFunction, types: Mapping[str, str]) -> DeviceFunction:
    """The function of the template ``f`` in which its names of types are ``types``."""
    return _Parser(list(f.tokens), types=types).function()


def parse_device_functions(texts: Sequence[Sequence[Token]]) -> dict[str, DeviceFunction | Unparsed]:
    """The functions by their names; overloaded ones are not called."""
    found: dict[str, DeviceFunction | Unparsed] = {}
    for f in map(parse_device_function, texts):
        if f is None:
            continue
        known = found.get(f.name)
        overloaded = isinstance(known, DeviceFunction) and isinstance(f, DeviceFunction)
        if overloaded and isinstance(f, DeviceFunction):
            f = Unparsed(f.name, OverloadedFunction(f.span, name=f.name))
        found[f.name] = f
    return found


@record(frozen=False, eq=False)
class _Parser:
    tokens: list[Token]
    place: int = 0
    pointers: set[str] = field(default_factory=set)
    # Names of types that a template leaves open, and those that have a type.
    templates: set[str] = field(default_factory=set)
    types: Mapping[str, str] = field(default_factory=dict)

    # ---- tokens ------------------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[min(self.place, len(self.tokens) - 1)]

    def next(self) -> Token:
        found = self.token
        self.place += 1
        return found

    def sees(self, *texts: str) -> bool:
        return self.place < len(self.tokens) and self.token.text in texts and self.token.kind != "string"

    def accept(self, text: str) -> bool:
        if self.sees(text):
            self.place += 1
            return True
        return False

    def compound(self, *operators: str) -> bool:
        """Whether an operator and `=` follow, which are two tokens of this language: ``>>=``."""
        after = self.tokens[self.place + 1] if self.place + 1 < len(self.tokens) else None
        return self.sees(*operators) and after is not None and after.text == "=" and after.kind == "op"

    def expect(self, text: str) -> Token:
        if not self.sees(text):
            raise self.refused()
        return self.next()

    def name(self) -> Token:
        if self.token.kind != "name":
            raise self.refused()
        return self.next()

    def refused(self) -> NotOfTheSubset:
        return NotOfTheSubset(self.token.span, what=f"`{self.token.text}`")

    def since(self, start: Token) -> Span:
        return join(start.span, self.tokens[self.place - 1].span)

    # ---- declarations ------------------------------------------------------------------------------------

    def function(self) -> DeviceFunction:
        start = self.token
        if self.accept("template"):
            self.template()
        returns, pointer = self.type()
        name = self.name()
        if pointer:
            raise NotOfTheSubset(name.span, what="a result that is a pointer")
        self.expect("(")
        params: list[tuple[str, str]] = []
        while not self.accept(")"):
            dtype, pointer = self.type()
            if dtype == "void" and self.sees(")"):
                continue
            known = self.name()
            if pointer:
                self.pointers.add(known.text)
            if dtype in ("void", "auto"):
                raise NotOfTheSubset(known.span, what=f"a parameter of type `{dtype}`")
            params.append((known.text, dtype))
            if not self.sees(")"):
                self.expect(",")
        span = self.since(start)
        body = self.block()
        names = frozenset(self.templates)
        pointers, tokens = frozenset(self.pointers), tuple(self.tokens) if names else ()
        return DeviceFunction(name.text, returns, tuple(params), pointers, body, span, names, tokens)

    def template(self) -> None:
        """``<typename T, class U>``"""
        self.expect("<")
        while not self.accept(">"):
            if not (self.accept("typename") or self.accept("class")):
                raise self.refused()
            name = self.name().text
            if name not in self.types:
                self.templates.add(name)
            if not self.sees(">"):
                self.expect(",")

    def is_type(self) -> bool:
        text = self.token.text
        return self.token.kind == "name" and (self.names_type(text) or text in ("const", "long", "signed"))

    def names_type(self, text: str) -> bool:
        return text in TYPES or text in self.templates or text in self.types

    def type(self) -> tuple[str, bool]:
        """An element type, and whether it is a pointer to it."""
        found = ""
        while self.token.text in _IGNORED or self.token.kind == "string":
            self.next()
        if self.sees("unsigned", "signed"):
            letter = self.next().text[0]
            found = f"{letter}32"
            if self.sees("int", "char", "short"):
                found = letter + {"char": "8", "short": "16", "int": "32"}[self.next().text]
        if self.sees("long"):
            while self.accept("long") or self.accept("int"):
                pass
            found = "u64" if found == "u32" else "s64"
        if not found:
            word = self.name()
            known = {**TYPES, **self.types}.get(word.text)
            if known is None and word.text not in self.templates:
                raise NotOfTheSubset(word.span, what=f"the type `{word.text}`")
            found = known or word.text
        pointer = False
        while self.sees("*", "const", "__restrict__", "&"):
            mark = self.next()
            if mark.text == "&" or (mark.text == "*" and pointer):
                raise NotOfTheSubset(mark.span, what="a reference, or a pointer to a pointer")
            pointer |= mark.text == "*"
        return found, pointer

    # ---- statements --------------------------------------------------------------------------------------

    def block(self) -> ast.Block:
        start = self.expect("{")
        body: list[ast.Statement] = []
        while not self.accept("}"):
            body += self.statement()
        return ast.Block(tuple(body), span=self.since(start))

    def as_block(self) -> ast.Block:
        """One statement as a block."""
        start = self.token
        if self.sees("{"):
            return self.block()
        return ast.Block(tuple(self.statement()), span=self.since(start))

    def statement(self) -> list[ast.Statement]:
        start = self.token
        if self.accept(";"):
            return []
        if self.sees("{"):
            return [self.block()]
        if self.accept("return"):
            value = None if self.sees(";") else self.expression()
            self.expect(";")
            return [ast.Return(value, span=self.since(start))]
        if self.accept("if"):
            if self.sees("constexpr"):
                raise self.refused()
            cond = self.condition()
            then = self.as_block()
            otherwise = self.as_block() if self.accept("else") else None
            return [ast.If(cond, then, otherwise, span=self.since(start))]
        if self.accept("while"):
            cond = self.condition()
            return [ast.While(cond, self.as_block(), span=self.since(start))]
        if self.accept("for"):
            return [self.loop(start)]
        if self.sees("break", "continue"):
            word = self.next()
            self.expect(";")
            return [(ast.Break if word.text == "break" else ast.Continue)(span=word.span)]
        after = self.tokens[self.place + 1] if self.place + 1 < len(self.tokens) else start
        if self.sees("switch", "do", "goto", "try", "struct", "using", "typedef"):
            raise self.refused()
        if start.kind == after.kind == "name" and not self.is_type() and start.text not in _IGNORED:
            raise NotOfTheSubset(start.span, what=f"the type `{start.text}`")
        found = self.simple()
        self.expect(";")
        return found

    def condition(self) -> ast.Expr:
        self.expect("(")
        found = self.expression()
        self.expect(")")
        return found

    def loop(self, start: Token) -> ast.Block:
        """``for (a; b; c) s`` as ``{ a; while (b) { s; c; } }``."""
        self.expect("(")
        first = [] if self.sees(";") else self.simple()
        self.expect(";")
        true = ast.Bool(True, span=start.span)
        cond = true if self.sees(";") else self.expression()
        self.expect(";")
        last = [] if self.sees(")") else self.simple()
        self.expect(")")
        body = self.as_block()
        jump = next((s for s in _own_jumps(body) if isinstance(s, ast.Continue)), None)
        if jump is not None and last:
            raise NotOfTheSubset(jump.span, what="`continue` in a `for`")
        inner = ast.Block((body, *last), span=body.span)
        return ast.Block((*first, ast.While(cond, inner, span=self.since(start))), span=self.since(start))

    def simple(self) -> list[ast.Statement]:
        """A declaration, an assignment, a step or a call."""
        start = self.token
        if self.is_type():
            return self.declaration()
        if self.sees("++", "--"):
            sign = self.next()
            target = self.unary()
            return [self.stepped(target, sign, start)]
        target = self.expression()
        if self.sees("++", "--"):
            return [self.stepped(target, self.next(), start)]
        if self.sees("=", "+=", "-=", "*=", "/=", "%="):
            op = self.next().text[:-1]
            return [ast.Assign(target, self.expression(), op, span=self.since(start))]
        if self.compound(*_COMPOUND):
            op = self.next().text
            self.next()
            value = self.expression()
            value = ast.Binary(op, target, ast.Paren(value, span=value.span), span=self.since(start))
            return [ast.Assign(target, value, "", span=self.since(start))]
        if not isinstance(target, ast.Call):
            raise NotOfTheSubset(self.since(start), what="an expression without an effect")
        return [ast.Evaluate(target, span=self.since(start))]

    def stepped(self, target: ast.Expr, sign: Token, start: Token) -> ast.Statement:
        one = ast.Int(1, span=sign.span)
        return ast.Assign(target, one, sign.text[0], span=self.since(start))

    def declaration(self) -> list[ast.Statement]:
        start = self.token
        dtype, pointer = self.type()
        if pointer or dtype == "void":
            raise NotOfTheSubset(self.since(start), what="a variable that is a pointer")
        found: list[ast.Statement] = []
        while True:
            name = self.name()
            if self.sees("["):
                raise NotOfTheSubset(name.span, what="an array")
            value = self.expression() if self.accept("=") else None
            kind = None if dtype == "auto" or dtype in self.templates else ast.Type(dtype, span=start.span)
            item = ast.Item(name.text, (), value, span=self.since(name))
            found.append(ast.Declare(kind, (item,), None, True, span=self.since(start)))
            if not self.accept(","):
                return found

    # ---- expressions -------------------------------------------------------------------------------------

    def expression(self) -> ast.Expr:
        start = self.token
        cond = self.binary(0)
        if not self.accept("?"):
            return cond
        a = self.expression()
        self.expect(":")
        return ast.Ternary(cond, a, self.expression(), span=self.since(start))

    def binary(self, level: int) -> ast.Expr:
        if level == len(_PRECEDENCE):
            return self.unary()
        start = self.token
        left = self.binary(level + 1)
        while self.sees(*_PRECEDENCE[level]) and not self.compound(*_COMPOUND):
            op = self.next().text
            left = ast.Binary(op, left, self.binary(level + 1), span=self.since(start))
        return left

    def unary(self) -> ast.Expr:
        start = self.token
        if self.sees("-", "!", "~"):
            op = self.next().text
            return ast.Unary(op, self.unary(), span=self.since(start))
        if self.accept("+"):
            return self.unary()
        if self.accept("*"):
            return self.element(self.unary(), start)
        inside = self.tokens[self.place + 1].text if self.place + 1 < len(self.tokens) else ""
        if self.sees("(") and self.names_type(inside):
            self.next()
            dtype, pointer = self.type()
            self.expect(")")
            if pointer:
                raise NotOfTheSubset(self.since(start), what="a cast of a pointer")
            return CCast(dtype, self.unary(), span=self.since(start))
        return self.postfix()

    def element(self, pointer: ast.Expr, start: Token) -> ast.Expr:
        """``*p``, ``*(p + i)``, and the places of atomics: ``p + i``, ``&p[i]``."""
        while isinstance(pointer, ast.Paren):
            pointer = pointer.inner
        index: ast.Expr = ast.Int(0, span=start.span)
        if isinstance(pointer, ast.Binary) and pointer.op == "+":
            index, pointer = pointer.b, pointer.a
        if not isinstance(pointer, ast.Name) or pointer.text not in self.pointers:
            raise NotOfTheSubset(self.since(start), what="an address")
        return ast.Member(pointer, "at", (index,), span=self.since(start))

    def place_of(self) -> ast.Expr:
        """The element that an atomic changes."""
        start = self.token
        if self.accept("&"):
            found = self.postfix()
            if not isinstance(found, ast.Member):
                raise NotOfTheSubset(self.since(start), what="an address")
            return found
        return self.element(self.binary(_PRECEDENCE.index(("+", "-"))), start)

    def postfix(self) -> ast.Expr:
        start = self.token
        found = self.primary()
        while self.sees("["):
            self.next()
            index = self.expression()
            self.expect("]")
            if not isinstance(found, ast.Name) or found.text not in self.pointers:
                raise NotOfTheSubset(self.since(start), what="a subscript of anything but a pointer")
            found = ast.Member(found, "at", (index,), span=self.since(start))
        return found

    def primary(self) -> ast.Expr:
        start = self.next()
        span = start.span
        if start.kind == "int":
            text = start.text.lower()
            digits = text.rstrip("ul")
            if self.sees(".") and self.token.glued:  # `0.f`, `1.`
                self.next()
                single = self.token.glued and (self.accept("f") or self.accept("F"))
                return ast.Float(float(digits), single, span=self.since(start))
            suffix = text[len(digits) :].replace("ll", "l")
            return ast.Int(int(digits, 16 if digits.startswith("0x") else 10), suffix, span=span)
        if start.kind == "float":
            return ast.Float(float(start.text.rstrip("fF")), start.text[-1] in "fF", span=span)
        if start.text == "." and self.token.glued and re.fullmatch(r"[0-9]+[fF]?", self.token.text):
            text = f"0.{self.next().text}"
            return ast.Float(float(text.rstrip("fF")), text[-1] in "fF", span=self.since(start))
        if start.text == "(":
            inner = self.expression()
            self.expect(")")
            return ast.Paren(inner, span=self.since(start))
        if start.kind != "name":
            self.place -= 1
            raise self.refused()
        if start.text in ("true", "false"):
            return ast.Bool(start.text == "true", span=span)
        if start.text == "INFINITY":
            return ast.Inf(span=span)
        if start.text == "static_cast":
            self.expect("<")
            dtype, _ = self.type()
            self.expect(">")
            return CCast(dtype, self.condition(), span=self.since(start))
        if self.sees("(") and self.names_type(start.text):
            dtype = {**TYPES, **self.types}.get(start.text, start.text)
            return CCast(dtype, self.condition(), span=self.since(start))
        if self.sees("("):
            return self.called(start)
        if self.sees("::", "."):
            raise self.refused()
        return ast.Name(start.text, span=span)

    def called(self, start: Token) -> ast.Expr:
        self.expect("(")
        args: list[ast.Expr] = []
        atomic = _ATOMICS.get(start.text)
        while not self.accept(")"):
            args.append(self.place_of() if atomic and not args else self.expression())
            if not self.sees(")"):
                self.expect(",")
        if start.text == "__ldg" and len(args) == 1:
            return self.element(args[0], start)
        if start.text in _EXCHANGES:
            return self.exchange(start, args)
        if start.text in _CONVERSIONS and len(args) == 1:
            return ast.Convert(_CONVERSIONS[start.text], args[0], span=self.since(start))
        name = f"__atomic_{atomic}" if atomic else _FUNCTIONS.get(start.text, start.text)
        if name == "__max" and start.text in ("max", "min") and len(args) != 2:
            raise NotOfTheSubset(start.span, what=f"`{start.text}` of {len(args)} values")
        return ast.Call(ast.Name(name, span=start.span), tuple(args), span=self.since(start))

    def exchange(self, start: Token, args: list[ast.Expr]) -> WarpCall:
        counts = (2, 2) if start.text == "__ballot_sync" else (3, 4)
        span = self.since(start)
        if len(args) not in counts:
            raise NotOfTheSubset(span, what=f"`{start.text}` of {len(args)} values")
        call = ast.Call(ast.Name(_EXCHANGES[start.text], span=start.span), tuple(args[1:3]), span=span)
        return WarpCall(call, args[0], args[3] if len(args) > 3 else None, span=span)


def _own_jumps(node: Node) -> list[ast.Statement]:
    """`break` and `continue` of the loop with this body."""
    if isinstance(node, (ast.Break, ast.Continue)):
        return [node]
    if isinstance(node, ast.Block):
        return [j for s in node.body for j in _own_jumps(s)]
    if isinstance(node, ast.If):
        return [j for s in (node.then, node.otherwise) if s is not None for j in _own_jumps(s)]
    return []
