"""``compute sizes|billing|support``: Azure ML's machine sizes, costs, and what runs where; and the quota of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.quota import ServiceQuota
from jupyter_amltrain.commands.registry import Command, Context, Result
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.text import table

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.azure.catalog import Quotas, Size

_GIB = 1 << 30
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) *(?:GI?B?)?", re.IGNORECASE)
_NO_TOTAL = "The total is unknown: Azure publishes no price for any of these machines."
_NOT_INCLUDED = "Storage, the container registry and attached machines are billed separately."


# ---- the commands


def _workspace_flags(parser: Parser) -> None:
    parser.flag("--region", metavar="REGION", default="", help="default: the workspace's")
    parser.flag("--workspace", metavar="NAME", default="", help="default: the current one")


def _sizes_flags(parser: Parser) -> None:
    parser.flag("--gpu", action="store_true", help="only those with GPUs")
    parser.flag("--family", metavar="FAMILY", default="", help="NC, ND, NV, D, E, ...", offers=("NC", "ND", "NV"))
    parser.flag("--min-gpu-memory", metavar="24GB", default="", help="minimum memory of one GPU")
    parser.flag("--instance", action="store_true", help="for compute instances, not for clusters")
    _workspace_flags(parser)


def _sizes(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain.azure import functions

    where = {"workspace": args.workspace, "region": args.region}
    memory = gpu_memory(args.min_gpu_memory)
    try:
        sizes = functions.sizes(
            gpu=args.gpu, family=args.family, min_gpu_memory=memory, instance=args.instance, **where
        )
    except CommandError as error:
        if error.code != "workspace.none":
            raise
        return _gpu_sizes(args.family, memory)
    quotas = functions.quota(**where)
    return Result(sizes_text(sizes, quotas), _size_rows(sizes, quotas))


def _gpu_sizes(family: str, memory: float) -> Result:
    """Return the sizes whose GPUs are known without a workspace."""
    import msgspec

    from jupyter_amltrain.azure.catalog import gpu_sizes, gpu_table, retirement_text
    from jupyter_amltrain.azure.cost_prompts import gpu_text

    sizes = gpu_sizes(family, memory)
    rows = [[size.name, gpu_text(size), retirement_text(size.name)] for size in sizes]
    note = (
        f"From jupyter_amltrain's table of {gpu_table()['date']}. No workspace is connected: the number of GPUs, "
        "prices, quota, sizes without GPUs and what your region has come from Azure (%aml_compute connect)."
    )
    return Result(
        f"{table(['size', 'each GPU', 'retirement'], rows)}\n\n{note}" if rows else f"No such size. {note}",
        [{**msgspec.to_builtins(size), "fit": None, "fit_low": None} for size in sizes],
    )


def _quota(args: argparse.Namespace) -> tuple[str, Any]:
    from jupyter_amltrain.azure import functions

    quotas = functions.quota(workspace=args.workspace, region=args.region)
    return quota_text(quotas, everything=args.all), quota_rows(quotas)


#: Quota of a workspace, for ``compute quota``.
QUOTA = ServiceQuota(_workspace_flags, ("region", "workspace"), _quota)


def _billing_flags(parser: Parser) -> None:
    parser.flag("--workspace", metavar="NAME", default="", help="default: every connected one")


def _billing(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain.azure import functions

    rows = functions.billing(args.workspace)
    return Result(billing_text(rows), rows)


def _support(args: argparse.Namespace, context: Context) -> Result:
    return Result(*support())


COMMANDS = (
    Command(
        verb="sizes",
        summary="List machine sizes in Azure ML: GPUs, processors, memory, price, and how many fit.",
        run=_sizes,
        flags=_sizes_flags,
        json=True,
    ),
    Command(
        verb="billing",
        summary="List what is still costing money in Azure ML, by the hour, and how to stop it.",
        run=_billing,
        flags=_billing_flags,
        json=True,
    ),
    Command(
        verb="support",
        summary="List the jobs that each kind of target can run: GPUs, tuning, AutoML, pipelines.",
        run=_support,
        json=True,
    ),
)


# ---- output


def gpu_memory(text: str) -> float:
    """Return the bytes of ``24GB``; 0 for an empty text. GB means GiB, as in vendors' tables.

    Raises
    ------
    CommandError
        `text` is not an amount of memory.
    """
    if not text:
        return 0.0
    match = _AMOUNT.fullmatch(text.strip())
    if not match:
        raise CommandError(
            f"--min-gpu-memory: expected an amount of memory, got {text[:40]!r}.",
            hint="Example: 24GB",
            code="flag.value",
            field="min-gpu-memory",
        )
    return float(match[1]) * _GIB


def sizes_text(sizes: Sequence[Size], quotas: Quotas) -> str:
    """Return the table of ``compute sizes``."""
    from jupyter_amltrain.azure.catalog import gpu_table, retirement_text
    from jupyter_amltrain.azure.cost_prompts import gpu_text

    if not sizes:
        return "No size matches. To list all with GPUs: %aml_compute sizes --gpu"
    currency = next((size.currency for size in sizes if size.currency), "")
    lines = []
    for size in sizes:
        lines.append(
            [
                size.name,
                f"{size.gpus} x {gpu_text(size)}" if size.gpus else "none",
                "" if size.cpus is None else str(size.cpus),
                "" if size.memory is None else f"{size.memory / _GIB:g} GB",
                _price(size.price),
                _price(size.price_low) if size.low_priority else "none",
                _fits(size, quotas, low=False),
                _fits(size, quotas, low=True) if size.low_priority else "none",
                retirement_text(size.name),
            ]
        )
    per = f"{currency}/h" if currency else "per h"
    head = ["size", "GPUs", "CPUs", "memory", per, f"low-priority {per}", "fit now", "low-priority", "retirement"]
    retired = sum(bool(line[-1]) for line in lines)
    if not retired:
        head, lines = head[:-1], [line[:-1] for line in lines]
    notes = [
        f"Prices are Azure ML's own estimates for Linux. GPU models: jupyter_amltrain's table of {gpu_table()['date']}."
    ]
    if not all(quotas.is_known(size, False) for size in sizes):
        notes.append("'?': Azure reports no quota for the family of this size.")
    if any(size.part for size in sizes):
        notes.append("'1/6 of one': a fraction of a GPU.")
    if retired:
        notes.append("Warning: Azure may reject retired sizes, or stop their machines.")
    return f"{table(head, lines)}\n\n{' '.join(notes)}"


def _price(price: float | None) -> str:
    return "unknown" if price is None else f"{price:.2f}"


def _fits(size: Size, quotas: Quotas, *, low: bool) -> str:
    limit = _fit(size, quotas, low)
    return "?" if limit is None else str(limit)


def _fit(size: Size, quotas: Quotas, low: bool) -> int | None:
    """Return how many machines fit now; ``None`` where no quota of the size is known."""
    return quotas.max_machines(size, low) if quotas.is_known(size, low) else None


def _size_rows(sizes: Sequence[Size], quotas: Quotas) -> list[dict[str, Any]]:
    import msgspec

    from jupyter_amltrain.azure.catalog import retirement_date

    return [
        {
            **msgspec.to_builtins(size),
            "fit": _fit(size, quotas, False),
            "fit_low": _fit(size, quotas, True),
            "retirement": None if (day := retirement_date(size.name)) is None else day.isoformat(),
        }
        for size in sizes
    ]


def quota_text(quotas: Quotas, *, everything: bool = False) -> str:
    """Return the table of ``compute quota``: cores for dedicated and low-priority machines."""
    from jupyter_amltrain.azure.catalog import MORE_QUOTA_URL

    rows = [row for row in quotas.rows if row.family != "clusters"]
    shown = [row for row in rows if everything or row.limit or row.used]
    lines = [
        [
            row.family or "all machines",
            "low-priority" if row.low_priority else "dedicated",
            str(row.used),
            "any" if row.limit < 0 else str(row.limit),
            "any" if row.free is None else str(row.free),
        ]
        for row in sorted(shown, key=lambda row: (row.low_priority, bool(row.family), row.family.lower()))
    ]
    clusters = next((row for row in quotas.rows if row.family == "clusters"), None)
    notes = []
    if clusters is not None:
        notes.append(f"Computes: {clusters.used} of {clusters.limit}.")
    if hidden := len(rows) - len(shown):
        noun, verb, it = ("family", "is", "it") if hidden == 1 else ("families", "are", "them")
        notes.append(f"{hidden} {noun} with no quota {verb} hidden (show {it} with --all).")
    notes.append(f"More: {MORE_QUOTA_URL}")
    return f"{table(['cores of', 'machines', 'used', 'limit', 'free'], lines)}\n\n{' '.join(notes)}"


def quota_rows(quotas: Quotas) -> list[dict[str, Any]]:
    """Return the quotas for programs."""
    import msgspec

    return [{**msgspec.to_builtins(row), "free": row.free} for row in quotas.rows]


def support() -> tuple[str, Any]:
    """Return the table of ``compute support`` as text and as JSON."""
    from jupyter_amltrain.azure.job_support import table as table_of_support

    support_table = table_of_support()
    columns = ["gpu", "tuning", "automl", "pipelines", "command", "sweep", "automl_now", "pipeline_now", "spark"]
    head = ["kind", "GPU", "tuning", "AutoML", "pipelines", "| v2: job", "sweep", "AutoML", "pipeline", "Spark"]
    lines = [
        [kind, *(("| " if name == "command" else "") + row[name] for name in columns)]
        for kind, row in support_table["kinds"].items()
    ]
    remarks = [f"{kind}: {row['remark']}" for kind, row in support_table["kinds"].items() if row.get("remark")]
    text = "Left: what Azure ML's documents of 2018 and 2020 promised (SDK v1). Right: what v2 runs today."
    return "\n".join([table(head, lines), "", text, *remarks]), support_table


def billing_text(billing: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table of everything that costs money; `billing` has rows by workspace."""
    rows = [(workspace, row) for workspace, items in billing.items() for row in items]
    names = ", ".join(billing)
    if not rows:
        if not billing:
            return "No workspace is connected."
        return (
            f"Nothing in {names} is costing money: no machine is on and no serverless job is running. {_NOT_INCLUDED}"
        )
    lines = [
        [
            *([workspace] if len(billing) > 1 else []),
            str(row["name"]),
            str(row["kind"]),
            f"{row['nodes']} x {row['size'] or 'unknown size'}{' low-priority' if row['low_priority'] else ''}",
            "unknown" if row["price"] is None else f"{row['price']:.2f} {row['currency']}",
            _stop_command(row),
        ]
        for workspace, row in rows
    ]
    head = [*(["workspace"] if len(billing) > 1 else []), "name", "kind", "machines", "per hour", "stop it with"]
    priced = [row for _, row in rows if row["price"] is not None]
    total = sum(row["price"] for row in priced)
    currency = next((row["currency"] for row in priced if row["currency"]), "")
    unknown = len(rows) - len(priced)
    at_least = "at least " if unknown else ""
    remark = f" (the price of {unknown} of {len(rows)} is unknown)" if unknown else ""
    total_text = f"Total: {at_least}{total:.2f} {currency} per hour{remark}." if priced else _NO_TOTAL
    return f"{table(head, lines, whole_end=True)}\n\n{total_text} {_NOT_INCLUDED}"


def _stop_command(row: Mapping[str, Any]) -> str:
    """Return how to stop what a row bills."""
    name = row["name"]
    if row["kind"] in ("instance", "ssh"):
        return f"%aml_compute stop {name}"
    if row["kind"] == "serverless":
        return "cancel the job"
    if row["keeps"]:
        return f"%aml_compute scale {name} --nodes 0"
    return f"stops by itself when idle; to stop now: %aml_compute delete {name}"
