"""The operands of the language that are compile-time constants: their legal values, in both languages.

Both front ends check them here, with the same errors, and docs/language.md shows the table.  The legal values do
not depend on the target: a limit that holds on every target is in the table, and the passes for an architecture
refuse values beyond its own limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, get_args

from tilemma.errors import Note, Span, described, is_text_source, nearest, spelled
from tilemma.ir.pipeline import ORDERS
from tilemma.ir.refusals import NotATile, WrongValue
from tilemma.records import record


@record
class Kind:
    """A kind of operand: its legal values, and the advice in each language for other values."""

    wanted: str
    croqtile: str
    python: str
    error: type[WrongValue] = WrongValue

    def refused(
        self, what: str, got: str, span: Span | None, fix: str | None = None, notes: Sequence[Note] = ()
    ) -> WrongValue:
        """The error if ``what`` got ``got``; ``fix``: more specific advice than that of the kind."""
        advice = fix or spelled(span, self.croqtile, self.python)
        return self.error(span, notes=notes, what=what, got=got, wanted=self.wanted, fix_text=advice)


KINDS = {
    "scalar": Kind(
        "a scalar: an index, a dimension, a number, an element",
        "take an element, `x.at(i, j)`",
        "take an element, `x[i, j]`",
    ),
    "integer": Kind(
        "an integer", "use an integer, or convert: `__to<s32>(x)`", "use an integer, or convert: `.astype('s32')`"
    ),
    "condition": Kind(
        "a condition, or a scalar", "compare elements: `x.at(i, j) > 0`", "compare elements: `x[i, j] > 0`"
    ),
    "index": Kind(
        "an index of a level or a loop, which has an upper bound",
        "use an index of `parallel`, `foreach` or `with`",
        "use an index of `parallel`, `foreach` or `bound`",
    ),
    "extent": Kind(
        "an integer, an index, or a shape",
        "write the extents, `[m, n]` or `x.span`",
        "write the extents, `m, n` or `*x.shape`",
    ),
    "element": Kind(
        "an element of a shared or global array", "name an element, `x.at(i, j)`", "name an element, `x[i, j]`"
    ),
    "tile": Kind(
        "a parameter, a buffer, or a view of one",
        "name a parameter, a buffer or a view",
        "pass a parameter, `shared(...)`, or a `subspan`/`chunkat`/`view` of one",
        NotATile,
    ),
    "register tile": Kind(
        "a register tile",
        "make one with `mma.fill` or `mma.load`, or declare it with `frag`",
        "make one with `mma.fill(0.0, 'f32')`, `mma.load(tile)` or `mma.frag(...)`",
    ),
    "operand": Kind(
        "a register tile, or a tile in shared memory",
        "load one with `mma.load`, or name a buffer",
        "load one with `mma.load(tile)`, or pass a buffer",
        NotATile,
    ),
    "scale": Kind(
        "a tile with a number for each row, column or block, or one number",
        "name a parameter or a view, or write a number",
        "pass a parameter or a view, or a number",
    ),
    "event": Kind("an event", "declare one: `shared event e;`", "declare one: `e = event()`"),
    "future": Kind(
        "the future of an asynchronous copy",
        "name the result of a `dma.copy.async` or `tma.copy.async`",
        "name the result of `dma.copy(..., async_=True)`",
    ),
    "event or future": Kind(
        "an event, or the future of an asynchronous operation",
        "name an event, or the result of an operation with `.async`",
        "name an event, or the result of an operation with `async_=True`",
    ),
    "copy": Kind(
        "the result of a copy",
        "name the result, `f = dma.copy.async ... => shared`",
        "name the result, `f = dma.copy(..., to='shared')`",
    ),
}  # fmt: skip


@record
class Operand:
    """An integer compile-time constant.

    ``croqtile`` and ``python``: the construct with the operand written ``N`` (Croqtile "": it has no such
    operand).  It lies in
    ``low .. high`` (None: no limit here), or is one of ``choices``.  ``total``: the limit for the product of
    several.  ``usual``: an example value for advice.
    """

    name: str
    meaning: str
    croqtile: str
    python: str
    low: int = 0
    high: int | None = None
    choices: tuple[int, ...] = ()
    total: int | None = None
    usual: int = 1

    @property
    def wanted(self) -> str:
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        return f"at least {self.low}" if self.high is None else f"{self.low} to {self.high}"

    def admits(self, value: int) -> bool:
        if self.choices:
            return value in self.choices
        return self.low <= value and (self.high is None or value <= self.high)

    def form(self, span: Span | None) -> str:
        """The construct with the operand, in the language of the program at ``span``."""
        return self.croqtile if is_text_source(span) else self.python

    def example(self, span: Span | None) -> str:
        return self.form(span).replace("N", str(self.usual))

    def refused(self, got: str, span: Span | None, wanted: str | None = None) -> WrongValue:
        """The error for a value that it cannot have."""
        return WrongValue(
            span,
            what=f"`{self.form(span)}`",
            got=got,
            wanted=f"{wanted or self.wanted}: {self.meaning}",
            fix_text=f"write `{self.example(span)}`, for instance",
        )

    def checked(self, value: int, span: Span | None) -> int:
        """``value``; WrongValue where the operand cannot have it."""
        if not self.admits(value):
            raise self.refused(str(value) if abs(value) < 2**64 else described(value), span)
        return value

    def checked_all(self, values: Sequence[int], span: Span | None) -> tuple[int, ...]:
        """``values``, of which none and not all together pass the limit."""
        found = tuple(self.checked(v, span) for v in values)
        if self.total is not None and prod(found) > self.total:
            raise self.refused(f"{prod(found)} in all", span, f"at most {self.total} in all")
        return found


@record
class Choice:
    """One of a few words.  ``croqtile`` and ``python``: the construct with the word written ``W``."""

    name: str
    meaning: str
    croqtile: str
    python: str
    words: tuple[str, ...]

    def refused(self, got: str, span: Span | None) -> WrongValue:
        """The error for another word, with the nearest legal one."""
        form = self.croqtile if is_text_source(span) else self.python
        known = {"warp": "group", "warpgroup": "group-4", "cta": "block"}.get(got)
        near = known if known in self.words else nearest(got, [w.replace("N", "2") for w in self.words])
        word = form.replace("W", near or self.words[-1])
        return WrongValue(
            span,
            what=f"`{form}`",
            got=f"`{got}`",
            wanted=f"one of {', '.join(self.words)}: {self.meaning}",
            fix_text=f"did you mean `{near}`? write `{word}`" if near else f"write `{word}`, for instance",
        )


CHOICES = {
    c.name: c
    for c in (
        Choice(
            "level",
            "the threads that execute the body; N is a number of warps",
            ": W",
            'level="W"',
            ("cluster", "cluster-grid", "cluster-rank", "block", "group-N", "group-4", "group", "thread"),
        ),
        Choice(
            "barrier",
            "whose threads wait for each other",
            "sync.barrier : W",
            'sync.barrier("W")',
            ("cluster", "block", "group-N", "group-4", "group", "thread"),
        ),
        Choice(
            "fence",
            "whose threads see what was written before",
            "sync.fence : W",
            'sync.fence("W")',
            ("device", "cluster", "block", "group-N", "group-4", "group", "thread"),
        ),
        Choice("evict", "what the cache gives up", ".evict_W", 'evict="W"', ("first", "last")),
        Choice(
            "order",
            "whether a pipelined loop may add its products in another order",
            "pipeline(order=W)",
            'Pipeline(order="W")',
            ORDERS,
        ),
        Choice("to", "where the copy's new buffer stands", "=> W", 'to="W"', ("local", "shared")),
    )
}


@record
class Limit:
    """The greatest number of ``things`` that a program may have in ``subject``, on every target."""

    most: int
    things: str
    subject: str

    def checked(self, count: int, what: str, span: Span | None) -> None:
        """WrongValue for ``what`` with more than the limit."""
        if count > self.most:
            raise WrongValue(
                span,
                what=what,
                got=f"{count} {self.things}",
                wanted=f"at most {self.most}",
                fix_text=f"use fewer {self.things}",
            )


LIMITS = {
    "rank": Limit(16, "dimensions", "an array, a buffer or a view"),
    "parameters": Limit(128, "parameters", "a kernel"),
    "indices": Limit(3, "indices", "a `parallel`"),
    "threads": Limit(1024, "threads", "a block"),
    "cluster": Limit(8, "blocks", "a cluster"),
    "barriers": Limit(16, "named barriers, that of the whole block included,", "a block"),
}
SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128, 32: 32, 64: 64, 128: 128}

OPERANDS = {
    o.name: o
    for o in (
        Operand("pending", "batches of multiplies that still run", "mma.wait<N>", "mma.wait(N)", 0, 7, usual=0),
        Operand(
            "swizzle",
            "the width of the swizzle in bytes, or 1, 2, 3 for these widths, or 0 for none",
            ".swiz<N>",
            "swizzle=N",
            choices=tuple(SWIZZLES),
            usual=128,
        ),
        Operand(
            "promote",
            "bytes that the cache fetches at once",
            ".promote<N>",
            "promote=N",
            choices=(64, 128, 256),
            usual=128,
        ),
        Operand("copies", "buffers of an array", "s[N]", "copies=N", 1, 4096, total=4096, usual=2),
        Operand("tiles", "register tiles of an array", "mc[N]", "copies=N", 1, 256, total=256, usual=2),
        Operand("extent", "an extent of a buffer", "shared f16 [N]", 'shared("f16", N)', 1, usual=64),
        Operand(
            "fragment-extent", "rows or columns of a register tile", "f32[N, 64] p", '"f32", N, 64', 1, usual=64
        ),
        # A waiter keeps the parities of the slots of a ring in one register.
        Operand("slots", "events of a ring", "event e[N]", "event(N)", 1, 32, usual=2),
        Operand(
            "threads", "triggers that complete a generation", "event<N>", "event(threads=N)", 1, 4096, usual=128
        ),
        Operand(
            "stages",
            "buffers of each tile that a pipelined loop copies ahead; 1: it copies nothing ahead",
            "pipeline(stages=N)",
            "Pipeline(stages=N)",
            1,
            16,
            usual=4,
        ),
        Operand(
            "cluster",
            "blocks that share their tiles by multicast",
            "pipeline(cluster=N)",
            "Pipeline(cluster=N)",
            choices=(1, 2, 4, 8),
            usual=2,
        ),
        Operand(
            "blocks",
            "persistent blocks, at most",
            "pipeline(blocks=N)",
            "Pipeline(blocks=N)",
            1,
            65535,
            usual=132,
        ),
        Operand("unroll", "copies of the loop's body", "unroll(N)", "unroll=N", 1, 4096, usual=4),
        Operand("vectorize", "elements that an iteration handles", "vectorize(i, N)", "", 1, 4096, usual=4),
        Operand(
            "max-threads",
            "threads of a block, an upper bound, or `_`: they follow from the levels",
            "launch_bounds(N)",
            "",
            1,
            LIMITS["threads"].most,
            usual=128,
        ),
        Operand(
            "min-blocks",
            "blocks that a multiprocessor holds at once; none holds more than 32",
            "launch_bounds(_, N)",
            "min_blocks=N",
            1,
            32,
        ),
        Operand(
            "max-registers",
            "registers of a thread; none has more than 255",
            "maxnreg(N)",
            "max_registers=N",
            1,
            255,
            usual=128,
        ),
        Operand("start", "the first index; an index is never negative", "(N:)", "start=N", 0, usual=0),
        Operand("step", "the distance from one index to the next", "(::N)", "step=N", 1, usual=1),
        Operand("padding", "elements added to a dimension", "{N, 0}", "(N, 0)"),
    )
}  # fmt: skip


@record
class Function:
    """A function of the math library.  ``operation``: its name in tile IR, in Croqtile after two underscores."""

    operation: str
    arguments: int
    meaning: str
    kind: str = "scalar"


# By the name in `tm.math`.
FUNCTIONS = {
    "abs": Function("abs", 1, "magnitude, of integers too"),
    "acos": Function("acos", 1, "arc cosine"),
    "asin": Function("asin", 1, "arc sine"),
    "atan": Function("atan", 1, "arc tangent"),
    "atan2": Function("atan2", 2, "angle of the point (b, a)"),
    "ceil": Function("ceil", 1, "rounded up"),
    "clamp": Function("clamp", 3, "a, at least b and at most c"),
    "cos": Function("cos", 1, "cosine"),
    "cosh": Function("cosh", 1, "hyperbolic cosine"),
    "erf": Function("erf", 1, "error function"),
    "exp": Function("exp", 1, "e ** a"),
    "exp2": Function("exp2f", 1, "2 ** a"),
    "exp2_ftz": Function("exp2_ftz", 1, "2 ** a, or 0 where that is below 2 ** -126; the fastest exponential"),
    "expm1": Function("expm1", 1, "e ** a - 1"),
    "fabs": Function("fabs", 1, "magnitude"),
    "floor": Function("floor", 1, "rounded down"),
    "fma": Function("fmaf", 3, "a * b + c, rounded once"),
    "gelu": Function("gelu", 1, "a times the normal distribution's probability below a"),
    "isfinite": Function("isfinite", 1, "1 where neither infinite nor NaN, else 0"),
    "log": Function("log", 1, "natural logarithm"),
    "log1p": Function("log1p", 1, "log(1 + a)"),
    "log2": Function("log2", 1, "logarithm of base 2"),
    "max": Function("max", 2, "the larger; a number rather than NaN"),
    "min": Function("min", 2, "the smaller; a number rather than NaN"),
    "pow": Function("pow", 2, "a ** b"),
    "rcp": Function("frcp_rn", 1, "1 / a, rounded to nearest"),
    "relu": Function("relu", 1, "a where positive, else 0"),
    "round": Function("round", 1, "to the nearest integer, halves away from 0"),
    "rsqrt": Function("rsqrt", 1, "1 / sqrt(a)"),
    "sigmoid": Function("sigmoid", 1, "1 / (1 + exp(-a))"),
    "sign": Function("sign", 1, "-1, 0 or 1"),
    "silu": Function("silu", 1, "a * sigmoid(a)"),
    "sin": Function("sin", 1, "sine"),
    "sinh": Function("sinh", 1, "hyperbolic sine"),
    "softplus": Function("softplus", 1, "log(1 + exp(a))"),
    "sqrt": Function("sqrt", 1, "square root"),
    "tan": Function("tan", 1, "tangent"),
    "tanh": Function("tanh", 1, "hyperbolic tangent"),
    "alignup": Function("alignup", 2, "a rounded up to a multiple of b", "integer"),
    "aligndown": Function("aligndown", 2, "a rounded down to a multiple of b", "integer"),
}
AtomicName = Literal["add", "sub", "exch", "min", "max", "and", "or", "xor", "cas"]
ATOMICS: tuple[AtomicName, ...] = get_args(AtomicName)


@record
class Construct:
    """A construct in both languages, its operands written `A`, `B`, .. in the order of ``kinds``.

    A form that opens a block ends in `{ }` or in `:`.
    """

    croqtile: str
    python: str
    kinds: tuple[str, ...]


def _call(croqtile: str, python: str, kinds: tuple[str, ...]) -> Construct:
    letters = ", ".join("ABCD"[: len(kinds)])
    return Construct(f"{croqtile}({letters})", f"{python}({letters})", kinds)


_SCALARS = ("scalar", "scalar")
CONSTRUCTS = (
    *(Construct(f"A {s} B", f"A {s} B", _SCALARS) for s in ("+", "-", "*", "==", "!=", "<", "<=", ">", ">=")),
    Construct("A / B", "A // B", _SCALARS),
    Construct("A % B", "A % B", _SCALARS),
    *(Construct(f"A {s} B", f"A {s} B", ("integer", "integer")) for s in ("&", "|", "^", "<<", ">>")),
    Construct("-A", "-A", ("scalar",)),
    Construct("~A", "~A", ("integer",)),
    Construct("A # B", "compose(A, B)", ("index", "index")),
    Construct("#A", "ubound(A)", ("index",)),
    _call("cdiv", "cdiv", ("integer", "integer")),
    _call("select", "select", ("condition", "scalar", "scalar")),
    *(_call(f"__{f.operation}", f"tm.math.{name}", (f.kind,) * f.arguments) for name, f in FUNCTIONS.items()),
    *(
        _call(f"__atomic_{name}", f"atomic.{name}{'_' * (name in ('and', 'or'))}", ("element", *_SCALARS)[:n])
        for name in ATOMICS
        for n in (3 if name == "cas" else 2,)
    ),
    Construct("c.at(A, B)", "c[A, B]", ("integer", "integer")),
    Construct("c.at(0, 0) = A;", "c[0, 0] = A", ("scalar",)),
    Construct("v = A;", "v.set(A)", ("scalar",)),
    Construct("if (A) { }", "with if_(A):", ("condition",)),
    Construct("while (A) { }", "with while_(lambda: A):", ("condition",)),
    Construct("inthreads (A) { }", "with inthreads(A):", ("condition",)),
    Construct("foreach i in A { }", "for i in foreach(A):", ("extent",)),
    Construct("parallel q by A : thread { }", 'for q in parallel(A, level="thread"):', ("extent",)),
    Construct("print(A);", 'tm.print(A, end="")', ("scalar",)),
    Construct('assert(A, "m");', 'assert_(A, "m")', ("condition",)),
    Construct("wait A;", "wait(A)", ("event or future",)),
    Construct("trigger A;", "trigger(A)", ("event",)),
    Construct("trigger e after A;", "trigger(e, after=A)", ("future",)),
    Construct("swap(A, B);", "swap(A, B)", ("copy", "copy")),
    Construct("dma.copy A => B;", "dma.copy(A, B)", ("tile", "tile")),
    Construct("tma.copy.async<A> b => s;", "tma.copy(b, s, async_=A)", ("event",)),
    Construct("tma.copy b => s after A;", "tma.copy(b, s, after=A)", ("future",)),
    Construct("o = mma.fill.f32 A;", 'o = mma.fill(A, "f32")', ("scalar",)),
    Construct("mma.fill A, B;", "mma.fill(A, B)", ("register tile", "scalar")),
    Construct("o = mma.load A;", "o = mma.load(A)", ("tile",)),
    Construct("mma.load A, B;", "mma.load(A, B)", ("tile", "register tile")),
    Construct("mma.row.row A, B, C;", "mma.row.row(A, B, C)", ("register tile", "operand", "operand")),
    Construct("mma.row.row.sp A, B, C, D;", "mma.row.row.sp(A, B, C, D)",
              ("register tile", "operand", "operand", "register tile")),
    Construct("mma.row.row.scale m, h, h, A, B;", "mma.row.row.scale(m, h, h, A, B)", ("scale", "scale")),
    Construct("mma.store A, B;", "mma.store(A, B)", ("register tile", "tile")),
    Construct("mma.store.mask m, b, A, B;", "mma.store(m, b, rows=A, columns=B)", ("integer", "integer")),
    Construct("mma.scale A, B, C;", "mma.scale(A, B, C)", ("register tile", "scale", "scale")),
    Construct("apply {i, j} in A.span { }", "for i, j in apply(A):", ("register tile",)),
    Construct("b.subspan(A, B).at(C, D)", "b.subspan(A, B).at(C, D)", ("integer",) * 4),
    Construct("b.view(A, B).from(C, D)", "b.view(A, B).from_(C, D)", ("integer",) * 4),
    Construct("b.span_as(A, B)", "b.span_as(A, B)", ("integer", "integer")),
    Construct("b.chunkat(A, B)", "b.chunkat(A, B)", ("index", "index")),
)  # fmt: skip
