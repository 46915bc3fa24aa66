"""Element work on register tiles: every statement in the body, at every level that holds a tile, in both languages."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
from differential import Lines, agree, croqtile_kernel
from hypothesis import given, settings
from hypothesis import strategies as st

import tilemma as tm
from tests.sampling import examples

INSTANCES = 2


@dataclass(frozen=True)
class Holder:
    """Who holds the tile: levels around the `apply`, each (index, extent, level); ``w`` counts the instances."""

    levels: tuple[tuple[str, int, str], ...]
    rows: int
    block: bool = False

    @property
    def instances(self) -> int:
        return next((n for i, n, _ in self.levels if i == "w"), 1)


HOLDERS = {
    "group": Holder((("w", INSTANCES, "group"),), 16),
    "group-2": Holder((("w", INSTANCES, "group-2"),), 32),
    "group-4": Holder((("w", INSTANCES, "group-4"),), 64),
    "thread in group": Holder((("w", INSTANCES, "group"), ("t", 32, "thread")), 16),
    "thread in group-4": Holder((("w", INSTANCES, "group-4"), ("t", 128, "thread")), 64),
    "block": Holder((("w", 1, "group"),), 16, block=True),
}
COLUMNS = 16
SMALL = 5


@dataclass
class Body:
    """A random body of an `apply` over ``mc``, in both spellings.  All numbers are small integers.

    ``a`` and ``b`` are read, ``c`` is written at the element itself, ``s`` is a shared buffer of the same shape,
    ``h`` takes what atomics add.
    """

    random: Random
    line: Lines

    own: str
    values: int = 0
    written: set[str] = field(default_factory=set)

    def value(self, depth: int = 2) -> str:
        kind = self.random.choice(("mc", "a", "b", "i", "j", "number", "sum", "product"))
        if depth == 0 or kind not in ("sum", "product"):
            leaf = {"mc": "mc[i, j]", "a": f"a[{self.own}, j]", "b": "b[j]", "i": "(i % 5)", "j": "(j % 3)"}
            return leaf.get(kind, str(self.random.randint(1, SMALL)))
        sign = {"sum": "+", "product": "*"}[kind]
        return f"({self.value(depth - 1)} {sign} {self.value(0)})"

    def condition(self) -> str:
        return self.random.choice(
            ("i < 7", "j % 2 == 0", "(i + j) % 3 == 1", "mc[i, j] > 2", f"a[{self.own}, j] < 1")
        )

    def statements(self, depth: int, nesting: int, count: int) -> None:
        for _ in range(count):
            kinds = ["set", "store", "add", "shared", "atomic", "scalar", *(["if", "loop"] if nesting else [])]
            getattr(self, self.random.choice(kinds) + "_")(depth, nesting)

    def set_(self, depth: int, nesting: int) -> None:
        value = self.value()
        self.line(depth, f"mc[i, j] = {value};", f"mc[i, j] = {value}")

    def store_(self, depth: int, nesting: int) -> None:
        value = self.value()
        self.line(depth, f"c[{self.own}, j] = {value};", f"c[{self.own}, j] = {value}")

    def add_(self, depth: int, nesting: int) -> None:
        value = self.value(1)
        self.line(depth, f"c[{self.own}, j] += {value};", f"c[{self.own}, j] = c[{self.own}, j] + {value}")

    def shared_(self, depth: int, nesting: int) -> None:
        value = self.value(1)
        self.line(depth, f"s[{self.own}, j] = {value};", f"s[{self.own}, j] = {value}")

    def atomic_(self, depth: int, nesting: int) -> None:
        at = self.random.choice(("0", "i % 8", "j % 8"))
        value = self.random.choice(("1", "j % 3", f"a[{self.own}, j]"))
        self.line(depth, f"__atomic_add(h[{at}], {value});", f"atomic.add(h[{at}], {value})")

    def scalar_(self, depth: int, nesting: int) -> None:
        """A variable of the element's own, which a loop changes."""
        self.values += 1
        v, n = f"v{self.values}", self.random.randint(1, 3)
        self.line(depth, f"mutable f32 {v} = 1.0f;", f'{v} = var(1.0, "f32")')
        self.line(depth, f"foreach k{v} in {n} {{", f"for k{v} in foreach({n}):")
        if self.random.random() < 0.4:
            condition = self.condition()
            self.line(depth + 1, f"if ({condition}) continue;", f"with if_({condition}):")
            self.line(depth + 2, "", "continue_()")
        value = self.value(0)
        self.line(depth + 1, f"{v} += {value} + k{v};", f"{v} += {value} + k{v}")
        self.line(depth, "}", "")
        self.line(depth, f"c[{self.own}, j] = {v};", f"c[{self.own}, j] = {v}")

    def if_(self, depth: int, nesting: int) -> None:
        condition = self.condition()
        self.line(depth, f"if ({condition}) {{", f"with if_({condition}):")
        self.statements(depth + 1, nesting - 1, self.random.randint(1, 2))
        otherwise = self.random.random() < 0.4
        self.line(depth, "} else {" if otherwise else "}", "with else_():" if otherwise else "")
        if otherwise:
            self.statements(depth + 1, nesting - 1, 1)
            self.line(depth, "}", "")

    def loop_(self, depth: int, nesting: int) -> None:
        self.values += 1
        k, n = f"n{self.values}", self.random.randint(1, 3)
        self.line(depth, f"foreach {k} in {n} {{", f"for {k} in foreach({n}):")
        self.statements(depth + 1, nesting - 1, 1)
        self.line(depth, "}", "")


