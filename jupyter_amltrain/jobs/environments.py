"""Environments that an agent builds: their files become requirements, a Python version, and a conda file. Blocks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs import requirements
from jupyter_amltrain.jobs.project import own_modules
from jupyter_amltrain.jobs.requirement_files import RequirementReader, has_password, name_of, read_text
from jupyter_amltrain.schema.environment import Environment, EnvironmentRow
from jupyter_amltrain.schema.inputs import uploads
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.text import seconds_text, tilde

#: Package that lets a script log to MLflow, and the packages that contain it.
MLFLOW = "mlflow-skinny"
_HAVE_MLFLOW = frozenset({MLFLOW, "mlflow", "azureml-mlflow"})
#: Conda packages that uv brings itself.
_PYTHON_ONLY = frozenset({"python", "pip"})
#: Token in the address of a channel.
_CONDA_TOKEN = re.compile(r"://[^/\s]+/t/[^/\s$]+")
_EXPORT_TIMEOUT_S = 60.0


def completed(spec: JobSpec, has_our_disk: bool = True) -> JobSpec:
    """Return `spec` with the content of its environment; one that has it already (run again) stays as it is.

    Parameters
    ----------
    has_our_disk
        Whether the machine that builds it has the same paths as this one.

    Raises
    ------
    SpecError
        A file cannot be read, or is invalid; the message names the line.
    """
    environment = spec.environment
    if spec.job_type:
        return msgspec.structs.replace(spec, environment=_of_file(spec, has_our_disk)) if is_built(spec) else spec
    # On this machine the kernel's own Python has these packages; another one gets them.
    elsewhere = environment.kernel and not has_our_disk and not environment.image
    if not (is_built(spec) or elsewhere) or environment.packages or environment.conda_text or environment.python:
        return spec
    if environment.kernel:
        spec = requirements.completed(spec)
        named = {name_of(line) for line in environment.pip}  # which take precedence over the versions of the kernel
        pins = [line for line in spec.environment.packages if name_of(line) not in named]
        packages = (*pins, *environment.pip)
        filled = msgspec.structs.replace(spec.environment, packages=packages)
    else:
        filled = read_environment(environment, has_our_disk)
    notes = spec.notes
    if _imports_mlflow(spec) and not _has_mlflow(filled):
        filled = _with_mlflow(filled)
        notes = (*notes, f"The script imports mlflow: {MLFLOW} is added to the environment.")
    return msgspec.structs.replace(spec, environment=filled, notes=notes)


def is_built(spec: JobSpec) -> bool:
    """Whether an agent builds the environment of a job; of a file of ``az ml`` its conda file."""
    environment = spec.environment
    if spec.job_type:
        packages = environment.conda or environment.conda_text or environment.packages or environment.python
        return spec.job_type == "command" and bool(packages)
    return environment.is_buildable


def _of_file(spec: JobSpec, has_our_disk: bool) -> Environment:
    """Packages of the conda file that a file of ``az ml`` names or contains."""
    environment = spec.environment
    if environment.packages or environment.python or (environment.conda and environment.conda_text):  # run again
        return environment
    if environment.conda:
        return read_environment(environment, has_our_disk)
    where = f"{spec.script_name}, environment.conda_file"
    base = os.path.join(spec.notebook_dir, spec.script_name)
    inline = msgspec.structs.replace(environment, conda_text="")
    return _of_conda(inline, where, RequirementReader(where, has_our_disk), base, environment.conda_text)


def is_image(spec: JobSpec) -> bool:
    """Whether a job runs in a container on the machine of an agent; that of a file of ``az ml`` is for the service."""
    return bool(spec.environment.image) and not spec.job_type


def container_request(spec: JobSpec, has_our_disk: bool) -> dict[str, Any]:
    """Return the container of a job as the agent runs it (``agent/environments/docker.py``)."""
    sent = () if has_our_disk else uploads(spec.inputs)
    inputs = [given.path for name, given in spec.inputs.items() if given.type != "literal" and name not in sent]
    return {
        "image": spec.environment.image,
        "shm_size": spec.resources.shm_size,
        "args": docker_args(spec),
        "inputs": [path for path in inputs if path.startswith("/")],
    }


def docker_args(spec: JobSpec) -> list[str]:
    """Return the options of ``--docker-args``.

    Raises
    ------
    SpecError
        A quote is not closed, or the text does not begin with an option.
    """
    try:
        args = shlex.split(spec.resources.docker_args)
    except ValueError as error:
        args, reason = [""], f"{error}".lower()
    else:
        reason = "expected options of docker run"
    if args and not args[0].startswith("-"):
        raise SpecError(
            f"--docker-args {spec.resources.docker_args[:80]!r}: {reason}.",
            hint="Example: --docker-args=--ipc=host",
            code="spec.value",
            field="resources.docker_args",
        )
    return args


def read_environment(environment: Environment, has_our_disk: bool = True) -> Environment:
    """Return an environment with the content of its file; see :func:`completed`."""
    name = os.path.relpath(environment.file) if environment.file else ""
    name = environment.file if name.startswith("..") else name
    reader = RequirementReader(name, has_our_disk)
    filled = environment
    if environment.requirements:
        filled = msgspec.structs.replace(environment, packages=reader.read(environment.requirements))
    elif environment.project:
        filled = _of_project(environment, name)
    elif environment.conda:
        filled = _of_conda(environment, name, reader, environment.conda, read_text(environment.conda, f"--env {name}"))
    if filled.conda_text and environment.pip:
        return msgspec.structs.replace(filled, conda_text=_conda_with(filled.conda_text, environment.pip))
    return msgspec.structs.replace(filled, packages=(*filled.packages, *environment.pip))


def _error(reason: str, hint: str, code: str = "environment.file") -> SpecError:
    return SpecError(f"--env {reason}.", hint=hint, code=code, field="environment")


# ---- pyproject.toml


def _of_project(environment: Environment, name: str) -> Environment:
    """Dependencies of a project, exactly those of ``uv.lock`` if there is one; the project is not installed."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]
    try:
        document: dict[str, Any] = tomllib.loads(read_text(environment.project, f"--env {name}"))
    except tomllib.TOMLDecodeError as error:
        raise _error(f"{name}: {error}", "Correct the file.") from None
    project = document.get("project")
    if not isinstance(project, dict):
        raise _error(f"{name}: it has no [project] table", "Add one with dependencies, or use requirements.txt.")
    if "dependencies" in (project.get("dynamic") or ()):
        raise _error(f"{name}: its dependencies are dynamic", "List them in [project], or use requirements.txt.")
    python = str(project.get("requires-python") or "")
    if os.path.exists(os.path.join(os.path.dirname(environment.project), "uv.lock")):
        locked = _exported(environment.project, name, _extra_options(environment.extras, document, name))
        return msgspec.structs.replace(environment, python=python, packages=locked)
    lines = project.get("dependencies") or []
    sources = ((document.get("tool") or {}).get("uv") or {}).get("sources") or {}
    if isinstance(sources, dict) and sources:
        raise _error(f"{name}: [tool.uv.sources] needs a lock file", "Create uv.lock beside it: uv lock")
    if not isinstance(lines, list):
        raise _error(f"{name}: dependencies must be a list", 'Example: dependencies = ["pandas>=2"]')
    extras = _extras_of(document)
    _extra_options(environment.extras, document, name)
    lines = [*lines, *(line for extra in environment.extras for line in extras[extra])]
    reader = RequirementReader(name)
    packages = [
        line
        for number, text in enumerate(lines, 1)
        for line in reader.line(str(text), os.path.dirname(environment.project), f"{name}, dependency {number}")
    ]
    return msgspec.structs.replace(environment, python=python, packages=tuple(packages))


