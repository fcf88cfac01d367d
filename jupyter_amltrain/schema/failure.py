"""Values at failure: the variables of the lines at which a script failed."""

from __future__ import annotations

import msgspec

from jupyter_amltrain.schema.table import Table

#: Relation of what is no frame: its values are the lines whose tensors filled the GPUs.
MEMORY = "memory"


class FailedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A variable of a frame.

    Attributes
    ----------
    name
        As the line has it: ``x``, ``self.fc.weight``, ``batch['x']``.
    named
        Whether the line that failed names it.
    type
        Name of its type.
    shape
        Of an array, tensor or table; of a list or mapping its length. ``None`` for anything else.
    dtype, device
        Of an array or tensor; empty for anything else.
    low, high
        Least and most of its numbers without NaN, if they were read.
    nan
        Number of NaN.
    text
        Columns, entries or a short text.
    summary
        All of this as one text: ``Tensor 32×784 float32 on cuda:0, 0 to 1``.
    """

    name: str
    named: bool = False
    type: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    low: float | None = None
    high: float | None = None
    nan: int = 0
    text: str = ""
    summary: str = ""


class FailedFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame of the user's code, or the innermost one of a library.

    Attributes
    ----------
    error
        Name of the exception's type.
    relation
        How the exception led to that of the first frames: ``cause``, ``context`` (it was being handled), ``first`` (of
        a group); empty for that one. ``memory``: no frame, but the lines whose tensors filled the GPUs.
    file, line, function, code
        Where, and the text of the line.
    cell_line
        The line as one of the submitted cell or script; ``None`` for another file.
    library
        Whether it is of a library: then only arrays and numbers that its line names are kept.
    values
        Its variables: those that the line names, then others.
    more
        Number of others that are left out.
    """

    error: str
    relation: str = ""
    file: str
    line: int
    function: str
    code: str = ""
    cell_line: int | None = None
    library: bool = False
    values: tuple[FailedValue, ...] = ()
    more: int = 0


class FrameTable(msgspec.Struct, frozen=True, kw_only=True):
    """A frame as a record shows it.

    Attributes
    ----------
    title
        ``line 12 of the cell, in forward``.
    code
        The text of the line.
    named
        Rows of the table whose variables the line names; they come first.
    folded
        Whether a page shows only the title at first.
    """

    title: str
    code: str = ""
    named: int = 0
    folded: bool = False
    table: Table
