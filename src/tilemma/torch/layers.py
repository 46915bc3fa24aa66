"""Layers: `Linear` in five kinds of storage and arithmetic, and the conversion of a model's layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import tilemma
from tilemma.errors import described, nearest
from tilemma.ops.refusals import UnfitLayer, UnknownKind
from tilemma.torch import (
    inference,
    registration,  # noqa: F401  (registers the operators that the layers call)
    rows,
)
from tilemma.torch.operators import quantize

KINDS = ("bf16", "fp8", "int8", "e4m3", "s8", "s4", "2:4")
# The types that kinds round to, the kinds that keep the rounded weight, and all that keep no other weight.
EIGHT = {"fp8": "f8_e4m3", "int8": "s8", "e4m3": "f8_e4m3", "s8": "s8"}
KEPT = ("e4m3", "s8")
STORED = (*KEPT, "s4", "2:4")
# What has to divide the number of inputs.
UNITS = {"s4": 2, "2:4": 8}
GROUPS = (128, 64, 32, 16, 8, 4, 2)


def _checked(function: str, kind: Any) -> str:
    if not isinstance(kind, str) or kind not in KINDS:
        near = nearest(kind, KINDS) if isinstance(kind, str) else None
        fix = f"did you mean `{near}`?" if near else "use one of these"
        raise UnknownKind(function=function, kind=described(kind), known=", ".join(KINDS), fix_text=fix)
    return kind


class Linear(nn.Module):
    """y = x @ weight.T + bias, as `torch.nn.Linear`, whose state dicts it loads and writes.

    ``kind``: "bf16" multiplies the weight as it is (f16, bf16, f32 or f64).  "fp8" and "int8" keep it too, and
    multiply rows of x and of the weight rounded to 8 bits, with a scale for each row; gradients are computed in
    the weight's own type.  "e4m3" and "s8" do the same, and keep the rounded weight alone.  "s4" stores 4 bits and
    a scale for each group of 128 inputs (or fewer, where 128 does not divide them), "2:4" the two largest of each
    four inputs.  Weights of these four are not trained; their state dicts have the weight that the layer
    multiplies.

    Raises UnknownKind, and UnfitLayer for an odd number of inputs in "s4" and one that 8 does not divide in "2:4".
    """

    in_features: int
    out_features: int

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, kind: str = "bf16", device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _checked("Linear", kind)
        model = nn.Linear(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self._take(model, kind)

    @classmethod
    def of(cls, model: nn.Linear, kind: str = "bf16") -> Linear:
        """A layer with the parameters of ``model``."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(model, _checked("Linear.of", kind))
        made.train(model.training)
        return made

    def _take(self, model: nn.Linear, kind: str) -> None:
        self.in_features, self.out_features, self.kind = model.in_features, model.out_features, kind
        self.dtype = model.weight.dtype
        self.register_parameter("bias", model.bias)
        if kind not in STORED:
            self.register_parameter("weight", model.weight)
            return
        unit = UNITS.get(kind, 1)
        if self.in_features % unit or not self.in_features:
            wanted = f"a number that {unit} divides"
            raise UnfitLayer(kind=kind, features=self.in_features, wanted=wanted)
        for name, x in self._stored(model.weight).items():
            self.register_buffer(name, x, persistent=False)

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return next(n for n in GROUPS if self.in_features % n == 0)

    def _stored(self, weight: Tensor) -> dict[str, Tensor]:
        """The buffers of a weight [out, in] that is not kept; without numbers, of one on the meta device."""
        weight = weight.detach()
        outer, columns = self.out_features, self.in_features
        if self.kind in KEPT:
            if weight.is_meta:
                values = weight.new_empty(outer, columns, dtype=torch.int8)
                return {"values": values, "scales": weight.new_empty(outer, dtype=torch.int32)}
            values, factors = quantize(weight, EIGHT[self.kind], 1)
            # As integers, which `half` and the like do not convert.
            return {"values": values.view(torch.int8), "scales": factors.flatten().view(torch.int32)}
        if weight.is_meta:
            if self.kind == "s4":
                scales = weight.new_empty(columns // self.group, outer, dtype=torch.float32)
                return {"values": weight.new_empty(outer, columns // 2, dtype=torch.uint8), "scales": scales}
            bits, kind = self._word
            words = weight.new_empty(outer, columns // bits, dtype=kind)
            return {"values": weight.new_empty(outer, columns // 2), "metadata": words}
        if self.kind == "s4":
            q = tilemma.quantize(weight.t(), "s4", self.group)
            return {"values": q.values, "scales": q.scales}
        bits, kind = self._word
        s = tilemma.sparse.compress(tilemma.sparse.prune(weight), f"u{bits}")
        metadata = (
            torch.from_numpy(s.metadata.view(f"i{bits // 8}")) if not torch.is_tensor(s.metadata) else s.metadata
        )
        return {"values": s.values, "metadata": metadata.view(kind).to(weight.device)}

    @property
    def _word(self) -> tuple[int, torch.dtype]:
        """Bits and type of an element of the metadata: few operators of torch know unsigned integers."""
        bits = next(n for n in (32, 16, 8) if self.in_features % n == 0)
        return bits, {8: torch.int8, 16: torch.int16, 32: torch.int32}[bits]

    def __getattr__(self, name: str) -> Any:
        """``weight`` of the kinds that do not keep it is computed: `dense`, in the type that the weight had."""
        if name == "weight" and self.__dict__.get("kind") in STORED:
            return self.dense().to(self.dtype)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """A ``weight`` for these kinds is stored as one of a state dict is; others are assigned."""
        if name == "weight" and self.__dict__.get("kind") in STORED and isinstance(value, Tensor):
            self.load_state_dict({name: value.detach()}, strict=False)
        else:
            super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Tensor:
        """[.., out_features] of [.., in_features]."""
        return self._rows(x[None])[0] if x.dim() == 1 else self._rows(x)

    def _rows(self, x: Tensor) -> Tensor:
        # Not by `__getattr__`, and overloads by name: torch takes longer to find them.
        try:
            bias = self._parameters["bias"]
        except KeyError:
            bias = self.bias
        if self.kind in KEPT:
            return self._eight_bits(x, bias)
        weight = self._parameters.get("weight")
        if self.kind not in ("s4", "2:4") and weight is not None and inference.is_plain(x, weight, bias):
            direct = (
                rows.product(x, weight, True, bias, _compute(x))
                if self.kind == "bf16"
                else rows.rounded_product(x, weight.t(), None, EIGHT[self.kind], bias)
            )
            if direct is not None:
                return direct
        product = torch.ops.tilemma
        if self.kind == "s4":
            return product.mixed_matmul.default(x, self.values, self.scales, None, "s4", self.group, bias)
        if self.kind == "2:4":
            column = None if bias is None else bias[:, None]
            right = x.reshape(-1, self.in_features).t()
            found = product.sparse_matmul.default(self.values, self.metadata, self.in_features, right, column)
            return found.t().reshape(*x.shape[:-1], self.out_features)
        right = self.weight.t()
        if self.kind in EIGHT:
            return product.quantized_matmul.default(x, right, EIGHT[self.kind], bias)
        return product.matmul.default(x, right, None, bias, compute=_compute(x))

    def _eight_bits(self, x: Tensor, bias: Tensor | None) -> Tensor:
        values, scales = self._buffers["values"], self._buffers["scales"]
        assert values is not None and scales is not None
        kind = EIGHT[self.kind]
        if inference.is_plain(x, values, bias):
            direct = rows.rounded_product(x, values, scales, kind, bias, kept=True)
            if direct is not None:
                return direct
        weight, factors = values.view(rows.TYPES[kind]).t(), scales.view(torch.float32)
        return torch.ops.tilemma.quantized_matmul.default(x, weight, kind, bias, factors)

    def dense(self) -> Tensor:
        """The weight [out, in] that the layer multiplies."""
        if self.kind in KEPT:
            return (
                self.values.view(rows.TYPES[EIGHT[self.kind]]).float() * self.scales.view(torch.float32)[:, None]
            )
        if self.kind == "s4":
            from tilemma.torch.derivatives import dequantized

            stored = {"values": self.values, "scales": self.scales, "zeros": None}
            return dequantized({**stored, "type": "s4", "group": self.group}, torch.float32).t().contiguous()
        if self.kind == "2:4":
            from tilemma.torch.derivatives import columns_of

            whole = torch.zeros(
                self.out_features, self.in_features, dtype=self.values.dtype, device=self.values.device
            )
            return whole.scatter_add(1, columns_of(self.values, self.metadata), self.values)
        return self.weight

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.kind in STORED:
            destination[prefix + "weight"] = self.dense()

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        if self.kind not in STORED:
            super()._load_from_state_dict(state, prefix, *args)
            return
        missing, _, errors = args[2:5]
        name = prefix + "weight"
        rest = {n: x for n, x in state.items() if n != name}
        super()._load_from_state_dict(rest, prefix, *args)
        weight = state.get(name)
        if weight is None:
            missing.append(name)
        elif tuple(weight.shape) != (self.out_features, self.in_features):
            errors.append(
                f"{name} has shape {list(weight.shape)}, {[self.out_features, self.in_features]} is needed"
            )
        else:
            kept = weight.to(self.values.dtype) if self.kind == "2:4" else weight
            if args[0].get("assign_to_params_buffers"):
                self._buffers.update(self._stored(kept))
                return
            for n, x in self._stored(kept.to(self.values.device)).items():
                getattr(self, n).copy_(x)

    def extra_repr(self) -> str:
        """Extents and kind, for `print`."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, kind={self.kind!r}"


def _compute(x: Tensor) -> str | None:
    return "tf32" if x.dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32 else None


def _plain(module: nn.Module | None) -> bool:
    """Whether a module computes what `nn.Linear` computes, of its weight and bias."""
    if module is None or type(module) is not nn.Linear or "forward" in module.__dict__:
        return False
    hooks = (x for n, x in module.__dict__.items() if n.endswith("_hooks"))
    return set(module._parameters) == {"weight", "bias"} and not (
        module._buffers or module._modules or any(isinstance(x, dict) and x for x in hooks)
    )


def convert(model: nn.Module, kind: str = "bf16") -> nn.Module:
    """Replace every `nn.Linear` in ``model`` by a `Linear` of ``kind``, in place, and return the model.

    Modules of subclasses stay as they are, as do layers whose inputs the kind cannot divide, and layers that
    compute more than their class says: with hooks, a `forward` of their own, or other parameters (`weight_norm`,
    pruning).  A module that occurs twice is replaced by one layer.  An `nn.Linear` itself gives a new layer.
    Raises UnknownKind.
    """
    _checked("convert", kind)
    if not isinstance(model, nn.Module):
        raise UnknownKind(
            function="convert", kind=described(model), known="torch.nn.Module", fix_text="pass the model first"
        )
    if type(model) is nn.Linear:
        return Linear.of(model, kind) if _plain(model) else model
    made: dict[nn.Module, Linear] = {}
    unit = UNITS.get(kind, 1)
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if _plain(child) and child.in_features % unit == 0:
                if child not in made:
                    made[child] = Linear.of(child, kind)
                setattr(module, name, made[child])
    return model