def _extras_of(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the requirements of the extras and the dependency groups of a project, by name."""
    extras = dict((document.get("project") or {}).get("optional-dependencies") or {})
    groups = document.get("dependency-groups") or {}

    def lines(name: str, above: tuple[str, ...] = ()) -> list[str]:
        found: list[str] = []
        for one in groups.get(name) or ():
            inner = one.get("include-group") if isinstance(one, dict) else None
            if isinstance(one, str):
                found.append(one)
            elif inner and inner not in above:
                found += lines(inner, (*above, name))
        return found

    return {**{name: lines(name) for name in groups}, **{name: [*map(str, items)] for name, items in extras.items()}}


def _extra_options(names: Sequence[str], document: Mapping[str, Any], file: str) -> list[str]:
    """Return the options of uv for extras and dependency groups of a project.

    Raises
    ------
    SpecError
        The project has no such extra.
    """
    known, extras = _extras_of(document), (document.get("project") or {}).get("optional-dependencies") or {}
    for name in names:
        if name not in known:
            has = f"It has: {', '.join(sorted(known))}." if known else "It has none."
            raise _error(f"{file}[{name}]: there is no such extra", has)
    return [word for name in names for word in ("--extra" if name in extras else "--group", name)]


def _exported(path: str, name: str, extras: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the exact packages of ``uv.lock``, with the options `extras`."""
    uv = submitter_uv()
    if not uv:
        raise _error(f"{name}: uv is needed to read uv.lock", "Install it: %pip install uv", "environment.no_uv")
    argv = [uv, "export", "--frozen", "--no-emit-project", "--no-dev", "--no-hashes", "--no-header", "--no-annotate"]
    folder = os.path.dirname(path)
    try:
        done = subprocess.run(
            [*argv, *extras, "--directory", folder], capture_output=True, text=True, timeout=_EXPORT_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _error(f"{name}: uv export failed ({error})", "Try it yourself: uv export --frozen") from None
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("error")), "uv export failed")
        raise _error(f"{name}: {reason.removeprefix('error: ').rstrip('.')}", "Create the lock again: uv lock")
    reader = RequirementReader(name)
    return tuple(
        line
        for number, text in enumerate(done.stdout.splitlines(), 1)
        for line in reader.line(text, folder, f"uv.lock, line {number} of its export")
    )


