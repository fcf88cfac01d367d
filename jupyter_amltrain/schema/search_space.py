"""Search space of a sweep: the ten parameter expressions of Azure ML, on a line, in YAML and in REST.

The meaning of each expression is that of Azure's pages "Hyperparameter tuning a model (v2)"
(https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters#define-the-search-space), "CLI (v2)
sweep job YAML schema" (https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-sweep#parameter-expressions)
and HyperDrive's ``parameter_expressions``
(https://learn.microsoft.com/python/api/azureml-train-core/azureml.train.hyperdrive.parameter_expressions).

One convention differs: the bounds of ``loguniform`` and ``qloguniform`` are values here, and exponents of e in Azure's
forms. The mean and the deviation of ``lognormal`` and ``qlognormal`` are those of the logarithm everywhere.

A *proposal* is a flat dict of parameter values. An option of a ``choice`` may be a dict of constants and expressions:
its parameters exist only in proposals with this option, and the name of the choice is then the name of the group.
"""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeGuard

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.text import close_matches, did_you_mean

#: Maximum number of points of a grid.
MAX_GRID_POINTS = 100_000

#: Maximum of ``randint``: a larger range has integers that a quantile (a double) cannot reach.
MAX_UPPER = 2**53

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

#: Expressions by parameter name, in the order in which a grid varies them: the last one is the fastest.
SearchSpace = dict[str, Expression]

#: Classes by Azure's name.
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

_EXAMPLES = {
    "choice": "choice(16,32,64)",
    "randint": "randint(10)",
    "uniform": "uniform(0,1)",
    "quniform": "quniform(8,128,8)",
    "loguniform": "loguniform(1e-4,1e-1)",
    "qloguniform": "qloguniform(8,1024,8)",
    "normal": "normal(0,1)",
    "qnormal": "qnormal(100,20,5)",
    "lognormal": "lognormal(-7,1)",
    "qlognormal": "qlognormal(4,1,8)",
}

_TYPES = tuple(EXPRESSIONS.values())
#: Names of numbers in Azure's YAML.
_AZURE_KEYS = {"low": "min_value", "high": "max_value"}


def kind_of(e: Expression) -> str:
    """Return Azure's name of an expression: ``loguniform``."""
    return str(type(e).__struct_config__.tag)


def _numbers(e: Expression) -> tuple[Any, ...]:
    return tuple(getattr(e, field) for field in type(e).__struct_fields__)


def _is_expression(value: Any) -> TypeGuard[Expression]:
    return isinstance(value, _TYPES)


# -- checks ----------------------------------------------------------------------------------------------------------


def _refusal(name: str, message: str, hint: str, code: str) -> SpecError:
    return SpecError(message, hint=hint, code=f"space.{code}", field=f"space.{name}").about(f"--param {name}")


def check_parameter_name(name: str) -> None:
    """Raise :class:`SpecError` for a name that ``--param`` does not accept."""
    shown = name[:80]
    if name.startswith("__"):
        raise _refusal(shown, "names starting with '__' are reserved.", "Choose another name.", "name")
    if not name.isidentifier() or keyword.iskeyword(name):
        slug = re.sub(r"\W+", "_", name).strip("_") or "value"
        slug = f"{slug}_" if keyword.iskeyword(slug) else f"v{slug}" if slug[0].isdigit() else slug
        what = "a Python keyword" if keyword.iskeyword(name) else "not a variable name"
        raise _refusal(shown, f"{shown!r} is {what}.", f"Try: --param {slug[:80]}=...", "name")


