"""States that tests save, and what it means that two of them are the same."""

import collections
import ctypes
import random
import warnings

import numpy as np
import torch

# fmt: off
DTYPES = [
    "float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128", "int8",
    "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]
# fmt: on

ONLY_WITH_CODE = {"subclass", "numpy_array", "numpy_scalar", "object", "module", "numpy_rng"}
"""Cases that ``weights_only=True`` refuses, as stock torch does."""


class Subclass(torch.Tensor):
    """A tensor subclass without behaviour of its own."""


class PlainObject:
    """An object that only pickle knows."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.number = 3


def every_dtype():
    """Name to a tensor of that dtype with known bytes."""
    raw = torch.arange(256, dtype=torch.uint8)
    states = {}
    for name in DTYPES:
        dtype = getattr(torch, name)
        states[name] = raw.remainder(2).bool() if name == "bool" else raw.clone().view(dtype)
    return states


def every_kind():
    """Name to a value of every kind that torch.save takes."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape, dtype=torch.float32):
        return torch.randn(*shape, dtype=dtype, generator=generator)

    base = randn(4, 6)
    attributed = randn(3)
    attributed.note = "bar"
    module = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of these kinds beta or deprecated
        return {
            "view": base[1:3, ::2],
            "transposed": base.t(),
            "expanded": randn(3, 1).expand(3, 5),
            "conj": randn(3, dtype=torch.complex64).conj(),
            "neg": randn(3, dtype=torch.complex64).conj().imag,
            "empty": torch.empty(0, 3),
            "zero_dim": torch.tensor(2.5),
            "meta": torch.empty(3, 4, device="meta"),
            "parameter": torch.nn.Parameter(randn(3)),
            "frozen": torch.nn.Parameter(randn(3), requires_grad=False),
            "requires_grad": randn(3).requires_grad_(),
            "buffer": torch.nn.Buffer(torch.ones(2)),
            "subclass": randn(3).as_subclass(Subclass),
            "attribute": attributed,
            "typed_storage": torch.arange(5.0).storage(),
            "sparse_coo": torch.eye(3).to_sparse(),
            "sparse_csr": torch.eye(3).to_sparse_csr(),
            "sparse_csc": torch.eye(3).to_sparse_csc(),
            "sparse_bsr": torch.eye(4).to_sparse_bsr((2, 2)),
            "sparse_bsc": torch.eye(4).to_sparse_bsc((2, 2)),
            "quantized": torch.quantize_per_tensor(randn(4), 0.1, 2, torch.qint8),
            "quantized_channels": torch.quantize_per_channel(
                randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.quint8
            ),
            "nested": torch.nested.nested_tensor([randn(2, 3), randn(1, 3)]),
            "jagged": torch.nested.nested_tensor([randn(2, 3), randn(1, 3)], layout=torch.jagged),
            "shared_memory": randn(4).share_memory_(),
            "numpy_array": np.arange(5.0),
            "numpy_scalar": np.int64(3),
            "ordered": collections.OrderedDict(a=1, b=torch.ones(1)),
            "tuple": (1, torch.ones(2), [None, True]),
            "size": torch.Size([1, 2]),
            "device": torch.device("cpu"),
            "dtype": torch.float16,
            "none": None,
            "complex": 1 + 2j,
            "set": {1, 2},
            "object": PlainObject(torch.ones(3)),
            "module": module,
            "module_state": module.state_dict(),
            "optimizer_state": optimizer.state_dict(),
            "scheduler_state": scheduler.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "python_rng": random.getstate(),
            "numpy_rng": np.random.default_rng(0).bit_generator.state["state"],
        }


def storage_bytes(tensor):
    """All bytes of a tensor's storage."""
    storage = tensor.untyped_storage()
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def assert_same(expected, actual, path="state"):
    """Assert equality to the bit: types, dtypes, strides, flags, storages, order of keys."""
    assert type(actual) is type(expected), path
    if isinstance(expected, torch.Tensor):
        _assert_same_tensor(expected, actual, path)
    elif isinstance(expected, torch.nn.Module):
        assert_same(expected.state_dict(), actual.state_dict(), path)
    elif isinstance(expected, PlainObject):
        assert_same(vars(expected), vars(actual), path)
    elif isinstance(expected, torch.TypedStorage):
        assert (actual.dtype, list(actual)) == (expected.dtype, list(expected)), path
    elif isinstance(expected, np.ndarray):
        assert (actual.dtype, actual.tobytes()) == (expected.dtype, expected.tobytes()), path
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), path
        for key, value in expected.items():
            assert_same(value, actual[key], f"{path}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), path
        for n, value in enumerate(expected):
            assert_same(value, actual[n], f"{path}.{n}")
    else:
        assert actual == expected, path


def _assert_same_tensor(expected, actual, path):
    for attribute in ("dtype", "layout", "device", "requires_grad", "is_nested", "is_quantized"):
        assert getattr(actual, attribute) == getattr(expected, attribute), f"{path}: {attribute}"
    assert (actual.is_conj(), actual.is_neg()) == (expected.is_conj(), expected.is_neg()), path
    assert actual.__dict__.keys() == expected.__dict__.keys(), path
    if expected.is_nested:
        for one, other in zip(expected.unbind(), actual.unbind(), strict=True):
            assert torch.equal(one, other), path
        return
    assert actual.shape == expected.shape, path
    if expected.device.type == "meta":
        return
    if expected.is_quantized:
        assert torch.equal(actual.int_repr(), expected.int_repr()), path
        assert torch.equal(actual.dequantize(), expected.dequantize()), path
    elif expected.layout == torch.sparse_coo:
        assert torch.equal(actual._indices(), expected._indices()), path
        assert torch.equal(actual._values(), expected._values()), path
    elif expected.layout != torch.strided:
        assert torch.equal(actual.values(), expected.values()), path
        assert torch.equal(actual.to_dense(), expected.to_dense()), path
    else:
        assert actual.stride() == expected.stride(), path
        assert actual.storage_offset() == expected.storage_offset(), path
        assert storage_bytes(actual) == storage_bytes(expected), path