def program(random: Random, holder: Holder, kind: str) -> tuple[str, str]:
    """A tile of ``kind`` numbers, one or two `apply`s over it, and what they leave, stored."""
    line = Lines("mc|a|b|c|h|s")
    rows, all_rows = holder.rows, holder.rows * holder.instances
    arrays = {"a": ("f32", all_rows, COLUMNS), "b": ("f32", COLUMNS), "c": ("f32", all_rows, COLUMNS),
              "d": ("f32", all_rows, COLUMNS), "e": ("f32", all_rows, COLUMNS), "h": ("f32", 8)}  # fmt: skip
    co = ", ".join(f"global {t} [{', '.join(map(str, dims))}] {n}" for n, (t, *dims) in arrays.items())
    python = ", ".join(f'{n}: tm.Global["{t}", {", ".join(map(str, dims))}]' for n, (t, *dims) in arrays.items())
    line(0, f"__co__ void f({co}) {{", "@tm.kernel")
    line(0, "", f"def f({python}):")
    line(1, "parallel p by 1 : block {", 'for p in parallel(1, level="block"):')
    line(2, f"shared f32 [{all_rows}, {COLUMNS}] s {{0}};", f's = shared("f32", {all_rows}, {COLUMNS}, init=0)')
    depth = 2
    if holder.block:
        line(
            2,
            f"frag {kind}[{rows}, {COLUMNS}] mc {{1.0}};",
            f'mc = mma.frag("{kind}", {rows}, {COLUMNS}, init=1.0)',
        )
        line(2, "parallel w by 1 : group {", 'for w in parallel(1, level="group"):')
        line(3, "mma.fill mc, 2.0;", "mma.fill(mc, 2.0)")
        line(2, "}", "")
    else:
        for name, n, level in holder.levels:
            line(depth, f"parallel {name} by {n} : {level} {{", f'for {name} in parallel({n}, level="{level}"):')
            depth += 1
        line(depth, f"frag {kind}[{rows}, {COLUMNS}] mc {{2.0}};",
             f'mc = mma.frag("{kind}", {rows}, {COLUMNS}, init=2.0)')  # fmt: skip
    first = "0" if holder.block else "w"
    body = Body(random, line, f"{first} * {rows} + i")
    for _ in range(random.randint(1, 2)):
        line(depth, "apply {i, j} in mc.span {", "for i, j in apply(mc):")
        body.statements(depth + 1, 2, random.randint(1, 3))
        line(depth, "}", "")
    tile = f".subspan({rows}, {COLUMNS}).at({first}, 0)"
    line(depth, f"mma.store mc, d{tile};", f"mma.store(mc, d{tile})")
    if not holder.block:
        line(2, "}" * len(holder.levels), "")
    line(2, "dma.copy s => e;", "dma.copy(s, e)")
    line(0, "} }", "")
    return line.co, line.python


