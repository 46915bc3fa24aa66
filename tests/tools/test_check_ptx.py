"""`tilemma check k.ptx`: arguments, expectations, exit status, JSON."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tilemma.cli import main
from tilemma.tools import check_ptx

ROOT = Path(__file__).resolve().parents[2]
BROKEN = ROOT / "examples" / "ptx" / "block_sum.ptx"
LAUNCH = ("--grid", "4", "--block", "256", "--schedules", "3")
ARGS = ("--arg", "f32[1024]=random", "--arg", "f32[4]=out")
SUMS = ("--expect", "a1=a0.reshape(4, 256).sum(1)")


@pytest.fixture
def fixed(tmp_path: Path) -> str:
    path = tmp_path / "sum.ptx"
    path.write_text(BROKEN.read_text().replace("  @%p1 bra NEXT;\n", ""))
    return str(path)


def check(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["check", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_a_sound_kernel_is_clean_and_as_expected(fixed: str) -> None:
    status, text = check(fixed, *LAUNCH, *ARGS, *SUMS)
    assert status == 0 and "no hazard, as expected" in text


def test_a_sample_of_blocks_says_that_it_is_one(fixed: str) -> None:
    status, text = check(fixed, *LAUNCH, *ARGS, "--ctas", "sample:2")
    assert status == 0 and "no hazard, 2 of 4 CTAs in each" in text
    whole, part = (
        json.loads(check(fixed, *LAUNCH, *ARGS, "--ctas", ctas, "--json")[1])["launches"][0]
        for ctas in ("all", "sample:2")
    )
    assert part["ctas"] == [2, 4] and 2 * part["instructions"] == whole["instructions"]
    for wrong in (("--ctas", "sample:0"), ("--ctas", "8"), ("--ctas", "sample:2", *SUMS)):
        status, text = check(fixed, *LAUNCH, *ARGS, *wrong)
        assert status == 2 and "error[" in text


def test_a_race_is_reported_with_the_file(tmp_path: Path) -> None:
    status, text = check(str(BROKEN), *LAUNCH, *ARGS)
    assert status == 1 and "error[race]" in text and "block_sum.ptx:32" in text


def test_json_has_what_it_has_for_other_files(fixed: str) -> None:
    status, text = check(fixed, *LAUNCH, *ARGS, *SUMS, "--json")
    outcome = json.loads(text)
    assert status == 0
    assert {"ok", "kernel", "arch", "dims", "schedules", "launches", "differences", "notes"} <= set(outcome)
    assert outcome["ok"] and outcome["kernel"] == "block_sum" and outcome["arch"] == "sm_80"


def test_a_wrong_result_is_status_1(fixed: str) -> None:
    status, text = check(fixed, *LAUNCH, *ARGS, "--expect", "a1=a0[:4] + 1", "--json")
    outcome = json.loads(text)
    assert status == 1 and not outcome["ok"]
    assert outcome["differences"][0]["array"] == "a1" and outcome["differences"][0]["count"] == 4


def test_outputs_start_poisoned_and_what_is_left_of_it_is_said(fixed: str) -> None:
    _, text = check(fixed, *LAUNCH, "--arg", "f32[1024]=random", "--arg", "f32[6]=out")
    assert "2 of 6 elements of a1 have not been written" in text


def test_values_from_files_and_numpy(fixed: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1024, dtype=np.float64))
    for value in (f"{tmp_path}/x.npy", "np.arange(1024)"):
        args = ("--arg", f"f32[1024]={value}", "--arg", "f32[4]=out")
        assert check(fixed, *LAUNCH, *args, "--expect", "a1=np.arange(1024).reshape(4, 256).sum(1)")[0] == 0


MAPPED = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 n) {
  .reg .b64 %d<8>; .reg .b32 %r<12>; .reg .pred %p<4>;
  .shared .align 128 .b8 tile[256]; .shared .align 8 .b8 bar[8];
  ld.param.u64 %d2, [out]; ld.param.u32 %r9, [n];
  mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mov.u32 %r3, bar; setp.eq.u32 %p0, %r0, 0;
  mov.b64 %d4, map; cvta.param.u64 %d4, %d4;
  @%p0 mbarrier.init.shared.b64 [%r3], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;
  @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;
  @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d4, {4, 1}], [%r3];
  W: mbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0; @!%p1 bra W;
  shl.b32 %r7, %r0, 2; add.u32 %r7, %r7, %r1; ld.shared.u32 %r8, [%r7]; add.u32 %r8, %r8, %r9;
  mul.wide.u32 %d6, %r0, 4; add.s64 %d2, %d2, %d6; st.global.u32 [%d2], %r8; ret;
}
"""


