"""MLflow's search grammar, as far as one job's own runs need it.

``metrics.loss < 0.5 AND tags.kind = 'a' AND attributes.status != 'FAILED'`` and
``order_by=["metrics.loss DESC"]`` (https://mlflow.org/docs/latest/search-runs.html).
"""

import re
from typing import Any, Callable, List, NamedTuple, Tuple

#: Looks a column up: (kind, key) -> value or None; kinds: metric, param, tag, attribute.
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
}


class Clause(NamedTuple):
    """One comparison."""

    kind: str
    key: str
    op: str
    value: str


def parse(text: str) -> List[Clause]:
    """Take a filter apart.

    Raises
    ------
    ValueError
        The text is not a filter.
    """
    clauses, at = [], 0
    text = text.strip()
    while at < len(text):
        found = _CLAUSE.match(text, at)
        if not found:
            raise ValueError(f"Invalid filter string: {text!r} (read up to {text[at:]!r})")
        at = found.end()
        kind = _KINDS.get((found.group("kind") or "").lower(), "attribute")
        op = re.sub(r"\s+", " ", found.group("op").upper())
        clauses.append(Clause(kind, found.group("key").strip('`"'), op, found.group("value") or ""))
    return clauses


def matches(clauses: List[Clause], lookup: Lookup) -> bool:
    """True if every clause holds. A missing value holds for ``IS NULL`` only."""
    return all(_holds(clause, lookup(clause.kind, clause.key)) for clause in clauses)


def _holds(clause: Clause, got: Any) -> bool:
    op, text = clause.op, clause.value
    if op.startswith("IS"):
        return (got is None) == (op == "IS NULL")
    if got is None:
        return False
    if op in ("IN", "NOT IN"):
        listed = [a or b for a, b in re.findall(r"'([^']*)'|\"([^\"]*)\"", text)]
        return (str(got) in listed) == (op == "IN")
    if op in ("LIKE", "ILIKE"):
        pattern = re.escape(text.strip("'\"")).replace("%", ".*").replace("_", ".")
        flags = re.S | (re.I if op == "ILIKE" else 0)
        return re.fullmatch(pattern, str(got), flags) is not None
    number = isinstance(got, (int, float))
    want: Any = float(text.strip("'\"")) if number else text.strip("'\"")
    if op in ("=", "!="):
        return bool(got == want) == (op == "=")
    if op in (">", ">="):
        return bool(got > want or (op == ">=" and got == want))
    return bool(got < want or (op == "<=" and got == want))


def order(column: str) -> Tuple[str, str, bool]:
    """Take ``"metrics.loss DESC"`` apart: kind, key, descending."""
    text = column.strip()
    descending = False
    found = re.match(r"(.*\S)\s+(ASC|DESC)$", text, re.I)
    if found:
        text, descending = found.group(1), found.group(2).upper() == "DESC"
    head, dot, tail = text.partition(".")
    if not dot:
        return "attribute", text.strip('`"'), descending
    return _KINDS.get(head.lower(), "attribute"), tail.strip('`"'), descending
