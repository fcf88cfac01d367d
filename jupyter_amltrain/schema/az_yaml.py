"""A job as a file of the ``az ml`` v2 schema: read within limits, checked for its form, placed on a compute.

The SDK loads the file in the service process, and so decides what it means; here are its text, the lines of its keys
and the files that it refers to. :mod:`.az_yaml_job` reads it as a :class:`JobSpec`, and writes such files.

Limits are checked on YAML's events, before anything is made of them: an alias may stand for all that its anchor holds,
so a text of a kilobyte can expand to gigabytes, and a nesting of thousands ends in the interpreter's recursion limit.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.errors import MissingDependency, SpecError
from jupyter_amltrain.schema.inputs import is_address
from jupyter_amltrain.state_dir import working_folder

#: Nodes after every alias has been expanded, levels, and characters.
MAX_NODES, MAX_DEPTH, MAX_CHARS = 10_000, 60, 1 << 20


def exceeded_limit(text: str, yaml: Any) -> str:
    """Which limit `text` exceeds, as a clause; empty when none.

    Parameters
    ----------
    yaml
        The PyYAML module.

    Raises
    ------
    yaml.YAMLError
        It is no YAML.
    """
    if len(text) > MAX_CHARS:
        return f"it has over {MAX_CHARS >> 20} MiB"
    total = 0
    anchors: dict[str, int] = {}  # nodes that an anchor stands for
    open_nodes: list[tuple[str | None, int]] = []  # anchor, nodes before it
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            total += anchors.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                anchors[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                anchors[anchor] = total - before
        if len(open_nodes) > MAX_DEPTH:
            return f"it nests more than {MAX_DEPTH} levels deep (line {event.start_mark.line + 1})"
        if total > MAX_NODES:
            return f"it expands to more than {MAX_NODES} values (line {event.start_mark.line + 1})"
    return ""


#: What the service's SDK loads as a job of its own (``Job._resolve_cls_and_type``); ``parallel`` is a step.
TYPES = ("command", "spark", "automl", "sweep", "pipeline", "import")
SUFFIXES = (".yml", ".yaml")
#: Beyond it a file is no job that a person wrote.
_LARGEST = 1 << 20
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
            f"Cannot read the job {str(path)!r}: {why}.", hint=f"The working folder is {working_folder()}."
        ) from None
    if len(text) > _LARGEST:
        raise SpecError(f"{place.name} is over 1 MiB: no job of Azure ML.")
    return parse(text, place.name, str(place.parent))


def load_doc(path: str) -> dict[str, Any]:
    """The keys of a component's file.

    Raises
    ------
    SpecError
        It cannot be read, or holds no keys.
    """
    yaml = _yaml()
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST or (reason := exceeded_limit(text, yaml)):
            raise SpecError("it is too large." if len(text) > _LARGEST else f"it cannot be read: {reason}.")
        doc = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(f"it cannot be read: {' '.join(str(error).split())}.") from None
    if not isinstance(doc, dict):
        raise SpecError("it holds no keys.")
    return doc


def parse(text: str, name: str = "job.yml", folder: str = "") -> JobFile:
    """As :func:`load`, of the text."""
    yaml = _yaml()
    try:
        if reason := exceeded_limit(text, yaml):
            raise SpecError(f"{name} is no job that can be read: {reason}.", hint="Write it without so many aliases.")
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


#: Keys whose text is the name of a component's file, or an asset.
_COMPONENT = ("component", "trial")
#: Components may refer to components.
_DEEPEST = 8


def check_files(job: JobFile) -> None:
    """Raise :class:`SpecError` for the first file that is missing; names line and key of the job's file."""
    for path, reason in _missing(job.doc, job.folder, (), frozenset()):
        raise job.fault(path, reason, "Paths begin at the folder of the file that has them.")


def _missing(doc: Any, folder: str, path: Keys, seen: frozenset[str]) -> Iterator[tuple[Keys, str]]:
    if not isinstance(doc, Mapping) or len(path) > _DEEPEST:
        return
    for key, value in doc.items():
        here = (*path, str(key))
        if key in _COMPONENT and isinstance(value, str) and (file := _file(value, folder)):
            if not os.path.isfile(file):
                yield here, f"there is no component file {file}."
            elif file not in seen:
                yield from ((here, f"{os.path.basename(file)}: {why}") for why in _of_component(file, seen))
        elif key == "environment":
            yield from ((here, why) for why in _of_environment(value, folder))
        elif key in (*_COMPONENT, "jobs") and isinstance(value, Mapping):
            steps = value.items() if key == "jobs" else [("", value)]
            for name, step in steps:
                yield from _missing(step, folder, (*here, str(name)) if name else here, seen)


def _of_component(file: str, seen: frozenset[str]) -> Iterator[str]:
    try:
        doc, folder = load_doc(file), os.path.dirname(file)
    except SpecError as error:
        yield error.message
        return
    code = doc.get("code")
    if isinstance(code, str) and not _foreign(code) and not os.path.exists(place := _absolute(code, folder)):
        yield f"code: there is no folder {place}."
    for path, why in _missing(doc, folder, (), seen | {file}):
        yield f"{'.'.join(map(str, path))}: {why}"


def _of_environment(value: Any, folder: str) -> Iterator[str]:
    if isinstance(value, str):
        file = _file(value, folder)
        if file and not os.path.isfile(file):
            yield f"there is no environment file {file}."


def _file(text: str, folder: str) -> str:
    """The file that a text names; empty for an asset (``azureml:NAME:1``) or an address."""
    named = text.removeprefix("file:")
    if _foreign(named) or not (text.startswith("file:") or named.lower().endswith((".yml", ".yaml"))):
        return ""
    return _absolute(named, folder)


def _foreign(text: str) -> bool:
    return is_address(text) or text.startswith(("git+", "/subscriptions/")) or "${{" in text


def _absolute(text: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder or str(Path.cwd()), os.path.expanduser(text)))
