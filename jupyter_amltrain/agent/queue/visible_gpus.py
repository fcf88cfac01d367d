"""GPUs available to a job by ``CUDA_VISIBLE_DEVICES`` of its submitter, and the variables that the job gets.

The variable is read as CUDA reads it. Indices count in PCI order, as ``nvidia-smi`` does and as CUDA does
with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``: CUDA's default order (fastest first) is known only to CUDA, which
the agent never loads; it is the same if all GPUs are of one model.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..protocol import GPU_IDS, MARK, AgentError
from ..telemetry.gpu_names import gpu_name

VARIABLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"
#: In the environment of a run: value of the variable for its submitter, for jobs that the run submits.
SUBMITTER_VARIABLE = "AMLTRAIN_CUDA_VISIBLE_DEVICES"
_, UUID, INDEX = GPU_IDS

_NUMBER = re.compile(r"\s*([+-]?\d+)")
#: Name of an instance in drivers before R470: UUID of its GPU and ids of both instances.
_OLD_INSTANCE = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")

Gpu = Mapping[str, Any]


def submitter_value(environ: Mapping[str, str]) -> Optional[str]:
    """Return the variable of a submitter; ``None`` if nothing is restricted.

    In a run that submits jobs the agent has set the variable: its value does not restrict the jobs of the run.
    """
    return environ.get(SUBMITTER_VARIABLE if MARK in environ else VARIABLE)


def hides_all(value: Optional[str]) -> bool:
    """Return whether a value of the variable allows no GPU on any machine (empty, ``-1``, ``NoDevFiles``)."""
    if value is None:
        return False
    first = value.split(",")[0].strip()
    number = _NUMBER.match(first)
    return int(number.group(1)) < 0 if number else not first.startswith(("GPU-", "MIG-"))


def allowed(value: Optional[str], gpus: Sequence[Gpu]) -> List[Gpu]:
    """Return the GPUs that a value of the variable names, in its order.

    As in CUDA, an invalid entry hides the entries after it, and a duplicate entry hides all GPUs.
    A GPU that is split by MIG stands for its instances.

    Parameters
    ----------
    value
        ``None`` for all.
    gpus
        As `nvml.read_gpus` gives them.
    """
    if value is None:
        return list(gpus)
    result: List[Gpu] = []
    seen_ids: List[str] = []
    for entry in value.split(","):
        matches = _gpus_of_entry(entry.strip(), gpus)
        if not matches:
            break
        ids = [gpu["uuid"] for gpu in matches]
        if any(uuid in seen_ids for uuid in ids):
            return []
        seen_ids += ids
        result += matches
    return result


def _gpus_of_entry(entry: str, gpus: Sequence[Gpu]) -> List[Gpu]:
    """Return the GPU of one entry, or its MIG instances; an empty list for an invalid entry."""
    if entry.startswith("MIG-"):
        return _instance(entry, gpus)
    if entry.startswith("GPU-"):
        whole = [gpu.get("parent_uuid", gpu["uuid"]) for gpu in gpus]
        matches = sorted({uuid for uuid in whole if uuid.startswith(entry)})
        return [gpu for gpu, uuid in zip(gpus, whole) if uuid == matches[0]] if len(matches) == 1 else []
    number = _NUMBER.match(entry)
    return [gpu for gpu in gpus if number and gpu.get("parent", gpu["index"]) == int(number.group(1))]


def _instance(entry: str, gpus: Sequence[Gpu]) -> List[Gpu]:
    old_format = _OLD_INSTANCE.fullmatch(entry)
    if old_format:
        uuid, ids = old_format.group(1), (int(old_format.group(2)), int(old_format.group(3)))
        by_ids = [
            gpu
            for gpu in gpus
            if gpu.get("parent_uuid") == uuid and (gpu.get("gpu_instance"), gpu.get("compute_instance")) == ids
        ]
        if by_ids:
            return by_ids
    matches = [gpu for gpu in gpus if gpu.get("mig") and gpu["uuid"].startswith(entry)]
    return matches if len(matches) == 1 else []


def candidates(ticket: Mapping[str, Any], gpus: Sequence[Gpu]) -> List[Gpu]:
    """Return the GPUs available to a waiting job, in the order of assignment.

    CUDA supports one MIG instance in a process, and instances have no index: a job that requests several
    GPUs or indices gets whole GPUs.
    """
    result = allowed(ticket.get("visible_gpus"), gpus)
    if (ticket.get("gpus") or 0) > 1 or ticket.get("gpu_ids") == INDEX:
        result = [gpu for gpu in result if not gpu.get("mig")]
    return result


def apply_visible_gpus(job: Dict[str, Any], environ: Mapping[str, str], gpus: Sequence[Gpu]) -> List[Gpu]:
    """Store in a job what the environment of its submitter allows; return the GPUs that it can request.

    Parameters
    ----------
    job
        Result of `submission.checked`; ``visible_gpus`` is added.
    gpus
        GPUs of the machine.

    Raises
    ------
    AgentError
        ``CapacityError``: the machine has enough GPUs, but this job is not allowed to use them.
    """
    value = job["visible_gpus"] = submitter_value(environ)
    requested = job["gpus"]
    visible = allowed(value, gpus)
    usable = candidates(job, gpus)
    if requested == 0 or not gpus:
        return usable
    if requested and len(visible) < requested <= len(gpus):
        names = ", ".join(gpu_name(gpu) for gpu in visible) or "no GPU"
        raise AgentError(
            "CapacityError",
            "The job requests %d GPU%s, but %s=%s of its submitter allows %s. Change or remove the variable"
            " where you submit (in a notebook: %%env), or use --gpus %d."
            % (requested, "s" * (requested > 1), VARIABLE, _shorten(value), names, len(visible)),
        )
    if requested and len(usable) < requested <= len(visible):
        raise AgentError("CapacityError", _no_instance_text(job, requested, len(usable)))
    if requested is None and visible and not usable:  # the default of one GPU
        raise AgentError("CapacityError", _no_instance_text(job, 1, 0))
    if requested is None and not visible:
        note = "This run has no GPU: %s=%s of the submitter allows no GPU of this machine." % (
            VARIABLE,
            _shorten(value),
        )
        job["notes"] = [*job.get("notes", ()), note]
    return usable


def _no_instance_text(job: Mapping[str, Any], requested: int, whole: int) -> str:
    if job.get("gpu_ids") == INDEX:
        return (
            "--gpu-ids index is not supported here: MIG instances have no index, and %s. Use --gpu-ids uuid."
            % _whole_gpus_text(whole)
        )
    return (
        "The job requests %d GPUs, but CUDA supports only one MIG instance in a process, and %s."
        " Use --gpus 1 and submit once for each instance." % (requested, _whole_gpus_text(whole))
    )


def _whole_gpus_text(whole: int) -> str:
    if not whole:
        return "there is no whole GPU"
    return "there is only one whole GPU" if whole == 1 else "there are only %d whole GPUs" % whole


def check_variables(job: Mapping[str, Any]) -> None:
    """Raise an error for variables of a job that the GPU assignment would overwrite.

    Raises
    ------
    AgentError
        ``SpecError``.
    """
    if not job["gpus"]:
        return
    for flag, names in (("--env-var", job["env"]), ("--secret", job["secrets"])):
        if VARIABLE in names:
            raise AgentError(
                "SpecError",
                "%s %s is not supported: the queue chooses the GPU%s of this job. Add --gpus 0 to choose manually, or"
                " set the variable where you submit to limit the choice." % (flag, VARIABLE, "s" * (job["gpus"] > 1)),
            )
    if job.get("gpu_ids") == INDEX and job["env"].get(ORDER, PCI_ORDER) != PCI_ORDER:
        raise AgentError(
            "SpecError",
            "--env-var %s=%s is not supported: --gpu-ids index requires %s, otherwise the indices would mean other"
            " GPUs. Remove the variable." % (ORDER, job["env"][ORDER], PCI_ORDER),
        )


def variables(devices: Sequence[str], gpu_ids: str, gpus: Sequence[Gpu]) -> Dict[str, str]:
    """Return the environment variables by which a job finds its GPUs.

    Raises
    ------
    AgentError
        ``CapacityError``: a GPU that must be named by its index has been removed.
    """
    if not devices:
        return {}
    if gpu_ids != INDEX:
        return {VARIABLE: ",".join(devices)}
    indices = {gpu["uuid"]: gpu["index"] for gpu in gpus if not gpu.get("mig")}
    missing = [uuid for uuid in devices if uuid not in indices]
    if missing:
        raise AgentError("CapacityError", "%s has no index. Use --gpu-ids uuid." % missing[0])
    return {VARIABLE: ",".join(str(indices[uuid]) for uuid in devices), ORDER: PCI_ORDER}


def waiting_text(ticket: Mapping[str, Any], gpus: Sequence[Gpu]) -> str:
    """Return what restricts a waiting job, as part of a sentence; empty if nothing does."""
    if ticket.get("visible_gpus") is None:
        return ""
    names = ", ".join(gpu_name(gpu) for gpu in candidates(ticket, gpus)) or "no GPU present now"
    return "%s=%s allows %s" % (VARIABLE, _shorten(ticket["visible_gpus"]), names)


def _shorten(value: Optional[str]) -> str:
    text = " ".join((value or "").split())
    return (text if len(text) <= 80 else text[:79] + "…") or "''"
