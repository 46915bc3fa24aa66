"""A `.co` kernel known from an earlier process: the same names, calls and PTX, without the front end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilemma as tm
from tilemma.errors import CompileError
from tilemma.ir.tile import ArrayFacts

TEXT = """
#define N 8
__co__ auto twice(global f32 [M, N] a, int n) {
  global f32 [M, N] b;
  assert(n > 0, "n is positive");
  parallel i by M : block, j by N : thread
    b.at(i, j) = a.at(i, j) * 2.0f;
  return b;
}
int main() { return 0; }
"""
SHOW = """
import json, sys
import tilemma as tm
from tilemma.ir.tile import ArrayFacts
module = tm.load(sys.argv[1], json.loads(sys.argv[2]))
kernel = module.twice
facts = {a.name: ArrayFacts(1, 16) for a in kernel.signature().plan.arrays}
ready = kernel.ready("sm_90a", facts)
front = "tilemma.croqtile" in sys.modules
plan = kernel.signature().plan.to_json()
notes = [n.to_json() for n in module.notes]
print(json.dumps([front, plan, dict(kernel.source.constants), notes, ready.ptx, ready.launches[0].to_json()]))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))
    return tmp_path


def _process(file: Path, defines: dict[str, object] | None = None) -> list[object]:
    command = [sys.executable, "-c", SHOW, str(file), json.dumps(defines or {})]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert run.returncode == 0, run.stderr
    found: list[object] = json.loads(run.stdout)
    return found


def test_the_second_process_needs_no_front_end(cache: Path) -> None:
    file = cache / "twice.co"
    file.write_text(TEXT)
    first, second = _process(file), _process(file)
    assert (first[0], second[0]) == (True, False)
    assert first[1:] == second[1:]
    assert first[2] == {"N": 8} and first[3]


def test_text_and_definitions_are_the_key(cache: Path) -> None:
    file = cache / "twice.co"
    file.write_text(TEXT)
    _process(file)
    other = _process(file, {"N": 16})
    assert other[0] and other[2] == {"N": 16}
    file.write_text(TEXT.replace("2.0f", "3.0f"))
    changed = _process(file)
    assert changed[0] and changed[4] != other[4]


def test_calls_bind_as_before(cache: Path) -> None:
    file = cache / "twice.co"
    file.write_text(TEXT)
    a = np.arange(24, dtype=np.float32).reshape(3, 8)
    for _ in range(2):
        kernel = tm.load(file).twice
        np.testing.assert_array_equal(kernel(a, 1), a * 2)
        with pytest.raises(tm.LaunchError, match="n is positive"):
            kernel(a, 0)


def test_constants_of_a_call_are_part_of_the_key(cache: Path) -> None:
    file = cache / "twice.co"
    file.write_text(TEXT)
    for _ in range(2):
        kernel = tm.load(file).twice
        shapes = [kernel.signature(**c).plan.arrays[0].dims for c in ({}, {"N": 16})]
        assert shapes == [("M", 8), ("M", 16)]
        facts = {"a": ArrayFacts(1, 16), "b": ArrayFacts(1, 16)}
        assert kernel.ready("sm_80", facts).ptx != kernel.ready("sm_80", facts, N=16).ptx


def test_errors_are_found_again(cache: Path) -> None:
    file = cache / "twice.co"
    file.write_text(TEXT.replace("return b;", "return b"))
    for _ in range(2):
        with pytest.raises(CompileError, match="statement that does not end"):
            tm.load(file)
