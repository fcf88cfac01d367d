"""Checks of a job against what a cluster allows, before anything is sent: one sentence each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError, TargetError
from jupyter_amltrain.jobs.flag_types import duration_text
from jupyter_amltrain.jobs.launch import is_single_process
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.slurm.target import SlurmTarget
from jupyter_amltrain.text import bytes_text, counted

#: What a cluster is, as ``slurm/agent/cluster.py`` tells it.
Facts = Mapping[str, Any]
#: Starts of options of sbatch that set a number of processors themselves.
_OF_PROCESSORS = ("--cpus-per-", "-c", "--exclusive")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def partitions_of(target: SlurmTarget, facts: Facts) -> list[Mapping[str, Any]]:
    """Return the partitions of a target: the named ones, else the cluster's default."""
    rows: Sequence[Mapping[str, Any]] = facts.get("partitions") or ()
    names = target.partition.split(",")
    return [row for row in rows if (row["name"] in names if target.partition else row["default"])]


def longest_of(target: SlurmTarget, facts: Facts) -> float | None:
    """Return the seconds that the partition of a target allows; ``None`` for no limit, or for several partitions."""
    rows = partitions_of(target, facts)
    return rows[0]["max_time"] if len(rows) == 1 else None


def check_target(target: SlurmTarget, facts: Facts) -> None:
    """Raise :class:`TargetError` for a partition, account or constraint that the cluster does not have."""
    known = [str(row["name"]) for row in facts.get("partitions") or ()]
    if target.partition and (unknown := [name for name in target.partition.split(",") if name not in known]):
        raise TargetError(
            f"--partition {unknown[0]}: the cluster has no such partition.",
            hint=f"It has: {', '.join(known)}",
            code="slurm.partition",
        )
    rows = partitions_of(target, facts)
    if not rows:
        raise TargetError(
            "The cluster has no default partition.", hint=f"Name one: --partition {' or '.join(known)}",
            code="slurm.partition",
        )  # fmt: skip
    accounts = list(facts.get("accounts") or ())
    if target.account and accounts and target.account.lower() not in accounts:  # as sbatch takes them
        raise TargetError(
            f"--account {target.account}: you have no such account.",
            hint=f"You have: {', '.join(accounts)}",
            code="slurm.account",
        )
    features = sorted({name for row in nodes_of(rows, facts) for name in row["features"]})
    if absent := [name for name in _features(target.constraint) if name not in features]:
        where = " or ".join(str(row["name"]) for row in rows)
        raise TargetError(
            f"--constraint {target.constraint}: no node of partition {where} has the feature {absent[0]}.",
            hint=f"There are: {', '.join(features) or 'none'}",
            code="slurm.constraint",
        )


def with_processors(spec: JobSpec, target: SlurmTarget, facts: Facts) -> JobSpec:
    """Return a job of several processes with a processor for each, as far as a node has them: Slurm would give one."""
    resources, distribution = spec.resources, spec.distribution
    if resources.cpus or is_single_process(spec) or any(one.startswith(_OF_PROCESSORS) for one in spec.options):
        return spec
    each = distribution.processes or resources.gpu_count or 1
    if distribution.kind == "tensorflow":  # their number is that of all nodes
        each = math.ceil((distribution.processes or 1) / resources.nodes)
    most = max((row["cpus"] for row in nodes_of(partitions_of(target, facts), facts)), default=0)
    resources = msgspec.structs.replace(resources, cpus=min(each, most or each))
    return msgspec.structs.replace(spec, resources=resources)


def check_job(spec: JobSpec, target: SlurmTarget, facts: Facts) -> None:
    """Raise :class:`SpecError` for what no node of the partition can give."""
    partitions = partitions_of(target, facts)
    if len(partitions) != 1:  # Slurm chooses one of them
        return
    for flag, reason, hint, field in _reasons(spec, partitions[0], facts):
        raise SpecError(f"{reason}.", hint=hint, code="slurm.limit", field=field).about(flag)


