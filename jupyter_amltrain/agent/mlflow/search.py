"""Part of MLflow's search grammar that one job's own runs need.

``metrics.loss < 0.5 AND tags.kind = 'a' AND attributes.status != 'FAILED'`` and
``order_by=["metrics.loss DESC"]`` (https://mlflow.org/docs/latest/search-runs.html).
"""

import re
from typing import Any, Callable, List, NamedTuple, Tuple

#: Looks up a column: (kind, key) -> value or None; kinds: metric, param, tag, attribute.
Lookup = Callable[[str, str], Any]

_CLAUSE = re.compile(
    r"""\s*(?:(?P<kind>[A-Za-z_]+)\.)?(?P<key>`[^`]+`|"[^"]+"|[\w.\-/]+)\s*
    (?P<op>!=|>=|<=|=|>|<|NOT\s+IN\b|IN\b|I?LIKE\b|IS\s+NOT\s+NULL\b|IS\s+NULL\b)\s*
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


class Clause(NamedTuple):
    """One comparison."""

    kind: str
    key: str
    op: str
    value: str


def parse(text: str) -> List[Clause]:
    """Parse a filter.

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
        kind = _KINDS.get((match.group("kind") or "").lower(), "attribute")
        op = re.sub(r"\s+", " ", match.group("op").upper())
        clauses.append(Clause(kind, match.group("key").strip('`"'), op, match.group("value") or ""))
    return clauses


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
    number = isinstance(value, (int, float))
    expected: Any = float(text.strip("'\"")) if number else text.strip("'\"")
    if op in ("=", "!="):
        return bool(value == expected) == (op == "=")
    if op in (">", ">="):
        return bool(value > expected or (op == ">=" and value == expected))
    return bool(value < expected or (op == "<=" and value == expected))


def order(column: str) -> Tuple[str, str, bool]:
    """Parse ``"metrics.loss DESC"``: kind, key, descending."""
    text = column.strip()
    descending = False
    match = re.match(r"(.*\S)\s+(ASC|DESC)$", text, re.I)
    if match:
        text, descending = match.group(1), match.group(2).upper() == "DESC"
    head, dot, tail = text.partition(".")
    if not dot:
        return "attribute", text.strip('`"'), descending
    return _KINDS.get(head.lower(), "attribute"), tail.strip('`"'), descending
