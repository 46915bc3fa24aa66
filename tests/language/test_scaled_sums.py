"""What `mma.scale` scales: the products since the fill, the last assignment to elements, or the last `mma.scale`.

A read of the accumulator sees the whole sum and changes nothing, wherever it stands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from construct import Arrays
from differential import agree, croqtile_kernel, python_kernel
from test_element_types import numbers

from tilemma.dtypes import dtype
from tilemma.errors import CompileError

CO = """
__co__ void f(global {t} [16, K] a, global {t} [16, K] b, global f32 [16, 16] c, global f32 [16, 16] d, int n) {{
  parallel p by 1 : block, g by 1 : group {{
    mc = mma.fill.f32 1.0f;
    frag f32[16, 16] md {{0.0}};
    frag f32[16] rows {{0.0}};
    foreach k in [cdiv(K, {k})] {{
      ma = mma.load a.subspan(16, {k}).at(0, k);
      mb = mma.load b.subspan(16, {k}).at(0, k);
      mma.row.row mc, ma, mb;
      {statement}
    }}
    {last}
    mma.store mc, c;
    mma.store md, d;
  }}
}}
"""
PYTHON = """
@tm.kernel
def f(a: tm.Global["{t}", 16, "K"], b: tm.Global["{t}", 16, "K"], c: tm.Global["f32", 16, 16],
      d: tm.Global["f32", 16, 16], n: tm.Int):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc, md, rows = mma.fill(1.0, "f32"), mma.frag("f32", 16, 16, init=0.0), mma.frag("f32", 16, init=0.0)
            for k in foreach(cdiv(a.shape[1], {k})):
                ma, mb = mma.load(a.subspan(16, {k}).at(0, k)), mma.load(b.subspan(16, {k}).at(0, k))
                mma.row.row(mc, ma, mb)
                {statement}
            {last}
            mma.store(mc, c)
            mma.store(md, d)
