"""``compute billing``: what still bills in a workspace, and what to type to end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.parsing import Parser
from jupyter_amltrain.commands.tables import table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence


def add_verb(parser: Parser) -> None:
    """Add the verb to the parser of ``compute``."""
    verb = parser.verb("billing", "What bills at Azure ML now, by the hour, and how to end it.")
    verb.add_argument("--workspace", metavar="NAME", default="", help="default: every connected one")


def carry_out(asked: argparse.Namespace) -> tuple[str, Any]:
    """What is to be said, and the same as JSON."""
    from jupyter_amltrain import api

    found = api.billing(asked.workspace)
    return text_of(found), found


def text_of(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A table of all that bills; rows by workspace."""
    rows = [(workspace, row) for workspace, its in found.items() for row in its]
    names = ", ".join(found) or "no workspace: none is connected"
    if not rows:
        return f"Nothing bills in {names}: no machine is on, no job runs on machines of the service. {_ASIDE}"
    lines = [
        [
            *([workspace] if len(found) > 1 else []),
            str(row["name"]),
            str(row["kind"]),
            f"{row['nodes']} x {row['size'] or 'unknown size'}{' low-priority' if row['low_priority'] else ''}",
            "unknown" if row["price"] is None else f"{row['price']:.2f} {row['currency']}",
            _end(row),
        ]
        for workspace, row in rows
    ]
    head = [*(["workspace"] if len(found) > 1 else []), "name", "kind", "machines", "per hour", "to end it"]
    known = [row for _, row in rows if row["price"] is not None]
    total = sum(row["price"] for row in known)
    currency = next((row["currency"] for row in known if row["currency"]), "")
    unknown = len(rows) - len(known)
    least = "at least " if unknown else ""
    more = f" (the price of {unknown} of {len(rows)} is unknown)" if unknown else ""
    sum_ = f"Together {least}{total:.2f} {currency} per hour{more}." if known else _NO_PRICE
    return f"{table(head, lines, whole_end=True)}\n\n{sum_} {_ASIDE}"


_NO_PRICE = "The sum is unknown: Azure publishes no price for any of these machines."
_ASIDE = "Storage, registry and attached machines bill apart."


def _end(row: Mapping[str, Any]) -> str:
    name = row["name"]
    if row["kind"] == "instance":
        return f"%aml_compute stop {name}"
    if row["kind"] == "serverless":
        return "cancel the job; it ends with it"
    if row["keeps"]:
        return f"%aml_compute scale {name} --nodes 0"
    return f"goes when idle; at once: %aml_compute delete {name}"
