"""What a kernel's text says, node by node, before names mean anything.

Every node has the span of the text it was read from.  Both dialects of the language give the same nodes; a
form that only one of them has is a field.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from tilemma.croqtile.node import Node, node
from tilemma.errors import Span

# ---- expressions -----------------------------------------------------------------------------------------


@node
class Expr(Node):
    """Base of all expressions."""


@node
class Name(Expr):
    text: str


@node
class Int(Expr):
    """``suffix``: "", "u", "l", "ul", in lower case, "ll" counting as "l"."""

    value: int
    suffix: str = ""


@node
class Float(Expr):
    """``single``: written with ``f``."""

    value: float
    single: bool


@node
class Bool(Expr):
    value: bool


@node
class Str(Expr):
    value: str


@node
class Inf(Expr):
    pass


@node
class Nullptr(Expr):
    pass


@node
class Whole(Expr):
    """``_``: the dimension untouched."""


@node
class Paren(Expr):
    """Kept, since ``s [(0)/2]`` reads dimension 0 of ``s``."""

    inner: Expr


@node
class Unary(Expr):
    """``-  !  ~  &`` (address)."""

    op: str
    operand: Expr


@node
class Bound(Expr):
    """``#p``: the upper bound."""

    operand: Expr


@node
class Binary(Expr):
    """C's operators, ``#`` (compose) and ``#+ #- #* #/ #%`` (on bounds)."""

    op: str
    a: Expr
    b: Expr


@node
class Ternary(Expr):
    cond: Expr
    a: Expr
    b: Expr


@node
class Step(Expr):
    """``++i``, ``i--``: ``sign`` 1 or -1; ``before``: the value is the new one."""

    target: Expr
    sign: int
    before: bool


@node
class Count(Expr):
    """``|s|``: the number of elements."""

    operand: Expr


@node
class SizeOf(Expr):
    """``|f16|``: the bytes of one element."""

    dtype: str


@node
class Convert(Expr):
    """``__to<f16>(e)``."""

    dtype: str
    operand: Expr


@node
class Call(Expr):
    """``f(a, b)``: a function, or an access ``x(i)``; what ``f`` names decides."""

    function: Expr
    args: tuple[Expr, ...]


@node
class Subscript(Expr):
    """``x[i]``; several indices for a derivation ``s [(0)/2, 4]``."""

    base: Expr
    indices: tuple[Expr, ...]


@node
class Member(Expr):
    """``base.name`` or ``base.name(args : strides)``; ``args`` None: no parentheses."""

    base: Expr
    name: str
    args: tuple[Expr, ...] | None = None
    strides: tuple[Expr, ...] = ()
    template: tuple[Expr, ...] = ()
    name_span: Span | None = field(default=None, compare=False, repr=False)


@node
class Tuple(Expr):
    """``{a, b}``; ``of``: derived from a tuple's name, ``t {(0), 1}``."""

    items: tuple[Expr, ...]
    of: Name | None = None


@node
class SpanList(Expr):
    """``[a, b]``."""

    items: tuple[Expr, ...]


@node
class Unknown(Expr):
    """``?`` or ``??`` as a dimension."""

    unbounded: bool


@node
class Ratio(Expr):
    """``2:4`` in ``.sp<2:4>``."""

    a: Expr
    b: Expr


# ---- types and declarations ------------------------------------------------------------------------------

Storage = Literal["global", "shared", "local"]


@node
class Type(Node):
    """``f16``, ``f16 [M, K]`` (``dims``), ``f32 mdspan<2>`` (``rank``); ``void``, ``auto``, ``stream``."""

    name: str
    dims: tuple[Expr, ...] | None = None
    rank: int | None = None


@node
class Parameter(Node):
    type: Type
    name: str | None
    storage: Storage | None = None
    reference: bool = False


@node
class Item(Node):
    """One declared name: ``x``, ``x[2]``, ``x = e``, ``x {e}``; ``braces``: the initialiser was in braces."""

    name: str
    sizes: tuple[Expr, ...] = ()
    value: Expr | Statement | None = None
    braces: bool = False


# ---- statements ------------------------------------------------------------------------------------------


@node
class Statement(Node):
    """Base of all statements."""


@node
class Block(Statement):
    body: tuple[Statement, ...]


@node
class Declare(Statement):
    """Scalars and arrays; ``type`` None: ``mutable x = e``."""

    type: Type | None
    items: tuple[Item, ...]
    storage: Storage | None = None
    mutable: bool = False


@node
class DeclareSpan(Statement):
    """``s : [7, 8];``"""

    name: str
    value: Expr
    rank: int | None = None


@node
class DeclareTuple(Statement):
    """``ituple<2> t = {1, 2};``"""

    name: str
    value: Expr
    rank: int | None = None


@node
class DeclareEvent(Statement):
    """``shared event<256> e[2] = ready;``"""

    items: tuple[Item, ...]
    storage: Storage | None
    threads: Expr | None = None