def test_tensor_maps_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "map.ptx"
    path.write_text(MAPPED)
    tensor = "tma(s32[8,16]=np.arange(128).reshape(8,16), box=4x8)"
    args = ("--arg", tensor, "--arg", "s32[32]=out", "--arg", "s32=5")
    rows = "np.concatenate([np.arange(128).reshape(8,16)[1:, 4:8].reshape(-1), np.zeros(4, int)])"
    status, text = check(
        str(path), "--grid", "1", "--block", "32", "--schedules", "2", *args, "--expect", f"a1={rows} + 5"
    )
    assert status == 0, text


WRONG: list[tuple[str, ...]] = [
    ("--grid", "4"),
    ("--block", "4"),
    ("--grid", "4", "--block", "5y"),
    (*LAUNCH, "--arg", "f33[3]=random"),
    (*LAUNCH, "--arg", "f32[1024]"),
    (*LAUNCH, "--arg", "f32[1024]=nowhere.npy"),
    (*LAUNCH, "--arg", "f32[1024]=np.zeros(7)"),
    (*LAUNCH, "--arg", "f32[1024]=np.__name__"),
    (*LAUNCH, "--arg", "f32[1024]=what"),
    (*LAUNCH, "--arg", "tma(a0, box=4)"),
    (*LAUNCH, "--arg", "f32[1024]=random", "--arg", "tma(a0, swizzle=128)"),
    (*LAUNCH, "--arg", "f32[1024]=random", "--arg", "tma(a0, box=4, other=1)"),
    (*LAUNCH, *ARGS, "--expect", "a7=1"),
    (*LAUNCH, *ARGS, "--expect", "a1=np.zeros(3)"),
    (*LAUNCH, *ARGS, "--expect", "a1=+"),
    (*LAUNCH, *ARGS, "--entry", "other"),
    (*LAUNCH, *ARGS, "--arch", "h100"),
    (*LAUNCH, *ARGS, "--cluster", "3"),
    (*LAUNCH, *ARGS, "--shared", "1000000"),
    (*LAUNCH, "--arg", "f32=1", "--arg", "s32=x"),
    (*LAUNCH,),
]


@pytest.mark.parametrize("args", WRONG, ids=[" ".join(w) for w in WRONG])
def test_wrong_arguments_are_status_2_with_a_fix(fixed: str, args: tuple[str, ...]) -> None:
    status, text = check(fixed, *args, "--json")
    error: dict[str, Any] = json.loads(text)
    assert status == 2 and not error["ok"] and error["error"]["fix"]


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "checking-other-kernels.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ tilemma (check .*?)(?<!\\)$", page, re.MULTILINE | re.DOTALL)
    assert commands
    for command in commands:
        text = command.replace("\\\n", " ")
        if "fixed.ptx" in text:
            path = tmp_path / "fixed.ptx"
            path.write_text(BROKEN.read_text().replace("  @%p1 bra NEXT;\n", ""))
            text = text.replace("fixed.ptx", str(path))
        status, output = check(*shlex.split(text)[1:])
        assert status == (0 if "fixed" in text else 1), output


def test_a_file_that_is_not_there() -> None:
    assert check("nowhere.ptx", *LAUNCH)[0] == 2


