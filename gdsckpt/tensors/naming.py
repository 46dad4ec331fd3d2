"""Names for the leaves of a nest: where in the saved state a tensor stands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gdsckpt.errors import ConfigError
from gdsckpt.format.table import TensorEntry
from gdsckpt.tensors.arrays import device_array, is_device_array

Path: TypeAlias = tuple[Any, ...]
"""Keys and indices from the root to a leaf."""

KeySelection: TypeAlias = str | Iterable[str] | Callable[[str], bool]
"""Prefixes of names (whole components), or a predicate on the name."""


def name_of(path: Path) -> str:
    """Join a path by dots: ``("model", "layers.0.weight")`` is ``model.layers.0.weight``."""
    return ".".join(str(part) for part in path)


def children_of(node: Any, *, enter_modules: bool = True) -> Iterator[tuple[Any, Any]] | None:
    """Give (key, child) of a container, or None for a leaf."""
    if isinstance(node, Mapping):
        return iter(node.items())
    if isinstance(node, (list, tuple)):
        return iter(enumerate(node))
    if enter_modules and isinstance(node, torch.nn.Module):
        return _module_tensors(node)
    return None


def walk(
    root: Any, *, enter_modules: bool = True, is_leaf: Callable[[Any], bool] | None = None
) -> Iterator[tuple[Path, Any]]:
    """Give (path, leaf) of every leaf of a nest of mappings, lists, tuples and modules.

    Empty containers are leaves. A container that contains itself is entered once only.

    Args:
        root: The nest.
        enter_modules: Give the tensors of modules; else modules are leaves.
        is_leaf: Tells of a container that it is not to be entered.
    """
    stack: list[tuple[Path, Any, frozenset[int]]] = [((), root, frozenset())]
    while stack:
        path, node, parents = stack.pop()
        is_closed = id(node) in parents or (is_leaf is not None and is_leaf(node))
        children = None if is_closed else children_of(node, enter_modules=enter_modules)
        below = [] if children is None else list(children)
        if not below:
            yield path, node
            continue
        inside = parents | {id(node)}
        stack.extend(((*path, key), child, inside) for key, child in reversed(below))


def checked_keys(keys: object) -> KeySelection | None:
    """Give ``keys=`` of :func:`gdsckpt.load` in a form that can be looked at more than once.

    Raises:
        ConfigError: ``keys`` is neither strings nor a callable.
    """
    if keys is None or callable(keys) or isinstance(keys, str):
        return keys
    prefixes = tuple(keys) if isinstance(keys, Iterable) else (keys,)
    names = tuple(prefix for prefix in prefixes if isinstance(prefix, str))
    if len(names) != len(prefixes):
        raise ConfigError(
            f"keys must be name prefixes or a predicate, got {prefixes!r}. Pass strings such as "
            "'model' or a callable that takes a name.",
            field="keys",
        )
    return names


def selector(keys: KeySelection | None) -> Callable[[str], bool]:
    """Turn checked keys into a predicate on names."""
    if keys is None:
        return lambda name: True
    if callable(keys):
        return keys
    prefixes = (keys,) if isinstance(keys, str) else keys
    wanted = frozenset(prefix.rstrip(".") for prefix in prefixes)
    return lambda name: not wanted.isdisjoint(beginnings_of(name))


def beginnings_of(name: str) -> Iterator[str]:
    """Give the beginnings of a name that are whole components: ``a``, ``a.b``, ``a.b.c``."""
    end = name.find(".")
    while end >= 0:
        yield name[:end]
        end = name.find(".", end + 1)
    yield name


PLAIN_VALUES = frozenset({str, int, float, bool, type(None)})
"""Types of most leaves that are no tensors; a look into a set is quicker than a search."""

_LEAVES = PLAIN_VALUES | {torch.Tensor}


class TensorFacts(NamedTuple):
    """What is known of a tensor that is nothing but a view of a storage.

    Attributes:
        dtype: As in TensorEntry; so are the others.
        shape: Sizes.
        strides: In elements; None where contiguous.
        record: Key of its storage.
        byte_offset: Where in that its first element lies.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    record: int
    byte_offset: int


