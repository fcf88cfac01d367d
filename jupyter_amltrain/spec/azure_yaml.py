"""A job as a file of the ``az ml`` v2 schema: read, placed on a compute, told back as a :class:`JobSpec`.

What a file means is the service's business (its SDK loads it, :mod:`..backends.azureml.process.yaml_jobs`); here
are its text, the lines of its keys, and of ``type: command`` the fields that a job of ours has too.
:mod:`.azure_yaml_out` writes such files.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.errors import MissingDependency, SpecError
from jupyter_amltrain.spec.azure_yaml_fields import FIELDS
from jupyter_amltrain.spec.inputs import is_address
from jupyter_amltrain.spec.job import JobSpec, validated

#: What the service's SDK loads as a job of its own (``Job._resolve_cls_and_type``); ``parallel`` is a step.
TYPES = ("command", "spark", "automl", "sweep", "pipeline", "import")
SUFFIXES = (".yml", ".yaml")
#: Beyond it a file is no job that a person wrote.
_LARGEST = 1 << 20
_BINDING = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.-]+)\s*\}\}")
#: Keys and numbers from the top of a file.
Keys = tuple[str | int, ...]


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A job's file, parsed.

    Attributes
    ----------
    text
        As it was written.
    name
        Of the file, for messages.
    folder
        Absolute folder that its relative paths begin at.
    doc
        What it says.
    lines
        1-based line of each key.
    """

    text: str
    name: str
    folder: str
    doc: dict[str, Any]
    lines: dict[Keys, int]

    @property
    def type(self) -> str:
        """One of :data:`TYPES`."""
        return str(self.doc.get("type") or "command")

    @property
    def compute(self) -> str:
        """Name of the compute that it asks for; empty for none."""
        settings = self.doc.get("settings")
        said = self.doc.get("compute")
        if said is None and self.type == "pipeline" and isinstance(settings, dict):
            said = settings.get("default_compute")
        return str(said or "").rpartition("/")[2].removeprefix("azureml:")

    def fault(self, path: Sequence[str | int], what: str, hint: str = "") -> SpecError:
        """An error of a key, with its line: that of the nearest key above it where it is not there."""
        keys = tuple(path)
        line = next((self.lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), 0)
        where = f" line {line}" if line else ""
        key = f", {'.'.join(map(str, keys))}" if keys else ""
        return SpecError(f"{self.name}{where}{key}: {what}", hint=hint)


def is_file(text: str) -> bool:
    """Whether a word of a submit line is a job's file."""
    return text.lower().endswith(SUFFIXES)


