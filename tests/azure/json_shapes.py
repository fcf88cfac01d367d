"""Whether an answer of the emulator has the form of a recorded one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

#: Bags whose keys are anybody's: what is in them is not compared.
BAGS = ("tags", "environmentVariables", "parameters", "flavors", "userAssignedIdentities", "actionUris")


def kind(value: Any) -> str:
    """JSON's own word for a value; whole and other numbers are one."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return {type(None): "null", str: "text", dict: "object", list: "list"}[type(value)]


def differences(
    ours: Any, recorded: Any, *, absent: Collection[str] = (), more: Collection[str] = (), bags: Collection[str] = ()
) -> list[str]:
    """In what the form of `ours` is another: names and kinds of values, at every depth; nothing when it is the same.

    null says nothing of a kind, so it goes with any. Items of a list are compared with all recorded items together.

    Parameters
    ----------
    absent, more
        Paths (``properties.x``, ``value[].y``) that only the recording has, or only the emulator.
    bags
        Names or paths of objects whose keys are not compared, besides :data:`BAGS`.
    """
    return list(_walk(ours, [recorded], "", frozenset(absent), frozenset(more), frozenset((*BAGS, *bags))))


def _walk(
    ours: Any, recorded: list[Any], path: str, absent: frozenset[str], more: frozenset[str], bags: frozenset[str]
) -> Any:
    known = [value for value in recorded if value is not None]
    if ours is None or not known:
        return
    kinds = {kind(value) for value in known}
    if kind(ours) not in kinds:
        yield f"{path or 'the answer'}: {kind(ours)}, recorded {' or '.join(sorted(kinds))}"
        return
    if isinstance(ours, Mapping) and not {path, path.rpartition(".")[2]} & bags:
        there = [value for value in known if isinstance(value, Mapping)]
        always = set.intersection(*(set(value) for value in there))
        ever = set().union(*(set(value) for value in there))
        at = f"{path}." if path else ""
        yield from (f"{at}{name}: absent" for name in sorted(always - set(ours)) if f"{at}{name}" not in absent)
        yield from (f"{at}{name}: not recorded" for name in sorted(set(ours) - ever) if f"{at}{name}" not in more)
        for name in sorted(set(ours) & ever):
            values = [value[name] for value in there if name in value]
            yield from _walk(ours[name], values, f"{at}{name}", absent, more, bags)
    elif isinstance(ours, list):
        items = [item for value in known if isinstance(value, list) for item in value]
        for one in ours:
            yield from _walk(one, items, f"{path}[]", absent, more, bags)
