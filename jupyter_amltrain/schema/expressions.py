"""Parameter expressions of a sweep: the ten distributions of ``az ml``, their text and their values.

The meaning of each expression is that of the pages "Hyperparameter tuning a model (v2)"
(https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters#define-the-search-space), "CLI (v2)
sweep job YAML schema" (https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-sweep#parameter-expressions)
and HyperDrive's ``parameter_expressions``
(https://learn.microsoft.com/python/api/azureml-train-core/azureml.train.hyperdrive.parameter_expressions).

One convention differs: the bounds of ``loguniform`` and ``qloguniform`` are values here, and exponents of e in
files of ``az ml``. The mean and the deviation of ``lognormal`` and ``qlognormal`` are those of the logarithm.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeGuard

import msgspec

#: Maximum of ``randint``: a larger range has integers that a quantile (a double) cannot reach.
MAX_UPPER = 2**53

#: JSON value without parts.
Scalar = str | int | float | bool | None


class Choice(msgspec.Struct, frozen=True, tag_field="type", tag="choice"):
    """One of some values; an option that is a dict holds constants and expressions of further parameters."""

    values: tuple[
        str
        | int
        | float
        | bool
        | None
        | list[str | int | float | bool | None]
        | dict[str, str | int | float | bool | list[str | int | float | bool | None] | Expression | None],
        ...,
    ]


class RandInt(msgspec.Struct, frozen=True, tag_field="type", tag="randint"):
    """Integer from 0 to `upper` - 1."""

    upper: int


class Uniform(msgspec.Struct, frozen=True, tag_field="type", tag="uniform"):
    """Number between `low` and `high`."""

    low: float
    high: float


class QUniform(msgspec.Struct, frozen=True, tag_field="type", tag="quniform"):
    """``round(uniform(low, high) / q) * q``, which may be up to q/2 outside of the range."""

    low: float
    high: float
    q: float


class LogUniform(msgspec.Struct, frozen=True, tag_field="type", tag="loguniform"):
    """Number between `low` and `high` whose logarithm is uniform."""

    low: float
    high: float


class QLogUniform(msgspec.Struct, frozen=True, tag_field="type", tag="qloguniform"):
    """``round(loguniform(low, high) / q) * q``."""

    low: float
    high: float
    q: float


class Normal(msgspec.Struct, frozen=True, tag_field="type", tag="normal"):
    """Normally distributed number."""

    mu: float
    sigma: float


class QNormal(msgspec.Struct, frozen=True, tag_field="type", tag="qnormal"):
    """``round(normal(mu, sigma) / q) * q``."""

    mu: float
    sigma: float
    q: float


class LogNormal(msgspec.Struct, frozen=True, tag_field="type", tag="lognormal"):
    """``exp(normal(mu, sigma))``: `mu` and `sigma` are those of the logarithm."""

    mu: float
    sigma: float


class QLogNormal(msgspec.Struct, frozen=True, tag_field="type", tag="qlognormal"):
    """``round(exp(normal(mu, sigma)) / q) * q``."""

    mu: float
    sigma: float
    q: float


Expression = (
    Choice | RandInt | Uniform | QUniform | LogUniform | QLogUniform | Normal | QNormal | LogNormal | QLogNormal
)

#: Classes by their names in files.
EXPRESSIONS: dict[str, type[Any]] = {
    "choice": Choice,
    "randint": RandInt,
    "uniform": Uniform,
    "quniform": QUniform,
    "loguniform": LogUniform,
    "qloguniform": QLogUniform,
    "normal": Normal,
    "qnormal": QNormal,
    "lognormal": LogNormal,
    "qlognormal": QLogNormal,
}

#: For ``isinstance``.
DISTRIBUTIONS = tuple(EXPRESSIONS.values())


def kind_of(e: Expression) -> str:
    """Return the name of an expression in files: ``loguniform``."""
    return str(type(e).__struct_config__.tag)


def numbers_of(e: Expression) -> tuple[Any, ...]:
    """Return the arguments of an expression that is not a ``choice``."""
    return tuple(getattr(e, field) for field in type(e).__struct_fields__)


def is_distribution(value: Any) -> TypeGuard[Expression]:
    """Return whether a value is an expression, not a constant."""
    return isinstance(value, DISTRIBUTIONS)


# -- text -------------------------------------------------------------------------------------------------------------

_INT = re.compile(r"[+-]?(?:0|[1-9]\d*(?:_\d+)*)")
_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?")
#: Text that needs no quotation marks in an option.
WORD = re.compile(r"""[^\s,(){}\[\]"']+""")
#: Words that are refused as numbers, and as text unless they are quoted.
NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.I)
#: Words that are constants, as in JSON and in Python.
CONSTANTS: dict[str, Scalar] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}


