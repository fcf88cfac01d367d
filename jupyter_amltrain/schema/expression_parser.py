"""Parser and checks of parameter expressions: ``--param lr=loguniform(1e-4,1e-1)``."""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Mapping
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.expressions import (
    CONSTANTS,
    EXPRESSIONS,
    MAX_UPPER,
    NOT_FINITE,
    WORD,
    Choice,
    Expression,
    LogNormal,
    LogUniform,
    Normal,
    QLogNormal,
    QLogUniform,
    QNormal,
    QUniform,
    RandInt,
    Scalar,
    Uniform,
    expression_text,
    is_distribution,
    kind_of,
    number_text,
    numbers_of,
    option_text,
    read_number,
    value_key,
)
from jupyter_amltrain.text import close_matches, did_you_mean

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


def refusal(name: str, message: str, hint: str, code: str) -> SpecError:
    """Return the error of a parameter; `code` gets the prefix ``space.``."""
    return SpecError(message, hint=hint, code=f"space.{code}", field=f"space.{name}").about(f"--param {name}")


def check_parameter_name(name: str) -> None:
    """Raise :class:`SpecError` for a name that ``--param`` does not accept."""
    shown = name[:80]
    if name.startswith("__"):
        raise refusal(shown, "names starting with '__' are reserved.", "Choose another name.", "name")
    if not name.isidentifier() or keyword.iskeyword(name):
        slug = re.sub(r"\W+", "_", name).strip("_") or "value"
        slug = f"{slug}_" if keyword.iskeyword(slug) else f"v{slug}" if slug[0].isdigit() else slug
        what = "a Python keyword" if keyword.iskeyword(name) else "not a variable name"
        raise refusal(shown, f"{shown!r} is {what}.", f"Try: --param {slug[:80]}=...", "name")


def check_expression(name: str, e: Expression) -> None:
    """Raise :class:`SpecError` for arguments that do not define a distribution."""
    kind = kind_of(e)
    if isinstance(e, Choice):
        _check_choice(name, e)
        return
    example = f"Try: --param {name}={_EXAMPLES[kind]}"
    numbers = numbers_of(e)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not is_finite_number(number):
            raise refusal(name, f"{kind}: {_shown(number)} is not a finite number.", example, "number")
    if isinstance(e, RandInt):
        if not float(e.upper).is_integer() or not 1 <= e.upper <= MAX_UPPER:
            text = f"randint({number_text(e.upper)}): the upper bound must be a whole number from 1 to 2**53."
            raise refusal(name, text, f"{example} for 0 to 9", "upper")
        return
    line = expression_text(e)
    if isinstance(e, Uniform | QUniform | LogUniform | QLogUniform):
        _check_range(name, e)
    elif e.sigma <= 0:
        raise refusal(name, f"{line}: sigma must be greater than 0.", example, "sigma")
    else:
        _check_normal(name, e)
    if isinstance(e, QUniform | QLogUniform | QNormal | QLogNormal) and e.q <= 0:
        raise refusal(name, f"{line}: q must be greater than 0.", example, "q")
    if isinstance(e, QUniform | QLogUniform) and e.q > e.high - e.low:
        text = f"{line}: q is larger than the range from {number_text(e.low)} to {number_text(e.high)}."
        raise refusal(name, text, "Choose a smaller q.", "q")
    if isinstance(e, QUniform | QLogUniform | QNormal | QLogNormal) and _largest(e) / e.q >= MAX_UPPER:
        raise refusal(name, f"{line}: q is too small for these numbers.", "Choose a larger q.", "q")


def _check_range(name: str, e: Uniform | QUniform | LogUniform | QLogUniform) -> None:
    line = expression_text(e)
    kind, rest = kind_of(e), [number_text(number) for number in numbers_of(e)[2:]]
    if isinstance(e, LogUniform | QLogUniform) and e.low <= 0:
        hint = f"Try: --param {name}={_EXAMPLES[kind]}"
        if e.low < e.high < 700:
            bounds = [f"{math.exp(bound):.3g}" for bound in (e.low, e.high)]
            hint = f"Try: --param {name}={kind}({','.join([*bounds, *rest])})"
        text = f"{line}: the bounds must be values greater than 0, not exponents as in a file of az ml."
        raise refusal(name, text, hint, "exponent")
    if e.low >= e.high:
        turned = ",".join([number_text(e.high), number_text(e.low), *rest])
        hint = (
            f"Try: --param {name}={kind}({turned})" if e.low > e.high else "Give a fixed value without an expression."
        )
        raise refusal(name, f"{line}: the lower bound must be less than the upper bound.", hint, "range")
    if not is_finite_number(e.high - e.low):
        raise refusal(name, f"{line}: the range is too large.", "Choose bounds that are closer.", "range")


