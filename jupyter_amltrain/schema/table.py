"""Tables of a record, as text: everything that a reader sees of them."""

from __future__ import annotations

import msgspec


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column of a table.

    Attributes
    ----------
    title
        Its heading.
    number
        Whether its cells are set flush right.
    help
        Meaning of the column, shown on hover.
    """

    title: str
    number: bool = False
    help: str = ""


class Table(msgspec.Struct, frozen=True, omit_defaults=True):
    """A table.

    Attributes
    ----------
    key
        What it lists: ``gpu summary`` (a row for each group of figures, whose title comes first), ``gpu each`` (a row
        for each GPU) or ``gpu processes``.
    columns
        Without titles for a table whose rows begin with theirs.
    rows
        A text for each column.
    more
        Rows that were left out.
    """

    key: str
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more: int = 0
