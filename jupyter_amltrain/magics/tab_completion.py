"""Tab completion of the magics, as a matcher of IPython's completer.

Loading registers one function; the first Tab in a line of an ``aml_`` magic imports the rest.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.registry import NOUNS

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_amltrain.commands.completion import CompletionNames

_NOUNS = "|".join(NOUNS)
_LINE = re.compile(
    r"\s*(?:(?:[A-Za-z_][\w.,\s\[\]'\"]*=\s*)?%{1,2}|(?!\w+\s*=))"  # `run = %aml_...`; automagic needs no sign
    rf"aml_(?P<command>{_NOUNS})\s+(?P<line>.*)",
    re.DOTALL,
)
_names: CompletionNames | None = None


def matcher(context: Any) -> Any:
    """Return completions of a line that starts with an ``aml_`` magic; none for other lines."""
    lines = context.full_text.split("\n")
    at = min(context.cursor_line, len(lines) - 1)
    before = lines[at][: context.cursor_position]
    if not lines[0].startswith("%%"):
        while at and lines[at - 1].endswith("\\"):
            at -= 1
            before = f"{lines[at][:-1]} {before}"
    elif at:
        before = ""  # the body of a cell magic has no magics
    match = _LINE.fullmatch(before) if "aml_" in before else None
    if match is None:
        return {"completions": [], "suppress": False}
    return _complete(match["command"], match["line"], "\n".join(lines[1:]) if before.startswith("%%") else "")


# Attributes of a matcher of API version 2. The priority puts it before jedi, which does not know magics.
matcher.matcher_api_version = 2  # type: ignore[attr-defined]
matcher.matcher_priority = 1000  # type: ignore[attr-defined]
matcher.matcher_identifier = "jupyter_amltrain"  # type: ignore[attr-defined]


def _complete(command: str, line: str, cell: str) -> dict[str, Any]:
    global _names
    from IPython.core.completer import SimpleCompletion

    from jupyter_amltrain.commands.completion import CompletionNames, complete

    _names = _names or CompletionNames()
    fragment, offers = complete(command, line, _names, cell)
    return {
        "completions": [SimpleCompletion(text=offer.text, type=offer.kind) for offer in offers],
        "matched_fragment": fragment,
        "ordered": True,
        "suppress": True,
    }


def install(ip: InteractiveShell) -> None:
    """Add the matcher; calling it again has no effect."""
    remove(ip)
    _matchers(ip).append(matcher)


def remove(ip: InteractiveShell) -> None:
    """Remove the matcher."""
    _matchers(ip)[:] = [other for other in _matchers(ip) if other is not matcher]


def _matchers(ip: InteractiveShell) -> list[Any]:
    completer: Any = ip.Completer
    matchers: list[Any] = completer.custom_matchers
    return matchers
