"""Products of rows by one matrix, from the launch cache by the arrays of the call.

`tilemma.ops` takes matrices: a view for each change of shape, and a search for each of several launches, take
longer than the products of few rows.  These functions return None for arrays that they do not take.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilemma.ops import launch_cache, plans
from tilemma.ops.arguments import PLAIN, SCALED
from tilemma.ops.product import prepare, template
from tilemma.ops.rounding import rounding
from tilemma.ops.steps import Step
from tilemma.runtime.arrays import describe

_WARM = launch_cache.WarmCalls()
# The types that `rounding` takes, and torch's for those that it makes.
ROUNDED = (torch.float16, torch.bfloat16, torch.float32)
TYPES = {"f8_e4m3": torch.float8_e4m3fn, "s8": torch.int8}


def product(x: Tensor, right: Tensor, turned: bool, bias: Tensor | None, compute: str | None) -> Tensor | None:
    """x @ right + bias; ``turned``: x @ right.T + bias."""
    key = launch_cache.key_of((x, right, None, bias, None, None, None, None), ("rows", turned, compute))
    entry = None if key is None else _WARM.find(key)
    if entry is None:
        if key is None or not _has_rows(x, right, bias):
            return None
        matrix = right.t() if turned else right
        rows, shape = x.view(-1, x.shape[-1]), (*x.shape[:-1], matrix.shape[1])
        arrays = (rows, matrix, None, bias, None, None, None, None)
        problem, _, _ = prepare(PLAIN, arrays, (1.0, 0.0, None, None, compute, True))
        entry = _WARM.put(key, template(problem, plans.best(problem), describe(rows), shape))
    found: Tensor = entry.run(x, None)
    return found


def rounded_product(
    x: Tensor, right: Tensor, scales: Tensor | None, type: str, bias: Tensor | None, kept: bool = False
) -> Tensor | None:
    """x @ (right * scales) + bias with rows of ``x`` rounded to ``type``; without ``scales``, columns of
    ``right`` are rounded as well.

    ``kept``: ``right`` is transposed, and it and the scales are integers of the same bits."""
    key = launch_cache.key_of((x, right, None, bias, None, None, scales, None), ("rounded rows", type, kept))
    entry = None if key is None else _WARM.find(key)
    if entry is None:
        if key is None or not _has_rows(x, right, bias) or x.dtype not in ROUNDED:
            return None
        if scales is None and not (right.dtype in ROUNDED and right.t().is_contiguous()):
            return None
        if kept and scales is not None:
            right, scales = right.view(TYPES[type]).t(), scales.view(torch.float32)
        entry = _WARM.put(key, _rounded_template(x, right, scales, type, bias))
    found: Tensor = entry.run(x, None)
    return found


def _rounded_template(
    x: Tensor, right: Tensor, scales: Tensor | None, type: str, bias: Tensor | None
) -> launch_cache.LaunchTemplate:
    first = describe(x.view(-1, x.shape[-1]))
    needs: dict[str, tuple[tuple[int, ...], str]] = {}
    steps: list[Step] = []

    def round_rows(rows: Tensor, source: str, name: str) -> tuple[Tensor, Tensor]:
        values = torch.empty(rows.shape, dtype=TYPES[type], device=x.device)
        factors = torch.empty(rows.shape[0], dtype=torch.float32, device=x.device)
        made = f"work.{name}", f"work.{name}_scales"
        needs.update({made[0]: (tuple(rows.shape), type), made[1]: (tuple(factors.shape), "f32")})
        steps.append(rounding(describe(rows), describe(values), describe(factors), (source, *made)))
        return values, factors

    left, factors = round_rows(x.view(-1, x.shape[-1]), "a", "rows")
    names = {"a": "work.rows", "scale_a": "work.rows_scales"}
    if scales is None:
        columns, scales = round_rows(right.t(), "b", "columns")
        right = columns.t()
        names |= {"b": "work.columns", "scale_b": "work.columns_scales"}
    arrays = (left, right, None, bias, None, factors[:, None], scales[None, :], None)
    problem, _, _ = prepare(SCALED, arrays, (1.0, 0.0, None, x.dtype, None, True))
    shape = (*x.shape[:-1], right.shape[1])
    return template(problem, plans.best(problem), first, shape, steps, needs, names)


def _has_rows(x: Tensor, right: Tensor, bias: Any) -> bool:
    """Whether ``x``, on a GPU, has elements and is a matrix of rows without a copy, ``right`` is one matrix, and
    ``bias`` is for its columns."""
    inside = x.is_cuda and x.dim() >= 2 and x.numel() > 0 and x.is_contiguous()
    return inside and right.dim() == 2 and right.numel() > 0 and (bias is None or bias.dim() == 1)
