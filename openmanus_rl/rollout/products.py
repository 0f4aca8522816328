"""Products of float32 matrices, by oneDNN where the library that torch asks for them is slow.

On x86 torch leaves them to Intel's MKL, which uses half the width of an AMD processor with AVX-512; oneDNN, which torch
has as well, uses all of it (`python -m benchmarks products` compares them). The numbers are the same but for rounding,
and nothing is narrower than float32. On other processors, and for other dtypes, devices and kinds of tensors, torch's
own functions are called, and so they are with `torch.backends.mkldnn.enabled = False`.
"""

from __future__ import annotations

import platform
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from torch import Tensor

# Below it a call costs more than it saves.
FEWEST_ROWS = 16
_OPERATIONS: Any = torch.ops.mkldnn


def onednn_is_faster() -> bool:
    """Whether this is an AMD processor with AVX-512, and torch one with MKL and oneDNN."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return False
    return "AuthenticAMD" in _processor() and has_onednn()


def has_onednn() -> bool:
    """Whether torch has oneDNN, and its operation that is called here: no release promises that one."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    x, weight = torch.arange(6.0).view(2, 3), torch.eye(3)
    try:
        return torch.equal(_OPERATIONS._linear_pointwise(x, weight, None, "none", [], ""), x)
    except (AttributeError, RuntimeError, TypeError):  # another release has none, or one with other arguments
        return False


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    return info.read_text(encoding="utf-8") if info.is_file() else platform.processor()


BY_ONEDNN = onednn_is_faster()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, as `torch.nn.functional.linear`; with gradients."""
    if not _fits(x, weight) or (bias is not None and not _plain(bias)):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (x, weight, bias)):
        found: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return found
    return _times(x, weight, bias)


def linear_added(x: Tensor, h: Tensor, weight: Tensor) -> Tensor:
    """x + h W^T, for (rows, width); without gradients."""
    return _times(h, weight).add_(x) if _fits(h, weight) else torch.addmm(x, h, weight.t())


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b, of two matrices; without gradients."""
    return _times(a, b.T) if _fits(a, b.T) else a @ b


def add_transposed_product(total: Tensor, a: Tensor, b: Tensor, most_bytes: int) -> None:
    """total += a^T b; by way of a product aside only where that is faster, and if it has at most so many bytes."""
    if total.dtype is not a.dtype:
        total += a.T @ b
    elif _fits(a.T, b.T) and total.nbytes <= most_bytes:
        total += transposed_product(a, b)
    else:
        total.addmm_(a.T, b)


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """a^T b, of two matrices with a row for each token; without gradients."""
    if not _fits(a.T, b.T):
        return a.T @ b
    a, b = _whole_sizes(a), _whole_sizes(b)
    # A transposed first factor is read slowly; the fewer rows it has, the less often.
    return _times(b.T, a.T).T if a.shape[1] > b.shape[1] else _times(a.T, b.T)


def take_over(model: torch.nn.Module) -> None:
    """Let a model's linear layers compute by `linear`; nothing changes where torch's own is as fast."""
    if not BY_ONEDNN:
        return
    for layer in model.modules():
        if type(layer) is torch.nn.Linear and "forward" not in vars(layer):
            # Not a method of it: those cannot be pickled.
            layer.forward = partial(_forward, layer)  # type: ignore[method-assign]


def _forward(layer: Any, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Plain tensors, as large as it takes; what is sharded, narrow or symbolic is left to torch."""
    return (
        BY_ONEDNN
        and _plain(x)
        and _plain(weight)
        and x.numel() >= FEWEST_ROWS * weight.shape[1] > 0
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
    )


def _plain(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.device.type == "cpu" and type(x) in _PLAIN


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _times(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, for rows of any shape."""
    rows = x.reshape(-1, x.shape[-1])
    bias = None if bias is None else bias.contiguous()  # it takes no notice of a bias's strides
    found: Tensor = _OPERATIONS._linear_pointwise(_whole_sizes(rows), weight, bias, "none", [], "")
    return found.resize_(*x.shape[:-1], weight.shape[0])  # the rows that were added are the last ones


def _whole_sizes(rows: Tensor) -> Tensor:
    """With rows of zeros up to the next of some hundred sizes.

    oneDNN makes code for each new size, which takes much longer than a small product, and every step has other numbers
    of tokens. With four binary digits they grow by an eighth at most.
    """
    count = len(rows)
    short = -count % _grid(count)
    if not short:
        return rows
    grown = rows.new_empty(count + short, rows.shape[1])
    grown[:count] = rows
    grown[count:] = 0
    return grown


def fewer_whole(count: int) -> int:
    """The largest of these sizes that is no larger: so many rows are taken as they are."""
    return count - count % _grid(count)


def _grid(count: int) -> int:
    return 1 << max(0, count.bit_length() - 4)


class _Linear(torch.autograd.Function):
    """y = x W^T + b;  dx = dy W,  dW = dy^T x,  db = the sum of dy over all rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        by_x, by_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if by_weight else None, weight if by_x else None)
        return _times(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by_x, by_weight, by_bias = ctx.needs_input_grad
        rows = slopes.reshape(-1, slopes.shape[-1])
        return (
            _times(slopes, weight.T) if by_x else None,
            transposed_product(rows, x.reshape(-1, x.shape[-1])) if by_weight else None,
            rows.sum(0) if by_bias else None,
        )
