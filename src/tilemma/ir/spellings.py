"""Names that other libraries give to functions: what a kernel writes instead.

A refusal of one of these names shows the formula in the language of the program.
"""

from __future__ import annotations

import re

from tilemma.ir.constructs import ATOMICS, FUNCTIONS

# Name elsewhere -> formula.  ``{0}``, ``{1}``: the arguments; ``@f(``: the function `f` of the language.
_FORMULAS = {
    "acosh": "@log({0} + @sqrt({0} * {0} - 1.0))",
    "add": "{0} + {1}",
    "asinh": "@log({0} + @sqrt({0} * {0} + 1.0))",
    "atanh": "0.5 * @log((1.0 + {0}) / (1.0 - {0}))",
    "cbrt": "@sign({0}) * @pow(@fabs({0}), 1.0 / 3.0)",
    "celu": "@select({0} > 0.0, {0}, @expm1({0}))",
    "copysign": "@select({1} < 0.0, -@fabs({0}), @fabs({0}))",
    "div": "{0} / {1}",
    "elu": "@select({0} > 0.0, {0}, @expm1({0}))",
    "erfc": "1.0 - @erf({0})",
    "exp10": "@exp({0} * 2.302585093)",
    "hardsigmoid": "@clamp({0} / 6.0 + 0.5, 0.0, 1.0)",
    "hardswish": "{0} * @clamp({0} + 3.0, 0.0, 6.0) / 6.0",
    "hardtanh": "@clamp({0}, -1.0, 1.0)",
    "hypot": "@sqrt({0} * {0} + {1} * {1})",
    "isinf": "@fabs({0}) > 3.4e38",
    "isnan": "{0} != {0}",
    "leaky_relu": "@select({0} > 0.0, {0}, {0} * 0.01)",
    "lerp": "{0} + {2} * ({1} - {0})",
    "log10": "@log({0}) * 0.4342944819",
    "logaddexp": "@max({0}, {1}) + @log1p(@exp(-@fabs({0} - {1})))",
    "logsigmoid": "-@softplus(-{0})",
    "mish": "{0} * @tanh(@softplus({0}))",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "quick_gelu": "{0} * @sigmoid(1.702 * {0})",
    "relu6": "@clamp({0}, 0.0, 6.0)",
    "remainder": "{0} % {1}",
    "saturate": "@clamp({0}, 0.0, 1.0)",
    "sincos": "@sin({0})` and `@cos({0})",
    "softsign": "{0} / (1.0 + @fabs({0}))",
    "square": "{0} * {0}",
    "sub": "{0} - {1}",
    "swiglu": "@silu({0}) * {1}",
    "trunc": "@sign({0}) * @floor(@fabs({0}))",
}

