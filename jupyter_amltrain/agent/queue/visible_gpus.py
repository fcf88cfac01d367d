"""Which GPUs a job may be given: what ``CUDA_VISIBLE_DEVICES`` of its submitter allows, and how the job is told.

The variable is read as CUDA reads it. Indices count in PCI order, as ``nvidia-smi`` does and as CUDA does
with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``: CUDA's default order (fastest first) is known to CUDA alone, which
the agent never loads, and is the same where all GPUs are alike.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..protocol import MARK, AgentError
from ..telemetry.gpu_names import gpu_name

VARIABLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"
#: In the environment of a run: the variable as its submitter had it, for jobs that the run submits.
OUTER = "AMLTRAIN_CUDA_VISIBLE_DEVICES"
#: What a job may be told: ids of its GPUs (the default), or indices.
UUID, INDEX = "uuid", "index"
GPU_IDS = ("", UUID, INDEX)

_NUMBER = re.compile(r"\s*([+-]?\d+)")
#: How drivers before R470 name an instance: its GPU's UUID and the ids of both instances.
_OLD_INSTANCE = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")

Gpu = Mapping[str, Any]


def of_submitter(environ: Mapping[str, str]) -> Optional[str]:
    """Return the variable of a submitter; ``None`` where nothing is restricted.

    A run that submits has the variable from us: what it was given says nothing of what its jobs may have.
    """
    return environ.get(OUTER if MARK in environ else VARIABLE)


def hides_all(value: Optional[str]) -> bool:
    """Return whether a value of the variable allows no GPU on any machine (empty, ``-1``, ``NoDevFiles``)."""
    if value is None:
        return False
    first = value.split(",")[0].strip()
    number = _NUMBER.match(first)
    return int(number.group(1)) < 0 if number else not first.startswith(("GPU-", "MIG-"))


def allowed(value: Optional[str], gpus: Sequence[Gpu]) -> List[Gpu]:
    """Return the GPUs that a value of the variable names, in its order.

    An entry that names no GPU hides those behind it; one that is there twice hides all, as with CUDA.
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
    found: List[Gpu] = []
    seen: List[str] = []
    for entry in value.split(","):
        named = _named(entry.strip(), gpus)
        if not named:
            break
        ids = [gpu["uuid"] for gpu in named]
        if any(uuid in seen for uuid in ids):
            return []
        seen += ids
        found += named
    return found


def _named(entry: str, gpus: Sequence[Gpu]) -> List[Gpu]:
    """Return the GPU that one entry names, the instances where it is split; nothing for an invalid entry."""
    if entry.startswith("MIG-"):
        return _instance(entry, gpus)
    if entry.startswith("GPU-"):
        whole = [gpu.get("parent_uuid", gpu["uuid"]) for gpu in gpus]
        found = sorted({uuid for uuid in whole if uuid.startswith(entry)})
        return [gpu for gpu, uuid in zip(gpus, whole) if uuid == found[0]] if len(found) == 1 else []
    number = _NUMBER.match(entry)
    return [gpu for gpu in gpus if number and gpu.get("parent", gpu["index"]) == int(number.group(1))]


def _instance(entry: str, gpus: Sequence[Gpu]) -> List[Gpu]:
    old = _OLD_INSTANCE.fullmatch(entry)
    if old:
        uuid, ids = old.group(1), (int(old.group(2)), int(old.group(3)))
        by_ids = [
            gpu
            for gpu in gpus
            if gpu.get("parent_uuid") == uuid and (gpu.get("gpu_instance"), gpu.get("compute_instance")) == ids
        ]
        if by_ids:
            return by_ids
    found = [gpu for gpu in gpus if gpu.get("mig") and gpu["uuid"].startswith(entry)]
    return found if len(found) == 1 else []


def candidates(ticket: Mapping[str, Any], gpus: Sequence[Gpu]) -> List[Gpu]:
    """Return the GPUs that a waiting job may be given, in the order in which they are given.

    CUDA takes one MIG instance in a process, and instances have no index: a job for several GPUs, or for
    indices, gets whole ones.
    """
    found = allowed(ticket.get("visible_gpus"), gpus)
    if (ticket.get("gpus") or 0) > 1 or ticket.get("gpu_ids") == INDEX:
        found = [gpu for gpu in found if not gpu.get("mig")]
    return found


