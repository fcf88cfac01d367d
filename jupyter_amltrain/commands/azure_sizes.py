"""``compute sizes|quota|support``: which machines Azure ML has, how many are left, and what runs where."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands import azure_billing
from jupyter_amltrain.commands.parsing import Parser
from jupyter_amltrain.commands.tables import table
from jupyter_amltrain.errors import CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from jupyter_amltrain.backends.azureml.catalog import Quotas, Size

#: The verbs of this room.
VERBS = ("sizes", "quota", "support", "billing")

_GIB = 1 << 30
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) *(?:GI?B?)?", re.IGNORECASE)


def add_verbs(parser: Parser) -> None:
    """Add the verbs to the parser of ``compute``."""
    verb = parser.verb("sizes", "Sizes of machines that Azure ML has: GPUs, processors, memory, price, how many fit.")
    verb.add_argument("--gpu", action="store_true", help="only those with GPUs")
    family = verb.add_argument("--family", metavar="FAMILY", default="", help="NC, ND, NV, D, E, ...")
    family.offers = ("NC", "ND", "NV")  # type: ignore[attr-defined]
    verb.add_argument("--min-gpu-memory", metavar="24GB", default="", help="memory of one GPU at least")
    verb.add_argument("--instance", action="store_true", help="for compute instances, not for clusters")
    _add_place(verb)
    verb = parser.verb("quota", "Processor cores that may still be had at Azure ML, by family.")
    verb.add_argument("--all", action="store_true", help="also families without any")
    _add_place(verb)
    azure_billing.add_verb(parser)
    parser.verb("support", "What each kind of target can run: GPUs, tuning, AutoML, pipelines.")


def _add_place(verb: Parser) -> None:
    verb.add_argument("--region", metavar="REGION", default="", help="default: the workspace's")
    verb.add_argument("--workspace", metavar="NAME", default="", help="default: the current one")


def carry_out(asked: argparse.Namespace) -> tuple[str, Any]:
    """What is to be said, and the same as JSON."""
    from jupyter_amltrain import api

    if asked.verb == "support":
        return support()
    if asked.verb == "billing":
        return azure_billing.carry_out(asked)
    where = {"workspace": asked.workspace, "region": asked.region}
    if asked.verb == "quota":
        quotas = api.quota(**where)
        return quota_text(quotas, everything=asked.all), _quota_rows(quotas)
    found = api.sizes(
        gpu=asked.gpu,
        family=asked.family,
        min_gpu_memory=gpu_memory(asked.min_gpu_memory),
        instance=asked.instance,
        **where,
    )
    quotas = api.quota(**where)
    return sizes_text(found, quotas), _size_rows(found, quotas)


def gpu_memory(text: str) -> float:
    """``24GB`` -> bytes; 0 for nothing. GB and GiB are the same here, as in the tables of the makers.

    Raises
    ------
    CommandError
        It is no amount.
    """
    if not text:
        return 0.0
    found = _AMOUNT.fullmatch(text.strip())
    if not found:
        raise CommandError(f"--min-gpu-memory {text[:40]!r} is no amount of memory.", hint="Write for example 24GB.")
    return float(found[1]) * _GIB


def sizes_text(sizes: Sequence[Size], quotas: Quotas) -> str:
    """The table of ``compute sizes``."""
    from jupyter_amltrain.backends.azureml.catalog import gpu_table, retirement_text
    from jupyter_amltrain.backends.azureml.cost_prompts import gpu_text

    if not sizes:
        return "No size is like that. %aml_compute sizes --gpu lists all with GPUs."
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
        f"Prices are Azure ML's own estimates for Linux. GPU models: the project's table of {gpu_table()['date']}."
    ]
    if not all(quotas.is_known(size, False) for size in sizes):
        notes.append("'?': Azure names no quota for the family of this size.")
    if any(size.part for size in sizes):
        notes.append("'1/6 of one': a part of a card.")
    if retired:
        notes.append("Warning: Azure may refuse retired sizes, or stop their machines.")
    return f"{table(head, lines)}\n\n{' '.join(notes)}"


def _price(price: float | None) -> str:
    return "unknown" if price is None else f"{price:.2f}"


def _fits(size: Size, quotas: Quotas, *, low: bool) -> str:
    most = _most(size, quotas, low)
    return "?" if most is None else str(most)


def _most(size: Size, quotas: Quotas, low: bool) -> int | None:
    """Return how many machines fit now; ``None`` where no quota of the size is known."""
    return quotas.most(size, low) if quotas.is_known(size, low) else None


def _size_rows(sizes: Sequence[Size], quotas: Quotas) -> list[dict[str, Any]]:
    import msgspec

    from jupyter_amltrain.backends.azureml.catalog import retirement_date

    return [
        {
            **msgspec.to_builtins(size),
            "fit": _most(size, quotas, False),
            "fit_low": _most(size, quotas, True),
            "retirement": None if (day := retirement_date(size.name)) is None else day.isoformat(),
        }
        for size in sizes
    ]


def quota_text(quotas: Quotas, *, everything: bool = False) -> str:
    """The table of ``compute quota``: what dedicated and low-priority machines may have."""
    from jupyter_amltrain.backends.azureml.catalog import MORE

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
    if left_out := len(rows) - len(shown):
        notes.append(f"{left_out} {'family' if left_out == 1 else 'families'} without any: --all.")
    notes.append(f"More: {MORE}")
    return f"{table(['cores of', 'machines', 'used', 'limit', 'free'], lines)}\n\n{' '.join(notes)}"


def _quota_rows(quotas: Quotas) -> list[dict[str, Any]]:
    import msgspec

    return [{**msgspec.to_builtins(row), "free": row.free} for row in quotas.rows]


def support() -> tuple[str, Any]:
    """The table of ``compute support``, and the same as JSON."""
    from jupyter_amltrain.backends.job_support import table as known

    found = known()
    columns = ["gpu", "tuning", "automl", "pipelines", "command", "sweep", "automl_now", "pipeline_now", "spark"]
    head = ["kind", "GPU", "tuning", "AutoML", "pipelines", "| v2: job", "sweep", "AutoML", "pipeline", "Spark"]
    lines = [
        [kind, *(("| " if name == "command" else "") + row[name] for name in columns)]
        for kind, row in found["kinds"].items()
    ]
    remarks = [f"{kind}: {row['remark']}" for kind, row in found["kinds"].items() if row.get("remark")]
    text = "Left: what Azure ML's documents of 2018 and 2020 promised (SDK v1). Right: what v2 runs today."
    return "\n".join([table(head, lines), "", text, *remarks]), found
