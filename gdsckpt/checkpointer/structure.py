"""What modules and optimizers will accept, as far as no code of their own has a say in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from gdsckpt.tensors.naming import beginnings_of

_MODULE = torch.nn.Module
_HOOKS = ("_load_state_dict_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks")


def comparable_tensors(
    node: object, part: object
) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Give what of a module and of its loaded state has to agree, in names and shapes.

    Left out is what lies below a submodule with hooks or methods of its own for its state: these
    may add, drop and rename.

    Args:
        node: Any object.
        part: What was loaded for it.

    Returns:
        Tensors of the module and values of ``part``, by name; None where nothing can be told.
    """
    if not isinstance(node, _MODULE) or not isinstance(part, Mapping):
        return None
    opaque = frozenset(_opaque_names(node))
    if "" in opaque:
        return None
    own = node.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {}
    for name in {**own, **part}:
        if not isinstance(name, str) or _is_left_out(name, own, part, opaque):
            continue
        if name in own:
            tensors[name] = own[name]
        if name in part:
            values[name] = part[name]
    return tensors, values


def _is_left_out(
    name: str, own: Mapping[str, Any], part: Mapping[Any, Any], opaque: frozenset[str]
) -> bool:
    if name.endswith("_extra_state") or not opaque.isdisjoint(beginnings_of(name)):
        return True
    if name not in own:
        return False
    value = own[name]
    if not isinstance(value, torch.Tensor):
        return True
    # Modules take a tensor of one element for one without dimensions, as torch 0.3 wrote them.
    saved = part.get(name)
    return value.dim() == 0 and isinstance(saved, torch.Tensor) and saved.shape == (1,)


def _opaque_names(module: torch.nn.Module) -> Iterator[str]:
    """Give the beginnings of names that a module's own code decides about; "" for all."""
    methods = (type(module).load_state_dict, type(module).state_dict)
    if methods != (_MODULE.load_state_dict, _MODULE.state_dict) or not vars(
        module
    ).keys().isdisjoint(("load_state_dict", "state_dict")):
        yield ""
    for name, inner in module.named_modules(remove_duplicate=False):
        kind = type(inner)
        loads = kind._load_from_state_dict
        if inner._load_state_dict_post_hooks:
            yield ""  # they get the list of all names
        if (
            any(getattr(inner, hooks) for hooks in _HOOKS)
            or kind.state_dict is not _MODULE.state_dict
            or kind._save_to_state_dict is not _MODULE._save_to_state_dict
            or loads not in (_MODULE._load_from_state_dict, _NormBase._load_from_state_dict)
        ):
            yield name
        elif loads is _NormBase._load_from_state_dict:  # older states lack the counter
            yield f"{name}.num_batches_tracked" if name else "num_batches_tracked"


def comparable_groups(node: object, part: object) -> tuple[list[int], list[int]] | None:
    """Give how many parameters each group of an optimizer has, and each group of its loaded state.

    Returns:
        Both lists; None where nothing can be told.
    """
    optimizer = torch.optim.Optimizer
    if (
        not isinstance(node, optimizer)
        or type(node).load_state_dict is not optimizer.load_state_dict
        or node._optimizer_load_state_dict_pre_hooks
    ):
        return None
    try:
        saved = [len(group["params"]) for group in part["param_groups"]]  # type: ignore[index]
    except (TypeError, KeyError):
        return None
    return [len(group["params"]) for group in node.param_groups], saved