def settle(job: Dict[str, Any], environ: Mapping[str, str], gpus: Sequence[Gpu]) -> List[Gpu]:
    """Note in a job what its submitter's environment allows; the GPUs that it may ask for.

    Parameters
    ----------
    job
        As `submission.checked` gives it: gets ``visible_gpus``.
    gpus
        Of the machine.

    Raises
    ------
    AgentError
        ``CapacityError``: the machine has enough, and this job may not have them.
    """
    value = job["visible_gpus"] = of_submitter(environ)
    asked = job["gpus"]
    seen = allowed(value, gpus)
    usable = candidates(job, gpus)
    if asked == 0 or not gpus:
        return usable
    if asked and len(seen) < asked <= len(gpus):
        names = ", ".join(gpu_name(gpu) for gpu in seen) or "no GPU"
        raise AgentError(
            "CapacityError",
            "The job asks for %d GPU%s and %s=%s of its submitter allows %s. Change or remove the variable where you"
            " submit (in a notebook: %%env), or use --gpus %d."
            % (asked, "s" * (asked > 1), VARIABLE, _shown(value), names, len(seen)),
        )
    if asked and len(usable) < asked <= len(seen):
        raise AgentError("CapacityError", _why_no_instance(job, asked, len(usable)))
    if asked is None and seen and not usable:  # the default of one GPU
        raise AgentError("CapacityError", _why_no_instance(job, 1, 0))
    if asked is None and not seen:
        text = "%s=%s of the submitter allows no GPU of this machine: the run has none." % (VARIABLE, _shown(value))
        job["notes"] = [*job.get("notes", ()), text]
    return usable


def _why_no_instance(job: Mapping[str, Any], asked: int, whole: int) -> str:
    if job.get("gpu_ids") == INDEX:
        return (
            "--gpu-ids index is not possible here: MIG instances have no index, and %s. Use --gpu-ids uuid."
            % _whole_text(whole)
        )
    return (
        "The job asks for %d GPUs and CUDA takes only one MIG instance in a process; %s. Use --gpus 1, and submit"
        " once for each instance." % (asked, _whole_text(whole))
    )


def _whole_text(whole: int) -> str:
    if not whole:
        return "there is no whole GPU"
    return "there is only one whole GPU" if whole == 1 else "there are only %d whole GPUs" % whole


def check_variables(job: Mapping[str, Any]) -> None:
    """Refuse variables of a job that its GPUs would overwrite.

    Raises
    ------
    AgentError
        ``SpecError``.
    """
    if not job["gpus"]:
        return
    for where, names in (("--env-var", job["env"]), ("--secret", job["secrets"])):
        if VARIABLE in names:
            raise AgentError(
                "SpecError",
                "%s %s cannot be kept: the queue chooses the GPU%s of this job. Add --gpus 0 to choose by hand, or"
                " set the variable where you submit to say which GPUs may be chosen."
                % (where, VARIABLE, "s" * (job["gpus"] > 1)),
            )
    if job.get("gpu_ids") == INDEX and job["env"].get(ORDER, PCI_ORDER) != PCI_ORDER:
        raise AgentError(
            "SpecError",
            "--env-var %s=%s cannot be kept: with --gpu-ids index it is %s, or the indices would be those of other"
            " GPUs. Leave it out." % (ORDER, job["env"][ORDER], PCI_ORDER),
        )


def variables(devices: Sequence[str], gpu_ids: str, gpus: Sequence[Gpu]) -> Dict[str, str]:
    """Return the environment by which a job finds the GPUs that it was given.

    Raises
    ------
    AgentError
        ``CapacityError``: a GPU that has to be told by its index is not there any more.
    """
    if not devices:
        return {}
    if gpu_ids != INDEX:
        return {VARIABLE: ",".join(devices)}
    indices = {gpu["uuid"]: gpu["index"] for gpu in gpus if not gpu.get("mig")}
    gone = [uuid for uuid in devices if uuid not in indices]
    if gone:
        raise AgentError("CapacityError", "%s has no index. Use --gpu-ids uuid." % gone[0])
    return {VARIABLE: ",".join(str(indices[uuid]) for uuid in devices), ORDER: PCI_ORDER}


def waiting_text(ticket: Mapping[str, Any], gpus: Sequence[Gpu]) -> str:
    """Return what restricts a waiting job, as a part of a sentence; empty where nothing does."""
    if ticket.get("visible_gpus") is None:
        return ""
    names = ", ".join(gpu_name(gpu) for gpu in candidates(ticket, gpus)) or "no GPU that is here now"
    return "%s=%s allows %s" % (VARIABLE, _shown(ticket["visible_gpus"]), names)


def _shown(value: Optional[str]) -> str:
    text = " ".join((value or "").split())
    return (text if len(text) <= 80 else text[:79] + "…") or "''"