def load(path: str | os.PathLike[str]) -> JobFile:
    """Read a file.

    Raises
    ------
    SpecError
        It cannot be read, is no YAML, or no job; names line and key.
    """
    place = Path(path).expanduser().absolute()
    try:
        with open(place, encoding="utf-8-sig") as file:
            text = file.read(_LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(
            f"Cannot read the job {str(path)!r}: {why}.", hint=f"The working folder is {Path.cwd()}."
        ) from None
    if len(text) > _LARGEST:
        raise SpecError(f"{place.name} is over 1 MiB: no job of Azure ML.")
    return parse(text, place.name, str(place.parent))


def parse(text: str, name: str = "job.yml", folder: str = "") -> JobFile:
    """As :func:`load`, of the text."""
    yaml = _yaml()
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        doc = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = " ".join(str(getattr(error, "problem", None) or error).split())
        raise SpecError(
            f"{name}{f' line {mark.line + 1}' if mark else ''}: {why}.",
            hint="Mind the indentation, and quote what holds ': ' or begins with a sign.",
        ) from None
    if not isinstance(doc, dict):
        raise SpecError(f"{name} is no job: it holds no keys.", hint="It begins, say, with 'command: python train.py'.")
    found = JobFile(text=text, name=name, folder=folder, doc=doc, lines={})
    _mark(found, node, ())
    kind = found.type
    if kind == "parallel":
        raise found.fault(
            ("type",), "parallel is a step of a pipeline.", "Put it below jobs: in a file of type: pipeline."
        )
    if kind not in TYPES:
        raise found.fault(("type",), f"{kind[:80]!r} is no type of job.", f"There are: {', '.join(TYPES)}.")
    return found


def _mark(found: JobFile, node: Any, path: Keys) -> None:
    """Remember the lines of keys; a key that stands twice would be one of the two, in silence."""
    if hasattr(node, "value") and isinstance(node.value, list) and len(path) < 20:
        for number, part in enumerate(node.value):
            if isinstance(part, tuple):
                key, value = part
                here = (*path, str(key.value))
                twice = here in found.lines
                found.lines[here] = key.start_mark.line + 1
                if twice:
                    raise found.fault(here, "the key stands twice.", "Remove one.")
            else:
                value, here = part, (*path, number)
                found.lines[here] = part.start_mark.line + 1
            _mark(found, value, here)


def with_params(job: JobFile, params: Mapping[str, Any]) -> JobFile:
    """The job with values of ``--param`` as its inputs; lines stay those of the file.

    Raises
    ------
    SpecError
        It has no such input.
    """
    if not params:
        return job
    doc = copy.deepcopy(job.doc)
    inputs = doc.get("inputs")
    for name, value in params.items():
        if not isinstance(inputs, dict) or name not in inputs:
            there = ", ".join(map(str, inputs)) if isinstance(inputs, dict) and inputs else "none"
            raise job.fault(("inputs",), f"--param {name}: the job has no such input.", f"It has: {there}.")
        before = inputs[name]
        if isinstance(before, dict) and "path" in before:
            value = str(value) if is_address(str(value)) else os.path.abspath(os.path.expanduser(str(value)))
            inputs[name] = {**before, "path": value}
        elif isinstance(value, list | dict) or value is None:
            raise job.fault(("inputs", name), f"--param {name}: an input is a number, a text or true/false.")
        else:
            inputs[name] = value
    return msgspec.structs.replace(job, doc=doc)


def placed(job: JobFile, compute: str, size: str = "") -> dict[str, Any]:
    """What is sent: the file with a target's compute.

    Parameters
    ----------
    compute
        Name at the service; empty for the service's own machines (serverless).
    size
        Of such a machine, where the file names none.
    """
    doc = copy.deepcopy(job.doc)
    if job.type == "pipeline":
        doc.pop("compute", None)
        settings = dict(doc.get("settings") or {})
        settings["default_compute"] = f"azureml:{compute or 'serverless'}"
        return doc | {"settings": settings}
    if job.type == "import":
        return doc
    if compute:
        return doc | {"compute": f"azureml:{compute}"}
    doc.pop("compute", None)
    if size and job.type in ("command", "sweep", "automl"):
        doc["resources"] = {"instance_type": size, **(doc.get("resources") or {})}
    return doc


def dumped(doc: Mapping[str, Any]) -> str:
    """The text of a file."""
    text: str = _yaml().dump(
        dict(doc), Dumper=_dumper(), sort_keys=False, default_flow_style=False, allow_unicode=True, width=110
    )
    return text


def spec_of(job: JobFile) -> JobSpec:
    """The job as one of ours.

    Of ``type: command`` it has the fields that both have; a field that only the service knows (``type: ray`` of a
    distribution, say) is left to it. Of other types it has name, experiment, tags and the text.

    Raises
    ------
    SpecError
        A value cannot be what it says; names line and key.
    """
    doc = job.doc
    fields: dict[str, Any] = {
        "name": _name(str(doc.get("display_name") or doc.get("name") or Path(job.name).stem)),
        "job_type": job.type,
        "cell": job.text,
        "script_name": job.name,
        "notebook_dir": job.folder,
        "experiment": str(doc.get("experiment_name") or "default")[:250],
        "tags": {str(k): str(v) for k, v in (doc.get("tags") or {}).items()},
    }
    _check_codes(job)
    if job.type == "command":
        if not isinstance(doc.get("command"), str) or not doc["command"].strip():
            raise job.fault(("command",), "what is to run?", "Write, say: command: python train.py")
        fields["command"] = doc["command"]
        _check_bindings(job)
        for key, (field, read, _) in FIELDS.items():
            given = _at(doc, key)
            if given is None:
                continue
            each = field in ("inputs", "outputs") and isinstance(given, dict)
            for part, value in {name: {name: one} for name, one in given.items()}.items() if each else [("", given)]:
                _take(job, fields, (*key, str(part)) if each else key, field, read, value)
    return _made(fields)


def _check_codes(job: JobFile) -> None:
    """The code folders of steps and trials are there; the SDK would say that a step has no component."""
    steps = job.doc.get("jobs")
    places: list[Keys] = [("trial",), *((("jobs", name)) for name in steps or () if isinstance(steps, dict))]
    for place in places:
        _, read, _ = FIELDS[("code",)]
        code = _at(job.doc, [*map(str, place), "code"])
        if isinstance(code, str):
            try:
                read(code, job.folder)
            except SpecError as error:
                raise job.fault((*place, "code"), error.message) from None


def _take(job: JobFile, fields: dict[str, Any], key: Keys, field: str, read: Any, value: Any) -> None:
    """Read one key; what only the service knows is left to it."""
    try:
        understood = read(value, job.folder)
        if understood is not None:
            before = fields.get(field)
            _put(fields, field, {**before, **understood} if isinstance(before, dict) else understood)
            validated(_made({**_PLAIN, **_only(fields, field)}))
    except SpecError as error:
        raise job.fault(key, _without_flag(error.message)) from None
    except (TypeError, ValueError, AttributeError):
        raise job.fault(key, "not what can stand here.", "See the schema: aka.ms/ml-cli-v2") from None


_PLAIN = {"name": "job", "job_type": "command"}


def _only(fields: Mapping[str, Any], field: str) -> dict[str, Any]:
    head = field.partition(".")[0]
    return {head: fields[head]}


def _put(fields: dict[str, Any], field: str, value: Any) -> None:
    head, _, tail = field.partition(".")
    if tail:
        fields.setdefault(head, {})[tail] = value
    else:
        fields[head] = value


def _made(fields: Mapping[str, Any]) -> JobSpec:
    from jupyter_amltrain.spec.resources import Resources

    resources = Resources(**fields.get("resources", {}))
    return JobSpec(**{**fields, "resources": resources})


def _at(doc: Any, path: Sequence[str]) -> Any:
    for key in path:
        doc = doc.get(key) if isinstance(doc, dict) else None
    return doc


def _check_bindings(job: JobFile) -> None:
    for found in _BINDING.finditer(job.doc["command"]):
        kind, name = found[1], found[2].partition(".")[0]
        there = job.doc.get(kind)
        if not (isinstance(there, dict) and name in there) and not (kind == "outputs" and name == "default"):
            known = ", ".join(map(str, there)) if isinstance(there, dict) and there else "none"
            raise job.fault(("command",), f"it names {kind}.{name}, which is not there.", f"{kind} are: {known}.")


def bound(command: str, places: Mapping[str, str]) -> str:
    """A command line with its bindings put in, as the service does it: as text.

    Parameters
    ----------
    places
        By ``inputs.NAME`` and ``outputs.NAME``.
    """
    return _BINDING.sub(lambda found: places.get(f"{found[1]}.{found[2]}", found[0]), command)


def _name(text: str) -> str:
    shown = "".join(c for c in text if c.isprintable()).replace("/", "-").strip()
    return shown[:64] or "job"


def _without_flag(text: str) -> str:
    """An error about a flag, said of a key."""
    return re.sub(r"^--[\w-]+ ?(?:'[^']*'|[^:\s]*)?: ", "", text, count=1)


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise MissingDependency(
            "A job's YAML cannot be read: PyYAML is not installed.", hint="%pip install pyyaml"
        ) from None
    return yaml


def _dumper() -> Any:
    """Texts of several lines as blocks, as people write them."""
    safe: Any = _yaml().SafeDumper
    plain = {"ignore_aliases": lambda self, data: True}
    Dumper: Any = type("Dumper", (safe,), plain)

    def text(dumper: Any, value: str) -> Any:
        block = "\n" in value and not re.search(r"[ \t]\n|\t|[^\n\x20-\x7e\xa0-\ud7ff]", value)
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if block else None)

    Dumper.add_representer(str, text)
    return Dumper
