"""Text of a value as a notebook shows it: containers that are longer than a line have an item on each line.

The module travels alone, as ``amltrain_pretty.py`` among the hooks of a job, so it imports only the standard library.
"""

import sys
import types
from typing import Any, Dict, List, Tuple

#: Characters of a line, and items of a container that are shown.
WIDTH, MAX_ITEMS = 79, 1000
#: Brackets of the containers that are shown item by item.
_BRACKETS: Dict[type, Any] = {list: "[]", tuple: "()", set: "{}", frozenset: ("frozenset({", "})"), dict: "{}"}


def show(value: Any) -> None:
    """Show the value of the last line, as text if it has no rich form; nothing for ``None``."""
    if value is None:
        return
    if type(value).__module__ != "builtins":
        try:
            shown = __import__("amltrain_display").show
        except ImportError:  # only this file is there
            pass
        else:
            return shown(value)  # type: ignore[no-any-return]
    try:
        text = pretty(value)
    except RecursionError:
        text = repr(value)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def pretty(value: Any) -> str:
    """Return the text of a value."""
    return _text(value, 0, 0, 0, ())


def _text(value: Any, indent: int, column: int, behind: int, outer: Tuple[int, ...]) -> str:
    """Return the text of a value.

    Parameters
    ----------
    indent, column
        Where further lines begin, and where the first one does.
    behind
        Number of characters that follow on its last line.
    """
    kind: Any = type(value)
    if kind not in _BRACKETS or kind.__repr__ is not _PLAIN[kind]:
        return ("\n" + " " * indent).join(_of_object(value).split("\n"))
    if id(value) in outer:
        return "%s...%s" % tuple(_BRACKETS[kind])
    if not value and kind in (set, frozenset):
        return "%s()" % kind.__name__
    start, end = _BRACKETS[kind]
    items: List[Any] = _items(value)
    if kind is tuple and len(value) == 1:
        end = ",)"
    inner = (*outer, id(value))
    flat: str = start + ", ".join(_item(item, kind, 0, 0, 0, inner) for item in items) + end
    if "\n" not in flat and column + len(flat) + behind <= WIDTH:
        return flat
    inside, last = indent + len(start), len(items) - 1
    lines = [
        _item(item, kind, inside, inside if i else column + len(start), 1 if i < last else len(end) + behind, inner)
        for i, item in enumerate(items)
    ]
    return str(start) + (",\n" + " " * inside).join(lines) + str(end)


class _Rest:
    """Stands for the items that are left out."""

    def __repr__(self) -> str:
        return "..."


def _items(value: Any) -> List[Any]:
    items = list(value.items()) if isinstance(value, dict) else list(value)
    if isinstance(value, (set, frozenset)):
        try:
            items = sorted(items)
        except Exception:  # of several types
            pass
    return items if len(items) <= MAX_ITEMS else [*items[:MAX_ITEMS], _Rest()]


def _item(item: Any, kind: type, indent: int, column: int, behind: int, outer: Tuple[int, ...]) -> str:
    if kind is not dict or isinstance(item, _Rest):
        return _text(item, indent, column, behind, outer)
    key = _text(item[0], indent, column, 1, outer)
    width = len(key) - (key.rfind("\n") + 1)
    return key + ": " + _text(item[1], indent, (0 if "\n" in key else column) + width + 2, behind, outer)


def _of_object(value: Any) -> str:
    kind: Any = type(value)
    if isinstance(value, type):
        return _name(value)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        import inspect  # slow: keep it out of most jobs

        try:
            return "<function %s%s>" % (_name(value), inspect.signature(value))
        except (ValueError, TypeError):
            return "<function %s>" % _name(value)
    if callable(getattr(kind, "_repr_pretty_", None)):
        try:
            from IPython.lib import pretty as printers  # a printer of it is the method's argument

            show_value: Any = printers.pretty
            return str(show_value(value))
        except ImportError:
            pass
    if getattr(kind, "__repr__", None) is _DEFAULT:
        return "<%s at 0x%x>" % (_name(kind), id(value))
    return repr(value)


def _name(value: Any) -> str:
    """Return the name of a class or function with its module, unless it is a builtin."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", value.__name__)
    return name if module in (None, "builtins") else "%s.%s" % (module, name)


_DEFAULT: Any = object.__repr__
_PLAIN = {kind: kind.__repr__ for kind in _BRACKETS}
