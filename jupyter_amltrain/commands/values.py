"""What stands behind the flags: times, ``k=v`` pairs, names. One error, one sentence."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable
from typing import Any

from jupyter_amltrain import syntax
from jupyter_amltrain.errors import CommandError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+|\d+(?:\.\d+)?")


def duration(text: str) -> float:
    """Seconds of ``90``, ``30s``, ``15m``, ``2h``, ``1d``, ``1h30m``."""
    if not _DURATION.fullmatch(text):
        raise CommandError(f"{text!r} is not a time.", hint="Write 90 (seconds), 30s, 15m, 2h or 1d.")
    if text[-1] not in _UNITS:
        return float(text)
    return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([\d.]+)([smhd])", text))


def duration_text(seconds: float) -> str:
    """``2h``: the shortest text that :func:`duration` reads as so many seconds."""
    unit = next(unit for unit in "dhms" if unit == "s" or seconds % _UNITS[unit] == 0)
    return f"{seconds / _UNITS[unit]:g}{unit}"


def count(text: str) -> int:
    """A number from 0."""
    if not re.fullmatch(r"\d{1,9}", text):
        raise CommandError(f"{text!r} is not a whole number from 0.", hint="Write for example 1.")
    return int(text)


class OneOf:
    """Reads one of some words; near misses are named.

    Parameters
    ----------
    flag
        As it is typed.
    words
        What may be given, with what it means; an empty meaning is left out.
    """

    def __init__(self, flag: str, **words: str) -> None:
        self.flag, self.choices = flag, tuple(words)
        told = [f"{word} ({meaning})" if meaning else word for word, meaning in words.items()]
        self._told = f"{', '.join(told[:-1])} or {told[-1]}"

    def __call__(self, text: str) -> str:
        if text in self.choices:
            return text
        import difflib

        near = difflib.get_close_matches(text, self.choices, 1, 0.5)
        raise CommandError(
            f"{self.flag} {text[:80]!r}: it is {self._told}.",
            hint=f"Did you mean {self.flag} {near[0]}?" if near else f"Try: {self.flag} {self.choices[0]}",
        )


require_gpu = OneOf("--require-gpu", stop="end a run that leaves its GPUs unused", warn="say so only")
share_gpus = OneOf("--share-gpus", yes="also GPUs that others use", no="only GPUs that nobody uses")
gpu_ids = OneOf("--gpu-ids", uuid="the default", index="numbers as nvidia-smi has them, PCI order")
priority = OneOf("--priority", low="", medium="", high="")
tier = OneOf("--tier", spot="low priority, cheaper, may be taken away", basic="", standard="", premium="")


def indices(text: str) -> list[int]:
    """GPU numbers with commas, ``0,1`` or ``0-3``; each once, in order."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise CommandError(f"--gpus {text!r}: not a list of GPU numbers.", hint="Write: --gpus 0,1")
        found.update(range(first, last + 1))
    return sorted(found)


def window(text: str) -> float:
    """Seconds that charts show; 0 for ``all``."""
    if text == "all":
        return 0.0
    try:
        seconds = duration(text)
    except CommandError:
        seconds = 0.0
    if seconds <= 0:
        raise CommandError(f"--window {text!r} is not a time.", hint="Write 90s, 10m, 2h or all.")
    return seconds


def rate(text: str) -> float:
    """Measurements a second, 0.1 to 10."""
    hertz = float(text) if re.fullmatch(r"\d{1,3}(?:\.\d*)?|\.\d+", text) else 0.0
    if not 0.1 <= hertz <= 10:
        raise CommandError(
            f"--rate {text!r}: it is a number from 0.1 to 10, measurements a second.", hint="Try: --rate 1"
        )
    return hertz


def variable(text: str) -> str:
    """A Python variable name."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise CommandError(f"{text!r} is not a variable name.", hint="Write for example: run")
    return text


def out(text: str) -> list[str]:
    """Names of variables, one or several with commas."""
    return [variable(name) for name in text.split(",")]


def param(text: str) -> tuple[str, Any]:
    """``k=v`` with a JSON or Python literal, or plain text, as value."""
    name, value = _pair("--param", "lr=0.1")(text)
    return name, parameter_value(value, name)


def parameter_value(text: str, name: str = "") -> Any:
    """The JSON value that `text` stands for; text that is no literal stays text.

    Raises
    ------
    CommandError
        A Python literal that JSON cannot hold.
    """
    value: Any = text
    for read in (json.loads, syntax.literal):
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
            raise CommandError(f"--param {name}: keys are texts in JSON.", hint="Quote the keys.")
        return {k: _json_value(v, name) for k, v in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        raise CommandError(f"--param {name}: {value} does not fit 64 bits.", hint="Pass it as text.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CommandError(
        f"--param {name}: a {type(value).__name__} is no JSON value.",
        hint="Pass a number, text, true/false/null, a list or a mapping.",
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
    return _pair("--tag", "team=risk")(text)


def env_var(text: str) -> tuple[str, str]:
    """``K=V`` of an environment variable."""
    return _pair("--env-var", "OMP_NUM_THREADS=2")(text)


def _pair(flag: str, example: str) -> Callable[[str], tuple[str, str]]:
    def read(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"{flag} {text!r} has no '='.", hint=f"Write: {flag} {example}")
        return name.strip(), value

    return read