def check_expression(name: str, e: Expression) -> None:
    """Raise :class:`SpecError` for arguments that do not define a distribution."""
    kind = kind_of(e)
    if isinstance(e, Choice):
        _check_choice(name, e)
        return
    example = f"Try: --param {name}={_EXAMPLES[kind]}"
    numbers = _numbers(e)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not _is_finite_number(number):
            raise _refusal(name, f"{kind}: {_shown(number)} is not a finite number.", example, "number")
    if isinstance(e, RandInt):
        if not float(e.upper).is_integer() or not 1 <= e.upper <= MAX_UPPER:
            text = f"randint({_number_text(e.upper)}): the upper bound must be a whole number from 1 to 2**53."
            raise _refusal(name, text, f"{example} for 0 to 9", "upper")
        return
    line = _line(e)
    if isinstance(e, Uniform | QUniform | LogUniform | QLogUniform):
        _check_range(name, e)
    elif e.sigma <= 0:
        raise _refusal(name, f"{line}: sigma must be greater than 0.", example, "sigma")
    else:
        _check_normal(name, e)
    if isinstance(e, QUniform | QLogUniform | QNormal | QLogNormal) and e.q <= 0:
        raise _refusal(name, f"{line}: q must be greater than 0.", example, "q")
    if isinstance(e, QUniform | QLogUniform) and e.q > e.high - e.low:
        text = f"{line}: q is larger than the range from {_number_text(e.low)} to {_number_text(e.high)}."
        raise _refusal(name, text, "Choose a smaller q.", "q")
    if isinstance(e, QUniform | QLogUniform | QNormal | QLogNormal) and _largest(e) / e.q >= MAX_UPPER:
        raise _refusal(name, f"{line}: q is too small for these numbers.", "Choose a larger q.", "q")


def _check_range(name: str, e: Uniform | QUniform | LogUniform | QLogUniform) -> None:
    line = _line(e)
    kind, rest = kind_of(e), [_number_text(number) for number in _numbers(e)[2:]]
    if isinstance(e, LogUniform | QLogUniform) and e.low <= 0:
        hint = f"Try: --param {name}={_EXAMPLES[kind]}"
        if e.low < e.high < 700:
            bounds = [f"{math.exp(bound):.3g}" for bound in (e.low, e.high)]
            hint = f"Try: --param {name}={kind}({','.join([*bounds, *rest])})"
        text = f"{line}: the bounds must be values greater than 0, not exponents as in Azure's form."
        raise _refusal(name, text, hint, "exponent")
    if e.low >= e.high:
        turned = ",".join([_number_text(e.high), _number_text(e.low), *rest])
        hint = (
            f"Try: --param {name}={kind}({turned})" if e.low > e.high else "Give a fixed value without an expression."
        )
        raise _refusal(name, f"{line}: the lower bound must be less than the upper bound.", hint, "range")
    if not _is_finite_number(e.high - e.low):
        raise _refusal(name, f"{line}: the range is too large.", "Choose bounds that are closer.", "range")


def _check_normal(name: str, e: Normal | QNormal | LogNormal | QLogNormal) -> None:
    # Draws are within 9 sigma; the exponential of 700 is close to the largest double.
    limit = 700 if isinstance(e, LogNormal | QLogNormal) else 1e300
    if abs(e.mu) + 9 * e.sigma > limit:
        log = " are those of the logarithm, and" if limit == 700 else ""
        raise _refusal(name, f"{_line(e)}: mu and sigma{log} are too large.", "Choose smaller numbers.", "range")


def _largest(e: QUniform | QLogUniform | QNormal | QLogNormal) -> float:
    if isinstance(e, QUniform | QLogUniform):
        return max(abs(e.low), abs(e.high))
    largest = abs(e.mu) + 9 * e.sigma
    return math.exp(largest) if isinstance(e, QLogNormal) else largest


def _check_choice(name: str, e: Choice) -> None:
    if not e.values:
        raise _refusal(name, "choice() has no values.", f"Try: --param {name}={_EXAMPLES['choice']}", "empty")
    for value in e.values:
        if _is_expression(value):
            hint = f"Give it a name: --param {name}=choice({{{name}: {_line(value)}}})"
            raise _refusal(name, f"choice: the option {_line(value)} is an expression.", hint, "option")
        parts = value.values() if isinstance(value, Mapping) else [value]
        for part in parts:
            if not _is_expression(part):
                _check_constant(name, part)
        if isinstance(value, Mapping):
            for inner, part in value.items():
                check_parameter_name(inner)
                if _is_expression(part):
                    check_expression(inner, part)


def _check_constant(name: str, value: Any) -> None:
    for part in value if isinstance(value, list | tuple) else [value]:
        if isinstance(part, float) and not math.isfinite(part):
            raise _refusal(name, f"choice: {part} is not a finite number.", "Quote it to pass text.", "number")
        if not (part is None or isinstance(part, str | int | float | bool)):
            text = f"choice: {str(part)[:80]!r} is not a number, text, true, false or null."
            raise _refusal(name, text, f"Try: --param {name}={_EXAMPLES['choice']}", "option")
        if isinstance(part, int) and not -(2**63) <= part < 2**64:
            raise _refusal(name, f"choice: {part} does not fit in 64 bits.", "Quote it to pass text.", "number")


