from __future__ import annotations

import pytest

from tilemma.targets.ptx.target import Target, UnknownArch, targets


@pytest.mark.parametrize("arch", targets())
def test_a_block_leaves_a_kilobyte_of_the_multiprocessor(arch):
    # CUDA C++ Programming Guide, "Shared Memory": one kilobyte is reserved for each block.
    t = Target.of(arch)
    reserved = 1024 if t.number >= 80 else 0
    assert t.arch == arch and t.shared_limit == t.shared_per_sm - reserved


def test_only_the_a_target_has_wgmma():
    assert [t for t in targets() if Target.of(t).wgmma] == ["sm_90a"]


def test_unknown_names_get_the_nearest():
    with pytest.raises(UnknownArch) as caught:
        Target.of("sm_90b")
    assert "sm_90" in caught.value.remedy


@pytest.mark.parametrize(
    ("said", "meant"),
    [("sm_70", "sm_75"), ("90", "sm_90"), ("8.9", "sm_89"), ("compute_80", "sm_80"), ("H200", "sm_90a")],
)
def test_other_names_of_a_target_are_answered_with_its_own(said: str, meant: str) -> None:
    with pytest.raises(UnknownArch) as caught:
        Target.of(said)
    assert caught.value.remedy == f"did you mean `{meant}`?"
