"""The allocation of a job as the process on one of its nodes sees it."""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from jupyter_amltrain.agent import protocol
from jupyter_amltrain.agent.protocol import AgentError
from jupyter_amltrain.agent.queue import visible_gpus
from jupyter_amltrain.agent.telemetry import nvml

from . import commands

#: Seconds for an answer of the controller to a supervisor whose job is about to be killed.
_TIMEOUT_S = 4.0
#: Variables by which jobs find their GPUs, as Slurm sets them.
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
#: Ends of a supervisor by a signal of Slurm.
REQUEUED, TIME_LIMIT, CANCELED, PREEMPTED, UNKNOWN = "requeued", "timeout", "canceled", "preempted", "unknown"


class Allocation(NamedTuple):
    """Node, job and attempt of this process."""

    job: str  #: of a task of an array ``7_3``
    node: int
    nodes: int
    name: str  #: of this node
    restarts: int  #: how often Slurm has requeued the job

    @property
    def is_first(self) -> bool:
        """Whether this is the node that keeps the state of the run."""
        return self.node == 0


def from_environ(environ: Mapping[str, str]) -> Allocation:
    """Return the allocation that Slurm's variables describe."""

    def number(name: str, default: int) -> int:
        return commands.whole(environ.get(name, "")) or default

    array = environ.get("SLURM_ARRAY_JOB_ID", "")
    return Allocation(
        job="%s_%s" % (array, environ.get("SLURM_ARRAY_TASK_ID", "")) if array else environ.get("SLURM_JOB_ID", ""),
        node=number("SLURM_NODEID", 0),
        nodes=number("SLURM_JOB_NUM_NODES", 1),
        name=environ.get("SLURMD_NODENAME") or socket.gethostname(),
        restarts=number("SLURM_RESTART_COUNT", 0),
    )


def gpu_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables by which the job finds the GPUs that Slurm has assigned."""
    return {name: environ[name] for name in GPU_VARIABLES if environ.get(name)}


def devices(environ: Mapping[str, str]) -> List[str]:
    """Return the UUIDs of the assigned GPUs, as far as NVIDIA's driver tells; none without assigned ones."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if not visible or not nvml.is_installed():
        return []
    return [str(gpu["uuid"]) for gpu in visible_gpus.allowed(visible, _read_gpus())]


def _read_gpus() -> List[Dict[str, Any]]:
    """Return the GPUs of this node; a driver that hangs ends with its process."""
    try:
        pid, handle = nvml.start_probe()
    except OSError:
        return []
    data, began = b"", protocol.mono()
    while protocol.mono() - began < nvml.probe_timeout_s():
        if select.select([handle], [], [], 0.5)[0]:
            piece = os.read(handle, 1 << 16)
            if not piece:
                break
            data += piece
    os.close(handle)
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except OSError:
        pass
    return list(nvml.parse_probe(data, protocol.mono() - began)["gpus"])


def address(name: str) -> str:
    """Return the address at which the other nodes reach this one."""
    from jupyter_amltrain.agent.distributed import node_connector

    try:
        found = socket.gethostbyname(name)
        if not found.startswith("127."):
            return found
    except OSError:  # the name is Slurm's alone
        pass
    return node_connector._addresses()[0]


def end_of(allocation: Allocation, near_s: float) -> str:
    """Return why Slurm has sent SIGTERM, as the controller says: one of the ends above.

    Parameters
    ----------
    near_s
        Seconds before the time limit in which a signal is that of the limit.
    """
    try:
        rows = commands.show("job", allocation.job, timeout_s=_TIMEOUT_S)
    except AgentError:
        return UNKNOWN
    row: Dict[str, Any] = dict(rows[0]) if rows else {}
    state = str(row.get("JobState") or "")
    if commands.whole(str(row.get("Restarts") or "")) > allocation.restarts or state in ("REQUEUED", "PENDING"):
        return REQUEUED
    if state in ("TIMEOUT", "DEADLINE"):
        return TIME_LIMIT
    if state == "PREEMPTED":
        return PREEMPTED
    left = _seconds_left(row)
    if left is not None and left < (near_s if state == "RUNNING" else 1.0):
        return TIME_LIMIT
    return CANCELED


def _seconds_left(row: Mapping[str, Any]) -> Optional[float]:
    """Return the seconds to the time limit; the end of a job that is being canceled is now, and says nothing."""
    limit = commands.duration(str(row.get("TimeLimit")))
    try:
        return None if limit is None else float(str(row.get("StartTime"))) + limit - protocol.wall()
    except ValueError:
        return None
