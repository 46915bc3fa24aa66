from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_driver import FakeDriver

from tilemma.runtime import cudadriver


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    recorder = FakeDriver()
    with cudadriver.using(recorder):
        yield recorder
