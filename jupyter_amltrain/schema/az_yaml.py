"""Job files of the ``az ml`` v2 schema: parsing within limits, checks of their form, and the target's compute.

The SDK loads the file in the service process and decides its meaning; this module handles its text, the lines of its
keys and the files that it refers to. :mod:`.az_yaml_job` converts it to a :class:`JobSpec`, and writes such files.

Limits are checked on YAML's events, before objects are built: an alias stands for everything below its anchor, so
a kilobyte of text can expand to gigabytes, and thousands of levels exceed the interpreter's recursion limit.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.errors import MissingDependency, SpecError
from jupyter_amltrain.schema.asset_names import ASSET, prefixed
from jupyter_amltrain.schema.inputs import JobInput, is_address
from jupyter_amltrain.state_dir import working_folder

#: Nodes after every alias has been expanded, levels, and characters.
MAX_NODES, MAX_DEPTH, MAX_CHARS = 10_000, 60, 1 << 20


def exceeded_limit(text: str, yaml: Any) -> str:
    """Return which limit `text` exceeds, as a clause; empty if none.

    Parameters
    ----------
    yaml
        The PyYAML module.

    Raises
    ------
    yaml.YAMLError
        The text is not YAML.
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


#: Types that the SDK loads as a job (``Job._resolve_cls_and_type``); ``parallel`` is a step.
TYPES = ("command", "spark", "automl", "sweep", "pipeline", "import")
SUFFIXES = (".yml", ".yaml")
#: Maximum size of a job's file in bytes.
_MAX_FILE_BYTES = 1 << 20
#: Keys and numbers from the top of a file.
Keys = tuple[str | int, ...]


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A job's file, parsed.

    Attributes
    ----------
    text
        Text of the file.
    name
        Name of the file, for messages.
    folder
        Absolute folder that relative paths refer to.
    doc
        Parsed content.
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
        """Name of the requested compute; empty for none."""
        settings = self.doc.get("settings")
        compute = self.doc.get("compute")
        if compute is None and self.type == "pipeline" and isinstance(settings, dict):
            compute = settings.get("default_compute")
        return str(compute or "").rpartition("/")[2].removeprefix(ASSET)

    def error(self, path: Sequence[str | int], what: str, hint: str = "") -> SpecError:
        """Return the error of a key, with its line, or the line of the nearest parent if the key is absent."""
        keys = tuple(path)
        line = next((self.lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), 0)
        where = f" line {line}" if line else ""
        key = f", {'.'.join(map(str, keys))}" if keys else ""
        return SpecError(f"{self.name}{where}{key}: {what}", hint=hint)


def is_file(text: str) -> bool:
    """Return whether a word of a submit line is the name of a job's file."""
    return text.lower().endswith(SUFFIXES)


def load(path: str | os.PathLike[str]) -> JobFile:
    """Read a file.

    Raises
    ------
    SpecError
        The file cannot be read, or is not YAML or not a job; the message names line and key.
    """
    file_path = Path(path).expanduser().absolute()
    try:
        with open(file_path, encoding="utf-8-sig") as file:
            text = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(
            f"Cannot read the job {str(path)!r}: {reason}.", hint=f"The working folder is {working_folder()}."
        ) from None
    if len(text) > _MAX_FILE_BYTES:
        raise SpecError(f"{file_path.name} is larger than 1 MiB, the limit of az ml.")
    return parse(text, file_path.name, str(file_path.parent))


def load_doc(path: str) -> dict[str, Any]:
    """Return the content of a component's file.

    Raises
    ------
    SpecError
        The file cannot be read, or has no keys.
    """
    yaml = _yaml()
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(_MAX_FILE_BYTES + 1)
        if len(text) > _MAX_FILE_BYTES or (reason := exceeded_limit(text, yaml)):
            raise SpecError("it is too large." if len(text) > _MAX_FILE_BYTES else f"it cannot be read: {reason}.")
        doc = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(f"it cannot be read: {' '.join(str(error).split())}.") from None
    if not isinstance(doc, dict):
        raise SpecError("it has no keys.")
    return doc


