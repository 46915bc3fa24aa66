"""The pipeline examples with other stages, consumers and tiles: right everywhere, nothing found by the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_runs import check, problem

from tilemma.compiler import default_facts, with_facts
from tilemma.kernels import load_python

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "py"


def example(name: str, **constants):
    kernel = load_python(EXAMPLES / f"{name}.py").only().source.build(constants)
    return with_facts(kernel, default_facts(kernel))


NIGHTLY = [pytest.param(s, c, marks=pytest.mark.slow) for s, c in ((2, 2), (2, 3), (3, 1), (3, 3), (4, 1), (4, 2))]


@pytest.mark.parametrize(("stages", "consumers"), [(2, 1), (3, 2), (4, 3), *NIGHTLY])
def test_warp_specialised(stages, consumers):
    kernel = example("warp_specialized", STAGES=stages, CONSUMERS=consumers, TILE_N=128)
    check(kernel, "sm_90a", (136, 136, 328))


@pytest.mark.parametrize(("stages", "consumers"), [(2, 1), (3, 2), (4, 3)])
def test_persistent(stages, consumers):
    settings = {"STAGES": stages, "CONSUMERS": consumers, "TILE_N": 128, "GRID": 2, "RASTER": 2}
    check(example("persistent", **settings), "sm_90a", (264, 136, 136))


def test_persistent_in_bf16():
    check(example("persistent", T="bf16", GRID=2), "sm_90a", (136, 264, 72), seeds=(0,))


@pytest.mark.parametrize(("stages", "cluster"), [(2, 2), (4, 2), (3, 4)])
def test_multicast(stages, cluster):
    settings = {"STAGES": stages, "CLUSTER": cluster, "TILE_N": 128, "GRID": 1}
    check(example("multicast", **settings), "sm_90a", (264, 136, 136))


@pytest.mark.parametrize(("stages", "cluster"), [(2, 1), (3, 2)])
def test_pingpong(stages, cluster):
    settings = {"STAGES": stages, "CLUSTER": cluster, "TILE_N": 128, "GRID": 1}
    compiled = check(example("pingpong", **settings), "sm_90a", (200, 264, 136))
    assert any(d.warning and d.pass_name == "events" for d in compiled.decisions)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(
    ("name", "arch"), [("tma_pipeline", "sm_90a"), ("event_pipeline", "sm_90a"), ("event_pipeline", "sm_80")]
)
def test_pipelines(name, arch, stages):
    check(example(name, STAGES=stages), arch, (130, 136, 328))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_double_buffer(arch):
    check(example("double_buffer"), arch, (130, 264, 200), seeds=(0,))


@pytest.mark.parametrize("shape", [(8, 8, 8), (64, 8, 1024), (1, 16, 16), (24, 16, 0)], ids=str)
@pytest.mark.parametrize("name", ["warp_specialized", "tma_pipeline", "event_pipeline"])
def test_small_shapes(name, shape):
    check(example(name), "sm_90a", shape, seeds=(0,))


def test_the_bound_notices_a_missing_tile():
    """A kernel that leaves out the last tile along K is caught."""
    kernel = example("tma_pipeline")
    arrays, want = problem(kernel, (64, 64, 128))
    from pipeline_runs import close

    short = arrays["lhs"][:, :64].astype(float) @ arrays["rhs"][:, :64].astype(float).T
    assert not close(short.astype(arrays["output"].dtype), want)
