"""Bodies of `apply` that access memory: what the pass refuses against all pairs of elements."""

from __future__ import annotations

from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.language.test_advice import co
from tilemma.errors import CompileError
from tilemma.kernels import Kernel

EXTENTS = 16, 8
# Subscripts of a buffer [64, 64], in Croqtile and, with `//` for `/`, in Python.
SUBSCRIPTS = ("0", "1", "i", "j", "i + 1", "7 - j", "i / 2", "j % 4", "i * 2 + 1", "i / 8 * 8 + j", "i + j")
CONDITIONS = ("i >= 0", "i < 1", "j < 1", "i == j", "i * 8 + j == 17")
REFUSALS = ("apply-reduction", "apply-order")
subscripts = st.tuples(st.sampled_from(SUBSCRIPTS), st.sampled_from(SUBSCRIPTS))
conditions = st.sampled_from(CONDITIONS)


def kernel(
    write: tuple[str, str], read: tuple[str, str], first: str, second: str, slots: tuple[int, int]
) -> Kernel:
    s = [f"s[{n}].at({', '.join(x)})" for n, x in zip(slots, (write, read), strict=True)]
    return co(f"""parallel p by 1 : block {{
      shared f32 [64, 64] s[2];
      parallel w by 1 : group {{
        frag f32[{EXTENTS[0]}, {EXTENTS[1]}] m {{0.0f}};
        apply {{i, j}} in m.span {{ if ({first}) {{ {s[0]} = 1.0f; }} if ({second}) {{ m.at(i, j) = {s[1]}; }} }}
        mma.store m, c.subspan({EXTENTS[0]}, {EXTENTS[1]}).at(0, 0);
      }}
    }}""")


def places(at: tuple[str, str], condition: str) -> dict[tuple[int, int], tuple[int, int]]:
    """The place that each element accesses."""
    code = compile(f"({condition.replace('/', '//')}), {', '.join(at).replace('/', '//')}", "subscripts", "eval")
    found = {e: eval(code, {"i": e[0], "j": e[1]}) for e in product(*map(range, EXTENTS))}
    return {e: (row, column) for e, (runs, row, column) in found.items() if runs}


def refusal(of: Kernel) -> str:
    try:
        of.build()
    except CompileError as e:
        assert e.code in REFUSALS, e
        return e.code
    return ""


@settings(max_examples=40, deadline=None)
@given(subscripts, subscripts, conditions, conditions, st.tuples(st.integers(0, 1), st.integers(0, 1)))
@example(("i", "0"), ("i", "1"), "i >= 0", "i >= 0", (0, 0))
@example(("i", "j"), ("j", "i"), "i >= 0", "i >= 0", (0, 1))
@example(("i", "0"), ("i", "0"), "j < 1", "j < 1", (0, 0))
@example(("i", "0"), ("i", "0"), "j < 1", "i >= 0", (0, 0))
def test_elements_that_meet_are_refused(
    write: tuple[str, str], read: tuple[str, str], first: str, second: str, slots: tuple[int, int]
) -> None:
    """Where two elements use one place, and one of them writes it, their order would matter.

    Accepted for sure: the element's own place, and a constant coordinate that differs.
    """
    found = refusal(kernel(write, read, first, second, slots))
    writes, reads = places(write, first), places(read, second)
    readers: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for element, place in reads.items():
        readers.setdefault(place, set()).add(element)
    meet = slots[0] == slots[1] and any(readers.get(place, {e}) != {e} for e, place in writes.items())
    if meet:
        assert found, "two elements meet"
    every = list(places(write, "True").values())
    constant = any(a.isdigit() and b.isdigit() and a != b for a, b in zip(write, read, strict=True))
    if slots[0] != slots[1] or constant or (write == read and len(set(every)) == len(every)):
        assert not found, "no two elements meet"


def test_the_kind_of_refusal() -> None:
    """One place that every element reads and writes is a sum; several are a matter of order."""
    always = CONDITIONS[0]
    assert refusal(kernel(("0", "1"), ("0", "1"), always, always, (0, 0))) == "apply-reduction"
    assert refusal(kernel(("i", "j"), ("j", "i"), always, always, (0, 0))) == "apply-order"
