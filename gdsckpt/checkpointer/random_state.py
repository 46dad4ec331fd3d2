"""The states of the random number generators of a process."""

from __future__ import annotations

import importlib
import random
import warnings
from typing import Any

import torch

from gdsckpt.errors import FallbackWarning


class RandomState:
    """Random number generators of python, numpy, torch and all GPUs, as one Stateful object.

    The state is made of tensors and plain values, so that ``weights_only=True`` loads it. numpy is
    left out where it is not installed, and GPUs as long as this process has not used CUDA: asking
    for their states would start it.
    """

    def __init__(self) -> None:
        _numpy_random()  # slow at its first import, which should not be in a save

    def state_dict(self) -> dict[str, Any]:
        """Give the states of all generators."""
        version, numbers, gauss = random.getstate()
        states: dict[str, Any] = {
            "python": {"version": version, "state": torch.tensor(numbers), "gauss": gauss},
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        }
        numpy_random = _numpy_random()
        if numpy_random is not None:
            states["numpy"] = _encoded(numpy_random.get_state(legacy=False))
        return states

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set all generators.

        Warns:
            FallbackWarning: The state has generators that this process lacks, or the other way
                round: another number of GPUs, or no numpy.
        """
        python = state_dict["python"]
        random.setstate((python["version"], tuple(python["state"].tolist()), python["gauss"]))
        if "numpy" in state_dict:
            _set_numpy(state_dict["numpy"])
        # A map_location may have moved them; generators take states on the host only.
        torch.set_rng_state(state_dict["torch"].cpu())
        _set_cuda([state.cpu() for state in state_dict["cuda"]])


def _numpy_random() -> Any:
    """Give ``numpy.random``, or None where numpy is not installed."""
    try:
        return importlib.import_module("numpy.random")
    except ImportError:
        return None


def _set_numpy(state: Any) -> None:
    numpy_random = _numpy_random()
    if numpy_random is None:
        _warn("The checkpoint has the state of numpy's random numbers, but numpy is not installed")
        return
    numpy_random.set_state(_decoded(state))


def _set_cuda(states: list[torch.Tensor]) -> None:
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if states and len(states) != num_gpus:
        _warn(
            f"The checkpoint has states of random numbers of {len(states)} GPUs, and this process "
            f"has {num_gpus} GPUs: only the first {min(len(states), num_gpus)} are restored"
        )
    for device, state in enumerate(states[:num_gpus]):
        torch.cuda.set_rng_state(state, device)


def _warn(text: str) -> None:
    warnings.warn(
        f"{text}. The run goes on with other random numbers than the saved one.",
        FallbackWarning,
        stacklevel=2,
    )


def _encoded(value: Any) -> Any:
    """Turn the arrays of a state of numpy into tensors, bit by bit.

    Signed ones, since not every version of torch knows all unsigned dtypes.
    """
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    if not hasattr(value, "dtype"):
        return value
    signed = value.view(f"i{value.dtype.itemsize}").copy()
    return {"dtype": str(value.dtype), "bits": torch.from_numpy(signed)}


def _decoded(value: Any) -> Any:
    """Undo :func:`_encoded`."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {"dtype", "bits"}:
        return value["bits"].cpu().numpy().view(value["dtype"])
    return {key: _decoded(item) for key, item in value.items()}
