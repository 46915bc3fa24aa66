"""Interval analysis: bounds on integer expressions, from their types and from the extents of indices.

Integers wrap in their type (`tilemma.arithmetic.integers`), so a rule here computes the exact range of its
operation, and gives up, with all values of the type, where that range leaves the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tilemma import dtypes
from tilemma.arithmetic import integers
from tilemma.arithmetic.integers import Range, bounds
from tilemma.dtypes import DType
from tilemma.ir.expr import (
    COMPARISON,
    LOGICAL,
    Binary,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    Select,
    Unary,
    Var,
    binary,
    promote,
    value_of,
)
from tilemma.launch import MAX_EXTENT
from tilemma.records import record

_UNKNOWN = bounds(dtypes.s64)


@record(slots=False, eq=False)
class Known:
    """Facts that hold where expressions are evaluated, and the derived bounds, each computed once.

    The dimensions in ``nonzero`` are at least 1; ``variables`` has bounds of mutable scalars.
    """

    nonzero: frozenset[str] = frozenset()
    variables: Mapping[str, Range] = field(default_factory=dict)
    # By identity, with the expression: an identity can be reused after its object has been freed.
    _found: dict[int, tuple[Expr, Range]] = field(default_factory=dict, repr=False)

    def interval(self, e: Expr) -> Range:
        """Bounds (inclusive) on an integer expression or a condition."""
        found = self._found.get(id(e))
        if found is None:
            found = self._found[id(e)] = e, _interval(e, self)
        return found[1]

    def with_range(self, variable: str, r: Range) -> Known:
        """The same with other bounds of one variable."""
        return Known(self.nonzero, {**self.variables, variable: r})


class _Anywhere(Known):
    """Without facts: the bounds are cached with the expression."""

    def interval(self, e: Expr) -> Range:
        try:
            return e._range
        except AttributeError:
            found = _interval(e, self)
            object.__setattr__(e, "_range", found)
            return found


ANYWHERE: Known = _Anywhere()
# Bounds on an expression wherever it is evaluated.
interval = ANYWHERE.interval


def _values(t: DType) -> Range:
    """All values of a type; for floats those of s64, which no rule uses."""
    return _UNKNOWN if t.is_float else bounds(t)


def _within(r: Range, t: DType) -> Range:
    """``r``, the exact range of an operation in ``t``; all values of the type where it may wrap."""
    low, high = bounds(t)
    return r if low <= r[0] and r[1] <= high else (low, high)


def _interval(e: Expr, known: Known) -> Range:
    match e:
        case Const():
            return _values(e.dtype) if isinstance(e.value, float) else (int(e.value), int(e.value))
        case Dim():
            return int(e.name in known.nonzero), MAX_EXTENT
        case Index():
            if e.limits is not None:
                first, last = (known.interval(x) for x in e.limits)
                return first[0], max(first[0], last[1] - 1)
            return 0, max(0, known.interval(e.extent)[1] - 1)
        case Var():
            return known.variables.get(e.name) or _values(e.dtype)
        case Binary(op=op) if op in COMPARISON or op in LOGICAL:
            return 0, 1
        case Binary() if e.type.is_integer:
            return _within(_exact(e, known), e.type)
        case Unary(op="neg" | "not") if e.type.is_integer:
            low, high = _operand(e.a, e.type, known)
            if e.op == "neg":
                return _within((-high, -low), e.type)
            top = 2**e.type.bits - 1 if e.type.kind == "uint" else -1
            return top - high, top - low
        case Select() if not e.type.is_float:
            return _either(e, known)
        case Cast() if not e.dtype.is_float and e.dtype.kind not in ("bool", "bits") and not e.a.type.is_float:
            low, high = known.interval(e.a)
            return integers.saturate(low, e.dtype), integers.saturate(high, e.dtype)
    return _values(e.type)


def factors(e: Expr) -> frozenset[str]:
    """The dimensions without which ``e`` is 0: they are at least 1 where it is not."""
    match e:
        case Dim():
            return frozenset((e.name,))
        case Binary(op="mul" | "floordiv" | "cdiv" | "div" | "mod"):
            return factors(e.a) | factors(e.b)
    return frozenset()


def loop_index(name: str, extent: Expr, start: Expr, stop: Expr, checked: bool = False) -> Index:
    """The index of a loop from ``start`` to below ``stop``, with its limits where those may leave the extent."""
    first, last, most = interval(start)[0], interval(stop)[1], interval(extent)
    inside = (first >= 0 or checked) and (stop == extent or last <= most[0] or _falls_short(stop, extent))
    known = start if value_of(start) is None else None
    return Index(name, extent, None if inside else (start, stop), checked, known)


def enters(loop: Index, start: Expr, stop: Expr, known: Known = ANYWHERE) -> bool:
    """Whether the loop of an index certainly has an iteration."""
    if loop.checked and isinstance(stop, Binary) and start in (stop.a, stop.b):
        return known.interval(stop.b if start == stop.a else stop.a)[0] > 0
    return below(start, stop, known)


def count_check(start: Expr, stop: Expr) -> Expr | None:
    """The condition, checked at launch, under which ``stop``, of a loop from ``start`` over so many more, does not
    wrap.

    None where it cannot wrap, where the loop is of another form, and where the arguments do not determine it.
    """
    if not (isinstance(stop, Binary) and stop.op == "add" and start in (stop.a, stop.b) and wraps(stop)):
        return None
    most = _largest(stop)
    return None if most is None else binary("le", most, Const(2**31 - 1, dtypes.s64))


def _largest(e: Expr, divided: bool = False) -> Expr | None:
    """At least the exact value of ``e``, as an s64 over dimensions; None where ``e`` may be negative.

    The operations here grow with their operands, which are not negative.  Values of at least 2**31 count as 2**31,
    so that s64 is enough, but not where it is ``divided`` afterwards.
    """
    match e:
        case Const(value=int() as v) if v >= 0:
            return Const(v, dtypes.s64)
        case Dim():
            return Cast(e, dtypes.s64)
        case Index(limits=None):
            # An index is an s32, however many values its extent would give it.
            most = _largest(e.extent)
            return None if most is None else binary("min", most, _BEYOND)
        case Binary(op="add" | "mul" | "floordiv" | "div" | "cdiv"):
            divides = e.op not in ("add", "mul")
            if divides and (value_of(e.b) or 0) <= 0:
                return None
            a, b = _largest(e.a, divided or divides), _largest(e.b, divided)
            if a is None or b is None:
                return None
            found = binary(e.op, a, b)
            if not wraps(found):
                return found
            return None if divided else binary(e.op, binary("min", a, _BEYOND), binary("min", b, _BEYOND))
    return None


_BEYOND = Const(2**31, dtypes.s64)


def _falls_short(stop: Expr, extent: Expr) -> bool:
    """Whether ``stop`` is ``extent`` less something."""
    match stop:
        case Binary(op="add" | "sub" | "min", a=a, b=b) if not wraps(stop):
            low, high = interval(b)
            less = {"add": high <= 0, "sub": low >= 0, "min": True}[stop.op]
            return (a == extent and less) or (b == extent and stop.op == "min")
    return False


def wraps(e: Expr, known: Known = ANYWHERE) -> bool:
    """Whether the outermost operation of ``e`` may give something other than the exact result."""
    if (
        not isinstance(e, Binary)
        or not e.type.is_integer
        or e.op in ("and", "or", "xor", "mod", "floormod", "min", "max")
    ):
        return False
    if e.op == "shl":
        counts = _operand(e.b, e.type, known)
        if counts[0] < 0 or counts[1] >= e.type.bits:
            return True
    exact = _exact(e, known)
    converted = any(_operand(x, e.type, known) != known.interval(x) for x in (e.a, e.b) if x.type != e.type)
    return converted or _within(exact, e.type) != exact


def below(a: Expr, b: Expr, known: Known = ANYWHERE) -> bool:
    """Whether ``a`` is less than ``b`` for certain."""
    if isinstance(b, Binary) and b.op == "add" and a in (b.a, b.b) and not wraps(b, known):
        return known.interval(b.b if a == b.a else b.a)[0] > 0
    return known.interval(a)[1] < known.interval(b)[0]


def _operand(e: Expr, t: DType, known: Known) -> Range:
    """Bounds on ``e`` as an operand of an operation in ``t``, to which it is promoted."""
    return _within(known.interval(e), t)


def _either(e: Select, known: Known) -> Range:
    """Of a choice: each side with the facts of the condition about a variable."""
    then, otherwise = _learned(e.cond, known)
    a, b = _operand(e.a, e.type, then), _operand(e.b, e.type, otherwise)
    low, high = min(a[0], b[0]), max(a[1], b[1])
    return (max(low, 1), high) if _rows_of_group(e) else (low, high)


def _learned(cond: Expr, known: Known) -> tuple[Known, Known]:
    """The facts where ``cond``, the comparison of a variable with a constant, holds and where it does not."""
    if not (isinstance(cond, Binary) and isinstance(cond.a, Var) and isinstance(cond.b, Const)):
        return known, known
    v, t, at = cond.a, cond.a.dtype, cond.b.value
    if t != cond.b.dtype or not t.is_integer or not isinstance(at, int):
        return known, known
    low, high = known.variables.get(v.name) or bounds(t)
    rest = low + (low == at), high - (high == at)
    found = {
        "eq": ((at, at), rest),
        "lt": ((low, min(high, at - 1)), (max(low, at), high)),
        "le": ((low, min(high, at)), (max(low, at + 1), high)),
    }  # fmt: skip
    inverse = {"ne": "eq", "ge": "lt", "gt": "le"}.get(cond.op)
    sides = found[inverse][::-1] if inverse else found.get(cond.op)
    if sides is None:
        return known, known
    # An empty range: that side is never taken, and any bounds do.
    yes, no = (r if r[0] <= r[1] else (low, high) for r in sides)
    return known.with_range(v.name, yes), known.with_range(v.name, no)


# ---- operations ------------------------------------------------------------------------------------------


def _exact(e: Binary, known: Known) -> Range:
    """Bounds on the exact result of an integer operation, before it wraps."""
    t = promote(e.a.type, e.b.type)
    a, b = _operand(e.a, t, known), _operand(e.b, t, known)
    (al, ah), (bl, bh) = a, b
    match e.op:
        case "add":
            return al + bl, ah + bh
        case "sub":
            return _since_start(e, known) or (al - bh, ah - bl)
        case "mul":
            products = (al * bl, al * bh, ah * bl, ah * bh)
            down = _rounded_down(e, known)
            return (min(products), max(products) if down is None else min(max(products), down[1]))
        case "min":
            return min(al, bl), min(ah, bh)
        case "max":
            return max(al, bl), max(ah, bh)
        case "floordiv" | "cdiv" | "div":
            return _grouped_quotient(e, known) or _quotient(e.op, a, b)
        case "mod":
            return _remainder(a, b)
        case "floormod":
            return _floor_remainder(a, b)
        case "shl" | "shr":
            return _shifted(e.op, a, b, t)
        case "and" | "or" | "xor":
            return _bits(e.op, a, b)
    raise AssertionError(e.op)


def _since_start(e: Binary, known: Known) -> Range | None:
    """Of a loop's index less the start of its loop, which runs over so many from there: below that number."""
    i, first = e.a, e.b
    if not (isinstance(i, Index) and i.start == first and isinstance(i.extent, Binary) and i.extent.op == "add"):
        return None
    if i.limits is not None or first not in (i.extent.a, i.extent.b) or not (i.checked or not wraps(i.extent)):
        return None
    count = i.extent.b if i.extent.a == first else i.extent.a
    return 0, max(0, known.interval(count)[1] - 1)


