"""By how much two tensors of one dtype and shape differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_BLOCK_ELEMENTS = 1 << 20
"""Elements at a time, so that the work in float64 needs little memory."""

_WIDE_INTEGERS = (torch.int64, torch.uint64)


@dataclass(frozen=True, slots=True)
class Difference:
    """How one tensor differs; numbers are None where the dtype has no values to subtract.

    Attributes:
        name: Of the tensor, or of a part of a sparse, nested or wrapper tensor.
        numel: Elements.
        num_differing: Elements whose bits differ.
        max_abs: Largest absolute difference of two finite elements.
        relative_l2: L2 norm of the difference over that of the first tensor, finite elements only;
            None where the first one's norm is 0.
        num_not_finite: Elements that differ and of which at least one is infinite or NaN.
    """

    name: str
    numel: int | None = None
    num_differing: int | None = None
    max_abs: float | None = None
    relative_l2: float | None = None
    num_not_finite: int = 0


def difference_of(name: str, a: torch.Tensor, b: torch.Tensor) -> Difference | None:
    """Compare two strided tensors by bits, and measure the difference by value.

    Args:
        name: For the result.
        a: On the CPU.
        b: Of the same dtype and shape as ``a``.

    Returns:
        None where all bits are the same.
    """
    if a.is_quantized:
        same_quantizer = _is_same_quantizer(a, b)
        by_value = difference_of(name, a.dequantize(), b.dequantize())
        if by_value is None and not same_quantizer:
            return Difference(name, a.numel(), 0, 0.0, 0.0)  # other integers, the same values
        return by_value
    total = _Sums()
    for block_a, block_b in zip(_blocks(a.detach()), _blocks(b.detach()), strict=True):
        differs = _bits_differ(block_a, block_b)
        num_differing = int(differs.sum())
        total.num_differing += num_differing
        values_a = _values(block_a)
        values_b = _values(block_b) if num_differing else values_a
        if values_a is None or values_b is None:
            total.has_values = False
            continue
        total.add(values_a, values_b, _wide_difference(block_a, block_b), differs)
    if not total.num_differing:
        return None
    return total.result(name, a.numel())


@dataclass(slots=True)
class _Sums:
    num_differing: int = 0
    num_not_finite: int = 0
    max_abs: float = 0.0
    squares_of_difference: float = 0.0
    squares_of_a: float = 0.0
    has_values: bool = True

    def add(
        self, a: torch.Tensor, b: torch.Tensor, wide: torch.Tensor | None, differs: torch.Tensor
    ) -> None:
        """Add a block of values: float64, shape (elements, 1 or 2)."""
        is_finite = a.isfinite() & b.isfinite()
        self.num_not_finite += int((differs & ~is_finite.all(dim=1)).sum())
        difference = (b - a if wide is None else wide).abs()[is_finite]
        if difference.numel():
            self.max_abs = max(self.max_abs, float(difference.max()))
            self.squares_of_difference += float(difference.square().sum())
            self.squares_of_a += float(a[is_finite].square().sum())

    def result(self, name: str, numel: int) -> Difference:
        if not self.has_values:
            return Difference(name, numel, self.num_differing)
        relative: float | None = None
        if self.squares_of_a > 0:
            relative = math.sqrt(self.squares_of_difference / self.squares_of_a)
        max_abs = self.max_abs if math.isfinite(self.max_abs) else None
        if relative is not None and not math.isfinite(relative):
            relative = None
        return Difference(name, numel, self.num_differing, max_abs, relative, self.num_not_finite)


def _is_same_quantizer(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.qscheme() != b.qscheme():
        return False
    if a.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return a.q_scale() == b.q_scale() and a.q_zero_point() == b.q_zero_point()
    return torch.equal(a.q_per_channel_scales(), b.q_per_channel_scales()) and torch.equal(
        a.q_per_channel_zero_points(), b.q_per_channel_zero_points()
    )


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Cut a tensor into contiguous pieces of one dimension, in order of its elements."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    for start in range(0, flat.numel(), _BLOCK_ELEMENTS):
        yield flat[start : start + _BLOCK_ELEMENTS]


def _bits_differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Give a bool per element."""
    bits_a = a.view(torch.uint8).reshape(a.numel(), -1)
    bits_b = b.view(torch.uint8).reshape(b.numel(), -1)
    return (bits_a != bits_b).any(dim=1)


def _values(block: torch.Tensor) -> torch.Tensor | None:
    """Give float64 of shape (elements, 1), or (elements, 2) of complex; None where it has none."""
    if block.is_complex():
        return torch.view_as_real(block).to(torch.float64)
    try:
        return block.to(torch.float64).reshape(-1, 1)
    except (RuntimeError, NotImplementedError):  # dtypes of bits only have no conversion
        return None


def _wide_difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """Give ``b - a`` of 64-bit integers, which float64 alone would round to 0."""
    if a.dtype not in _WIDE_INTEGERS:
        return None
    high_a, low_a = _halves(a)
    high_b, low_b = _halves(b)
    return ((high_b - high_a) * 2.0**32 + (low_b - low_a)).reshape(-1, 1)


def _halves(block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the upper and lower 32 bits as float64, exactly."""
    signed = block.view(torch.int64)
    high = (signed >> 32).to(torch.float64)
    if block.dtype == torch.uint64:
        high = torch.where(high < 0, high + 2.0**32, high)
    return high, (signed & 0xFFFFFFFF).to(torch.float64)
