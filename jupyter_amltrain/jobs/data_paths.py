"""Paths of files in a script that another machine does not have."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from jupyter_amltrain.agent.protocol import KEPT_LINKS
from jupyter_amltrain.jobs import preflight
from jupyter_amltrain.jobs.path_expressions import paths_of

#: Longest text that is taken for a path.
_MAX_CHARS = 300
#: Calls that write, whose text is what they write, and not a path.
_CONTENT = frozenset({"write", "writelines", "write_text", "write_bytes", "dumps"})


class DataPath(NamedTuple):
    """A path in a script: its text, the line where it stands first, and where it is here."""

    text: str
    line: int
    path: str = ""


def named_here(script: bytes, folder: Path, file: str = "") -> list[DataPath]:
    """Return the paths that a script reads, by its text, and that exist here. Blocks on the disk.

    Absolute paths in its text count if they are in the user's home folder: others may be the same elsewhere.

    Parameters
    ----------
    folder
        Folder that relative paths begin at here.
    file
        Absolute path of the script, which it may find data with; empty for a cell.
    """
    try:
        tree = preflight.parse(script)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found: dict[str, DataPath] = {}
    for text, line in _texts(tree):
        if not _is_path(text) or text in found:
            continue
        if os.path.isabs(text) and not text.startswith(os.path.expanduser("~") + os.sep):
            continue
        if (folder / text).exists():
            found[text] = DataPath(text, line, os.path.normpath(folder / text))
    named = paths_of(tree, file, str(folder)).named if file else ()
    for one in named:
        if one.path != file and os.path.exists(one.path) and one.path not in {known.path for known in found.values()}:
            text = os.path.relpath(one.path, folder)
            found.setdefault(text, DataPath(text, one.line, one.path))
    return list(found.values())


def only_here(named: Iterable[DataPath], sent: Collection[str]) -> list[DataPath]:
    """Return the paths among `named` that do not travel with a script.

    Parameters
    ----------
    sent
        Absolute paths here of the files that travel; folders of such files count as sent.
    """
    folders = {parent for path in sent for parent in _parents(path)}
    return [one for one in named if one.path not in sent and one.path not in folders]


def kept_elsewhere(script: bytes) -> list[DataPath]:
    """Return the paths of a script below ``./outputs`` and ``./logs``, which only its own copy of the code keeps."""
    try:
        tree = preflight.parse(script)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found: dict[str, int] = {}
    for text, line in _texts(tree, written=True):
        if _is_path(text) and os.path.normpath(text).split("/")[0] in KEPT_LINKS and "/" in os.path.normpath(text):
            found.setdefault(text, line)
    return [DataPath(text, line) for text, line in found.items()]


def written_elsewhere(script: bytes) -> list[DataPath]:
    """Return the relative paths that a script writes outside of ``./outputs`` and ``./logs``: a service loses them.

    A path that another call has, too, is left out: ``log_artifact`` may keep it, or it is a file for the meantime.
    """
    try:
        tree = preflight.parse(script)
    except (SyntaxError, ValueError, RecursionError):
        return []
    used, found = {text for text, _ in _texts(tree)}, dict[str, tuple[int, int]]()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and _is_written(node)) or _name(node) in _CONTENT:
            continue
        for value in node.args[:2]:  # ``df.to_csv(path)``, ``torch.save(model, path)``
            text = value.value if isinstance(value, ast.Constant) else None
            if isinstance(text, str) and text not in used and _is_path(text) and _is_lost(text):
                found.setdefault(text, (value.lineno, value.col_offset))
    return [DataPath(text, found[text][0]) for text in sorted(found, key=lambda text: found[text])]


def _texts(tree: ast.AST, *, written: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the texts that are arguments of calls or values of assignments, in their order.

    With `written` also those of calls that write a file.
    """
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call) and not written and _is_written(node):
            continue
        if isinstance(node, ast.Call):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            values = [node.value] if node.value is not None else []
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value, value.lineno


def _is_written(call: ast.Call) -> bool:
    """Whether a call writes the file that it names, such as ``df.to_csv("out.csv")``, ``open("log", "w")``."""
    name = _name(call)
    if name == "open" and len(call.args) > 1:
        mode = call.args[1].value if isinstance(call.args[1], ast.Constant) else ""
        return isinstance(mode, str) and mode[:1] in ("w", "a", "x")
    return name.startswith(("to_", "save", "write", "dump", "export"))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else str(getattr(call.func, "id", ""))


def _is_lost(path: str) -> bool:
    """Whether a service does not keep what a job writes to a path; an absolute one may be a mount."""
    return not os.path.isabs(path) and os.path.normpath(path).split("/")[0] not in KEPT_LINKS


def _is_path(text: str) -> bool:
    """Whether a text looks like a path: it has a folder or a suffix, and nothing of a sentence, URL or pattern."""
    if not text or len(text) > _MAX_CHARS or "://" in text or any(letter in text for letter in "\n\0*{}"):
        return False
    return "/" in text.strip("/") or bool(os.path.splitext(text)[1])


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
