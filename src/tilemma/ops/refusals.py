"""Errors of wrong arguments of the products, and of the layers of `tilemma.torch`."""

from __future__ import annotations

from tilemma.errors import LaunchError, ToolError


class MatmulShape(LaunchError):
    code = "matmul-shape"
    found = "{function}: {what}"
    expected = "{wanted}"
    fix = "{remedy}"


class MatmulType(LaunchError):
    code = "matmul-dtype"
    found = "{function}: `{name}` holds {type}"
    expected = "{wanted}"
    fix = "{remedy}"


class MatmulScalar(LaunchError):
    code = "matmul-scalar"
    found = "{function}: `{name}` is {value!r}, a {type}"
    expected = "a real number"
    fix = "pass a Python number; `scaled_matmul` takes arrays of scales"


class MatmulAddend(LaunchError):
    code = "matmul-addend"
    found = "{function}: beta is {beta} and there is no `c`"
    expected = "`c` wherever beta is not 0"
    fix = "pass `c=...`, or leave beta out"


class UnknownActivation(LaunchError):
    code = "matmul-activation"
    found = "{function}: {activation!r} is not an activation"
    expected = "None or one of {known}"
    fix = "{fix_text}"


class MatmulScale(LaunchError):
    code = "matmul-scale"
    found = "{function}: `{name}` {what}"
    expected = "{wanted}"
    fix = "{remedy}"


class MatmulOffsets(LaunchError):
    code = "matmul-offsets"
    found = "{function}: `offsets` {what}"
    expected = "{wanted}"
    fix = "{remedy}"


class MatmulCompute(LaunchError):
    code = "matmul-compute"
    found = "{function}: `compute` is {compute}, with operands of {type}"
    expected = "None, or 'tf32' with operands of f32"
    fix = "leave `compute` out, or convert the operands to f32"


class MatmulGradient(LaunchError):
    code = "matmul-gradient"
    found = "{function}: `{name}` requires a gradient, and the result would have none"
    expected = "tensors that do not require gradients, or a call under `torch.no_grad()`"
    fix = "call it under `torch.no_grad()`, or pass `{name}.detach()`"


class ConvolutionExtent(LaunchError):
    code = "convolution-extent"
    found = "conv2d: `{name}` is {value}"
    expected = "{wanted}"
    fix = "{remedy}"


class TorchMissing(ToolError, ImportError):
    code = "torch-missing"
    found = "`tilemma.torch` needs torch, which cannot be imported: {why}"
    expected = "torch 2.6 or later in this environment"
    fix = "install it: pip install torch"


class TorchTransform(LaunchError):
    code = "torch-transform"
    found = "`torch.ops.tilemma.{function}` is differentiated inside a transform of torch.func"
    expected = "`torch.autograd.grad` or `backward`"
    fix = "compute the gradient by `torch.autograd.grad(f(x), x)`"


class UnknownKind(LaunchError, ValueError):
    code = "layer-kind"
    found = "{function}: {kind} is no kind of layer"
    expected = "one of {known}"
    fix = "{fix_text}"


class UnfitLayer(LaunchError, ValueError):
    code = "layer-extent"
    found = "a layer of kind {kind} has {features} input features"
    expected = "{wanted}"
    fix = "use the kind `bf16` for this layer"
