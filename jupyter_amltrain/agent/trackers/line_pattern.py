"""A pattern of ``--metric``: where in a printed line the value of a metric is, and its step.

``loss=Loss: {value} after {step} batches`` finds 0.25 and 640 in *Loss: 0.25 after 640 batches*. ``{}`` is any other
word or number. Blanks are as wide as they come, or absent.
"""

import re
from typing import NamedTuple, Optional, Pattern, Tuple

#: A number as programs print it.
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)\b|[-+]?NaN\b"

#: Codes of a terminal's colors, and marks of displays.
COLORS = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|_[^\x07\x1b]*\x1b\\)")

#: Names that MLflow takes.
_NAME = re.compile(r"[\w.\- :/]{1,250}")

#: ``{{`` and ``}}`` are braces, ``{name}`` is a place.
_PARTS = re.compile(r"\{\{|\}\}|\{(\w*)\}|([{}])")

#: Places without a name in one pattern: each can make the search of a long line slower.
_MAX_OTHERS = 12

_PLACES = {"value": r"\s*(?P<value>%s)" % NUMBER, "step": r"\s*(?P<step>\d+)", "": r"\s*[^\s,;\]\)]{1,80}?"}


class LinePattern(NamedTuple):
    """A pattern, ready to search lines with."""

    name: str
    regex: Pattern[str]

    def find(self, line: str) -> Optional[Tuple[float, Optional[int]]]:
        """Return value and step in a line; the step is ``None`` where the pattern has none."""
        found = self.regex.search(line)
        if found is None:
            return None
        step = found.groupdict().get("step")
        return float(found["value"]), None if step is None else int(step)


def parse_pattern(text: str) -> LinePattern:
    """Return the pattern of ``NAME=TEXT``.

    Raises
    ------
    ValueError
        It is none; the message is one sentence for the user.
    """
    name, equals, line = text.partition("=")
    name = name.strip()
    if not equals or not _NAME.fullmatch(name):
        raise ValueError("it must begin with the name of the metric and '='")
    places = [found[1] for found in _PARTS.finditer(line) if found[1] is not None]
    for found in _PARTS.finditer(line):
        if found[2]:
            raise ValueError("a brace in the text itself is written twice, as {{ or }}")
        if found[1] and found[1] not in _PLACES:
            raise ValueError("{%s} is unknown; there are {value}, {step} and {}" % found[1])
    if places.count("value") != 1 or places.count("step") > 1:
        raise ValueError("it must have {value} once, and {step} at most once")
    if len(places) > _MAX_OTHERS:
        raise ValueError("it may have at most %d places" % _MAX_OTHERS)
    return LinePattern(name, re.compile(_expression(line)))


def _expression(line: str) -> str:
    parts, at = [], 0
    for found in _PARTS.finditer(line):
        parts += [_literal(line[at : found.start()])]
        parts += [re.escape(found[0][0]) if found[1] is None else _PLACES[found[1]]]
        at = found.end()
    parts.append(_literal(line[at:]))
    return "".join(parts)


def _literal(text: str) -> str:
    return r"\s*".join(re.escape(word) for word in re.split(r"\s+", text))
