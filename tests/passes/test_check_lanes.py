"""Synchronisation in `: thread` levels, and accumulators of two kinds of units: one legality for all targets."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tilemma.errors import TilemmaError

# What the lanes of the second warp do; {} is the statement under a condition or a level of some lanes.
LANES = {
    "all": "parallel t by 32 : thread {{ {} y.at(1, t) = x.at(0, t); }}",
    "some": "parallel t by 16 : thread {{ {} y.at(1, t) = x.at(0, t); }}",
    "condition": "parallel t by 32 : thread {{ if (x.at(0, t) < 5.0f) {{ {} }} y.at(1, t) = x.at(0, t); }}",
    "loop": "parallel t by 32 : thread {{ foreach i in t {{ {} }} y.at(1, t) = x.at(0, t); }}",
    "jump": "parallel t by 32 : thread {{ foreach i in 1 {{ if (x.at(0, t) > 5.0f) break; {} }} }}",
}
STATEMENTS = {
    "event": "wait e;",
    "slot of the lane": "wait r[t % 2];",
    "future": "f = dma.copy.async x.subspan(1, 32).at(t, 0) => s.subspan(1, 32).at(t, 0); wait f;",
    "counted copy": "dma.copy.async<d> x.subspan(1, 32).at(0, 0) => s.subspan(1, 32).at(0, 0);",
    "barrier": "sync.shared;",
}
ACCEPTED = {("event", "all"), ("future", "all"), ("future", "some"), ("barrier", "all")}


def loaded(text: str, folder: Path) -> Any:
    path = folder / "k.co"
    path.write_text(text)
    return tm.load(path)["k"]


def outcome(kernel: Any, target: str) -> str:
    """The code of the refusal; empty where the kernel runs."""
    x, y = np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32)
    try:
        kernel.on(target)(x, y)
    except TilemmaError as e:
        return e.code
    assert (y[1, :16] == 1).all()
    return ""


@pytest.mark.parametrize(("statement", "lanes"), list(itertools.product(STATEMENTS, LANES)))
def test_targets_agree(statement: str, lanes: str, tmp_path: Path) -> None:
    inside = LANES[lanes].format(STATEMENTS[statement])
    text = f"""
    __co__ void k(global f32 [32, 32] x, global f32 [32, 32] y) {{
      parallel p by 1 : block {{
        shared f32 [32, 32] s; shared event e, d, r[2];
        parallel w by 2 : group {{
          inthreads.async (w == 0) {{ trigger e; trigger r[0]; trigger r[1]; wait d; }}
          inthreads.async (w == 1) {{ {inside} trigger d; }}
        }}
      }}
    }}"""
    for unused in ("e", "d", "r"):
        if f"wait {unused}" not in inside and f"<{unused}>" not in inside:
            for name in (unused, f"{unused}[0]", f"{unused}[1]"):
                text = text.replace(f"trigger {name}; ", "").replace(f"wait {name}; ", "")
    codes = {target: outcome(loaded(text, tmp_path), target) for target in ("cpu", "machine")}
    wanted = "" if (statement, lanes) in ACCEPTED else "lanes-apart"
    assert codes == {"cpu": wanted, "machine": wanted}


def product(first: str, second: str, acc: str) -> str:
    def multiply(t: str, n: int) -> str:
        a, b = f"left{n}.subspan(16, 16).at(0, 0)", f"right{n}.subspan(8, 16).at(0, 0)"
        return f"tile_a{n} = mma.load {a}; tile_b{n} = mma.load {b}; mma.row.row m, tile_a{n}, tile_b{n};"

    parameters = ", ".join(
        f"global {t} [M, K] left{n}, global {t} [N, K] right{n}" for n, t in enumerate((first, second))
    )
    return f"""
    __co__ void k({parameters}, global {acc} [M, N] y) {{
      parallel p by 1 : block {{ parallel w by 1 : group {{
        m = mma.fill.{acc} 0; {multiply(first, 0)} {multiply(second, 1)} mma.store m, y.subspan(16, 8).at(0, 0);
      }} }}
    }}"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("types", "acc"),
    [(p, "f32") for p in itertools.product(("f32", "f16", "bf16"), repeat=2)]
    + [(p, "s32") for p in itertools.product(("s32", "s8"), repeat=2)],
)
def test_units_of_one_accumulator(types: tuple[str, str], acc: str, arch: str, tmp_path: Path) -> None:
    kernel = loaded(product(*types, acc), tmp_path)
    mixed = (types[0] == acc) != (types[1] == acc)
    a, b = (16, 16), (8, 16)
    numbers = {t: tm.dtypes.dtype(t).numpy for t in ("f32", "f16", "bf16", "s32", "s8")}
    arrays = [np.ones(shape, numbers[t]) for t in types for shape in (a, b)]
    codes = {}
    for target in ("cpu", arch):
        y = np.zeros((16, 8), numbers[acc])
        try:
            if target == "cpu":
                kernel.on("cpu")(*arrays, y)
                assert (y == 32).all()
            else:
                kernel.compile(target)
            codes[target] = ""
        except TilemmaError as e:
            codes[target] = e.code
    assert set(codes.values()) == {"accumulator-units" if mixed else ""}
