"""`tilemma check` without `--shape`: sizes and inputs that a kernel's own assertions and subscripts accept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dev.gallery.entries import ENTRIES
from tilemma import croqtile
from tilemma.kernels import Kernel
from tilemma.modules import load, load_python
from tilemma.tools import check, sizes
from tilemma.tools.check import NoSizes, check_kernel
from tilemma.tools.conditions import failing
from tilemma.tools.problem import dimensions, make_problem
from tilemma.tools.sizes import _candidates, _counted
from tilemma.tools.steering import metadata, scattering, steering

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(
    f for folder in ("co", "gallery", "py") for f in (EXAMPLES / folder).glob("*.*") if f.suffix in (".co", ".py")
)

GATHER = """
__co__ void gather(global f32 [N] x, global s32 [M] places, global f32 [M] y) {
  parallel {b} by [cdiv(M, 32)] : block
    parallel {i} by [32] : thread
      if (b # i < M) {
        int place = places.at(b # i);
        assert(place < N, "inside x");
        y.at(b # i) = x.at(place);
      }
}
"""


def only(text: str) -> Kernel:
    (source,) = croqtile.load(text, "case.co").sources.values()
    return Kernel(source)


def kernels(file: Path) -> list[Kernel]:
    module = load_python(file) if file.suffix == ".py" else load(file, {})
    return list(module.kernels.values())


RELATED = """
__co__ void related(global f32 [M, K] x, global f32 [K2, M] y) {
  assert(cdiv(K, 2) == K2 && M % 32 == 0, "two of K a row");
  parallel {b} by [cdiv(M, 32)] : block
    parallel {i} by [32] : thread
      foreach k in [K2] y.at(k, b # i) = x.at(b # i, 2 * k);
}
"""


def constants(file: Path) -> dict[str, Any]:
    return (
        dict(ENTRIES[file.stem].problem("small").constants)
        if file.suffix == ".py" and file.stem in ENTRIES
        else {}
    )


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}-{f.name}")
def test_examples(file: Path) -> None:
    """The sizes keep the kernel's assertions, items are few, and subscripts are inside what they index."""
    module = load_python(file) if file.suffix == ".py" else load(file, {})
    for kernel in module.kernels.values():
        built = kernel.traced(**constants(file))
        scalars = {p.scalar.name: 1 for p in built.scalars}
        candidates = list(_candidates(built, True, scalars))
        assert candidates
        counted = _counted(built)
        for chosen in candidates:
            assert set(chosen) == set(dimensions(built)) and failing(built, chosen, scalars) is None
            assert all(extent > 0 for extent in chosen.values())
        assert all(candidates[0][name] <= 4 for name in counted), candidates
        steered = steering(built)
        # The smallest sizes only: the arrays of the larger ones take long to fill.
        arrays = make_problem(built, candidates[0], scalars, 0).arrays if steered else {}
        for s in steered:
            drawn = arrays[s.array] if s.column is None else arrays[s.array][..., s.column]
            assert drawn.min() >= 0 and drawn.max() < s.limit({**candidates[0], **scalars})


def test_small_tiles_have_a_part_too() -> None:
    """A tile of 16, the step of innermost dimensions, still gets rows of which there is no whole tile."""
    kernel = load(EXAMPLES / "co" / "matmul_wmma.co", {}).only().traced()
    assert all(sizes["M"] % 16 and sizes["K"] % 16 == 0 for sizes in _candidates(kernel, True, {}))


def test_dimensions_that_follow_from_others() -> None:
    outcome = check_kernel(only(RELATED), {}, schedules=1)
    dims = outcome.dims
    assert outcome.ok and outcome.chosen and dims["K2"] == -(-dims["K"] // 2) and dims["M"] % 32 == 0
    impossible = only(RELATED.replace("M % 32 == 0", "M == M + 1"))
    with pytest.raises(NoSizes, match=r"two of K a row(.|\n)*--shape M=\.\.,K=\.\."):
        check_kernel(impossible, {}, schedules=1)
    assert check_kernel(only(RELATED), {}, shape="M=32,K=4,K2=2", schedules=1).ok


def test_subscripts_are_drawn_inside_their_array() -> None:
    kernel = only(GATHER)
    names = {"N": 5, "M": 40}
    places = make_problem(kernel.build(sizes=names), names, {}, 0).arrays["places"]
    assert set(places.tolist()) == set(range(5))
    outcome = check_kernel(kernel, {}, schedules=1)
    assert outcome.ok and "`places` say where" in outcome.render(), outcome.render()
    assert outcome.to_json()["drawn_within_bounds"] == ["places"]
    assert not scattering(kernel.build())
    scatter = GATHER.replace("y.at(b # i) = x.at(place)", "y.at(place) = x.at(b # i)").replace(
        "place < N", "place < M"
    )
    assert scattering(only(scatter).build()) == {"M"}


def test_tables_have_a_bound_for_each_column() -> None:
    kernel = load(EXAMPLES / "gallery" / "experts.co", {}).only().build()
    names = {"T": 300, "K": 16, "E": 3, "N": 16, "BOUNDS": 4, "TILES": 64}
    arrays = make_problem(kernel, names, {}, 0).arrays
    assert arrays["tiles"][:, 0].max() == 2 and 150 < arrays["tiles"][:, 1].max() < 300
    assert len(set(arrays["tiles"][:, 1].tolist())) == 64, "places that are written differ where there is room"
    assert arrays["first"].min() >= 0


def test_the_report_says_that_few_blocks_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        (EXAMPLES / "co" / "plain.co")
        .read_text()
        .replace("TILE_N 256", "TILE_N 128")
        .replace("TILE_K 64", "TILE_K 32")
    )
    monkeypatch.setattr(check, "MOST", 100)
    monkeypatch.setattr(sizes, "MOST", 100)
    outcome = check_kernel(only(text), {}, schedules=1)
    assert outcome.ok and outcome.few is None and outcome.too_long_for_few > 100
    assert "not run with few persistent blocks" in outcome.render()
    assert outcome.to_json()["too_long_for_few_blocks"] == outcome.too_long_for_few
    assert "persistent" not in replace(outcome, too_long_for_few=0).render()


@pytest.mark.parametrize("language", ["co", "py"])
def test_metadata_is_valid(language: str) -> None:
    file = EXAMPLES / "gallery" / f"sparse.{language}"
    kernel = (load(file, {}) if language == "co" else load_python(file)).only().build()
    (name,) = metadata(kernel)
    names = {"M": 16, "HALF": 16, "WORDS": 2, "N": 16, "K": 32}
    words = make_problem(kernel, names, {}, 0).arrays[name].reshape(-1)
    for positions in (int(w) >> shift & 15 for w in words for shift in range(0, 16, 4)):
        assert positions & 3 < positions >> 2
