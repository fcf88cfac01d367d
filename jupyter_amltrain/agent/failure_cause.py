"""Why a run failed, where its GPUs or their memory are the cause: one sentence, and what to do.

Only what happened on the run's own GPUs between the start of its process and its end counts.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .cuda_oom import TAIL_BYTES, CudaOom, in_size, last_oom
from .gpu_incidents import GPU_INCIDENTS, LOST, XID, read_incidents
from .gpu_names import gpu_name
from .outcome import Outcome
from .protocol import FAILED, LOG, TELEMETRY, open_regular
from .xids import APPLICATION, CLEANUP, RECORD, in_words, xid

#: Kinds of a cause.
OOM, MEMORY = "cuda-oom", "gpu-memory"
#: An error of the program ends it at once: one that is older (seconds) was another's, or survived.
APPLICATION_ERROR_S = 60.0
#: What is found while the sampler ends (seconds) happened before.
CLOSING_S = 10.0
#: Part of a GPU's memory that others must hold to be named as those who filled it.
OTHERS_SHARE = 0.05
#: Part of a GPU's memory that must be missing to say that processes hold it whom nobody lists.
HIDDEN_SHARE = 0.1
#: Memory that CUDA itself takes in a process that PyTorch does not count, at most.
CONTEXT_BYTES = 3 << 29
#: Bytes at the beginning of a telemetry file in which its header ends.
_HEADER_BYTES = 1 << 20
_LOST_ACTION = "Look at the kernel's messages (sudo dmesg | grep -i xid); a reboot may bring it back"
_UNREADABLE_ACTION = "Reset the GPU (sudo nvidia-smi -r) or reboot before the next run"


class Life(NamedTuple):
    """When a run's process began and ended (monotonic), and how it was stopped by us."""

    began: float
    ended: float
    stopped: Optional[str] = None


def find_cause(
    folder: str, outcome: Outcome, life: Life, devices: Sequence[str], number: int = 0
) -> Optional[Dict[str, str]]:
    """Return ``{"kind", "text", "action"}`` of a failed run; ``None`` where its GPUs say nothing.

    Parameters
    ----------
    folder
        The run folder.
    devices
        UUIDs of the GPUs that the run was given, in the order in which it sees them.
    number
        Of the machine within the run.
    """
    if outcome.state != FAILED or outcome.reason in ("launch", "gpu-unused"):
        return None
    found = read_incidents(os.path.join(folder, GPU_INCIDENTS % number))
    try:
        errors = [one for one in found.get("errors") or () if _counts(one, life)]
        gpus = _gpus(folder, number)
        hardware = _of_errors([one for one in errors if _is_hardware(one)], errors, gpus, life)
        if hardware is not None:
            return hardware
        if outcome.exit_code and life.stopped is None:
            oom = last_oom(_tail(os.path.join(folder, LOG)))
            if oom is not None:
                return _of_oom(oom, found.get("processes") or (), gpus, devices)
        if life.stopped is not None:
            return None
        return _of_errors([one for one in errors if one["kind"] == XID], errors, gpus, life)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):  # a job can write into its folder
        return None


def cause_in_log(log: str) -> Optional[Dict[str, str]]:
    """Return the cause that the end of a log tells by itself, like :func:`find_cause`; ``None`` for none."""
    oom = last_oom(log[-TAIL_BYTES:])
    return None if oom is None else _of_oom(oom, (), (), ())


def _counts(error: Mapping[str, Any], life: Life) -> bool:
    """Whether an error is of this run's time."""
    return life.began <= _moment(error, life) <= life.ended + CLOSING_S


def _moment(error: Mapping[str, Any], life: Life) -> float:
    first, last = float(error["first"]), float(error["last"])
    return first if first >= life.began else last


def _is_hardware(error: Mapping[str, Any]) -> bool:
    if error["kind"] == XID:
        return xid(error["number"]).fault not in (APPLICATION, CLEANUP, RECORD)
    return error["kind"] in (LOST, "ecc_uncorrectable", "remap_failures")


def _of_errors(
    candidates: List[Dict[str, Any]], errors: List[Dict[str, Any]], gpus: Sequence[Mapping[str, Any]], life: Life
) -> Optional[Dict[str, str]]:
    """The sentence on the first of `candidates` that can have ended the run."""
    numbers = [one for one in candidates if one["kind"] == XID and xid(one["number"]).fault not in (CLEANUP, RECORD)]
    numbers = [
        one
        for one in numbers
        if xid(one["number"]).fault != APPLICATION or life.ended - float(one["last"]) <= APPLICATION_ERROR_S
    ]
    numbers.sort(key=lambda one: _moment(one, life))
    if numbers:
        first = numbers[0]
        known = xid(first["number"])
        others = [str(one["number"]) for one in errors if one["kind"] == XID and one["number"] != first["number"]]
        text = "%s reported %s%s %s" % (
            _name(first, gpus), in_words(first["number"]),
            " and Xid %s" % ", ".join(others) if others else "", _before(_moment(first, life), life),
        )  # fmt: skip
        if known.fault == APPLICATION and first.get("shared"):
            text += "; it may be of another process on that GPU"
        return {"kind": XID, "text": text, "action": known.action}
    for kind, words, action in (
        (LOST, "was lost", _LOST_ACTION),
        ("ecc_uncorrectable", "had uncorrectable memory errors", _UNREADABLE_ACTION),
        ("remap_failures", "has bad memory that could not be replaced", _UNREADABLE_ACTION),
    ):
        for one in candidates:
            if one["kind"] == kind:
                text = "%s %s" % (_name(one, gpus), words)
                # Counters are asked seldom: of their errors only the run is known.
                when = _before(_moment(one, life), life) if kind == LOST else "during the run"
                return {"kind": LOST if kind == LOST else MEMORY, "text": "%s %s" % (text, when), "action": action}
    return None