def submitter_uv() -> str:
    """Return the path of ``uv`` of this interpreter or on the PATH; empty if it is not installed."""
    import shutil

    beside = os.path.dirname(sys.executable)
    return shutil.which("uv") or shutil.which("uv", path=beside) or ""


# ---- conda.yml


def _of_conda(environment: Environment, name: str, reader: RequirementReader, path: str, content: str) -> Environment:
    """A conda file: with ``python``, ``pip`` and a ``pip:`` list alone it needs no conda."""
    dependencies, document = _conda_document(content, name)
    conda = [item for item in dependencies if isinstance(item, str)]
    unknown = [item for item in dependencies if not isinstance(item, str | dict)]
    lists = [item for item in dependencies if isinstance(item, dict)]
    if unknown or any(set(item) != {"pip"} or not isinstance(item["pip"], list) for item in lists):
        raise _error(f"{name}: dependencies contains an entry that is no package", "Example: - python=3.11")
    pip = [
        line
        for item in lists
        for number, text in enumerate(item["pip"], 1)
        for line in reader.line(str(text), os.path.dirname(path), f"{name}, entry {number} of pip:")
    ]
    channels = document.get("channels") or ["conda-forge"]
    for text in (*(channels if isinstance(channels, list) else [channels]), *conda):
        if has_password(str(text)) or _CONDA_TOKEN.search(str(text)):
            hint = "Write it without, and keep the login there: micromamba auth login, or conda token set."
            raise _error(f"{name}: the address of a channel contains a password, which would be stored", hint)
    versions = {_conda_name(item): _conda_version(item) for item in conda}
    if set(versions) <= _PYTHON_ONLY:
        return msgspec.structs.replace(environment, python=versions.get("python", ""), packages=tuple(pip))
    return msgspec.structs.replace(environment, conda_text=_conda_text(channels, conda, pip))


def _conda_document(content: str, name: str) -> tuple[list[Any], dict[str, Any]]:
    import yaml  # type: ignore[import-untyped]

    try:
        document = yaml.safe_load(content)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise _error(f"{name}{line}: {getattr(error, 'problem', None) or 'not YAML'}", "Correct the file.") from None
    dependencies = document.get("dependencies") if isinstance(document, dict) else None
    if not isinstance(dependencies, list):
        raise _error(f"{name}: it has no list of dependencies", "Example: dependencies: [python=3.11, pip]")
    return dependencies, document


def _conda_name(item: str) -> str:
    return re.split(r"[\s=<>!~\[]", item.rpartition("::")[2].strip(), maxsplit=1)[0].lower()


def _conda_version(item: str) -> str:
    """Return the version of ``python=3.11`` or ``python>=3.10,<3.12`` as uv reads it; empty without one."""
    version = item.rpartition("::")[2].strip()[len(_conda_name(item)) :].strip()
    if match := re.fullmatch(r"={1,2}\s*([\d.]+?)(?:\.\*|\*)?(?:=.*)?", version):
        return match[1]
    return re.sub(r"\s+", "", version)


def _conda_text(channels: Any, conda: list[str], pip: list[str]) -> str:
    import yaml

    dependencies: list[Any] = sorted(conda)
    if pip:
        dependencies = [*dependencies, *([] if any(_conda_name(item) == "pip" for item in conda) else ["pip"])]
        dependencies.append({"pip": pip})
    return str(yaml.safe_dump({"channels": channels, "dependencies": dependencies}, sort_keys=False))


def _conda_with(text: str, packages: tuple[str, ...]) -> str:
    """Return a conda file with more packages of pip."""
    import yaml

    document = yaml.safe_load(text)
    conda = [item for item in document["dependencies"] if isinstance(item, str)]
    pip = [line for item in document["dependencies"] if isinstance(item, dict) for line in item["pip"]]
    return _conda_text(document["channels"], conda, [*pip, *packages])


# ---- MLflow


def _imports_mlflow(spec: JobSpec) -> bool:
    """Whether the script, or a module of its own that it needs, imports MLflow."""
    if spec.job_type:
        return False
    try:
        text = requirements.with_notebook(spec, requirements.script_bytes(spec))
    except OSError:
        return False  # the snapshot reports it
    own = own_modules(spec, text)
    contents = [text, *(path.read_bytes() for path in own.values() if path.suffix == ".py")]
    return any(
        one.name.partition(".")[0] == "mlflow"
        for content in contents
        if b"mlflow" in content
        for one in requirements.imports(content)
    )


