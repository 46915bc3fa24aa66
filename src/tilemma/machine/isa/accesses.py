"""Which forms of loads, stores and atomic operations exist: rows for ``opcodes``.

Sources: PTX ISA 9.0, "ld", "st", "atom", "red", "st.async", "red.async"; where ptxas 13 differs, as ptxas takes
them.
Hints on caches (``.L1::``, ``.L2::``) are not part of the rows: ``hints_refused``.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilemma.machine.isa.rows import Row

_NARROW = "b8 u8 s8 b16 u16 s16"
_WORDS, _DOUBLES = "b32 u32 s32 f32", "b64 u64 s64 f64"
_SHARED = "shared|shared::cta"
_CLUSTER = "shared::cluster"
_SCOPES = "cta|gpu|sys"


def _vectors() -> Iterator[tuple[str, str]]:
    """Types, and the lengths of vectors up to 16 bytes."""
    yield _NARROW, "[v2|v4|v8]"
    yield _WORDS, "[v2|v4]"
    yield _DOUBLES, "[v2]"
    yield "b128", ""


def _accesses(*, load: bool) -> Iterator[Row]:
    cache, order = ("[ca|cg|cs|lu|cv]", "acquire") if load else ("[wb|cg|cs|wt]", "release")
    spaces = "param|param::entry|param::func" if load else "param|param::func"
    for types, vectors in _vectors():
        sm = 70 if types == "b128" else 0
        yield Row(types, f"[weak] [global|{_SHARED}|local|{spaces}] {cache} {vectors}", sm)
        yield Row(types, f"[weak] {_CLUSTER} {cache} {vectors}", 90)
        if load:
            yield Row(types, f"[weak] const {cache} {vectors}", sm)
            yield Row(types, f"[weak] global [ca|cg|cs] nc {vectors}", sm)
        yield Row(types, f"volatile [global|{_SHARED}] {vectors}", sm)
        yield Row(types, f"volatile {_CLUSTER} {vectors}", 90)
        for scopes, places, first in (
            (_SCOPES, f"[global|{_SHARED}]", 70), ("cluster", f"[global|{_SHARED}|{_CLUSTER}]", 90),
            (_SCOPES, _CLUSTER, 90),
        ):  # fmt: skip
            yield Row(types, f"relaxed|{order} {scopes} {places} {vectors}", first)
        yield Row(types, "mmio relaxed sys [global]", 70)
    nc = " [nc]" if load else ""
    for types, length in ((_WORDS, "v8"), (_DOUBLES, "v4")):
        yield Row(types, f"[weak] [global] {cache}{nc} {length}", 100)
        yield Row(types, f"volatile [global] {length}", 100)
        yield Row(types, f"relaxed|{order} cta|cluster|gpu|sys [global] {length}", 100)


_OPERATORS = {"ca", "cg", "cs", "lu", "cv", "wb", "wt"}
_OTHER_SPACES = {"shared", "shared::cta", _CLUSTER, "local", "const", "param", "param::entry", "param::func"}


def hints_refused(op: str, parts: tuple[str, ...]) -> str:
    """The reason why `ld` or `st` does not take its hints on caches; empty if it does."""
    first = [p for p in parts if p.startswith("L1::")]
    second = [p for p in parts if p.startswith("L2::")]
    sizes = [p for p in second if p[-1] == "B"]
    evictions = [p for p in second if "evict" in p]
    if not first and not second:
        return ""
    if not _OTHER_SPACES.isdisjoint(parts):
        return "hints on caches are for generic addresses and .global"
    if first and not _OPERATORS.isdisjoint(parts):
        return f".{first[0]} does not stand beside a cache operator"
    if "volatile" in parts and len(sizes) < len(first + second):
        return ".volatile takes no eviction priority and no cache policy"
    if op == "st" and sizes:
        return f".{sizes[0]} is for loads"
    if evictions and not ({"v8", "v4"} & {*parts}):
        return f".{evictions[0]} is for accesses of 32 bytes"
    if max(len(first), len(sizes), len(evictions)) > 1:
        return "a hint of each kind once at most"
    return ""


def _operations(*, red: bool) -> Iterator[tuple[str, str, int]]:
    """Types, operations and first architecture of atomic operations."""
    bitwise = "and|or|xor" if red else "and|or|xor|exch|cas"
    yield "b32 b64", bitwise, 0
    if not red:
        yield "b16", "cas", 70
        yield "b128", "exch|cas", 90
    yield "u32", "add|min|max|inc|dec", 0
    yield "s32 u64", "add|min|max", 0
    yield "s64", "min|max", 0
    yield "f32 f64", "add", 0
    yield "f16 f16x2", "add noftz", 0
    yield "bf16 bf16x2", "add noftz", 90


def _atomics(*, red: bool) -> Iterator[Row]:
    orders = "[relaxed|release]" if red else "[relaxed|acquire|release|acq_rel]"
    for types, operation, sm in _operations(red=red):
        yield Row(types, f"{orders} [{_SCOPES}] [global|{_SHARED}] {operation}", sm)
        yield Row(types, f"{orders} cluster [global|{_SHARED}|{_CLUSTER}] {operation}", 90)
        yield Row(types, f"{orders} [{_SCOPES}] {_CLUSTER} {operation}", 90)
    for types, vectors, operation in (
        ("f32", "v2|v4", "add"), ("f16 bf16", "v2|v4|v8", "add|min|max noftz"),
        ("f16x2 bf16x2", "v2|v4", "add|min|max noftz"),
    ):  # fmt: skip
        yield Row(types, f"{orders} [{_SCOPES}|cluster] [global] {vectors} {operation}", 90)


def _reductions_on_mbarriers() -> Iterator[Row]:
    common = f"async relaxed cluster mbarrier::complete_tx::bytes [{_CLUSTER}]"
    for types, operations in (
        ("u32", "inc|dec"), ("u32 s32", "min|max"), ("u32 s32 u64 s64", "add"), ("b32", "and|or|xor")
    ):  # fmt: skip
        yield Row(types, f"{common} {operations}", 90)


def _stores_on_mbarriers() -> Iterator[Row]:
    for vectors, types in (("[v2|v4]", _WORDS), ("[v2]", _DOUBLES)):
        yield Row(types, f"async [weak] mbarrier::complete_tx::bytes [shared|{_CLUSTER}] {vectors}", 90)
        yield Row(types, f"async [weak] shared {vectors}", 90)


ACCESSES: dict[str, tuple[Row, ...]] = {
    "ld": tuple(_accesses(load=True)),
    "st": tuple(_accesses(load=False)),
    "atom": tuple(_atomics(red=False)),
    "red": tuple(_atomics(red=True)),
    "red.async": tuple(_reductions_on_mbarriers()),
    "st.async": tuple(_stores_on_mbarriers()),
}