def _before(moment: float, life: Life) -> str:
    seconds = life.ended - moment
    if seconds < 1:
        return "just before"
    if seconds < 99.5:
        return "%.0f s before" % seconds
    return "%.0f min before" % (seconds / 60) if seconds < 5970 else "%.1f h before" % (seconds / 3600)


def _name(error: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> str:
    gpu = next((gpu for gpu in gpus if gpu.get("index") == error["gpu"]), {"index": error["gpu"]})
    return gpu_name(gpu)


# -- out of memory ---------------------------------------------------------------------------


def _of_oom(
    oom: CudaOom, processes: Sequence[Mapping[str, Any]], gpus: Sequence[Mapping[str, Any]], devices: Sequence[str]
) -> Dict[str, str]:
    """What was tried, what was free, and who held the rest."""
    gpu = _gpu_of(oom, gpus, devices)
    listed = [one for one in processes if gpu is None or one["gpu"] == gpu["index"]]
    text = "CUDA out of memory"
    text += " on %s" % gpu_name(gpu) if gpu is not None else ""
    facts = []
    if oom.tried is not None:
        facts.append("%s more was asked for" % in_size(oom.tried))
    if oom.free is not None:
        of = " of %s" % in_size(oom.total) if oom.total else ""
        facts.append("%s%s was free" % (in_size(oom.free), of))
    if oom.own is not None:
        facts.append("%s held %s" % ("this process" if oom.own_is_whole else "PyTorch", in_size(oom.own)))
    others, strangers = _others(oom, listed)
    facts += others
    text += ": " + ", ".join(facts) if facts else ""
    return {"kind": OOM, "text": text, "action": _oom_action(oom, strangers)}


def _others(oom: CudaOom, listed: Sequence[Mapping[str, Any]]) -> Tuple[List[str], int]:
    """Words for whoever held memory beside the process, and the bytes that were of other people's processes."""
    words: List[str] = []
    strangers, named = 0, 0
    known = {int(one["pid"]): one for one in listed}
    sizes = {pid: int(one["memory"]) << 20 for pid, one in known.items() if one["owner"] != "mine" and one["memory"]}
    # The message is of the moment; the driver's list tells who they are, and those that it does not name.
    sizes = {**sizes, **oom.others}
    for pid, size in sorted(sizes.items(), key=lambda row: -row[1]):
        one = known.get(pid)
        named += size
        if one is not None and one["owner"] != "mine":
            strangers += size
        if len(words) < 3:
            words.append("%s held %s" % (_who(pid, one), in_size(size)))
    if len(sizes) > 3:
        words.append("%d more process%s" % (len(sizes) - 3, "es" if len(sizes) > 4 else ""))
    if oom.total and oom.free is not None and oom.own is not None:
        rest = oom.total - oom.free - oom.own - named
        if rest > max(HIDDEN_SHARE * oom.total, 0 if oom.own_is_whole else CONTEXT_BYTES):
            outside = "" if oom.own_is_whole else "outside of PyTorch, or "
            words.append("%s was held %sby processes that are not visible from here" % (in_size(rest), outside))
            strangers += rest
    return words, strangers


def _who(pid: int, one: Optional[Mapping[str, Any]]) -> str:
    if one is None or one["owner"] == "mine":
        return "pid %d%s" % (pid, "" if one is None else " (of this run)")
    who = ": ".join(str(one[key]) for key in ("user", "program") if one.get(key))
    return "pid %d%s" % (pid, " (%s)" % who if who else "")


def _oom_action(oom: CudaOom, strangers: int) -> str:
    if strangers and strangers >= (OTHERS_SHARE * oom.total if oom.total else 0):
        return "Take a GPU that nobody else uses, or wait until they have ended"
    if oom.tried and oom.unallocated and oom.unallocated >= oom.tried:
        return (
            "PyTorch had enough memory in pieces that are too small: "
            "try --env-var PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    return "Make the batch smaller, accumulate gradients, or use bfloat16 or gradient checkpointing"


def _gpu_of(oom: CudaOom, gpus: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> Optional[Mapping[str, Any]]:
    """The GPU of the telemetry header behind the number that the process has for it."""
    at = 0 if oom.gpu is None and len(devices) == 1 else oom.gpu
    if at is None or not devices and len(gpus) <= at:
        return None
    if not devices:
        return gpus[at]
    if at >= len(devices):
        return None
    return next((gpu for gpu in gpus if gpu.get("uuid") == devices[at]), None)


# -- files -------------------------------------------------------------------------------------


def _gpus(folder: str, number: int) -> List[Dict[str, Any]]:
    """The GPUs of the telemetry header."""
    try:
        handle = open_regular(os.path.join(folder, TELEMETRY % number))
        with os.fdopen(handle, "rb") as file:
            header = json.loads(file.readline(_HEADER_BYTES).decode("utf-8", "replace"))
        return [gpu for gpu in header.get("gpus") or () if isinstance(gpu.get("index"), int)]
    except (OSError, ValueError, AttributeError, TypeError):
        return []


def _tail(path: str) -> str:
    """The end of a log."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
