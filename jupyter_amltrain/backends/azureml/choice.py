"""Which environment a job gets that names none, and what is said of an environment before a job is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from jupyter_amltrain import requirements
from jupyter_amltrain.backends.azureml import curated, mlflow_pins, packages
from jupyter_amltrain.errors import AmlTrainError, EnvironmentFailed, PreflightError, SubmitError
from jupyter_amltrain.job_words import environment_of
from jupyter_amltrain.local_modules import local_modules
from jupyter_amltrain.snapshot import Snapshot
from jupyter_amltrain.spec.environment import Environment
from jupyter_amltrain.spec.job import JobSpec

#: Modules that one sentence names.
_NAMED = 5


class Wanted(NamedTuple):
    """What a script imports.

    Attributes
    ----------
    modules
        Those without which it ends.
    what
        What it is, for a sentence.
    """

    modules: tuple[str, ...]
    what: str


def completed(spec: JobSpec, default: str, gpus: bool) -> JobSpec:
    """`spec` with its environment. Blocks on the disk; asks nobody.

    One that names none gets its target's, else the curated one that has what the script imports, else what
    this kernel has of it (``--env kernel``), built by the service; where that cannot be said, the curated one that
    lacks least.

    Parameters
    ----------
    default
        The target's own, as ``--env`` takes it.

    Raises
    ------
    PreflightError
        See :func:`..requirements.captured`.
    """
    given = spec.environment
    if default and given.chosen and not given.python:  # a target's own is nearer than a notebook's
        given = Environment()
    if spec.job_type or given:
        return requirements.completed(spec)
    if default:
        try:
            return requirements.completed(_having(spec, environment_of(default)))
        except PreflightError as error:  # the line does not name it
            raise PreflightError(f"By default {error}") from None
    wanted = wanted_of(spec)
    name, lacking = curated.covering(wanted.modules, gpus)
    if not lacking:
        # What imports nothing is as well off in either.
        return _having(spec, Environment(name=name if wanted.modules else curated.default(gpus)))
    kernel = Environment(kernel=True, chosen=f"{name.partition('@')[0]} does not name {_listed(lacking)}")
    try:
        return requirements.completed(_having(spec, kernel))
    except PreflightError:
        return _having(spec, Environment(name=name))


def _having(spec: JobSpec, environment: Environment) -> JobSpec:
    return msgspec.structs.replace(spec, environment=environment)


def wanted_of(spec: JobSpec, snapshot: Snapshot | None = None) -> Wanted:
    """What the script of a job imports and does not bring along. Blocks on the disk.

    Parameters
    ----------
    snapshot
        The job's files, where they are known.
    """
    what = "The cell" if spec.cell else spec.script_name
    root = Path(spec.source or spec.notebook_dir or ".").expanduser()
    beside = (root / spec.script_name).parent  # the first place where Python looks
    try:
        text = spec.script.encode() or (root / spec.script_name).read_bytes()
        files: dict[str, str | bytes | Path] = {**(snapshot.files if snapshot else local_modules(text, root))}
        if snapshot:
            above = f"{PurePosixPath(spec.script_name).parent}/"
            files |= {name.removeprefix(above): each for name, each in files.items() if name.startswith(above)}
        elif beside != root:
            files |= local_modules(text, beside)
        own = {name.partition("/")[0].removesuffix(".py") for name in files}
        if not snapshot and spec.source:
            own |= {one.stem for one in (*root.iterdir(), *beside.iterdir())}
        found = [packages.needs(each, own) for each in requirements.reached(text, files)]
    except (OSError, UnicodeError, SubmitError):
        return Wanted((), what)  # the snapshot says it, with its words
    modules = tuple(dict.fromkeys(module for needs in found for module in needs))
    return Wanted(modules, what if len(modules) == len(found[0]) else f"{what} with its modules")


# ---- judging


def pins_of(environment: Mapping[str, str], conda: str = "") -> list[str] | None:
    """Packages of an environment (see :func:`.job_environment.environment_of`); ``None`` where nobody knows. Blocks.

    Parameters
    ----------
    conda
        Its conda file, as the service tells it.
    """
    try:
        if path := environment.get("conda"):
            return mlflow_pins.pip_pins(Path(path).read_text(encoding="utf-8"))
        if conda:
            return mlflow_pins.pip_pins(conda)
    except (EnvironmentFailed, OSError, UnicodeError, ImportError):
        return None  # who makes the environment says it, with his words
    known = curated.find(environment.get("name", ""))
    return curated.pins_of(known) if known else None


def notes(wanted: Wanted, environment: Environment, plain: Mapping[str, str], conda: str = "") -> tuple[str, ...]:
    """What a person should know of an environment before a machine is paid for, one sentence each.

    Parameters
    ----------
    environment, plain
        The job's, and as :func:`.job_environment.environment_of` says it.
    conda
        As in :func:`pins_of`.
    """
    if environment.kernel:
        return (_of_the_kernel(environment.chosen),) if environment.chosen else ()
    pins = pins_of(plain, conda)
    if pins is None:
        return ()
    name = shown(plain)
    said: list[str] = []
    missing = packages.lacking(wanted.modules, pins)
    if environment.derive:
        missing = [module for module in missing if module not in ("mlflow", "skops")]
    elif "mlflow" in wanted.modules:
        try:
            verdict = mlflow_pins.judged(pins, name)
        except ImportError:  # pragma: no cover - packaging comes with every kernel
            verdict = mlflow_pins.Verdict(None)
        if verdict.sentence:
            said.append(verdict.sentence)
            missing = [module for module in missing if module != "mlflow"]
    if "skops" in missing:
        missing.remove("skops")
        said.append(
            f"{wanted.what} saves a model of scikit-learn, and {name} does not name skops, which MLflow 3.14 and later"
            " need for that: --env kernel, --derive-env, or serialization_format='cloudpickle'."
        )
    if missing:
        said.append(
            f"{wanted.what} imports {_listed(missing, modules=True)}; {name} does not name {_listed(missing)}:"
            " --env kernel takes what is installed here, --env conda.yml what you list."
        )
    return tuple(said)


def unjudged(plain: Mapping[str, str]) -> bool:
    """Whether only the service can say what is in it."""
    return bool(plain.get("name")) and curated.find(plain["name"]) is None


def shown(plain: Mapping[str, str]) -> str:
    """An environment's name in a sentence."""
    if path := plain.get("conda"):
        return Path(path).name
    name = plain.get("name", "")
    named = re.fullmatch(r"azureml://registries/[^/]+/environments/([^/]+)/.*", name) or re.fullmatch(
        r"(?:azureml:)?([^/:@]+)(?:[:@].*)?", name
    )
    return named[1] if named else name


def _of_the_kernel(why: str) -> str:
    return (
        f"Its environment is made of this kernel's packages ({why}): built once by the service, which takes some"
        " minutes. Another: --env NAME"
    )


def _listed(found: Sequence[str], modules: bool = False) -> str:
    names = list(found) if modules else [packages.distributions(module)[0] for module in found]
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def of_target(text: str) -> dict[str, str]:
    """What is wrong with a target's own environment, by field."""
    try:
        from jupyter_amltrain.spec.environment import check_environment

        check_environment(environment_of(text))
    except AmlTrainError as error:
        return {"environment": str(error)}
    return {}


def joined(*parts: Iterable[str]) -> tuple[str, ...]:
    """Sentences, each once."""
    return tuple(dict.fromkeys(sentence for part in parts for sentence in part))
