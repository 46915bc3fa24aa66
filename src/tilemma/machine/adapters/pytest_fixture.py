"""A pytest fixture: launches of `@triton.jit` kernels run on the PTX machine.

In ``conftest.py``::

    pytest_plugins = ["tilemma.machine.adapters.pytest_fixture"]

A test that takes ``triton_machine`` then needs no GPU: every `kernel[grid](...)` in it runs on the machine, on
NumPy arrays or CPU tensors, and a hazard fails the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tilemma.machine.adapters.triton import Settings, autotuner_and_function, launch
from tilemma.machine.run import Verdict


@dataclass
class TritonMachine(Settings):
    """Settings of the launches that follow, and the verdicts of those before."""

    verdicts: list[Verdict] = field(default_factory=list)


@pytest.fixture
def triton_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[TritonMachine]:
    """Run the launches of a test on the PTX machine; ``triton_machine.schedules = 20`` makes a thorough check."""
    settings = TritonMachine()
    autotuner, function = autotuner_and_function()
    inner = function.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if warmup:
            return inner(self, *args, grid=grid, warmup=True, **kwargs)
        settings.verdicts.append(launch(self, grid, args, kwargs, settings))
        return None

    monkeypatch.setattr(function, "run", run)
    monkeypatch.setattr(autotuner, "run", run)
    yield settings
