"""What a waiting job waits for, in one line."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence, Set

from .gpu_names import gpu_name
from .gpu_users import Submitter, describe, is_kernel, strangers

Gpu = Mapping[str, Any]


def some(names: Sequence[str]) -> str:
    """The first three, and how many more there are."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else "%s and %d more" % (shown, len(names) - 3)


def waiting_text(
    ticket: Mapping[str, Any],
    position: int,
    gpus: Sequence[Gpu],
    records: Sequence[Mapping[str, Any]],
    ours: Set[int],
    share: bool,
) -> str:
    """What a job that could start one day waits for.

    Parameters
    ----------
    position
        1 for the next of its kind.
    """
    place = "next in line" if position == 1 else "number %d in line" % position
    if not ticket["gpus"]:
        busy = [r["run"] for r in records if r["cpu_slot"] is not None]
        return "%s for a CPU slot; busy with %s" % (place, some(busy)) if busy else place
    parts: List[str] = []
    own: List[int] = []
    submitter = Submitter(ticket.get("submitter"))
    busy = [r["run"] for r in records if r["devices"]]
    if busy:
        parts.append("busy with %s" % some(busy))
    taken = {uuid for record in records for uuid in record["devices"]}
    for gpu in gpus:
        others = [] if share or gpu["uuid"] in taken else strangers(gpu, ours)
        if not others:
            continue
        mine = submitter.own(others)
        own += mine
        who = [submitter.describe(pid) for pid in mine]
        who += [describe(row) for row in others if row["pid"] not in mine]
        parts.append("%s used by %s" % (gpu_name(gpu), some(who)))
    count = "%d GPU%s" % (ticket["gpus"], "s" * (ticket["gpus"] > 1))
    text = "%s for %s%s" % (place, count, "; " + "; ".join(parts) if parts else "")
    if own:
        end = "Restart the kernel" if any(is_kernel(pid) for pid in own) else "End that process"
        text += ". %s to free the GPU, or submit the run with --gpus 0 or --share-gpus" % end
    elif len(parts) > bool(busy):
        text += ". To share GPUs with others: --share-gpus"
    return text


def blocked_text(ticket: Mapping[str, Any], usable: int, trouble: str, note: str) -> str:
    """Why a job cannot start as long as the machine is as it is.

    Parameters
    ----------
    usable
        GPUs that can be given to it.
    trouble
        Which GPUs are lost, or how the driver fails; empty when neither.
    note
        Why there is no GPU at all.
    """
    count = "%d GPU%s" % (ticket["gpus"], "s" * (ticket["gpus"] > 1))
    why = trouble or note or "this machine has %d now" % usable
    return "cannot start now: it asks for %s and %s. It starts when they are back; cancel it to submit it anew" % (
        count,
        why.rstrip("."),
    )


def shared_text(used: Sequence[str]) -> str:
    """Note of a run that may share its GPUs.

    Parameters
    ----------
    used
        ``GPU 0 by pid 123 (ann: python)`` for each of its GPUs that was in use when it started.
    """
    if used:
        return "Shared GPU: when the run started, others used %s." % "; ".join(used)
    return "Shared GPU: other processes may use it; none did when the run started."
