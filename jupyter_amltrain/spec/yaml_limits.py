"""Limits on YAML that people hand over: checked on its events, before anything is made of it.

An alias may stand for all that its anchor holds, so a text of a kilobyte can expand to
gigabytes; and a nesting of thousands ends in the interpreter's recursion limit.
"""

from __future__ import annotations

from typing import Any

#: Nodes after every alias has been expanded, levels, and characters.
MAX_NODES, MAX_DEPTH, MAX_CHARS = 10_000, 60, 1 << 20


def exceeded(text: str, yaml: Any) -> str:
    """Which limit `text` exceeds, as a clause; empty when none.

    Parameters
    ----------
    yaml
        The PyYAML module.

    Raises
    ------
    yaml.YAMLError
        It is no YAML.
    """
    if len(text) > MAX_CHARS:
        return f"it has over {MAX_CHARS >> 20} MiB"
    total = 0
    anchors: dict[str, int] = {}  # nodes that an anchor stands for
    open_nodes: list[tuple[str | None, int]] = []  # anchor, nodes before it
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            total += anchors.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                anchors[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                anchors[anchor] = total - before
        if len(open_nodes) > MAX_DEPTH:
            return f"it nests more than {MAX_DEPTH} levels deep (line {event.start_mark.line + 1})"
        if total > MAX_NODES:
            return f"it expands to more than {MAX_NODES} values (line {event.start_mark.line + 1})"
    return ""
