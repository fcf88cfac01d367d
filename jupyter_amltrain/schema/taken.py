"""What a cell took from the notebook."""

from __future__ import annotations

import msgspec


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell took from the notebook, as people read it.

    Attributes
    ----------
    line
        All of it in one line; empty if it took nothing.
    items
        Each name, and what it is.
    """

    line: str = ""
    items: tuple[str, ...] = ()