def _is_finite_number(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an int that no double can hold
        return False


def check_space(space: Mapping[str, Expression]) -> None:
    """Raise :class:`SpecError` for an empty space, an invalid expression, or a name that two expressions have."""
    if not space:
        raise SpecError(
            "The sweep has no parameter to vary.",
            hint="Try: --param lr=loguniform(1e-4,1e-1)",
            code="space.empty",
            field="space",
        )
    owners: dict[str, str] = {}
    for name, e in space.items():
        check_expression(name, e)
        for inner in parameter_names({name: e}):
            if inner in owners:
                text = f"the parameter {inner} is also in {owners[inner]}."
                raise _refusal(name, text, "Give each parameter once.", "duplicate")
            owners[inner] = name
        _check_options(name, e)


def _check_options(name: str, e: Expression) -> None:
    if not isinstance(e, Choice):
        return
    for option in e.values:
        if not isinstance(option, Mapping):
            continue
        seen: set[str] = set()
        for inner, part in option.items():
            names = parameter_names({inner: part}) if _is_expression(part) else [inner]
            if repeated := seen.intersection(names):
                text = f"an option has the parameter {min(repeated)} twice."
                raise _refusal(name, text, "Give each parameter once.", "duplicate")
            seen.update(names)
            if _is_expression(part):
                _check_options(inner, part)


def parameter_names(space: Mapping[str, Expression]) -> list[str]:
    """Return the names of all parameters that proposals may have, each once."""
    names: dict[str, None] = {}
    for name, e in space.items():
        options = e.values if isinstance(e, Choice) else ()
        if not isinstance(e, Choice) or any(not isinstance(option, Mapping) for option in options):
            names[name] = None
        for option in options:
            if isinstance(option, Mapping):
                for inner, part in option.items():
                    names.update(dict.fromkeys(parameter_names({inner: part}) if _is_expression(part) else [inner]))
    return list(names)


# -- the line --------------------------------------------------------------------------------------------------------

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
_INT = re.compile(r"[+-]?(?:0|[1-9]\d*(?:_\d+)*)")
_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"""[^\s,(){}\[\]"']+""")
_KEY = re.compile(r"""[^\s,(){}\[\]"':]+""")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.I)
_CONSTANTS: dict[str, Scalar] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}


def is_expression(text: str) -> bool:
    """Return whether `text` is meant as an expression: a call of a known or similar name."""
    match = _CALL.match(text)
    if match is None or not text.rstrip().endswith(")"):
        return False
    return match[1].lower() in EXPRESSIONS or bool(close_matches(match[1].lower(), EXPRESSIONS, 1, 0.75))


def parse_expression(name: str, text: str) -> Expression:
    """Return the expression of ``--param name=text``.

    Examples: ``loguniform(1e-4,1e-1)``, ``choice(sgd,adam)``, ``choice("a b",true,null)``, and conditional parameters:
    ``choice({model: sgd, lr: uniform(0.1,1)}, {model: adam})``.

    Raises
    ------
    SpecError
        ``code`` is ``space.`` with ``name``, ``unknown``, ``syntax``, ``arguments``, ``number``, ``range``,
        ``exponent``, ``q``, ``sigma``, ``upper``, ``empty``, ``option`` or ``duplicate``.
    """
    check_parameter_name(name)
    parser = _Parser(name, text)
    e = parser.expression()
    parser.end()
    check_space({name: e})
    if isinstance(e, Choice):
        _check_repeats(name, e)
    return e


def _check_repeats(name: str, e: Choice) -> None:
    seen: set[bytes] = set()
    for value in e.values:
        key = value_key(value)
        if key in seen:
            raise _refusal(name, f"choice: {_constant_text(value)} is given twice.", "Give it once.", "duplicate")
        seen.add(key)
        if isinstance(value, Mapping):
            for inner, part in value.items():
                if isinstance(part, Choice):
                    _check_repeats(inner, part)


