"""The words of a magic's line, and what IPython left in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Iterable

from jupyter_amltrain.errors import CommandError

_EXPANDABLE = re.compile(r"\$(?P<dollar>[A-Za-z_]\w*)|\{(?P<brace>[A-Za-z_]\w*)\}")


def split(line: str) -> list[str]:
    """The words of a magic's line, as a shell would find them, but brackets hold together.

    A semicolon at the end is no word: it tells IPython to keep the value to itself.

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
            f"{str(error).rstrip('.')} in: {line.strip()}.", hint='Quote the whole value: --param "name=$value"'
        ) from None


def _quoted_groups(line: str) -> str:
    """`line` with every ``[...]``, ``{...}``, ``(...)`` outside quotes put in quotes."""
    done: list[str] = []
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
                done.append(line[start:i])
                start = i
            depth += 1
        elif char in ")}]" and depth:
            depth -= 1
            if not depth:
                done.append(shlex.quote(line[start : i + 1]))
                start = i + 1
        i += 1
    # Not closed: they were no brackets of a value, and a shell's rules are all there is.
    return line if depth else "".join(done) + line[start:]


def left_over(tokens: Iterable[str]) -> list[tuple[str, str]]:
    """``$name`` and ``{name}`` that IPython did not expand: ``(as written, name)``."""
    return [(match[0], match["dollar"] or match["brace"]) for token in tokens for match in _EXPANDABLE.finditer(token)]


def check_expanded(tokens: Iterable[str], known: Container[str]) -> None:
    """Raise when IPython left something unexpanded, which it does without a word.

    Parameters
    ----------
    known
        Names of the notebook's variables.
    """
    left = left_over(tokens)
    if not left:
        return
    written, name = next(((w, n) for w, n in left if n not in known), left[0])
    if name not in known:
        raise CommandError(f"{written}: the notebook has no variable {name}.", hint=f"Set it in a cell: {name} = ...")
    raise CommandError(
        f"{written} was not expanded by IPython: other braces of the line stop it, or it was written as $$.",
        hint="Put such values into variables, or use the function jupyter_amltrain.submit().",
    )
