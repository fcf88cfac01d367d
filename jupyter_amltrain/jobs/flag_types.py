"""Types of flag values: times, counts, ``k=v`` pairs, names, one of some words.

A message names what was expected and what was written; the caller adds the name of the flag.
"""

from __future__ import annotations

import json
import keyword
import re
import shlex
from collections.abc import Callable
from typing import Any

from jupyter_amltrain.agent.trackers.line_pattern import parse_pattern
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import preflight
from jupyter_amltrain.text import close_matches, did_you_mean

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+|\d+(?:\.\d+)?")


def duration(text: str) -> float:
    """Seconds of ``90``, ``30s``, ``15m``, ``2h``, ``1d``, ``1h30m``."""
    if not _DURATION.fullmatch(text):
        raise _wrong("a time", text, "Write 90 (seconds), 30s, 15m, 2h or 1d.")
    if text[-1] not in _UNITS:
        return float(text)
    return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([\d.]+)([smhd])", text))


#: Word that turns a setting off.
OFF = "off"


def minutes(text: str) -> float:
    """Minutes of ``30``, ``30m``, ``1h``, ``1h30m``; 0 for ``off``."""
    if text == OFF:
        return 0
    if not _DURATION.fullmatch(text):
        raise _wrong("minutes", text, "Write 30, 90s, 30m or 1h30m.")
    number = duration(text) / 60 if text[-1] in _UNITS else float(text)
    return int(number) if number == int(number) else number


def share(text: str) -> float:
    """A part of the whole: ``0.2``, ``20%``."""
    if not re.fullmatch(r"\d*\.?\d+%?", text):
        raise _wrong("a share", text, "Example: 0.2")
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def duration_text(seconds: float) -> str:
    """``2h``: the shortest text that :func:`duration` reads as `seconds`."""
    unit = next(unit for unit in "dhms" if unit == "s" or seconds % _UNITS[unit] == 0)
    return f"{seconds / _UNITS[unit]:g}{unit}"


def count(text: str) -> int:
    """A whole number, 0 or more."""
    if re.fullmatch(r"-\d+", text):
        raise _wrong("0 or more", text, "Example: 1")
    if not re.fullmatch(r"\d{1,9}", text):
        raise _wrong("a whole number", text, "Example: 1")
    return int(text)


def gpus(text: str) -> int | float:
    """A number of GPUs, or a fraction of one: ``2``, ``0.25``."""
    if re.fullmatch(r"\d{0,2}\.\d{1,9}", text) and float(text) < 1:
        return float(text)
    if "." in text:
        raise _wrong("a whole number, or a fraction below 1", text, "Example: 0.25")
    return count(text)


def trials_per_gpu(text: str) -> int:
    """A whole number from 1 to 100."""
    number = count(text)
    if not 1 <= number <= 100:
        raise _wrong("1 to 100", text, "Example: 4")
    return number


class OneOf:
    """Type of a flag that takes one of some words; its error names close matches.

    Parameters
    ----------
    words
        Accepted words with their meaning, which may be empty.
    """

    def __init__(self, **words: str) -> None:
        self.choices = tuple(words)
        described = [f"{word} ({meaning})" if meaning else word for word, meaning in words.items()]
        self._expected = f"{', '.join(described[:-1])} or {described[-1]}"

    @property
    def metavar(self) -> str:
        """``stop|warn``."""
        return "|".join(self.choices)

    def __call__(self, text: str) -> str:
        """Return `text`, or raise :class:`CommandError` if it is not one of the words."""
        if text in self.choices:
            return text
        near = close_matches(text, self.choices, 1)
        raise _wrong(self._expected, text, did_you_mean(near, f"Example: {self.choices[0]}"))


require_gpu = OneOf(stop="end a run that leaves its GPUs unused", warn="only warn")
share_gpus = OneOf(yes="also GPUs that others use", no="only GPUs that nobody uses")
gpu_ids = OneOf(uuid="the default", index="numbers as in nvidia-smi, in PCI order")
priority = OneOf(low="", medium="", high="")
tier = OneOf(spot="low priority, cheaper, may be preempted", basic="", standard="", premium="")
model_type = OneOf(custom_model="", mlflow_model="")