# Operations with another form: Croqtile, Python.
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
    "norm": (
        "`reduce_sum(v, d, 1);` of a tile `d` of squares, then `v = __sqrt(v);`",
        "`tm.math.sqrt((t * t).sum(axis=1))`",
    ),
    "sum": ("`reduce_sum(vector, tile, 1);`", "`tile.sum(axis=1)`"),
    "amax": ("`reduce_max(vector, tile, 1);`", "`tile.max(axis=1)`"),
    "amin": ("`mma.reduce_min` of the Python language, or `-x` and `reduce_max`", "`tile.min(axis=1)`"),
    "matmul": ("`mma.row.row mc, a, b;`", "`mma.row.row(mc, a, b)`"),
    "store": ("`mma.store tile, view;`", "`mma.store(tile, view)`"),
    "load": ("`t = mma.load view;`", "`mma.load(view)`"),
    "copy": ("`dma.copy a => b;`", "`dma.copy(a, b)` for tiles in memory, `p.set(t)` for register tiles"),
    "zeros": ("`mc = mma.fill.f32 0.0f;`", '`mma.fill(0.0, "f32")`, or `mma.fill(tile, 0.0)`'),
    "empty": ("`frag f32[64, 64] t;`", '`mma.frag("f32", 64, 64)`'),
    "arange": ("an index of `foreach` or `parallel`", "an index of `foreach` or `parallel`"),
    "to": ("`__to<f16>(x)`", '`x.astype("f16")`'),
    "float": ("`__to<f32>(x)`", '`x.astype("f32")`'),
    "double": ("`__to<f64>(x)`", '`x.astype("f64")`'),
    "int": ("`__to<s32>(x)`", '`x.astype("s32")`'),
    "where": ("`c ? x : y`", "`tm.select(condition, a, b)`"),
    "logical_and": ("`a && b`", "`a & b`"),
    "logical_or": ("`a || b`", "`a | b`"),
    "logical_not": ("`!a`", "`~a`"),
    "synchronize": ("`sync.barrier : block;`", '`sync.barrier("block")`'),
    "syncwarp": ("`sync.barrier : group;`", '`sync.barrier("group")`'),
    "threadfence": ("`sync.fence : device;`", '`sync.fence("device")`'),
    "index": (
        "an index of a level: `parallel b by n : block, t by 256 : thread`",
        '`for b in parallel(n, level="block")`, `for t in parallel(256, level="thread")`',
    ),
    "lane_id": (
        "`parallel l by 32 : thread` in a `group`",
        '`for lane in parallel(32, level="thread")` in a group',
    ),
    "range": ("`foreach i in n { ... }`", "`for i in foreach(n)`"),
    "static_range": ("`foreach i in 4 : unroll { ... }`", "`for i in range(n)`: Python unrolls it"),
    "constexpr": ("`#define TILE 64`", "a keyword of the kernel: `def k(x: ..., *, TILE=64)`"),
    "jit": ("`__co__ void f(...) { ... }`", "`@tm.kernel` above the function"),
    "printf": ('`print("v = ", v);`', '`tm.print("v = ", v)`'),
    "ldg": ("`x.at(i)`", "`x[i]`"),
    "sizeof": ("`|f32|`", '`tm.dtypes.dtype("f32").bytes`'),
    "len": ("`x.span(0)`", "`x.shape[0]`"),
    "numel": ("`|x.span|`", "`x.size`"),
    "reshape": ("`x.span_as(a, b)`, of arrays and buffers", "`x.span_as(a, b)`, of arrays and buffers"),
    "slice": ("`x.subspan(h, w).at(i, j)`", "`x.subspan(h, w).at(i, j)`"),
    "map": ("`apply {i, j} in t.span { ... }`", "`t.map(f)`"),
    "reduce_add": ("`reduce_sum(vector, tile, 1);`", "`mma.reduce_sum(vector, tile)`"),
    **{
        f"atomic_{name}": (
            f"`__atomic_{name}(x.at(i), v)`",
            f"`atomic.{name}{'_' * (name in ('and', 'or'))}(x[i], v)`",
        )
        for name in ATOMICS
        if name != "cas"
    },
    **{
        f"{one}_{two}": (f"`mma.{one}.{two} mc, a, b;`", f"`mma.{one}.{two}(mc, a, b)`")
        for one in ("row", "col")
        for two in ("row", "col")
    },
    "shape": ("`x.span`, and `x.span(0)` for an extent", "`x.shape`"),
    "atomic_cas": ("`__atomic_cas(x.at(i), expected, v)`", "`atomic.cas(x[i], expected, v)`"),
}

