"""Outcome of a job: derives state, reason and detail from wait status, OOM counters, GPU incidents and log."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any, Dict, List, Mapping, Match, NamedTuple, Optional, Sequence, Tuple

from ..processes import cgroup_paths, signal_name
from ..protocol import CANCELED, COMPLETED, FAILED, LOG_OF_RANK, PREEMPTED, TELEMETRY, open_regular
from ..telemetry.gpu_incidents import (
    APPLICATION,
    CLEANUP,
    GPU_INCIDENTS,
    LOST,
    RECORD,
    XID,
    read_incidents,
    xid,
    xid_text,
)
from ..telemetry.gpu_names import gpu_name

#: Bytes at the end of a log that are searched for the error.
TAIL_BYTES = 64 << 10

#: Max characters of a message, which some consoles break into several lines.
_MESSAGE_CHARS = 1600

_SIZE = r"([\d.]+)\s*(bytes|KiB|MiB|GiB|TiB)"

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

#: Prefix that a launcher writes before the lines of its processes.
_PREFIX = r"(?:\[?(?:default|rank)?\d*\]?:\s?|\[\w+\]:\s?|\d{4}-\d\d-\d\d[ T][\d:.,]+ (?:\[?rank\d+\]?: )?)*"

_ERROR = re.compile(
    r"^" + _PREFIX + r"(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Raised\w*))(?::|\s*$)", re.MULTILINE
)

#: Errors that a launcher raises because one of its processes has failed.
_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException")

_OOM = re.compile(
    r"(?:CUDA|HIP)\s+out\s+of\s+memory|(?:CUDA|HIP)\s+error:\s+out\s+of\s+memory|cuda\s+runtime\s+error\s+\(2\)"
    r"|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED:\s+[Oo]ut\s+of\s+memory|OOM\s+when\s+allocating|OutOfMemoryError\b"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
)

_COLOR = re.compile(r"\x1b\[[0-9;]*m")

_TRIED = re.compile(r"Tried\s+to\s+allocate\s+" + _SIZE)

_GPU = re.compile(r"\bGPU\s+(\d+)\b")

_TOTAL = re.compile(r"total\s+capac\w*ty\s+of\s+" + _SIZE + r"|;\s*" + _SIZE + r"\s+total\s+capacity")

_FREE = re.compile(r"of\s+which\s+" + _SIZE + r"\s+is\s+free|;\s*" + _SIZE + r"\s+free")

_OWN = re.compile(r"this\s+process\s+has\s+" + _SIZE + r"\s+memory\s+in\s+use")

_PROCESS = re.compile(r"Process\s+(\d+)\s+has\s+" + _SIZE + r"\s+memory\s+in\s+use")

_ALLOCATED = re.compile(_SIZE + r"\s+(?:is\s+allocated\s+by\s+PyTorch|already\s+allocated)")

_UNALLOCATED = re.compile(_SIZE + r"\s+is\s+reserved\s+by\s+PyTorch\s+but\s+unallocated")

_RESERVED = re.compile(_SIZE + r"\s+(?:reserved\s+in\s+total\s+by\s+PyTorch|cached\))")

_BYTES = re.compile(r"(?:trying\s+to\s+allocate|failed\s+to\s+allocate)\s+(\d+)\s*bytes")


class CudaOom(NamedTuple):
    """An out-of-memory error; sizes in bytes, ``None`` where the message does not contain them.

    Attributes
    ----------
    gpu
        Index of the GPU as seen by the process.
    own
        Memory of the process itself; without `own_is_whole` only the memory reserved by PyTorch.
    others
        Memory of other processes named in the message, by pid.
    allocated, unallocated
        Memory of PyTorch tensors, and memory that PyTorch had reserved in addition.
    """

    tried: Optional[int] = None
    gpu: Optional[int] = None
    total: Optional[int] = None
    free: Optional[int] = None
    own: Optional[int] = None
    others: Dict[int, int] = {}
    allocated: Optional[int] = None
    unallocated: Optional[int] = None
    own_is_whole: bool = True


def last_oom(log: str) -> Optional[CudaOom]:
    """Return the out-of-memory error with which the program that wrote `log` ended.

    ``None`` if it ended for another reason: a program may catch such an error and fail later.
    """
    log = _COLOR.sub("", log.replace("\r\n", "\n"))
    last: Optional[Tuple[int, str]] = None
    for match in _ERROR.finditer(log):
        if match["kind"].rpartition(".")[2] in _LAUNCHERS:
            continue
        line = log[match.start() : log.find("\n", match.start()) + 1 or len(log)]
        # The processes of a launcher report one after another: the first out-of-memory error counts.
        if last is not None and _is_oom(last[1]) and _of_other_rank(last[1], line):
            continue
        last = (match.start(), line)
    if last is None:
        return None
    text = _message(log, last[0])
    return parse(text) if _is_oom(text) else None


def parse(message: str) -> CudaOom:
    """Parse the sizes in a message; a message of an unknown form yields none."""
    total = _match_bytes(_TOTAL.search(message))
    others = {int(match[1]): _to_bytes(match[2], match[3]) for match in _PROCESS.finditer(message)}
    own, allocated = _match_bytes(_OWN.search(message)), _match_bytes(_ALLOCATED.search(message))
    unallocated, reserved = _match_bytes(_UNALLOCATED.search(message)), _match_bytes(_RESERVED.search(message))
    if unallocated is None and reserved is not None and allocated is not None:
        unallocated = max(0, reserved - allocated)
    if total is not None:  # under WSL2 the driver reports impossible sizes
        others = {pid: size for pid, size in others.items() if size <= total}
        own = own if own is None or own <= total else None
    own_is_whole = True
    if own is None and allocated is not None:
        # In a container PyTorch does not recognize its own pid and lists itself as another process.
        reserved_bytes = allocated + (unallocated or 0)
        large = [pid for pid, size in others.items() if size >= reserved_bytes]
        if len(large) == 1:
            own = others.pop(large[0])
        elif not others:
            own, own_is_whole = reserved_bytes, False
    tried = _match_bytes(_TRIED.search(message))
    if tried is None:
        bytes_match = _BYTES.search(message)
        tried = int(bytes_match[1]) if bytes_match else None
    gpu = _GPU.search(message)
    return CudaOom(
        tried,
        int(gpu[1]) if gpu else None,
        total,
        _match_bytes(_FREE.search(message)),
        own,
        others,
        allocated,
        unallocated,
        own_is_whole,
    )


def in_size(size: int) -> str:
    """Format a size: ``3.2 GiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return "%.0f %s" % (value, unit) if unit == "B" else "%.1f %s" % (value, unit)
        value /= 1024
    return "%.1f GiB" % value


