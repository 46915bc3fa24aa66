"""The pipeline examples with other stages, consumers and tiles: right on every target, without hazards."""

from __future__ import annotations

from pathlib import Path

import pytest
from configurations import CONFIGURATIONS, EXAMPLES, Configuration
from pipeline_runs import check, close, problem

from tilemma.compiler import default_facts, with_facts
from tilemma.ir.canonical import canonical
from tilemma.modules import load_python


def example(name: str, **constants):
    kernel = load_python(EXAMPLES / "py" / f"{name}.py").only().source.build(constants)
    return with_facts(kernel, default_facts(kernel))


# The sample of `make test`: every example, every number of stages, every number of consumers.
DAILY = {
    ("warp_specialized", 2, 1), ("warp_specialized", 3, 2), ("warp_specialized", 4, 3),
    ("persistent", 2, 1), ("persistent", 3, 2), ("persistent", 4, 3),
}  # fmt: skip


BY_LANE = """
                            for lane in parallel(128, level="thread"):
                                trigger(empty.at(order), cluster=True)"""


def case(c: Configuration, arch: str):
    stages = c.settings.get("STAGES")
    nightly = "CONSUMERS" in c.settings and (c.name, stages, c.settings["CONSUMERS"]) not in DAILY
    nightly = nightly or ((c.name, arch) == ("event_pipeline", "sm_80") and stages != 3)
    return pytest.param(c, arch, id=f"{c}-{arch}", marks=[pytest.mark.slow] if nightly else [])


@pytest.mark.parametrize(("configuration", "arch"), [case(c, arch) for c in CONFIGURATIONS for arch in c.archs])
def test_configuration(configuration: Configuration, arch: str):
    """Ragged along M, N and K."""
    wide = configuration.name in ("double_buffer", "multistage")
    shape = (130, 136, 200) if wide else (264, 136, 200) if "GRID" in configuration.settings else (136, 72, 328)
    compiled = check(example(configuration.name, **configuration.settings), arch, shape)
    warned = any(d.warning and d.pass_name == "events" for d in compiled.decisions)
    assert warned == (configuration.name == "pingpong")


@pytest.mark.parametrize("configuration", [c for c in CONFIGURATIONS if len(c.languages) > 1], ids=str)
def test_both_languages_say_the_same(configuration: Configuration):
    py, co = (configuration.kernel(x).source.build(configuration.constants(x)) for x in ("py", "co"))
    assert canonical(py) == canonical(co)


@pytest.mark.parametrize("triggers", ["trigger(empty.at(order), cluster=True)", BY_LANE], ids=["whole", "lanes"])
def test_threads_counted_across_a_cluster(tmp_path: Path, triggers: str):
    """`event<n>` counts the threads of one block; a trigger of the cluster has as many arrivals from each block.
    Those of a whole warpgroup arrive as one."""
    text = (EXAMPLES / "py" / "pingpong.py").read_text()
    counted = tmp_path / "counted.py"
    counted.write_text(text.replace("trigger(empty.at(order), cluster=True)", triggers))
    settings = {"STAGES": 2, "TILE_N": 128, "GRID": 1}
    kernel = load_python(counted).only().source.build(settings)
    compiled = check(with_facts(kernel, default_facts(kernel)), "sm_90a", (264, 136, 200))
    (empty,) = [d for d in compiled.decisions if (d.pass_name, d.subject) == ("events", "empty")]
    assert empty.data["arrivals"] == 2 * (128 if triggers == BY_LANE else 1)


def test_a_cluster_of_one_is_a_block():
    """Nothing of clusters is left, and what its blocks compute is right."""
    kernel = example("persistent", CLUSTER=1, STAGES=2, TILE_N=64, GRID=2, RASTER=2)
    compiled = check(kernel, "sm_90a", (264, 72, 200), seeds=(0,))
    assert compiled.launches[0].cluster is None
    assert ".multicast" not in compiled.ptx and "barrier.cluster" not in compiled.ptx


@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 0, 8), (136, 264, 0), (8, 8, 8)], ids=str)
def test_persistent_on_small_shapes(shape):
    check(example("persistent"), "sm_90a", shape, seeds=(0,))


def test_persistent_in_bf16():
    check(example("persistent", T="bf16", GRID=2), "sm_90a", (136, 264, 72), seeds=(0,))


@pytest.mark.parametrize("shape", [(8, 8, 8), (64, 8, 1024), (1, 16, 16), (24, 16, 0)], ids=str)
@pytest.mark.parametrize("name", ["warp_specialized", "tma_pipeline", "event_pipeline"])
def test_small_shapes(name, shape):
    check(example(name), "sm_90a", shape, seeds=(0,))


def test_the_bound_notices_a_missing_tile():
    """A kernel that leaves out the last tile along K is caught."""
    kernel = example("tma_pipeline")
    arrays, want = problem(kernel, (64, 64, 128))
    short = arrays["lhs"][:, :64].astype(float) @ arrays["rhs"][:, :64].astype(float).T
    assert not close(short.astype(arrays["output"].dtype), want)
