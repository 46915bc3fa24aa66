"""Wrong programs in Python: which error, under which text the caret stands, and what it advises."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from programs import kernel, marked, run

import tilemma as tm
from tilemma.errors import KINDS, CompileError, LaunchError, TilemmaError

BLOCK = 'for p in parallel(4, level="block"):\n'


def inside(body: str) -> str:
    """Statements of a block."""
    return BLOCK + "\n".join("    " + line for line in body.split("\n"))


FRAG = "mc = mma.frag('f32', 16, 16, init=0.0)"

# (statements of a block, code, part of the message or of the advice)
STATEMENTS = [
    # scalars
    ("x = «a[0, 0] + 'b'»", "wrong-value", "a Python str"),
    ("«a[0, 0]» = a + 1", "wrong-value", "arithmetic on tiles in memory, without a register tile"),
    ("x = «n / 2»", "wrong-value", "write `//`"),
    ("x = «a[0, 0] & 1»", "wrong-value", "integers, or conditions"),
    ("x = «~a[0, 0]»", "wrong-value", "compare first"),
    ("x = «a[0, 0] << 2»", "wrong-value", "integers"),
    ("x = «n + 2**70»", "wrong-value", "64 bits"),
    ("x = «a[0, 0].astype('f61')»", "unknown-dtype", "did you mean `f64`?"),
    ("x = «n.last»", "wrong-value", "no upper bound"),
    ("x = «p(2)»", "wrong-value", "k(-1)"),
    ("x = «n[0]»", "wrong-value", "index the tile"),
    ("for i in «range(n)»: pass", "traced-value-as-python-number", "`foreach` instead of `range`"),
    ("if «n > 2»: pass", "bool-of-traced-value", "with if_(c):"),
    ("x = n > 2 and n < 4", "bool-of-traced-value", "join conditions with `&`"),
    ("x = not n > 2", "bool-of-traced-value", "`~`"),
    ("while «n > 2»: pass", "bool-of-traced-value", "while_"),
    ("x = «min(n, 3)»", "bool-of-traced-value", "select"),
    ("x = «int(n)»", "traced-value-as-python-number", "compile-time keyword"),
    ("x = «list(a)»", "traced-value-as-python-number", "elements of a"),
    ("x = «compose(n, p)»", "wrong-value", "which has no upper bound"),
    ("x = «ubound(n)»", "wrong-value", "use an index of `parallel`"),
    ("x = «cdiv(4, 0)»", "constant-division", "division by zero"),
    ("x = «select(n, a, 1)»", "not-built-yet", "use `if_`"),
    ("x = «tm.math.exp(1.0, 2.0)»", "wrong-arity", "math.exp(a)"),
    ("for i in «foreach(a[0, n] + abs(a[0, 1]))»: pass", "wrong-value", "got `a[0, n] + "),
    ("b = «a.subspan(select(n > 2, a[0, 0], 1.0), 16)»", "wrong-value", "got `select(n > 2, a[0, 0], "),
    (
        "mc = mma.fill(0.0)\n«mma.store(a, mc)»",
        "wrong-value",
        "write the register tile first: `mma.store(mc, tile)`",
    ),
    (
        "mc = mma.fill(0.0)\n«mma.store(mc)»",
        "wrong-arity",
        "fragment, dst, and the keywords transp=, rows=, columns=",
    ),
    ("«a[0, 0]» = tm.math.exp(a)", "wrong-value", "arithmetic on tiles in memory"),
    ("x = «(a + 1).sum»(axis=1)", "wrong-member", "tile.sum(axis=1)"),
    ("for i in «foreach(range(2, 5))»: pass", "wrong-value", "`foreach(5, start=2, step=1)`"),
    ("for i in «parallel(4, 'thread')»: pass", "wrong-value", '`parallel(n, level="thread")`'),
    ("x = «mma.load(a, 'f16')»", "wrong-value", 'dtype="f16"'),
    ("x = «dma.copy(a, 'shared')»", "not-a-tile", 'to="shared"'),
    ("«a[0, 0]» = mma", "wrong-value", "got `mma`"),
    ("«a[0, 0]» = mma.fill(0.0, 'f32')", "wrong-value", "`mma.store(tile, a)`"),
    ("x = «shared(16, 16)»", "unknown-dtype", "stands before the extents"),
    ("x = «shared('fp16', 16)»", "unknown-dtype", "`f16`"),
    ("x = «shared('torch.bfloat16', 16)»", "unknown-dtype", "`bf16`"),
    ("«tm.math.maximum»(n, p)", "wrong-member", "write `tm.math.max(a, b)`"),
    ("«tm.math(n)»", "wrong-value", "`tm.math.exp(x)`"),
    # objects that hold functions
    ("«mma(a, a, a)»", "wrong-value", "`mma.row.row(acc, a, b)`"),
    ("«mma.row(a, a, a)»", "wrong-value", "`mma.row.col(acc, a, b)`"),
    ("«mma.mul»(a, a)", "wrong-member", "`mma.row.row(acc, a, b)`"),
    ("«dma(a, b)»", "wrong-value", "`dma.copy(a, b)`"),
    ("«dma.load»(a)", "wrong-member", '`dma.copy(a, to="shared")`'),
    ("«tma.store»(a, b)", "wrong-member", "`tma.copy(a, b)`"),
    ("«atomic(a[0, 0], 1)»", "wrong-value", "`atomic.add(x[i, j], v)`"),
    ("«sync.threads»()", "wrong-member", "`.shared`"),
    ("«tm.lane(n)»", "wrong-value", "`lane.shfl_xor(v, m)`"),
    ("x = «tm.math.alignup(1.5, n)»", "wrong-value", "an integer"),
    # variables
    ("x = «var('s')»", "wrong-value", "a Python str"),
    ("x = «var(0, 'int3')»", "unknown-dtype", "did you mean"),
    ("x = var(0)\n«x.set(a[0, 0])»", "wrong-value", ".astype('s32')"),
    ("x = var(0)\n«x += 0.5»", "wrong-value", "the scalar's type"),
    ("x = var(0)\n«x /= 2»", "wrong-value", "write `//`"),
    # elements
    ("x = «a[0]»", "wrong-rank", "write 2 of them"),
    ("x = «b[64, 0]»", "index-out-of-range", "0 to 63"),
    ("x = «b[-1, 0]»", "index-out-of-range", "x.shape[0] - 1"),
    ("x = «b[0:2, 0]»", "wrong-value", "a Python slice"),
    ("x = «b[full, 0]»", "wrong-value", "subspan(h, w)"),
    ("x = «b[0.5, 0]»", "wrong-value", "an integer"),
    ("«b[0, 0]» = a", "wrong-value", "dma.copy"),
    ("«b[0, 0][1]» = 1.0", "wrong-value", "x[i, j] = value"),
    ("x = «a.chunkat(None, 0)»", "wrong-value", "write `full`"),
    ("«tm.sync('shared')»", "wrong-value", "sync.shared()"),
    ("«b[0, 0]» = 'x'", "wrong-value", "a Python str"),
    ("x = «b.chunkt»(p, full)", "wrong-member", "did you mean `.chunk"),
    # views
    ("t = «b.subspan(16, 16).at(0)»", "wrong-rank", "at"),
    ("t = «b.subspan(16).at(0)»", "wrong-rank", "2 dimensions"),
    ("«dma.copy(b.chunk(2, 2), to='shared')»", "not-a-tile", "add `.at(i, j)`"),
    ("«dma.copy(b.view(16, 16), to='shared')»", "not-a-tile", "add `.from_(r, c)`"),
    ("t = «b.chunkat(n, full)»", "unbounded-chunk-index", "subspan"),
    ("x = «b.subspan(10, 64).at(0, 0).chunkat(p, full)»[0, 0]", "chunk-does-not-divide", "divides 10"),
    ("t = «b.span_as(64, 63)»", "element-count", "make the product"),
    ("t = «b.subspan(16, 16).at(0, 0).span_as(256)»", "span-as-not-contiguous", "cut the view"),
    ("t = «b.subspan(16, 16, strides=(1,)).at(0, 0)»", "wrong-arity", "2, as extents"),
    ("t = «b.subspan(16, 16).step(1).at(0, 0)»", "wrong-arity", "2, as extents"),
    ("t = «b.chunkat(0.5, full)»", "wrong-value", "an integer"),
    # what Python refuses by itself
    ("x = «round(n)»", "wrong-value", "a value that is only known when the kernel runs"),
    ("x = «divmod(n, 2)»", "wrong-value", "a value that is only known when the kernel runs"),
    ("x = «n.real»", "wrong-member", "has no member `.real`"),
    ("«b.shape» = (3, 3)", "wrong-value", "got an assignment"),
    # flags
    ("e = «event(2, ready='no')»", "wrong-value", "True or False"),
    ("with «inthreads(n > 2, async_='no')»: pass", "wrong-value", "True or False"),
    ("«dma.copy(b, to='shared', zfill=2)»", "wrong-value", "True or False"),
    # events
    ("«wait()»", "wrong-arity", "wait(e)"),
    ("«swap()»", "wrong-arity", "swap(f, g)"),
    ("f = dma.copy(b, to='shared')\n«swap(f)»", "wrong-arity", "swap(f, g)"),
    ("e = event(2)\nwait(«e[0].at(1)»)", "wrong-value", "take one subscript"),
    ("e = event(2)\nwait(«e.at(n)[1]»)", "wrong-value", "take one subscript"),
    ("e = event(2)\nwait(«e[0][1]»)", "wrong-value", "take one subscript"),
    ("e = event()\nwait(«e.at(0)»)", "wrong-value", "declare it with a size"),
    ("e = event()\nwait(«e[0]»)", "wrong-value", "declare it with a size"),
    ("e = event(2)\nwait(«e[2]»)", "index-out-of-range", "0 to 1"),
    # storage
    ("s = «shared('f99', 4)»", "unknown-dtype", "is not an element type"),
    ("s = «shared('f16')»", "wrong-value", "no extents"),
    ("s = «shared('f16', 0)»", "wrong-value", "at least 1"),
    ("s = «shared('f16', p + 1)»", "extents-not-known", "known when compiled"),
    ("«assert_(a[0, 0] > 0, 10**5000)»", "wrong-value", "the message of `assert_` got a Python int"),
    ("s = «shared('f16', 4, copies=-1)»", "wrong-value", "1 to 4096"),
    ("s = shared('f16', 4, copies=2)\n«dma.copy(s, a)»", "not-a-tile", "choose one: `s[i]`"),
    ("s = shared('f16', 4, copies=2)\nx = «s[2]»", "index-out-of-range", "0 to 1"),
    ("s = «global_('f32', 4)»", "wrong-value", "inside `parallel`"),
    # control
    ("for i in «foreach()»: pass", "wrong-value", "no extents"),
    ("for i in «foreach(a)»: pass", "wrong-value", "foreach(*a.shape)"),
    ("for i in «foreach(1.5)»: pass", "wrong-value", "an integer"),
    ("for i in «foreach(8, step=0)»: pass", "wrong-value", "at least 1"),
    ("for i in «foreach(8, step=n)»: pass", "wrong-value", "known when the kernel runs"),
    ("for i in «foreach(8, start=-1)»: pass", "wrong-value", "at least 0"),
    ("for i in «foreach(8, stop=9)»: pass", "wrong-value", "make the extent 9"),
    ("for i, j in «foreach(2, 2, start=1)»: pass", "wrong-value", "nest the loops"),
    ("for i in «parallel(2, level='grop')»: pass", "wrong-value", "did you mean `group`?"),
    ("for i in «parallel(1, 1, 1, 1)»: pass", "wrong-arity", "at most 3"),
    ("with «while_(n > 2)»: pass", "wrong-value", "while_(lambda: ...)"),
    ("x = var(0)\nwith while_(lambda: «atomic.add(a[0, 0], 1)» < 3): pass", "side-effect", "without effects"),
    ("with «else_()»: pass", "else-without-if", "directly after"),
    ("with «if_(a)»: pass", "wrong-value", "compare elements"),
    ("«break_()»", "misplaced-jump", "outside a loop"),
    ("«if_(n > 2)»", "not-a-block", "with if_(c):"),
    ("i = «foreach(4)»", "not-a-block", "for k in foreach(n):"),
    ("for i, k in enumerate(«foreach(4)»): pass", "not-a-block", "for k in foreach(n):"),
    ("loop = foreach\nfor k in «loop(4)»: pass", "not-a-block", "by its own name"),
    ("x = [k for k in «foreach(4)»]", "not-a-block", "for k in foreach(n):"),
    ("for i in foreach(4): pass\nb[0, 0] = 1\n«b[0, i]» = 1", "left-its-block", "`i` is used outside"),
    # copies
    ("«dma.copy(b)»", "wrong-value", "no destination"),
    ("«dma.copy(b, c, to='shared')»", "wrong-value", "both a destination"),
    ("«dma.copy(b, to='sharde')»", "wrong-value", "did you mean `shared`?"),
    ("«dma.copy(b, to='global')»", "wrong-value", "global_"),
    ("«dma.copy(1, c)»", "not-a-tile", "pass a parameter"),
    ("«dma.copy(b, to='shared', swizzle=16)»", "wrong-value", "32, 64, 128"),
    ("«dma.copy(b, to='shared', transp=(0, 0))»", "wrong-value", "a permutation of 0, 1"),
    ("«dma.copy(b, to='shared', pad=((1, 1, 1),))»", "wrong-value", "for each of 2 dimensions"),
    ("«dma.copy(b, to='shared', evict='frist')»", "wrong-value", "first, last"),
    ("«dma.copy(a.view(p + 1, 16).from_(0, 0), to='shared')»", "extents-not-known", "cut the tile"),
    ("f = dma.copy(b, to='shared')\n«wait(f)»", "wrong-value", "synchronous"),
    ("«wait(1)»", "wrong-value", "an event"),
    ("e = event(2)\n«wait(e)»", "wrong-value", "choose one: `e[s]`"),
    ("e = event()\ntrigger(«e[0]»)", "wrong-value", "a single event"),
    ("e = «event(-1)»", "wrong-value", "1 to 32"),
    ("«sync.barrier('grid')»", "wrong-value", "one of cluster, block"),
    # contraction
    ("mc = «mma.fill(0.0, 'f23')»", "unknown-dtype", "did you mean `f32`?"),
    ("mc = «mma.load(1)»", "not-a-tile", "a parameter, a buffer"),
    ("mc = mma.fill(0.0)\n«mma.row.row(mc, 1, 2)»", "not-a-tile", "a register tile"),
    ("mc = mma.fill(0.0, copies=2)\n«mma.store(mc, c)»", "wrong-value", "choose one: `mc[i]`"),
    ("mc = mma.fill(0.0, copies=2)\nmma.store(«mc[2]», c)", "index-out-of-range", "0 to 1"),
    ("mc = mma.fill(0.0)\nx = «mc[0, 0]»", "wrong-value", "outside `apply`"),
    ("mc = mma.fill(0.0)\nmc += 1", "tile-shape-unknown", "multiply into it first"),
    (f"{FRAG}\nx = «mc + b»", "wrong-value", "[16] or [1, 16] (a row)"),
    (f"{FRAG}\nmd = mma.frag('f32', 16, 8, init=0.0)\nx = «mc + md»", "wrong-value", "one shape"),
    (f"{FRAG}\nfor i, j in apply(mc):\n    x = «mc[j, i]»", "wrong-value", "in their order"),
    ("mc = «mma.frag('f32', 16, 8, 4)»", "wrong-value", "rows and columns"),
    ("for i, j in «apply(a)»: pass", "wrong-value", "a register tile"),
    # atomics, diagnostics
    ("«atomic.add(n, 1)»", "wrong-value", "not an element"),
    ("«atomic.add(a, 1)»", "wrong-value", "atomic.add(x[i, j], value)"),
    ("«tm.print(a)»", "wrong-value", "a tile"),
    ("«assert_(1 > 2, 'never')»", "assertion-fails", "never"),
]


def built(body: str) -> tuple[TilemmaError, object]:
    program = marked(body)
    with pytest.raises(TilemmaError) as caught:
        kernel(program).build()
    return caught.value, program.span


def check(e: TilemmaError, span: object, code: str, text: str) -> None:
    assert e.code == code, e.render()
    assert text in e.render(), e.render()
    if span is not None:
        assert e.span == span, f"{e.span} and not {span}\n{e.render()}"
    data = json.loads(e.json())
    assert data["code"] == code and all(data[k] in e.render() for k in ("message", "expected", "fix"))
    assert span is None or data["span"] == span.to_json()
    assert not re.search(r"\b[A-Z]\w+\(\w+=", e.message + e.expectation + e.remedy), (
        "the text of an internal object"
    )
    assert "{" not in e.message + e.remedy.replace("{i, j}", ""), "a template that was not filled"


@pytest.mark.parametrize(("body", "code", "text"), STATEMENTS, ids=[row[0] for row in STATEMENTS])
def test_inside_a_block(body: str, code: str, text: str) -> None:
    e, span = built(inside(body))
    check(e, span, code, text)


REBOUND = "rebound-in-traced-block"
LOOP = BLOCK + "    for i in foreach(4):\n        "
# (what it is, body, code, part of the message or of the advice)
KERNELS = [
    (
        "a fill whose type nothing decides",
        BLOCK + "    s = dma.copy(b, to='shared')\n    for g in parallel(1, level='group-4'):\n"
        "        mc = mma.fill(0.0, 'f32')\n        mma.row.row(mc, s.data, «mma.fill(0.0)»)\n        mma.store(mc, c)",
        "wrong-value",
        'write `mma.fill(0.0, "f16")`',
    ),
    (
        "mixed levels",
        BLOCK + "    pass\n«dma.copy(b, c)»",
        "outside-parallel",
        "move it into the `parallel`",
    ),
    ("assertion", "«assert_(a[0, 0] > 0, 'x')»\n" + BLOCK + "    pass", "outside-parallel", "move it"),
    ("the returned value", "return n", "bad-return", "write results through"),
    (
        "a large expression",
        "x = n\nfor _ in range(12): x = «x * x» + 1",
        "expression-too-large",
        "inside `parallel`",
    ),
    ("break", LOOP + "«break»", "jump-in-traced-block", "break_()"),
    ("continue", LOOP + "«continue»", "jump-in-traced-block", "continue_()"),
    ("return", BLOCK + "    with if_(n > 1):\n        «return»", "jump-in-traced-block", "return after the block"),
    ("rebound", "x = 0\n" + LOOP + "«x» = x + 1\n", REBOUND, "x = var(...)"),
    ("augmented", "x = 0\n" + LOOP + "«x» += 1\n", REBOUND, "in its next iteration"),
    (
        "in a while",
        "x = 0\n" + BLOCK + "    with while_(lambda: n > 1):\n        «x» = x + 1\n",
        REBOUND,
        "next iteration",
    ),
    (
        "after a branch",
        "x = 0\n" + inside("with if_(n > 1):\n    «x» = 5\nx = x + 1\nc[0, 0] = x"),
        REBOUND,
        "after it",
    ),
    (
        "around a Python loop",
        inside("x = 0\nfor r in range(2):\n    c[0, r] = x\n    with if_(n > 1):\n        «x» = 5\n"),
        REBOUND,
        "the loop around it",
    ),
    (
        "a variable",
        inside("x = var(0)\nfor i in foreach(3):\n    c[0, i] = x\n    «x» = x + 1\n"),
        REBOUND,
        "x.set",
    ),
]


@pytest.mark.parametrize(("name", "body", "code", "text"), KERNELS, ids=[row[0] for row in KERNELS])
def test_whole_kernels(name: str, body: str, code: str, text: str) -> None:
    e, span = built(body)
    check(e, span, code, text)


SIGNATURES = [
    ("def k(«a»): pass", "bad-parameter", "has no type"),
    ("def k(«a: int»): pass", "bad-parameter", "not a kernel type"),
    ("def k(*«args»): pass", "bad-parameter", "varying number"),
    ('def k(«a: tm.Global["f61", "M"]»): pass', "unknown-dtype", "did you mean `f64`?"),
    ('def k(«a: tm.Global["f32", -1]»): pass', "bad-parameter", "the dimension -1"),
    ('def k(«a: tm.Global["f32", "M+1"]»): pass', "bad-parameter", "a name, a number"),
    ('def k(M: tm.Int, «a: tm.Global["f32", "M"]»): pass', "bad-parameter", "also a scalar parameter"),
    ('def k(a: tm.Global["T", "M"], *, «T»): pass', "missing-compile-time-parameter", "pass `T=...`"),
    ("async def «k»(): pass", "not-a-kernel", "`async`"),
    ("def «k»(): yield 1", "not-a-kernel", "yield"),
]


@pytest.mark.parametrize(("text", "code", "message"), SIGNATURES, ids=[row[0] for row in SIGNATURES])
def test_signatures(text: str, code: str, message: str) -> None:
    program = marked("import tilemma as tm\n@tm.kernel\n" + text, "")
    with pytest.raises(CompileError) as caught:
        kernel(program).build()
    check(caught.value, program.span, code, message)


def multiply(acc: str = "mma.fill(0.0)", first: str = "16, 16", second: str = "16, 16") -> str:
    """One multiplication of views of b by a warp; the multiply is marked."""
    rows = first.split(",")[0]
    return inside(
        "for g in parallel(1, level='group'):\n"
        f"    mc = {acc}\n"
        f"    ma, mb = mma.load(b.subspan({first}).at(0, 0)), mma.load(b.subspan({second}).at(0, 0))\n"
        "    «mma.row.row(mc, ma, mb)»\n"
        f"    mma.store(mc, c.subspan({rows}, 16).at(0, 0))"
    )


THREADS = "for t in «parallel({}, level='thread')»:\n    c[0, t] = 1.0"
LARGE = "s = «shared('f32', 300, 300)»\nt = a.subspan(300, 300).at(0, 0)\ndma.copy(t, s)\ndma.copy(s, t)"
ODD = "mma.frag('f32', 15, 16, init=0.0)"
SMALL = "s = shared('f16', 16, 8)\n«dma.copy({}, {})»"
# (statements, code, part of the message)
COMPILED = [
    (inside(THREADS.format(2000)), "too-many-threads", "1024"),
    (inside(THREADS.format("n")), "level-extent", "constant count"),
    (inside(LARGE), "shared-memory-limit", "360000"),
    (inside("mc = mma.fill(0.0)\n«mma.store(mc, c)»"), "collective-scope", "group"),
    (multiply(second="16, 32"), "contract-shapes", "16"),
    (multiply("mma.fill(0.0, 's32')"), "accumulator-type", "f16"),
    (multiply(first="15, 16"), "no-instruction", "SM80_16x8x16"),
    (inside("«dma.copy(b.subspan(16, 16).at(0, 0), c.subspan(16, 16).at(0, 0))»"), "copy-types", "f16"),
    (inside(SMALL.format("b.subspan(16, 16).at(0, 0)", "s")), "copy-extents", "16"),
    (inside(SMALL.format("s.subspan(16, 16).at(0, 0)", "b.subspan(16, 16).at(0, 0)")), "view-outside", "8"),
    (
        inside(
            f"for g in parallel(1, level='group'):\n    m = «{ODD}»\n    mma.store(m, c.subspan(15, 16).at(0, 0))"
        ),
        "tile-without-layout",
        "multiple",
    ),
]


@pytest.mark.parametrize(("body", "code", "text"), COMPILED, ids=[c[1] for c in COMPILED])
def test_compiling(body: str, code: str, text: str) -> None:
    program = marked(body)
    with pytest.raises(CompileError) as caught:
        kernel(program).compile("sm_80")
    check(caught.value, program.span, code, text)


def test_a_kernel_called_by_a_kernel() -> None:
    program = marked("import tilemma as tm\n@tm.kernel\ndef k(n: tm.Int):\n    for p in «k(n)»: pass\n", "")
    with pytest.raises(CompileError) as caught:
        kernel(program).build()
    check(caught.value, program.span, "kernel-in-kernel", "a plain Python function")


def test_an_unknown_architecture() -> None:
    with pytest.raises(CompileError) as caught:
        kernel(marked(inside("c[0, 0] = 1.0"))).compile("sm_99")
    check(caught.value, None, "unknown-arch", "sm_90")


SAXPY = """
import tilemma as tm
from tilemma import *
@tm.kernel
def saxpy(x: tm.Global["f32", "N"], y: tm.Global["f32", "N"], a: tm.Float, *, T=32):
    for i in parallel(x.shape[0], level="block"):
        y[i] = a * x[i] + y[i]