class _Parser:
    """Recursive descent over the text of one expression."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._at = 0

    def expression(self) -> Expression:
        match = _CALL.match(self._text, self._at)
        if match is None:
            raise self._syntax("a name and '('")
        kind = match[1].lower()
        if kind not in EXPRESSIONS:
            near = close_matches(kind, EXPRESSIONS, 1)
            raise _refusal(
                self._name,
                f"unknown expression {match[1][:80]!r}.",
                did_you_mean(near, f"Supported: {', '.join(EXPRESSIONS)}."),
                "unknown",
            )
        self._at = match.end()
        args = self._items(")", self._option if kind == "choice" else self._argument)
        if kind == "choice":
            return Choice(tuple(args))
        fields = EXPRESSIONS[kind].__struct_fields__
        if len(args) != len(fields):
            raise _refusal(
                self._name,
                f"{kind} needs {len(fields)} argument{'s' * (len(fields) > 1)} ({', '.join(fields)}), got {len(args)}.",
                f"Try: --param {self._name}={_EXAMPLES[kind]}",
                "arguments",
            )
        result: Expression = EXPRESSIONS[kind](*args)
        return result

    def end(self) -> None:
        self._space()
        if self._at < len(self._text):
            raise self._syntax("the end")

    def _items(self, closing: str, read: Any) -> list[Any]:
        items: list[Any] = []
        while True:
            self._space()
            if self._next(closing):
                return items
            if items:
                if not self._next(","):
                    raise self._syntax(f"',' or {closing!r}")
                self._space()
            items.append(read())

    def _argument(self) -> int | float:
        match = _WORD.match(self._text, self._at)
        word = match[0] if match else ""
        value = _number(word)
        if value is None or not match:
            rest = word or self._text[self._at : self._at + 20]
            raise _refusal(self._name, f"{rest[:80]!r} is not a number.", "Write numbers as 0.1, 3 or 1e-4.", "number")
        self._at = match.end()
        return value

    def _option(self) -> Any:
        if self._next("{"):
            return self._mapping()
        if _CALL.match(self._text, self._at):
            return self.expression()  # refused by check_expression, which names the syntax
        return self._constant()

    def _mapping(self) -> dict[str, Any]:
        pairs = self._items("}", self._pair)
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                text = f"an option has the parameter {name} twice."
                raise _refusal(self._name, text, "Give each parameter once.", "duplicate")
        return dict(pairs)

    def _pair(self) -> tuple[str, Any]:
        if self._peek() in ("'", '"'):
            key = self._string()
        else:
            match = _KEY.match(self._text, self._at)
            if match is None:
                raise self._syntax("a parameter name")
            key, self._at = match[0], match.end()
        self._space()
        if not self._next(":"):
            raise self._syntax("':' after the parameter name")
        self._space()
        if _CALL.match(self._text, self._at):
            return key, self.expression()
        return key, self._constant()

    def _constant(self) -> Any:
        if self._next("["):
            return self._items("]", self._scalar)
        return self._scalar()

    def _scalar(self) -> Scalar:
        if self._peek() in ("'", '"'):
            return self._string()
        match = _WORD.match(self._text, self._at)
        if match is None:
            raise self._syntax("a value")
        self._at = match.end()
        word = match[0]
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if _NOT_FINITE.fullmatch(word):
            text = f"choice: {word} is not a finite number."
            raise _refusal(self._name, text, f'Quote it to pass text: "{word}"', "number")
        number = _number(word)
        return word if number is None else number

    def _string(self) -> str:
        quote, start = self._peek(), self._at
        self._at += 1
        escaped = False
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            if char == quote and not escaped:
                break
            escaped = char == "\\" and not escaped
        else:
            raise self._syntax("a closing quotation mark")
        body = self._text[start + 1 : self._at - 1]
        if quote == "'":
            body = re.sub(r"""\\(.)|(")""", lambda m: "'" if m[1] == "'" else '\\"' if m[2] else m[0], body)
        try:
            return str(json.loads(f'"{body}"'))
        except ValueError:
            return self._text[start + 1 : self._at - 1]

    def _space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self._at += 1
        return True

    def _syntax(self, expected: str) -> SpecError:
        rest = self._text[self._at : self._at + 20]
        where = f"at {rest!r}" if rest else "at the end"
        return _refusal(
            self._name,
            f"expected {expected} {where}.",
            "Quote text that has spaces, commas or brackets." if rest else "Close every bracket.",
            "syntax",
        )


def _number(word: str) -> int | float | None:
    if _INT.fullmatch(word) and len(word) < 400:
        return int(word)
    return float(word) if _FLOAT.fullmatch(word) else None


def _number_text(number: float) -> str:
    if isinstance(number, float) and number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return repr(number)


