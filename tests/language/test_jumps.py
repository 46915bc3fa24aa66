"""`break` and `continue` in loops of every kind: unrolled, nested, counted and not, with and without multiplies."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from differential import Lines, agree
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples, pairwise

N = 8


@dataclass
class Program:
    """A loop nest in both spellings.  Expressions are in Python's; ``x[e]`` becomes ``x.at(e)``."""

    random: Random
    lanes: bool
    line: Lines = field(default_factory=lambda: Lines("x|o"))
    names: int = 0

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def value(self, indices: list[str]) -> str:
        own = ["t"] if self.lanes else []
        terms = self.random.choices([*indices, *own, "1"], k=2)
        return f"x[({terms[0]} + {terms[1]} * {self.random.randint(1, 3)}) % {N}]"

    def body(self, depth: int, nesting: int, indices: list[str]) -> None:
        """Statements of a loop; each changes ``v`` in a way that depends on their order."""
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.choice(("jump", "jump", "add", "loop", "while", "if"))
            if kind == "jump":
                self.jump(depth, indices)
            elif kind == "loop" and nesting:
                self.loop(depth, nesting - 1, indices)
            elif kind == "while" and nesting:
                self.repeat(depth, nesting - 1, indices)
            elif kind == "if" and nesting:
                value = self.value(indices)
                self.line(depth, f"if ({value} > 0) {{", f"with if_({value} > 0):")
                self.body(depth + 1, nesting - 1, indices)
                self.line(depth, "}", "")
            else:
                self.add(depth, indices)
        self.add(depth, indices)

    def add(self, depth: int, indices: list[str]) -> None:
        value = self.value(indices)
        self.line(depth, f"v = v * 3 + {value};", f"v.set(v * 3 + {value})")
        if self.lanes and indices:
            at = f"t, ({' + '.join(indices)}) % {N}"
            self.line(depth, f"o[{at}] += v;", f"o[{at}] = o[{at}] + v")

    def jump(self, depth: int, indices: list[str]) -> None:
        word = self.random.choice(("break", "continue"))
        value, bound = self.value(indices), self.random.randint(-2, 2)
        self.line(depth, f"if ({value} < {bound}) {word};", f"with if_({value} < {bound}):")
        self.line(depth + 1, "", f"{word}_()")

    def loop(self, depth: int, nesting: int, indices: list[str]) -> None:
        i, n = self.name("i"), self.random.choice((1, 2, 4, 6, N))
        start, step = self.random.choice(((0, 1), (0, 1), (1, 1), (0, 2), (1, 2)))
        unroll = self.random.choice((None, 0, 2, 3, 4))
        hint = "" if unroll is None else ": unroll" if unroll == 0 else f": unroll({unroll})"
        option = "" if unroll is None else ", unroll=True" if unroll == 0 else f", unroll={unroll}"
        limit = "" if (start, step) == (0, 1) else f", start={start}, step={step}"
        head = f"foreach {i}({start}::{step}) {hint} {{" if limit else f"foreach {i} in {n} {hint} {{"
        self.line(
            depth, f"with {i} in {n} {{ {head}" if limit else head, f"for {i} in foreach({n}{limit}{option}):"
        )
        self.body(depth + 1, nesting, [*indices, i])
        self.line(depth, "} }" if limit else "}", "")

    def repeat(self, depth: int, nesting: int, indices: list[str]) -> None:
        w = self.name("w")
        self.line(depth, f"mutable int {w} = 0;", f"{w} = var(0)")
        self.line(depth, f"while ({w} < 3) {{", f"with while_(lambda: {w} < 3):")
        self.line(depth + 1, f"{w} += 1;", f"{w} += 1")
        self.body(depth + 1, nesting, [*indices, w])
        self.line(depth, "}", "")

    def texts(self, level: str) -> tuple[str, str]:
        size = f"32, {N}"
        self.line(
            0, f"__co__ void f(global s32 [{N}] x, global s32 [{size}] o, global s32 [32] last) {{", "@tm.kernel"
        )
        self.line(
            0, "", f'def f(x: tm.Global["s32", {N}], o: tm.Global["s32", {size}], last: tm.Global["s32", 32]):'
        )
        extent = 32 if self.lanes else 1
        self.line(1, "parallel b by 1 : block {", "for b in parallel(1, level='block'):")
        if level != "block":
            self.line(2, f"parallel t by {extent} : {level} {{", f"for t in parallel({extent}, level='{level}'):")
        self.line(3, "mutable int v = 1;", "v = var(1)")
        self.loop(3, 2, [])
        self.line(
            3, "last.at(%s) = v;" % ("t" if self.lanes else "0"), "last[%s] = v" % ("t" if self.lanes else "0")
        )
        self.line(2, "}" if level != "block" else "", "")
        self.line(0, "} }", "")
        python = self.line.python
        if level == "block":
            python = python.replace("\n            ", "\n        ")
        return self.line.co, python


