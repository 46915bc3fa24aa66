"""Printing and parsing both IRs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_strategies import lane_kernels, tile_kernels

from tests.sampling import examples
from tilemma.ir import lane, tile
from tilemma.ir.forms import operations, template
from tilemma.ir.parser import IRSyntax, IRUnknownName, parse_kernel, parse_lane
from tilemma.ir.printer import print_kernel, print_lane

RELAXED = settings(
    deadline=None,
    max_examples=examples(120),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
FEW = settings(RELAXED, max_examples=15)


@RELAXED
@given(tile_kernels())
def test_tile_ir_round_trips(kernel: tile.Kernel) -> None:
    text = print_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert print_kernel(parse_kernel(text)) == text


@RELAXED
@given(lane_kernels())
def test_lane_ir_round_trips(kernel: lane.LaneKernel) -> None:
    text = print_lane(kernel)
    assert parse_lane(text) == kernel
    assert print_lane(parse_lane(text)) == text


@pytest.mark.parametrize("cls", operations(tile.Op), ids=lambda c: c.__name__)
@FEW
@given(st.data())
def test_every_tile_operation_round_trips(cls: type, data: st.DataObject) -> None:
    kernel = data.draw(tile_kernels(cls))
    assert parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize("cls", operations(lane.LaneOp), ids=lambda c: c.__name__)
@FEW
@given(st.data())
def test_every_lane_operation_round_trips(cls: type, data: st.DataObject) -> None:
    kernel = data.draw(lane_kernels(cls))
    assert parse_lane(print_lane(kernel)) == kernel


@pytest.mark.parametrize("base", [tile.Op, lane.LaneOp])
def test_syntax_names_fields_and_is_unique(base: type) -> None:
    heads = []
    for cls in operations(base):
        t = template(cls)
        named = [f for _, f in t.parts if f is not None]
        assert set(named) <= set(cls.__dataclass_fields__), cls
        heads.append(t.head)
    assert len(set(heads)) == len(heads)


GOOD = """kernel f(global f16 a[M, K], n: s32) {
  parallel (i: cdiv(M, 16)) : block {
    alloc shared f16 s[16, 16]
    copy.dma a[i * 16 +: 16, 0 +: 16] => s
  }
}
"""


@pytest.mark.parametrize("overlap", ["", " {overlap = true}", ' {overlap = "before"}'])
def test_text_reads_as_written(overlap: str) -> None:
    text = GOOD.replace("  }\n}", f"  }}{overlap}\n}}")
    assert print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "error", "line", "column", "says"),
    [
        ("a[i * 16", "b[i * 16", IRUnknownName, 4, 14, "buffer `b`"),
        ("a[i * 16", "a[j * 16", IRUnknownName, 4, 16, "scalar `j`"),
        ("f16 s[", "f17 s[", IRUnknownName, 3, 18, "did you mean"),
        ("copy.dma", "copy.dms", IRSyntax, 4, 10, "one of dma, tma"),
        ("=> s", "-> s", IRSyntax, 4, 39, "`=>`"),
        (": block", ": blocks", IRSyntax, 2, 31, "a level"),
        ("    alloc", "    allocate", IRSyntax, 3, 5, "an operation"),
        ("shared f16 s[", "shard f16 s[", IRSyntax, 3, 11, "a memory space"),
        ("  }\n}\n", "  }\n", IRSyntax, 6, 1, "an operation"),
        ("  }\n}", '  } {overlap = "after"}\n}', IRSyntax, 5, 16, "one of before"),
        ("}\n}\n", "}\n}\nx", IRSyntax, 7, 1, "the end"),
    ],
)
def test_errors_have_a_place(old: str, new: str, error: type, line: int, column: int, says: str) -> None:
    assert old in GOOD
    with pytest.raises(error) as caught:
        parse_kernel(GOOD.replace(old, new, 1))
    span = caught.value.span
    assert (span.line, span.column, span.end_line) == (line, column, line)
    assert says in str(caught.value)
    if new.strip()[:1].isalpha() and error is IRSyntax:
        # The word at which the text cannot go on.
        assert (
            GOOD.replace(old, new, 1).split("\n")[line - 1][span.column - 1 : span.end_column - 1]
            in new.split("[")[0]
        )


def test_operations_know_where_they_stand() -> None:
    kernel = parse_kernel(GOOD, "good.ir")
    copy = kernel.body[0].body[1]
    assert (copy.span.file, copy.span.line, copy.span.column) == ("good.ir", 4, 5)


def test_listings_read_back() -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "targets"))
    from cpu_kernels import listing1, listing2, listing3

    for kernel in (listing1(), listing2(), listing3()):
        assert parse_kernel(print_kernel(kernel)) == kernel


@settings(RELAXED, max_examples=examples(300))
@given(st.data())
def test_damaged_text_gives_errors_with_a_place(data: st.DataObject) -> None:
    """Text with pieces cut out, doubled or replaced is read or refused; nothing else happens."""
    if data.draw(st.booleans()):
        text, parse = print_kernel(data.draw(tile_kernels())), parse_kernel
    else:
        text, parse = print_lane(data.draw(lane_kernels())), parse_lane
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = min(len(text), start + data.draw(st.integers(0, 4)))
        piece = data.draw(
            st.sampled_from(
                ["", "(", "]", "{", "[]", "()", "%", "9", "group-0", '"\\x"', "`", text[start:stop] * 2]
            )
        )
        text = text[:start] + piece + text[stop:]
    try:
        parse(text)
    except (IRSyntax, IRUnknownName) as error:
        assert error.span is not None
        assert error.render()


@pytest.mark.parametrize(
    "body",
    [
        "event e[]",
        "event e[2] wait e[]",
        "event e[2] wait e at ()",
        "fill %m, " + "(" * 3000,
        "fill %m, " + "1 + (" * 3000,
        "fill %m, " + "neg(" * 3000,
        "while 1 {" * 3000,
        "fill %m, " + "9" * 5000,
        "parallel (i: 1) : group-0 {}",
        'assert 1, "\\x"',
        "fill %m, min(1)",
        "load %m, ",
    ],
    ids=lambda text: text[:16],
)
def test_hostile_text(body: str) -> None:
    with pytest.raises(IRSyntax):
        parse_kernel("kernel f() {\n" + body + "\n}")
