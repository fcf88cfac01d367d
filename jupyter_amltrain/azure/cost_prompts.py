"""State of a compute for its row, confirmation texts with costs, and checks of VM sizes. No I/O."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.azure import compute_state
from jupyter_amltrain.azure.catalog import UNKNOWN, Quotas, Size, key, offered, retirement_warning
from jupyter_amltrain.azure.targets import (
    AmlComputeTarget,
    AzureTarget,
    DatabricksTarget,
    DataLakeTarget,
    HDInsightTarget,
    InstanceTarget,
    MachineTarget,
    ServerlessTarget,
)
from jupyter_amltrain.backends.provisioner import ProvisionState, stopped_runs_text
from jupyter_amltrain.errors import CapacityError, CommandError
from jupyter_amltrain.text import counted, money

#: Kinds that Azure ML lists but that run no jobs.
_IDLE = (MachineTarget, HDInsightTarget, DatabricksTarget, DataLakeTarget)


def state_of(
    target: AzureTarget, row: Mapping[str, Any] | None, size: Size | None, quotas: Quotas, *, created: bool = True
) -> ProvisionState:
    """Return the state of a compute for its row in the list.

    Parameters
    ----------
    row
        The service's description; ``None`` for a target that is not created there.
    size
        Size of its machines, if known.
    """
    described = row or {}
    low = bool(described.get("low_priority", getattr(target, "low_priority", False)))
    price = None if size is None else size.cost(low)
    nodes = described.get("nodes")
    state = str(described.get("state") or "ready")
    on = nodes if nodes is not None else int(state in ("ready", "starting", "stopping") and created)
    quota = "" if size is None or isinstance(target, InstanceTarget) and state == "ready" else quotas.phrase(size, low)
    return ProvisionState(
        state=state,
        nodes=nodes,
        max_nodes=described.get("max_nodes"),
        size=str((size.name if size else "") or described.get("size") or getattr(target, "size", "")),
        cpus=None if size is None else size.cpus,
        memory=None if size is None else size.memory,
        gpus=None if size is None else size.gpus,
        gpu_name="" if size is None else gpu_text(size),
        price_node=price,
        price=None if price is None else round(price * on, 4),
        currency="" if size is None else size.currency,
        quota=quota,
        stops=stops_text(target, row),
        detail=_detail(target, described, state, nodes),
    )


def stops_text(target: AzureTarget, row: Mapping[str, Any] | None) -> str:
    """Return when an instance starts and stops automatically; empty for other kinds."""
    if not isinstance(target, InstanceTarget) or not row or "settings" not in row:
        return ""
    schedules = (row.get("schedules") or {}).get("computeStartStop") or ()
    fields = sum(name.startswith("schedule_") for name in row["settings"])
    return compute_state.power_text(row["settings"], others=max(0, len(schedules) - fields))


def gpu_text(size: Size) -> str:
    """``NVIDIA T4 16 GB``; empty without GPUs."""
    if not size.gpu_name:
        return ""
    if size.gpu_name == UNKNOWN:
        return "GPU of unknown model"
    part = f" ({size.part} of one)" if size.part else ""
    amount = "" if size.gpu_memory is None else f" {size.gpu_memory / (1 << 30):g} GB"
    # Some model names contain the memory, which is not repeated then.
    return f"{size.gpu_name}{'' if 'GB' in size.gpu_name else amount}{part}"


def _detail(target: AzureTarget, described: Mapping[str, Any], state: str, nodes: int | None) -> str:
    if described.get("detail"):
        return str(described["detail"])
    if isinstance(target, ServerlessTarget):
        return "Machines are allocated for each run and released after it."
    if isinstance(target, _IDLE):
        return "Listed only: Azure ML v2 runs no jobs there."
    if nodes == 0 and state == "ready":
        return "No machine is on; a run starts one."
    return ""


def confirmation(
    target: AzureTarget,
    verb: str,
    values: Mapping[str, Any],
    *,
    running: int,
    queued: int = 0,
    size: Size | None,
    quotas: Quotas,
) -> str:
    """Return the confirmation text of an action, with its costs or losses; see ``Provisioner.confirmation``."""
    name = target.name
    if verb == "delete":
        return _delete(target, running, queued)
    if verb in ("stop", "restart"):
        doing = "Stops" if verb == "stop" else "Restarts"
        return f"{doing} {name!r}: {stopped_runs_text(running)} too." if running else ""
    if verb == "create" and target.attached:
        return ""
    low = bool(getattr(target, "low_priority", False))
    price = None if size is None else size.cost(low)
    currency = size.currency if size else ""
    if isinstance(target, AmlComputeTarget) and verb == "scale":
        return _scale(target, values, price, currency, size, quotas, low)
    costs = ""
    if isinstance(target, AmlComputeTarget) and verb == "create":
        costs = _cluster(target, price, currency) + _room(target.max_nodes, size, quotas, low)
    elif isinstance(target, InstanceTarget) and verb in ("create", "start"):
        costs = _instance(target, price, currency)
    warning = retirement_warning(str(getattr(target, "size", ""))) if verb == "create" else ""
    return f"{costs} {warning}".strip()


def _delete(target: AzureTarget, running: int, queued: int) -> str:
    name, total = target.name, running + queued
    if isinstance(target, ServerlessTarget):
        continues = f" Its run{'s continue' if total > 1 else ' continues'}." if total else ""
        return f"Removes {name!r} from the list of targets; nothing is deleted in Azure ML.{continues}"
    its = f" {stopped_runs_text(running, queued).capitalize()}." if total else ""
    if target.attached:
        return (
            f"Detaches {name!r} from the workspace; the {target.noun or target.title} itself is not changed"
            f" and is still billed.{its}"
        )
    machines = "its machines" if isinstance(target, AmlComputeTarget) else "its machine and everything on its disk"
    return f"Deletes {name!r} in Azure ML with {machines}.{its} Logs and models of its runs are kept in the workspace."


def _cluster(target: AmlComputeTarget, price: float | None, currency: str) -> str:
    max_nodes, min_nodes, idle = target.max_nodes, target.min_nodes, target.idle_minutes
    idle_text = "all of them stop" if not min_nodes else f"{min_nodes} of them stay on all the time, the others stop"
    if price is None:
        nodes = f"Up to {max_nodes} nodes are" if max_nodes != 1 else "1 node is"
        unknown = "Costs an unknown price: Azure publishes none for this size."
        return f"{unknown} {nodes} billed while on; {idle_text} after {idle:g} min idle."
    if min_nodes:
        idle_text = f"{min_nodes} of them stay on ({money(min_nodes * price, currency)} per hour), the others stop"
    sum_ = (
        f"{max_nodes} x {price:.4g} = {money(max_nodes * price, currency)}" if max_nodes > 1 else money(price, currency)
    )
    preemption = " Low-priority machines may be preempted at any time." if target.low_priority else ""
    return f"Costs up to {sum_} per hour while machines are on; {idle_text} after {idle:g} min idle.{preemption}"


def _room(nodes: int, size: Size | None, quotas: Quotas, low: bool) -> str:
    """Return a sentence about the quota if it has no room for `nodes` machines now."""
    if size is None:
        return ""
    if quotas.rows and not low and not quotas.is_known(size, low):
        return f" Azure reports no quota for {size.name}, and may reject the machines."
    available = quotas.max_machines(size, low)
    if available is None or available >= nodes:
        return ""
    return f" The quota allows {available} of the {nodes} machines now."


def _scale(
    target: AmlComputeTarget,
    values: Mapping[str, Any],
    price: float | None,
    currency: str,
    size: Size | None,
    quotas: Quotas,
    low: bool,
) -> str:
    min_nodes, max_nodes = int(values.get("min_nodes") or 0), int(values.get("max_nodes") or 0)
    costs = []
    if min_nodes > target.min_nodes:
        period = "per hour until you lower the minimum, also when nothing runs"
        costs.append(f"Keeping {counted(min_nodes, 'node')} on costs {_sum(min_nodes, price, currency, period)}.")
    if max_nodes > target.max_nodes:
        period = "per hour while all of them are on"
        costs.append(f"{counted(max_nodes, 'node')} cost up to {_sum(max_nodes, price, currency, period)}.")
        costs.append(_room(max_nodes, size, quotas, low).strip())
    return " ".join(filter(None, costs))


def _sum(nodes: int, price: float | None, currency: str, when: str) -> str:
    if price is None:
        return f"an unknown price (Azure publishes none for this size) {when}"
    sum_ = f"{nodes} x {price:.4g} = {money(nodes * price, currency)}" if nodes > 1 else money(price, currency)
    return f"{sum_} {when}"


def _instance(target: InstanceTarget, price: float | None, currency: str) -> str:
    price_text = "an unknown price" if price is None else f"{money(price, currency)} per hour"
    ends = []
    if target.idle_shutdown:
        ends.append(f"has been idle for {target.idle_shutdown} min")
    if target.schedule_stop:
        ends.append(f"stops by its schedule ({target.schedule_stop} UTC)")
    automatic_stop = f" or {' or '.join(ends)}" if ends else "; it does not stop automatically"
    note = " Azure publishes no price for this size." if price is None else ""
    return f"Costs {price_text} from now until it is stopped{automatic_stop}.{note}"


def check_size(
    who: str,
    wanted: str,
    size: Size | None,
    sizes: Sequence[Size],
    kind: str,
    low_priority: bool,
    region: str,
) -> None:
    """Raise an error for a size that the region or `kind` does not offer, with similar ones.

    Parameters
    ----------
    who
        Name of the target for the beginning of the message; empty if the context names it.

    Raises
    ------
    CommandError, CapacityError
    """
    if not sizes:
        return
    offered_sizes = [other for other in sizes if offered(other, kind)]
    prefix = f"{who!r}: " if who else ""
    if size is None:
        names = {key(other.name): other.name for other in offered_sizes}
        near = [names[k] for k in difflib.get_close_matches(key(wanted), names, 3, 0.6)]
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise CommandError(
            f"{prefix}{'the' if who else 'The'} region {region} has no size {wanted[:60]!r}.",
            hint=f"{hint}%aml_compute sizes lists them.",
        )
    if not offered(size, kind):
        usage = "compute instances" if kind == "ComputeInstance" else "clusters and serverless runs"
        supported = ", ".join(size.types)
        raise CapacityError(
            f"{prefix}{size.name} is not available for {usage} (Azure ML offers it for {supported} only).",
            hint=f"See the available sizes: %aml_compute sizes{' --gpu' if size.gpus else ''}",
        )
    if low_priority and not size.low_priority:
        raise CapacityError(
            f"{prefix}{size.name} is not available with low priority.",
            hint="Leave out low priority, or choose another size: %aml_compute sizes",
        )
