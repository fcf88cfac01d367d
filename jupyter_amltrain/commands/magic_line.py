"""The line of a magic: split into words, checked for what IPython left in it, and written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Iterable

from jupyter_amltrain.errors import CommandError

#: Text that is one word in a line without quotes.
_PLAIN = re.compile(r"[\w@%+=:,./~^-]+")
_EXPANDABLE = re.compile(r"\$(?P<dollar>[A-Za-z_]\w*)|\{(?P<brace>[A-Za-z_]\w*)\}")


def split(line: str) -> list[str]:
    """The words of a magic's line, as a shell would find them, but brackets hold together.

    A semicolon at the end is not a word: it tells IPython not to show the value.

    IPython writes a list for ``$layers`` as ``[64, 32]`` and a mapping for ``$opt`` with
    its quotes, so both are one word without further quoting.

    Raises
    ------
    CommandError
        A quotation is not closed.
    """
    try:
        return shlex.split(_quoted_groups(line.rstrip().removesuffix(";")))
    except ValueError as error:
        raise CommandError(
            f"{str(error).rstrip('.')} in: {line.strip()}.",
            hint='Quote the whole value: --param "name=$value"',
            code="line.quotation",
        ) from None


def _quoted_groups(line: str) -> str:
    """`line` with every ``[...]``, ``{...}``, ``(...)`` outside quotes put in quotes."""
    parts: list[str] = []
    quote, depth, start, i = "", 0, 0, 0
    while i < len(line):
        char = line[i]
        if char == "\\" and (depth or quote != "'"):
            i += 1  # the next character has no meaning; in brackets Python's rules hold
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[{(":
            if not depth:
                parts.append(line[start:i])
                start = i
            depth += 1
        elif char in ")}]" and depth:
            depth -= 1
            if not depth:
                parts.append(shlex.quote(line[start : i + 1]))
                start = i + 1
        i += 1
    # Not closed: these are not brackets of a value, and only a shell's rules apply.
    return line if depth else "".join(parts) + line[start:]


def unexpanded(tokens: Iterable[str]) -> list[tuple[str, str]]:
    """``$name`` and ``{name}`` that IPython did not expand: ``(as written, name)``."""
    return [(match[0], match["dollar"] or match["brace"]) for token in tokens for match in _EXPANDABLE.finditer(token)]


def check_expanded(tokens: Iterable[str], known: Container[str]) -> None:
    """Raise where IPython left something unexpanded, which it does silently.

    Parameters
    ----------
    known
        Names of the notebook's variables.
    """
    names = unexpanded(tokens)
    if not names:
        return
    written, name = next(((w, n) for w, n in names if n not in known), names[0])
    if name not in known:
        raise CommandError(
            f"{written}: the notebook has no variable {name}.",
            hint=f"Set it in a cell: {name} = ...",
            code="line.unknown_variable",
        )
    raise CommandError(
        f"IPython did not expand {written}: other braces in the line prevent it, or it was written as $$.",
        hint="Put such values into variables, or call jupyter_amltrain.submit().",
        code="line.not_expanded",
    )


def words(text: str) -> list[str]:
    """The words of a line as they are written; :func:`split` of each is the word itself.

    Raises
    ------
    CommandError
        A quotation is not closed.
    """
    split(text)  # raises
    parts: list[str] = []
    pending = ""
    for piece in re.findall(r"\s+|\S+", text.strip()):
        if pending or not piece.isspace():
            pending += piece
        if pending and not piece.isspace() and _closed(pending):
            parts.append(pending)
            pending = ""
    return [*parts, pending] if pending else parts


def _closed(text: str) -> bool:
    try:
        return len(split(f"{text} x")) == 2
    except CommandError:
        return False


def flagged(flag: str, text: str) -> str:
    """A flag with its value, as words of a line."""
    if "\n" in text or "\r" in text:
        raise CommandError(
            f"{flag}: a line cannot hold a line break.", hint="Write it into the code below.", code="line.line_break"
        )
    if text.startswith("-"):
        return quote(f"{flag}={text}")
    return f"{flag} {quote(text)}"


def quote(text: str) -> str:
    """`text` as one word of a line; double quotes where they do, because ``$names`` are often in them."""
    if _PLAIN.fullmatch(text):
        return text
    for quoted in (f'"{text}"', shlex.quote(text)):
        try:
            if split(f"{quoted} x") == [text, "x"] and words(f"{quoted} x") == [quoted, "x"]:
                return quoted
        except CommandError:
            continue
    return shlex.quote(text)