def _rounded_down(e: Binary, known: Known) -> Range | None:
    """Of ``a // (c * d) * c``, which is at most a / d: the number of the first of a group."""
    for x, y in ((e.a, e.b), (e.b, e.a)):
        c = value_of(y)
        if not (c and c > 0 and isinstance(x, Binary) and x.op in ("floordiv", "div") and x.type == e.type):
            continue
        (low, high), by = known.interval(x.a), x.b
        product = isinstance(by, Binary) and by.op == "mul" and c in (value_of(by.a), value_of(by.b))
        if low >= 0 and product and not wraps(by, known) and known.interval(by)[0] >= 0:
            return 0, high // c * c
    return None


def _quotient(op: str, a: Range, b: Range) -> Range:
    """A quotient is monotonic in each operand where the divisor keeps its sign: its extremes lie at the ends."""
    divide = {"floordiv": integers.floordiv, "cdiv": integers.cdiv, "div": integers.div}[op]
    ends = [n for part in ((b[0], min(b[1], -1)), (max(b[0], 1), b[1])) if part[0] <= part[1] for n in part]
    found = [divide(n, by) for n in a for by in ends]
    if b[0] <= 0 <= b[1]:
        found.append(0)
    return min(found), max(found)


def _remainder(a: Range, b: Range) -> Range:
    """Of a division that truncates: with the sign of ``a``, nearer to 0 than ``a`` (or as near) and than ``b``."""
    if b[0] == b[1] != 0 and integers.div(a[0], b[0]) == integers.div(a[1], b[0]) and (a[0] < 0) == (a[1] < 0):
        return integers.mod(a[0], b[0]), integers.mod(a[1], b[0])
    least, most = sorted((abs(b[0]), abs(b[1])))
    if max(abs(a[0]), abs(a[1])) < least and not b[0] <= 0 <= b[1]:
        return a
    reach = max(most, 1) - 1
    return max(min(a[0], 0), -reach), min(max(a[1], 0), reach)


