"""The syntax tree of `.co` kernels, before names are resolved.

Every node has the span of the text it was read from.  Both dialects of the language give the same nodes; a
form that only one of them has is a field.
"""

from __future__ import annotations

from typing import Literal

from tilemma.croqtile.node import Node
from tilemma.errors import Span

# ---- expressions -----------------------------------------------------------------------------------------


class Expr(Node):
    """Base of all expressions."""


class Name(Expr):
    text: str


class Int(Expr):
    """``suffix``: "", "u", "l", "ul", in lower case, "ll" counting as "l"."""

    value: int
    suffix: str = ""


class Float(Expr):
    """``single``: written with ``f``."""

    value: float
    single: bool


class Bool(Expr):
    value: bool


class Str(Expr):
    value: str


class Inf(Expr):
    pass


class Nullptr(Expr):
    pass


class Whole(Expr):
    """``_``: the dimension untouched."""


class Paren(Expr):
    """Kept, since ``s [(0)/2]`` reads dimension 0 of ``s``."""

    inner: Expr


class Unary(Expr):
    """``-  !  ~  &`` (address)."""

    op: str
    operand: Expr


class Bound(Expr):
    """``#p``: the upper bound."""

    operand: Expr


class Binary(Expr):
    """C's operators, ``#`` (compose) and ``#+ #- #* #/ #%`` (on bounds)."""

    op: str
    a: Expr
    b: Expr


class Ternary(Expr):
    cond: Expr
    a: Expr
    b: Expr


class Step(Expr):
    """``++i``, ``i--``: ``sign`` 1 or -1; ``before``: the value is the new one."""

    target: Expr
    sign: int
    before: bool


class Count(Expr):
    """``|s|``: the number of elements."""

    operand: Expr


class SizeOf(Expr):
    """``|f16|``: the bytes of one element."""

    dtype: str


class Convert(Expr):
    """``__to<f16>(e)``."""

    dtype: str
    operand: Expr


class Call(Expr):
    """``f(a, b)``: a call of a function, or an access ``x(i)``, depending on the meaning of ``f``."""

    function: Expr
    args: tuple[Expr, ...]


class LaneMatrix(Expr):
    """``load_matrix_a<16, 8, 16>(x, row, col)``: one lane's values of an operand of an instruction."""

    name: str
    shape: tuple[Expr, ...]
    args: tuple[Expr, ...]


class NamedArgument(Expr):
    """``stages = 4`` among the operands of an attribute."""

    name: str
    value: Expr


class Subscript(Expr):
    """``x[i]``; several indices for a derivation ``s [(0)/2, 4]``."""

    base: Expr
    indices: tuple[Expr, ...]


class Member(Expr):
    """``base.name`` or ``base.name(args : strides)``; ``args`` None: no parentheses."""

    base: Expr
    name: str
    args: tuple[Expr, ...] | None = None
    strides: tuple[Expr, ...] = ()
    template: tuple[Expr, ...] = ()
    name_span: Span | None = None


class Tuple(Expr):
    """``{a, b}``; ``of``: derived from a tuple's name, ``t {(0), 1}``."""

    items: tuple[Expr, ...]
    of: Name | None = None


class SpanList(Expr):
    """``[a, b]``."""

    items: tuple[Expr, ...]


class Unknown(Expr):
    """``?`` or ``??`` as a dimension."""

    unbounded: bool


class Ratio(Expr):
    """``2:4`` in ``.sp<2:4>``."""

    a: Expr
    b: Expr


# ---- types and declarations ------------------------------------------------------------------------------

Storage = Literal["global", "shared", "local"]


class Type(Node):
    """``f16``, ``f16 [M, K]`` (``dims``), ``f32 mdspan<2>`` (``rank``); ``void``, ``auto``, ``stream``."""

    name: str
    dims: tuple[Expr, ...] | None = None
    rank: int | None = None


class Parameter(Node):
    type: Type
    name: str | None
    storage: Storage | None = None
    reference: bool = False


class Item(Node):
    """One declared name: ``x``, ``x[2]``, ``x = e``, ``x {e}``; ``braces``: the initialiser was in braces."""

    name: str
    sizes: tuple[Expr, ...] = ()
    value: Expr | Statement | None = None
    braces: bool = False


# ---- statements ------------------------------------------------------------------------------------------


class Statement(Node):
    """Base of all statements."""


class Block(Statement):
    body: tuple[Statement, ...]


class Declare(Statement):
    """Scalars and arrays; ``type`` None: ``mutable x = e``."""

    type: Type | None
    items: tuple[Item, ...]
    storage: Storage | None = None
    mutable: bool = False


class DeclareSpan(Statement):
    """``s : [7, 8];``"""

    name: str
    value: Expr
    rank: int | None = None


class DeclareTuple(Statement):
    """``ituple<2> t = {1, 2};``"""

    name: str
    value: Expr
    rank: int | None = None


class DeclareEvent(Statement):
    """``shared event<256> e[2] = ready;``"""

    items: tuple[Item, ...]
    storage: Storage | None
    threads: Expr | None = None