def _shown(number: Any) -> str:
    return repr(number)[:80]


def expression_text(e: Expression) -> str:
    """Return the canonical text of an expression, which :func:`parse_expression` reads."""
    return _line(e)


def _line(e: Any) -> str:
    if isinstance(e, Choice):
        return f"choice({','.join(map(_constant_text, e.values))})"
    return f"{kind_of(e)}({','.join(_number_text(number) for number in _numbers(e))})"


def _constant_text(value: Any) -> str:
    if _is_expression(value):
        return _line(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_constant_text(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_constant_text, value)) + "]"
    if isinstance(value, str):
        plain = _WORD.fullmatch(value) and value not in _CONSTANTS and not _NOT_FINITE.fullmatch(value)
        return value if plain and _number(value) is None else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


# -- values ----------------------------------------------------------------------------------------------------------


def quantile(e: Expression, u: float) -> Any:
    """Return the value at quantile `u` (0 <= u < 1): uniform quantiles have the distribution of the expression.

    A ``choice`` returns the option, which may be a dict of constants and expressions (:func:`point` resolves it).
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
        return _multiple(_steps(e, e.low + u * (e.high - e.low)), e.q)
    if isinstance(e, QLogUniform):
        return _multiple(_steps(e, math.exp(math.log(e.low) + u * (math.log(e.high) - math.log(e.low)))), e.q)
    from statistics import NormalDist

    z = NormalDist().inv_cdf(max(u, 2**-54))
    value = float(e.mu + e.sigma * z)
    if isinstance(e, LogNormal | QLogNormal):
        value = math.exp(value)
    return _multiple(round(value / e.q), e.q) if isinstance(e, QNormal | QLogNormal) else value


def _between(value: float, e: Uniform | LogUniform) -> float:
    return float(min(max(value, e.low), e.high))


def _multiple(steps: int, q: float) -> int | float:
    """Return ``steps * q`` in decimal arithmetic: 3 * 0.1 is 0.3."""
    if float(q).is_integer():
        return steps * int(q)
    return float(steps * Decimal(repr(q)))


def _step_range(e: QUniform | QLogUniform) -> tuple[int, int]:
    """Return the smallest and largest multiple of q that have a probability."""
    q = Fraction(repr(e.q))
    low, high = Fraction(repr(e.low)) / q, Fraction(repr(e.high)) / q
    return math.floor(low + Fraction(1, 2)), math.ceil(high - Fraction(1, 2))


def _steps(e: QUniform | QLogUniform, value: float) -> int:
    first, last = _step_range(e)
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
            if _is_expression(part)
        )
    return isinstance(e, RandInt | QUniform | QLogUniform)


def _options(e: Choice) -> list[Any]:
    return list({value_key(option): option for option in e.values}.values())


def _size(e: Any) -> int:
    if isinstance(e, Choice):
        return sum(_option_size(option) for option in _options(e))
    if isinstance(e, RandInt):
        return int(e.upper)
    if isinstance(e, QUniform | QLogUniform):
        first, last = _step_range(e)
        return last - first + 1
    raise ValueError(f"{kind_of(e)} is not finite")


def _option_size(option: Any) -> int:
    if not isinstance(option, Mapping):
        return 1
    return math.prod(_size(part) for part in option.values() if _is_expression(part))


def grid_size(space: Mapping[str, Expression]) -> int:
    """Return the number of points of a finite space; ``ValueError`` for a continuous one."""
    return math.prod(map(_size, space.values()))


def grid_point(space: Mapping[str, Expression], index: int) -> dict[str, Any]:
    """Return point `index` of a finite space as a flat proposal; the last parameter varies fastest."""
    if not 0 <= index < grid_size(space):
        raise IndexError(index)
    values: dict[str, Any] = {}
    _put_point(space, index, values)
    ordered = {name: values[name] for name in parameter_names(space) if name in values}
    return ordered


def _put_point(parts: Mapping[str, Any], index: int, values: dict[str, Any]) -> None:
    for name in reversed(list(parts)):
        part = parts[name]
        if not _is_expression(part):
            values[name] = part
            continue
        index, own = divmod(index, _size(part))
        if isinstance(part, RandInt):
            values[name] = own
        elif isinstance(part, QUniform | QLogUniform):
            values[name] = _multiple(_step_range(part)[0] + own, part.q)
        elif isinstance(part, Choice):
            for option in _options(part):
                size = _option_size(option)
                if own < size:
                    break
                own -= size
            if isinstance(option, Mapping):
                _put_point(option, own, values)
            else:
                values[name] = option


def check_grid(space: Mapping[str, Expression]) -> None:
    """Raise :class:`SpecError` for a grid over a continuous expression, or with more than 100,000 points."""
    check_space(space)
    for name, e in all_expressions(space):
        if not isinstance(e, Choice) and not is_finite(e):
            kind = kind_of(e)
            hint = f"Use choice(...) or quniform(...) for {name}, or another sampler: --sampler random"
            raise _refusal(name, f"{kind} has infinitely many values, and a grid needs all of them.", hint, "grid")
    size = grid_size(space)
    if size > MAX_GRID_POINTS:
        raise SpecError(
            f"The grid has {size:,} points; the maximum is {MAX_GRID_POINTS:,}.",
            hint="Vary fewer values, or use --sampler random",
            code="space.grid",
            field="space",
        )


def all_expressions(space: Mapping[str, Any]) -> Iterator[tuple[str, Expression]]:
    """Yield names and expressions of the space, with those of the options of each ``choice``."""
    for name, e in space.items():
        if not _is_expression(e):
            continue
        yield name, e
        if isinstance(e, Choice):
            for option in e.values:
                if isinstance(option, Mapping):
                    yield from all_expressions(option)


def as_choice(e: Expression) -> Choice:
    """Return a finite expression as a ``choice`` of all its values, which Azure's grid needs."""
    if not isinstance(e, Choice):
        return Choice(tuple(grid_point({"x": e}, index)["x"] for index in range(_size(e))))
    return Choice(
        tuple(
            {name: as_choice(part) if _is_expression(part) else part for name, part in option.items()}
            if isinstance(option, Mapping)
            else option
            for option in _options(e)
        )
    )