def _is_oom(text: str) -> bool:
    return _OOM.search(text) is not None


def _of_other_rank(first: str, line: str) -> bool:
    """Whether the lines name two different ranks."""
    ranks: List[str] = re.findall(r"rank(\d+)", first[:80])[:1] + re.findall(r"rank(\d+)", line[:80])[:1]
    return len(ranks) == 2 and ranks[0] != ranks[1]


def _message(log: str, start: int) -> str:
    """Return the message from `start` to the next empty line."""
    text = log[start : start + _MESSAGE_CHARS]
    end = text.find("\n\n")
    return text if end < 0 else text[:end]


def _match_bytes(match: Optional[Match[str]]) -> Optional[int]:
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group is not None][:2]
    return _to_bytes(number, unit)


def _to_bytes(number: str, unit: str) -> int:
    try:
        return int(float(number) * _UNITS[unit])
    except ValueError:  # "1.2.3"
        return 0


#: Reason of a run that was stopped because its GPUs were not used.
GPU_UNUSED = "gpu-unused"
#: Reason of a completed run that was only measured, and ended before its script did.
SLICE = "slice"


class Outcome(NamedTuple):
    """The end of a run."""

    state: str
    reason: str
    detail: str
    exit_code: Optional[int]
    signal: Optional[int]


def _counter(path: str, key: str) -> Optional[int]:
    try:
        with open(path) as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
    except (OSError, ValueError):  # no cgroup, or another format: unknown
        pass
    return None