def parse(text: str, name: str = "job.yml", folder: str = "") -> JobFile:
    """Parse the text of a file, as :func:`load` does."""
    yaml = _yaml()
    try:
        if reason := exceeded_limit(text, yaml):
            raise SpecError(f"Cannot read the job {name}: {reason}.", hint="Use fewer aliases and levels.")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        doc = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise SpecError(
            f"{name}{f' line {mark.line + 1}' if mark else ''}: {problem}.",
            hint="Check the indentation, and quote values that contain ': ' or start with a special character.",
        ) from None
    if not isinstance(doc, dict):
        raise SpecError(f"{name} is not a job: it has no keys.", hint="Example: command: python train.py")
    job = JobFile(text=text, name=name, folder=folder, doc=doc, lines={})
    _mark(job, node, ())
    kind = job.type
    if kind == "parallel":
        raise job.error(
            ("type",), "parallel is a step of a pipeline.", "Put the step below jobs: in a file of type: pipeline."
        )
    if kind not in TYPES:
        raise job.error(("type",), f"{kind[:80]!r} is not a valid job type.", f"Supported: {', '.join(TYPES)}.")
    return job


def _mark(job: JobFile, node: Any, path: Keys) -> None:
    """Record the lines of keys; reject duplicate keys, of which YAML silently drops one."""
    if hasattr(node, "value") and isinstance(node.value, list) and len(path) < 20:
        for number, part in enumerate(node.value):
            if isinstance(part, tuple):
                key, value = part
                key_path = (*path, str(key.value))
                duplicate = key_path in job.lines
                job.lines[key_path] = key.start_mark.line + 1
                if duplicate:
                    raise job.error(key_path, "duplicate key.", "Remove one of the two.")
            else:
                value, key_path = part, (*path, number)
                job.lines[key_path] = part.start_mark.line + 1
            _mark(job, value, key_path)


def with_params(job: JobFile, params: Mapping[str, Any]) -> JobFile:
    """Return the job with values of ``--param`` as its inputs; lines still refer to the file.

    Raises
    ------
    SpecError
        The job has no such input.
    """
    if not params:
        return job
    doc = copy.deepcopy(job.doc)
    inputs = _declared(job, doc, "--param", params)
    for name, value in params.items():
        default = inputs[name]
        if isinstance(default, dict) and "path" in default:
            value = str(value) if is_address(str(value)) else os.path.abspath(os.path.expanduser(str(value)))
            inputs[name] = {**default, "path": value}
        elif isinstance(value, list | dict) or value is None:
            raise job.error(("inputs", name), f"--param {name}: an input must be a number, a string or true/false.")
        else:
            inputs[name] = value
    return msgspec.structs.replace(job, doc=doc)


def with_inputs(job: JobFile, inputs: Mapping[str, JobInput]) -> JobFile:
    """Return the job with other data for some of its inputs, as of ``--input``; lines still refer to the file.

    The mode of the file stays unless an input has its own.

    Raises
    ------
    SpecError
        The job has no such input.
    """
    if not inputs:
        return job
    doc = copy.deepcopy(job.doc)
    declared = _declared(job, doc, "--input", inputs)
    for name, data in inputs.items():
        if data.type == "literal":
            declared[name] = data.value
            continue
        default = declared[name] if isinstance(declared[name], dict) else {}
        kept = {key: value for key, value in default.items() if key not in ("value", "default")}
        declared[name] = {**kept, "type": data.type, "path": data.path, **({"mode": data.mode} if data.mode else {})}
    return msgspec.structs.replace(job, doc=doc)