@pytest.mark.parametrize("level", ("block", "group", "thread"))
@settings(max_examples=examples(36), deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_jumps_mean_the_same_everywhere(level: str, random: Random) -> None:
    program = Program(random, level == "thread")
    co, python = program.texts(level)
    x = np.array([random.randint(-3, 3) for _ in range(N)], np.int32)
    o = np.zeros((32, N), np.int32)
    found = agree(co, python, {"x": x, "o": o, "last": np.zeros(32, np.int32)})
    assert not isinstance(found, str), f"{found}\n{co}"


SKIPPING = """
__co__ void f(global f16 [64, 256] a, global f16 [64, 256] b, global s32 [4] skip, global f32 [64, 64] c) {{
  parallel p by 1 : block {{
    shared f16 [64, 64] a_s, b_s;
    parallel w by {count} : {level} {{
      mc = mma.fill.f32 0.0f;
      foreach k in 4 {unroll} {{
        {before}
        dma.copy a.subspan(64, 64).at(0, k) => a_s;
        dma.copy b.subspan(64, 64).at(0, k) => b_s;
        foreach kk in 4 {{
          {inside}
          ma = mma.load a_s.subspan(64, 16).at(0, kk);
          mb = mma.load b_s.subspan(64, 16).at(0, kk);
          mma.row.row mc, ma, mb;
        }}
      }}
      mma.store mc, c;
    }}
  }}
}}
"""


@pytest.mark.parametrize(
    ("unroll", "word", "level", "count", "arch"),
    pairwise(
        ("", ": unroll(2)", ": unroll"), ("break", "continue"), (("group", 1, "sm_80"), ("group-4", 1, "sm_90a"))
    ),
)
def test_no_multiply_is_lost(unroll: str, word: str, level: str, count: int, arch: str) -> None:
    """Whichever turns are skipped: also the first, which would have started the accumulator from zero."""
    numbers = np.random.default_rng(0)
    a, b = (numbers.integers(-2, 3, (64, 256)).astype(np.float16) for _ in range(2))
    jump = f"if (skip.at(k) == 1) {word};"
    for before, inside in ((jump, ""), ("", jump.replace("(k)", "(kk)"))):
        text = SKIPPING.format(level=level, count=count, unroll=unroll, before=before, inside=inside)
        for skip in ([1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]):
            given = {"a": a, "b": b, "skip": np.array(skip, np.int32), "c": np.full((64, 64), 7, np.float32)}
            found = agree(text, None, given, (arch,))
            assert not isinstance(found, str), found
            np.testing.assert_array_equal(found["c"], _expected(a, b, skip, word, bool(before)))


def _expected(a: np.ndarray, b: np.ndarray, skip: list[int], word: str, outer: bool) -> np.ndarray:
    total = np.zeros((64, 64), np.float32)
    for k in range(4):
        if outer and skip[k]:
            if word == "break":
                break
            continue
        for kk in range(4):
            if not outer and skip[kk]:
                if word == "break":
                    break
                continue
            part = slice(k * 64 + kk * 16, k * 64 + kk * 16 + 16)
            total += a[:, part].astype(np.float32) @ b[:, part].astype(np.float32).T
    return total
