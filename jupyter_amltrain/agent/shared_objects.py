"""Finds values that share objects: a module and its optimizer, two names of one list.

Written one by one, each would get copies of what it shares, and an optimizer would change parameters that no module
has. The module travels alone, as ``amltrain_shared.py`` among the hooks of a job, so it imports only the
standard library.
"""

import enum
import gc
import logging
import os
import sys
import types
import weakref
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

#: Objects that are looked at; of larger values only the first ones are compared.
MAX_VISITS = 200_000
_CONTAINERS = (list, tuple, set, frozenset, dict)
#: What is equal wherever it is, or travels by name.
_CONSTANTS = (
    str, bytes, int, float, complex, type(None), range, slice, type, os.PathLike, enum.Enum, weakref.ref,
    types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, logging.Logger,
)  # fmt: skip


def _loaded(*names: str) -> Tuple[type, ...]:
    """Return the types ``module:name`` whose module is imported: no other values can be of them."""
    parts = [name.split(":") for name in names]
    found = [getattr(sys.modules.get(module), name, None) for module, name in parts]
    return tuple(kind for kind in found if isinstance(kind, type))


class Walk:
    """Finds objects that two parts reach. A part is what has a form of its own, in whatever lists and dicts."""

    def __init__(self) -> None:
        self._parts: List[str] = []  #: name of the value that each part is in
        self._part_of: Dict[int, int] = {}  #: part that an object was reached from first, by id
        self._visits = 0
        self._constants = _CONSTANTS + _loaded("pandas:Index", "numpy:generic", "numpy:dtype", "pyarrow:Table")
        # A view of an array, or a column of a frame, is a value of its own.
        self._whole = _loaded(
            "numpy:ndarray", "pandas:DataFrame", "pandas:Series", "polars:DataFrame", "polars:Series", "torch:Tensor"
        )
        self.shared: List[Tuple[str, str]] = []
        self.packages: Dict[str, Set[str]] = {}  #: top-level packages of the types in each value
        self._memory: Dict[Any, int] = {}  #: part that reached the memory of an array first
        self.memory: Set[Any] = set()  #: memory that several arrays share, see :func:`memory_of`
        self.own: Dict[str, Any] = {}  #: classes and functions of ``__main__`` that the values refer to, by name

    def add(self, name: str, value: Any) -> None:
        """Look at a value and its parts."""
        self.packages[name] = set()
        stack = [value]
        while stack:
            one = stack.pop()
            self._parts.append(name)
            if type(one) in _CONTAINERS:
                if self._reach(one):
                    stack += self._items(one)
            else:
                self._add_part(one)

    def _add_part(self, value: Any) -> None:
        stack = [value]
        while stack:
            one = stack.pop()
            if not self._reach(one) or issubclass(type(one), self._whole):
                continue
            stack += self._items(one) if type(one) in _CONTAINERS else gc.get_referents(one)

    def _reach(self, one: Any) -> bool:
        """Note that the newest part reaches an object; return whether what it refers to is still to be looked at."""
        # Not isinstance: it reads an attribute of the object, which may run code or raise.
        kind = type(one)
        is_whole = issubclass(kind, self._whole)
        if issubclass(kind, (type, types.FunctionType)) and one.__module__ == "__main__":
            self.own[one.__qualname__.partition(".")[0]] = one
        if issubclass(kind, self._constants) or self._visits >= MAX_VISITS:
            return False
        if not (is_whole or type(one) in (*_CONTAINERS, bytearray) or gc.is_tracked(one)):
            return False
        self._visits += 1
        part, first = len(self._parts) - 1, self._part_of.get(id(one))
        self.packages[self._parts[part]].add(type(one).__module__.partition(".")[0])
        if first is None:
            self._part_of[id(one)] = part
            memory = memory_of(one) if is_whole else None
            if memory is not None:
                other = self._memory.setdefault(memory, part)
                if other != part:
                    self.memory.add(memory)
                    self.shared.append((self._parts[other], self._parts[part]))
            return True
        if first != part and type(one) not in (tuple, frozenset):
            self.shared.append((self._parts[first], self._parts[part]))
        return False

    def _items(self, container: Any) -> Sequence[Any]:
        items = [*container, *container.values()] if type(container) is dict else list(container)
        return [] if set(map(type, items)) <= {str, bytes, int, float, bool, complex, type(None)} else items


def memory_of(value: Any) -> Any:
    """Return what identifies the memory of an array or tensor; ``None`` if it is not known."""
    kind = type(value)
    if kind in _loaded("numpy:ndarray"):
        root = root_of(value)
        return None if root is None else id(root)
    if kind in _loaded("torch:Tensor", "torch.nn:Parameter"):
        strided = sys.modules["torch"].strided
        return ("torch", value.untyped_storage().data_ptr()) if value.layout == strided and value.numel() else None
    return None


def root_of(array: Any) -> Any:
    """Return the array that owns the memory of a view; ``None`` if it is no plain array."""
    while array.base is not None:
        array = array.base
        if type(array) not in _loaded("numpy:ndarray"):
            return None
    return None if array.dtype.hasobject else array


def groups(values: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return the values that must travel together; a group of one name has an object twice."""
    walk = Walk()
    for name, value in values.items():
        walk.add(name, value)
    return grouped(walk, values)


def grouped(walk: Walk, values: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return the groups of values that a walk has found, as :func:`groups` does."""
    group_of: Dict[str, Set[str]] = {}
    for one, other in walk.shared:
        merged = group_of.get(one, {one}) | group_of.get(other, {other})
        group_of.update(dict.fromkeys(merged, merged))
    unique = {id(group): group for group in group_of.values() if not group.isdisjoint(values)}
    return [{name: values[name] for name in values if name in group} for group in unique.values()]