def _floor_remainder(a: Range, b: Range) -> Range:
    """Between 0 and the divisor, which it does not reach."""
    if b[0] == b[1] != 0 and a[0] // b[0] == a[1] // b[0]:
        return a[0] % b[0], a[1] % b[0]
    if a[0] >= 0 and b[0] > a[1]:
        return a
    if a[1] <= 0 and b[1] < a[0]:
        return a
    low, high = min(0, b[0] + 1), max(0, b[1] - 1)
    if b[0] >= 0 and a[0] >= 0:
        high = min(high, a[1])
    if b[1] <= 0 and a[1] <= 0:
        low = max(low, a[0])
    return low, high


def _shifted(op: str, a: Range, b: Range, t: DType) -> Range:
    if b[0] < 0 or (op == "shl" and b[1] >= t.bits):
        # Counts beyond the width among others: 0, or of shr the sign.
        if op == "shl":
            return (0, 0) if a == (0, 0) else bounds(t)
        return min(a[0], 0), max(a[1], -1 if a[0] < 0 else 0)
    shift = integers.shl if op == "shl" else integers.shr
    found = [shift(n, by, t.bits) for n in a for by in b]
    return min(found), max(found)


def _bits(op: str, a: Range, b: Range) -> Range:
    positive = [r[1] for r in (a, b) if r[0] >= 0]
    if op == "and" and positive:
        return 0, min(positive)
    # Every value fits in this many bits beside its sign.
    reach = max((n if n >= 0 else ~n).bit_length() for n in (*a, *b))
    if len(positive) == 2:
        return max(a[0], b[0]) if op == "or" else 0, (1 << reach) - 1
    return -(1 << reach), (1 << reach) - 1


