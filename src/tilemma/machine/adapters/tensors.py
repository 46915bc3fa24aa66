"""NumPy views of the arrays that other libraries pass to their kernels."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tilemma.dtypes import from_library
from tilemma.machine.arguments import array_argument, refuse


def is_torch_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(name: str, value: Any) -> Any:
    """``value``, a NumPy array or a CPU tensor of PyTorch, as a NumPy array of the same memory and strides.

    Raises BadMachineCall for tensors on other devices, of other layouts, and for other objects.
    """
    if not is_torch_tensor(value):
        return array_argument(name, value)
    torch = sys.modules["torch"]
    if value.device.type != "cpu":
        refuse(f"`{name}` is on the device `{value.device}`", "a tensor of the CPU", f"pass {name}.cpu()")
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        refuse(f"`{name}` is no plain strided tensor", "strided elements", f"pass {name}.to_dense().resolve_neg()")
    plain = value.detach()
    try:
        return array_argument(name, plain.numpy())
    except TypeError:  # a type that NumPy does not have
        pass
    except RuntimeError as e:  # a fake tensor: no memory
        refuse(f"`{name}` has no memory ({e})", "a tensor with elements", "pass a real tensor")
    found = from_library(str(value.dtype).removeprefix("torch."))
    if found is None or found.numpy.itemsize != value.element_size():
        refuse(f"`{name}` holds {value.dtype}", "an element type of tilemma", "convert it")
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    return array_argument(name, plain.view(bits).numpy().view(found.numpy))


def scratch(size: int) -> Any:
    """``size`` bytes at an address that is a multiple of 256."""
    memory = np.zeros(size + 256, np.uint8)
    start = -memory.__array_interface__["data"][0] % 256
    return memory[start : start + size]