@pytest.mark.parametrize("value", ["zeros", "out", "random", "1"])
@pytest.mark.parametrize(
    "shape", ["9" * 5000, "1" + "0" * 12, "1000000,1000000,1000000", "0,1000000000000", "1," * 40]
)
def test_sizes_of_arrays_are_limited(fixed: str, shape: str, value: str) -> None:
    status, text = check(fixed, *LAUNCH, "--arg", f"f32[{shape}]={value}", "--arg", "f32[4]=out")
    assert status == 2 and "Traceback" not in text and ("the limit of" in text or "is no shape" in text)


def test_arrays_are_limited_together(fixed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilemma.tools.check_ptx.memory_limit", lambda: 4 * 5000)
    assert check(fixed, *LAUNCH, *ARGS)[0] == 0
    status, text = check(fixed, *LAUNCH, *ARGS, "--arg", "f32[250]=zeros")
    assert status == 2 and "the limit of" in text


def _headers(folder: Path) -> dict[str, Path]:
    """Files that `np.load` would wait for, unpickle, or allocate too much for."""
    made = {name: folder / f"{name}.npy" for name in ("pipe", "objects", "huge", "zip", "short", "garbage")}
    os.mkfifo(made["pipe"])
    np.save(made["objects"], np.array([None, 1], object), allow_pickle=True)
    np.save(made["short"], np.zeros(4, np.float32))
    text = made["short"].read_bytes()
    with open(made["huge"], "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (400000000000,)}
        np.lib.format.write_array_header_1_0(file, header)
    made["syntax"] = folder / "syntax.npy"
    made["syntax"].write_bytes(text.replace(b"(4,), }", b"(4,)   "))
    with open(made["zip"], "wb") as file:
        np.savez(file, a=np.zeros(4))
    made["short"].write_bytes(text[:-4])
    made["garbage"].write_bytes(bytes(range(256)))
    (folder / "device.npy").symlink_to("/dev/zero")
    (folder / "sparse.npy").write_bytes(text)
    os.truncate(folder / "sparse.npy", 1 << 40)
    return made | {"device": folder / "device.npy", "sparse": folder / "sparse.npy", "folder": folder / "x.npy"}


def test_files_of_arrays_are_regular_and_bounded(fixed: str, tmp_path: Path) -> None:
    (tmp_path / "x.npy").mkdir()
    for path in _headers(tmp_path).values():
        status, text = check(fixed, *LAUNCH, "--arg", f"f32[4]={path}", "--arg", "f32[4]=out")
        assert status == 2 and "name a file that np.save has written" in text, (path, text)


@pytest.mark.parametrize("order", ["C", "F"])
def test_saved_arrays_are_read_as_numpy_reads_them(tmp_path: Path, order: Any) -> None:
    for array in (np.arange(12, dtype=">i4").reshape(3, 4), np.float16(3), np.zeros((0, 5)), np.arange(3) > 1):
        np.save(tmp_path / "a.npy", np.asarray(array, order=order))
        found = check_ptx._saved("", str(tmp_path / "a.npy"))
        wanted = np.load(tmp_path / "a.npy")
        assert found.dtype == wanted.dtype and found.shape == wanted.shape and (found == wanted).all()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--grid", "0"], "a grid without blocks executes nothing"),
        (["--grid", "2x0"], "a grid without blocks executes nothing"),
        (["--grid", "4", "--writer", "a1[99]"], "the index [99] of `a1`"),
    ],
)
def test_what_cannot_be_checked_is_refused(option: list[str], said: str) -> None:
    file = Path(__file__).resolve().parents[2] / "examples" / "ptx" / "block_sum.ptx"
    arrays = ["--arg", "f32[1024]=random", "--arg", "f32[4]=out", "--schedules", "1"]
    found = CliRunner().invoke(main, ["check", str(file), "--block", "256", *option, *arrays])
    assert found.exit_code == 2 and said in found.output