"""
# Reads of the whole accumulator, into `md` or `d`: (Croqtile, Python).
READS = {
    "store": ("mma.store mc, d; mma.load d, md;", "mma.store(mc, d); mma.load(d, md)"),
    "expression": ("md = mc * 1.0f;", "md.set(mc * 1.0)"),
    "apply": (
        "apply {i, j} in md.span { if (i >= 0) { md.at(i, j) = mc.at(i, j); } }",
        "\nfor i, j in apply(md):\n    with if_(i >= 0):\n        md[i, j] = mc[i, j]",
    ),
    "own apply": (
        "apply {i, j} in mc.span { d.at(i, j) = mc.at(i, j); } mma.load d, md;",
        "\nfor i, j in apply(mc):\n    d[i, j] = mc[i, j]\nmma.load(d, md)",
    ),
    "reduction": ("reduce_max(rows, mc, 1); md = mc * 0.0f + rows;",
                  "mma.reduce_max(rows, mc); md.set(mc * 0.0 + rows[:, None])"),
}  # fmt: skip
SCALE = "mma.scale mc, 2.0f, 1.0f;", "mma.scale(mc, 2.0, 1.0)"


def when(condition: str, *statements: tuple[str, str]) -> tuple[str, str]:
    """The statements, if the condition holds."""
    lines = [x for _, python in statements for part in python.split("; ") for x in part.split("\n") if x]
    co = " ".join(x for x, _ in statements)
    return f"if ({condition}) {{ {co} }}", f"\nwith if_({condition}):\n" + "\n".join("    " + x for x in lines)


def texts(t: str, k: int, statement: tuple[str, str], last: tuple[str, str]) -> tuple[str, str]:
    python = [x.replace("\n", "\n" + " " * n) for x, n in ((statement[1], 16), (last[1], 12))]
    return (
        CO.format(t=t, k=k, statement=statement[0], last=last[0]),
        PYTHON.format(t=t, k=k, statement=python[0], last=python[1]),
    )


def problem(t: str, k: int, rows: bool, n: int) -> tuple[Arrays, Arrays]:
    """The arguments of `reading`, and its results: in the third of four steps the sum is read (``rows``: the largest
    of each row), and if ``n`` the products up to then are doubled."""
    after, steps = 3, 4
    x, y = (numbers(dtype(t), (16, k * steps), seed) for seed in (1, 2))
    given = {"a": x, "b": y, "n": n, **{name: np.zeros((16, 16), np.float32) for name in "cd"}}
    products = x.astype(np.float64).reshape(16, steps, k), y.astype(np.float64).reshape(16, steps, k)
    scaled, since, read = np.ones((16, 16)), np.zeros((16, 16)), np.zeros((16, 16))
    for step in range(steps):
        since = since + products[0][:, step] @ products[1][:, step].T
        if step % after == after - 1:
            read = scaled + since
            scaled, since = scaled + (2 if n else 1) * since, np.zeros((16, 16))
    return given, {"c": scaled + since, "d": np.broadcast_to(read.max(1)[:, None], (16, 16)) if rows else read}


def reading(t: str, k: int, form: str) -> tuple[str, str]:
    """A loop that reads the sum in one step, scales it if the argument n says so, and has later products."""
    return texts(t, k, when("k % 3 == 2", READS[form], when("n > 0", SCALE)), ("", ""))


def cases() -> list[Any]:
    """Every form in f16; two of them by day in fp8, whose sums over more than 128 columns are promoted."""
    fp8 = [("f8_e4m3", 64, "sm_89", form) for form in READS]
    later = [fp8.pop(0), fp8.pop(1), fp8.pop(1), *(("bf16", 16, "sm_90a", form) for form in READS)]
    return [
        *(("f16", 16, "sm_80", form) for form in READS),
        *fp8,
        *(pytest.param(*case, marks=pytest.mark.slow) for case in later),
    ]


@pytest.mark.parametrize(("t", "k", "arch", "form"), cases())
def test_a_read_sees_the_sum_and_leaves_it_to_the_scale(t: str, k: int, arch: str, form: str) -> None:
    """In a loop whose last products are never scaled."""
    for n in (0, 1):
        given, wanted = problem(t, k, form == "reduction", n)
        found = agree(*reading(t, k, form), given, (arch,))
        assert not isinstance(found, str), found
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values)


ASSIGNED = {
    "a fill": ("mma.fill mc, 1.0f;", "mma.fill(mc, 1.0)", "its fill"),
    "a load": ("mma.load c, mc;", "mma.load(c, mc)", "its load"),
    "an assignment": ("mc += 1.0f;", "mc += 1.0", "its elements were assigned"),
    "an apply": ("apply {i, j} in mc.span { if (i > j) { mc.at(i, j) = 0.0f; } }",
                 "\nfor i, j in apply(mc):\n    with if_(i > j):\n        mc[i, j] = 0.0", "elements were assigned"),
    "another scale": (*SCALE, "the last `mma.scale`"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ASSIGNED)
def test_a_scale_without_products_is_refused(kind: str) -> None:
    co, python, since = ASSIGNED[kind]
    both = texts("f16", 16, ("", "pass"), (co + SCALE[0], python + "\n" + SCALE[1]))
    for kernel in (croqtile_kernel(both[0]), python_kernel(both[1])):
        with pytest.raises(CompileError) as caught:
            kernel.compile("sm_80")
        assert caught.value.code == "scale-without-products" and since in str(caught.value)


@pytest.mark.parametrize("n", [0, 1])
def test_an_assignment_under_a_condition_ends_the_sum_where_it_is_made(n: int) -> None:
    """`mc += 1` if n: then nothing is left to scale; else all products are doubled."""
    last = when("n > 0", ("mc += 1.0f;", "mc += 1.0"))
    both = texts("f16", 16, ("", "pass"), (last[0] + SCALE[0], last[1] + "\n" + SCALE[1]))
    x = numbers(dtype("f16"), (16, 32), 1)
    given = {"a": x, "b": x, "n": n, **{name: np.zeros((16, 16), np.float32) for name in "cd"}}
    found = agree(*both, given, ("sm_80",))
    assert not isinstance(found, str), found
    product = x.astype(np.float64) @ x.astype(np.float64).T
    np.testing.assert_array_equal(found["c"], 2 + product if n else 1 + 2 * product)


def test_no_columns_are_scaled() -> None:
    """K = 0: nothing is multiplied at run time, and the fill stays."""
    both = texts("f16", 16, ("", "pass"), SCALE)
    x = np.zeros((16, 0), np.float16)
    found = agree(
        *both, {"a": x, "b": x, "n": 0, **{name: np.zeros((16, 16), np.float32) for name in "cd"}}, ("sm_80",)
    )
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["c"], np.ones((16, 16)))