# -- dimensions: one quantile for each expression, of the space and of every option -----------------------------------


def dimensions(space: Mapping[str, Expression]) -> dict[str, Expression]:
    """Return every expression by a unique key: ``lr``, and ``opt.0.lr`` for that of the first option of ``opt``."""
    result: dict[str, Expression] = {}
    for name, e in space.items():
        result[name] = e
        if isinstance(e, Choice):
            for number, option in enumerate(e.values):
                if isinstance(option, Mapping):
                    inner = {key: part for key, part in option.items() if _is_expression(part)}
                    result.update({f"{name}.{number}.{key}": part for key, part in dimensions(inner).items()})
    return result


def point(space: Mapping[str, Expression], draw: Any) -> dict[str, Any]:
    """Return a flat proposal of values that ``draw(key, expression)`` returns.

    Parameters
    ----------
    draw
        Called once for each expression that exists, with its key of :func:`dimensions`, in order. It returns a value,
        and for a ``choice`` the index of an option.
    """
    values: dict[str, Any] = {}
    _draw_all(space, "", draw, values)
    return values


def _draw_all(parts: Mapping[str, Any], prefix: str, draw: Any, values: dict[str, Any]) -> None:
    for name, part in parts.items():
        if not _is_expression(part):
            values[name] = part
        elif isinstance(part, Choice):
            number = draw(f"{prefix}{name}", part)
            option = part.values[number]
            if isinstance(option, Mapping):
                _draw_all(option, f"{prefix}{name}.{number}.", draw, values)
            else:
                values[name] = option
        else:
            values[name] = draw(f"{prefix}{name}", part)


def quantile_point(space: Mapping[str, Expression], quantiles: Mapping[str, float]) -> dict[str, Any]:
    """Return the flat proposal at `quantiles`, by key of :func:`dimensions`."""

    def draw(key: str, e: Expression) -> Any:
        u = quantiles[key]
        return min(int(u * len(e.values)), len(e.values) - 1) if isinstance(e, Choice) else quantile(e, u)

    return point(space, draw)