class DeclareFragment(Statement):
    """``frag f16[64, 128] p {0.0};``"""

    items: tuple[Item, ...]
    dtype: str | None = None
    dims: tuple[Expr, ...] | None = None


class Assign(Statement):
    """``target op= value``; ``op`` "" for a plain assignment.  ``value`` may be an operation with a result."""

    target: Expr
    value: Expr | Statement
    op: str = ""


class Evaluate(Statement):
    """An expression for its effect: ``++i``, a built-in call."""

    value: Expr


class Suffix(Node):
    """``.name<arguments>`` of an operation."""

    name: str
    args: tuple[Expr, ...] = ()
    had_args: bool = False


class LevelSpec(Node):
    """``block``, ``group-4``, ``block<cooperative>``, ``device(gpu)``."""

    name: str
    args: tuple[Expr, ...] = ()


class Names(Node):
    """``i``, ``{i, j}`` or ``t = {i, j}``: ``whole`` names the tuple, ``parts`` its elements."""

    whole: str | None
    parts: tuple[Name, ...] = ()


class Range(Node):
    """``(start : stop : step)``: offsets added to the bounds."""

    start: Expr | None
    stop: Expr | None
    step: Expr | None


class Iteration(Node):
    """``names in extent`` (``extent`` None: an index that is already there), with its range."""

    names: Names
    extent: Expr | None
    range: Range | None = None


class ParallelSpec(Node):
    """``names by extent : level``."""

    names: Names | None
    extent: Expr
    level: LevelSpec | None = None


class Parallel(Statement):
    specs: tuple[ParallelSpec, ...]
    body: Statement
    suffixes: tuple[Suffix, ...] = ()
    stream: Expr | None = None
    attributes: tuple[Expr, ...] = ()


class Foreach(Statement):
    """``hints``: (name, arguments) of ``: unroll(4)``."""

    items: tuple[Iteration, ...]
    body: Statement
    hints: tuple[Suffix, ...] = ()
    attributes: tuple[Expr, ...] = ()


class With(Statement):
    """``where``: pairs of names bound to each other."""

    items: tuple[Iteration, ...]
    body: Statement
    where: tuple[tuple[Name, Name], ...] = ()


class While(Statement):
    cond: Expr | Statement
    body: Statement


class If(Statement):
    cond: Expr | Statement
    then: Statement
    otherwise: Statement | None = None


class InThreads(Statement):
    cond: Expr
    body: Statement
    suffixes: tuple[Suffix, ...] = ()


class Break(Statement):
    pass


class Continue(Statement):
    pass


class Yield(Statement):
    pass


class Return(Statement):
    value: Expr | None


class Sync(Statement):
    """``sync.shared``, ``sync.barrier : block``, ``sync.fence : thread<shared>``."""

    suffixes: tuple[Suffix, ...]
    level: LevelSpec | None = None


class Wait(Statement):
    """``phase``: ``wait<0> e``, a form neither dialect has any more."""

    targets: tuple[Expr, ...]
    phase: Expr | None = None


class Trigger(Statement):
    targets: tuple[Expr, ...]
    after: tuple[Expr, ...] = ()
    suffixes: tuple[Suffix, ...] = ()


class Copy(Statement):
    """``dma.copy.async.swiz<128> src => dst after f``; ``dst`` a `LevelSpec`-like storage name or a view."""

    engine: Literal["dma", "tma"]
    suffixes: tuple[Suffix, ...]
    src: Expr | None = None
    dst: Expr | Storage | None = None
    after: tuple[Expr, ...] = ()


class Mma(Statement):
    """Every ``mma.*`` operation, with its suffixes."""

    suffixes: tuple[Suffix, ...]
    args: tuple[Expr, ...] = ()
    attributes: tuple[Expr, ...] = ()


class Exchange(Statement):
    """``swap(f, g)``, ``rotate(f, g, h)``."""

    names: tuple[Expr, ...]
    word: Literal["swap", "rotate"]


class CallStatement(Statement):
    """``call f<...>(...)``: a device function of the host language."""

    function: str
    args: tuple[Expr, ...]
    template: tuple[Expr, ...] = ()


class Print(Statement):
    """``compile_time``: ``print!``."""

    args: tuple[Expr, ...]
    newline: bool
    compile_time: bool


class Assert(Statement):
    cond: Expr
    message: str


class Apply(Statement):
    names: Names
    over: Expr
    body: Statement


class Reduce(Statement):
    """``reduce_max(dst, src, 1)``, ``reduce_sum``, ``all_reduce_sum``, ``copy``."""

    word: str
    args: tuple[Expr, ...]


class SetRegisters(Statement):
    """``setreg 40``, ``setreg.inc 240``, and the equivalent text of another language."""

    count: Expr
    suffixes: tuple[Suffix, ...] = ()


# ---- kernels ---------------------------------------------------------------------------------------------


class Function(Node):
    name: str
    returns: Type
    params: tuple[Parameter, ...]
    body: Block
    name_span: Span | None = None
    attributes: tuple[Expr, ...] = ()
