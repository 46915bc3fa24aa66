"""Sizes of launch plans as C expressions on int64_t."""

from __future__ import annotations

from collections.abc import Mapping

from tilemma.launch import Size

# Functions of the header for what C's own operators compute differently.
SUPPORT = """\
static inline int64_t tilemma_div(int64_t a, int64_t b) { return b ? a / b : 0; }
static inline int64_t tilemma_mod(int64_t a, int64_t b) { return b ? a % b : 0; }
static inline int64_t tilemma_floordiv(int64_t a, int64_t b) {
  return b ? a / b - (a % b != 0 && (a < 0) != (b < 0)) : 0;
}
static inline int64_t tilemma_cdiv(int64_t a, int64_t b) {
  return b ? a / b + (a % b != 0 && (a < 0) == (b < 0)) : 0;
}
static inline int64_t tilemma_floormod(int64_t a, int64_t b) { return b ? a - b * tilemma_floordiv(a, b) : 0; }
static inline int64_t tilemma_wrap(int64_t a) { return (int32_t)(uint32_t)(uint64_t)a; }
static inline int64_t tilemma_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tilemma_max(int64_t a, int64_t b) { return a > b ? a : b; }
"""

_INFIX = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "eq": "==", "and": "&&", "or": "||"}


def c_size(size: Size, names: Mapping[str, str]) -> str:
    """``size`` in C; ``names`` are the C expressions of dimensions, scalars and strides."""
    if isinstance(size, int):
        return f"INT64_C({size})" if size >= 0 else f"(-INT64_C({-size}))"
    if isinstance(size, str):
        return names[size]
    op, *operands = size
    texts = [c_size(x, names) for x in operands]
    if op == "select":
        return f"({texts[0]} ? {texts[1]} : {texts[2]})"
    if op in _INFIX:
        return f"({texts[0]} {_INFIX[op]} {texts[1]})"
    return f"tilemma_{op}({', '.join(texts)})"
