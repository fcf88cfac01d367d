"""Reads types, attributes and entries of objects without running code of theirs.

An object of a failed script may be half built, a proxy, or hostile: its ``__getattr__``, its ``__class__``, the
methods of its metaclass and the ``__eq__`` of its keys are the script's. Python's own descriptors read around them.
The module travels alone, as ``amltrain_safe_access.py`` among the hooks of a job.
"""

from __future__ import annotations

import builtins
import itertools
import sys
import types

TYPE_CHECKING = False  # the job's Python may be about to end for want of memory: import little
if TYPE_CHECKING:
    from typing import Any, Iterable, Iterator, List, Optional, Tuple

#: What is returned where nothing can be read.
MISSING = object()
#: Entries of a mapping that are searched for a name.
MAX_SEARCHED = 5000
#: Characters of a name.
_MAX_NAME_CHARS = 120

_name_of: Any = type.__dict__["__name__"].__get__
_module_of: Any = type.__dict__["__module__"].__get__
_mro_of: Any = type.__dict__["__mro__"].__get__
_namespace_of: Any = type.__dict__["__dict__"].__get__
_module_names: Any = vars(types.ModuleType)["__dict__"].__get__
_SCALARS = (int, float, complex, bool, str, bytes, type(None))


def text_of(text: Any, limit: int = _MAX_NAME_CHARS) -> str:
    """Return the first characters of a text as a plain ``str``; empty for anything else."""
    if not is_subtype(type(text), str):
        return ""
    # A path may hold bytes that are not UTF-8, which JSON's readers reject.
    return str.__getitem__(text, slice(0, limit)).encode("utf-8", "replace").decode()


def is_subtype(kind: type, base: type) -> bool:
    """Whether a type has another one among its bases; a metaclass is not asked."""
    return any(one is base for one in _mro_of(kind))


def is_any(kind: type, kinds: Iterable[Optional[type]]) -> bool:
    """Whether a type is one of several: ``in`` would ask its metaclass whether they are equal."""
    return any(kind is one for one in kinds)


def type_name(kind: type) -> str:
    """Return the name of a type."""
    return text_of(_name_of(kind))


def type_module(kind: type) -> str:
    """Return the name of the module of a type; empty for one that has none."""
    try:
        return text_of(_module_of(kind))
    except Exception:  # a type without it
        return ""


def entries(mapping: Any, limit: int = MAX_SEARCHED) -> Iterator[Tuple[Any, Any]]:
    """Return the first items of a ``dict`` or of one of its subclasses, of a class's names, or of a frame's."""
    if is_subtype(type(mapping), dict):
        return itertools.islice(dict.items(mapping), limit)
    if is_any(type(mapping), (types.MappingProxyType, FRAME_NAMES)):
        return itertools.islice(mapping.items(), limit)
    return iter(())


def last_entries(mapping: Any, limit: int) -> Iterator[Tuple[Any, Any]]:
    """Return the newest items of a ``dict``, the newest last."""
    return itertools.islice(dict.items(mapping), max(0, dict.__len__(mapping) - limit), None)


def entry(mapping: Any, key: Any) -> Any:
    """Return a value by a key of type ``str`` or ``int``, without asking other kinds of keys whether they are equal."""
    kind = type(key)
    if is_subtype(type(mapping), dict) and dict.__len__(mapping) > MAX_SEARCHED:  # among so many, Python's own search
        return dict.get(mapping, key, MISSING)
    return next((value for one, value in entries(mapping) if type(one) is kind and one == key), MISSING)


def instance_names(value: Any) -> Any:
    """Return the ``__dict__`` of an object; ``None`` if it has none, or one of its own making."""
    for base in _mro_of(type(value)):
        found = entry(_namespace_of(base), "__dict__")
        if found is not MISSING:
            names = found.__get__(value) if type(found) is types.GetSetDescriptorType else None
            return names if is_subtype(type(names), dict) else None
    return None


def attribute(value: Any, name: str) -> Any:
    """Return an attribute that is stored in the object, or a constant of its class; properties are not read."""
    names = instance_names(value)
    found = entry(names, name)
    if found is not MISSING:
        return found
    for group in ("_parameters", "_buffers", "_modules"):  # where a module of PyTorch has them
        found = entry(entry(names, group), name)
        if found is not MISSING:
            return found
    for base in _mro_of(type(value)):
        found = entry(_namespace_of(base), name)
        if type(found) is types.MemberDescriptorType:
            try:
                return found.__get__(value)
            except AttributeError:  # a slot without a value
                return MISSING
        if found is not MISSING:
            return found if is_any(type(found), _SCALARS) else MISSING
    return MISSING


def item(value: Any, key: Any) -> Any:
    """Return an entry of a list, a tuple or a dict, or of one of their subclasses."""
    kind = type(value)
    if is_subtype(kind, dict):
        return entry(value, key) if is_any(type(key), (str, int)) else MISSING
    for base in (list, tuple):
        if is_subtype(kind, base) and type(key) is int:
            return base.__getitem__(value, key) if -base.__len__(value) <= key < base.__len__(value) else MISSING
    return MISSING


def module_member(module: str, name: str) -> Any:
    """Return a name of a module that the script has imported; ``None`` if there is none."""
    loaded = entry(sys.modules, module)
    if loaded is MISSING or not is_subtype(type(loaded), types.ModuleType):  # a stand-in
        return None
    found = entry(_module_names(loaded), name)
    return None if found is MISSING else found


def class_names(kind: type, name: str) -> Any:
    """Return what a type or one of its bases stores under a name."""
    for base in _mro_of(kind):
        found = entry(_namespace_of(base), name)
        if found is not MISSING:
            return found
    return MISSING


def _frame_names() -> Optional[type]:
    return type(sys._getframe().f_locals)


#: Type of the variables of a function's frame: ``dict``, a proxy from Python 3.13 on.
FRAME_NAMES = _frame_names()


def linked(error: Any, name: str) -> Any:
    """Return ``__cause__``, ``__traceback__`` or another attribute that Python itself sets for an exception."""
    return BaseException.__dict__[name].__get__(error)


def sub_errors(error: Any) -> List[Any]:
    """Return the exceptions of a group; of any other exception none."""
    group: Any = vars(builtins).get("BaseExceptionGroup")
    if group is None or not is_subtype(type(error), group):
        return []
    return list(group.__dict__["exceptions"].__get__(error))