# ---- tiles that are numbered in groups of rows -----------------------------------------------------------


@record
class _Grouped:
    """The number ``index // (size * columns)`` of a group of ``size`` rows, of an index below rows * columns.

    So number * size < rows, also where the extent of the index wraps: then the exact product is larger still.
    """

    index: Expr
    rows: Expr
    columns: Expr
    size: int


def _grouped(e: Expr) -> _Grouped | None:
    """The bounds of the groups that follow from ``e``, a quotient or remainder of an index by ``size *
    columns``."""
    if not (isinstance(e, Binary) and e.op in ("floordiv", "div", "mod", "floormod") and e.type == dtypes.s32):
        return None
    i, by = e.a, e.b
    if not (isinstance(i, Index) and i.limits is None and isinstance(by, Binary) and by.op == "mul"):
        return None
    whole = i.extent
    if not (isinstance(whole, Binary) and whole.op == "mul" and whole.type == by.type == dtypes.s32) or wraps(by):
        return None
    for c, columns in ((by.a, by.b), (by.b, by.a)):
        size = value_of(c)
        if size is None or size <= 0 or columns not in (whole.a, whole.b):
            continue
        rows = whole.b if whole.a == columns else whole.a
        if interval(rows)[0] >= 0 and interval(columns)[0] >= 0:
            return _Grouped(i, rows, columns, size)
    return None


def _next_group(e: Expr) -> _Grouped | None:
    """Of the first row after a group: ``number * size + size`` or ``(number + 1) * size``."""
    if not (isinstance(e, Binary) and e.op in ("add", "mul") and e.type == dtypes.s32):
        return None
    inner = "mul" if e.op == "add" else "add"
    for x, outside in ((e.a, value_of(e.b)), (e.b, value_of(e.a))):
        if not (isinstance(x, Binary) and x.op == inner):
            continue
        for number, inside in ((x.a, value_of(x.b)), (x.b, value_of(x.a))):
            found = _grouped(number) if isinstance(number, Binary) and number.op in ("floordiv", "div") else None
            if found is not None and (inside, outside) == (found.size if inner == "mul" else 1, found.size):
                return found
    return None


def _rows_of_group(e: Expr) -> _Grouped | None:
    """Of the rows in a group, ``next > rows ? rows % size : size``: at least 1.

    Where it is the remainder, the group begins below ``rows`` and ends beyond it, so ``rows`` is no multiple of
    ``size``, and the remainder is the distance from the first row of the group.
    """
    if not (isinstance(e, Select) and isinstance(e.cond, Binary) and e.cond.op in ("gt", "lt")):
        return None
    after, rows = (e.cond.a, e.cond.b) if e.cond.op == "gt" else (e.cond.b, e.cond.a)
    found, rest = _next_group(after), e.a
    if found is None or found.rows != rows or value_of(e.b) != found.size or e.type != dtypes.s32:
        return None
    if not (isinstance(rest, Binary) and rest.op in ("mod", "floormod") and rest.a == rows):
        return None
    return found if value_of(rest.b) == found.size else None


def _grouped_quotient(e: Binary, known: Known) -> Range | None:
    """Of the number of a group, times its size below ``rows``; and of a column in it.

    The column ``index % (size * columns) // rows of the group`` is below ``columns``: so many tiles has each row.
    """
    if e.op not in ("floordiv", "div"):
        return None
    group = _grouped(e)
    if group is not None:
        return 0, max(0, known.interval(group.rows)[1] - 1) // group.size
    within = _grouped(e.a) if isinstance(e.a, Binary) and e.a.op in ("mod", "floormod") else None
    if within is None or within != _rows_of_group(e.b):
        return None
    return 0, max(0, known.interval(within.columns)[1] - 1)
