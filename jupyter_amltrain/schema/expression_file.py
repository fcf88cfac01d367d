"""Parameter expressions in files of ``az ml``: as mappings (YAML), and as lists (REST, and ``hdconfig.yml``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.expression_parser import check_expression, is_finite_number, refusal
from jupyter_amltrain.schema.expressions import (
    EXPRESSIONS,
    Choice,
    Expression,
    LogUniform,
    QLogUniform,
    is_distribution,
    kind_of,
    numbers_of,
    read_number,
)
from jupyter_amltrain.text import close_matches, did_you_mean

_FILE_KEYS = {"low": "min_value", "high": "max_value"}


def expression_to_file(e: Expression) -> dict[str, Any]:
    """Return an expression in the form of ``az ml`` YAML: ``{"type": "uniform", "min_value": 0, "max_value": 1}``."""
    if isinstance(e, Choice):
        return {"type": "choice", "values": [_option_to(option, expression_to_file) for option in e.values]}
    fields = type(e).__struct_fields__
    numbers = dict(zip(fields, _file_numbers(e), strict=True))
    return {"type": kind_of(e)} | {_FILE_KEYS.get(field, field): number for field, number in numbers.items()}


def _file_numbers(e: Expression) -> list[Any]:
    numbers = list(numbers_of(e))
    if isinstance(e, LogUniform | QLogUniform):
        numbers[:2] = [math.log(e.low), math.log(e.high)]
    return numbers


def _option_to(option: Any, convert: Any) -> Any:
    if not isinstance(option, Mapping):
        return option
    return {name: convert(part) if is_distribution(part) else part for name, part in option.items()}


def expression_from_file(value: Mapping[str, Any], name: str = "", base: float = math.e) -> Expression:
    """Return the expression of the form of ``az ml`` YAML.

    Parameters
    ----------
    name
        Parameter name, for errors.
    base
        Base of the exponents that bound ``loguniform`` and ``qloguniform``: ``logbase`` of the sampling algorithm.

    Raises
    ------
    SpecError
    """
    if not isinstance(value, Mapping):
        raise _error(name, f"{str(value)[:80]!r} is not a parameter expression.", "It needs a type.", "syntax")
    kind = _kind(name, value.get("type"))
    if kind == "choice":
        values = value.get("values")
        if not isinstance(values, list | tuple):
            raise _error(name, "choice needs a list of values.", "Add values: [1, 2]", "arguments")
        return _checked(name, Choice(tuple(_option_from_file(name, option, base) for option in values)))
    keys = [_FILE_KEYS.get(field, field) for field in EXPRESSIONS[kind].__struct_fields__]
    if missing := [key for key in keys if value.get(key) is None]:
        raise _error(name, f"{kind} needs {', '.join(keys)}.", f"Add {', '.join(missing)}.", "arguments")
    return _checked(name, _of_numbers(name, kind, [value[key] for key in keys], base))


def _option_from_file(name: str, option: Any, base: float) -> Any:
    if not isinstance(option, Mapping):
        return option
    return {
        str(key): expression_from_file(part, str(key), base) if isinstance(part, Mapping) else part
        for key, part in option.items()
    }


def _kind(name: str, kind: Any) -> str:
    text = str(kind or "").lower()
    if text not in EXPRESSIONS:
        near = close_matches(text, EXPRESSIONS, 1)
        hint = did_you_mean(near, f"Supported: {', '.join(EXPRESSIONS)}.")
        raise _error(name, f"unknown expression {str(kind)[:80]!r}.", hint, "unknown")
    return text


def _of_numbers(name: str, kind: str, numbers: Sequence[Any], base: float = math.e) -> Expression:
    fields = EXPRESSIONS[kind].__struct_fields__
    if len(numbers) != len(fields):
        text = f"{kind} needs {len(fields)} numbers ({', '.join(fields)}), got {len(numbers)}."
        raise _error(name, text, "Complete the list.", "arguments")
    converted = [_number(name, kind, number) for number in numbers]
    if kind in ("loguniform", "qloguniform"):
        factor = 1.0 if base == math.e else math.log(base)
        if any(abs(bound * factor) > 700 for bound in converted[:2]):
            text = f"{kind}: min_value and max_value are exponents, and {converted[:2]} are too large."
            raise _error(name, text, "Use the natural logarithms of the bounds.", "exponent")
        converted[:2] = [_exponential(bound * factor) for bound in converted[:2]]
    elif kind in ("lognormal", "qlognormal") and base != math.e:
        raise _error(name, f"{kind} supports only logbase e.", "Remove logbase.", "exponent")
    result: Expression = EXPRESSIONS[kind](*converted)
    return result


def _number(name: str, kind: str, number: Any) -> Any:
    if isinstance(number, str):  # YAML reads 1e-4 as text
        number = read_number(number.strip()) if read_number(number.strip()) is not None else number
    if isinstance(number, bool) or not isinstance(number, int | float) or not is_finite_number(number):
        text = f"{kind}: {repr(number)[:80]} is not a finite number."
        raise _error(name, text, "Write numbers as 0.1, 3 or 1.0e-4.", "number")
    return number


def _exponential(exponent: float) -> float:
    """Return exp(exponent), as the shortest number with this logarithm."""
    exact = math.exp(exponent)
    for digits in range(1, 17):
        short = float(f"{exact:.{digits}g}")
        if short > 0 and math.log(short) == exponent:
            return short
    return exact


def _checked(name: str, e: Expression) -> Expression:
    try:
        check_expression(name, e)
    except SpecError as error:
        raise error.about(f"search_space.{name}" if name else "search_space") from None
    return e


def _error(name: str, message: str, hint: str, code: str) -> SpecError:
    error = refusal(name, message, hint, code)
    return error.about(f"search_space.{name}" if name else "search_space")


def space_to_lists(space: Mapping[str, Expression]) -> dict[str, Any]:
    """Return a space as lists: ``{"lr": ["uniform", [0, 1]]}``."""
    return {name: _to_list(e) for name, e in space.items()}


def _to_list(e: Expression) -> list[Any]:
    if isinstance(e, Choice):
        return ["choice", [[_option_to(option, _to_list) for option in e.values]]]
    return [kind_of(e), _file_numbers(e)]


def space_from_lists(space: Mapping[str, Any]) -> dict[str, Expression]:
    """Return the space of :func:`space_to_lists`; raises :class:`SpecError`."""
    return {str(name): _from_list(str(name), value) for name, value in space.items()}


def _from_list(name: str, value: Any) -> Expression:
    if isinstance(value, Mapping):  # the form of YAML, within a pipeline
        return expression_from_file(value, name)
    if not _is_list(value):
        text = f"{str(value)[:80]!r} is not a parameter expression."
        raise _error(name, text, 'Use ["uniform", [0, 1]].', "syntax")
    kind = _kind(name, value[0])
    if kind != "choice":
        return _checked(name, _of_numbers(name, kind, value[1]))
    options = value[1][0] if len(value[1]) == 1 and isinstance(value[1][0], list | tuple) else value[1]
    return _checked(name, Choice(tuple(_option_from_list(option) for option in options)))


def _is_list(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], list | tuple)
    )


def _option_from_list(option: Any) -> Any:
    if not isinstance(option, Mapping):
        return option
    return {
        str(name): _from_list(str(name), part) if _is_list(part) and part[0].lower() in EXPRESSIONS else part
        for name, part in option.items()
    }
