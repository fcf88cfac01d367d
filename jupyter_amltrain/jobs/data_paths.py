"""Paths of files in a script that another machine does not have."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from jupyter_amltrain.agent.protocol import KEPT_LINKS
from jupyter_amltrain.jobs import preflight

#: Longest text that is taken for a path.
_MAX_CHARS = 300


class DataPath(NamedTuple):
    """A path in a script: its text, and the line where it stands first."""

    text: str
    line: int


def only_here(script: bytes, folder: Path, sent: Collection[str]) -> list[DataPath]:
    """Return the paths in the texts of a script that exist here and do not travel with it. Blocks on the disk.

    Absolute paths count if they are in the user's home folder: others may be the same on both machines.

    Parameters
    ----------
    folder
        Folder that relative paths begin at here.
    sent
        Paths of the files that travel, posix, relative to the working folder there.
    """
    try:
        tree = preflight.parse(script)
    except (SyntaxError, ValueError, RecursionError):
        return []
    folders = {parent for name in sent for parent in _parents(name)}
    found: dict[str, int] = {}
    for text, line in _texts(tree):
        path = os.path.normpath(text)
        if path in sent or path in folders or text in found or not _is_path(text):
            continue
        if os.path.isabs(text) and not text.startswith(os.path.expanduser("~") + os.sep):
            continue
        if (folder / path).exists():
            found[text] = line
    return [DataPath(text, line) for text, line in found.items()]


def kept_elsewhere(script: bytes) -> list[DataPath]:
    """Return the paths of a script below ``./outputs`` and ``./logs``, which only its own copy of the code keeps."""
    try:
        tree = preflight.parse(script)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found: dict[str, int] = {}
    for text, line in _texts(tree):
        if _is_path(text) and os.path.normpath(text).split("/")[0] in KEPT_LINKS and "/" in os.path.normpath(text):
            found.setdefault(text, line)
    return [DataPath(text, line) for text, line in found.items()]


def _texts(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the texts that are arguments of calls or values of assignments, in their order."""
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            values = [node.value] if node.value is not None else []
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value, value.lineno


def _is_path(text: str) -> bool:
    """Whether a text looks like a path: it has a folder or a suffix, and nothing of a sentence, URL or pattern."""
    if not text or len(text) > _MAX_CHARS or "://" in text or any(letter in text for letter in "\n\0*{}"):
        return False
    return "/" in text.strip("/") or bool(os.path.splitext(text)[1])


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
