"""Random rings, right and wrong: the event simulation agrees with the reference executor, which has data."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from pipeline_runs import close, from_co, problem

from dev.fuzz import check as fuzz
from dev.fuzz.generate import generate
from tilemma.errors import TilemmaError
from tilemma.ir.tile import Kernel
from tilemma.targets.cpu import execute
from tilemma.targets.cpu.event_simulation import simulate_events
from tilemma.targets.cpu.faults import Deadlock, ProgramFault


@dataclass(frozen=True)
class Ring:
    """``slots``, and how many warps produce and consume.

    ``subscript``: how all find their slot; ``tiles``: how a block gets its tiles; ``credits``: whether slots start
    free, or consumers say so.
    """

    slots: int
    producers: int
    consumers: int
    subscript: str
    tiles: str
    credits: str

    def at(self, event: str) -> str:
        return {
            "order": f"{event}.at(o)",
            "modulo": f"{event}[o % {self.slots}]",
            "slot": f"{event}[s]",
        }[self.subscript]

    def text(self, fault: str, at: str) -> str:
        """The program, with ``fault`` at the statement called ``at``."""
        ready = " = ready" if self.credits == "ready" else ""
        loop = {
            "one": ("", "", "i"),
            "stays": ("with t in TILES { foreach t(i::2) {", "} }", "t"),
            "while": ("mutable int t = i; while (t < TILES) {", "t = t + 2; }", "t"),
        }[self.tiles]
        grid = "cdiv(M, ROWS)" if self.tiles == "one" else "2"
        statement = {
            "credits": "" if ready else f"foreach c in {self.slots} {{ trigger empty[c]; }}",
            "empty": f"wait {self.at('empty')};",
            "full": f"trigger {self.at('full')};",
            "wait": f"wait {self.at('full')};",
            "release": f"trigger {self.at('empty')};",
        }
        for name, text in statement.items():
            statement[name] = changed(text, fault, self.slots) if name == at else text
        full, on = self.at("full"), f"o = o + 1; s = s == {self.slots - 1} ? 0 : s + 1;"
        copies = [
            f"tma.copy.async<{full}> lhs.subspan(ROWS, 16).at({loop[2]}, k) => a_s[o % {self.slots}];",
            f"tma.copy.async<{full}> rhs.subspan(16, 16).at(0, k) => b_s[s];",
        ]
        # Two roles fill a slot together: their threads are counted.
        count = "<64>" if self.producers == 2 else ""
        roles = [f"(p == {n})" for n in range(self.producers)]
        producing = "".join(
            f"""
      inthreads.async {role} {{
        mutable int o = 0; mutable int s = 0;
        {loop[0]}
          foreach k in cdiv(K, 16) {{
            {statement["empty"]}
            {" ".join(copies[n :: self.producers])}
            {statement["full"]}
            {on}
          }}
        {loop[1]}
      }}"""
            for n, role in enumerate(roles)
        )
        return f"""
#define ROWS {16 * self.consumers}
#define TILES cdiv(M, ROWS)
__co__ void k(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output) {{
  parallel i by {grid} : block {{
    shared event{count} full[{self.slots}];
    shared event empty[{self.slots}]{ready};
    shared f16 [ROWS, 16] a_s[{self.slots}];
    shared f16 [16, 16] b_s[{self.slots}];
    parallel p by {self.producers + self.consumers} : group {{{producing}
      inthreads.async (p >= {self.producers}) {{
        mutable int o = 0; mutable int s = 0;
        {statement["credits"]}
        {loop[0]}
          mc = mma.fill.f32 0.0f;
          foreach k in cdiv(K, 16) {{
            {statement["wait"]}
            ma = mma.load a_s[o % {self.slots}].subspan(16, 16).at(p - {self.producers}, 0);
            mb = mma.load b_s[s];
            mma.row.row mc, ma, mb;
            mma.commit;
            {statement["release"]}
            {on}
          }}
          mma.store mc, output.subspan(16, 16).at({loop[2]} * {self.consumers} + p - {self.producers}, 0);
        {loop[1]}
      }}
    }}
  }}
}}
"""


def changed(statement: str, fault: str, slots: int) -> str:
    match fault:
        case "twice":
            return f"{statement} {statement}"
        case "never":
            return f"if (K < 0) {{ {statement} }}"
        case "every second turn":
            return f"if (o % 2 == 0) {{ {statement} }}"
        case "not once":
            return f"if (o != 3) {{ {statement} }}"
        case "another slot":
            return (
                statement.replace("(o)", "(o + 1)")
                .replace("[o %", "[(o + 1) %")
                .replace("[s]", f"[{slots - 1} - s]")
            )
        case "fewer":
            return statement.replace(f"in {slots} ", f"in {slots - 1} ")
    return statement


def drawn(seed: int) -> tuple[str, str, str]:
    """A program, what is wrong with it, and where."""
    r = random.Random(seed)
    ring = Ring(
        r.choice((1, 2, 3, 4)),
        r.choice((1, 1, 2)),
        r.choice((1, 2)),
        r.choice(("order", "modulo", "slot")),
        r.choice(("one", "stays", "while")),
        r.choice(("ready", "loop")),
    )
    if r.random() < 0.4:
        return ring.text("", ""), "", ""
    at = r.choice(("credits", "empty", "full", "wait", "release"))
    fault = r.choice(("twice", "never", "every second turn", "not once", "another slot"))
    if at == "credits":
        fault = r.choice(("twice", "never", "fewer"))
    return ring.text(fault, at), fault, at


def run(kernel: Kernel, shape: dict[str, int], seed: int) -> TilemmaError | None:
    arrays, want = problem(kernel, (shape["M"], shape["N"], shape["K"]))
    arrays["output"][:] = want.astype(np.float16)
    arrays["output"][:, :16] = 7
    try:
        execute(kernel, arrays, {}, dims=shape, seed=seed)
    except TilemmaError as e:
        return e
    assert close(arrays["output"], want)
    return None


def verdict(seed: int) -> str:
    text, fault, _ = drawn(seed)
    kernel = from_co(text)
    try:
        found = simulate_events(kernel)
    except TilemmaError as e:
        shape = {n: int(v) for n, v in re.findall(r"(\w+) = (\d+)", e.facts["shape"])}
        assert isinstance(run(kernel, shape, seed), ProgramFault), f"a false alarm:\n{text}\n{e}"
        assert fault
        return "refused"
    assert found.shapes, text
    result = run(kernel, dict(found.shapes[0]), seed)
    assert not isinstance(result, Deadlock), f"a deadlock that was not seen:\n{text}\n{result}"
    assert result is None or fault
    return "right" if result is None else result.code


def test_random_rings():
    count = Counter(verdict(seed) for seed in range(60))
    assert count["refused"] > 15 and count["right"] > 15


@pytest.mark.slow
def test_many_random_rings():
    count = Counter(verdict(seed) for seed in range(60, 600))
    assert count["refused"] > 150 and count["right"] > 150


@pytest.mark.slow
def test_no_alarm_for_programs_of_the_fuzzer():
    for seed in range(300):
        simulate_events(fuzz.croqtile_kernel(generate(seed)).build())
