"""Lowering of scalar expressions.

Integers of 32 bits stay symbolic sums (`Linear`) as long as possible; every other value is computed into a
register. The register of a type narrower than 32 bits is: for f16 and bf16, a b16 register; for 8-bit floats, the
low byte of a b16 register; for integers, a 32-bit register holding the value; for bool, a predicate.  Arithmetic
on 8- and 16-bit floats is done in f32 and rounded once, which gives the correctly rounded result of each
operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tilemma import dtypes
from tilemma.arithmetic import integers
from tilemma.dtypes import DType, promote
from tilemma.ir import expr
from tilemma.ir.lane import Imm, Mem, Reg, Special
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.convert import constant, convert, promoted, register, register_type
from tilemma.targets.ptx.lower.floating import Float
from tilemma.targets.ptx.lower.integers import operate
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.quotients import ceil_quotient, floor_quotient, remainder
from tilemma.targets.ptx.lower.regions import Value


def _is_index(t: DType) -> bool:
    return t.is_integer and t.bits <= 32


_E = TypeVar("_E", bound=expr.Expr)
# The evaluators of expressions that other modules lower: elements of memory and of fragments, function calls.
EVALUATORS: dict[type[expr.Expr], Callable[[Lowering, Any], Value]] = {}


def evaluates(kind: type[_E]) -> Callable[[Callable[[Lowering, _E], Value]], Callable[[Lowering, _E], Value]]:
    """A decorator: registers the function that evaluates expressions of this class."""

    def register(f: Callable[[Lowering, _E], Value]) -> Callable[[Lowering, _E], Value]:
        EVALUATORS[kind] = f
        return f

    return register


def linear(lo: Lowering, x: expr.Expr) -> Linear:
    """``x``, an integer of at most 32 bits (or bool), as a sum of registers modulo 2**32: see `Emitter.exact`."""
    e = lo.e
    match x:
        case expr.Const() if not x.type.is_float:
            return Linear(const=int(x.value))
        case expr.Index():
            return lo.indices[x.name]
        case expr.Dim():
            with e.at_root():
                reg = e.pure("ld.param.s32", "s32", Mem(Special(lo.params.dim(x.name))), hint=x.name, uniform=True)
            return Linear.of(e.bounded(reg, 0, 2**31 - 1))
        case expr.Var() if _is_index(x.dtype):
            return Linear.of(lo.variables[x.name])
    value = lo.value_numbers.of(x)
    if value is None:
        return _lowered(lo, x)
    if value.number in lo.held:
        return lo.held[value.number]
    if lo.launched is not None and value.number == lo.launched[0]:
        _, bounds, name = lo.launched
        return Linear.of(e.bounded(e.special(name, "launched", 2**31, uniform=True), *bounds))
    # The guard is part of the key: the sides of a `?:` are evaluated under it.
    key = "linear", value.number, lo.guard, tuple([lo.indices[i] for i in value.indices])
    return e.cse(key, lambda: _lowered(lo, x))


def _lowered(lo: Lowering, x: expr.Expr) -> Linear:
    e = lo.e
    match x:
        case expr.Binary() if x.type == dtypes.s32 and _is_index(x.a.type) and _is_index(x.b.type):
            return _binary(lo, x)
        case expr.Cast() if _is_index(x.a.type) and x.a.type != dtypes.u32 and x.dtype == dtypes.s32:
            return linear(lo, x.a)
        case expr.Select() if x.type == dtypes.s32:
            cond = predicate(lo, x.cond)
            if isinstance(cond, bool):
                return linear(lo, x.a if cond else x.b)
            with lo.where(cond):
                a = e.exact(linear(lo, x.a))
            with lo.where(e.inverse(cond)):
                b = e.exact(linear(lo, x.b))
            chosen = e.pick(cond, e.value(a), e.value(b))
            if isinstance(chosen, Imm):
                return Linear(const=int(chosen.value))
            (al, ah), (bl, bh) = e.range_of(a), e.range_of(b)
            return Linear.of(e.bounded(chosen, min(al, bl), max(ah, bh)))
    if x.type.is_integer and x.type.bits > 32:
        # A counter of ring slots may be 64 bits wide, but its values fit 32 bits.
        x = expr.Cast(x, dtypes.s32)
    v = e.pick(predicate(lo, x), Imm(1), Imm(0)) if x.type.kind == "bool" else scalar(lo, x)
    if isinstance(v, Imm):
        return Linear(const=int(v.value))
    low, high = lo.interval(x)
    if low >= -(2**31) and high < 2**31:
        e.bounded(v, low, high)
    return Linear.of(v)


def _binary(lo: Lowering, x: expr.Binary) -> Linear:
    e, op = lo.e, x.op
    a, b = linear(lo, x.a), linear(lo, x.b)
    known_a, known_b = a.known, b.known
    if op == "add":
        return a + b
    if op == "mul" and known_b is not None:
        return a * known_b
    if op == "mul" and known_a is not None:
        return b * known_a
    if op == "shl" and known_b is not None and 0 <= known_b < 32:
        return a * (1 << known_b)
    if op == "sub":
        return a - b
    a, b = e.exact(a), e.exact(b)
    if known_a is not None and known_b is not None:
        return Linear(const=integers.binary(op, dtypes.s32)(a.const, b.const))
    if known_b is not None and known_b > 0:
        nonnegative, power = e.range_of(a)[0] >= 0, known_b & (known_b - 1) == 0
        if op == "floordiv" and (nonnegative or power):
            return e.divide(a, known_b)[0]
        if op == "floormod" and (nonnegative or power):
            return e.divide(a, known_b)[1]
        if op == "div" and nonnegative:
            return e.divide(a, known_b)[0]
        if op == "mod" and nonnegative:
            return e.divide(a, known_b)[1]
        if op == "cdiv" and nonnegative:
            # The sum may exceed 2**31 - 1; it is divided as an unsigned number.
            return e.divide(a + (known_b - 1), known_b)[0]
    if op in ("min", "max"):
        (al, ah), (bl, bh) = e.range_of(a), e.range_of(b)
        if ah <= bl:
            return a if op == "min" else b
        if bh <= al:
            return b if op == "min" else a
        first, second = (e.register(a), e.value(b)) if known_a is None else (e.register(b), e.value(a))
        least = e.pure(f"{op}.s32", "s32", first, second, hint=op)
        pick = min if op == "min" else max
        return Linear.of(e.bounded(least, pick(al, bl), pick(ah, bh)))
    got = operate(
        lo, op, dtypes.s32, e.value(a), e.value(b), (e.range_of(a), lo.divisor_range(x.b, e.range_of(b)))
    )
    if isinstance(got, Imm):
        return Linear(const=int(got.value))
    return Linear.of(e.bounded(got, *lo.interval(x)))


def scalar(lo: Lowering, x: expr.Expr) -> Value:
    """``x`` in a register of its type (see the module), or an immediate."""
    e = lo.e
    match x:
        case expr.Const():
            return constant(e, x.value, x.dtype)
        case expr.Scalar():
            return _parameter(lo, x)
        case expr.Var():
            return lo.variables[x.name]
        case expr.Cast():
            return convert(e, scalar(lo, x.a), x.a.type, x.dtype, lo.arch)
        case expr.Element() | expr.FragmentElement() | expr.Call():
            return EVALUATORS[type(x)](lo, x)
        case expr.Select():
            return _select(lo, x)
        case expr.Unary():
            return _unary(lo, x)
        case expr.Binary() if x.op in expr.COMPARISON or x.op in expr.LOGICAL:
            return _as_value(lo, predicate(lo, x))
        case expr.Index() | expr.Dim():
            return e.value(linear(lo, x))
        case expr.Binary():
            t = x.type
            if t == dtypes.s32 and _is_index(x.a.type) and _is_index(x.b.type):
                return e.value(linear(lo, x))
            a, b = _operands(lo, x)
            if t.is_float:
                return _float(lo, x.op, t, a, b)
            if t.kind == "bool":
                return _as_value(lo, predicate(lo, x))
            return operate(lo, x.op, t, a, b, (lo.interval(x.a), lo.divisor_range(x.b, lo.interval(x.b))))
    raise AssertionError(x)


def _as_value(lo: Lowering, p: Reg | bool) -> Value:
    """A predicate as the value of a bool: a register, or an immediate if it is known."""
    return Imm(int(p), "pred") if isinstance(p, bool) else p


def _parameter(lo: Lowering, x: expr.Scalar) -> Value:
    e = lo.e
    name, kind = lo.params.scalar(x)
    with e.at_root():
        reg = e.pure(f"ld.param.{kind}", kind, Mem(Special(name)), hint=x.name, uniform=True)
        if x.dtype.kind == "bool":
            return e.pure("setp.ne.s32", "pred", reg, Imm(0), hint=x.name)
    return reg


def _select(lo: Lowering, x: expr.Select) -> Value:
    e = lo.e
    cond = predicate(lo, x.cond)
    t = x.type
    if isinstance(cond, bool):
        chosen = x.a if cond else x.b
        return promoted(e, scalar(lo, chosen), chosen.type, t, lo.arch)
    if t == dtypes.s32:
        return e.value(linear(lo, x))
    other = e.inverse(cond)
    if t.kind == "bool":
        with lo.where(cond):
            yes = predicate(lo, x.a)
        with lo.where(other):
            no = predicate(lo, x.b)
        return _as_value(lo, _either(lo, e.both(cond, yes), e.both(other, no)))
    with lo.where(cond):
        a = promoted(e, scalar(lo, x.a), x.a.type, t, lo.arch)
    with lo.where(other):
        b = promoted(e, scalar(lo, x.b), x.b.type, t, lo.arch)
    return e.pick(cond, a, b, register_type(t))


def _unary(lo: Lowering, x: expr.Unary) -> Value:
    e, t = lo.e, x.type
    if x.op == "lnot" or t.kind == "bool":
        return _as_value(lo, e.inverse(predicate(lo, x.a)))
    if t.is_integer and x.op == "neg" and _is_index(t):
        return e.value(linear(lo, x.a) * -1)
    a = scalar(lo, x.a)
    if isinstance(a, Imm):
        a = e.pure(f"mov.{'b' + str(t.bits) if not t.is_float else register_type(t)}", register_type(t), a)
    if x.op == "not":
        return e.pure(f"not.b{max(t.bits, 32)}", register_type(t), a)
    if not t.is_float:
        return e.pure(f"neg.s{max(t.bits, 32)}", register_type(t), a)
    if t.bits >= 32:
        return e.pure(f"neg.{'f64' if t.bits == 64 else 'f32'}", register_type(t), a)
    # Flipping the sign bit is exact for every format that has one.
    return e.pure("xor.b16", "b16", a, Imm(0x8000 if t.bits == 16 else 0x80, "b16"))


def _float(lo: Lowering, op: str, t: DType, a: Value, b: Value) -> Value:
    """``a op b`` for floats of type ``t``, rounded to nearest even; never fused with another operation."""
    result, work = _wide_float(lo, op, t, a, b)
    return convert(lo.e, result, work, t, lo.arch)


def _wide_float(lo: Lowering, op: str, t: DType, a: Value, b: Value) -> tuple[Reg, DType]:
    """``a op b`` for floats of type ``t``, and the type of the result: the operation's own type, not rounded to
    ``t``."""
    e = lo.e
    work = dtypes.f64 if t.bits == 64 else dtypes.f32
    a, b = convert(e, a, t, work, lo.arch), convert(e, b, t, work, lo.arch)
    f = Float(e, work.name)
    if op in ("add", "sub", "mul", "div"):
        return e.pure(f"{op}.rn.{f.kind}", f.kind, a, b, hint=op), work
    if op in ("min", "max"):
        return e.pure(f"{op}.{f.kind}", f.kind, a, b, hint=op), work
    x, y = register(e, a, work), register(e, b, work)
    if op in ("floordiv", "cdiv"):
        return (floor_quotient if op == "floordiv" else ceil_quotient)(f, x, y, t), work
    assert op == "mod", f"{op} on {t}"
    return remainder(f, x, y), work


def unrounded(lo: Lowering, x: expr.Expr) -> tuple[Value, DType]:
    """``x`` without its last conversion, if its last operation is one, and the type of that value."""
    match x:
        case expr.Cast():
            return scalar(lo, x.a), x.a.type
        case expr.Binary() if x.type.is_float:
            return _wide_float(lo, x.op, x.type, *_operands(lo, x))
    return scalar(lo, x), x.type


def _operands(lo: Lowering, x: expr.Binary) -> tuple[Value, Value]:
    """Both operands in the type of the operation."""
    a = promoted(lo.e, scalar(lo, x.a), x.a.type, x.type, lo.arch)
    return a, promoted(lo.e, scalar(lo, x.b), x.b.type, x.type, lo.arch)


def predicate(lo: Lowering, x: expr.Expr) -> Reg | bool:
    """Whether ``x`` is not zero: a predicate register, or a bool where it is known."""
    e = lo.e
    match x:
        case expr.Const():
            return bool(x.value)
        case expr.Unary() if x.op == "lnot":
            return e.inverse(predicate(lo, x.a))
        case expr.Binary() if x.op in expr.LOGICAL:
            return _logical(lo, x)
        case expr.Binary() if x.op in expr.COMPARISON:
            return _comparison(lo, x)
        case expr.Binary() if x.type.kind == "bool" and x.op in ("and", "or", "xor"):
            a, b = predicate(lo, x.a), predicate(lo, x.b)
            if x.op == "and":
                return e.both(a, b)
            if x.op == "or":
                return _either(lo, a, b)
            if isinstance(a, bool) or isinstance(b, bool):
                known, other = (a, b) if isinstance(a, bool) else (b, a)
                return e.inverse(other) if known else other
            return e.pure("xor.pred", "pred", a, b)
    t = x.type
    if _is_index(t):
        return e.compare("ne", linear(lo, x), Linear())
    v = scalar(lo, x)
    if isinstance(v, Imm):
        return bool(v.value)
    if t.kind == "bool":
        return v
    if t.is_float:
        # Every other type converts to f32 without a loss.
        work = dtypes.f64 if t is dtypes.f64 else dtypes.f32
        return e.pure(f"setp.neu.{work}", "pred", convert(e, v, t, work, lo.arch), Imm(0.0, str(work)))
    return e.pure(f"setp.ne.s{t.bits}", "pred", v, Imm(0))


def _logical(lo: Lowering, x: expr.Binary) -> Reg | bool:
    """``&&`` and ``||`` with short-circuit: the right operand's memory is read only if the left one does not
    decide."""
    e = lo.e
    a = predicate(lo, x.a)
    if a is (x.op == "lor"):
        return a
    with lo.where(a if x.op == "land" else e.inverse(a)):
        b = predicate(lo, x.b)
    return e.both(a, b) if x.op == "land" else _either(lo, a, b)


def _either(lo: Lowering, a: Reg | bool, b: Reg | bool) -> Reg | bool:
    if a is True or b is True:
        return True
    if a is False:
        return b
    if b is False or a == b:
        return a
    return lo.e.pure("or.pred", "pred", a, b)


def _comparison(lo: Lowering, x: expr.Binary) -> Reg | bool:
    e = lo.e
    t = promote(x.a.type, x.b.type)
    if t.kind == "bool":
        t = dtypes.s32
    if t == dtypes.s32:
        return e.compare(x.op, linear(lo, x.a), linear(lo, x.b))
    a_value = promoted(e, scalar(lo, x.a), x.a.type, t, lo.arch)
    b_value = promoted(e, scalar(lo, x.b), x.b.type, t, lo.arch)
    if t.is_float:
        work = t if t.bits >= 32 else dtypes.f32
        a_value, b_value = (convert(e, v, t, work, lo.arch) for v in (a_value, b_value))
        kind = "f64" if work.bits == 64 else "f32"
        # C: a comparison with NaN is false, but `!=` is true.
        op = "neu" if x.op == "ne" else x.op
        return e.pure(f"setp.{op}.{kind}", "pred", a_value, b_value)
    kind = f"{'u' if t.kind == 'uint' else 's'}{max(t.bits, 32)}"
    if isinstance(a_value, Imm):
        a_value = e.pure(f"mov.b{max(t.bits, 32)}", register_type(t), a_value)
    return e.pure(f"setp.{x.op}.{kind}", "pred", a_value, b_value)
