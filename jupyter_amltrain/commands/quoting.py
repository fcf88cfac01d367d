"""The words of a magic's line as they are written: reading them, and writing a text as one."""

from __future__ import annotations

import re
import shlex

from jupyter_amltrain.commands import lexing
from jupyter_amltrain.errors import CommandError

#: Text that is one word in a line without quotes.
_PLAIN = re.compile(r"[\w@%+=:,./~^-]+")


def words(text: str) -> list[str]:
    """The words of a line as they are written; :func:`lexing.split` of each is the word itself.

    Raises
    ------
    CommandError
        A quotation is not closed.
    """
    lexing.split(text)  # raises
    found: list[str] = []
    pending = ""
    for piece in re.findall(r"\s+|\S+", text.strip()):
        if pending or not piece.isspace():
            pending += piece
        if pending and not piece.isspace() and _closed(pending):
            found.append(pending)
            pending = ""
    return [*found, pending] if pending else found


def _closed(text: str) -> bool:
    try:
        return len(lexing.split(f"{text} x")) == 2
    except CommandError:
        return False


def flagged(flag: str, text: str) -> str:
    """A flag with its value, as words of a line."""
    if "\n" in text or "\r" in text:
        raise CommandError(f"{flag}: a line cannot hold a line break.", hint="Write it into the code below.")
    if text.startswith("-"):
        return quote(f"{flag}={text}")
    return f"{flag} {quote(text)}"


def quote(text: str) -> str:
    """`text` as one word of a line; double quotes where they do, because ``$names`` are often in them."""
    if _PLAIN.fullmatch(text):
        return text
    for found in (f'"{text}"', shlex.quote(text)):
        try:
            if lexing.split(f"{found} x") == [text, "x"] and words(f"{found} x") == [found, "x"]:
                return found
        except CommandError:
            continue
    return shlex.quote(text)
