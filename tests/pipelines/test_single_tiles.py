"""Variants of a pipelined kernel for launches with one tile along the index in which blocks of clusters differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilemma as tm
from dev.gallery import ENTRIES
from dev.gallery import kernel as gallery_kernel
from tilemma.compiler import Compiled
from tilemma.errors import LaunchError
from tilemma.kernels import Kernel, _for_grid, facts_of
from tilemma.modules import load_python

(PLAIN,) = load_python(Path(__file__).resolve().parents[2] / "examples" / "py" / "plain.py").kernels.values()


def arguments(m: int, n: int, k: int) -> dict[str, Any]:
    """Small integers, whose products are exact."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (rows, k)).astype(np.float16) for rows in (m, n))
    return {"lhs": a, "rhs": b, "output": np.full((m, n), 7, np.float16)}


def launched(kernel: Kernel, m: int, n: int, k: int) -> Compiled:
    """What a launch of these sizes runs."""
    facts, sizes = facts_of(arguments(m, n, k)), {"M": m, "N": n, "K": k}
    return _for_grid(lambda variant: kernel.compile("sm_90a", facts=facts, sizes=sizes, variant=variant), sizes)


def clustered(compiled: Compiled) -> str | None:
    """The index in which the blocks of a cluster differ; None without clusters."""
    (launch,) = compiled.launches
    assert (launch.cluster is None) == (launch.clustered is None)
    return None if launch.clustered is None else launch.clustered[0]


@pytest.mark.parametrize(
    ("rows", "columns", "index"),
    [(300, 520, "block_m"), (129, 256, "block_m"), (128, 520, "block_n"), (1, 257, "block_n"), (128, 256, None)],
)
def test_clusters_along_an_index_of_several_tiles(rows: int, columns: int, index: str | None) -> None:
    assert clustered(launched(PLAIN, rows, columns, 200)) == index


@pytest.mark.parametrize("shape", [(72, 520, 200), (72, 136, 72)])
def test_results_of_variants(shape: tuple[int, int, int]) -> None:
    given = arguments(*shape)
    report = PLAIN.on("machine", strict=True)(**given)
    assert report is None or report.ok
    a, b = (given[x].astype(np.float64) for x in ("lhs", "rhs"))
    np.testing.assert_array_equal(given["output"].astype(np.float64), a @ b.T)


def test_the_plan_says_so() -> None:
    texts = [d.text for d in launched(PLAIN, 300, 520, 200).decisions]
    assert any("clusters of 2 (another variant where `block_m` has one tile)" in x for x in texts), texts


def test_a_stated_cluster_stays() -> None:
    kernel = tm.kernel(pipeline=tm.Pipeline(cluster=2))(PLAIN.__wrapped__)
    (launch,) = launched(kernel, 72, 520, 200).launches
    assert launch.cluster == (2, 1, 1) and launch.clustered is None


def test_a_variant_refuses_more_tiles() -> None:
    compiled = PLAIN.compile("sm_90a", variant=("block_m",))
    (launch,) = compiled.launches
    with pytest.raises(LaunchError, match="one tile along `block_m`"):
        tm.machine.run(compiled.ptx, launch, arguments(300, 520, 72))


@pytest.mark.parametrize("name", ENTRIES)
def test_every_kernel_has_its_variants(name: str) -> None:
    sizes, single = ENTRIES[name].example, ()
    while True:
        compiled = gallery_kernel(name).compile("sm_90a", sizes=sizes, variant=single)
        assert compiled.ptx
        more = {index for launch in compiled.launches for index in (launch.clustered or ())[:1]}
        if more <= {*single}:
            break
        single += tuple(sorted(more))