def _has_mlflow(environment: Environment) -> bool:
    if environment.conda_text:
        return re.search(r"^\s*- (?:[\w-]+::)?mlflow", environment.conda_text, re.MULTILINE) is not None
    return any(name_of(line) in _HAVE_MLFLOW for line in environment.packages)


def _with_mlflow(environment: Environment) -> Environment:
    if environment.conda_text:
        return msgspec.structs.replace(environment, conda_text=_conda_with(environment.conda_text, (MLFLOW,)))
    return msgspec.structs.replace(environment, packages=(*environment.packages, MLFLOW))


def build_request(environment: Environment, base: str, has_our_disk: bool) -> dict[str, Any]:
    """Return a completed environment as the agent builds it (``agent/environments/environment_store.py``).

    Parameters
    ----------
    base
        Interpreter of the target's jobs without an environment.
    """
    return {
        "packages": list(environment.packages) if not environment.conda_text else [],
        "python": "" if environment.conda_text else environment.python,
        "base": base,
        "conda": environment.conda_text,
        "label": environment.label,
        "tool": submitter_uv() if has_our_disk else "",
    }


def for_service(environment: Environment) -> Environment:
    """Return a completed environment as a service builds it: the conda file itself, or packages of pip.

    Raises
    ------
    SpecError
        It has a package of this machine, or a file of constraints.
    """
    if environment.conda and not environment.pip:
        return Environment(conda=environment.conda)
    if environment.conda_text:
        return Environment(conda_text=environment.conda_text)
    for line in environment.packages:
        if line.startswith("-c ") or "  # " in line:  # as our own agent reads it
            shown = line.partition("  # ")[0]
            raise _error(f"{environment.label}: the service cannot install {shown!r}", "Name packages of an index.")
    plain = re.fullmatch(r"[\d.]+", environment.python)
    python = environment.python if plain else f"{sys.version_info.major}.{sys.version_info.minor}"
    return Environment(kernel=True, python=python, packages=environment.packages)


def note(environment: Environment, found: Mapping[str, Any]) -> str:
    """Return what a user should know before a submit: whether a build is needed, and how long the last one took.

    Parameters
    ----------
    found
        Reply of the agent to ``find``.
    """
    subject = f"Environment {tilde(environment.label)}"
    if found["built"] is not None:
        return f"{subject} is built already ({found['key']})."
    if found["last"] is not None:
        return f"{subject} will be built; the last build took {seconds_text(found['last'])}."
    return f"{subject} will be built before the run starts, once for all runs with the same packages."


def file_note(spec: JobSpec, found: Mapping[str, Any] | None, target: str) -> str:
    """Return what a machine uses of the environment of a file of ``az ml``; empty if the file names none.

    Parameters
    ----------
    found
        Reply of the agent to ``find``; ``None`` if the file has no list of packages.
    """
    environment = spec.environment
    if found is not None and not found["reason"]:
        image = f" The image {environment.image} is not used on {target!r}." if environment.image else ""
        return note(msgspec.structs.replace(environment, conda=environment.conda or spec.script_name), found) + image
    if found is None and not environment:
        return ""
    reason = f"cannot be built there: {found['reason']}" if found is not None else "is for a service"
    return f"The environment of {spec.script_name} {reason}. The job runs with the Python of {target!r}."


def image_note(image: str, found: Mapping[str, Any]) -> str:
    """Return what a user should know before a submit with an image; `found` is the agent's reply to ``find_image``."""
    if found["id"]:
        return f"Image {image} is there already ({found['id'].rpartition(':')[2][:12]})."
    if found["last"] is not None:
        return f"Image {image} will be pulled; the last pull took {seconds_text(found['last'])}."
    return f"Image {image} will be pulled before the run starts, once for all runs on the machine."


def row_of(row: Mapping[str, Any], target: str) -> EnvironmentRow:
    """Return an environment as the agent lists it."""
    spec = row.get("spec") or {}
    requested = [*spec.get("packages", ()), *str(spec.get("conda") or "").splitlines()]
    return EnvironmentRow(
        target=target,
        key=str(row["key"]),
        label=str(spec.get("label") or ""),
        path=str(row["path"]),
        python=str(spec.get("python") or ""),
        packages=tuple(map(str, row.get("packages") or ())),
        requested=tuple(map(str, requested)),
        seconds=row.get("seconds"),
        bytes=row.get("bytes"),
        built=float(row.get("built") or 0.0),
        used=float(row.get("used") or 0.0),
        in_use=bool(row.get("in_use")),
        tool=str(row.get("tool") or ""),
    )