def _reasons(spec: JobSpec, partition: Mapping[str, Any], facts: Facts) -> Iterator[tuple[str, str, str, str]]:
    """Yield flag, reason, hint and field of what the partition does not allow."""
    resources, name = spec.resources, partition["name"]
    rows = nodes_of([partition], facts)
    longest, most = partition["max_time"], partition["max_nodes"] or partition["nodes"]
    if spec.timeout is not None and longest is not None and spec.timeout > longest:
        reason = f"partition {name} allows {duration_text(longest)}"
        yield f"--timeout {duration_text(spec.timeout)}", reason, f"Try: --timeout {duration_text(longest)}", "timeout"
    if resources.nodes > most:
        reason = f"partition {name} gives a job {counted(most, 'node')}"
        yield f"--nodes {resources.nodes}", reason, f"Try: --nodes {most}", "resources.nodes"
    if resources.gpus and resources.gpus < 1:
        reason = "Slurm assigns whole GPUs here"
        yield f"--gpus {resources.gpus:g}", reason, "Try: --gpus 1", "resources.gpus"
    kind = spec.distribution.kind
    if resources.nodes > 1 and (kind == "ray" or spec.distribution.parameter_servers):
        reason = "on several nodes of a cluster, torchrun, MPI or workers of TensorFlow are connected"
        yield f"--distribution {kind}", reason, "Try: --distribution pytorch, or --nodes 1", "distribution.kind"
    gpus = max((sum(row["gpus"].values()) for row in rows), default=0)
    if resources.gpus and resources.gpus > gpus:
        reason = f"no node of partition {name} has so many: {_gpus_text(rows)}"
        yield f"--gpus {resources.gpus:g}", reason, f"Try: --gpus {gpus}, and more --nodes", "resources.gpus"
    cpus = max((row["cpus"] for row in rows), default=0)
    if cpus and resources.cpus > cpus:
        reason = f"no node of partition {name} has more than {cpus} processors"
        yield f"--cpus {resources.cpus}", reason, f"Try: --cpus {cpus}", "resources.cpus"
    memory = max((row["memory"] for row in rows), default=0)
    if memory and resources.memory and _bytes(resources.memory) > memory:
        reason = f"no node of partition {name} has more than {bytes_text(memory)}"
        yield f"--mem {resources.memory}", reason, f"Try: --mem {memory >> 20}M", "resources.memory"


def nodes_of(partitions: Sequence[Mapping[str, Any]], facts: Facts) -> list[Mapping[str, Any]]:
    """Return the kinds of nodes of partitions."""
    names = [row["name"] for row in partitions]
    return [row for row in facts.get("nodes") or () if row["partition"] in names]


def _gpus_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the GPUs of the nodes of a partition, ``4 a100, 2 v100 a node``."""
    kinds: dict[str, int] = {}
    for row in rows:
        for kind, count in row["gpus"].items():
            kinds[kind] = max(count, kinds.get(kind, 0))
    text = ", ".join(f"{count} {kind}".strip() for kind, count in kinds.items())
    return f"{text} a node" if text else "it has none"


def _bytes(memory: str) -> int:
    return int(memory[:-1]) * _UNITS[memory[-1]]


def _features(constraint: str) -> list[str]:
    """Return the names of the features in a constraint; none for one that counts or groups."""
    if not constraint or any(letter in constraint for letter in "[]*()"):
        return []
    return [part for part in constraint.replace("|", "&").replace(",", "&").split("&") if part]


def probe_error(answer: Mapping[str, Any], target: SlurmTarget, python: str) -> TargetError | None:
    """Return what the job that looked at the shared folder has found to be wrong; ``None`` if nothing, or not known."""
    reason, shares = answer.get("reason"), "Attach it with a folder that login and compute nodes share: --workdir DIR"
    if reason in ("waits", "silent"):
        return None
    if text := answer.get("output"):
        where = answer.get("hosts") or "a node"
        hint = "Correct --modules or --setup." if target.modules or target.setup else shares
        return TargetError(f"A test job on {where} has failed: {text}.", hint=hint, code="slurm.probe")
    if reason:
        return TargetError(
            f"A test job on {answer.get('hosts') or 'a node'} has ended ({answer.get('state')}) without a result in the"
            f" folder for runs: the compute nodes do not share it, or have no {python}.",
            hint=shares, code="slurm.not_shared", field="workdir",
        )  # fmt: skip
    if not answer.get("shared"):
        return TargetError(
            f"{answer.get('host')} does not see the folder for runs.", hint=shares, code="slurm.not_shared",
            field="workdir",
        )  # fmt: skip
    if target.container_runtime and not answer.get("runtime"):
        return TargetError(
            f"--container-runtime {target.container_runtime}: {answer.get('host')} has no such program.",
            hint="Load its module first: --modules apptainer", code="slurm.runtime", field="container_runtime",
        )  # fmt: skip
    return None


def probe_note(answer: Mapping[str, Any]) -> str:
    """Return that the folder for runs was not looked at, and why; empty if it was."""
    if answer.get("reason") == "waits":
        return f"The shared folder was not tested, because the test job waits: {answer.get('state')}."
    if answer.get("reason") == "silent":
        return "The shared folder was not tested: the test job gave no result in time."
    return ""