def positions(space: Mapping[str, Expression], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the draws of a proposal: index of the option of each ``choice``, and the other values, by dimension.

    It is the inverse of :func:`point`; the first options that match are chosen. ``None`` if `values` is not a proposal
    of this space.
    """
    found: dict[str, Any] = {}
    return found if _match(space, "", values, found) else None


def _match(parts: Mapping[str, Any], prefix: str, values: Mapping[str, Any], found: dict[str, Any]) -> bool:
    for name, part in parts.items():
        key = f"{prefix}{name}"
        if isinstance(part, Choice):
            if not _match_choice(name, key, part, values, found):
                return False
        elif name not in values:
            return False
        elif not _is_expression(part):
            if value_key(part) != value_key(values[name]):
                return False
        elif not _may_have(part, values[name]):
            return False
        else:
            found[key] = values[name]
    return True


def _match_choice(name: str, key: str, e: Choice, values: Mapping[str, Any], found: dict[str, Any]) -> bool:
    # An option with more parameters is more specific: {} matches everything.
    numbered = sorted(enumerate(e.values), key=lambda one: -len(one[1]) if isinstance(one[1], Mapping) else 0)
    for number, option in numbered:
        if isinstance(option, Mapping):
            inner: dict[str, Any] = {}
            if _match(option, f"{key}.{number}.", values, inner):
                found[key] = number
                found.update(inner)
                return True
        elif name in values and value_key(option) == value_key(values[name]):
            found[key] = number
            return True
    return False


def _may_have(e: Expression, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(e, Uniform | LogUniform):
        return bool(e.low <= value <= e.high)
    if isinstance(e, RandInt):
        return 0 <= value < e.upper
    if isinstance(e, QUniform | QLogUniform):
        first, last = _step_range(e)
        return first * e.q - e.q / 2 <= value <= last * e.q + e.q / 2
    return value > 0 if isinstance(e, LogNormal) else True


def active_parameters(space: Mapping[str, Expression], values: Mapping[str, Any]) -> dict[str, Expression]:
    """Return the expressions of the parameters that a proposal has, by name; a constant is a ``choice`` of one value.

    Raises
    ------
    ValueError
        `values` is not a proposal of this space.
    """
    found = positions(space, values)
    if found is None:
        raise ValueError("the values are not a proposal of this space")
    active: dict[str, Expression] = {}
    _put_active(space, "", found, active)
    return active


def _put_active(parts: Mapping[str, Any], prefix: str, found: Mapping[str, Any], active: dict[str, Expression]) -> None:
    for name, part in parts.items():
        key = f"{prefix}{name}"
        if not _is_expression(part):
            active[name] = Choice((part,))
        elif isinstance(part, Choice) and isinstance(option := part.values[found[key]], Mapping):
            _put_active(option, f"{key}.{found[key]}.", found, active)
        else:
            active[name] = part


# -- Azure -----------------------------------------------------------------------------------------------------------


def expression_to_azure(e: Expression) -> dict[str, Any]:
    """Return an expression in the form of ``az ml`` YAML: ``{"type": "uniform", "min_value": 0, "max_value": 1}``."""
    if isinstance(e, Choice):
        return {"type": "choice", "values": [_option_to(option, expression_to_azure) for option in e.values]}
    fields = type(e).__struct_fields__
    numbers = dict(zip(fields, _azure_numbers(e), strict=True))
    return {"type": kind_of(e)} | {_AZURE_KEYS.get(field, field): number for field, number in numbers.items()}


def _azure_numbers(e: Expression) -> list[Any]:
    numbers = list(_numbers(e))
    if isinstance(e, LogUniform | QLogUniform):
        numbers[:2] = [math.log(e.low), math.log(e.high)]
    return numbers


def _option_to(option: Any, convert: Any) -> Any:
    if not isinstance(option, Mapping):
        return option
    return {name: convert(part) if _is_expression(part) else part for name, part in option.items()}


def expression_from_azure(value: Mapping[str, Any], name: str = "", base: float = math.e) -> Expression:
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
        raise _azure_refusal(name, f"{str(value)[:80]!r} is not a parameter expression.", "It needs a type.", "syntax")
    kind = _azure_kind(name, value.get("type"))
    if kind == "choice":
        values = value.get("values")
        if not isinstance(values, list | tuple):
            raise _azure_refusal(name, "choice needs a list of values.", "Add values: [1, 2]", "arguments")
        return _checked(name, Choice(tuple(_option_from_azure(name, option, base) for option in values)))
    keys = [_AZURE_KEYS.get(field, field) for field in EXPRESSIONS[kind].__struct_fields__]
    if missing := [key for key in keys if value.get(key) is None]:
        raise _azure_refusal(name, f"{kind} needs {', '.join(keys)}.", f"Add {', '.join(missing)}.", "arguments")
    return _checked(name, _of_azure_numbers(name, kind, [value[key] for key in keys], base))


def _option_from_azure(name: str, option: Any, base: float) -> Any:
    if not isinstance(option, Mapping):
        return option
    return {
        str(key): expression_from_azure(part, str(key), base) if isinstance(part, Mapping) else part
        for key, part in option.items()
    }


def _azure_kind(name: str, kind: Any) -> str:
    text = str(kind or "").lower()
    if text not in EXPRESSIONS:
        near = close_matches(text, EXPRESSIONS, 1)
        hint = did_you_mean(near, f"Supported: {', '.join(EXPRESSIONS)}.")
        raise _azure_refusal(name, f"unknown expression {str(kind)[:80]!r}.", hint, "unknown")
    return text


def _of_azure_numbers(name: str, kind: str, numbers: Sequence[Any], base: float = math.e) -> Expression:
    fields = EXPRESSIONS[kind].__struct_fields__
    if len(numbers) != len(fields):
        text = f"{kind} needs {len(fields)} numbers ({', '.join(fields)}), got {len(numbers)}."
        raise _azure_refusal(name, text, "Complete the list.", "arguments")
    converted = [_azure_number(name, kind, number) for number in numbers]
    if kind in ("loguniform", "qloguniform"):
        factor = 1.0 if base == math.e else math.log(base)
        if any(abs(bound * factor) > 700 for bound in converted[:2]):
            text = f"{kind}: min_value and max_value are exponents, and {converted[:2]} are too large."
            raise _azure_refusal(name, text, "Use the natural logarithms of the bounds.", "exponent")
        converted[:2] = [_exponential(bound * factor) for bound in converted[:2]]
    elif kind in ("lognormal", "qlognormal") and base != math.e:
        raise _azure_refusal(name, f"{kind} supports only logbase e.", "Remove logbase.", "exponent")
    result: Expression = EXPRESSIONS[kind](*converted)
    return result


def _azure_number(name: str, kind: str, number: Any) -> Any:
    if isinstance(number, str):  # YAML reads 1e-4 as text
        number = _number(number.strip()) if _number(number.strip()) is not None else number
    if isinstance(number, bool) or not isinstance(number, int | float) or not _is_finite_number(number):
        text = f"{kind}: {_shown(number)} is not a finite number."
        raise _azure_refusal(name, text, "Write numbers as 0.1, 3 or 1.0e-4.", "number")
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


def _azure_refusal(name: str, message: str, hint: str, code: str) -> SpecError:
    error = _refusal(name, message, hint, code)
    return error.about(f"search_space.{name}" if name else "search_space")


def space_to_rest(space: Mapping[str, Expression]) -> dict[str, Any]:
    """Return a space in the form of Azure's REST API: ``{"lr": ["uniform", [0, 1]]}``."""
    return {name: _to_rest(e) for name, e in space.items()}


def _to_rest(e: Expression) -> list[Any]:
    if isinstance(e, Choice):
        return ["choice", [[_option_to(option, _to_rest) for option in e.values]]]
    return [kind_of(e), _azure_numbers(e)]


def space_from_rest(space: Mapping[str, Any]) -> SearchSpace:
    """Return the space of a sweep as Azure's REST API returns it; raises :class:`SpecError`."""
    return {str(name): _from_rest(str(name), value) for name, value in space.items()}


def _from_rest(name: str, value: Any) -> Expression:
    if isinstance(value, Mapping):  # the form of YAML, within a pipeline
        return expression_from_azure(value, name)
    if not _is_rest(value):
        text = f"{str(value)[:80]!r} is not a parameter expression."
        raise _azure_refusal(name, text, 'Use ["uniform", [0, 1]].', "syntax")
    kind = _azure_kind(name, value[0])
    if kind != "choice":
        return _checked(name, _of_azure_numbers(name, kind, value[1]))
    options = value[1][0] if len(value[1]) == 1 and isinstance(value[1][0], list | tuple) else value[1]
    return _checked(name, Choice(tuple(_option_from_rest(option) for option in options)))


def _is_rest(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], list | tuple)
    )


def _option_from_rest(option: Any) -> Any:
    if not isinstance(option, Mapping):
        return option
    return {
        str(name): _from_rest(str(name), part) if _is_rest(part) and part[0].lower() in EXPRESSIONS else part
        for name, part in option.items()
    }
