"""Texts of a job, which may be anything, for terminals."""

from __future__ import annotations


def without_codes(text: str, keep: str = "") -> str:
    """Return a text with spaces for codes that move the cursor or change the terminal, except those in `keep`."""
    return "".join(one if one.isprintable() or one in keep else " " for one in text)
