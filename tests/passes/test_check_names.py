"""The names of parameters' dimensions determine the axes that a multiply may contract, in both languages."""

from __future__ import annotations

import linecache
import re
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

import tilemma as tm
from tilemma.errors import CompileError
from tilemma.kernels import Kernel
from tilemma.modules import load

CONTRACTS = ("row.row", "row.col", "col.row", "col.col")
# How an operand reaches the multiply, in Croqtile and in Python.
CUT = "{x}.subspan(16, 16).at(0, 0)"
WAYS = {
    "copied": (f"dma.copy {CUT} => shared", f'dma.copy({CUT}, to="shared")'),
    "transposed": (f"dma.transp<1, 0> {CUT} => shared", f'dma.copy({CUT}, to="shared", transp=(1, 0))'),
}
_number = count()


def croqtile(
    tmp_path: Path, contract: str, lhs: tuple[Any, Any], rhs: tuple[Any, Any], way: str = "copied", extra: str = ""
) -> Kernel:
    dims = [", ".join(str(d or "?") for d in x) for x in (lhs, rhs)]
    copies = [WAYS[way][0].format(x=x) for x in ("lhs", "rhs")]
    file = tmp_path / f"k{next(_number)}.co"
    file.write_text(f"""
__co__ void k(global f16 [{dims[0]}] lhs, global f16 [{dims[1]}] rhs, global f32 [16, 16] output) {{
  parallel b by 1 : block {{
    a = {copies[0]};
    b_ = {copies[1]};
    {extra}
    parallel w by 1 : group {{
      mc = mma.fill.f32 0.0f;
      ma = mma.load a.data{".span_as(16, 16)" if extra == "//" else ""};
      mb = mma.load b_.data;
      mma.{contract} mc, ma, mb;
      mma.store mc, output;
    }}
  }}
}}
""")
    return load(file).only()


def python(
    tmp_path: Path, contract: str, lhs: tuple[Any, Any], rhs: tuple[Any, Any], way: str = "copied"
) -> Kernel:
    dims = [", ".join(repr(d) for d in x) for x in (lhs, rhs)]
    copies = [WAYS[way][1].format(x=x) for x in ("lhs", "rhs")]
    text = f"""
import tilemma as tm
from tilemma import *

@tm.kernel
def k(lhs: tm.Global["f16", {dims[0]}], rhs: tm.Global["f16", {dims[1]}], output: tm.Global["f32", 16, 16]):
    for b in parallel(1, level="block"):
        a = {copies[0]}
        b_ = {copies[1]}
        for w in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            ma = mma.load(a.data)
            mb = mma.load(b_.data)
            mma.{contract}(mc, ma, mb)
            mma.store(mc, output)
"""
    name = f"<names {next(_number)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    kernel: Kernel = scope["k"]
    return kernel


LANGUAGES = {"croqtile": croqtile, "python": python}


def fits(contract: str, lhs: tuple[str, str], rhs: tuple[str, str]) -> bool:
    a, b = contract.split(".")
    return lhs[0 if a == "col" else 1] == rhs[0 if b == "col" else 1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_names_decide(language: str, way: str, tmp_path: Path) -> None:
    """Every contract on every order of storage; where one is refused, the one that it names is accepted."""
    make = LANGUAGES[language]
    for contract, lhs, rhs in product(CONTRACTS, (("M", "K"), ("K", "M")), (("N", "K"), ("K", "N"))):
        stored = (lhs, rhs) if way == "copied" else (lhs[::-1], rhs[::-1])
        if fits(contract, *stored):
            make(tmp_path, contract, lhs, rhs, way).build()
            continue
        with pytest.raises(CompileError) as caught:
            make(tmp_path, contract, lhs, rhs, way).build()
        assert caught.value.code == "contract-names"
        assert caught.value.span is not None and f"mma.{contract}" in caught.value.render()
        others = re.findall(r"`mma\.(\w+\.\w+)`", caught.value.render().split("fix: ")[1])
        assert others[-1] != contract
        make(tmp_path, others[-1], lhs, rhs, way).build()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [(("M", 16), ("N", "K")), ((16, 16), ("N", "K")), (("M", None), ("N", "K")), ((None, None), (None, None))],
)
def test_numbers_and_unnamed_dimensions_pass(
    language: str, lhs: tuple[Any, Any], rhs: tuple[Any, Any], tmp_path: Path
) -> None:
    for contract in ("row.row", "row.col"):
        LANGUAGES[language](tmp_path, contract, lhs, rhs).build()


