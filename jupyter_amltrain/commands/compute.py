"""``compute``: the places where runs can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent.gpu_names import gpu_name
from jupyter_amltrain.commands.tables import ago, pairs, table
from jupyter_amltrain.errors import CommandError, ConfirmationNeeded
from jupyter_amltrain.naming import tilde
from jupyter_amltrain.runs.text import bytes_text
from jupyter_amltrain.target_rows import PAST, gpus_text, info_text, lost_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from jupyter_amltrain.spec.target import TargetInfo


#: A service that does not answer within this time is not waited for in a list (seconds).
PATIENCE = 1.5


def listing() -> list[dict[str, Any]]:
    """Every target as a JSON-able row; what does not answer soon is listed as it is known."""
    import msgspec

    from jupyter_amltrain import api

    found = []
    for row in api.compute_rows(PATIENCE):
        fields = {"target": row.name, **msgspec.to_builtins(row)}
        del fields["name"], fields["acts"]
        found.append(fields)
    return found


def listing_text(rows: list[dict[str, Any]]) -> str:
    """The table of ``compute list``."""
    lines = []
    for row in rows:
        nodes, most = row["nodes"], row["max_nodes"]
        name = row["gpu_name"] or "GPU"
        lines.append(
            [
                "*" if row["current"] else "",
                row["target"],
                row["kind"],
                row["state"],
                row["size"],
                "" if nodes is None else f"{nodes} of {most}",
                "" if row["cpus"] is None else str(row["cpus"]),
                "" if row["memory"] is None else bytes_text(row["memory"]),
                "" if row["gpus"] is None else row["gpus_text"] or f"{row['gpus']} x {name}" if row["gpus"] else "none",
                _price(row),
                _now(row),
            ]
        )
    head = ["", "target", "kind", "state", "size", "nodes", "CPUs", "memory", "GPUs", "price", "now"]
    # A column that nobody has anything in says nothing.
    kept = [i for i in range(len(head)) if not i or any(line[i] for line in lines)]
    # The last column says what is wrong, and what to do: it is not cut.
    return table([head[i] for i in kept], [[line[i] for i in kept] for line in lines], whole_end=True)


def _price(row: dict[str, Any]) -> str:
    return "" if row["price"] is None else f"{row['price']:.2f} {row['currency']}/h"


def _now(row: dict[str, Any]) -> str:
    work = row["work"] or {}
    if work.get("error"):
        return f"{work['verb']} failed {ago(work['since'])}: {work['error']}"
    if work:
        return str(work["detail"] or f"{work['verb']} goes on")
    if row["state"] in ("unreachable", "failed"):
        return str(row["detail"])
    if row["state"] == "unknown":
        return "%aml_compute test asks"
    runs = f"{row['running']} running, {row['queued']} queued"
    return f"{runs}; {row['quota']}" if row["quota"] else runs


def show(name: str | None = None) -> TargetInfo:
    """Ask one target; default the one in use."""
    from jupyter_amltrain import api

    return api.compute(name)


def driver_text(gpus: Sequence[Mapping[str, Any]]) -> str:
    """``580.65.06, CUDA 13.0 at most``; empty where nobody told."""
    driver, cuda = (next((str(gpu[key]) for gpu in gpus if gpu.get(key)), "") for key in ("driver", "cuda"))
    return ", ".join(filter(None, (driver, cuda and f"CUDA {cuda} at most")))


def show_text(info: TargetInfo) -> str:
    """All that a check found."""
    facts = [
        ("target", f"{info.target} ({info.kind})"),
        ("state", "reachable" if info.reachable else "not reachable"),
        ("detail", info.detail),
        ("CPUs", "" if info.cpus is None else str(info.cpus)),
        ("memory", "" if info.memory is None else bytes_text(info.memory)),
        ("GPUs", ", ".join(filter(None, [gpus_text(info.gpus), lost_text(info.gpus_lost)])) or info.gpu_note or "none"),
    ]
    facts += [
        (f"  {gpu_name(gpu)}", f"{gpu.get('name')}  {bytes_text(gpu.get('memory_total'))}  {gpu.get('uuid')}")
        for gpu in info.gpus
    ]
    facts += [
        (f"  {gpu_name(gpu)}", f"{gpu.get('name')}  lost: {gpu.get('reason')}  {gpu.get('uuid') or ''}".rstrip())
        for gpu in info.gpus_lost
    ]
    if driver := driver_text(info.gpus):
        facts.append(("driver", driver))
    facts += [(f"{kind} slots", _slots_text(slots)) for kind, slots in info.slots.items()]
    facts += [("GPU sharing", "allowed for every run (%aml_compute edit)" if info.share_gpus else "")]
    facts += [
        ("runs", f"{info.running} running, {info.queued} queued"),
        ("Python", info.python),
        ("platform", info.platform),
        ("state folder", tilde(info.home)),
    ]
    lines = pairs(facts)
    if info.survives:
        rows = [(place, f"{s.get('answer', 'unknown')}: {s.get('why', '')}") for place, s in info.survives.items()]
        lines += f"\n\nA run survives the end of\n{pairs(rows)}"
    return lines


def _slots_text(slots: Mapping[str, int]) -> str:
    """``1 free of 2, 1 lost``."""
    lost = f", {slots['lost']} lost" if slots.get("lost") else ""
    return f"{slots['free']} free of {slots['total']}{lost}"


def edit(name: str, share_gpus: str | None) -> str:
    """Change settings of a target that hold at once, also for runs that wait there; returns what to say."""
    from jupyter_amltrain import api

    if share_gpus is None:
        raise CommandError("compute edit: nothing to change.", hint=f"Try: %aml_compute edit {name} --share-gpus yes")
    settings = api.configure_target(name, share_gpus=share_gpus == "yes")
    if settings["share_gpus"]:
        return f"Runs on {name} may share GPUs with other processes, also those that wait now."
    return f"Runs on {name} get no GPU that other processes use, unless submitted with --share-gpus."


def test_text(info: TargetInfo) -> str:
    """One line: can it run jobs now?"""
    return info_text(info)


def use(name: str) -> str:
    """Make a target the default."""
    from jupyter_amltrain import api

    api.use(name)
    return f"{name} is the target in use now, in every notebook."


def carry_out(asked: argparse.Namespace, *, wait: bool, write: Callable[[str], None]) -> str:
    """Create, start, stop, scale or delete a target as a parsed line says; returns what is to be said.

    Parameters
    ----------
    write
        Takes lines about the progress while we `wait`.

    Raises
    ------
    CommandError
        A value is wrong, or ``--yes`` is missing: says what it costs or loses, and what to type.
    """
    from jupyter_amltrain import api
    from jupyter_amltrain.commands.compute_lines import fields_for, line_of
    from jupyter_amltrain.commands.compute_parser import VALUE
    from jupyter_amltrain.spec.target_fields import MUST

    verb, kind = asked.verb, getattr(asked, "kind", "")
    name = asked.name if "name" in asked else asked.target
    values = {key[len(VALUE) :]: value for key, value in vars(asked).items() if key.startswith(VALUE)}
    done = api.act(verb, name, kind=kind, values=values, confirmed=asked.yes)
    if done.errors:
        flags = {field.name: field.flag for field in fields_for(verb, kind)} | {"kind": "--kind", "name": "NAME"}
        helps = {field.name: field.help for field in fields_for(verb, kind)}
        said = {k: f"{text} {helps.get(k, '')}." if text == MUST else text for k, text in done.errors.items()}
        raise CommandError(" ".join(f"{flags.get(k) or k}: {text}" for k, text in said.items()))
    if done.ask:
        line = line_of(verb, name, kind, values)
        raise ConfirmationNeeded(
            done.ask, hint=f"To go ahead, type: {line} --yes{' --wait' if getattr(asked, 'wait', False) else ''}"
        )
    if not done.begun:
        return done.said
    if not wait:
        return f"{name} is being {PAST[verb]}. See the progress by %aml_compute list; to wait for the end, add --wait."
    return wait_for(name, write)


def given_up(asked: argparse.Namespace) -> str:
    """What becomes of a work that nobody waits for any more, in a process that ends now."""
    from jupyter_amltrain import api
    from jupyter_amltrain.backends.azureml.cost_prompts import ASKING
    from jupyter_amltrain.spec.azure_base import AzureTarget

    verb, name = asked.verb, asked.name if "name" in asked else asked.target
    try:
        said, detail = api.compute_progress(name, 0.0)
    except KeyError:
        return f"nothing was begun with {name!r}."
    if said is not None:
        return said
    azure = any(target.name == name and isinstance(target, AzureTarget) for target in api.targets())
    if not azure:
        return f"{name!r} is not {PAST[verb]} to the end. %aml_compute list shows what became of it."
    if detail in ("", ASKING):
        return f"whether Azure was asked already is not known. %aml_compute list shows what became of {name!r}."
    return f"{name!r} is being {PAST[verb]} at Azure all the same. %aml_compute list shows how far it is."


def wait_for(name: str, write: Callable[[str], None]) -> str:
    """Wait for the end of what is being done with a target; returns what is told then."""
    from jupyter_amltrain import api

    shown = ""
    while True:
        said, detail = api.compute_progress(name)
        if said is not None:
            return said
        if detail != shown:
            shown = detail
            write(detail)
