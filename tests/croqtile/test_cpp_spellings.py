"""What is written as in C++: the refusal shows the form of Croqtile, and that form is accepted in its place."""

import re

import pytest

from tilemma import croqtile
from tilemma.errors import CompileError
from tilemma.ir.printer import print_kernel

PROGRAM = """__co__ void f(%s) {
  parallel p by 1 : block, t by 16 : thread { %s }
}"""
PARAMETER = "global f32 [N] x"
# Text that is refused; what the form that is advised replaces in it.
STATEMENTS = {
    "__shared__ float s[4][16];": None,
    "float s[16];": None,
    "shared f32 s[16];": None,
    "y.at(0) = 1.0f; static int n = 4;": "static int n = 4;",
    "for (int i = 0; i < 16; i++) { y.at(i) = 1.0f; }": "for (int i = 0; i < 16; i++) { y.at(i) = 1.0f; }",
    "for (int i = 0; i < 4 * 4; i += 1) { y.at(i) = 1.0f; }": None,
    "for (i = 0; i < 16; ++i) { y.at(i) = 1.0f; }": "for (i = 0; i < 16; ++i) { y.at(i) = 1.0f; }",
    "y.at(0) = y[t];": None,
    "y.at(0) = z[t];": None,
}


def _fix(parameters: str, body: str) -> str:
    with pytest.raises(CompileError) as e:
        croqtile.load(PROGRAM % (parameters, body), "t.co").kernels["f"]
    return re.findall(r"`([^`]*)`", e.value.remedy)[0].replace("...", "y.at(0) = 1.0f;")


@pytest.mark.parametrize("parameter", ["float* x", "const float* x", "float *x"])
def test_pointers(parameter: str) -> None:
    form = _fix(f"global f32 [16] y, {parameter}", "y.at(0) = 1.0f;")
    assert form == PARAMETER
    croqtile.load(PROGRAM % (f"global f32 [16] y, {form}", "y.at(0) = x.at(0);"), "t.co").kernels["f"]


@pytest.mark.parametrize("text", STATEMENTS)
def test_statements(text: str) -> None:
    parameters = "global f32 [16] y, global f32 [16, 16] z"
    form = _fix(parameters, text)
    if form.endswith((".at(i)", ".at(i, j)")):
        assert form == ("y.at(i)" if "y[" in text else "z.at(i, j)")
        form = "int i = 1; int j = 2; y.at(0) = " + form + ";"
    whole = text.replace(STATEMENTS[text] or text, form)
    croqtile.load(PROGRAM % (parameters, whole), "t.co").kernels["f"]


# A word or form of C++ or Python in a kernel; what the advice says.
ADVICE = {
    "uint32_t n = 1;": "write `u32 n`",
    "unsigned int n = 1;": "write `u32 n`",
    "size_t n = 1;": "write `u64 n`",
    "let n = 1;": "write `n = ...;`",
    "register f32 w;": "`mutable w = ...;`",
    "y.at(0) = (float)t;": "write `__to<f32>(t)`",
    "y.at(0) = float(t + 1);": "write `__to<f32>(t+1)`",
    "y.at(0) = static_cast<float>(t);": "write `__to<f32>(t)`",
    "y.at(0) = t.to(f16);": "write `__to<f16>(t)`",
    "if (t > 1 and t < 4) { }": "write `&&`",
    "if (not t) { }": "write `!`",
    "y.at(0) = y.at(t) ** 2;": "write `__pow(a, b)`",
    "y.at(0) = y->at(t);": "write `.`",
    "dma.copy y -> y;": "write `=>`",
    "do { } while (t > 1);": "write `while (c) { ... }`",
    "switch (t) { }": "write `if (x == 0)",
    "# comment": "write `// ...`",
    "y.at(0) = 1.f;": "digits on both sides",
    "y.at(0) = std::exp(1.0f);": "write `__exp(a)`",
    "y.at(0) = __fmul_rn(1.0f, 2.0f);": "write `a * b`",
    "y.at(0) = __float2half(1.0f);": "__to<f16>",
    "y.at(0) = sinf(M_PI);": "write `__sin(a)`",
    "y.at(0) = M_PI;": "write `3.14159",
    "y.at(0) = INFINITY;": "write `inf`",
    "atomicAdd(&y.at(0), 1.0f);": "write `__atomic_add(x.at(i), v)`",
    'printf("%d", t);': "print(",
    "y.at(0) = z[t, 0];": "`z.at(i, j)`",
    "y.at(0) = z.shape(0);": "`x.span(0)`",
}


@pytest.mark.parametrize("text", ADVICE)
def test_advice(text: str) -> None:
    with pytest.raises(CompileError) as e:
        croqtile.load(PROGRAM % ("global f32 [16] y, global f32 [16, 16] z", text), "t.co").kernels["f"]
    rendered = e.value.render()
    assert ADVICE[text] in rendered[rendered.index("expected:") :], rendered


@pytest.mark.parametrize("words", ["const", "constexpr", "static constexpr", "static const"])
def test_const_before_a_type_changes_nothing(words: str) -> None:
    text = (
        "__co__ void f(%sglobal f32 [16] y, %sint m) {"
        "  parallel t by 16 : thread { %sint n = 4 + m; %slocal f32 [2] s; y.at(t) = n; } }"
    )
    plain, marked = (croqtile.load(text % ((w,) * 4), "t.co").kernels["f"] for w in ("", words + " "))
    assert print_kernel(plain) == print_kernel(marked)
