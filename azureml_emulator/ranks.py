"""Processes of a command job, and the environment variables that the service sets for each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BINDING = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w-]+)\s*\}\}")


@dataclass(frozen=True)
class Rank:
    """One process of a job.

    Attributes
    ----------
    node, local, rank
        Number of its node, its number on that node, its number in the job.
    log
        Its log in run history, below ``user_logs/``.
    env
        What the service sets for it alone.
    """

    node: int
    local: int
    rank: int
    log: str
    env: Mapping[str, str] = field(default_factory=dict)


def ranks(
    distribution: Mapping[str, Any] | None,
    nodes: int,
    address: str,
    ports: list[int],
    names: str = "plain",
    by_node: bool = True,
    node_rank: str = "none",
) -> list[Rank]:
    """The processes of a job, node-major.

    Parameters
    ----------
    distribution
        ``distribution`` of the job's body, or None: one process per node, without information about others (assumed).
    address, ports
        Where rank 0 listens: the host, and as many free ports as there can be processes.
    names
        Switch ``std_log_names``: ``plain`` ``std_log_process_3.txt``; ``padded`` ``std_log_process_03.txt`` (as many
        digits as the greatest rank has).
    by_node
        Switch ``mpi_by_node``: MPI fills one node after the other, or goes round.
    node_rank
        Switch of that name: which variable has the number of the node.
    """
    kind = str((distribution or {}).get("distributionType") or "")
    if kind == "TensorFlow":
        placed = _tensorflow(dict(distribution or {}), nodes, address, ports)
    else:
        each = int((distribution or {}).get("processCountPerInstance") or 1)
        placed = []
        for rank in range(nodes * each):
            node, local = divmod(rank, each) if by_node or kind != "Mpi" else divmod(rank, nodes)[::-1]
            env = _mpi(rank, local, node, nodes, each, address, ports[0]) if kind == "Mpi" else {}
            if kind == "PyTorch":
                env = _torch(rank, local, node, nodes * each, each, address, ports[0])
            placed.append((node, local, "", env))
    digits = len(str(len(placed) - 1)) if names == "padded" else 1
    return [
        Rank(node, local, rank, _log(rank, len(placed), digits, role), {**env, **_runtime(node, nodes, node_rank)})
        for rank, (node, local, role, env) in enumerate(placed)
    ]


def _runtime(node: int, nodes: int, how: str) -> dict[str, str]:
    # Names: public scripts of jobs; form of the config: the public description of a job's pod (Kubernetes, 2022).
    if how == "variable":
        return {"AZUREML_CR_NODE_RANK": str(node)}
    if how == "config":
        hosts = [f"node-{number}" for number in range(nodes)]
        config = {"rank": "VK_TASK_INDEX", "host_list": hosts}
        return {"AZUREML_CR_DISTRIBUTED_CONFIG": json.dumps(config), "VK_TASK_INDEX": str(node)}
    return {}


def _log(rank: int, count: int, digits: int, role: str) -> str:
    # Recorded for one process: user_logs/std_log.txt. Several: the SDK's own pattern for the log that it streams is
    # std_log[\D]*[0]*(?:_ps)?\.txt.
    return "std_log.txt" if count == 1 else f"std_log_process_{rank:0{digits}d}{role}.txt"


def _torch(rank: int, local: int, node: int, world: int, each: int, address: str, port: int) -> dict[str, str]:
    # Names: Azure ML's guide of distributed training ("PyTorch: environment variables for distributed training").
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "NODE_RANK": str(node),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(each),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def _mpi(rank: int, local: int, node: int, nodes: int, each: int, address: str, port: int) -> dict[str, str]:
    # Open MPI's own names; AZ_BATCH_*, AZ_BATCHAI_*: the same guide.
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(nodes * each),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(each),
        "OMPI_COMM_WORLD_NODE_RANK": str(local),
        "OMPI_UNIVERSE_SIZE": str(nodes * each),
        "AZ_BATCHAI_MPI_MASTER_NODE": address,
        "AZ_BATCH_MASTER_NODE": f"{address}:{port}",
        "AZ_BATCH_NODE_LIST": ";".join([address] * nodes),
    }


def _tensorflow(
    distribution: dict[str, Any], nodes: int, address: str, ports: list[int]
) -> list[tuple[int, int, str, dict[str, str]]]:
    workers = int(distribution.get("workerCount") or nodes)
    servers = int(distribution.get("parameterServerCount") or 0)
    tasks = [("worker", number) for number in range(workers)] + [("ps", number) for number in range(servers)]
    places = {task: f"{address}:{ports[number % len(ports)]}" for number, task in enumerate(tasks)}
    cluster = {
        kind: [places[task] for task in tasks if task[0] == kind]
        for kind in ("worker", "ps")
        if any(task[0] == kind for task in tasks)
    }
    placed = []
    used: dict[int, int] = {}
    for kind, number in tasks:
        node = number % nodes
        local = used.get(node, 0)
        used[node] = local + 1
        config = {"cluster": cluster, "task": {"type": kind, "index": number}, "environment": "cloud"}
        placed.append((node, local, "_ps" if kind == "ps" else "", {"TF_CONFIG": json.dumps(config)}))
    return placed


def bound(text: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    """A command with ``${{inputs.x}}`` and ``${{outputs.x}}`` put in.

    Raises
    ------
    KeyError
        The job has no such input or output.
    """
    places = {"inputs": inputs, "outputs": outputs}
    return _BINDING.sub(lambda found: places[found[1]][found[2]], text)


def seconds(duration: str | None) -> float | None:
    """Seconds of an ISO 8601 duration such as ``PT1H30M`` or ``P1DT2S``; None: no limit."""
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", duration or "")
    if found is None:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
