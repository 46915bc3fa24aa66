"""Arguments of a machine run: arrays that share memory, and arrays that the machine cannot take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_programs import tma

from tests.sampling import examples
from tilemma import machine
from tilemma.cli import main
from tilemma.machine.adapters.tensors import as_array
from tilemma.machine.memory import GlobalMemory
from tilemma.machine.placement import place, take_back

# y[i] = x[i] + 1 for 32 elements.
INCREMENT = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y) {
  .reg .b64 %d<4>; .reg .b32 %r<4>;
  ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; mov.u32 %r0, %tid.x; mul.wide.u32 %d2, %r0, 4;
  add.s64 %d0, %d0, %d2; add.s64 %d1, %d1, %d2; ld.global.u32 %r1, [%d0]; add.u32 %r1, %r1, 1;
  st.global.u32 [%d1], %r1; ret;
}
"""
LAUNCH = {"grid": 1, "block": 32}


def test_views_of_one_array_share_memory() -> None:
    whole = np.arange(64, dtype=np.int32)
    machine.run(INCREMENT, LAUNCH, {"x": whole[:32], "y": whole[:32].reshape(4, 8)})
    assert (whole[:32] == np.arange(1, 33)).all()
    with pytest.raises(machine.HazardError) as caught:
        machine.run(INCREMENT, LAUNCH, {"x": whole[:32], "y": whole[1:33]})
    assert caught.value.code == "race" and "`x and y`" in caught.value.message


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(1, 3)), min_size=1, max_size=5),
    st.data(),
)
def test_placed_arrays_keep_their_elements_and_distances(views: list[tuple[int, int, int]], data: Any) -> None:
    whole = np.arange(100, dtype=np.int16)
    arrays = {f"a{i}": whole[start : start + n * step : step] for i, (start, n, step) in enumerate(views)}
    placed = place(GlobalMemory(), arrays, {})
    before = {name: a.copy() for name, a in arrays.items()}
    for name, array in arrays.items():
        assert (placed[name].elements(array).view(np.int16) == before[name]).all()
        for other in arrays:
            if array.size and placed[name].allocation is placed[other].allocation:
                apart = arrays[other].__array_interface__["data"][0] - array.__array_interface__["data"][0]
                assert placed[other].address - placed[name].address == apart
            elif array.size:
                assert not np.shares_memory(array, arrays[other])
        holes = placed[name].allocation.holes
        inside = placed[name].start + np.arange(len(array)) * (array.strides[0] if array.size else 0)
        assert holes is None or not holes[inside].any()
    chosen = data.draw(st.sampled_from(sorted(arrays)))
    placed[chosen].elements(arrays[chosen])[...] = 7
    for name, array in arrays.items():
        take_back(placed[name], array)
    assert (arrays[chosen] == 7).all()


def masked() -> Any:
    return np.ma.masked_less(np.zeros(32, np.int32), 0)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros(32, ">i4"), "byte order"),
        (masked(), "mask"),
        (machine.Struct(None), "dict by offset"),  # type: ignore[arg-type]
        ([0] * 32, "a NumPy array"),
        (None, "a NumPy array"),
        (np.zeros(32, complex), "elements of"),
    ],
    ids=str,
)
def test_what_is_no_plain_array_is_refused(x: Any, said: str) -> None:
    with pytest.raises(machine.BadMachineCall) as caught:
        machine.run(INCREMENT, LAUNCH, {"x": x, "y": np.zeros(32, np.int32)})
    assert said in caught.value.render()


def test_an_array_that_numpy_does_not_let_write_is_not_written() -> None:
    y = np.zeros(32, np.int32)
    y.flags.writeable = False
    with pytest.raises(machine.HazardError) as caught:
        machine.run(INCREMENT, LAUNCH, {"x": np.zeros(32, np.int32), "y": y})
    assert caught.value.code == "write-to-read-only"


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float32", "bool", "int64"])
def test_tensors_are_seen_in_place(name: str) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    tensor = torch.arange(2).to(getattr(torch, name)).requires_grad_(name == "float32")
    array = as_array("x", tensor)
    array[0] = array[1]
    assert (tensor == 1).all()
    for wrong in (tensor.to("meta"), tensor.detach().to_sparse() if name == "float32" else [1]):
        with pytest.raises(machine.BadMachineCall):
            as_array("x", wrong)


