"""Lines of a run: where its time goes, as its record and its page show it."""

from __future__ import annotations

import msgspec

from jupyter_amltrain.schema.table import Table


class LineMark(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the submitted cell, as the editor marks it.

    Attributes
    ----------
    line
        Line of the cell, from 1; the line of the magic counts.
    share, total
        Part of the time of the process in the line and in libraries that it calls; and with the cell's own lines that
        it calls.
    work
        Part of that time in which something is computed: on the run's GPUs if they were read, else by the thread.
    row
        The line's row in the table.
    """

    line: int
    share: float = 0.0
    total: float = 0.0
    work: float = 0.0
    row: int = 0


class RunLines(msgspec.Struct, frozen=True, kw_only=True):
    """The lines that most of a run's time goes into.

    Attributes
    ----------
    sentence
        About the line that the time goes into; empty if that says nothing new.
    span
        Range of time of the samples, and the number of processes.
    table
        The lines; its last column is their text.
    marks
        Those of the submitted cell, of its main thread first.
    """

    sentence: str = ""
    span: str = ""
    table: Table = Table("lines")
    marks: tuple[LineMark, ...] = ()


class StackBox(msgspec.Struct, frozen=True, kw_only=True):
    """A line in the picture of the stacks: a box below the line that called it.

    Attributes
    ----------
    depth
        Number of boxes above it.
    left, share
        Left edge and width, as parts of the time of all processes.
    label
        Its function and text.
    detail
        Where it is, and its time.
    """

    depth: int
    left: float
    share: float
    label: str
    detail: str
