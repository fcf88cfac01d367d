"""What a cluster is: partitions with their limits, nodes, GPUs; and what a compute node sees of the login node."""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from jupyter_amltrain.agent import protocol
from jupyter_amltrain.agent.protocol import AgentError

from . import accounting, commands, reasons
from .jobs import JOBS

Json = Dict[str, Any]

#: Seconds for which what a cluster is, is not asked again.
_KEPT_S = 120.0
#: Seconds between two looks for the result of the probe; and in which a shared folder shows files of other machines.
_LOOK_S, _FILE_DELAY_S = 0.1, 2.0
PROBES = "probes"
_known: List[Tuple[float, Json]] = []


def read() -> Json:
    """Return version, partitions and nodes of the cluster, at most two minutes old.

    Raises
    ------
    AgentError
        There is no Slurm here, or it does not answer.
    """
    if _known and protocol.mono() - _known[-1][0] < _KEPT_S:
        return _known[-1][1]
    config = commands.config()
    found: Json = {
        "version": commands.run("sinfo", "--version").strip().rpartition(" ")[2],
        "partitions": [_partition(row) for row in commands.show("partition")],
        "nodes": nodes(),
        "used": gpus_used(),
        "kill_wait": commands.whole(config.get("KillWait", "30")) or 30,
        "max_array": commands.whole(config.get("MaxArraySize", "")),
        "accounts": accounting.accounts(config.get("ClusterName", "")),
    }
    _known[:] = [(protocol.mono(), found)]
    return found


def forget() -> None:
    """Let the next call ask the cluster again."""
    _known.clear()


def _partition(row: Mapping[str, str]) -> Json:
    """Return a partition with its limits: seconds and nodes, ``None`` for no limit."""
    limit = row.get("MaxNodes", "")
    return {
        "name": row.get("PartitionName", ""),
        "default": row.get("Default") == "YES",
        "max_time": commands.duration(row.get("MaxTime", "")),
        "max_nodes": commands.whole(limit) if limit[:1].isdigit() else None,
        "nodes": commands.whole(row.get("TotalNodes", "0")),
    }


def nodes() -> List[Json]:
    """Return the kinds of nodes of each partition, with their number: one row for equal ones."""
    text = commands.run("sinfo", "--noheader", "--format", "%R|%D|%c|%m|%G|%f|%T|%C")
    rows = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 8:
            partition, count, cpus, memory, gres, features, state, used = parts
            rows.append(
                {
                    "partition": partition,
                    "nodes": commands.whole(count),
                    "cpus": commands.whole(cpus),
                    "memory": commands.whole(memory) << 20,
                    "gpus": gpus_of(gres),
                    "features": [] if features in ("(null)", "") else features.split(","),
                    "state": state,
                    "cpus_used": commands.whole(used),
                }
            )
    return rows


def gpus_used() -> Dict[str, Dict[str, int]]:
    """Return the GPUs that jobs have now, by partition and type."""
    found: Dict[str, Dict[str, int]] = {}
    for line in commands.run("sinfo", "--noheader", "--Format", "Partition:.60,GresUsed:.200,Nodes:.10").splitlines():
        words = line.split()
        if len(words) == 3:
            kinds = found.setdefault(words[0].rstrip("*"), {})
            for kind, count in gpus_of(words[1]).items():
                kinds[kind] = kinds.get(kind, 0) + count * commands.whole(words[2])
    return found


def gpus_of(gres: str) -> Dict[str, int]:
    """Return the GPUs in a list of generic resources, ``gpu:a100:4(S:0-1),nvme:1``, by type; no type is empty."""
    found: Dict[str, int] = {}
    for part in gres.split(","):
        words = part.partition("(")[0].split(":")
        if words[0] == "gpu" and words[-1].isdigit():
            kind = words[1] if len(words) > 2 else ""
            found[kind] = found.get(kind, 0) + int(words[-1])
    return found


def probe(home: str, script: str, timeout_s: float) -> Json:
    """Run a job that writes what it sees; return that, or ``reason`` why it is not known: waits, silent, ended."""
    folder = os.path.join(home, PROBES, os.urandom(6).hex())
    os.makedirs(folder, mode=0o700)
    job = ""
    try:
        with open(os.path.join(folder, "token"), "w") as file:
            file.write("1")
        text = script.replace("PROBE_FOLDER", folder)
        job = commands.run("sbatch", "--parsable", text=text).strip().partition(";")[0]
        JOBS.forget()
        return _await_probe(folder, job, timeout_s)
    finally:
        if job:
            try:
                commands.run("scancel", job)
            except AgentError:
                pass
            JOBS.forget()
        shutil.rmtree(folder, ignore_errors=True)


def _await_probe(folder: str, job: str, timeout_s: float) -> Json:
    until = time.monotonic() + timeout_s
    listed = None
    ended_at: Optional[float] = None
    while time.monotonic() < until:
        found = _result(folder)
        if found is not None:
            return dict(found, reason="")
        listed = JOBS.get(1.0).by_id.get(job)
        if listed is not None and listed.state in reasons.ENDED:
            ended_at = ended_at or time.monotonic()
            if time.monotonic() - ended_at > _FILE_DELAY_S:
                return {"reason": "ended", "state": listed.state, "hosts": listed.hosts, "output": _output(folder)}
        time.sleep(_LOOK_S)
    if listed is not None and listed.state in reasons.WAITING:
        return {"reason": "waits", "state": reasons.words(listed.reason, job)}
    return {"reason": "silent"}


def _result(folder: str) -> Optional[Json]:
    try:
        with open(os.path.join(folder, "result.json")) as file:
            found: Json = json.load(file)
            return found
    except (OSError, ValueError):  # it is not there yet
        return None


def _output(folder: str) -> str:
    """Return the last lines that the job's script has printed."""
    try:
        with open(os.path.join(folder, "output"), errors="replace") as file:
            return "; ".join(file.read()[-2000:].splitlines()[-3:])
    except OSError:
        return ""