def _check_normal(name: str, e: Normal | QNormal | LogNormal | QLogNormal) -> None:
    # Draws are within 9 sigma; the exponential of 700 is close to the largest double.
    limit = 700 if isinstance(e, LogNormal | QLogNormal) else 1e300
    if abs(e.mu) + 9 * e.sigma > limit:
        log = " are those of the logarithm, and" if limit == 700 else ""
        raise refusal(
            name, f"{expression_text(e)}: mu and sigma{log} are too large.", "Choose smaller numbers.", "range"
        )


def _largest(e: QUniform | QLogUniform | QNormal | QLogNormal) -> float:
    if isinstance(e, QUniform | QLogUniform):
        return max(abs(e.low), abs(e.high))
    largest = abs(e.mu) + 9 * e.sigma
    return math.exp(largest) if isinstance(e, QLogNormal) else largest


def _check_choice(name: str, e: Choice) -> None:
    if not e.values:
        raise refusal(name, "choice() has no values.", f"Try: --param {name}={_EXAMPLES['choice']}", "empty")
    for value in e.values:
        if is_distribution(value):
            hint = f"Give it a name: --param {name}=choice({{{name}: {expression_text(value)}}})"
            raise refusal(name, f"choice: the option {expression_text(value)} is an expression.", hint, "option")
        parts = value.values() if isinstance(value, Mapping) else [value]
        for part in parts:
            if not is_distribution(part):
                _check_constant(name, part)
        if isinstance(value, Mapping):
            for inner, part in value.items():
                check_parameter_name(inner)
                if is_distribution(part):
                    check_expression(inner, part)


def _check_constant(name: str, value: Any) -> None:
    for part in value if isinstance(value, list | tuple) else [value]:
        if isinstance(part, float) and not math.isfinite(part):
            raise refusal(name, f"choice: {part} is not a finite number.", "Quote it to pass text.", "number")
        if not (part is None or isinstance(part, str | int | float | bool)):
            text = f"choice: {str(part)[:80]!r} is not a number, text, true, false or null."
            raise refusal(name, text, f"Try: --param {name}={_EXAMPLES['choice']}", "option")
        if isinstance(part, int) and not -(2**63) <= part < 2**64:
            raise refusal(name, f"choice: {part} does not fit in 64 bits.", "Quote it to pass text.", "number")


def is_finite_number(number: float) -> bool:
    """Return whether a double can hold the number."""
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
                raise refusal(name, text, "Give each parameter once.", "duplicate")
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
            names = parameter_names({inner: part}) if is_distribution(part) else [inner]
            if repeated := seen.intersection(names):
                text = f"an option has the parameter {min(repeated)} twice."
                raise refusal(name, text, "Give each parameter once.", "duplicate")
            seen.update(names)
            if is_distribution(part):
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
                    names.update(dict.fromkeys(parameter_names({inner: part}) if is_distribution(part) else [inner]))
    return list(names)


def _shown(number: Any) -> str:
    return repr(number)[:80]


# -- parser -----------------------------------------------------------------------------------------------------------

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
_KEY = re.compile(r"""[^\s,(){}\[\]"':]+""")


def is_expression(text: str) -> bool:
    """Return whether `text` is meant as an expression: a call of a known name, even unfinished, or of a similar one."""
    match = _CALL.match(text)
    if match is None or match[1].lower() in EXPRESSIONS:
        return match is not None
    return text.rstrip().endswith(")") and bool(close_matches(match[1].lower(), EXPRESSIONS, 1, 0.75))


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
            raise refusal(name, f"choice: {option_text(value)} is given twice.", "Give it once.", "duplicate")
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
            raise refusal(
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
            raise refusal(
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
        match = WORD.match(self._text, self._at)
        word = match[0] if match else ""
        value = read_number(word)
        if value is None or not match:
            rest = word or self._text[self._at : self._at + 20]
            raise refusal(self._name, f"{rest[:80]!r} is not a number.", "Write numbers as 0.1, 3 or 1e-4.", "number")
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
                raise refusal(self._name, text, "Give each parameter once.", "duplicate")
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
        match = WORD.match(self._text, self._at)
        if match is None:
            raise self._syntax("a value")
        self._at = match.end()
        word = match[0]
        if word in CONSTANTS:
            return CONSTANTS[word]
        if NOT_FINITE.fullmatch(word):
            text = f"choice: {word} is not a finite number."
            raise refusal(self._name, text, f'Quote it to pass text: "{word}"', "number")
        number = read_number(word)
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
        return refusal(
            self._name,
            f"expected {expected} {where}.",
            "Quote text that has spaces, commas or brackets." if rest else "Close every bracket.",
            "syntax",
        )
