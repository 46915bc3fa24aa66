"""Instructions that a program declares: compiler, reference, machine; wrong declarations are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tensor_layouts import Layout

import tilemma as tm
from tilemma.atoms.declaration import WrongInstruction
from tilemma.cli import main
from tilemma.compiler import default_facts
from tilemma.errors import CompileError
from tilemma.kernels import Kernel
from tilemma.modules import load_python
from tilemma.targets.cpu import execute

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "instructions" / "own_instruction.py"
MODEL: Any = tm.atoms["SM80_16x8x16_F16F16F16F16_TN"]
LAYOUTS = {letter: MODEL.operands[letter].layout for letter in "ABC"}
REAL = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {d}, {a}, {b}, {c};"
INVENTED = "invented.sync.aligned.m16n8k16 {d}, {a}, {b}, {c};"
WGMMA: Any = tm.atoms["SM90_64x32x16_F16F16F16_SS"]


@pytest.fixture(autouse=True)
def withdrawn() -> Iterator[None]:
    yield
    for atom in tm.atoms.declared():
        tm.atoms.withdraw(atom.name)


def declare(name: str = "MINE", **changes: Any) -> Any:
    given: dict[str, Any] = {"shape": (16, 8, 16), "types": ("f16",) * 4, "layouts": LAYOUTS, "ptx": REAL}
    return tm.instruction(name, **{**given, **changes})


def kernel(atom: str | None = None, level: str = "group", rows: int = 32) -> Kernel:
    def product(a: tm.Global["f16", "M", 64], b: tm.Global["f16", "N", 64], c: tm.Global["f16", "M", "N"]):
        for i, j in tm.parallel(tm.cdiv(a.shape[0], rows), tm.cdiv(b.shape[0], 32), level="block"):
            a_s = tm.dma.copy(a.subspan(rows, 64).at(i, 0), to="shared")
            b_s = tm.dma.copy(b.subspan(32, 64).at(j, 0), to="shared")
            for _ in tm.parallel(1, level=level):
                mc = tm.mma.fill(0.0, "f16")
                tm.mma.row.row(mc, tm.mma.load(a_s), tm.mma.load(b_s), atom=atom)
                tm.mma.store(mc, c.subspan(rows, 32).at(i, j))

    return tm.kernel(product)


def operands(rows: int = 64) -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.integers(-2, 3, (rows, 64)).astype(np.float16) for _ in "ab"] + [
        np.zeros((rows, rows), np.float16)
    ]


def on_decided(k: Kernel, arch: str, args: list[Any]) -> Any:
    """The result of the reference on the IR with every decision."""
    a, b, c = args
    execute(k.compile(arch).kernel, {"a": a, "b": b, "c": c}, {}, dims={"M": len(a), "N": len(b)})
    return c


def issued(k: Kernel, arch: str = "sm_80") -> str:
    return str(k.compile(arch).explain())


@pytest.mark.parametrize(("rank", "chosen"), [(1, True), (0, False), (-1, False)])
def test_the_rank_decides_whether_the_compiler_takes_it(rank: int, chosen: bool) -> None:
    k = kernel()
    before = issued(k)
    declare(rank=rank)
    assert ("MINE" in issued(k)) == chosen
    assert "MINE" in issued(kernel("MINE"))
    tm.atoms.withdraw("MINE")
    assert issued(k) == before


def test_rank_0_serves_where_the_catalogue_has_nothing() -> None:
    """No instruction of sm_75 multiplies bf16."""

    @tm.kernel
    def small(a: tm.Global["bf16", 16, 16], b: tm.Global["bf16", 8, 16], c: tm.Global["f32", 16, 8]):
        for _ in tm.parallel(1, level="block"):
            a_s, b_s = tm.dma.copy(a, to="shared"), tm.dma.copy(b, to="shared")
            for _ in tm.parallel(1, level="group"):
                mc = tm.mma.fill(0.0, "f32")
                tm.mma.row.row(mc, tm.mma.load(a_s), tm.mma.load(b_s))
                tm.mma.store(mc, c)

    with pytest.raises(CompileError) as caught:
        small.compile("sm_75")
    assert caught.value.code == "no-instruction"
    declare(types=("f32", "bf16", "bf16"), ptx=INVENTED)
    assert "MINE" in issued(small, "sm_75") and "MINE" not in issued(small, "sm_80")


def test_the_instruction_declared_as_if_the_catalogue_lacked_it_computes_the_same() -> None:
    declare(archs=("sm_80",))
    a, b, c = operands()
    kernel("MINE").on("machine", arch="sm_80")(a, b, c)
    assert (c == a @ b.T).all()
    assert (on_decided(kernel("MINE"), "sm_80", [a, b, np.zeros_like(c)]) == c).all()
    kernel("MINE")(a, b, other := np.zeros_like(c))
    assert (other == c).all()


def test_its_meaning_is_executed_at_each_issue() -> None:
    """On the reference before and after the passes and on the machine; another meaning gives another result."""
    k = kernel("MINE")
    for add in (1, 3):
        declare(ptx=INVENTED, meaning=lambda a, b, c, add=add: c + add)
        a, b, c = operands()
        want = np.full_like(c, 4 * add)
        k(a, b, c)
        assert (c == want).all()
        assert (on_decided(k, "sm_80", [a, b, np.zeros_like(c)]) == want).all()
        k.on("machine", arch="sm_80")(a, b, other := np.zeros_like(c))
        assert (other == want).all()


def test_the_machine_prefers_its_own_rule() -> None:
    declare(meaning=lambda a, b, c: c + 1)
    a, b, c = operands()
    kernel("MINE").on("machine", arch="sm_80")(a, b, c)
    assert (c == a @ b.T).all()


def test_the_result_is_rounded_to_the_type_of_d_at_each_issue() -> None:
    declare(ptx=INVENTED, meaning=lambda a, b, c: c + 2049.0)
    a, b, c = operands()
    total = np.float16(0)
    for _ in range(4):
        total = np.float16(float(total) + 2049.0)
    for run in (kernel("MINE"), kernel("MINE").on("machine", arch="sm_80")):
        run(a, b, c)
        assert (c == total).all()


def test_a_changed_declaration_never_runs_earlier_code() -> None:
    k = kernel("MINE")
    declare(ptx=INVENTED)
    first = k.compile("sm_80").ptx
    facts = default_facts(k.build())
    declare(ptx=INVENTED.replace("invented", "changed"))
    second = k.compile("sm_80").ptx
    assert "invented." in first and "changed." in second and "invented." not in second
    assert k.ready("sm_80", facts).ptx == second
    declare(ptx=INVENTED)
    assert k.ready("sm_80", facts).ptx == first
    turned = dict(LAYOUTS, C=Layout(((4, 8), (2, 2)), ((32, 1), (8, 16))))
    with pytest.raises(WrongInstruction):
        declare(layouts=dict(LAYOUTS, C=Layout(((4, 8), (2, 2)), ((32, 1), (8, 8)))))
    declare(ptx=INVENTED, layouts=turned)
    assert k.compile("sm_80").ptx != first


def test_an_asynchronous_one_reads_shared_memory() -> None:
    """A wgmma declared under another name."""
    layouts = {"A": None, "B": None, "C": WGMMA.c.layout}
    text = "wgmma.mma_async.sync.aligned.m64n32k16.f16.f16.f16 {d}, {a}, {b}, 1, 1, 1, 0, 0;"
    declare(shape=(64, 32, 16), layouts=layouts, ptx=text, effects=("async",), archs=("sm_90a",), rank=1)
    k = kernel(None, "group-4", rows=64)
    assert "MINE" in issued(k, "sm_90a") and "wgmma wait" in issued(k, "sm_90a")
    a, b, c = operands()
    k.on("machine", arch="sm_90a")(a, b, c)
    assert (c == a @ b.T).all()


def test_without_ptx_it_is_for_the_reference_alone() -> None:
    declare(ptx=None)
    a, b, c = operands()
    kernel("MINE")(a, b, c)
    assert (c == a @ b.T).all()
    with pytest.raises(CompileError, match="has no PTX") as caught:
        kernel("MINE").compile("sm_80")
    assert caught.value.code == "no-instruction"


def test_croqtile_names_it_too(tmp_path: Path) -> None:
    declare(ptx=INVENTED, meaning=lambda a, b, c: c - 1)
    text = """__co__ void f(global f16 [16, 16] a, global f16 [8, 16] b, global f16 [16, 8] c) {
      parallel p by 1 : block { a_s = dma.copy a => shared; b_s = dma.copy b => shared;
        parallel g by 1 : group { mc = mma.fill.f16 0.0f; ma = mma.load a_s.data; mb = mma.load b_s.data;
          [[atom(MINE)]] mma.row.row mc, ma, mb; mma.store mc, c; } } }"""
    path = tmp_path / "f.co"
    path.write_text(text)
    k = tm.load(path).only()
    for run in (k, k.on("machine", arch="sm_80")):
        c = np.zeros((16, 8), np.float16)
        run(np.ones((16, 16), np.float16), np.ones((8, 16), np.float16), c)
        assert (c == -1).all()


def test_one_opcode_has_one_meaning() -> None:
    declare(ptx=INVENTED, meaning=lambda a, b, c: c)
    with pytest.raises(WrongInstruction, match="is that of MINE"):
        declare("OTHER", ptx=INVENTED)
    tm.atoms.withdraw("MINE")
    declare("OTHER", ptx=INVENTED)


TWICE = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 0)))
HOLED = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 0)))
OUTSIDE = Layout(((4, 8), (2, 2)), ((16, 1), (8, 128)))
NARROW = {"A": Layout((32, 1), (1, 1)), "B": Layout((32, 1), (0, 0)), "C": LAYOUTS["C"]}
SIXTY_FOUR = {"A": Layout((64, 2), (1, 64)), "B": Layout((64, 4), (0, 1)), "C": Layout((64, 2), (1, 64))}
THREES = {
    "A": Layout(((2, 3, 16), 2), ((3, 1, 6), 96)),
    "B": Layout((96, 2), (0, 1)),
    "C": Layout((96, 1), (1, 0)),
}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"name": "two words"}, "the name is"),
    "taken": ({"name": MODEL.name}, "the catalogue has this name"),
    "shape": ({"shape": (16, 8)}, "M, N and K"),
    "no type": ({"types": ("f16", "f61", "f16")}, "f61"),
    "accumulator": ({"types": ("s32", "f16", "f16")}, "an accumulator of f16"),
    "c is not d": ({"types": ("f16", "f16", "f16", "f32")}, "one type for both"),
    "no layout": ({"layouts": {"A": LAYOUTS["A"], "C": LAYOUTS["C"]}}, "a layout for each"),
    "not a layout": ({"layouts": {**LAYOUTS, "B": (8, 16)}}, "the layout of B is"),
    "not covered": ({"layouts": {**LAYOUTS, "A": HOLED}}, "no lane holds"),
    "outside": ({"layouts": {**LAYOUTS, "B": OUTSIDE}}, "offsets below 128"),
    "twice": ({"layouts": {**LAYOUTS, "C": TWICE}}, "once"),
    "registers": ({"shape": (16, 8, 2), "layouts": NARROW}, "whole registers"),
    "threads": ({"layouts": {**LAYOUTS, "C": Layout((64, 2), (2, 1))}}, "different numbers of threads"),
    "sixty-four": ({"shape": (64, 2, 2), "layouts": SIXTY_FOUR}, "64 threads"),
    "not separable": ({"shape": (96, 1, 2), "types": ("f32", "f16", "f16"), "layouts": THREES}, "sum of steps"),
    "unknown operand": ({"ptx": "mma {d}, {a}, {b}, {e};"}, "names operand {e}"),
    "missing operand": ({"ptx": "mma {d}, {a}, {c};"}, "does not name operand {b}"),
    "operand twice": ({"ptx": "mma {d}, {a}, {a}, {b};"}, "each operand once"),
    "no statement": ({"ptx": "mma {d}, {a}, {b}"}, "ended by"),
    "braces": ({"ptx": "mma {d, {a}, {b};"}, "its text"),
    "another shape's text": ({"ptx": REAL.replace("k16", "k8")}, "no statement of PTX"),
    "another type's text": ({"ptx": REAL.replace("f16.f16.f16.f16", "f32.f16.f16.f32")}, "no statement of PTX"),
    "operands exchanged": ({"ptx": REAL.replace("{a}, {b}", "{b}, {a}")}, "no statement of PTX"),
    "no C": ({"ptx": REAL.replace(", {c}", "")}, "no statement of PTX"),
    "an opcode of scalars": ({"ptx": "add.f32 {d}, {a}, {b};"}, "no statement of PTX"),
    "operand of no type": ({"types": {"D": "f16", "A": "f16", "B": "f16", "E": "u32"}}, "operand 'E'"),
    "effects": ({"effects": ("fast",)}, "its effects are"),
    "no names of effects": ({"effects": (["async"],)}, "its effects are"),
    "meaning of one": ({"meaning": lambda a: a}, "a function of A"),
    "asynchronous": ({"effects": ("async",)}, "executed by 32 threads"),
    "shared": ({"layouts": {**LAYOUTS, "A": None}}, "its effects are ()"),
    "meaning": ({"meaning": 3}, "its meaning is"),
    "archs": ({"archs": ("ampere",)}, "ampere"),
    "archs before the first": ({"archs": ("sm_1",)}, "sm_1`"),
    "rank": ({"rank": "high"}, "its rank is"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_declaration_is_refused_with_the_reason(case: str) -> None:
    changes, reason = WRONG[case]
    with pytest.raises(WrongInstruction) as caught:
        declare(**changes)
    assert reason in str(caught.value)
    assert not tm.atoms.declared()


@pytest.mark.parametrize("result", [lambda a, b, c: c.T, lambda a, b, c: None, lambda a, b, c: c[0]])
def test_a_meaning_of_another_shape_is_refused_where_it_runs(result: Any) -> None:
    declare(ptx=INVENTED, meaning=result)
    for run in (kernel("MINE"), kernel("MINE").on("machine", arch="sm_80")):
        with pytest.raises(WrongInstruction, match="its meaning returned"):
            run(*operands())


def test_show_and_the_list_of_instructions_have_it() -> None:
    for command in (["show", "UNIT_8x8x32"], ["atoms"]):
        done = CliRunner().invoke(main, [*command, "--declared-in", str(EXAMPLE)])
        assert done.exit_code == 0 and "UNIT_8x8x32" in done.output


def test_the_example_says_what_it_does() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=120, check=True)
    first, second, third = done.stdout.splitlines()
    assert first.startswith("MY_16x8x16_F16") and second == "UNIT_8x8x32: exact is True"
    assert third.startswith("SYSTOLIC_128x128: 16-bit sums lose ")


def test_the_example_on_the_machine() -> None:
    module = load_python(EXAMPLE)
    a, b, c = operands()
    module.kernels["product"].on("machine", arch="sm_80")(a, b, c)
    assert (c == a @ b.T).all()
