"""A job's interpreter and packages, as data."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.asset_names import ADDRESS, ASSET

_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}"
#: ``name:3``, ``name@latest``, both also with the prefix of assets, an address in a registry
#: (``.../registries/R/environments/name/versions/3``), or the whole resource id.
_REFERENCE = re.compile(
    rf"(?:{ASSET})?{_NAME}(?::{_NAME}|@{_NAME})"
    rf"|{ADDRESS}registries/{_NAME}/environments/{_NAME}/(?:versions|labels)/{_NAME}"
    rf"|(?:{ASSET})?/subscriptions/[^\s]+/environments/[^\s]+"
)
#: A Docker reference: an optional registry, a path in lower case, a tag or digest.
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


#: ``--env kernel``: the packages that the script imports, in the versions installed in this kernel.
KERNEL = "kernel"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Environment of a job's Python; an empty one means the target's default.

    Attributes
    ----------
    name
        An environment that the service knows: ``sklearn@latest``, ``mine:3``, or an address in a registry.
    image
        A Docker image with an interpreter; with `conda`, the image that the conda environment is built on.
    conda
        Absolute path of a conda file on the submitter's machine.
    requirements, project
        Absolute path of a ``requirements.txt`` or a ``pyproject.toml`` on the submitter's machine.
    extras
        Extras and dependency groups of `project` whose packages are included.
    pip
        Requirements of the line itself, as pip writes them: alone, or in addition to a file or to `kernel`.
    build
        Absolute path of a folder with a Dockerfile.
    derive
        If the MLflow pins of the named environment cannot log, use an environment derived from it with pins that can.
    kernel
        The submitter's Python version, with the packages that the script imports as they are installed there.
    python, packages
        Content of `kernel` or of a file, filled in at the submit: ``3.11``, and lines of a requirements file (see
        :mod:`jupyter_amltrain.jobs.environments`). With them a job that is submitted again gets the same packages.
    conda_text
        Content of a conda file that names conda packages, filled in at the submit.
    chosen
        Reason why this environment was chosen; empty if the job's own line names it.
    """

    name: str = ""
    image: str = ""
    conda: str = ""
    build: str = ""
    derive: bool = False
    kernel: bool = False
    python: str = ""
    packages: tuple[str, ...] = ()
    chosen: str = ""
    requirements: str = ""
    project: str = ""
    extras: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    conda_text: str = ""

    def __bool__(self) -> bool:
        """Whether an environment is requested."""
        return bool(self.flag_value or self.derive or self.conda_text)

    @property
    def file(self) -> str:
        """File that lists the packages; empty for none."""
        return self.requirements or self.project or self.conda

    @property
    def is_buildable(self) -> bool:
        """Whether the agent on a machine builds it, as opposed to a service or a Docker engine."""
        return bool(self.file or self.pip or (self.kernel and self.packages)) and not self.image

    @property
    def label(self) -> str:
        """What the user calls it: the value of ``--env``, and the packages of ``--pip``."""
        texts = (self.file or KERNEL * self.kernel, *(f"--pip {spec}" for spec in self.pip))
        return " ".join(filter(None, texts)) or "conda_file of a job"

    @property
    def conda_file(self) -> dict[str, Any]:
        """Conda file of the packages, as the service builds it; MLflow goes through our agent and needs no plugin."""
        if self.conda_text:
            import yaml  # type: ignore[import-untyped]

            document: dict[str, Any] = yaml.safe_load(self.conda_text)
            return document
        pip: list[Any] = [{"pip": list(self.packages)}] if self.packages else []
        return {"channels": ["conda-forge"], "dependencies": [f"python={self.python}", "pip", *pip]}

    @property
    def flag_value(self) -> str:
        """Value of ``--env``."""
        parts = (KERNEL * self.kernel, self.file, self.image, self.name, self.build, " ".join(self.pip))
        return ",".join(part for part in parts if part)


class EnvironmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """An environment that is built on a target, or a named one of a workspace.

    Attributes
    ----------
    key
        Digest of its content, by which it is named.
    label
        What the user called it when it was built: a file, ``--pip`` and its packages.
    python
        Version that was requested; empty for that of the target's jobs.
    packages
        Every installed package with its version, as a requirements file lists it.
    requested
        Lines of its specification.
    seconds
        Duration of its build.
    bytes
        Size of its files; ``None`` if it is not known.
    built, used
        Unix seconds of its build and of its last use; 0 for one that is not built.
    names
        The user's names for it.
    in_use
        Whether a run uses it now.
    tool
        Program that built it: ``uv``, ``micromamba``, ...
    version, versions
        Of a workspace: the version, and all versions, newest first; empty for one that an agent builds.
    image
        Of a workspace: the image that it is, or that its packages are installed in.
    curated
        Whether it is one of the service's own.
    """

    target: str
    key: str
    label: str
    path: str
    python: str = ""
    packages: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
    seconds: float | None = None
    bytes: int | None = None
    built: float = 0.0
    used: float = 0.0
    names: tuple[str, ...] = ()
    in_use: bool = False
    tool: str = ""
    version: str = ""
    versions: tuple[str, ...] = ()
    image: str = ""
    curated: bool = False


def check_environment(environment: Environment) -> None:
    """Raise :class:`SpecError` for an invalid environment."""
    kinds = ("kernel", "name", "image", "conda", "build", "requirements", "project")
    requested = [name for name in kinds if getattr(environment, name)]
    if environment.pip and ("image" in requested or "name" in requested or "build" in requested):
        raise SpecError(
            "packages can be added to a file or to those of this kernel, not to a named environment or an image.",
            hint=f"Try: --env requirements.txt --pip {environment.pip[0][:60]!r}",
            code="spec.value",
            field="environment.pip",
        ).about("--pip")
    if len(requested) > 1 and requested not in (["image", "conda"], ["kernel", "image"]):
        raise SpecError(
            f"give one of {KERNEL}, a name, an image, a conda file, or a folder"
            f" with a Dockerfile. Only {KERNEL} or a conda file can be combined with an image.",
            hint="Try: --env conda.yml",
            code="spec.value",
            field="environment",
        ).about(f"--env {environment.flag_value[:200]}")
    if environment.name and not _REFERENCE.fullmatch(environment.name):
        raise SpecError(
            "expected the name of an environment with its version.",
            hint=f"Try: --env {re.sub(r'[^A-Za-z0-9_.-]', '', environment.name)[:60] or 'NAME'}@latest",
            code="spec.value",
            field="environment",
        ).about(f"--env {environment.name[:200]}")
    if environment.image and not _IMAGE.fullmatch(environment.image):
        raise SpecError(
            "expected the name of a Docker image.",
            hint="Try: --env python:3.12",
            code="spec.value",
            field="environment",
        ).about(f"--env {environment.image[:200]}")
    if environment.derive and not environment.name:
        raise SpecError(
            "an environment is derived from a named one, but --env names none.",
            hint="Try: --env NAME@latest --derive-env",
            code="spec.value",
            field="environment.derive",
        ).about("--derive-env")