@pytest.mark.parametrize("language", LANGUAGES)
def test_without_a_contract_that_fits_the_names_are_the_remedy(language: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="give both dimensions one name in the types of `lhs` and `rhs`"):
        LANGUAGES[language](tmp_path, "row.row", ("M", "P"), ("N", "Q")).build()
    LANGUAGES[language](tmp_path, "row.row", ("M", "K"), ("N", "K")).build()


def test_computed_and_reshaped_tiles_pass(tmp_path: Path) -> None:
    """A tile that the program writes itself, and one read in another shape, follow no dimension."""
    wrong = ("row.col", ("M", "K"), ("N", "K"))
    with pytest.raises(CompileError):
        croqtile(tmp_path, *wrong).build()
    croqtile(tmp_path, *wrong, extra="a.data.at(0, 0) = 1.0f;").build()
    croqtile(tmp_path, *wrong, extra="//").build()


def test_buffers_that_change_places_may_hold_either_copy(tmp_path: Path) -> None:
    """After `swap` a name may have the dimensions of either source: then nothing is known."""
    for swap in (False, True):
        first, second = ("lhs", "rhs") if swap else ("lhs", "lhs")
        text = f"""
__co__ void k(global f16 [M, K] lhs, global f16 [K, M] rhs, global f16 [N, K] other, global f32 [16, 16] output) {{
  parallel b by 1 : block {{
    x = dma.copy.async {first}.subspan(16, 16).at(0, 0) => shared;
    y = dma.copy.async {second}.subspan(16, 16).at(0, 0) => shared;
    z = dma.copy other.subspan(16, 16).at(0, 0) => shared;
    wait x, y;
    mc = mma.fill.f32 0.0f;
    foreach k in 2 {{
      parallel w by 1 : group {{
        ma = mma.load x.data; mb = mma.load z.data;
        mma.row.col mc, ma, mb;
      }}
      swap(x, y);
    }}
    parallel w by 1 : group {{ mma.store mc, output; }}
  }}
}}
"""
        file = tmp_path / f"k{next(_number)}.co"
        file.write_text(text)
        if swap:
            load(file).only().build()
            continue
        with pytest.raises(CompileError) as caught:
            load(file).only().build()
        assert caught.value.code == "contract-names"


def test_the_cpu_reference_refuses_too(tmp_path: Path) -> None:
    import numpy as np

    x = np.zeros((16, 16), np.float16)
    for target in ("cpu", "machine"):
        for make in LANGUAGES.values():
            with pytest.raises(CompileError) as caught:
                make(tmp_path, "row.col", ("M", "K"), ("N", "K")).on(target)(x, x, x.astype(np.float32))
            assert caught.value.code == "contract-names"


def test_the_kernel_is_named() -> None:
    @tm.kernel
    def same(x: tm.Global["f16", "M", "K"], output: tm.Global["f32", 16, 16]):
        for _ in tm.parallel(1, level="block"):
            a = tm.dma.copy(x.subspan(16, 16).at(0, 0), to="shared")
            for _ in tm.parallel(1, level="group"):
                mc = tm.mma.fill(0.0, "f32")
                tm.mma.row.row(mc, tm.mma.load(a.data), tm.mma.load(a.data))
                tm.mma.store(mc, output)

    same.build()
