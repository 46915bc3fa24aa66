"""NumPy text of the command line: its value, or the reason of a refusal, within limits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilemma.tools import numpy_text
from tilemma.tools.numpy_text import NotComputed, value_of

A = np.arange(12, dtype=np.float32).reshape(3, 4)
NAMES = {"a0": A, "b": A.astype(ml_dtypes.bfloat16)}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7", 7),
        ("-0.5", -0.5),
        ("2**70", 2**70),
        ("float('inf')", np.inf),
        ("[1, 2]", [1, 2]),
        ("a0 + 1", A + 1),
        ("a0.T", A.T),
        ("b", NAMES["b"]),
        ("np.int8(3)", np.int8(3)),
        ("len(a0) > 2", True),
        ("np.zeros((0, 3))", np.zeros((0, 3))),
    ],
)
def test_a_value(text: str, wanted: object) -> None:
    found = value_of(text, NAMES, 1 << 20)
    assert np.asarray(found).dtype == np.asarray(wanted).dtype
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "syntax"),
        ("(" * 300, "parentheses"),
        ("a0.__class__", "not allowed"),
        ("x", "not defined"),
        ("1/0", "division"),
        ("10**3000", "bits"),
        ("np.str_('x')", "no number"),
        ("np.array([None])", "no number"),
        ("np.ones(1 << 18)", "more than the limit"),
        ("np.ones(1 << 40)", "allocate"),
        ("[1] * 10**12", "MemoryError"),
        ("10**10**10", "more than 0.5 s"),
        ("(lambda: 1)", "no number"),
    ],
)
def test_a_refusal(text: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_text, "SECONDS", 0.5 if why == "more than 0.5 s" else 30)
    with pytest.raises(NotComputed, match=why):
        np.testing.assert_array_equal(value_of(text, NAMES, 1 << 20), "text")
