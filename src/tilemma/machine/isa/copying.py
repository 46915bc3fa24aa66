"""Which forms of prefetches and changes of tensor maps exist: rows for ``opcodes``.

Sources: PTX ISA 9.0, "Data Movement and Conversion Instructions"; where ptxas 13 differs, as ptxas takes them.
"""

from __future__ import annotations

from tilemma.machine.isa.rows import Row

_RANKS = "1d|2d|3d|4d|5d"
# The priorities of a cache policy: first the one of the chosen lines, then that of the others.
PRIMARY = ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")
SECONDARY = ("L2::evict_first", "L2::evict_unchanged")
# The fields of a tensor map that `tensormap.replace` changes: those of 64 bits, those with an ordinal, and the
# largest values of those that are constants.
_FIELDS = {"global_address": "b64", "global_stride": "b64"}
_ORDINAL = ("box_dim", "global_dim", "global_stride", "element_stride")
# Element types above 12 are those of sm_100a.
CONSTANT_FIELDS = {
    "elemtype": 15,
    "interleave_layout": 2,
    "swizzle_mode": 3,
    "swizzle_atomicity": 3,
    "fill_mode": 1,
}


def _replacements() -> tuple[Row, ...]:
    names = ("global_address", "rank", *_ORDINAL, *CONSTANT_FIELDS)
    return tuple(
        Row(
            _FIELDS.get(name, "b32"),
            f"tile {name} b1024 [global|shared::cta]",
            100 if name == "swizzle_atomicity" else 90,
            operands=2 + (name in _ORDINAL),
        )
        for name in names
    )


COPYING: dict[str, tuple[Row, ...]] = {
    "cp.async.bulk.prefetch.L2": (
        Row("", "global", 90, operands=2), Row("", "global L2::cache_hint", 90, operands=3),
    ),
    "cp.async.bulk.prefetch.tensor": tuple(
        Row("", f"{ranks} L2 global {mode}", 90, operands=operands)
        for ranks, mode, operands in (
            (_RANKS, "[tile]", 1), (_RANKS, "[tile] L2::cache_hint", 2),
            ("3d|4d|5d", "im2col", 2), ("3d|4d|5d", "im2col L2::cache_hint", 3),
        )
    ),
    "tensormap.replace": _replacements(),
    "tensormap.cp_fenceproxy": (
        Row("", "global shared::cta tensormap::generic release cta|cluster|gpu|sys sync aligned", 90, operands=3),
    ),
    "discard": (Row("", "[global] L2", 80, operands=2),),
}  # fmt: skip