def oom_counters(cgroups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> Dict[str, int]:
    """Return the number of OOM kills so far: ``{"group": n}`` for our cgroup, ``{"machine": n}``.

    ``memory.events`` (cgroup v2) and ``memory.oom_control`` (v1) count kills of the
    group's own processes by any OOM killer; ``oom_kill`` of ``/proc/vmstat`` counts all.
    """
    counts = {}
    machine = _counter(os.environ.get("AMLTRAIN_TEST_VMSTAT") or "/proc/vmstat", "oom_kill")
    if machine is not None:
        counts["machine"] = machine
    for controllers, path in cgroup_paths(cgroups):
        if controllers == "":
            name, tops = "memory.events", [root, root + "/unified"]
        elif "memory" in controllers.split(","):
            name, tops = "memory.oom_control", [root + "/memory"]
        else:
            continue
        for top in tops:
            # Inside a container the path may be that of the host; its group is then the root.
            for folder in (top + path, top):
                value = _counter(os.path.join(folder, name), "oom_kill")
                if value is not None:
                    counts["group"] = max(value, counts.get("group", 0))
                    break
    return counts


def oom_happened(before: Dict[str, int], after: Dict[str, int]) -> bool:
    """Whether the OOM killer killed a process between two readings.

    A job may run in a cgroup below ours, so the counter of the machine is
    used in addition to the counter of the group.
    """
    return any(after.get(key, 0) > count for key, count in before.items())


def classify(
    status: int, stopped: Optional[str], limit: Optional[float], oom: bool, truth: Optional[Mapping[str, str]] = None
) -> Outcome:
    """Derive the outcome of a rank.

    Parameters
    ----------
    status
        Wait status from `os.waitpid`.
    stopped
        ``"canceled"``, ``"timeout"``, ``"gpu-unused"``, ``"preempted"`` or ``"slice"`` if the supervisor stopped it,
        else ``None``.
    limit
        The time limit in seconds, for the message.
    oom
        Whether the OOM killer was active while the rank ran.
    truth
        The GPU verdict for which it was stopped: ``detail`` and ``cause``.
    """
    code: Optional[int] = None
    number: Optional[int] = None
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
    else:
        code = os.WEXITSTATUS(status)
    if stopped == CANCELED:
        return Outcome(CANCELED, CANCELED, "canceled while running", code, number)
    if stopped == "timeout":
        return Outcome(FAILED, "timeout", "time limit of %g s reached" % (limit or 0), code, number)
    if stopped == SLICE:
        return Outcome(COMPLETED, SLICE, "measured slice", code, number)
    if stopped == GPU_UNUSED:
        verdict = truth or {}
        detail = "stopped because its GPUs were not used: %s; likely cause: %s" % (
            verdict.get("detail") or "no activity", verdict.get("cause") or "unknown",
        )  # fmt: skip
        return Outcome(FAILED, GPU_UNUSED, detail, code, number)
    if stopped == PREEMPTED:
        return Outcome(FAILED, PREEMPTED, "was pre-empted", code, number)
    if number is not None:
        core = " (core dumped)" if os.WCOREDUMP(status) else ""
        if number == signal.SIGKILL and oom:
            detail = "killed by the kernel's OOM killer: out of memory on the machine or within its memory limit"
            return Outcome(FAILED, "oom", detail, None, number)
        return Outcome(FAILED, "signal", "killed by %s%s" % (signal_name(number), core), None, number)
    if code == 0:
        return Outcome(COMPLETED, "exit", "", 0, None)
    detail = "exited with code %d" % (code or 0)
    if oom and code == 128 + signal.SIGKILL:
        return Outcome(FAILED, "oom", detail + ": its process was killed by the kernel's OOM killer", code, None)
    if oom:
        detail += "; the kernel's OOM killer killed a process of this machine meanwhile"
    return Outcome(FAILED, "exit", detail, code, None)


#: Kinds of a cause.
OOM, MEMORY = "cuda-oom", "gpu-memory"

#: Max seconds between an application error and the end of the run: older errors did not end it.
APPLICATION_ERROR_S = 60.0

#: Seconds after the end of the run in which the sampler may still record errors of the run.
CLOSING_S = 10.0

#: Fraction of the GPU memory above which other processes are named as the cause.
OTHERS_SHARE = 0.05

#: Fraction of the GPU memory that must be unaccounted for to report hidden processes.
HIDDEN_SHARE = 0.1

#: Max memory of the CUDA context of a process, which PyTorch does not count.
CONTEXT_BYTES = 3 << 29

#: Max bytes of the header of a telemetry file.
_HEADER_BYTES = 1 << 20

_LOST_ACTION = "Check the kernel messages (sudo dmesg | grep -i xid); a reboot may restore the GPU"

_UNREADABLE_ACTION = "Reset the GPU (sudo nvidia-smi -r) or reboot before the next run"


class RunTimes(NamedTuple):
    """Start and end of the process of a run (monotonic), and why the supervisor stopped it, if it did."""

    began: float
    ended: float
    stopped: Optional[str] = None


def find_cause(
    folder: str, outcome: Outcome, life: RunTimes, devices: Sequence[str], number: int = 0, rank: int = 0
) -> Optional[Dict[str, str]]:
    """Return ``{"kind", "text", "action"}`` of a failed run; ``None`` if its GPUs were not the cause.

    Parameters
    ----------
    folder
        The run folder.
    devices
        UUIDs of the GPUs of the run, in the order in which it sees them.
    number
        Number of the machine within the run.
    rank
        Process that failed, in a run of several.
    """
    if outcome.state != FAILED or outcome.reason in ("launch", "gpu-unused"):
        return None
    incidents = read_incidents(os.path.join(folder, GPU_INCIDENTS % number))
    try:
        errors = [one for one in incidents.get("errors") or () if _is_of_run(one, life)]
        gpus = _gpus(folder, number)
        hardware = _error_cause([one for one in errors if _is_hardware(one)], errors, gpus, life)
        if hardware is not None:
            return hardware
        if outcome.exit_code and life.stopped is None:
            oom = last_oom(tail_of(os.path.join(folder, LOG_OF_RANK % rank)))
            if oom is not None:
                return _oom_cause(oom, incidents.get("processes") or (), gpus, devices)
        if life.stopped is not None:
            return None
        return _error_cause([one for one in errors if one["kind"] == XID], errors, gpus, life)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):  # a job can write into its folder
        return None