def numbers(*shape: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("holder", HOLDERS)
@settings(max_examples=examples(36), deadline=None)
@given(random=st.randoms(use_true_random=False), kind=st.sampled_from(("f32", "f16", "bf16")))
def test_bodies_mean_the_same_everywhere(holder: str, random: Random, kind: str) -> None:
    held = HOLDERS[holder]
    co, python = program(random, held, kind)
    rows = held.rows * held.instances
    given = {"a": numbers(rows, COLUMNS, seed=1), "b": numbers(COLUMNS, seed=2), "c": numbers(rows, COLUMNS, seed=3),
             "d": np.full((rows, COLUMNS), np.nan, np.float32), "e": np.full((rows, COLUMNS), np.nan, np.float32),
             "h": np.zeros(8, np.float32)}  # fmt: skip
    found = agree(co, python, given, (random.choice(("sm_80", "sm_90a")),))
    assert not isinstance(found, str), f"{found}\n{co}\n{python}"


FRAME = """
__co__ void f(global f32 [16, 16] a, global f32 [16, 16] c, global f32 [16] v) {{
  parallel p by 1 : block {{
    shared f32 [16, 16] s {{0}}; shared f16 [16, 16] t {{0}}; shared event e;
    parallel w by 1 : group {{
      mutable f32 sum = 0.0f; local f32 [16, 16] l {{0}}; frag f32[16, 16] other {{0.0}};
      frag f32[16, 8] narrow {{0.0}}; frag f32[16] rows {{0.0}};
      frag f32[16, 16] mc {{0.0}};
      foreach n in 2 {{ {before} apply {{i, j}} in mc.span {{ {body} }} }}
      c.at(0, 0) = sum + l.at(0, 0);
      mma.store other, s;
    }}
  }}
}}
"""
REFUSED = {
    "apply-statement": (
        "shared f32 [4] q;", "dma.copy s => c;", "tma.copy s => c;", "f = dma.copy.async s => shared; wait f;",
        "ma = mma.load t;", "q = mma.fill.f32 0.0f;", "mma.fill other, 1.0f;", "mma.store other, s;",
        "apply {x, y} in other.span { other.at(x, y) = 0.0f; }", "other = other * 2.0f;", "trigger e;", "wait e;",
        "sync.barrier : group;", "sync.fence : block;", "parallel q by 32 : thread { c.at(q % 16, 0) = 1.0f; }",
        "inthreads (i < 3) { c.at(i, j) = 1.0f; }", "inthreads.async (i < 3) { c.at(i, j) = 1.0f; }",
        "mma.row.row other, t, t;", "mma.commit;",
    ),
    "apply-reduction": (
        "sum += mc.at(i, j);", "sum = 1.0f;", "if (i == 3) { sum = mc.at(i, j); }", "l.at(i, j) = 1.0f;",
        "l.at(0, 0) += mc.at(i, j);", "s.at(0, 0) += mc.at(i, j);", "c.at(i, 0) += mc.at(i, j);",
        "c.at(i, j / 2) += 1.0f;", "if (mc.at(i, j) > 0.0f) v.at(0) += 1.0f;", "if (j < 2) v.at(i) += 1.0f;", "v.at((i * 16 + j) % 16) += 1.0f;",
    ),
    "apply-order": (
        "s.at(i, j) = mc.at(i, j); c.at(i, j) = s.at(j, i);", "c.at(i, j) = c.at(j, i);",
        "s.at(i, j) = 1.0f; s.at(j, i) = 2.0f;", "__atomic_add(v.at(i), 1.0f); c.at(i, j) = v.at(i);",
        "if (s.at(0, 0) > 0.0f) { s.at(i, j) = 1.0f; }", "v.at(i) = 1.0f; c.at(i, j) = v.at(j);",
    ),
    "not-built-yet": ("narrow.at(i, j) = mc.at(i, j);", "other.at(j, i) = mc.at(i, j);", "rows.at(j) = 1.0f;"),
    "apply-row": (
        "rows.at(i) = mc.at(i, j) - rows.at(i);", "rows.at(i) = j;",
        "if (mc.at(i, j) > 1.0f) rows.at(i) = 1.0f;", "if (i > 3) { rows.at(i) = 1.0f; mc.at(i, j) = 1.0f; }",
        "f32 x = mc.at(i, j); rows.at(i) = x;",
    ),
    "misplaced-jump": ("break;", "if (i > 3) continue;"),
}  # fmt: skip


@pytest.mark.parametrize("code", REFUSED)
def test_refused_on_every_target(code: str) -> None:
    """Statements without a meaning for a single element are refused on every target."""
    for body in REFUSED[code]:
        text = FRAME.format(before="", body=body)
        found = set()
        for target, options in (("cpu", {}), ("machine", {"arch": "sm_90a"}), ("machine", {"arch": "sm_80"})):
            arrays = {"a": numbers(16, 16, seed=0), "c": numbers(16, 16, seed=0), "v": numbers(16, seed=0)}
            with pytest.raises(tm.TilemmaError) as refusal:
                croqtile_kernel(text).on(target, **options)(**arrays)
            found.add(refusal.value.code)
        assert found == {code}, f"{body}: {found}"


FINE = (
    "",
    "local f32 [2] m; m.at(0) = mc.at(i, j); m.at(1) = 2.0f; c.at(i, j) = m.at(0) + m.at(1);",
    "c.at(i, j) = c.at(i, j) + s.at(0, 0);",
    "c.at(15 - i, j) += mc.at(i, j) + i;",
    "int r = i + 0; c.at(r, j) += 1.0f;",
    "foreach k in 2 { s.at(i, j) += 1.0f; c.at(i, j) = s.at(i, j); }",
    "s.at(i, j) = i * 16 + j; if (s.at(i, j) > 7.0f) { c.at(i, j) = s.at(i, j); }",
    'assert(i < 16, "inside"); c.at(i, j) = 1.0f;',
    "x = __atomic_add(c.at(i, j), 2.0f); s.at(i, j) = x;",
    "__atomic_add(v.at(j), i); __atomic_add(c.at(0, j), 1.0f);",
    "if (i == 2 && j == 3) v.at(0) = 4.0f;",
    "if (j == 1) { v.at(i) += mc.at(i, j); } else { c.at(i, j) = 2.0f; }",
    "rows.at(i) = v.at(i); mc.at(i, j) = mc.at(i, j) + rows.at(i); rows.at(i) = rows.at(i) * 2.0f;",
    "if (i > j) other.at(i, j) = mc.at(i, j); mc.at(i, j) = other.at(i, j) + 1.0f; rows.at(i) = i;",
    "f32 x = mc.at(i, j); other.at(i, j) = x + 1.0f; mc.at(i, j) = x * 2.0f; c.at(i, j) = x;",
    "f32 x = other.at(i, j); other.at(i, j) = x + 1.0f; mc.at(i, j) = x; c.at(i, j) = x;",
    "if (j > 7) { } else if (j == 0) v.at(i) += 1.0f;",
)


@pytest.mark.parametrize("body", FINE)
def test_not_refused(body: str) -> None:
    before = "mc = mc + 1.0f; c.at(1, 1) = s.at(2, 2);"
    given = {"a": numbers(16, 16, seed=0), "c": numbers(16, 16, seed=1), "v": numbers(16, seed=2)}
    found = agree(FRAME.format(before=before, body=body), None, given, ("sm_80", "sm_90a"))
    assert not isinstance(found, str), found


@pytest.mark.parametrize("level", ("group", "group-4"))
def test_every_element_prints_once(level: str, capfd: pytest.CaptureFixture[str]) -> None:
    """In any order."""
    rows = 64 if level == "group-4" else 16
    text = f"""
    __co__ void f(global f32 [{rows}, 16] c) {{ parallel p by 1 : block, w by 1 : {level} {{
      frag f32[{rows}, 16] mc {{0.0}};
      apply {{i, j}} in mc.span {{ if ((i + j) % 7 == 3) println(i, " ", j, " ", mc.at(i, j) + i * 16 + j); }}
      mma.store mc, c;
    }} }}"""
    wanted = sorted(f"{i} {j} {i * 16 + j}" for i in range(rows) for j in range(16) if (i + j) % 7 == 3)
    for target in ("cpu", "machine"):
        croqtile_kernel(text).on(target)(np.zeros((rows, 16), np.float32))
        assert sorted(capfd.readouterr().out.split("\n")[:-1]) == wanted


@pytest.mark.parametrize("operand", ("ma", "mb"))
def test_operands_that_several_lanes_hold(operand: str) -> None:
    """Each element acts once, although every warp of the group has its own copy."""
    text = f"""
    __co__ void f(global f16 [64, 16] a, global f16 [64, 16] b, global f32 [64, 64] c, global s32 [16] n) {{
      parallel p by 1 : block {{ parallel w by 1 : group-4 {{
        mc = mma.fill.f32 0.0f; ma = mma.load a; mb = mma.load b;
        apply {{i, j}} in {operand}.span {{ {operand}.at(i, j) = {operand}.at(i, j) * 2.0f; __atomic_add(n.at(j), 1); }}
        mma.row.row mc, ma, mb;
        mma.store mc, c;
      }} }} }}"""
    given = {"a": numbers(64, 16, seed=0).astype(np.float16), "b": numbers(64, 16, seed=1).astype(np.float16)}
    given |= {"c": np.zeros((64, 64), np.float32), "n": np.zeros(16, np.int32)}
    found = agree(text, None, given, ("sm_80",))
    assert not isinstance(found, str), found
    assert (found["n"] == 64).all()
