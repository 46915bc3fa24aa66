"""The bit fields that instructions take as operands.

The wgmma matrix descriptor and `CUtensorMapSwizzle` number the same swizzles differently; both numberings
are in `tilemma.layouts.descriptor`, each under its own name.
"""

from __future__ import annotations

from tilemma.layouts.descriptor import (
    MODE_OF_SWIZZLE,
    SWIZZLE_OF_MODE,
    Descriptor,
    DescriptorError,
    tensor_map_swizzle,
)

__all__ = ["MODE_OF_SWIZZLE", "SWIZZLE_OF_MODE", "Descriptor", "DescriptorError", "tensor_map_swizzle"]