# Names that NumPy, PyTorch, Triton, CUDA or Python give to the above and to functions of the language.
_ALIASES = {
    "absolute": "abs", "all": "amin", "any": "amax", "apply": "map", "arccos": "acos", "arccosh": "acosh",
    "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh",
    "async_copy": "copy", "average": "mean", "barrier": "synchronize", "blockDim": "index", "blockIdx": "index",
    "block_id": "index", "block_idx": "index", "bmm": "matmul", "cast": "to", "choose": "where", "clip": "clamp",
    "clone": "copy", "convert": "to", "debug_barrier": "synchronize", "device_print": "printf", "divide": "div",
    "dot": "matmul", "empty_like": "empty", "ex2": "exp2", "expit": "sigmoid", "fdivide": "div", "fill": "zeros",
    "flatten": "reshape", "float2half": "to", "float2int": "int", "fmax": "max", "fmin": "min",
    "fmod": "remainder", "full": "zeros", "full_like": "zeros", "gemm": "matmul", "gridDim": "index",
    "half": "to", "half2float": "float", "int2float": "float", "item": "load", "length": "len", "lg2": "log2",
    "load_matrix": "load", "log_sigmoid": "logsigmoid", "log_softmax": "softmax", "logical_xor": "logical_or",
    "maximum": "max", "memcpy": "copy", "minimum": "min", "mm": "matmul", "mod": "remainder", "multiply": "mul",
    "negative": "neg", "ones": "zeros", "ones_like": "zeros", "power": "pow", "prelu": "leaky_relu",
    "program_id": "index", "reciprocal": "rcp", "reduce": "reduce_add", "reduce_mean": "mean", "rint": "round",
    "rowcol": "row_col", "rowrow": "row_row", "rsq": "rsqrt", "select": "where", "sgn": "sign", "signum": "sign",
    "size": "numel", "sqr": "square", "std": "var", "subtract": "sub", "swish": "silu",
    "sync_threads": "synchronize", "syncthreads": "synchronize", "threadIdx": "index", "thread_id": "index",
    "thread_idx": "index", "threads": "synchronize", "trigger_barrier": "synchronize", "true_divide": "div",
    "type": "to", "warp_id": "index", "zero": "zeros", "zeros_like": "zeros",
}  # fmt: skip

_FUNCTION = re.compile(r"@(\w+)\(")


def _base(name: str) -> str:
    """``name`` as the tables have it: without the marks of C and CUDA (`__expf`, `__fmul_rn`, `std::max`,
    `atomicAdd`) and PyTorch's mark of changes in place (`relu_`)."""
    name = name.rpartition("::")[2].strip("_")
    name = re.sub(r"_(rn|rz|ru|rd|sync|approx|block)$", "", name)
    atomic = re.fullmatch(r"atomic_?([A-Z]\w*)", name)
    if atomic is not None:
        return f"atomic_{atomic[1].lower()}"
    plain = name.removesuffix("f")
    for n in (name, plain, name.removeprefix("f"), plain.removeprefix("f")):
        found = _ALIASES.get(n, n)
        if found in FUNCTIONS or found in _FORMULAS or found in _OPERATIONS:
            return found
    return name


def _croqtile(function: str) -> str:
    return "select" if function == "select" else f"__{FUNCTIONS[function].operation}"


def formula(name: str, croqtile: bool, arguments: tuple[str, ...] = ("a", "b", "c")) -> str:
    """`write ...` for ``name``, of a function of the language or of another library; empty if it is not known."""
    base = _base(name)
    if base in _FORMULAS:
        text = _FORMULAS[base]
        for n, argument in enumerate(arguments):
            text = text.replace(f"{{{n}}}", argument)

        def called(found: re.Match[str]) -> str:
            function = found[1]
            return (_croqtile(function) if croqtile else _python(function)) + "("

        return f"write `{_FUNCTION.sub(called, text)}`"
    if base in FUNCTIONS:
        form = f"({', '.join(arguments[: FUNCTIONS[base].arguments])})"
        return f"write `{_croqtile(base) if croqtile else _python(base)}{form}`"
    if base == "where" and not croqtile and arguments[0] != "a":
        return f"write `tm.select(c, {arguments[0]}, b)`"
    row = _OPERATIONS.get(base)
    return "" if row is None else f"write {row[0] if croqtile else row[1]}"


def _python(function: str) -> str:
    return "tm.select" if function == "select" else f"tm.math.{function}"


def python_form(name: str, argument: str = "a") -> str:
    """`write ...` in Python for ``name``, whose first argument is ``argument``; empty if it is not known."""
    return formula(name, False, (argument, "b", "c"))
