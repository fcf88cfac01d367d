"""Search space of a sweep: expressions by parameter name, the points of a grid, and proposals.

A *proposal* is a flat dict of parameter values. An option of a ``choice`` may be a dict of constants and expressions:
its parameters exist only in proposals with this option, and the name of the choice is then the name of the group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.expression_parser import (
    check_expression,
    check_parameter_name,
    check_space,
    is_expression,
    parameter_names,
    parse_expression,
    refusal,
)
from jupyter_amltrain.schema.expressions import (
    EXPRESSIONS,
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
    Uniform,
    expression_text,
    is_distribution,
    is_finite,
    kind_of,
    multiple_of,
    option_size,
    options_of,
    quantile,
    size_of,
    step_range,
    value_key,
)

__all__ = [
    "Choice",
    "EXPRESSIONS",
    "Expression",
    "LogNormal",
    "LogUniform",
    "MAX_GRID_POINTS",
    "Normal",
    "QLogNormal",
    "QLogUniform",
    "QNormal",
    "QUniform",
    "RandInt",
    "SearchSpace",
    "Uniform",
    "active_parameters",
    "all_expressions",
    "as_choice",
    "check_expression",
    "check_grid",
    "check_parameter_name",
    "check_space",
    "dimensions",
    "expression_text",
    "grid_point",
    "grid_size",
    "is_expression",
    "is_finite",
    "kind_of",
    "parameter_names",
    "parse_expression",
    "point",
    "positions",
    "quantile",
    "quantile_point",
    "value_key",
]

#: Expressions by parameter name, in the order in which a grid varies them: the last one is the fastest.
SearchSpace = dict[str, Expression]

#: Maximum number of points of a grid.
MAX_GRID_POINTS = 100_000


def grid_size(space: Mapping[str, Expression]) -> int:
    """Return the number of points of a finite space; ``ValueError`` for a continuous one."""
    return math.prod(map(size_of, space.values()))


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
        if not is_distribution(part):
            values[name] = part
            continue
        index, own = divmod(index, size_of(part))
        if isinstance(part, RandInt):
            values[name] = own
        elif isinstance(part, QUniform | QLogUniform):
            values[name] = multiple_of(step_range(part)[0] + own, part.q)
        elif isinstance(part, Choice):
            for option in options_of(part):
                size = option_size(option)
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
            raise refusal(name, f"{kind} has infinitely many values, and a grid needs all of them.", hint, "grid")
    size = grid_size(space)
    if size > MAX_GRID_POINTS:
        raise SpecError(
            f"The grid has {size:,} points; the maximum is {MAX_GRID_POINTS:,}.",
            hint="Vary fewer values, or use --sampler random",
            code="space.grid",
            field="space",
        )


def is_boolean(e: Expression) -> bool:
    """Whether an expression chooses between true and false alone."""
    return isinstance(e, Choice) and all(isinstance(option, bool) for option in e.values)


def all_expressions(space: Mapping[str, Any]) -> Iterator[tuple[str, Expression]]:
    """Yield names and expressions of the space, with those of the options of each ``choice``."""
    for name, e in space.items():
        if not is_distribution(e):
            continue
        yield name, e
        if isinstance(e, Choice):
            for option in e.values:
                if isinstance(option, Mapping):
                    yield from all_expressions(option)


def as_choice(e: Expression) -> Choice:
    """Return a finite expression as a ``choice`` of all its values, which the grid of a service may need."""
    if not isinstance(e, Choice):
        return Choice(tuple(grid_point({"x": e}, index)["x"] for index in range(size_of(e))))
    return Choice(
        tuple(
            {name: as_choice(part) if is_distribution(part) else part for name, part in option.items()}
            if isinstance(option, Mapping)
            else option
            for option in options_of(e)
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
                    inner = {key: part for key, part in option.items() if is_distribution(part)}
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
        if not is_distribution(part):
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
        elif not is_distribution(part):
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
        first, last = step_range(e)
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
        if not is_distribution(part):
            active[name] = Choice((part,))
        elif isinstance(part, Choice) and isinstance(option := part.values[found[key]], Mapping):
            _put_active(option, f"{key}.{found[key]}.", found, active)
        else:
            active[name] = part
