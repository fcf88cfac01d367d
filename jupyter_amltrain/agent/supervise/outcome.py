"""Outcome of a job: derives state, reason and detail from wait status, OOM counters, GPU incidents and log."""

from __future__ import annotations

import json
import os
import signal
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..distributed import launchers
from ..process_setup import log_line
from ..processes import cgroup_paths, signal_name
from ..protocol import CANCELED, COMPLETED, FAILED, LOG, LOG_OF_RANK, PREEMPTED, TELEMETRY, open_regular
from ..telemetry.gpu_columns import MEMORY as MEMORY_COLUMN
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
from . import out_of_memory
from .assignment import Assignment

#: Bytes at the end of a log that are searched for the error.
TAIL_BYTES = 64 << 10

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
    if stopped is not None:
        state, detail = _end_by_request(stopped, limit, truth or {})
        return Outcome(state, stopped, detail, code, number)
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


def _end_by_request(stopped: str, limit: Optional[float], truth: Mapping[str, str]) -> Tuple[str, str]:
    """Return state and detail of a rank that the supervisor has stopped."""
    if stopped == CANCELED:
        return CANCELED, "canceled while running"
    if stopped == SLICE:
        return COMPLETED, "measured slice"
    if stopped == PREEMPTED:
        return FAILED, "was pre-empted"
    if stopped == GPU_UNUSED:
        cause = (truth.get("detail") or "no activity", truth.get("cause") or "unknown")
        return FAILED, "stopped because its GPUs were not used: %s; likely cause: %s" % cause
    return FAILED, "time limit of %g s reached" % (limit or 0)


def outcome_of_ranks(task: Assignment, state: Dict[str, Any], outcome: Outcome) -> Outcome:
    """Return the outcome of a job of several processes from that of its launcher: of the process that failed first."""
    if outcome.state != FAILED:
        return outcome
    failed = launchers.first_failure(task.folder)
    if failed is None:
        return _outcome_of_launcher(task, outcome)
    state["failed_rank"] = failed.rank
    text = failed.text if outcome.reason != "oom" else "%s: %s" % (failed.text, outcome.detail)
    reason = outcome.reason if outcome.reason == "oom" else "signal" if failed.signal else "exit"
    return Outcome(FAILED, reason, text, failed.exit_code, failed.signal)


def _outcome_of_launcher(task: Assignment, outcome: Outcome) -> Outcome:
    """Say why the launcher ended without a process of the job; its output becomes that of the run."""
    if launchers.records(task.folder):
        return outcome
    try:
        with open(os.path.join(task.folder, LOG), "a") as log:
            log.write(tail_of(os.path.join(task.folder, launchers.LAUNCHER_LOG)))
    except OSError as error:
        log_line(task.folder, "supervisor: cannot write the log: %s" % error)
    reason = launchers.missing(task.job["ranks"]) or "its launcher %s" % outcome.detail
    return Outcome(FAILED, "launch", "could not be started: %s" % reason, outcome.exit_code, outcome.signal)


#: Kind of a cause: bad memory of a GPU.
MEMORY = "gpu-memory"

#: Max seconds between an application error and the end of the run: older errors did not end it.
APPLICATION_ERROR_S = 60.0

#: Seconds after the end of the run in which the sampler may still record errors of the run.
CLOSING_S = 10.0

#: Readings before the end of a run in which its memory is looked for: the last may be without its processes.
_LAST_READINGS = 5

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
            oom = out_of_memory.last_oom(tail_of(os.path.join(folder, LOG_OF_RANK % rank)))
            if oom is not None:
                held = _memory_of(folder, number, gpus)
                return out_of_memory.cause_of(oom, incidents.get("processes") or (), gpus, devices, held)
        if life.stopped is not None:
            return None
        return _error_cause([one for one in errors if one["kind"] == XID], errors, gpus, life)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):  # a job can write into its folder
        return None


def cause_in_log(log: str) -> Optional[Dict[str, str]]:
    """Return the cause found in the end of a log alone, like :func:`find_cause`; ``None`` if there is none."""
    oom = out_of_memory.last_oom(log[-TAIL_BYTES:])
    return None if oom is None else out_of_memory.cause_of(oom, (), (), ())


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


# -- files -------------------------------------------------------------------------------------


def _header(folder: str, number: int) -> Dict[str, Any]:
    """Return the header of a telemetry file; empty if it cannot be read."""
    try:
        handle = open_regular(os.path.join(folder, TELEMETRY % number))
        with os.fdopen(handle, "rb") as file:
            header = json.loads(file.readline(_HEADER_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


def _gpus(folder: str, number: int) -> List[Dict[str, Any]]:
    """Return the GPUs of the telemetry header."""
    try:
        return [gpu for gpu in _header(folder, number).get("gpus") or () if isinstance(gpu.get("index"), int)]
    except (AttributeError, TypeError):
        return []


def _memory_of(folder: str, number: int, gpus: Sequence[Mapping[str, Any]]) -> Dict[int, int]:
    """Return the most memory in use on each GPU (bytes) at the last readings, by its index."""
    found: Dict[int, int] = {}
    lines = [line for line in tail_of(os.path.join(folder, TELEMETRY % number)).splitlines() if line.startswith("[")]
    columns = _header(folder, number).get("gpu_columns")
    width = len(columns) if isinstance(columns, list) else 0
    if width <= MEMORY_COLUMN:
        return found
    for line in lines[-_LAST_READINGS:]:
        try:
            values = json.loads(line)[-width * len(gpus) :]
        except ValueError:  # cut off
            continue
        for place, gpu in enumerate(gpus):
            used = values[place * width + MEMORY_COLUMN] if len(values) == width * len(gpus) else None
            if isinstance(used, (int, float)):
                found[gpu["index"]] = max(found.get(gpu["index"], 0), int(used) << 20)
    return found


def tail_of(path: str) -> str:
    """Return the end of a log, at most :data:`TAIL_BYTES`; empty if it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