def test_the_command_line_describes_a_launch_with_tensor_maps_in_clusters(tmp_path: Path) -> None:
    ptx, launch, args = tma(cluster=2)
    a = args["pa"].array
    np.save(tmp_path / "a.npy", a)
    (tmp_path / "k.ptx").write_text(ptx)
    options = [
        "--grid", "2", "--block", "256", "--cluster", "2", "--shared", str(launch["shared"]), "--schedules", "2",
        "--arg", f"tma(f16[128,256]={tmp_path}/a.npy, box=64x64, swizzle=128)",
        "--arg", "tma(f16[64,256]=random, box=64x32, swizzle=128)",
        "--arg", "tma(f16[128,64]=out, box=64x64)", "--arg", "s32=256",
        "--expect", "a2=a0.astype(np.float32) @ a1.astype(np.float32).T", "--json",
    ]  # fmt: skip
    result = CliRunner().invoke(main, ["check", str(tmp_path / "k.ptx"), *options])
    outcome = json.loads(result.output)
    assert result.exit_code == 0 and outcome["ok"] and outcome["compared"] == 8192 and not outcome["notes"]
    alone = ["1" if o == "2" and options[i - 1] in ("--grid", "--cluster") else o for i, o in enumerate(options)]
    refused = CliRunner().invoke(main, ["check", str(tmp_path / "k.ptx"), *alone])
    assert refused.exit_code == 2 and "reqnctapercluster" in refused.output


@pytest.mark.parametrize("x", [np.array(["a"] * 32), np.zeros(32, "M8[s]"), np.zeros(32, "m8[s]")])
def test_arrays_of_no_numbers_are_refused(x: Any) -> None:
    with pytest.raises(machine.BadMachineCall, match="holds"):
        machine.run(INCREMENT, LAUNCH, {"x": x, "y": np.zeros(32, np.int32)})


def test_a_name_in_read_only_that_no_array_has_is_refused() -> None:
    args = {"x": np.zeros(32, np.int32), "y": np.zeros(32, np.int32)}
    with pytest.raises(machine.BadMachineCall, match="`read_only` names `z`"):
        machine.run(INCREMENT, {**LAUNCH, "read_only": ["x", "z"]}, args)
    machine.run(INCREMENT, {**LAUNCH, "read_only": ["x"]}, args)


@pytest.mark.parametrize("lane", [((1, 0, 0), 0, 0), ((0, 0, 0), 1, 0), ((0, 0, 0), 0, 32), ((-1, 0, 0), 0, 0)])
def test_a_lane_that_the_launch_does_not_have_is_not_recorded(lane: Any) -> None:
    args = {"x": np.zeros(32, np.int32), "y": np.zeros(32, np.int32)}
    with pytest.raises(machine.BadMachineCall, match="there is no"):
        machine.record(INCREMENT, LAUNCH, args, lanes=[lane])


def test_one_number_is_the_cta_along_x() -> None:
    args = {"x": np.zeros(32, np.int32), "y": np.zeros(32, np.int32)}
    store = INCREMENT[: INCREMENT.index("st.global")].count("\n") + 1
    assert machine.inspect(INCREMENT, LAUNCH, args, store, cta=0).cta == (0, 0, 0)  # type: ignore[arg-type]
    assert machine.record(INCREMENT, LAUNCH, args, lanes=[(0, 0, 3)]).trace((0, 0, 0), 0, 3)  # type: ignore[list-item]


@pytest.mark.parametrize(("where", "said"), [({"warp": 1}, "warp 1"), ({"cta": (1, 0, 0)}, "CTA")])
def test_a_warp_that_the_launch_does_not_have_is_not_inspected(where: dict[str, Any], said: str) -> None:
    args = {"x": np.zeros(32, np.int32), "y": np.zeros(32, np.int32)}
    store = INCREMENT[: INCREMENT.index("st.global")].count("\n") + 1
    with pytest.raises(machine.BadMachineCall, match=said) as refused:
        machine.inspect(INCREMENT, LAUNCH, args, store, **where)
    assert "correct it" in refused.value.render()


def test_a_register_of_a_run_without_lanes() -> None:
    args = {"x": np.zeros(32, np.int32), "y": np.zeros(32, np.int32)}
    with pytest.raises(machine.BadMachineCall, match="no lane was recorded"):
        machine.record(INCREMENT, LAUNCH, args).register("%a", ((0, 0, 0), 0, 3), 5)


@pytest.mark.parametrize("arch", ["sm_12", "sm_85", "sm_80a", "sm_130", "90"])
def test_a_target_that_does_not_exist(arch: str) -> None:
    args = {"x": np.zeros(32, np.int32), "y": np.zeros(32, np.int32)}
    with pytest.raises(machine.BadMachineCall, match="the target is"):
        machine.run(INCREMENT, LAUNCH, args, arch=arch)
