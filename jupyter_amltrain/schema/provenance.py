"""Provenance of a run: who submitted what, from which state of the project, and what it ran with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class GitState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the git repository that a job's folder belongs to, at the submit.

    Attributes
    ----------
    commit
        Hash of the commit that is checked out; empty before the first one.
    branch
        Name of the branch; empty for a detached head.
    remote
        Address of the remote without credentials; empty for none.
    dirty
        Whether tracked files of the folder differ from the commit.
    prefix
        Path of the folder in the repository, with a final slash; empty for its top folder.
    diff_bytes
        Size of the differences that are stored as ``git.diff`` of the run.
    diff_cut
        Whether further differences are not stored, because there are too many.
    """

    commit: str = ""
    branch: str = ""
    remote: str = ""
    dirty: bool = False
    prefix: str = ""
    diff_bytes: int = 0
    diff_cut: bool = False

    def mlflow_tags(self) -> dict[str, str]:
        """Return the state under MLflow's names."""
        tags = {
            "mlflow.source.git.commit": self.commit,
            "mlflow.source.git.branch": self.branch,
            "mlflow.source.git.repoURL": self.remote,
            "mlflow.source.git.dirty": str(self.dirty).lower(),
        }
        return {name: value for name, value in tags.items() if value} if self.commit else {}


class DataDigest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of an input of a job that is a local file or folder, or was downloaded.

    Attributes
    ----------
    path
        File or folder on the submitter's machine, or the address without its query.
    sha256
        Digest of the names and contents, of a download that of the file; empty for data that is too large to be
        read at each submit.
    files, bytes
        Number of files, and their size.
    """

    path: str
    sha256: str = ""
    files: int = 0
    bytes: int = 0


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Machine on which a run's first process ran.

    Attributes
    ----------
    platform
        System, release and architecture.
    cpus
        Cores that the run could use.
    memory
        Bytes.
    gpus
        Names of the run's GPUs.
    driver, cuda
        Versions of the NVIDIA driver, and of CUDA that it supports.
    """

    host: str = ""
    platform: str = ""
    processor: str = ""
    cpus: int | None = None
    memory: int | None = None
    gpus: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about the origin of a run; empty fields are unknown.

    The submitter writes `user`, `host`, `git` and `inputs` into ``job.json``, the agent `python`, `packages`,
    `machine` and the `inputs` that it downloaded into ``provenance.json``.

    Attributes
    ----------
    user, host
        Who submitted the run, and on which machine.
    script_sha256, snapshot_sha256
        Digests of the script, and of all files of its code.
    git
        State of the project; ``None`` outside of a repository.
    inputs
        Local and downloaded inputs by name.
    python, executable
        Version and path of the job's interpreter.
    packages
        Versions of its packages by normalized name.
    image
        Image of the job's container with its id; empty for none.
    """

    user: str = ""
    host: str = ""
    submitted: float = 0.0
    script_sha256: str = ""
    snapshot_sha256: str = ""
    git: GitState | None = None
    inputs: dict[str, DataDigest] = {}
    python: str = ""
    executable: str = ""
    packages: dict[str, str] = {}
    image: str = ""
    machine: Machine = Machine()


def provenance_of(job: Mapping[str, Any], agent: Mapping[str, Any], telemetry: Mapping[str, Any]) -> Provenance:
    """Combine what the files of a run say about its origin; a value of a wrong type is unknown.

    Parameters
    ----------
    job
        Content of ``job.json``.
    agent
        Content of ``provenance.json``.
    telemetry
        First line of the telemetry, which has the GPUs.
    """
    submitter = _converted(job.get("provenance") or {}, Provenance) or Provenance()
    spec, snapshot, python = (_mapping(job.get("spec")), _mapping(job.get("snapshot")), _mapping(agent.get("python")))
    machine = _converted(agent.get("machine") or {}, Machine) or Machine(host=_text(telemetry.get("host")))
    gpus = telemetry.get("gpus")
    submitted = job.get("submitted")
    downloads = {name: _converted(data, DataDigest) for name, data in _mapping(agent.get("inputs")).items()}
    return msgspec.structs.replace(
        submitter,
        inputs={**submitter.inputs, **{name: data for name, data in downloads.items() if data is not None}},
        submitted=float(submitted) if isinstance(submitted, (int, float)) else 0.0,
        script_sha256=_text(spec.get("source_sha256")),
        snapshot_sha256=_text(snapshot.get("digest")),
        python=_text(python.get("version")),
        executable=_text(python.get("executable")),
        packages={_text(name): _text(version) for name, version in _mapping(agent.get("packages")).items()},
        image=_text(agent.get("image")),
        machine=msgspec.structs.replace(
            machine,
            gpus=tuple(_text(_mapping(gpu).get("name")) for gpu in gpus) if isinstance(gpus, list) else (),
            driver=_text(telemetry.get("driver")),
            cuda=_text(telemetry.get("cuda")),
        ),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _converted(value: Any, kind: type[Any]) -> Any:
    """Return a Struct of a mapping that a job could have written; ``None`` if it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, TypeError):
        return None


#: Groups of facts in which two runs can differ, in the order of a list.
GROUPS = ("code", "git", "data", "python", "packages", "hardware")


def facts_of(provenance: Provenance) -> dict[str, dict[str, Any]]:
    """Return what can differ between two runs, by :data:`GROUPS`; unknown facts are left out."""
    machine, git = provenance.machine, provenance.git or GitState()
    facts: dict[str, dict[str, Any]] = {
        "code": {"script": provenance.script_sha256[:12], "snapshot": provenance.snapshot_sha256[:12]},
        "git": {"commit": git.commit[:12], "branch": git.branch, "uncommitted changes": git.dirty and "yes"},
        "data": {name: _digest_text(data) for name, data in provenance.inputs.items()},
        "python": {"version": provenance.python, "image": provenance.image},
        "packages": dict(provenance.packages),
        "hardware": {
            "host": machine.host,
            "platform": machine.platform,
            "processor": machine.processor,
            "cpus": machine.cpus,
            "memory": machine.memory,
            "GPUs": ", ".join(machine.gpus),
            "driver": machine.driver,
            "cuda": machine.cuda,
        },
    }
    return {group: {k: v for k, v in facts[group].items() if v not in ("", None, False)} for group in GROUPS}


def _digest_text(data: DataDigest) -> str:
    return data.sha256[:12] or f"{data.files} files, {data.bytes} bytes"


class Difference(msgspec.Struct, frozen=True):
    """A fact that differs between runs.

    Attributes
    ----------
    group
        One of :data:`GROUPS`.
    values
        One for each run; ``None`` where the fact is unknown.
    """

    group: str
    name: str
    values: tuple[Any, ...]


def differences(provenances: Sequence[Provenance], groups: Sequence[str] = GROUPS) -> list[Difference]:
    """Return the facts that differ between runs.

    A group of which one run knows nothing, such as the packages of a run of an older version, is left out.
    """
    columns = [facts_of(provenance) for provenance in provenances]
    found = []
    for group in groups:
        parts = [column[group] for column in columns]
        if not all(parts) and group not in ("git", "data"):
            continue
        for name in sorted(dict.fromkeys(name for part in parts for name in part), key=str.lower):
            values = tuple(part.get(name) for part in parts)
            if len(set(values)) > 1:
                found.append(Difference(group, name, values))
    return found