def tensor_entries(
    root: Any, key_of: Mapping[int, int], facts: Mapping[int, TensorFacts]
) -> tuple[TensorEntry, ...]:
    """List the named tensors of a state for the chunk table.

    Args:
        root: The state that was pickled.
        key_of: ``_cdata`` of each saved storage, or key of a device array, to its record key.
        facts: Of tensors of which the pickler has found them, by ``id``.

    Returns:
        One entry per plain strided tensor or device array; sparse, nested and wrapper tensors by
        their parts.
    """
    entries: list[TensorEntry] = []
    for name, leaf in _named_leaves(root):
        known = facts.get(id(leaf))
        if known is not None:
            entries.append(TensorEntry(name, *known))
        elif isinstance(leaf, torch.Tensor):
            for part_path, part in strided_parts((name,), leaf):
                entry = _entry(name_of(part_path), part, key_of)
                if entry is not None:
                    entries.append(entry)
        elif type(leaf) not in PLAIN_VALUES and is_device_array(leaf):
            entries.append(_array_entry(name, leaf, key_of))
    return tuple(entries)


def _named_leaves(root: Any) -> Iterator[tuple[str, Any]]:
    """Give what ``walk`` gives, by name, in less time."""
    below = _below(root, ())
    if not below:
        yield "", root
        return
    open_ids = [id(root)]
    stack = [("", iter(below))]
    while stack:
        prefix, children = stack[-1]
        for key, child in children:
            if type(child) in _LEAVES or not (below := _below(child, open_ids)):
                yield f"{prefix}{key!s}", child
                continue
            open_ids.append(id(child))
            stack.append((f"{prefix}{key!s}.", iter(below)))
            break
        else:
            stack.pop()
            open_ids.pop()


def _below(node: Any, open_ids: Collection[int]) -> list[tuple[Any, Any]]:
    """Give the children of a container that is not inside itself; a leaf has none."""
    children = None if id(node) in open_ids else children_of(node)
    return [] if children is None else list(children)


def _array_entry(name: str, leaf: Any, key_of: Mapping[int, int]) -> TensorEntry:
    array = device_array(leaf)
    return TensorEntry(
        name=name,
        dtype=str(array.dtype).removeprefix("torch."),
        shape=array.shape,
        strides=None if array.is_contiguous else array.strides,
        record=key_of[array.key],
        byte_offset=0,
    )


def _entry(name: str, tensor: torch.Tensor, key_of: Mapping[int, int]) -> TensorEntry | None:
    if torch.nn.parameter.is_lazy(tensor) or not torch._C._has_storage(tensor):
        return None
    record = key_of.get(tensor.untyped_storage()._cdata)
    if record is None:
        return None
    return TensorEntry(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        strides=None if tensor.is_contiguous() else tensor.stride(),
        record=record,
        byte_offset=int(tensor.storage_offset()) * tensor.dtype.itemsize,
    )


def strided_parts(path: Path, tensor: torch.Tensor) -> Iterator[tuple[Path, torch.Tensor]]:
    """Give the strided tensors that a tensor is made of, each with its path."""
    if is_traceable_wrapper_subclass(cast("object", tensor)):
        names: list[str] = cast("Any", tensor).__tensor_flatten__()[0]
        for name in names:
            part = getattr(tensor, name)
            if isinstance(part, torch.Tensor):  # a DTensor also names its mesh
                yield from strided_parts((*path, name), part)
    elif tensor.layout == torch.sparse_coo:
        yield (*path, "indices"), tensor._indices()
        yield (*path, "values"), tensor._values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield (*path, "crow_indices"), tensor.crow_indices()
        yield (*path, "col_indices"), tensor.col_indices()
        yield (*path, "values"), tensor.values()
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield (*path, "ccol_indices"), tensor.ccol_indices()
        yield (*path, "row_indices"), tensor.row_indices()
        yield (*path, "values"), tensor.values()
    elif tensor.is_nested:
        yield (*path, "values"), tensor.values()
    elif tensor.layout == torch.strided:
        yield path, tensor


def _module_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
