"""What is written as in C++: the refusal shows the form of Croqtile, and that form is accepted in its place."""

import re

import pytest

from tilemma import croqtile
from tilemma.errors import CompileError

PROGRAM = """__co__ void f(%s) {
  parallel p by 1 : block, t by 16 : thread { %s }
}"""
PARAMETER = "global f32 [N] x"
# Text that is refused; what the form that is advised replaces in it.
STATEMENTS = {
    "__shared__ float s[4][16];": None,
    "float s[16];": None,
    "shared f32 s[16];": None,
    "const int n = 4 + 1;": None,
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
