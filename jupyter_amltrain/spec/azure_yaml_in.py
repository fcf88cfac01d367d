"""A job's file told as a :class:`JobSpec`: of ``type: command`` the fields that a job of ours has too.

:mod:`.azure_yaml_out` is the way back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.spec import azure_yaml_files
from jupyter_amltrain.spec.azure_yaml import JobFile, Keys
from jupyter_amltrain.spec.azure_yaml_fields import FIELDS
from jupyter_amltrain.spec.job import JobSpec, validated
from jupyter_amltrain.spec.resources import Resources

_BINDING = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.-]+)\s*\}\}")


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
    azure_yaml_files.check(job)
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
