"""`tilemma explain --shape`: how full the last round of blocks is, and tiles that fill it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tilemma as tm
from tilemma.cli import main
from tilemma.tools.better_tiles import better_tiles
from tilemma.tools.rounds import Rounds, rounds

CO = Path(__file__).resolve().parents[2] / "examples" / "co"
SIZES = ({"M": 5120, "N": 5120, "K": 5120}, {"M": 4096, "N": 4096, "K": 4096})


def explained(*options: str) -> Any:
    return CliRunner().invoke(main, ["explain", str(CO / "plain.co"), *options])


@pytest.mark.parametrize("tiles", [1, 131, 132, 133, 264, 800])
def test_the_last_round(tiles: int) -> None:
    found = Rounds("f", tiles, 132, persistent=True)
    assert 132 * (found.rounds - 1) + found.last == tiles and 0 < found.last <= 132
    assert found.used == pytest.approx(tiles / (132 * found.rounds))
    assert f"last round: {found.last} of 132 blocks" in str(found)


def test_persistent_blocks_in_clusters_of_the_compiler_and_of_the_program() -> None:
    for name in ("plain", "persistent"):
        compiled = tm.load(CO / f"{name}.co").only().compile("sm_90a")
        many, full = (rounds(compiled, sizes)[0] for sizes in SIZES)
        assert (many.tiles, many.at_once, many.last, many.persistent) == (800, 132, 8, True)
        assert (full.tiles, full.last) == (512, 116)


def test_blocks_that_share_a_multiprocessor() -> None:
    """As many as registers, threads and shared memory allow: two of 100 KB, and 32 at most of one warp."""
    text = """
    __co__ void f(global f32 [M, 32] x) {
      parallel i by M : block {
        shared f32 [SIZE] s;
        parallel t by 32 : thread { s.at(t) = x.at(i, t); }
        parallel t by 32 : thread { x.at(i, t) = s.at(31 - t); }
      }
    }
    """
    for size, blocks in ((25_000, 2), (32, 32)):
        compiled = tm.loads(text, defines={"SIZE": size}).only().compile("sm_90a")
        (found,) = rounds(compiled, {"M": 132 * blocks + 1})
        assert (found.at_once, found.last, found.persistent) == (132 * blocks, 1, False)
    assert rounds(compiled, {}) == [] and rounds(compiled, {"M": 0}) == []


@pytest.mark.parametrize("name", ["plain", "double_buffer"])
def test_proposals_fill_the_last_round(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They compute the same: a tile of twice the rows needs warpgroups of twice the rows, too."""
    monkeypatch.setattr("tilemma.tools.better_tiles._LONGEST", 600.0)
    kernel = tm.load(CO / f"{name}.co").only()
    first = rounds(kernel.compile("sm_90a"), SIZES[0])[0]
    found = better_tiles(kernel, {}, "sm_90a", SIZES[0], {})
    assert found
    for proposal in found:
        again = rounds(kernel.compile("sm_90a", **proposal.constants), SIZES[0])[0]
        assert again == proposal.rounds and again.used > first.used
        assert "TILE_M" not in proposal.constants or "WARP_M" in proposal.constants
    assert better_tiles(kernel, {}, "sm_90a", SIZES[1], {}) == []


def test_the_command() -> None:
    shape = ",".join(f"{name}={n}" for name, n in SIZES[0].items())
    text = explained("--shape", shape)
    data = json.loads(explained("--shape", shape, "--json").stdout)
    assert text.exit_code == 0 and "last round: 8 of 132 blocks" in text.stdout
    assert [x["text"] for x in (*data["rounds"], *data["better_tiles"])] == [
        line.strip().removeprefix("rounds: ") for line in text.stdout.splitlines() if "rounds" in line
    ]
    assert data["rounds"][0]["last"] == 8 and data["better_tiles"][0]["constants"]


def test_without_sizes_the_command_names_the_option() -> None:
    found = explained()
    assert found.exit_code == 0 and "`--shape M=...,K=...,N=...` says how full the last round" in found.stdout


@pytest.mark.parametrize(
    "shape", ["M=5120", "M=1,N=1,K=1,X=1", "M=-1,N=1,K=1", "M", "M=a,N=1,K=1", "M=2147483648,N=1,K=1"]
)
def test_wrong_sizes_are_refused(shape: str) -> None:
    found = explained("--shape", shape)
    assert found.exit_code == 2 and f"--shape {shape}" in found.output


def test_scalars_are_read_without_sizes_too() -> None:
    found = explained("--arg", "x=3")
    assert found.exit_code == 2 and "plain has no scalar parameter `x`" in found.output
