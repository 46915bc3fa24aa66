"""The settings of automatic pipelining: equal in both languages, kept in the IR, in the keys of the caches."""

from __future__ import annotations

import numpy as np
import pytest
from test_operands import co, py, verdict

import tilemma as tm
from tilemma import croqtile
from tilemma.compiler import identity
from tilemma.errors import CompileError
from tilemma.ir.parser import parse_kernel
from tilemma.ir.pipeline import OFF, PipelineSettings, effective
from tilemma.ir.printer import print_kernel
from tilemma.ir.tile import For, Kernel
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel as Callable

# Settings of a loop in both languages.
LOOPS = {
    "": "",
    "pipeline": "tm.Pipeline()",
    "pipeline(off)": "False",
    "pipeline(stages=3)": "tm.Pipeline(3)",
    "pipeline(producer=true, order=keep)": 'tm.Pipeline(producer=True, order="keep")',
    'pipeline(stages=1 + 1, producer=false, order="any")': "tm.Pipeline(stages=2, producer=False)",
}
# Wrong in both, with words of both errors.
WRONG = [
    ("pipeline(cluster=2)", "tm.Pipeline(cluster=2)", "`cluster`, which belongs to the kernel"),
    ("pipeline(blocks=2)", "tm.Pipeline(blocks=2)", "`blocks`, which belongs to the kernel"),
    ("pipeline(persistent=true)", "tm.Pipeline(persistent=True)", "`persistent`, which belongs to the kernel"),
    ("pipeline(order=keeps)", 'tm.Pipeline(order="keeps")', "did you mean `keep`?"),
    ("pipeline(producer=1)", "tm.Pipeline(producer=1)", "pipeline(producer=)"),
    ("pipeline(off, stages=2)", "True", "pipeline"),
]


def loop(kernel: Kernel) -> For:
    return next(op for op in walk(kernel.body) if isinstance(op, For))


def croqtile_loop(settings: str) -> Callable:
    return co(f"{f'[[{settings}]]' if settings else ''} foreach i in 8 {{ c.at(0, i) = 1.0f; }}")


def python_loop(settings: str) -> Callable:
    return py(f"for i in foreach(8{f', pipeline={settings}' if settings else ''}):\n    c[0, i] = 1.0")


@pytest.mark.parametrize("settings", LOOPS)
def test_both_languages_say_the_same(settings: str) -> None:
    first, second = croqtile_loop(settings).traced(), python_loop(LOOPS[settings]).traced()
    assert loop(first).pipeline == loop(second).pipeline
    assert (loop(first).pipeline is None) == (settings == "")
    for kernel in (first, second):
        assert parse_kernel(print_kernel(kernel)) == kernel


def test_each_setting_is_in_the_key() -> None:
    """Kernels that differ in a setting alone are different kernels for every cache."""
    kernels = [python_loop(LOOPS[s]).traced() for s in LOOPS]
    kernels += [made.traced() for made in map(whole_kernel, ("", "[[pipeline(cluster=2)]]", "[[pipeline(off)]]"))]
    assert len({identity(k) for k in kernels}) == len(kernels)


def whole_kernel(attribute: str) -> Callable:
    return co(f"{attribute} __co__ c.at(0, 0) = 1.0f;")


def test_of_the_kernel_in_both_languages() -> None:
    @tm.kernel(pipeline=tm.Pipeline(stages=4, producer=True, cluster=2, persistent=True, order="keep"))
    def k(c: tm.Global["f32", 64, 64]):
        for _ in tm.parallel(1, level="block"):
            c[0, 0] = 1.0

    text = "[[pipeline(stages=STAGES, producer=true, cluster=2, persistent=true, order=keep)]]"
    assert whole_kernel(f"#define STAGES 4\n{text}").traced().pipeline == k.traced().pipeline
    assert k.traced().pipeline == PipelineSettings(4, True, 2, True, "keep")


def test_text_before_a_kernel_is_still_skipped() -> None:
    text = "int x[2]; void g() { x[x[0]] = 1; }\n%s\n__co__ void f(global f32 [8] a) { a.at(0) = 1.0f; }"
    plain, given = (croqtile.load(text % s, "f.co") for s in ("int y[1][1];", "int y[1][1]; [[pipeline(off)]]"))
    assert plain.kernels["f"].pipeline is None and given.kernels["f"].pipeline == OFF
    assert [n.text for n in plain.notes] == [n.text for n in given.notes]


@pytest.mark.parametrize(("croqtile_text", "python_text", "words"), WRONG)
def test_wrong_settings_are_refused_at_their_place(croqtile_text: str, python_text: str, words: str) -> None:
    for make, text in ((croqtile_loop, croqtile_text), (python_loop, python_text)):
        with pytest.raises(CompileError) as caught:
            make(text).traced()
        shown = caught.value.render()
        assert caught.value.code == "wrong-value" and caught.value.span is not None
        assert words.lower() in shown.lower() and "^" in shown


@pytest.mark.parametrize("attribute", ["[[nodiscard]]", "[[pipeline(4)]]", "[[pipeline(off)]] [[pipeline(off)]]"])
def test_wrong_attributes_of_a_kernel(attribute: str) -> None:
    assert verdict(co, f"{attribute} __co__ c.at(0, 0) = 1.0f;") == "wrong-value"


@pytest.mark.parametrize(
    ("text", "code"),
    [("c.at(row = 0, 0) = 1.0f;", "misplaced-argument-name"), ("[[pipeline(stages += 2)]] foreach i in 8 ;", "syntax")],
)  # fmt: skip
def test_operands_have_no_names(text: str, code: str) -> None:
    assert verdict(co, text) == code


def test_the_settings_of_a_loop_complete_those_of_its_kernel() -> None:
    of_kernel = PipelineSettings(stages=4, producer=True, cluster=2, order="keep")
    assert effective(None, of_kernel) == of_kernel
    assert effective(PipelineSettings(stages=2), of_kernel) == PipelineSettings(2, True, 2, None, "keep")
    assert effective(OFF, of_kernel) == OFF and effective(None, OFF) == OFF
    assert effective(PipelineSettings(stages=2), OFF) == PipelineSettings(stages=2)


def test_the_reference_ignores_them() -> None:
    c = np.zeros((64, 64), np.float32)
    python_loop("tm.Pipeline(stages=3)").on("cpu")(np.zeros((64, 64), np.float16), c, 1, 1.0)
    assert c[0, :8].tolist() == [1.0] * 8


def test_what_cannot_be_pipelined_is_reported() -> None:
    compiled = python_loop("tm.Pipeline(stages=3)").compile("sm_80")
    found = [d for d in compiled.decisions if d.pass_name == "pipeline" and d.warning]
    assert len(found) == 1 and "stages=3" in found[0].text and found[0].span is not None
    assert not [d for d in python_loop("False").compile("sm_80").decisions if d.pass_name == "pipeline"]
