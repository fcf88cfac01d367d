"""What a waiting job waits for, and what it shares, as text."""

from __future__ import annotations

from typing import Any, Collection, List, Mapping, NamedTuple, Sequence, Set

from ..telemetry.gpu_names import gpu_name
from .gpu_users import Submitter, describe, foreign_processes, is_kernel
from .slots import fraction_of

Gpu = Mapping[str, Any]
Record = Mapping[str, Any]


class Ahead(NamedTuple):
    """A job that waits for GPUs, before others."""

    run: str
    #: UUIDs of the GPUs that it may get, and of those that it would get first if they were free.
    usable: Set[str]
    claimed: Set[str]
    reason: str  #: what it waits for


def count_text(ticket: Mapping[str, Any]) -> str:
    """Return ``2 GPUs`` or ``0.25 of a GPU``."""
    fraction = fraction_of(ticket)
    if fraction < 1:
        return "%g of a GPU" % fraction
    return "%d GPU%s" % (ticket["gpus"], "s" * (ticket["gpus"] > 1))


def shorten(names: Sequence[str]) -> str:
    """Return the first three names and the number of the others."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else "%s and %d more" % (shown, len(names) - 3)


def waiting_text(
    ticket: Mapping[str, Any],
    ahead: Sequence[Ahead],
    gpus: Sequence[Gpu],
    records: Sequence[Record],
    own_pids: Set[int],
    share: bool,
) -> str:
    """Return what a job that can start later is waiting for.

    Parameters
    ----------
    ahead
        Jobs of its kind that wait for the same, the next one first.
    """
    position = len(ahead) + 1
    position_text = "next in line" if position == 1 else "position %d in the queue" % position
    if not ticket["gpus"]:
        busy = [r["run"] for r in records if r["cpu_slot"] is not None]
        return "%s for a CPU slot; busy with %s" % (position_text, shorten(busy)) if busy else position_text
    submitter = Submitter(ticket.get("submitter"))
    parts = reasons(gpus, records, own_pids, share, submitter)
    if ahead and ahead[0].reason not in ("", "; ".join(reasons(gpus, records, own_pids, share))):
        parts.append("%s is before it, and waits: %s" % (ahead[0].run, ahead[0].reason))
    text = "%s for %s%s" % (position_text, count_text(ticket), "; " + "; ".join(parts) if parts else "")
    if share:
        return text
    others = [row for gpu in _not_ours(gpus, records) for row in foreign_processes(gpu, own_pids)]
    own = submitter.own(others)
    if own:
        action = "Restart the kernel" if any(is_kernel(pid) for pid in own) else "End that process"
        text += ". %s to free the GPU, or submit the run with --gpus 0 or --share-gpus" % action
    elif others:
        text += ". To share GPUs with others: --share-gpus"
    return text


def reasons(
    gpus: Sequence[Gpu],
    records: Sequence[Record],
    own_pids: Set[int],
    share: bool,
    submitter: Submitter = Submitter(()),  # noqa: B008
) -> List[str]:
    """Return why GPUs are not free for a job: ``busy with RUN``, ``GPU 0 used by pid 12 (ann: python)``.

    Parameters
    ----------
    submitter
        Of the job, for a text that its own notebook shows.
    """
    busy = [r["run"] for r in records if r["devices"]]
    parts = ["busy with %s" % shorten(busy)] if busy else []
    for gpu in [] if share else _not_ours(gpus, records):
        others = foreign_processes(gpu, own_pids)
        if others:
            submitter_pids = submitter.own(others)
            users = [submitter.describe(pid) for pid in submitter_pids]
            users += [describe(row) for row in others if row["pid"] not in submitter_pids]
            parts.append("%s used by %s" % (gpu_name(gpu), shorten(users)))
    return parts


def _not_ours(gpus: Sequence[Gpu], records: Sequence[Record]) -> List[Gpu]:
    """Return the GPUs that no run of this queue has."""
    taken = {uuid for record in records for uuid in record["devices"]}
    return [gpu for gpu in gpus if gpu["uuid"] not in taken]


def blocked_text(ticket: Mapping[str, Any], usable: int, trouble: str, note: str) -> str:
    """Return why a job cannot start in the current state of the machine.

    Parameters
    ----------
    usable
        Number of GPUs that the job could get.
    trouble
        Lost GPUs or failure of the driver; empty if there is none.
    note
        Reason why there is no GPU at all.
    """
    reason = trouble or note or "this machine has %d now" % usable
    return (
        "cannot start now: it requests %s, but %s. It starts when they are available;"
        " to change the request, cancel and resubmit it" % (count_text(ticket), reason.rstrip("."))
    )


def shared_text(used: Sequence[str]) -> str:
    """Return the note of a run that may share its GPUs with other users.

    Parameters
    ----------
    used
        ``GPU 0 by pid 123 (ann: python)`` for each of its GPUs that was in use when it started.
    """
    if used:
        return "Shared GPU: when the run started, others used %s." % "; ".join(used)
    return "Shared GPU: other processes may use it; none did when the run started."


def fraction_text(ticket: Mapping[str, Any], gpu: Gpu, neighbors: Collection[str]) -> str:
    """Return the note of a run that has a fraction of a GPU, with the runs that have the rest now."""
    beside = " beside %s" % shorten(sorted(neighbors)) if neighbors else ""
    return "%s of %s%s. Its memory is not divided: the runs there can use it up together." % (
        "%g" % fraction_of(ticket), gpu_name(gpu), beside,
    )  # fmt: skip
