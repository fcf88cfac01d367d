"""What the row of a compute says, what an action on it costs, and which size to use instead. No I/O."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.backends.azureml.catalog import UNKNOWN, Quotas, Size, key, offered, retirement_warning
from jupyter_amltrain.backends.provisioner import ProvisionState, stopped_runs_text
from jupyter_amltrain.errors import CapacityError, CommandError
from jupyter_amltrain.schema.azure_target import (
    AmlComputeTarget,
    AzureTarget,
    DatabricksTarget,
    DataLakeTarget,
    HDInsightTarget,
    InstanceTarget,
    MachineTarget,
    ServerlessTarget,
)

#: How far a compute is before Azure has taken what it is asked for.
ASKING = "Asking Azure for it"
#: Kinds that are listed, and run nothing.
_IDLE = (MachineTarget, HDInsightTarget, DatabricksTarget, DataLakeTarget)


def state_of(
    target: AzureTarget, row: Mapping[str, Any] | None, size: Size | None, quotas: Quotas, *, created: bool = True
) -> ProvisionState:
    """The state of a compute for its row in the list.

    Parameters
    ----------
    row
        What the service says of it; ``None`` for what is not created there.
    size
        Of its machines, when known.
    """
    found = row or {}
    low = bool(found.get("low_priority", getattr(target, "low_priority", False)))
    price = None if size is None else size.cost(low)
    nodes = found.get("nodes")
    state = str(found.get("state") or "ready")
    on = nodes if nodes is not None else int(state in ("ready", "starting", "stopping") and created)
    quota = "" if size is None or isinstance(target, InstanceTarget) and state == "ready" else quotas.phrase(size, low)
    return ProvisionState(
        state=state,
        nodes=nodes,
        max_nodes=found.get("max_nodes"),
        size=str((size.name if size else "") or found.get("size") or getattr(target, "size", "")),
        cpus=None if size is None else size.cpus,
        memory=None if size is None else size.memory,
        gpus=None if size is None else size.gpus,
        gpu_name="" if size is None else gpu_text(size),
        price_node=price,
        price=None if price is None else round(price * on, 4),
        currency="" if size is None else size.currency,
        quota=quota,
        detail=_detail(target, found, state, nodes),
    )


def gpu_text(size: Size) -> str:
    """``NVIDIA T4 16 GB``; empty without GPUs."""
    if not size.gpus:
        return ""
    if size.gpu_name == UNKNOWN:
        return "GPU of unknown model"
    part = f" ({size.part} of one)" if size.part else ""
    amount = "" if size.gpu_memory is None else f" {size.gpu_memory / (1 << 30):g} GB"
    # Some models are told apart by their memory, which then stands there once.
    return f"{size.gpu_name}{'' if 'GB' in size.gpu_name else amount}{part}"


def _detail(target: AzureTarget, found: Mapping[str, Any], state: str, nodes: int | None) -> str:
    if found.get("detail"):
        return str(found["detail"])
    if isinstance(target, ServerlessTarget):
        return "Machines come with each run and go after it."
    if isinstance(target, _IDLE):
        return "Listed only: Azure ML v2 runs no job there."
    if nodes == 0 and state == "ready":
        return "No machine is on; a run starts one."
    return ""


def money(amount: float, currency: str) -> str:
    """``12.24 USD``; small amounts with as many decimals as they need."""
    return f"{amount:.2f} {currency}".rstrip() if amount >= 0.1 else f"{amount:.3g} {currency}".rstrip()


def asks(
    target: AzureTarget,
    verb: str,
    values: Mapping[str, Any],
    *,
    running: int,
    queued: int = 0,
    size: Size | None,
    quotas: Quotas,
    kind: str,
) -> str:
    """What an act costs or loses; see ``Provisioned.asks``."""
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
        goes_on = f" Its run{'s go' if total > 1 else ' goes'} on." if total else ""
        return f"Removes {name!r} from the list of targets; Azure ML has nothing of it to delete.{goes_on}"
    its = f" {stopped_runs_text(running, queued).capitalize()}." if total else ""
    if target.attached:
        return (
            f"Detaches {name!r} from the workspace; the {target.noun or target.title} itself is left alone,"
            f" and costs what it costs.{its}"
        )
    machines = "its machines" if isinstance(target, AmlComputeTarget) else "its machine and what is on its disk"
    return f"Deletes {name!r} at Azure ML with {machines}.{its} Logs and models of its runs stay in the workspace."


def _cluster(target: AmlComputeTarget, price: float | None, currency: str) -> str:
    most, least, idle = target.max_nodes, target.min_nodes, target.idle_minutes
    kept = "goes to 0 machines" if not least else f"{least} of them stay on all the time, the others go"
    if price is None:
        nodes = f"Up to {most} nodes are" if most != 1 else "1 node is"
        unknown = "Costs an unknown price: Azure publishes none for this size."
        return f"{unknown} {nodes} billed while on; {kept} after {idle:g} min idle."
    if least:
        kept = f"{least} of them stay on ({money(least * price, currency)} per hour), the others go"
    sum_ = f"{most} x {price:.4g} = {money(most * price, currency)}" if most > 1 else money(price, currency)
    taken = " Low-priority machines may be taken away at any time." if target.low_priority else ""
    return f"Costs up to {sum_} per hour while machines are on; {kept} after {idle:g} min idle.{taken}"


def _room(nodes: int, size: Size | None, quotas: Quotas, low: bool) -> str:
    """What the quota says now, when that is less."""
    if size is None:
        return ""
    if quotas.rows and not low and not quotas.is_known(size, low):
        return f" Azure names no quota for {size.name}: it may refuse the machines."
    most = quotas.most(size, low)
    if most is None or most >= nodes:
        return ""
    return f" The quota has room for {most} of the {nodes} machines now."


def _scale(
    target: AmlComputeTarget,
    values: Mapping[str, Any],
    price: float | None,
    currency: str,
    size: Size | None,
    quotas: Quotas,
    low: bool,
) -> str:
    least, most = int(values.get("min_nodes") or 0), int(values.get("max_nodes") or 0)
    costs = []
    if least > target.min_nodes:
        when = "per hour until you lower the minimum, also when nothing runs"
        costs.append(f"Keeping {least} node{'' if least == 1 else 's'} on costs {_sum(least, price, currency, when)}.")
    if most > target.max_nodes:
        when = "per hour while all of them are on"
        costs.append(f"{most} node{'' if most == 1 else 's'} cost up to {_sum(most, price, currency, when)}.")
        costs.append(_room(most, size, quotas, low).strip())
    return " ".join(filter(None, costs))


def _sum(nodes: int, price: float | None, currency: str, when: str) -> str:
    if price is None:
        return f"an unknown price (Azure publishes none for this size) {when}"
    sum_ = f"{nodes} x {price:.4g} = {money(nodes * price, currency)}" if nodes > 1 else money(price, currency)
    return f"{sum_} {when}"


def _instance(target: InstanceTarget, price: float | None, currency: str) -> str:
    each = "an unknown price" if price is None else f"{money(price, currency)} per hour"
    ends = []
    if target.idle_shutdown:
        ends.append(f"has been idle for {target.idle_shutdown} min")
    if target.schedule_stop:
        ends.append(f"stops by its schedule ({target.schedule_stop} UTC)")
    by_itself = f" or {' or '.join(ends)}" if ends else "; it does not stop by itself"
    note = " Azure publishes no price for this size." if price is None else ""
    return f"Costs {each} from now until it is stopped{by_itself}.{note}"


def check_size(
    who: str,
    wanted: str,
    size: Size | None,
    sizes: Sequence[Size],
    kind: str,
    low_priority: bool,
    region: str,
) -> None:
    """Refuse a size that the region has not, or that is not for `kind`, naming near ones.

    Parameters
    ----------
    who
        Name of the target, to begin with; empty where that is clear.

    Raises
    ------
    CommandError, CapacityError
    """
    if not sizes:
        return
    there = [other for other in sizes if offered(other, kind)]
    begin = f"{who!r}: " if who else ""
    if size is None:
        names = {key(other.name): other.name for other in there}
        near = [names[k] for k in difflib.get_close_matches(key(wanted), names, 3, 0.6)]
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise CommandError(
            f"{begin}{'the' if who else 'The'} region {region} has no size {wanted[:60]!r}.",
            hint=f"{hint}%aml_compute sizes lists them.",
        )
    if not offered(size, kind):
        what = "compute instances" if kind == "ComputeInstance" else "clusters and serverless runs"
        only = ", ".join(size.types)
        raise CapacityError(
            f"{begin}{size.name} is not for {what} (Azure ML offers it for {only} only).",
            hint=f"%aml_compute sizes{' --gpu' if size.gpus else ''} lists those that are.",
        )
    if low_priority and not size.low_priority:
        raise CapacityError(
            f"{begin}{size.name} cannot be had with low priority.",
            hint="Leave low priority away, or choose another size: %aml_compute sizes",
        )
