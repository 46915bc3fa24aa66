"""The reference executor and the PTX machine multiply tiles in one thread, and give NumPy its threads back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilemma import blas
from tilemma.machine import limits
from tilemma.modules import load
from tilemma.targets.cpu import contraction

FILE = Path(__file__).resolve().parents[1] / "examples" / "co" / "matmul_wmma.co"


@pytest.fixture
def threads() -> Iterator[Any]:
    """The function that gets the number of threads, which is 2 before."""
    controls = blas._controls()
    if controls is None:
        pytest.skip("NumPy has brought no OpenBLAS")
    get, put = controls
    before = get()
    put(2)
    if get() != 2:
        pytest.skip("this OpenBLAS has one thread")
    yield get
    put(before)


def test_threads_are_given_back(threads: Any) -> None:
    with pytest.raises(ZeroDivisionError), blas.one_blas_thread():
        with blas.one_blas_thread():
            assert threads() == 1
        assert threads() == 1
        raise ZeroDivisionError
    assert threads() == 2


@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_products_run_in_one_thread(threads: Any, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(module: Any, name: str) -> None:
        own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: (seen.append(threads()), own(*a, **k))[1])

    watched(contraction, "product")
    # The machine calls it when it starts.
    watched(limits, "cluster_order")
    ones, result = np.ones((16, 16), np.float16), np.zeros((16, 16), np.float16)
    load(FILE).only().on(target)(ones, ones, result)
    assert (result == 16).all() and threads() == 2
    assert set(seen) == {1}
