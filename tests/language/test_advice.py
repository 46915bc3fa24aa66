"""Advice works: followed, the fix of an error gives a program that compiles, in the language at hand."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from dev.pages.errors import import_everything
from tilemma import croqtile
from tilemma.errors import CompileError, TilemmaError
from tilemma.kernels import Kernel

_number = count()


def co(body: str, params: str = "global f16 [64, 64] b, global f32 [64, 64] c") -> Kernel:
    text = f"__co__ void k({params}) {{\n{body}\n}}\n"
    return Kernel(croqtile.load(text, f"advice{next(_number)}.co").sources["k"])


def py(body: str, params: str = 'b: tm.Global["f16", 64, 64], c: tm.Global["f32", 64, 64]') -> Kernel:
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    text = f"import tilemma as tm\nfrom tilemma import *\n\n@tm.kernel\ndef k({params}):\n{lines}\n"
    name = f"<advice {next(_number)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    kernel: Kernel = scope["k"]
    return kernel


def refusal(make: Callable[[], Kernel], arch: str) -> TilemmaError:
    with pytest.raises(CompileError) as caught:
        make().compile(arch)
    return caught.value


# ---- one program each: (code, advice that has to be there, wrong program, the program with the advice followed) --

COPY = "f = dma.copy.async b => shared;"
CO_CASES = {
    "a copy that nobody waits for": (
        "future-never-waited-for",
        "write `wait f`",
        "parallel p by 1 : block { f = dma.copy.async b => shared; }",
        "parallel p by 1 : block { f = dma.copy.async b => shared; wait f; }",
    ),
    "a copy used too early": (
        "copy-not-waited-for",
        "write `wait f`",
        "parallel p by 1 : block { f = dma.copy.async b => shared; c.at(0, 0) = f.data.at(0, 0); wait f; }",
        "parallel p by 1 : block { f = dma.copy.async b => shared; wait f; c.at(0, 0) = f.data.at(0, 0); }",
    ),
    "a tile at block scope": (
        "collective-scope",
        "`parallel p by 1 : group`",
        "parallel q by 1 : block { m = mma.fill.f32 0.0f; mma.store m, c; }",
        "parallel q by 1 : block { parallel p by 1 : group { frag f32[64, 64] m {0.0f}; mma.store m, c; } }",
    ),
    "an accumulator of another type": (
        "accumulator-type",
        "write `mma.fill.f16`",
        "parallel q by 1 : block { parallel p by 1 : group { m = mma.fill.s32 0; x = mma.load b; y = mma.load b;"
        " mma.row.row m, x, y; mma.store m, c; } }",
        "parallel q by 1 : block { parallel p by 1 : group { m = mma.fill.f16 0; x = mma.load b; y = mma.load b;"
        " mma.row.row m, x, y; mma.store m, c; } }",
    ),
    "a tile that was never filled": (
        "fragment-not-filled",
        "`m = mma.fill 0.0`",
        "parallel q by 1 : block { parallel p by 1 : group { frag.f32 m; x = mma.load b; y = mma.load b;"
        " mma.row.row m, x, y; mma.store m, c; } }",
        "parallel q by 1 : block { parallel p by 1 : group { frag.f32 m; m = mma.fill 0.0; x = mma.load b;"
        " y = mma.load b; mma.row.row m, x, y; mma.store m, c; } }",
    ),
    "an event that is not ready": (
        "event-never-triggered",
        "`= ready`",
        "parallel p by 1 : block { shared event e; wait e; c.at(0, 0) = 1.0f; }",
        "parallel p by 1 : block { shared event e = ready; wait e; c.at(0, 0) = 1.0f; }",
    ),
    "a count of triggers": (
        "event-threads",
        "`event<128>`",
        "parallel p by 1 : block { shared event<64> e; parallel w by 2 : group-4 { inthreads.async (w == 0) {"
        " trigger e; } inthreads.async (w == 1) { wait e; c.at(0, 0) = 1.0f; } } }",
        "parallel p by 1 : block { shared event<128> e; parallel w by 2 : group-4 { inthreads.async (w == 0) {"
        " trigger e; } inthreads.async (w == 1) { wait e; c.at(0, 0) = 1.0f; } } }",
    ),
    "multicast without a cluster": (
        "multicast-outside-cluster",
        "leave `.multicast` out",
        "parallel p by 1 : block { f = tma.copy.multicast b => shared; c.at(0, 0) = f.data.at(0, 0); }",
        "parallel p by 1 : block { f = tma.copy b => shared; c.at(0, 0) = f.data.at(0, 0); }",
    ),
    "a multiply that nobody waits for": (
        "accumulator-not-awaited",
        "`f = mma....async ...`, and write `wait f`",
        "parallel q by 1 : block { s = dma.copy b => shared; parallel p by 1 : group-4 { m = mma.fill.f32 0.0f;"
        " x = mma.load s.data; y = mma.load s.data; mma.row.row.async m, x, y; mma.store m, c; } }",
        "parallel q by 1 : block { s = dma.copy b => shared; parallel p by 1 : group-4 { m = mma.fill.f32 0.0f;"
        " x = mma.load s.data; y = mma.load s.data; f = mma.row.row.async m, x, y; wait f; mma.store m, c; } }",
    ),
    "a rank": (
        "wrong-rank",
        "write 2 of them; `_` keeps a dimension whole",
        "parallel p by 1 : block { f = dma.copy b.chunkat(p) => shared; }",
        "parallel p by 1 : block { f = dma.copy b.chunkat(p, _) => shared; }",
    ),
}
BLOCK = "for p in parallel(1, level='block'):\n"
GROUP = BLOCK + "    for w in parallel(1, level='group'):\n"
PY_CASES = {
    "a copy that nobody waits for": (
        "future-never-waited-for",
        "write `wait(f)`",
        BLOCK + "    f = dma.copy(b, to='shared', async_=True)",
        BLOCK + "    f = dma.copy(b, to='shared', async_=True)\n    wait(f)",
    ),
    "a copy used too early": (
        "copy-not-waited-for",
        "write `wait(f)`",
        BLOCK + "    f = dma.copy(b, to='shared', async_=True)\n    c[0, 0] = f.data[0, 0]\n    wait(f)",
        BLOCK + "    f = dma.copy(b, to='shared', async_=True)\n    wait(f)\n    c[0, 0] = f.data[0, 0]",
    ),
    "a tile at block scope": (
        "collective-scope",
        '`for p in parallel(1, level="group"):`',
        BLOCK + "    m = mma.frag('f32', 64, 64, init=0.0)\n    mma.store(m, c)",
        BLOCK + '    for w in parallel(1, level="group"):\n'
        "        m = mma.frag('f32', 64, 64, init=0.0)\n        mma.store(m, c)",
    ),
    "an accumulator of another type": (
        "accumulator-type",
        'write `mma.fill(0.0, "f16")`',
        GROUP
        + "        m = mma.fill(0, 's32')\n        mma.row.row(m, mma.load(b), mma.load(b))\n        mma.store(m, c)",
        GROUP
        + '        m = mma.fill(0.0, "f16")\n        mma.row.row(m, mma.load(b), mma.load(b))\n        mma.store(m, c)',
    ),
    "an event that is not ready": (
        "event-never-triggered",
        "`ready=True`",
        BLOCK + "    e = event()\n    wait(e)\n    c[0, 0] = 1.0",
        BLOCK + "    e = event(ready=True)\n    wait(e)\n    c[0, 0] = 1.0",
    ),
    "a count of triggers": (
        "event-threads",
        "`event(threads=128)`",
        BLOCK + "    e = event(threads=64)\n    for w in parallel(2, level='group-4'):\n"
        "        with inthreads(w == 0, async_=True):\n            trigger(e)\n"
        "        with inthreads(w == 1, async_=True):\n            wait(e)\n            c[0, 0] = 1.0",
        BLOCK + "    e = event(threads=128)\n    for w in parallel(2, level='group-4'):\n"
        "        with inthreads(w == 0, async_=True):\n            trigger(e)\n"
        "        with inthreads(w == 1, async_=True):\n            wait(e)\n            c[0, 0] = 1.0",
    ),
    "multicast without a cluster": (
        "multicast-outside-cluster",
        "leave `multicast=True` out",
        BLOCK + "    f = tma.copy(b, to='shared', multicast=True)\n    c[0, 0] = f.data[0, 0]",
        BLOCK + "    f = tma.copy(b, to='shared')\n    c[0, 0] = f.data[0, 0]",
    ),
    "a rank": (
        "wrong-rank",
        "write 2 of them; `full` keeps a dimension whole",
        BLOCK + "    f = dma.copy(b.chunkat(p), to='shared')",
        BLOCK + "    f = dma.copy(b.chunkat(p, full), to='shared')",
    ),
}
ALL = [(co, n, *c) for n, c in CO_CASES.items()] + [(py, n, *c) for n, c in PY_CASES.items()]
FOLLOWED = frozenset(c[2] for c in ALL) | {"no-instruction"}


@pytest.mark.parametrize(("make", "name", "code", "advice", "wrong", "right"), ALL)
def test_followed_the_advice_compiles(
    make: Callable[[str], Kernel], name: str, code: str, advice: str, wrong: str, right: str
) -> None:
    error = refusal(lambda: make(wrong), "sm_90a")
    assert error.code == code, error.render()
    assert advice in error.remedy, error.render()
    make(right).compile("sm_90a")


# ---- multiplies that no instruction does -------------------------------------------------------------------------


def multiply_co(types: tuple[str, str], tile: tuple[int, int, int], warps: int, way: str = "row.row") -> Kernel:
    m, n, k = tile
    operand, acc = types
    level = "group" if warps == 1 else f"group-{warps}"
    return co(
        f"""parallel q by 1 : block {{
    parallel w by 1 : {level} {{
      mc = mma.fill.{acc} 0;
      ma = mma.load a.subspan({m}, {k}).at(0, 0);
      mb = mma.load b.subspan({n}, {k}).at(0, 0);
      mma.{way} mc, ma, mb;
      mma.store mc, c.subspan({m}, {n}).at(0, 0);
    }}
  }}""",
        f"global {operand} [M, K] a, global {operand} [N, K] b, global {acc} [M, N] c",
    )


def multiply_py(types: tuple[str, str], tile: tuple[int, int, int], warps: int) -> Kernel:
    m, n, k = tile
    operand, acc = types
    level = "group" if warps == 1 else f"group-{warps}"
    return py(
        f"""for q in parallel(1, level="block"):
    for w in parallel(1, level="{level}"):
        mc = mma.fill(0, "{acc}")
        ma, mb = mma.load(a.subspan({m}, {k}).at(0, 0)), mma.load(b.subspan({n}, {k}).at(0, 0))
        mma.row.row(mc, ma, mb)
        mma.store(mc, c.subspan({m}, {n}).at(0, 0))""",
        f'a: tm.Global["{operand}", "M", "K"], b: tm.Global["{operand}", "N", "K"], c: tm.Global["{acc}", "M", "N"]',
    )


TILES = [(15, 16, 16), (16, 9, 16), (16, 16, 5), (1, 1, 1), (33, 20, 24), (64, 100, 17)]


@pytest.mark.parametrize("make", [multiply_co, multiply_py])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("warps", [1, 2, 3, 4, 8])
def test_the_tile_that_is_advised_fits(make: Any, arch: str, warps: int) -> None:
    for types in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32")):
        for tile in TILES:
            error = refusal(lambda types=types, tile=tile: make(types, tile, warps), arch)
            assert error.code == "no-instruction"
            advised = re.search(r"use a tile of (\d+)x(\d+)x(\d+) ", error.remedy)
            assert advised is not None, error.remedy
            better = tuple(map(int, advised.groups()))
            assert all(x >= y for x, y in zip(better, tile, strict=True))
            make(types, better, warps).compile(arch)


CONVERTED = """parallel q by 1 : block {{
    shared f16 [16, 16] x;
    shared f16 [16, 16] y;
    foreach {{i, j}} in [16, 16] {{ x.at(i, j) = __to<f16>(a.at(i, j)); y.at(i, j) = __to<f16>(b.at(i, j)); }}
    parallel w by 1 : group {{
      mc = mma.fill.f32 0.0f;
      ma = mma.load x;
      mb = mma.load y;
      mma.row.row mc, ma, mb;
      mma.store mc, c;
    }}
  }}"""
LOOP = """parallel q by 1 : block {{
    parallel {{i, j}} by [16, 16] : thread {{
      mutable {t} sum = 0;
      foreach k in 16 {{ sum = sum + a.at(i, k) * b.at(j, k); }}
      c.at(i, j) = sum;
    }}
  }}"""


@pytest.mark.parametrize("operand", ["s8", "u8", "s16", "s32", "f32", "f64"])
def test_operands_without_an_instruction(operand: str) -> None:
    """What is advised for types that nothing multiplies: a conversion that is exact, or a loop over elements."""
    acc = {"f32": "f32", "f64": "f64"}.get(operand, "s32")
    try:
        multiply_co((operand, acc), (16, 16, 16), 1).compile("sm_80")
    except CompileError as error:
        if error.code == "accumulator-type":
            return
        assert "bf16" not in error.remedy or operand in ("f32", "tf32"), error.remedy
        arrays = f"global {operand} [16, 16] a, global {operand} [16, 16] b, global"
        if "which holds every" in error.remedy:
            assert f"convert both operands to f16, which holds every {operand}" in error.remedy
            co(CONVERTED.format(), f"{arrays} f32 [16, 16] c").compile("sm_80")
        else:
            assert "multiply elements in a loop inside a `parallel` of `: thread`" in error.remedy
            co(LOOP.format(t=acc), f"{arrays} {acc} [16, 16] c").compile("sm_80")


# ---- templates ---------------------------------------------------------------------------------------------------

# Forms that only one of the languages has.
CROQTILE_ONLY = re.compile(
    r"`wait \w|`wait \{|`trigger \{|: group\b|: block\b|: thread\b|: cluster\b|\.async\b|= ready|event<|mma\.fill\."
    r"|\.multicast|swiz<|`_`|`#define|__co__|`shared event|=> "
)
PYTHON_ONLY = re.compile(r"level=|async_|ready=True|threads=|`full`|`wait\(|\bif_\b|else_\b|with_result")


def classes() -> Iterator[type[TilemmaError]]:
    import_everything()
    todo = [TilemmaError]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if cls.found and cls.__module__.startswith("tilemma."):
            yield cls


@pytest.mark.parametrize(
    "cls", sorted(set(classes()), key=lambda c: (c.__module__, c.__name__)), ids=lambda c: c.__name__
)
def test_templates_speak_one_language(cls: type[TilemmaError]) -> None:
    """Advice for programs in Python has no spelling of Croqtile, and the other way round."""
    part = cls.__module__.split(".")[1]
    if part in ("machine", "runtime", "assemble", "tools", "cli", "ops"):
        return
    if part != "croqtile":
        assert not CROQTILE_ONLY.search(cls.python_fix or cls.fix), cls.python_fix or cls.fix
    if part != "lang":
        assert not PYTHON_ONLY.search(cls.fix), cls.fix
