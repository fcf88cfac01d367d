"""Proposes ``--metric`` for a run that has logged nothing, from the lines that it printed most."""

import re
import shlex
from typing import Dict, List, Optional, Sequence, Tuple

from .line_pattern import COLORS

#: Lines of one shape from which a proposal is made.
MIN_LINES = 3

#: Shapes that are counted, bytes of a line that has one, and metrics of a proposal.
_MAX_SHAPES, _MAX_LINE, _MAX_METRICS = 200, 300, 3

#: Lines that are counted: each costs 15 µs.
_MAX_LINES = 20_000

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
#: What separates the words for a number from what is before them.
_SEPARATOR = re.compile(r"[\[\](){}|,;<>\"'#*]|\s-+\s|\s{2,}|\t")
#: Numbers that are no metrics.
_NO_METRIC = re.compile(r"(?i)\b(time|elapsed|eta|took|seconds?|secs?|date|version|step|epoch|iter\w*|batch|lr)\b")
_COUNTER = re.compile(r"(?i)\b(epoch|step|iter\w*|batch\w*|round|trial|episode)\W*$")
#: Before a part of a date or a time of day.
_CLOCK = re.compile(r"\d[-:.,]$")
_UNIT = re.compile(r"(?i)(ms|s|sec|secs|seconds|it/s|mb|gb|kb|h|m)\b|/s")


class _Shape:
    """Lines that differ in their numbers only."""

    def __init__(self, line: str, numbers: Sequence[str]) -> None:
        self.line = line
        self.count = 0
        self.last: List[float] = []
        self.rises = [True] * len(numbers)  #: it has not fallen
        self.changes = [False] * len(numbers)

    def add(self, numbers: Sequence[str]) -> None:
        values = [float(number) for number in numbers]
        for at, (old, new) in enumerate(zip(self.last, values)):
            self.rises[at] = self.rises[at] and new >= old
            self.changes[at] = self.changes[at] or new != old
        self.count, self.last = self.count + 1, values

    def patterns(self) -> List[str]:
        """Return patterns for the metrics of these lines."""
        found = list(_NUMBER.finditer(self.line))
        step = self._step(found)
        patterns: Dict[str, str] = {}
        for at, number in enumerate(found):
            name = self._name(at, found)
            is_float = any(mark in number[0] for mark in ".eE")
            if at != step and is_float and self.changes[at] and name and not self._is_unit(number.end()):
                patterns.setdefault(name, self._pattern(found, at, step))
        return ["%s=%s" % pair for pair in patterns.items()][:_MAX_METRICS]

    def _step(self, found: "Sequence[re.Match[str]]") -> Optional[int]:
        """Return which number counts: one that a word such as *epoch* names, else the first that only rises."""
        rising = [at for at, number in enumerate(found) if number[0].isdigit() and self.rises[at] and self.changes[at]]
        named = [at for at in rising if _COUNTER.search(self._before(at, found)[1])]
        whole = [at for at in rising if not _CLOCK.search(self.line[: found[at].start()])]
        return next(iter([*named, *whole]), None)

    def _is_unit(self, at: int) -> bool:
        return _UNIT.match(self.line, at) is not None

    def _before(self, at: int, found: "Sequence[re.Match[str]]") -> Tuple[int, str]:
        """Return the beginning of the words before a number, and the words."""
        begin = found[at - 1].end() if at else 0
        text = self.line[begin : found[at].start()]
        for separator in _SEPARATOR.finditer(text.rstrip()):
            begin += separator.end() if separator.end() < len(text.rstrip()) else 0
            text = self.line[begin : found[at].start()]
            break
        cut = [separator.end() for separator in _SEPARATOR.finditer(text.rstrip())]
        if cut:
            begin, text = begin + cut[-1], text[cut[-1] :]
        blank = len(text) - len(text.lstrip(" %:="))
        return begin + blank, text[blank:]

    def _name(self, at: int, found: "Sequence[re.Match[str]]") -> str:
        words = re.findall(r"[A-Za-z_][\w/]*", self._before(at, found)[1])[-3:]
        return "" if _NO_METRIC.search(" ".join(words)) else "_".join(words).lower()

    def _pattern(self, found: "Sequence[re.Match[str]]", value: int, step: Optional[int]) -> str:
        """Return the part of the line from the words of the first place to those after the last."""
        ends = sorted({value, value if step is None else step})
        begin = self._before(ends[0], found)[0]
        if self.line[begin - 1 : begin] in ("[", "("):
            begin -= 1
        last = ends[-1]
        end = found[last + 1].start() if last + 1 < len(found) else len(self.line)
        tail = re.match(r"\s?[^\W\d]+\b(?![:=])|[%\])]", self.line[found[last].end() : end])
        parts = []
        for at in range(ends[0], last + 1):
            parts.append(_plain(self.line[begin : found[at].start()]))
            parts.append("{value}" if at == value else "{step}" if at == step else "{}")
            begin = found[at].end()
        return "".join(parts) + (_plain(tail[0]) if tail is not None else "")


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("{", "{{").replace("}", "}}")


class LineShapes:
    """Counts the lines of a program by their shape."""

    def __init__(self) -> None:
        self._shapes: Dict[str, _Shape] = {}
        self._lines = 0

    def add(self, text: str) -> None:
        """Count a line."""
        if len(text) > _MAX_LINE or self._lines >= _MAX_LINES:
            return
        self._lines += 1
        line = COLORS.sub("", text).strip()
        numbers = _NUMBER.findall(line)
        if not numbers or len(numbers) > 20:
            return
        key = re.sub(r"\s*\0\s*", "\0", _NUMBER.sub("\0", line))
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _MAX_SHAPES:
                return
            shape = self._shapes[key] = _Shape(line, numbers)
        shape.add(numbers)

    def proposal(self) -> str:
        """Return a sentence that proposes ``--metric``; empty if no line looks like a metric."""
        for shape in sorted(self._shapes.values(), key=lambda shape: -shape.count):
            if shape.count < MIN_LINES:
                break
            patterns = shape.patterns()
            if patterns:
                flags = " ".join("--metric %s" % shlex.quote(pattern) for pattern in patterns)
                line = shape.line if len(shape.line) <= 80 else shape.line[:79] + "…"
                count = "%s%d" % ("over " if self._lines >= _MAX_LINES else "", shape.count)
                return 'No metric was logged. The log has %s lines like "%s". To record them: %s' % (count, line, flags)
        return ""
