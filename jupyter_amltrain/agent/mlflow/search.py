"""Part of MLflow's search grammar that a job's own objects need.

``metrics.loss < 0.5 AND tags.kind = 'a' AND attributes.status != 'FAILED'`` and
``order_by=["metrics.loss DESC"]`` (https://mlflow.org/docs/latest/search-runs.html).
"""

import re
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional, Tuple

from .latest import rank
from .validation import Body, invalid

#: Looks up a column: (kind, key) -> value or None; kinds: metric, param, tag, attribute.
Lookup = Callable[[str, str], Any]

#: One column of an order: returns an item's value or None; whether the order is descending.
SortKey = Tuple[Callable[[Any], Any], bool]

_CLAUSE = re.compile(
    r"""\s*(?:(?P<kind>[A-Za-z_]+)\.)?(?P<key>`[^`]+`|"[^"]+"|[\w.\-/]+)\s*
    (?P<op>!=|>=|<=|=|>|<|NOT\s+IN\b|IN\b|[IR]?LIKE\b|IS\s+NOT\s+NULL\b|IS\s+NULL\b)\s*
    (?P<value>'[^']*'|"[^"]*"|\([^)]*\)|-?[\d.eE+-]+)?\s*(?:AND\s+|$)""",
    re.I | re.X,
)
_KINDS = {
    "metric": "metric",
    "metrics": "metric",
    "param": "param",
    "params": "param",
    "parameter": "param",
    "parameters": "param",
    "tag": "tag",
    "tags": "tag",
    "dataset": "dataset",
    "datasets": "dataset",
}


class SearchColumns(NamedTuple):
    """Columns of a search that refuses others."""

    #: Kinds of columns by their prefix.
    kinds: Dict[str, str]
    #: Names of attributes.
    attributes: Collection[str]

    def kind(self, prefix: str, key: str) -> str:
        """Return the kind of a column.

        Raises
        ------
        ValueError
            The search does not have the column.
        """
        kind = self.kinds.get(prefix) if prefix else "attribute"
        if kind is None or (kind == "attribute" and key not in self.attributes):
            column = prefix + "." + key if prefix else key
            known = [*sorted(self.attributes), *(one + ".KEY" for one in self.kinds if one.endswith("s"))]
            raise ValueError(f"This search does not support the column {column!r}. Supported: {', '.join(known)}")
        return kind


class Clause(NamedTuple):
    """One comparison."""

    kind: str
    key: str
    op: str
    value: str


def parse(text: str, columns: Optional[SearchColumns] = None) -> List[Clause]:
    """Parse a filter.

    Parameters
    ----------
    columns
        Columns that are allowed; by default every column, and one of an unknown kind is an attribute.

    Raises
    ------
    ValueError
        The text is not a filter.
    """
    clauses, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _CLAUSE.match(text, at)
        if not match:
            raise ValueError(f"Invalid filter string: {text!r} (read up to {text[at:]!r})")
        at = match.end()
        key, value = match.group("key").strip('`"'), match.group("value") or ""
        kind = _kind(match.group("kind") or "", key, columns)
        op = re.sub(r"\s+", " ", match.group("op").upper())
        if not value and not op.startswith("IS"):
            raise ValueError(f"Invalid filter string: {text!r} (no value after {key!r})")
        clauses.append(Clause(kind, key, op, value))
    return clauses


def _kind(prefix: str, key: str, columns: Optional[SearchColumns]) -> str:
    return columns.kind(prefix, key) if columns else _KINDS.get(prefix.lower(), "attribute")


def select(
    items: List[Any], text: Optional[str], lookup: Callable[[Any], Lookup], columns: Optional[SearchColumns] = None
) -> List[Any]:
    """Return the items that a filter holds for.

    Parameters
    ----------
    lookup
        Returns the look-up of an item's columns.
    columns
        Columns that are allowed; see :func:`parse`.

    Raises
    ------
    Refusal
        The text is not a filter.
    """
    try:
        clauses = parse(text or "", columns)
        return [item for item in items if matches(clauses, lookup(item))]
    except (ValueError, re.error) as error:
        raise invalid(str(error)) from None