def cause_in_log(log: str) -> Optional[Dict[str, str]]:
    """Return the cause found in the end of a log alone, like :func:`find_cause`; ``None`` if there is none."""
    oom = last_oom(log[-TAIL_BYTES:])
    return None if oom is None else _oom_cause(oom, (), (), ())


def _is_of_run(error: Mapping[str, Any], life: RunTimes) -> bool:
    """Whether an error occurred during the run."""
    return life.began <= _moment(error, life) <= life.ended + CLOSING_S


def _moment(error: Mapping[str, Any], life: RunTimes) -> float:
    first, last = float(error["first"]), float(error["last"])
    return first if first >= life.began else last


def _is_hardware(error: Mapping[str, Any]) -> bool:
    if error["kind"] == XID:
        return xid(error["number"]).fault not in (APPLICATION, CLEANUP, RECORD)
    return error["kind"] in (LOST, "ecc_uncorrectable", "remap_failures")


def _error_cause(
    candidates: List[Dict[str, Any]], errors: List[Dict[str, Any]], gpus: Sequence[Mapping[str, Any]], life: RunTimes
) -> Optional[Dict[str, str]]:
    """Return the cause for the first of `candidates` that can have ended the run."""
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
            _name(first, gpus), xid_text(first["number"]),
            " and Xid %s" % ", ".join(others) if others else "", _time_before_text(_moment(first, life), life),
        )  # fmt: skip
        if known.fault == APPLICATION and first.get("shared"):
            text += "; another process on that GPU may have caused it"
        return {"kind": XID, "text": text, "action": known.action}
    for kind, words, action in (
        (LOST, "was lost", _LOST_ACTION),
        ("ecc_uncorrectable", "had uncorrectable memory errors", _UNREADABLE_ACTION),
        ("remap_failures", "has bad memory that could not be replaced", _UNREADABLE_ACTION),
    ):
        for one in candidates:
            if one["kind"] == kind:
                text = "%s %s" % (_name(one, gpus), words)
                # Counters are read rarely: the exact time of their errors is unknown.
                when = _time_before_text(_moment(one, life), life) if kind == LOST else "during the run"
                return {"kind": LOST if kind == LOST else MEMORY, "text": "%s %s" % (text, when), "action": action}
    return None


def _time_before_text(moment: float, life: RunTimes) -> str:
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


