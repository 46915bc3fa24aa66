"""Memory that kernels find zero: which launches share it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from tests.runtime.fake_driver import FakeDriver
from tilemma.runtime import cuda_device, zeroed
from tilemma.runtime.counters import CHUNK
from tilemma.runtime.cudadriver import PER_THREAD, using


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    made = FakeDriver()
    with using(made):
        yield made


def test_launches_on_one_stream_share(fake: FakeDriver) -> None:
    device = cuda_device(0)
    assert zeroed(device, 7, 64) == zeroed(device, 7, 32)
    assert fake.count("allocate_zeroed") == 1


def ranges(parts: list[tuple[int, int]]) -> bool:
    """Whether the parts (address, size) are disjoint."""
    ordered = sorted(parts)
    return all(a + size <= b for (a, size), (b, _) in pairwise(ordered))


def test_streams_devices_and_larger_launches_do_not(fake: FakeDriver) -> None:
    sizes = (8, 4096, 2 * CHUNK, 100)
    parts = [(zeroed(cuda_device(d), s, n), n) for d in (0, 1) for s in (0, 5, 6) for n in sizes[:3]]
    assert ranges(parts)
    assert zeroed(cuda_device(1), 6, 100) == parts[-1][0]


def test_launches_in_graphs_share_with_none(fake: FakeDriver) -> None:
    device = cuda_device(0)
    parts = [(zeroed(device, 7, 64), 64)]
    fake.capturing.add(7)
    parts += [(zeroed(device, 7, 64), 64) for _ in range(CHUNK // 256)]
    assert ranges(parts)
    fake.capturing.clear()
    assert zeroed(device, 7, 64) == parts[0][0]


def test_the_default_streams_of_threads_are_different_streams(fake: FakeDriver) -> None:
    device = cuda_device(0)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(zeroed, device, PER_THREAD, 64).result()
    assert zeroed(device, PER_THREAD, 64) != other
