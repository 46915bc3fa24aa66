"""What the ISA's letter forbids and Triton emits: an error under strict, a note by default."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_model_cases import CASES

from tilemma import machine

PTX = Path(__file__).with_name("ptx")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("triton_bias-bias", "missing-wgmma-fence-after-move"),
        ("triton_half_sums-half_sums", "register-in-flight-before-wait"),
        ("triton_e5m2_pipelined-e5m2_pipelined", "register-in-flight-before-wait"),
        ("triton_variance-variance", "race-rounded-values"),
    ],
)
def test_an_error_under_strict_alone(name: str, code: str) -> None:
    (case,) = (c for c in CASES if c.name == name)
    ptx = (PTX / f"{case.file}.ptx").read_text(encoding="utf-8")
    launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
    args, _ = case.build()
    assert machine.check(ptx, launch, args, schedules=2).ok
    assert code in {h.code for h in machine.check(ptx, launch, args, schedules=2, strict=True).hazards}