def _oom_cause(
    oom: CudaOom, processes: Sequence[Mapping[str, Any]], gpus: Sequence[Mapping[str, Any]], devices: Sequence[str]
) -> Dict[str, str]:
    """Return the cause for an out-of-memory error: requested, free and used memory.

    ``title`` and ``figures`` are the two parts of ``text``: the kernel puts the line of the cell between them.
    """
    gpu = _gpu_of(oom, gpus, devices)
    listed = [one for one in processes if gpu is None or one["gpu"] == gpu["index"]]
    title = "CUDA out of memory"
    title += " on %s" % gpu_name(gpu) if gpu is not None else ""
    facts = []
    if oom.tried is not None:
        facts.append("%s more was requested" % in_size(oom.tried))
    if oom.free is not None:
        of = " of %s" % in_size(oom.total) if oom.total else ""
        facts.append("%s%s was free" % (in_size(oom.free), of))
    if oom.own is not None:
        facts.append("%s held %s" % ("this process" if oom.own_is_whole else "PyTorch", in_size(oom.own)))
    others, strangers = _others(oom, listed)
    facts += others
    figures = ", ".join(facts)
    text = "%s: %s" % (title, figures) if figures else title
    return {"kind": OOM, "text": text, "action": _oom_action(oom, strangers), "title": title, "figures": figures}


def _others(oom: CudaOom, listed: Sequence[Mapping[str, Any]]) -> Tuple[List[str], int]:
    """Return descriptions of other processes with GPU memory, and the bytes of processes outside of the run."""
    words: List[str] = []
    strangers, named = 0, 0
    known = {int(one["pid"]): one for one in listed}
    sizes = {pid: int(one["memory"]) << 20 for pid, one in known.items() if one["owner"] != "mine" and one["memory"]}
    # The message has the sizes at the time of the error; the driver's list adds users and further processes.
    sizes = {**sizes, **oom.others}
    for pid, size in sorted(sizes.items(), key=lambda row: -row[1]):
        one = known.get(pid)
        named += size
        if one is not None and one["owner"] != "mine":
            strangers += size
        if len(words) < 3:
            words.append("%s held %s" % (_process_text(pid, one), in_size(size)))
    if len(sizes) > 3:
        words.append("%d more process%s" % (len(sizes) - 3, "es" if len(sizes) > 4 else ""))
    if oom.total and oom.free is not None and oom.own is not None:
        rest = oom.total - oom.free - oom.own - named
        if rest > max(HIDDEN_SHARE * oom.total, 0 if oom.own_is_whole else CONTEXT_BYTES):
            outside = "" if oom.own_is_whole else "outside of PyTorch, or "
            words.append("%s was held %sby processes that are not visible from here" % (in_size(rest), outside))
            strangers += rest
    return words, strangers


def _process_text(pid: int, one: Optional[Mapping[str, Any]]) -> str:
    if one is None or one["owner"] == "mine":
        return "pid %d%s" % (pid, "" if one is None else " (of this run)")
    owner = ": ".join(str(one[key]) for key in ("user", "program") if one.get(key))
    return "pid %d%s" % (pid, " (%s)" % owner if owner else "")


def _oom_action(oom: CudaOom, strangers: int) -> str:
    if strangers and strangers >= (OTHERS_SHARE * oom.total if oom.total else 0):
        return "Use a GPU without other processes, or wait until they have ended"
    if oom.tried and oom.unallocated and oom.unallocated >= oom.tried:
        return (
            "PyTorch had enough memory, but in fragments that are too small: "
            "try --env-var PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    return "Make the batch smaller, accumulate gradients, or use bfloat16 or gradient checkpointing"


def _gpu_of(oom: CudaOom, gpus: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> Optional[Mapping[str, Any]]:
    """Return the GPU of the telemetry header for the index that the process uses."""
    index = 0 if oom.gpu is None and len(devices) == 1 else oom.gpu
    if index is None or not devices and len(gpus) <= index:
        return None
    if not devices:
        return gpus[index]
    if index >= len(devices):
        return None
    return next((gpu for gpu in gpus if gpu.get("uuid") == devices[index]), None)


# -- files -------------------------------------------------------------------------------------


def _gpus(folder: str, number: int) -> List[Dict[str, Any]]:
    """Return the GPUs of the telemetry header."""
    try:
        handle = open_regular(os.path.join(folder, TELEMETRY % number))
        with os.fdopen(handle, "rb") as file:
            header = json.loads(file.readline(_HEADER_BYTES).decode("utf-8", "replace"))
        return [gpu for gpu in header.get("gpus") or () if isinstance(gpu.get("index"), int)]
    except (OSError, ValueError, AttributeError, TypeError):
        return []


def tail_of(path: str) -> str:
    """Return the end of a log, at most :data:`TAIL_BYTES`; empty if it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