def _declared(job: JobFile, doc: Mapping[str, Any], flag: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the inputs of a file; raise :class:`SpecError` if one of `names` is not among them."""
    inputs = doc.get("inputs")
    declared: dict[str, Any] = inputs if isinstance(inputs, dict) else {}
    if missing := next((name for name in names if name not in declared), ""):
        existing = ", ".join(map(str, declared)) or "none"
        raise job.error(("inputs",), f"{flag} {missing}: the job has no such input.", f"Its inputs: {existing}.")
    return declared


def with_compute(job: JobFile, compute: str, size: str = "") -> dict[str, Any]:
    """Return the content to submit: the file with a target's compute.

    Parameters
    ----------
    compute
        Name at the service; empty for the service's own machines (serverless).
    size
        VM size for serverless, if the file names none.
    """
    doc = copy.deepcopy(job.doc)
    if job.type == "pipeline":
        doc.pop("compute", None)
        settings = dict(doc.get("settings") or {})
        settings["default_compute"] = prefixed(compute or "serverless")
        return doc | {"settings": settings}
    if job.type == "import":
        return doc
    if compute:
        return doc | {"compute": prefixed(compute)}
    doc.pop("compute", None)
    if size and job.type in ("command", "sweep", "automl"):
        doc["resources"] = {"instance_type": size, **(doc.get("resources") or {})}
    return doc


def to_yaml(doc: Mapping[str, Any]) -> str:
    """Return the YAML text of a file."""
    text: str = _yaml().dump(
        dict(doc), Dumper=_dumper(), sort_keys=False, default_flow_style=False, allow_unicode=True, width=110
    )
    return text


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise MissingDependency(
            "A job's YAML cannot be read: PyYAML is not installed.", hint="Install it: %pip install pyyaml"
        ) from None
    return yaml


def _dumper() -> Any:
    """Return a YAML dumper that writes text with several lines as blocks."""
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
#: Maximum depth of components that refer to components.
_MAX_LEVELS = 8


def check_files(job: JobFile) -> None:
    """Raise :class:`SpecError` for the first missing file, with line and key of the job's file."""
    for path, reason in _missing(job.doc, job.folder, (), frozenset()):
        raise job.error(path, reason, "Paths are relative to the folder of the file that contains them.")


def _missing(doc: Any, folder: str, path: Keys, seen: frozenset[str]) -> Iterator[tuple[Keys, str]]:
    if not isinstance(doc, Mapping) or len(path) > _MAX_LEVELS:
        return
    for key, value in doc.items():
        key_path = (*path, str(key))
        if key in _COMPONENT and isinstance(value, str) and (file := _file(value, folder)):
            if not os.path.isfile(file):
                yield key_path, f"there is no component file {file}."
            elif file not in seen:
                yield from ((key_path, f"{os.path.basename(file)}: {reason}") for reason in _of_component(file, seen))
        elif key == "environment":
            yield from ((key_path, reason) for reason in _of_environment(value, folder))
        elif key in (*_COMPONENT, "jobs") and isinstance(value, Mapping):
            steps = value.items() if key == "jobs" else [("", value)]
            for name, step in steps:
                yield from _missing(step, folder, (*key_path, str(name)) if name else key_path, seen)


def _of_component(file: str, seen: frozenset[str]) -> Iterator[str]:
    try:
        doc, folder = load_doc(file), os.path.dirname(file)
    except SpecError as error:
        yield error.message
        return
    code = doc.get("code")
    if isinstance(code, str) and not _is_remote(code) and not os.path.exists(code_path := _absolute(code, folder)):
        yield f"code: there is no folder {code_path}."
    for path, reason in _missing(doc, folder, (), seen | {file}):
        yield f"{'.'.join(map(str, path))}: {reason}"


def _of_environment(value: Any, folder: str) -> Iterator[str]:
    if isinstance(value, str):
        file = _file(value, folder)
        if file and not os.path.isfile(file):
            yield f"there is no environment file {file}."


def _file(text: str, folder: str) -> str:
    """Return the file that a text names; empty for a name of a workspace or an address."""
    named = text.removeprefix("file:")
    if _is_remote(named) or not (text.startswith("file:") or named.lower().endswith((".yml", ".yaml"))):
        return ""
    return _absolute(named, folder)


def _is_remote(text: str) -> bool:
    return is_address(text) or text.startswith(("git+", "/subscriptions/")) or "${{" in text


def _absolute(text: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder or str(Path.cwd()), os.path.expanduser(text)))