def indices(text: str) -> list[int]:
    """GPU numbers with commas, ``0,1`` or ``0-3``; each once, in order."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise _wrong("a list of GPU numbers", text, "Example: 0,1")
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def window(text: str) -> float:
    """Seconds that charts show; 0 for ``all``."""
    if text == "all":
        return 0.0
    try:
        seconds = duration(text)
    except CommandError:
        seconds = 0.0
    if seconds <= 0:
        raise _wrong("a time", text, "Write 90s, 10m, 2h or all.")
    return seconds


def rate(text: str) -> float:
    """Samples per second, 0.1 to 10."""
    hertz = float(text) if re.fullmatch(r"\d{1,3}(?:\.\d*)?|\.\d+", text) else 0.0
    if not 0.1 <= hertz <= 10:
        raise _wrong("samples per second, from 0.1 to 10", text, "Example: 1")
    return hertz


def variable(text: str) -> str:
    """A Python variable name."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise _wrong("a variable name", text, "Example: run")
    return text


def words(text: str) -> str:
    """A program and its flags, as a shell reads them."""
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise _wrong("words as a shell reads them", text, f"{error}.") from None
    if not found:
        raise _wrong("the name of a program", text, "Example: 'torchrun --nproc_per_node 2'")
    return text


def style(text: str) -> str:
    """How a script takes its parameters."""
    from jupyter_amltrain.schema.param_forms import STYLES  # imports msgspec, which %load_ext does without

    if text not in STYLES:
        raise _wrong(f"one of {', '.join(STYLES)}", text, "Example: hydra")
    return text


def names(text: str) -> list[str]:
    """Names of variables, one or several with commas."""
    return [variable(name) for name in text.split(",")]


def out_names(text: str) -> list[str]:
    """Names of variables, one or several with commas, or ``*`` for all."""
    return [part if part == "*" else variable(part) for part in text.split(",")]


def cells(text: str) -> list[str]:
    """Numbers of cells, one or several with commas, or ``all``."""
    words = [word.strip() for word in text.split(",")]
    if not all(word == "all" or word.isdecimal() for word in words):
        raise CommandError(
            "expected the number of a cell, or all.", hint="Try: --replay 5", code="closure.replay", field="replay"
        ).about(f"--replay {text[:80]!r}")
    return words


def param(text: str) -> tuple[str, Any]:
    """``k=v`` with a JSON or Python literal, or plain text, as value."""
    name, value = _pair("lr=0.1")(text)
    return name, parameter_value(value, name)


def parameter_value(text: str, name: str = "") -> Any:
    """The JSON value that `text` stands for; text that is no literal stays text.

    Raises
    ------
    CommandError
        A Python literal that JSON cannot hold.
    """
    value: Any = text
    for read in (json.loads, preflight.literal):
        try:
            value = read(text)
            break
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
    if value is Ellipsis:
        return text
    return _json_value(value, name)


def _json_value(value: Any, name: str) -> Any:
    if isinstance(value, tuple | list):
        return [_json_value(x, name) for x in value]
    if isinstance(value, dict):
        if not all(isinstance(k, str) for k in value):
            raise CommandError(f"{name}: JSON keys must be strings.", hint="Quote the keys.", code="flag.value")
        return {k: _json_value(v, name) for k, v in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        raise CommandError(f"{name}: {value} does not fit in 64 bits.", hint="Pass it as text.", code="flag.value")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CommandError(
        f"{name}: JSON has no {type(value).__name__}.",
        hint="Pass a number, text, true/false/null, a list or a mapping.",
        code="flag.value",
    )


def parameter_text(value: Any) -> str:
    """Text that :func:`parameter_value` reads as `value` (a JSON value)."""
    if isinstance(value, str):
        plain = parameter_value(value) if _reads_plain(value) else None
        return value if plain == value else json.dumps(value)
    return json.dumps(value)


def _reads_plain(value: str) -> bool:
    try:
        return isinstance(parameter_value(value), str)
    except CommandError:
        return False


def tag(text: str) -> tuple[str, str]:
    """``k=v`` of texts."""
    return _pair("team=risk")(text)


def env_var(text: str) -> tuple[str, str]:
    """``K=V`` of an environment variable."""
    return _pair("OMP_NUM_THREADS=2")(text)


def metric_line(text: str) -> str:
    """``NAME=TEXT`` of a printed line with a metric."""
    try:
        parse_pattern(text)
    except ValueError as error:
        hint = "Example: 'loss=Loss: {value} after {step} batches'"
        raise CommandError(f"{text[:80]!r}: {error}.", hint=hint, code="flag.value") from None
    return text


def _pair(example: str) -> Callable[[str], tuple[str, str]]:
    def read(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            missing = "no name before the '='" if equals else "no '='"
            raise CommandError(f"{text[:80]!r} has {missing}.", hint=f"Example: {example}", code="flag.value")
        return name.strip(), value

    return read


def _wrong(expected: str, text: str, hint: str) -> CommandError:
    return CommandError(f"expected {expected}, got {text[:80]!r}.", hint=hint, code="flag.value")
