"""Products of tilemma for torch: operators with gradients, and layers.

    import tilemma.torch
    y = torch.ops.tilemma.matmul(x, w, bias=b, activation="gelu")
    tilemma.torch.convert(model, "fp8")

Importing it registers `torch.ops.tilemma.*`, and makes `tilemma.ops` differentiable.
"""

from __future__ import annotations

from tilemma.ops.refusals import TorchMissing

try:
    import torch as _torch  # noqa: F401
except (ImportError, OSError) as _error:
    raise TorchMissing(why=str(_error).splitlines()[0]) from None

from tilemma.torch import registration  # noqa: F401
from tilemma.torch.layers import Linear, convert

__all__ = ["Linear", "convert"]
