"""Templates of kernels: instantiations are kernels; others are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma import croqtile
from tilemma.errors import CompileError
from tilemma.front_end_cache import File, TextSource
from tilemma.kernels import Kernel

# The codes whose advice `test_the_advice_works` follows.
FOLLOWED = ("template-instance",)
FILE = """
#define FOUR 4
template <typename T, int N = FOUR>
__co__ void fill(T [N] x, f32 [2, N] T_of) {
  parallel p by N {
    if constexpr (__is_same<T, s32>) { x.at(p) = 7; } else { x.at(p) = 2.5f; }
    T_of.at(0, p) = N * 10;
    T_of.at(1, p) = T_of.at(0, p) + 1.0f;
  }
}
template <class A> __co__ void unused(A [4] x) { parallel p by 4 { x.at(p) = 1; } }
__co__ void plain(f32 [4] x) { parallel p by 4 { x.at(p) = 1.0f; } }
template __co__ fill<s32>;
template __co__ void fill<float, 2 * 3>(float*, float*);
template __co__ fill<f16, 8>;
"""
INSTANCES = {"fill_s32": ("s32", 4, 7), "fill_float_2_3": ("f32", 6, 2.5), "fill_f16_8": ("f16", 8, 2.5)}
TYPES = {"s32": np.int32, "f32": np.float32, "f16": np.float16}


@pytest.mark.parametrize(("target", "options"), [("cpu", {}), ("machine", {"arch": "sm_80"})])
@pytest.mark.parametrize("name", INSTANCES)
def test_instances(name: str, target: str, options: dict[str, str]) -> None:
    dtype, n, value = INSTANCES[name]
    x, y = np.zeros(n, TYPES[dtype]), np.zeros((2, n), np.float32)
    Kernel(TextSource(File(FILE, "templates.co", {}), name)).on(target, **options)(x, y)
    assert x.tolist() == [value] * n
    assert y.tolist() == [[n * 10] * n, [n * 10 + 1] * n]


def test_names_of_kernels() -> None:
    module = croqtile.load(FILE, "templates.co")
    assert set(module.sources) | {"unused"} == {*INSTANCES, "plain", "unused"}
    with pytest.raises(CompileError) as refusal:
        Kernel(TextSource(File(FILE, "templates.co", {}), "unused")).compile("sm_80")
    assert refusal.value.code == "not-built-yet" and "templates of kernels" in refusal.value.render()


WRONG = {
    "template __co__ nothing<s32>;": ("template-instance", "`nothing` is no template"),
    "template __co__ plain<s32>;": ("template-instance", "`plain` is no template"),
    "template __co__ fill<>;": ("template-instance", "write `template __co__ fill<T, N>;`"),
    "template __co__ fill;": ("template-instance", "0 arguments of 2"),
    "template __co__ fill<s32, 4, 5>;": ("template-instance", "3 arguments of 2"),
    "template __co__ fill<s32>;": ("redefinition", "`fill_s32` is defined twice"),
    "template <typename... T> __co__ void g(f32 [4] x) { } template __co__ g<s32>;": (
        "template-instance",
        "a type",
    ),
    "template <typename> __co__ void g(f32 [4] x) { } template __co__ g<s32>;": ("template-instance", "a type"),
    "__co__ void later(f32 [4] x);": ("unfinished-kernel", "without a body"),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_instances(text: str) -> None:
    code, words = WRONG[text]
    with pytest.raises(CompileError) as refusal:
        croqtile.load(FILE + text, "wrong.co")
    assert refusal.value.code == code, refusal.value.render()
    assert words in refusal.value.render()


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ("template __co__ fill<s32, 2 + 1>;", "template __co__ fill<s32, 2_1>;", "fill_s32_2_1"),
        ("__co__ void fill_u8(f32 [4] x) { parallel p by 4 { } }", "template __co__ fill<u8>;", "fill_u8"),
    ],
)  # fmt: skip
def test_an_instance_with_the_name_of_another_kernel(first: str, second: str, name: str) -> None:
    """The error is at the instantiation, not at the template, and names the other kernel's place."""
    with pytest.raises(CompileError) as refusal:
        croqtile.load(f"{FILE}{first}\n{second}\n", "clash.co")
    error, lines = refusal.value, FILE.count("\n")
    assert error.code == "redefinition" and f"`{name}` is defined twice" in error.message
    assert error.span is not None and error.span.line == lines + 2
    assert [note.span and note.span.line for note in error.notes] == [lines + 1]


@pytest.mark.parametrize("wrong", ["template __co__ fill<>;", "template __co__ fill;"])
def test_the_advice_works(wrong: str) -> None:
    """The form that the fix names, with a type and a number for the parameters, is accepted."""
    with pytest.raises(CompileError) as refusal:
        croqtile.load(FILE + wrong, "wrong.co")
    advised = refusal.value.remedy.split("`")[1].replace("T", "f32").replace("N", "5")
    assert "fill_f32_5" in croqtile.load(FILE + advised, "advised.co").sources
