"""Metrics in the lines that a program prints: forms of known libraries, and the user's own patterns."""

import ast
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .line_pattern import COLORS, NUMBER, LinePattern

#: Longer lines are data, not metrics; also the limit for the user's patterns.
MAX_LINE = 2000

_BOOSTING = re.compile(r"^\[(\d+)\]\t(.+)$")
_BOOSTING_PART = re.compile(r"^(?P<name>[^\t]+?):\s?(?P<value>%s)(?:\s?[-+]\s?[\d.eE-]+)?$" % NUMBER)
_CATBOOST = re.compile(r"^(\d+):\t(learn|test): ")
_TRIAL = re.compile(r"\bTrial (\d+) finished with values?: (\[[^\]]*\]|%s)" % NUMBER)
_TRAINER = re.compile(r"\{'[^{}]*'epoch': [^{}]*\}")
_EPOCH = re.compile(r"^Epoch (\d+)/\d+\s*$")
_KERAS = re.compile(r"^\s*(\d+)/(\d+) .*?- ([a-z]\w*: .*)$")
_KERAS_PART = re.compile(r"^(\w+): (%s)$" % NUMBER)


_COLUMN = re.compile(r"[a-z]\w*")


class Point(NamedTuple):
    """One value of a metric; its step is ``None`` if it is one more than the last."""

    name: str
    value: float
    step: Optional[int]
    time: Optional[float] = None  #: unix seconds; ``None``: when it was read


def boosting(line: str) -> List[Point]:
    """XGBoost and LightGBM: ``[10]<tab>train-rmse:0.4<tab>eval-rmse:0.5``."""
    found = _BOOSTING.match(line)
    if found is None:
        return []
    parts = [_BOOSTING_PART.match(part.strip()) for part in found[2].split("\t")]
    if None in parts:
        return []
    return [
        Point(part["name"].replace("'s ", "-").strip(), float(part["value"]), int(found[1])) for part in parts if part
    ]


def catboost(line: str) -> List[Point]:
    """CatBoost: ``10:<tab>learn: 0.4<tab>test: 0.5<tab>best: 0.5 (9)<tab>total: 3ms``."""
    found = _CATBOOST.match(line)
    if found is None:
        return []
    pairs = (part.split(": ", 1) for part in line.split("\t")[1:] if ": " in part)
    return [
        Point(name, float(value), int(found[1]))
        for name, value in pairs
        if name in ("learn", "test") and re.fullmatch(NUMBER, value.strip())
    ]


def optuna(line: str) -> List[Point]:
    """Optuna: ``Trial 3 finished with value: 0.2 and parameters: ...``."""
    found = _TRIAL.search(line)
    if found is None:
        return []
    texts = re.findall(NUMBER, found[2])
    names = ["value"] if not found[2].startswith("[") else ["value_%d" % number for number in range(len(texts))]
    return [Point(name, float(text), int(found[1])) for name, text in zip(names, texts)]


def trainer(line: str) -> List[Point]:
    """Trainer of Hugging Face: ``{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': 1.0}``."""
    found = _TRAINER.search(line)
    if found is None:
        return []
    try:
        values: Dict[Any, Any] = ast.literal_eval(found[0])
        pairs = [(name, float(value)) for name, value in values.items() if name != "epoch"]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return []
    return [Point(name, value, None) for name, value in pairs if isinstance(name, str)]


class Keras:
    """Keras: ``Epoch 1/5``, then ``45/45 - 1s - accuracy: 0.8 - loss: 0.5``, which may come several times."""

    def __init__(self) -> None:
        self._epoch: Optional[int] = None
        self._steps = ""  #: batches of an epoch, as text
        self._held: List[Point] = []  #: of the epoch, until it is over

    def __call__(self, line: str) -> List[Point]:
        found = _EPOCH.match(line)
        if found is not None:
            held, self._epoch = self.end(), int(found[1]) - 1
            return held
        found = _KERAS.match(line) if self._epoch is not None else None
        if found is None or found[1] != found[2] or self._steps not in ("", found[2]):
            return []
        self._steps = found[2]
        parts = [_KERAS_PART.match(part.strip()) for part in found[3].split(" - ")]
        points = [Point(part[1], float(part[2]), self._epoch) for part in parts if part is not None]
        if len(points) >= len(self._held):  # the last of them has the validation, too
            self._held = points
        return []

    def end(self) -> List[Point]:
        """Return the points of the last epoch."""
        held, self._held, self._epoch = self._held, [], None
        return held


class Tables:
    """skorch, fastai and others: a line of names that begins with *epoch*, then a line of numbers for each epoch."""

    def __init__(self) -> None:
        self._names: List[str] = []

    def __call__(self, line: str) -> List[Point]:
        words = line.split()
        if len(words) > 2 and words[0] == "epoch" and all(_COLUMN.fullmatch(word) for word in words):
            self._names = words
            return []
        if not self._names or line.strip("- \t") == "":
            return []
        values = [word for word in words if word != "+"]  # skorch marks the best epochs
        if not values or not values[0].isdigit() or len(values) != len(self._names):
            self._names = []
            return []
        return [
            Point(name, float(value), int(values[0]))
            for name, value in zip(self._names[1:], values[1:])
            if name not in ("dur", "time", "cp") and re.fullmatch(NUMBER, value)
        ]


class PrintedLines:
    """Finds the metrics in lines, in their order.

    Parameters
    ----------
    patterns
        Those of ``--metric``.
    """

    def __init__(self, patterns: Sequence[LinePattern]) -> None:
        self._patterns = patterns
        self._keras = Keras()
        self._forms: Dict[str, Callable[[str], List[Point]]] = {
            "Keras": self._keras,
            "XGBoost, LightGBM": boosting,
            "CatBoost": catboost,
            "Optuna": optuna,
            "Trainer": trainer,
            "table": Tables(),
        }

    def read(self, text: str) -> Tuple[List[Point], List[Tuple[str, Point]]]:
        """Return the points of the user's patterns in a line, and those of known forms, each with its library."""
        line = COLORS.sub("", text)
        own = [
            Point(pattern.name, *found)
            for pattern, found in ((pattern, pattern.find(line[:MAX_LINE])) for pattern in self._patterns)
            if found is not None
        ]
        if own or len(line) > MAX_LINE:
            return own, []
        return [], [(library, point) for library, form in self._forms.items() for point in form(line)]

    def end(self) -> List[Tuple[str, Point]]:
        """Return the points that waited for further lines."""
        return [("Keras", point) for point in self._keras.end()]