def read_number(word: str) -> int | float | None:
    """Return the number that a word is, or ``None``."""
    if _INT.fullmatch(word) and len(word) < 400:
        return int(word)
    return float(word) if _FLOAT.fullmatch(word) else None


def number_text(number: float) -> str:
    """Return the shortest text of a number: 1 for 1.0."""
    if isinstance(number, float) and number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return repr(number)


def expression_text(e: Any) -> str:
    """Return the canonical text of an expression, which ``parse_expression`` reads."""
    if isinstance(e, Choice):
        return f"choice({','.join(map(option_text, e.values))})"
    return f"{kind_of(e)}({','.join(number_text(number) for number in numbers_of(e))})"


def option_text(value: Any) -> str:
    """Return the text of an option of a ``choice``."""
    if is_distribution(value):
        return expression_text(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{option_text(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(option_text, value)) + "]"
    if isinstance(value, str):
        plain = WORD.fullmatch(value) and value not in CONSTANTS and not NOT_FINITE.fullmatch(value)
        return value if plain and read_number(value) is None else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


# -- values -----------------------------------------------------------------------------------------------------------


def quantile(e: Expression, u: float) -> Any:
    """Return the value at quantile `u` (0 <= u < 1): uniform quantiles have the distribution of the expression.

    A ``choice`` returns the option, which may be a dict of constants and expressions.
    Quantized values are multiples of `q` without the noise of floating point, and integers if `q` is one.
    """
    u = min(max(u, 0.0), 1 - 2**-53)
    if isinstance(e, Choice):
        return e.values[min(int(u * len(e.values)), len(e.values) - 1)]
    if isinstance(e, RandInt):
        return min(int(u * e.upper), int(e.upper) - 1)
    if isinstance(e, Uniform):
        return _between(e.low + u * (e.high - e.low), e)
    if isinstance(e, LogUniform):
        return _between(math.exp(math.log(e.low) + u * (math.log(e.high) - math.log(e.low))), e)
    if isinstance(e, QUniform):
        return multiple_of(_steps(e, e.low + u * (e.high - e.low)), e.q)
    if isinstance(e, QLogUniform):
        return multiple_of(_steps(e, math.exp(math.log(e.low) + u * (math.log(e.high) - math.log(e.low)))), e.q)
    from statistics import NormalDist

    z = NormalDist().inv_cdf(max(u, 2**-54))
    value = float(e.mu + e.sigma * z)
    if isinstance(e, LogNormal | QLogNormal):
        value = math.exp(value)
    return multiple_of(round(value / e.q), e.q) if isinstance(e, QNormal | QLogNormal) else value


def _between(value: float, e: Uniform | LogUniform) -> float:
    return float(min(max(value, e.low), e.high))


def multiple_of(steps: int, q: float) -> int | float:
    """Return ``steps * q`` in decimal arithmetic: 3 * 0.1 is 0.3."""
    if float(q).is_integer():
        return steps * int(q)
    return float(steps * Decimal(repr(q)))


def step_range(e: QUniform | QLogUniform) -> tuple[int, int]:
    """Return the smallest and largest multiple of q that have a probability."""
    q = Fraction(repr(e.q))
    low, high = Fraction(repr(e.low)) / q, Fraction(repr(e.high)) / q
    return math.floor(low + Fraction(1, 2)), math.ceil(high - Fraction(1, 2))


def _steps(e: QUniform | QLogUniform, value: float) -> int:
    first, last = step_range(e)
    return min(max(round(value / e.q), first), last)


def value_key(value: Any) -> bytes:
    """Return a key that distinguishes JSON values: 1, 1.0, true and "1" differ."""
    return msgspec.json.encode(value)


def is_finite(e: Expression) -> bool:
    """Return whether an expression has finitely many values."""
    if isinstance(e, Choice):
        return all(
            is_finite(part)
            for option in e.values
            if isinstance(option, Mapping)
            for part in option.values()
            if is_distribution(part)
        )
    return isinstance(e, RandInt | QUniform | QLogUniform)


def options_of(e: Choice) -> list[Any]:
    """Return the options of a ``choice``, each once."""
    return list({value_key(option): option for option in e.values}.values())


def size_of(e: Any) -> int:
    """Return the number of values of a finite expression; ``ValueError`` for another one."""
    if isinstance(e, Choice):
        return sum(option_size(option) for option in options_of(e))
    if isinstance(e, RandInt):
        return int(e.upper)
    if isinstance(e, QUniform | QLogUniform):
        first, last = step_range(e)
        return last - first + 1
    raise ValueError(f"{kind_of(e)} is not finite")


def option_size(option: Any) -> int:
    """Return the number of combinations of an option of a ``choice``."""
    if not isinstance(option, Mapping):
        return 1
    return math.prod(size_of(part) for part in option.values() if is_distribution(part))
