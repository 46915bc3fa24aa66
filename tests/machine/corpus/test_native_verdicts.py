"""Verdicts, hazards and bytes are the same with the compiled library and without it, at equal seeds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from test_corpus import PTX
from test_planted_bugs import KERNELS, PLANTED

from tilemma import machine
from tilemma.machine.native import library

# Kernels as they are, and with a planted bug.
CLEAN = (
    "triton_softmax_wide-softmax", "triton_last_block-last_block", "basics-bitonic_sort", "sync-block_pipeline",
    "tilelang_matmul_one_stage_sm_80-main_kernel", "sync-flags_chain",
)  # fmt: skip
WRONG = ("no warp barrier", "no warp barrier behind cp.async", "ldmatrix without .trans", "lock of a CTA")


def outcome(name: str, edit: tuple[str, str] | None) -> tuple[Any, ...]:
    case = KERNELS[name]
    ptx = (PTX / f"{case.file}.ptx").read_text(encoding="utf-8")
    if edit is not None:
        at = ptx.index(f".entry {case.entry}")
        ptx = ptx[:at] + re.sub(*edit, ptx[at:], count=1)
    args, _ = case.build()
    launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
    verdict = machine.check(ptx, launch, args, schedules=3, max_steps=100_000)
    arrays = {k: v.tobytes() for k, v in args.items() if isinstance(v, np.ndarray)}
    return verdict.to_json(), [h.render() for h in verdict.hazards + verdict.letter], arrays


@pytest.mark.parametrize("title", (*CLEAN, *WRONG))
def test_the_library_changes_no_verdict(title: str, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *edit = PLANTED[title][:3] if title in PLANTED else (title,)
    with_it = outcome(name, tuple(edit) or None)  # type: ignore[arg-type]
    monkeypatch.setattr(library._state, "library", None)
    assert outcome(name, tuple(edit) or None) == with_it  # type: ignore[arg-type]
    assert with_it[0]["ok"] == (title in CLEAN)
