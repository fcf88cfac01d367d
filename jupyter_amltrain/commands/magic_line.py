"""Lines of magics: split into words, check that IPython expanded all variables, and quote values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Container, Iterable, Sequence

from jupyter_amltrain.errors import CommandError

#: Text that needs no quotes to be one word of a line.
_PLAIN = re.compile(r"[\w@%+=:,./~^-]+")
_EXPANDABLE = re.compile(r"\$(?P<dollar>[A-Za-z_]\w*)|\{(?P<brace>[A-Za-z_]\w*)\}")


def split(line: str) -> list[str]:
    """Return the words of a magic's line, split as in a shell, except that brackets keep words together.

    A semicolon at the end is dropped: it tells IPython not to show the value.

    IPython writes a list for ``$layers`` as ``[64, 32]`` and a mapping for ``$opt`` with
    its quotes, so both are one word without further quoting.

    Raises
    ------
    CommandError
        A quotation mark is not closed.
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
    """Return `line` with quotes around every ``[...]``, ``{...}``, ``(...)`` outside quotes."""
    parts: list[str] = []
    quote, depth, start, i = "", 0, 0, 0
    while i < len(line):
        char = line[i]
        if char == "\\" and (depth or quote != "'"):
            i += 1  # the next character is escaped; in brackets Python's rules apply
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
    # Unbalanced brackets are not those of a value: only a shell's rules apply.
    return line if depth else "".join(parts) + line[start:]


def expanded(line: str, expand: Callable[[str], str]) -> str:
    """Return a line with the notebook's variables in place; the places in a pattern of ``--metric`` are none.

    Parameters
    ----------
    expand
        IPython's ``var_expand``.
    """
    if "--metric" not in line:
        return expand(line)
    try:
        parts = words(line)
    except CommandError:  # reported later
        return expand(line)
    patterns = {i: part for i, part in enumerate(parts) if _is_pattern(parts, i)}
    text = expand(" ".join(f"\0{i}\0" if i in patterns else part for i, part in enumerate(parts)))
    for i, part in patterns.items():
        text = text.replace(f"\0{i}\0", part)
    return text


def _is_pattern(parts: Sequence[str], i: int) -> bool:
    # A misspelt flag is reported as one, and not for its places.
    word, before = parts[i], parts[i - 1] if i else ""
    return (word.startswith("--metric") and "=" in word) or (before.startswith("--metric") and "=" not in before)


def unexpanded(tokens: Iterable[str]) -> list[tuple[str, str]]:
    """Return the ``$name`` and ``{name}`` that IPython did not expand, as ``(text, name)``.

    ``${name}`` in a web address is left out: it is a reference to a secret, whose value the run gets.
    """
    parts = list(tokens)
    return [
        (match[0], match["dollar"] or match["brace"])
        for i, token in enumerate(parts)
        for match in _EXPANDABLE.finditer("" if _is_pattern(parts, i) else token)
        if not ("://" in token[: match.start()] and token[: match.start()].endswith("$"))
    ]


def check_expanded(tokens: Iterable[str], known: Container[str]) -> None:
    """Raise if IPython left a variable unexpanded, which it does silently.

    Parameters
    ----------
    known
        Names of the notebook's variables.
    """
    names = unexpanded(tokens)
    if not names:
        return
    text, name = next(((text, name) for text, name in names if name not in known), names[0])
    if name not in known:
        raise CommandError(
            f"{text}: the notebook has no variable {name}.",
            hint=f"Set it in a cell: {name} = ...",
            code="line.unknown_variable",
        )
    raise CommandError(
        f"IPython did not expand {text}: other braces in the line prevent it, or it was written as $$.",
        hint="Put such values into variables, or call jupyter_amltrain.submit().",
        code="line.not_expanded",
    )


def words(text: str) -> list[str]:
    """Return the words of a line as written, with quotes; :func:`split` of each returns the word itself.

    Raises
    ------
    CommandError
        A quotation mark is not closed.
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


def flag_with_value(flag: str, text: str) -> str:
    """Return a flag and its value as words of a line."""
    if "\n" in text or "\r" in text:
        raise CommandError(
            f"{flag}: the value cannot contain a line break.",
            hint="Assign the value in the code below.",
            code="line.line_break",
        )
    if text.startswith("-"):
        return quote(f"{flag}={text}")
    return f"{flag} {quote(text)}"


def quote(text: str) -> str:
    """Return `text` as one word of a line; prefers double quotes, in which IPython users often write ``$names``."""
    if _PLAIN.fullmatch(text):
        return text
    for quoted in (f'"{text}"', shlex.quote(text)):
        try:
            if split(f"{quoted} x") == [text, "x"] and words(f"{quoted} x") == [quoted, "x"]:
                return quoted
        except CommandError:
            continue
    return shlex.quote(text)
