"""Additions to the tensor-layouts library: shared-memory tiles, CuTe's printed spelling,
`tile_to_shape` in CuTe's form, wgmma matrix descriptors, bank conflicts.

A layout maps coordinates to element offsets.  A swizzle acts on byte addresses; `Sw<3,4,3>` on bytes is
`Sw<3,3,3>` on the offsets of 16-bit elements.
"""

from __future__ import annotations

from tilemma.layouts.algebra import cute_str, element_swizzle, flat_modes, offsets, tile_to_shape
from tilemma.layouts.banks import BankReport, bank_conflicts
from tilemma.layouts.descriptor import Descriptor, DescriptorError
from tilemma.layouts.shared import (
    SWIZZLES,
    InstructionMisfit,
    Major,
    SharedLayout,
    SwizzleAtomMisfit,
    TileMisfit,
    canonical_atom,
    plain_layout,
    shared_layout,
)

__all__ = [
    "SWIZZLES", "BankReport", "Descriptor", "DescriptorError", "InstructionMisfit", "Major", "SharedLayout",
    "SwizzleAtomMisfit", "TileMisfit", "bank_conflicts", "canonical_atom", "cute_str", "element_swizzle",
    "flat_modes", "offsets", "plain_layout", "shared_layout", "tile_to_shape",
]  # fmt: skip
