"""Changes of a cell's text that keep its lines."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import msgspec


class Edit(msgspec.Struct, frozen=True):
    """A part of the cell's text and its replacement. Lines count from 1, columns in UTF-8 from 0."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


def edit_of(node: ast.stmt | ast.expr, text: str) -> Edit:
    """Return the replacement of a node."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return Edit(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, text)


def edited(cell: str, edits: Iterable[Edit]) -> str:
    """Apply edits to `cell`; none of them adds or removes a line."""
    lines = [line.encode() for line in cell.split("\n")]
    for edit in sorted(edits, key=lambda edit: (edit.line, edit.column), reverse=True):
        before, after = lines[edit.line - 1][: edit.column], lines[edit.end_line - 1][edit.end_column :]
        lines[edit.line - 1 : edit.end_line] = (before + edit.text.encode() + after).split(b"\n")
    return b"\n".join(lines).decode()
