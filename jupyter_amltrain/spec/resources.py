"""What a job needs of machines, and how its processes find each other."""

from __future__ import annotations

import re

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.spec import azure_terms

#: Who tells the processes about each other; empty for one process that needs nobody.
DISTRIBUTIONS = azure_terms.DISTRIBUTIONS.names
#: Beyond them a number is a slip of the finger; the service's own limits are lower and told by it.
MAX_NODES, MAX_PROCESSES = 1000, 512
_SIZE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
#: As Docker takes it; the service's default is ``2g``.
_SHM = re.compile(r"[1-9]\d{0,9}[bkmg]")


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What a job needs.

    Attributes
    ----------
    gpus
        GPUs on each of its nodes; ``None`` takes one where there is one, else a CPU slot.
    nodes
        Machines that it runs on at the same time.
    instance_type
        Size of machine, where the target finds or makes one for the run.
    shm_size
        Shared memory of the container: ``512m``, ``2g``; empty for the service's default.
    docker_args
        Further arguments of ``docker run``.
    """

    gpus: int | None = None
    nodes: int = 1
    instance_type: str = ""
    shm_size: str = ""
    docker_args: str = ""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Processes of a job that know of each other.

    Attributes
    ----------
    kind
        One of :data:`DISTRIBUTIONS`, or empty for none.
    processes
        Processes on each node; ``None`` takes one for each GPU, or one. TensorFlow: workers in all,
        ``None`` for one on each node.
    parameter_servers
        Of TensorFlow.
    """

    kind: str = ""
    processes: int | None = None
    parameter_servers: int = 0


def distribution_of(kind: str, processes: int | None, nodes: int, parameter_servers: int = 0) -> Distribution:
    """What is meant: several nodes or a number of processes without a kind are PyTorch's."""
    if not kind and (nodes > 1 or (processes or 1) > 1):
        kind = "pytorch"
    return Distribution(kind=kind, processes=processes, parameter_servers=parameter_servers)


def check_resources(resources: Resources, distribution: Distribution) -> None:
    """Raise :class:`SpecError` where a number or a word cannot be what is needed."""
    if resources.gpus is not None and resources.gpus < 0:
        raise SpecError(
            f"--gpus {resources.gpus}: not a number of GPUs.",
            hint="Try: --gpus 1",
            code="spec.value",
            field="resources.gpus",
        )
    if not 1 <= resources.nodes <= MAX_NODES:
        raise SpecError(
            f"--nodes {resources.nodes}: a run has 1 to {MAX_NODES} nodes.",
            hint="Try: --nodes 2",
            code="spec.value",
            field="resources.nodes",
        )
    if resources.instance_type and not _SIZE.fullmatch(resources.instance_type):
        raise SpecError(
            f"--instance-type {resources.instance_type[:80]!r}: not the name of a size of machine.",
            hint="Try: --instance-type Standard_NC4as_T4_v3",
            code="spec.value",
            field="resources.instance_type",
        )
    if resources.shm_size and not _SHM.fullmatch(resources.shm_size):
        raise SpecError(
            f"--shm-size {resources.shm_size[:80]!r}: a number and a unit, b, k, m or g.",
            hint="Try: --shm-size 8g",
            code="spec.value",
            field="resources.shm_size",
        )
    if "\n" in resources.docker_args or "\0" in resources.docker_args:
        raise SpecError(
            "--docker-args: they are one line.",
            hint="Try: --docker-args '--ipc=host'",
            code="spec.value",
            field="resources.docker_args",
        )
    if distribution.kind not in ("", *DISTRIBUTIONS):
        raise SpecError(
            f"--distribution {distribution.kind[:80]!r}: it is one of {', '.join(DISTRIBUTIONS)}.",
            hint="Try: --distribution pytorch",
            code="spec.value",
            field="distribution.kind",
        )
    if distribution.processes is not None and not 1 <= distribution.processes <= MAX_PROCESSES:
        raise SpecError(
            f"--processes {distribution.processes}: a node runs 1 to {MAX_PROCESSES} processes.",
            hint="Try: --processes 2",
            code="spec.value",
            field="distribution.processes",
        )
    if not 0 <= distribution.parameter_servers <= MAX_PROCESSES:
        raise SpecError(
            f"--distribution tensorflow:{distribution.parameter_servers}: not a number of parameter servers.",
            hint="Try: --distribution tensorflow:1",
            code="spec.value",
            field="distribution.kind",
        )
    if distribution.parameter_servers and distribution.kind != "tensorflow":
        raise SpecError(
            f"--distribution {distribution.kind or 'none'}: only TensorFlow has parameter servers.",
            hint=f"Try: --distribution tensorflow:{distribution.parameter_servers}",
            code="spec.value",
            field="distribution.kind",
        )
