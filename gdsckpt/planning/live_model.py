"""The size of a model that a function of the user's makes, without the memory for it."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.sizing import CheckpointSize, PartSize, Recipe, size

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """What a model's own tensors tell; a tensor under two names counts once.

    Attributes:
        factory: ``module:function`` that made it.
        num_parameters: Elements of its parameters.
        num_trainable: Of these, those with ``requires_grad``.
        weights_bytes: Bytes of its parameters in their own types.
        dtypes: Elements by type, the commonest first.
        buffer_bytes: Bytes of buffers that belong to its state dict.
        dense_share: Share of the trainable parameters in embeddings, the output layer, vectors.
        expert_share: Share of the parameters whose names have a part ``experts``.
        matrix_width: Smaller side of the weight matrices, averaged over their elements.
        largest_bytes: Bytes of the largest parameter.
    """

    factory: str
    num_parameters: int
    num_trainable: int
    weights_bytes: int
    dtypes: tuple[tuple[str, int], ...]
    buffer_bytes: int
    dense_share: float
    expert_share: float
    matrix_width: int
    largest_bytes: int

    def size(self, recipe: Recipe) -> CheckpointSize:
        """Give the size of a checkpoint with the optimizer and the types of ``recipe``.

        Widths and shares are those of the model; weights have the type of the recipe, since a model
        is often made in float32 and trained in another. Of frozen parameters only weights are kept.

        Raises:
            ConfigError: An optimizer is given, but no parameter is trainable.
        """
        if recipe.optimizer != "none" and not self.num_trainable:
            raise ConfigError(
                f"--optimizer is {recipe.optimizer!r}, but no parameter of {self.factory} has "
                "requires_grad. Give --optimizer none.",
                field="optimizer",
            )
        own = dataclasses.replace(
            recipe, matrix_width=self.matrix_width, dense_share=Band.exactly(self.dense_share)
        )
        found = size(self.num_parameters, own, num_trainable=self.num_trainable)
        buffers = PartSize("buffers", "other", Band.exactly(self.buffer_bytes), "of the model")
        parts = (*found.parts, buffers) if self.buffer_bytes else found.parts
        return CheckpointSize(self.num_parameters, parts, "model")

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return {**dataclasses.asdict(self), "dtypes": dict(self.dtypes)}


def measure(factory: str) -> LiveModel:
    """Make a model on the meta device, where tensors have shapes and no memory, and measure it.

    The module is imported as Python does it, with the working directory first. It is the user's
    code, and runs.

    Args:
        factory: ``module:function``, such as ``train.model:build``; the function is called without
            arguments and returns a ``torch.nn.Module``.

    Raises:
        ConfigError: There is no such function, it failed, or it made no model; the field is
            ``model``.
    """
    make = _import(factory)
    try:
        import torch
    except ImportError as exc:
        raise _refused(f"{factory} needs torch, which cannot be imported: {exc}.") from exc
    try:
        with _working_directory_first(), torch.device("meta"):
            model = make()
    except Exception as exc:  # noqa: BLE001 - the function is the user's and may raise anything
        raise _refused(f"{factory} failed on the meta device: {_text(exc)}") from exc
    if not isinstance(model, torch.nn.Module):
        raise _refused(
            f"{factory} returned {type(model).__name__}: it has to return a torch.nn.Module."
        )
    return _measured(factory, model)


def _import(factory: str) -> Callable[[], Any]:
    module_name, colon, function_name = factory.partition(":")
    if not (module_name and colon and function_name):
        raise _refused(f"--model is {factory!r}: give module:function, such as train.model:build.")
    try:
        with _working_directory_first():
            found: Any = import_module(module_name)
    except Exception as exc:  # noqa: BLE001 - importing runs the user's code
        raise _refused(f"{module_name} cannot be imported: {_text(exc)}") from exc
    for name in function_name.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise _refused(f"{module_name} has no function {function_name!r}.")
    _require_no_arguments(factory, found)
    make: Callable[[], Any] = found
    return make


def _require_no_arguments(factory: str, found: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return  # some of C's have none: the call will tell
    try:
        signature.bind()
    except TypeError as exc:
        raise _refused(
            f"{factory} cannot be called without arguments ({exc}). Name a function that can."
        ) from exc


@contextmanager
def _working_directory_first() -> Iterator[None]:
    here = os.getcwd()  # noqa: PTH109 - sys.path has text
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _measured(factory: str, model: torch.nn.Module) -> LiveModel:
    import torch

    parameters = dict(model.named_parameters())  # without duplicates
    unshaped = torch.nn.parameter.UninitializedParameter
    lazy = [name for name, each in parameters.items() if isinstance(each, unshaped)]
    if lazy:
        raise _refused(
            f"{lazy[0]} of {factory} has no shape before the first batch. Give the shapes of lazy "
            "modules."
        )
    num_parameters = sum(each.numel() for each in parameters.values())
    if not num_parameters:
        raise _refused(f"the model of {factory} has no parameters.")
    trainable = {name: each for name, each in parameters.items() if each.requires_grad}
    num_trainable = sum(each.numel() for each in trainable.values())
    embeddings = _embedding_ids(model)
    dense = sum(
        each.numel() for each in trainable.values() if each.ndim < 2 or id(each) in embeddings
    )
    experts = sum(each.numel() for name, each in parameters.items() if "experts" in name.split("."))
    dtypes: dict[str, int] = {}
    for each in parameters.values():
        name = str(each.dtype).removeprefix("torch.")
        dtypes[name] = dtypes.get(name, 0) + each.numel()
    return LiveModel(
        factory=factory,
        num_parameters=num_parameters,
        num_trainable=num_trainable,
        weights_bytes=sum(each.numel() * each.itemsize for each in parameters.values()),
        dtypes=tuple(sorted(dtypes.items(), key=lambda item: -item[1])),
        buffer_bytes=_buffer_bytes(model, parameters),
        dense_share=dense / max(1, num_trainable),
        expert_share=experts / num_parameters,
        matrix_width=_matrix_width(list(parameters.values())),
        largest_bytes=max(each.numel() * each.itemsize for each in parameters.values()),
    )


def _embedding_ids(model: torch.nn.Module) -> set[int]:
    """Give the parameters of embeddings, and of the last linear layer if it has their height."""
    import torch

    embeddings = [each for each in model.modules() if isinstance(each, torch.nn.Embedding)]
    heights = {each.num_embeddings for each in embeddings}
    outputs = [
        each
        for each in model.modules()
        if isinstance(each, torch.nn.Linear) and each.out_features in heights
    ]
    return {id(each.weight) for each in (*embeddings, *outputs[-1:])}


def _buffer_bytes(model: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> int:
    """Give the bytes of what a state dict has besides the parameters."""
    import torch

    known = {id(each) for each in parameters.values()}
    extra: dict[int, int] = {}
    for value in model.state_dict(keep_vars=True).values():
        if isinstance(value, torch.Tensor) and id(value) not in known:
            extra[id(value)] = value.numel() * value.itemsize
    return sum(extra.values())


def _matrix_width(parameters: list[torch.nn.Parameter]) -> int:
    matrices = [each for each in parameters if each.ndim >= 2]
    elements = sum(each.numel() for each in matrices)
    if not elements:
        return 1
    total = sum(each.numel() * min(each.shape[-2:]) for each in matrices)
    return max(1, round(total / elements))


def _text(exc: Exception) -> str:
    """Give an error of the user's code in one line."""
    said = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {said}" if said else type(exc).__name__


def _refused(message: str) -> ConfigError:
    return ConfigError(message, field="model")
