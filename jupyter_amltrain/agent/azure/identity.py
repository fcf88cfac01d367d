"""Position of this process in a job, from the variables that launchers set.

PyTorch: ``RANK``, ``LOCAL_RANK``, ``NODE_RANK`` (https://pytorch.org/docs/stable/elastic/run.html).
Open MPI: ``OMPI_COMM_WORLD_RANK``, ``_LOCAL_RANK``, ``_LOCAL_SIZE``; its ``_NODE_RANK`` is *not* a
number of the node but one within it, over all jobs (mpirun(1)). Intel MPI: ``PMI_RANK``,
``MPI_LOCALRANKID``, ``MPI_LOCALNRANKS``. TensorFlow: ``TF_CONFIG``. The number of the node is Azure
ML's, if its runtime sets it: ``AZUREML_CR_NODE_RANK``, ``AZUREML_CR_DISTRIBUTED_CONFIG``.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

#: Rank, rank on the node, processes on the node, number of the node, all processes.
_NAMES: Tuple[Tuple[str, str, str, str, str], ...] = (
    ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "WORLD_SIZE"),
    ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", "PMI_SIZE"),
)
_ROLES = ("chief", "master", "worker", "ps", "evaluator")


class Identity(NamedTuple):
    """One process of a job."""

    rank: int = 0
    local: int = 0  #: rank on the node
    node: int = 0
    world: int = 1  #: processes of the job

    @property
    def leads(self) -> bool:
        """Whether this process writes the state of the job."""
        return self.rank == 0

    @property
    def leads_node(self) -> bool:
        """Whether this process samples its node."""
        return self.local == 0


def identity_of(environ: Mapping[str, str]) -> Identity:
    """Return the identity of this process; that of a single process if the variables are missing or invalid."""
    identity, node = _by_launcher(environ), node_of_runtime(environ)
    return identity if node is None else identity._replace(node=node)


def node_of_runtime(environ: Mapping[str, str]) -> Optional[int]:
    """Return the number of the node from Azure ML's runtime; ``None`` if the runtime does not set it.

    ``AZUREML_CR_DISTRIBUTED_CONFIG`` is JSON: ``{"rank": name of the variable with the number, "host_list": [...]}``.
    """
    node = _number(environ, "AZUREML_CR_NODE_RANK")
    if node is not None:
        return node
    try:
        config = json.loads(environ.get("AZUREML_CR_DISTRIBUTED_CONFIG", ""))
        rank, hosts = config["rank"], config["host_list"]
        number = _number(environ, rank) if isinstance(rank, str) else int(rank)
    except (ValueError, KeyError, TypeError):
        return None
    return number if number is not None and 0 <= number < len(hosts) else None


def _by_launcher(environ: Mapping[str, str]) -> Identity:
    for rank_name, local_name, size_name, node_name, world_name in _NAMES:
        rank, local = _number(environ, rank_name), _number(environ, local_name)
        node, world = _number(environ, node_name), _number(environ, world_name)
        if rank is None or (local is None and node is None and world is None):
            continue  # a RANK alone is the user's own variable
        size = _number(environ, size_name)
        if node is None and node_name == "NODE_RANK" and "GROUP_RANK" in environ:
            continue
        if node is None:
            node = _node(rank, local, size, world or 1)
        return Identity(rank, local or 0, node, max(world or 1, rank + 1))
    return _tensorflow(environ.get("TF_CONFIG", "")) or Identity()


def _node(rank: int, local: Optional[int], size: Optional[int], world: int) -> int:
    """Return the number of the node for launchers that do not set it.

    Launchers fill one node after the other. With a round-robin launcher, the rank on the node shows it
    (with two nodes always, with more not for each process).
    """
    if not size:
        return rank if world > 1 and local == 0 else 0
    nodes = max(1, world // size)
    if local is not None and rank % size != local and rank // nodes == local:
        return rank % nodes
    return rank // size


def _number(environ: Mapping[str, str], name: str) -> Optional[int]:
    text = environ.get(name, "") if name else ""
    return int(text) if text.isascii() and text.isdigit() else None


def _tensorflow(text: str) -> Optional[Identity]:
    """Return the identity in ``{"cluster": {role: ["host:port"]}, "task": {"type", "index"}}``."""
    try:
        value: Dict[str, Any] = json.loads(text)
        cluster, task = value["cluster"], value["task"]
        processes: List[Tuple[str, int, str]] = [
            (role, index, str(address).rpartition(":")[0])
            for role in (*_ROLES, *sorted(set(cluster) - set(_ROLES)))
            for index, address in enumerate(cluster.get(role, ()))
        ]
        at = [(role, index) for role, index, _ in processes].index((task["type"], int(task["index"])))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    hosts = list(dict.fromkeys(host for _, _, host in processes))
    host = processes[at][2]
    return Identity(at, [x[2] for x in processes[:at]].count(host), hosts.index(host), len(processes))
