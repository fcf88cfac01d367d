"""Searched values as text: how a service that chooses the trials of a sweep passes them to the job of a trial.

The service replaces ``${{search_space.NAME}}`` in the command of a trial by the text of the value, which has no type:
16 may be ``16`` or ``16.0``, true ``True`` or ``true``. The search space gives the type back.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.param_forms import form_of as param_form
from jupyter_amltrain.schema.param_forms import switch_of
from jupyter_amltrain.schema.search_space import (
    Choice,
    Expression,
    QLogNormal,
    QLogUniform,
    QNormal,
    QUniform,
    RandInt,
    all_expressions,
    is_boolean,
)

if TYPE_CHECKING:
    from jupyter_amltrain.schema.job import JobSpec

#: Prefix of the variable with the text of a value.
PREFIX = "AML_SWEEP_"
#: Characters that a shell interprets within double quotes.
_SHELL = frozenset('"$`\\')
#: Relative difference up to which a number is that of a choice: texts may have fewer digits.
_TOLERANCE = 1e-6


def variable(name: str) -> str:
    """Return the environment variable with the value of a parameter."""
    return f"{PREFIX}{name}"


def reference(name: str) -> str:
    """Return the reference that the service replaces by the value of a parameter."""
    return f"${{{{search_space.{name}}}}}"


def switches(spec: JobSpec) -> dict[str, tuple[str, str]]:
    """Return the words for true and for false of the switches of a file whose values a service chooses.

    The reference to such a value is a word of the command line, which becomes the word of the value.
    """
    if spec.script or spec.sweep is None or spec.trial is not None:
        return {}
    found = {name: switch_of(param_form(name, spec.forms)) for name, e in spec.sweep.space.items() if is_boolean(e)}
    return {name: words for name, words in found.items() if words is not None}


def shell_word(name: str, words: tuple[str, str] | None = None) -> str:
    """Return what stands for the reference in a command line (POSIX sh): the value, or a word for true or for false."""
    value = f'"${variable(name)}"'
    if words is None:
        return value
    true, false = (f"echo {shlex.quote(word)}" if word else ":" for word in words)
    return f"$(case {value} in [Tt]rue) {true};; *) {false};; esac)"


def check_texts(space: dict[str, Expression]) -> None:
    """Raise :class:`SpecError` for a value that its text does not identify.

    Raises
    ------
    SpecError
        A choice has options with parameters of their own, null or lists, text that a shell would change, or two values
        with the same text.
    """
    for name, e in all_expressions(space):
        if not isinstance(e, Choice):
            continue
        if any(isinstance(option, dict) for option in e.values):
            raise _refusal(
                name,
                "a choice between groups of parameters cannot be passed to a job of a service.",
                "Search the parameters without groups, or run the sweep on another target.",
            )
        if any(option is None or isinstance(option, list | tuple) for option in e.values):
            raise _refusal(name, "null and lists have no text for a trial.", "Use numbers, text, true or false.")
        texts = [option for option in e.values if isinstance(option, str)]
        if unsafe := next((text for text in texts if not text.isprintable() or _SHELL.intersection(text)), None):
            raise _refusal(
                name,
                f"the text {unsafe[:40]!r} has a character that the command of a trial would change.",
                'Use text without ", $, ` and \\, and map it in the script.',
            )
        for text in texts:
            if any(_is_same_text(text, option) for option in e.values if not isinstance(option, str)):
                raise _refusal(
                    name,
                    f"the text {text[:40]!r} and a value of another type look the same to a trial.",
                    "Use one of the two.",
                )


def _refusal(name: str, message: str, hint: str) -> SpecError:
    return SpecError(message, hint=hint, code="sweep.text", field=f"space.{name}").about(f"--param {name}")


def _is_same_text(text: str, value: Any) -> bool:
    if isinstance(value, bool):
        return text.lower() in ("true", "false")
    return isinstance(value, int | float) and _number(text) is not None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _has_integers(e: Expression) -> bool:
    if isinstance(e, QUniform | QLogUniform | QNormal | QLogNormal):
        return float(e.q).is_integer()
    return isinstance(e, RandInt)


def value_of(e: Expression, value: Any) -> Any:
    """Return the value of an expression that a text, or a number of another type, stands for.

    Text that stands for no value is returned unchanged.
    """
    if isinstance(e, Choice):
        return _choice_of(e, value)
    number = _number(str(value))
    if number is None or isinstance(value, bool):
        return value
    return round(number) if _has_integers(e) else number


def _choice_of(e: Choice, value: Any) -> Any:
    text = str(value)
    for option in e.values:
        if isinstance(option, str) and option == text:
            return option
        if isinstance(option, bool) and text.lower() == str(option).lower():
            return option
    numbers = [option for option in e.values if isinstance(option, int | float) and not isinstance(option, bool)]
    number = _number(text)
    if number is not None and numbers:
        nearest = min(numbers, key=lambda option: abs(option - number))
        if math.isclose(nearest, number, rel_tol=_TOLERANCE, abs_tol=1e-300):
            return nearest
    return value


def code_of(name: str, e: Expression) -> str:
    """Return a Python expression on one line that reads the value from its variable."""
    text = f'__import__("os").environ[{variable(name)!r}]'
    if not isinstance(e, Choice):
        return f"round(float({text}))" if _has_integers(e) else f"float({text})"
    values = list(dict.fromkeys((type(option), option) for option in e.values if not isinstance(option, dict | list)))
    kinds = {kind for kind, _ in values}
    if kinds == {str}:
        return text
    if kinds == {bool}:
        return f'{text}.lower() == "true"'
    numbers = [option for kind, option in values if kind in (int, float)]
    nearest = f"min({numbers!r}, key=lambda value: abs(value - float(text)))"
    named = {
        spelling: option
        for kind, option in values
        if kind in (str, bool)
        for spelling in ([option] if kind is str else [str(option), str(option).lower()])
    }
    found = f"({named!r}.get(text) if text in {named!r} else {nearest})" if named and numbers else nearest
    return f"(lambda text: {found if numbers else f'{named!r}[text]'})({text})"


def form_of(e: Expression) -> str | list[str]:
    """Return how the agent turns the text of a value into an argument: ``int``, ``float``, or the texts of a choice."""
    if not isinstance(e, Choice):
        return "int" if _has_integers(e) else "float"
    return [
        str(option).lower() if isinstance(option, bool) else str(option)
        for option in e.values
        if not isinstance(option, dict | list)
    ]