def matches(clauses: List[Clause], lookup: Lookup) -> bool:
    """Return whether every clause holds. A missing value satisfies ``IS NULL`` only; one of several is enough."""
    return all(_holds(clause, lookup(clause.kind, clause.key)) for clause in clauses)


def _holds(clause: Clause, value: Any) -> bool:
    op, text = clause.op, clause.value
    if op.startswith("IS"):
        return (value is None) == (op == "IS NULL")
    if isinstance(value, list):
        return any(_holds(clause, one) for one in value)
    if value is None:
        return False
    if op in ("IN", "NOT IN"):
        listed = [a or b for a, b in re.findall(r"'([^']*)'|\"([^\"]*)\"", text)]
        return (str(value) in listed) == (op == "IN")
    if op in ("LIKE", "ILIKE"):
        pattern = re.escape(text.strip("'\"")).replace("%", ".*").replace("_", ".")
        flags = re.S | (re.I if op == "ILIKE" else 0)
        return re.fullmatch(pattern, str(value), flags) is not None
    if op == "RLIKE":
        return re.search(text.strip("'\""), str(value)) is not None
    number = isinstance(value, (int, float))
    expected: Any = float(text.strip("'\"")) if number else text.strip("'\"")
    if op in ("=", "!="):
        return bool(value == expected) == (op == "=")
    if op in (">", ">="):
        return bool(value > expected or (op == ">=" and value == expected))
    return bool(value < expected or (op == "<=" and value == expected))


def order(column: str, columns: Optional[SearchColumns] = None) -> Tuple[str, str, bool]:
    """Parse ``"metrics.loss DESC"``: kind, key, descending.

    Raises
    ------
    ValueError
        The search does not have the column.
    """
    text = column.strip()
    descending = False
    match = re.match(r"(.*\S)\s+(ASC|DESC)$", text, re.I)
    if match:
        text, descending = match.group(1), match.group(2).upper() == "DESC"
    head, dot, tail = text.partition(".")
    prefix, key = (head, tail.strip('`"')) if dot else ("", text.strip('`"'))
    return _kind(prefix, key, columns), key, descending


def ordered(
    items: List[Any], order_by: List[str], lookup: Callable[[Any], Lookup], columns: Optional[SearchColumns] = None
) -> List[Any]:
    """Return items in the order of a search; those without a value of a column come last.

    Raises
    ------
    Refusal
        The search does not have a column.
    """
    try:
        keys = [order(column, columns) for column in order_by]
    except ValueError as error:
        raise invalid(str(error)) from None
    return sort(items, [(_value_of(kind, key, lookup), descending) for kind, key, descending in keys])


def _value_of(kind: str, key: str, lookup: Callable[[Any], Lookup]) -> Callable[[Any], Any]:
    return lambda item: lookup(item)(kind, key)


def sort(items: List[Any], keys: List[SortKey]) -> List[Any]:
    """Return items sorted by several columns, the first one foremost; those without a value come last."""
    for value, descending in reversed(keys):
        known = [(value(item), item) for item in items]
        unknown = [item for one, item in known if one is None]
        known = [pair for pair in known if pair[0] is not None]
        if all(isinstance(one, (int, float)) for one, _ in known):
            known.sort(key=lambda pair: rank(pair[0], descending))
        else:
            known.sort(key=lambda pair: pair[0], reverse=descending)
        items = [item for _, item in known] + unknown
    return items


def texts(value: Any) -> List[str]:
    """Return a list of texts of a request; in the query of a URL one of them is no list."""
    return [str(item) for item in value] if isinstance(value, list) else [str(value)] if value else []


def page(key: str, items: List[Any], body: Body, count: int) -> Body:
    """Return the page of a search that a request names.

    Parameters
    ----------
    key
        Name of the list in the response.
    count
        Size of a page if the request has none.
    """
    at, count = int(body.get("page_token") or 0), int(body.get("max_results") or count)
    answer: Body = {key: items[at : at + count]}
    if at + count < len(items):
        answer["next_page_token"] = str(at + count)
    return answer