"""
X, Y = np.ones(8, np.float32), np.zeros(8, np.float32)
CALLS = [
    ("too few", (X,), {}, "wrong-call", ["saxpy", "`y`, `a`"]),
    ("too many", (X, Y, 1.0, 2), {}, "wrong-call", ["saxpy", "4 arguments", "takes 3"]),
    ("unknown keyword", (X, Y, 1.0), {"U": 1}, "wrong-call", ["saxpy", "`U`"]),
    ("twice", (X, Y, 1.0), {"a": 1.0}, "wrong-call", ["saxpy", "`a` was passed twice"]),
    ("types", (X, Y.astype(np.float64), 1.0), {}, "array-dtype", ["saxpy", "`y`", "f64", "f32"]),
    ("rank", (X, Y.reshape(2, 4), 1.0), {}, "array-rank", ["saxpy", "`y`", "2 dimension", "[2, 4]"]),
    ("sizes", (X, np.zeros(9, np.float32), 1.0), {}, "array-dimension", ["saxpy", "`y` is 9", "N = 8"]),
    ("a scalar", (X, Y, "one"), {}, "scalar-type", ["saxpy", "`a`", "'one'"]),
    ("read only", (X, np.broadcast_to(np.float32(0), 8), 1.0), {}, "array-read-only", ["saxpy", "`y`"]),
    ("overlap", (X, X, 1.0), {}, "array-overlap", ["saxpy", "`y`", "`x`"]),
    ("no array", (X, [0.0] * 8, 1.0), {}, "not-an-array", ["`y`", "saxpy"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs", "code", "texts"), CALLS, ids=[c[0] for c in CALLS])
@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_calls(name: str, args: tuple, kwargs: dict, code: str, texts: list[str], target: str) -> None:
    """Launch errors name the kernel, the parameter and the numbers, the same on every target."""
    saxpy = run(marked(SAXPY, ""))["saxpy"]
    with pytest.raises(LaunchError) as caught:
        saxpy.on(target)(*args, **kwargs)
    assert caught.value.code == code, caught.value.render()
    for text in texts:
        assert text in caught.value.render(), caught.value.render()


def test_compile_time_keywords() -> None:
    saxpy = run(marked(SAXPY, ""))["saxpy"]
    with pytest.raises(CompileError) as caught:
        saxpy.compile("sm_80", TT=4)
    assert caught.value.code == "unknown-compile-time-parameter" and "did you mean `T`?" in str(caught.value)
    with pytest.raises(LaunchError) as unknown:
        saxpy.on("machin")
    assert "did you mean `machine`?" in str(unknown.value)


def test_outside_a_kernel() -> None:
    with pytest.raises(CompileError) as caught:
        tm.var(0)
    assert caught.value.code == "outside-kernel"
    assert caught.value.span is not None and caught.value.span.file == __file__


def test_functions_without_text() -> None:
    scope: dict[str, object] = {"tm": tm}
    with pytest.raises(CompileError) as caught:
        exec("@tm.kernel\ndef k(): pass", scope)
    assert caught.value.code == "no-kernel-source"


def test_wide_characters_before_the_caret() -> None:
    program = marked(inside("名前 = 'é'; x = «a[0, 0] + 名前»"))
    with pytest.raises(CompileError) as caught:
        kernel(program).build()
    assert caught.value.span == program.span
    line, carets = caught.value.render().split("\n")[3:5]
    assert carets.index("^") - line.index("名") == len("名前 = 'é'; x = ") + 2, "two cells for each wide character"


def test_helpers_are_checked_too() -> None:
    text = """
    import tilemma as tm
    from tilemma import *
    def helper(a):
        x = 0
        for i in foreach(4):
            a[0, i] = x
            «x» = x + 1
    @tm.kernel
    def k(a: tm.Global["f32", "M", "N"]):
        for p in parallel(1, level="block"):
            helper(a)
    """
    program = marked(text, "")
    with pytest.raises(CompileError) as caught:
        kernel(program).build()
    check(caught.value, program.span, "rebound-in-traced-block", "var")


def test_errors_are_in_the_catalogue() -> None:
    codes = {r[1] for r in STATEMENTS} | {r[2] for r in KERNELS} | {r[1] for r in SIGNATURES}
    codes |= {r[1] for r in COMPILED} | {r[3] for r in CALLS}
    assert codes <= set(KINDS)


def test_a_flag_that_is_neither_true_nor_false_is_shown() -> None:
    def f(x: tm.Global["f32", "N"]) -> None:
        for b in tm.parallel(2, level="block", overlap="after"):
            x[b] = 1.0

    with pytest.raises(TilemmaError, match=r"`overlap=` got 'after' \(a str\)"):
        tm.kernel(f).build()
