"""Where the elements of a matrix operand came from: the check that its layout is the one the instruction reads."""

from __future__ import annotations

from typing import Any


def wanted(w: Any) -> bool:
    return False


def matrix_loaded(w: Any, ids: Any, addr: Any, the_map: Any) -> None:
    return None


def check_mma(w: Any, ins: Any, a: Any, b: Any) -> None:
    return None


def check_wgmma(w: Any, ins: Any, cta: Any, letter: str, at: Any, size: int) -> None:
    return None
