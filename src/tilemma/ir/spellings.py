"""Names that other libraries give to functions: what a kernel writes instead.

A refusal of one of these names shows the formula in the language of the program.
"""

from __future__ import annotations

import re

from tilemma.ir.constructs import FUNCTIONS

# Name elsewhere -> formula.  ``{0}``, ``{1}``: the arguments; ``@f(``: the function `f` of the language.
_FORMULAS = {
    "celu": "@select({0} > 0.0, {0}, @expm1({0}))",
    "elu": "@select({0} > 0.0, {0}, @expm1({0}))",
    "erfc": "1.0 - @erf({0})",
    "exp10": "@exp({0} * 2.302585093)",
    "hardsigmoid": "@clamp({0} / 6.0 + 0.5, 0.0, 1.0)",
    "hardswish": "{0} * @clamp({0} + 3.0, 0.0, 6.0) / 6.0",
    "hardtanh": "@clamp({0}, -1.0, 1.0)",
    "hypot": "@sqrt({0} * {0} + {1} * {1})",
    "isnan": "{0} != {0}",
    "leaky_relu": "@select({0} > 0.0, {0}, {0} * 0.01)",
    "log10": "@log({0}) * 0.4342944819",
    "logaddexp": "@max({0}, {1}) + @log1p(@exp(-@fabs({0} - {1})))",
    "logsigmoid": "-@softplus(-{0})",
    "mish": "{0} * @tanh(@softplus({0}))",
    "relu6": "@clamp({0}, 0.0, 6.0)",
    "softsign": "{0} / (1.0 + @fabs({0}))",
    "square": "{0} * {0}",
    "swiglu": "@silu({0}) * {1}",
    "trunc": "@sign({0}) * @floor(@fabs({0}))",
}
_FORMULAS["log_sigmoid"] = _FORMULAS["logsigmoid"]
_FORMULAS["prelu"] = _FORMULAS["leaky_relu"]

# Functions of whole rows, and operations with another shape: Croqtile, Python.
_OPERATIONS = {
    "softmax": (
        "`reduce_max(m, t, 1); t = __exp(t - m); reduce_sum(s, t, 1); t = t / s;` with `frag f32[rows] m, s;`",
        "`e = tm.math.exp(t - t.max(axis=1)[:, None])`, then `e / e.sum(axis=1)[:, None]`",
    ),
    "mean": (
        "`reduce_sum(m, t, 1);`, and divide `m` by the number of columns",
        "`t.sum(axis=1) / n` with the number of columns `n`",
    ),
    "var": (
        "`reduce_sum(v, d, 1);` of a tile `d` of squares, and divide `v` by the number of columns",
        "`(d * d).sum(axis=1) / n` of the differences `d = t - mean[:, None]`",
    ),
    "sum": ("`reduce_sum(vector, tile, 1);`", "`tile.sum(axis=1)`"),
    "amax": ("`reduce_max(vector, tile, 1);`", "`tile.max(axis=1)`"),
    "matmul": ("`mma.row.row mc, a, b;`", "`mma.row.row(mc, a, b)`"),
    "store": ("`mma.store tile, view;`", "`mma.store(tile, view)`"),
    "to": ("`__to<f16>(x)`", '`x.astype("f16")`'),
    "where": ("`c ? x : y`", "`tm.select(condition, a, b)`"),
    "synchronize": ("`sync.barrier : block;`", '`sync.barrier("block")`'),
    "index": (
        "an index of a level: `parallel b by n : block, t by 256 : thread`",
        '`for b in parallel(n, level="block")`, `for t in parallel(256, level="thread")`',
    ),
}
_SAME = {
    "log_softmax": "softmax", "average": "mean", "std": "var", "amin": "amax", "dot": "matmul", "bmm": "matmul",
    "mm": "matmul", "gemm": "matmul", "half": "to", "float": "to", "type": "to", "cast": "to", "syncthreads":
    "synchronize", "barrier": "synchronize", "threadIdx": "index", "blockIdx": "index", "blockDim": "index",
    "program_id": "index", "thread_id": "index", "thread_idx": "index", "block_idx": "index",
}  # fmt: skip

_FUNCTION = re.compile(r"@(\w+)\(")


def formula(name: str, croqtile: bool, arguments: tuple[str, ...] = ("a", "b")) -> str:
    """`write ...` for the function ``name`` of another library; empty if it is not known here."""
    name = name.strip("_")
    if name in _FORMULAS:
        text = _FORMULAS[name].format(*arguments)

        def called(found: re.Match[str]) -> str:
            function = found[1]
            if function == "select":
                return "select(" if croqtile else "tm.select("
            return f"__{function}(" if croqtile else f"tm.math.{function}("

        return f"write `{_FUNCTION.sub(called, text)}`"
    row = _OPERATIONS.get(_SAME.get(name, name))
    return "" if row is None else f"write {row[0] if croqtile else row[1]}"


# Names that NumPy, PyTorch or Python give to functions of the language.
_ALIASES = {
    "absolute": "abs", "clip": "clamp", "maximum": "max", "minimum": "min", "fmax": "max", "fmin": "min",
    "power": "pow", "reciprocal": "rcp", "swish": "silu", "arctan2": "atan2", "arctan": "atan", "arcsin": "asin",
    "arccos": "acos", "expit": "sigmoid", "rint": "round", "sqr": "square",
}  # fmt: skip
_CHOICES = ("where", "select", "choose")


def python_form(name: str) -> str:
    """`write ...` in Python for ``name``, of a function of the language or of another library; empty if it is not
    known here."""
    name = _ALIASES.get(name, name)
    if name in FUNCTIONS:
        return f"write `tm.math.{name}({', '.join('abc'[: FUNCTIONS[name].arguments])})`"
    return "write `tm.select(condition, a, b)`" if name in _CHOICES else formula(name, croqtile=False)