@node
class DeclareFragment(Statement):
    """``frag f16[64, 128] p {0.0};``"""

    items: tuple[Item, ...]
    dtype: str | None = None
    dims: tuple[Expr, ...] | None = None


@node
class Assign(Statement):
    """``target op= value``; ``op`` "" for a plain assignment.  ``value`` may be an operation with a result."""

    target: Expr
    value: Expr | Statement
    op: str = ""


@node
class Evaluate(Statement):
    """An expression for its effect: ``++i``, a built-in call."""

    value: Expr


@node
class Suffix(Node):
    """``.name<arguments>`` of an operation."""

    name: str
    args: tuple[Expr, ...] = ()
    had_args: bool = False


@node
class LevelSpec(Node):
    """``block``, ``group-4``, ``block<cooperative>``, ``device(gpu)``."""

    name: str
    args: tuple[Expr, ...] = ()


@node
class Names(Node):
    """``i``, ``{i, j}`` or ``t = {i, j}``: ``whole`` names the tuple, ``parts`` its elements."""

    whole: str | None
    parts: tuple[Name, ...] = ()


@node
class Range(Node):
    """``(start : stop : step)``: offsets added to the bounds."""

    start: Expr | None
    stop: Expr | None
    step: Expr | None


@node
class Iteration(Node):
    """``names in extent`` (``extent`` None: an index that is already there), with its range."""

    names: Names
    extent: Expr | None
    range: Range | None = None


@node
class ParallelSpec(Node):
    """``names by extent : level``."""

    names: Names | None
    extent: Expr
    level: LevelSpec | None = None


@node
class Parallel(Statement):
    specs: tuple[ParallelSpec, ...]
    body: Statement
    suffixes: tuple[Suffix, ...] = ()
    stream: Expr | None = None
    attributes: tuple[Expr, ...] = ()


@node
class Foreach(Statement):
    """``hints``: (name, arguments) of ``: unroll(4)``."""

    items: tuple[Iteration, ...]
    body: Statement
    hints: tuple[Suffix, ...] = ()
    attributes: tuple[Expr, ...] = ()


@node
class With(Statement):
    """``where``: pairs of names bound to each other."""

    items: tuple[Iteration, ...]
    body: Statement
    where: tuple[tuple[Name, Name], ...] = ()


@node
class While(Statement):
    cond: Expr | Statement
    body: Statement


@node
class If(Statement):
    cond: Expr | Statement
    then: Statement
    otherwise: Statement | None = None


@node
class InThreads(Statement):
    cond: Expr
    body: Statement
    suffixes: tuple[Suffix, ...] = ()


@node
class Break(Statement):
    pass


@node
class Continue(Statement):
    pass


@node
class Yield(Statement):
    pass


@node
class Return(Statement):
    value: Expr | None


@node
class Sync(Statement):
    """``sync.shared``, ``sync.barrier : block``, ``sync.fence : thread<shared>``."""

    suffixes: tuple[Suffix, ...]
    level: LevelSpec | None = None


@node
class Wait(Statement):
    """``phase``: ``wait<0> e``, a form neither dialect has any more."""

    targets: tuple[Expr, ...]
    phase: Expr | None = None


@node
class Trigger(Statement):
    targets: tuple[Expr, ...]
    after: tuple[Expr, ...] = ()
    suffixes: tuple[Suffix, ...] = ()


@node
class Copy(Statement):
    """``dma.copy.async.swiz<128> src => dst after f``; ``dst`` a `LevelSpec`-like storage name or a view."""

    engine: Literal["dma", "tma"]
    suffixes: tuple[Suffix, ...]
    src: Expr | None = None
    dst: Expr | Storage | None = None
    after: tuple[Expr, ...] = ()


@node
class Mma(Statement):
    """Every ``mma.*`` operation; the suffixes say which."""

    suffixes: tuple[Suffix, ...]
    args: tuple[Expr, ...] = ()
    attributes: tuple[Expr, ...] = ()


@node
class Exchange(Statement):
    """``swap(f, g)``, ``rotate(f, g, h)``."""

    names: tuple[Expr, ...]
    word: Literal["swap", "rotate"]


@node
class CallStatement(Statement):
    """``call f<...>(...)``: a device function of the host language."""

    function: str
    args: tuple[Expr, ...]
    template: tuple[Expr, ...] = ()


@node
class Print(Statement):
    """``compile_time``: ``print!``."""

    args: tuple[Expr, ...]
    newline: bool
    compile_time: bool


@node
class Assert(Statement):
    cond: Expr
    message: str


@node
class Apply(Statement):
    names: Names
    over: Expr
    body: Statement


@node
class Reduce(Statement):
    """``reduce_max(dst, src, 1)``, ``reduce_sum``, ``all_reduce_sum``, ``copy``."""

    word: str
    args: tuple[Expr, ...]


# ---- kernels ---------------------------------------------------------------------------------------------


@node
class Function(Node):
    name: str
    returns: Type
    params: tuple[Parameter, ...]
    body: Block
    name_span: Span | None = field(default=None, compare=False, repr=False)
