"""Fields of a submitted job, one row for each: types, rule, and the attribute of the job's spec that it copies."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple

from ..data import cache as data_cache
from ..data import uploads as data_uploads
from ..distributed import gang, launchers
from ..environments import docker
from ..environments import environment_store as environments
from ..protocol import DEFAULT_GPU_GRACE, DEFAULT_GRACE, GPU_IDS, REQUIRE_GPU, SCHEMA, AgentError, valid_run_id
from ..supervise import attempts, code_place, measured_slice
from .gpu_users import MAX_ANCESTORS

#: Environment variable of a submitter that is equivalent to --share-gpus.
SHARE_VARIABLE = "AMLTRAIN_SHARE_GPUS"

Strings = Dict[str, str]


class Submission(NamedTuple):
    """A checked job. `environ` and `secrets` live in memory only; `git_diff` is a file of the run."""

    job: Dict[str, Any]
    environ: Strings
    secrets: Strings
    submission: str
    git_diff: str = ""


def _submit_error(message: str) -> AgentError:
    return AgentError("SubmitError", "Cannot submit the job: %s" % message)


def _strings(name: str) -> Callable[[Mapping[Any, Any]], Strings]:
    def check(value: Mapping[Any, Any]) -> Strings:
        for key, item in value.items():
            if not isinstance(key, str) or not isinstance(item, str) or not key or "=" in key or "\0" in key + item:
                # The value may be a secret: report only its name.
                raise _submit_error(
                    "%s: %r is not a valid name with a string value for an environment variable." % (name, key)
                )
        return dict(value)

    return check


def default_grace() -> float:
    """Return seconds from SIGTERM to SIGKILL: ``$AMLTRAIN_GRACE``, else 10."""
    return _seconds("AMLTRAIN_GRACE", DEFAULT_GRACE)


def default_gpu_grace() -> float:
    """Return seconds until GPUs may be reported as unused: ``$AMLTRAIN_GPU_GRACE``, else 60."""
    return _seconds("AMLTRAIN_GPU_GRACE", DEFAULT_GPU_GRACE)


def _seconds(name: str, default: float) -> float:
    try:
        return max(0.0, float(os.environ[name]))
    except (KeyError, ValueError):
        return default


def _any(value: Any) -> Any:
    return value


def _is_program(words: List[Any]) -> bool:
    return bool(words) and all(isinstance(word, str) and "\0" not in word for word in words)


class JobField(NamedTuple):
    """A field of a submission, and of ``job.json``.

    Attributes
    ----------
    types
        Types of a value.
    default
        Returns the value of a job that does not give one.
    ok, text
        Rule for a value, and the message for one that breaks it.
    check
        Returns the value for ``job.json``.
    spec
        Attribute of a kernel's ``JobSpec`` that a kernel copies here; empty for none.
    stored
        ``no``: not in ``job.json``; ``given``: only if it differs from the default.
    """

    types: Any
    default: Callable[[], Any]
    ok: Callable[[Any], bool] = lambda value: True
    text: str = ""
    check: Callable[[Any], Any] = _any
    spec: str = ""
    stored: str = "yes"


def _none() -> None:
    return None


_NUMBER = (int, float)
_MAYBE = (int, float, type(None))


def _part(check: Callable[[Any], Any]) -> JobField:
    """Return a field with a description that another module checks, and that most jobs do not have."""
    return JobField(dict, dict, check=check, stored="given")


FIELDS = {
    "run": JobField(str, str, valid_run_id,
                 "%r is not a run id (letters, digits, '.', '_' and '-', at most 100)."),
    "name": JobField(str, str, spec="name"),
    "argv": JobField(list, list, _is_program, "argv must be a list of strings that starts with a program."),
    "cwd": JobField(str, str, lambda value: "\0" not in value, "cwd must not contain a NUL character."),
    "env": JobField(dict, dict, check=_strings("env")),
    "environ": JobField(dict, dict, check=_strings("environ"), stored="no"),
    "secrets": JobField(dict, dict, check=_strings("secrets"), stored="no"),
    "gpus": JobField((int, type(None)), _none, lambda value: value is None or value >= 0,
                  "gpus must be a number of GPUs, got %r.", spec="resources.gpu_count"),
    "gpu_fraction": JobField(_NUMBER, lambda: 1.0, lambda value: 0 < value <= 1,
                          "gpu_fraction must be over 0 and at most 1, of one GPU, got %r.",
                          spec="resources.gpu_fraction", stored="given"),
    "timeout": JobField(_MAYBE, _none, lambda value: value is None or 0 < value < 1e10,
                     "timeout must be a number of seconds, got %r.", spec="timeout"),
    "grace": JobField(_MAYBE, default_grace, lambda value: 0 <= value < 1e6,
                   "grace must be a number of seconds, got %r."),
    "require_gpu": JobField(str, str, lambda value: value in REQUIRE_GPU,
                         "require_gpu must be warn or stop, got %r.", spec="require_gpu"),
    "gpu_grace": JobField(_MAYBE, default_gpu_grace, lambda value: 0 < value < 1e10,
                       "gpu_grace must be a number of seconds, got %r.", spec="gpu_grace"),
    "gpu_ids": JobField(str, str, lambda value: value in GPU_IDS, "gpu_ids must be uuid or index, got %r.",
                     spec="gpu_ids"),
    "share_gpus": JobField(bool, bool, spec="share_gpus"),
    "out": JobField(list, list, spec="out_names"),
    "experiment": JobField(str, str, check=lambda value: value or "default", spec="experiment"),
    "project": JobField(str, str, spec="project"),
    "notebook_dir": JobField(str, str, spec="notebook_dir"),
    "spec": JobField(dict, dict),
    "snapshot": JobField(dict, dict),
    "tracking": JobField(dict, dict),
    "provenance": JobField(dict, dict),
    "submitter": JobField(list, list, check=lambda value: value[:MAX_ANCESTORS]),
    "notes": JobField(list, list, check=lambda value: [str(note)[:1000] for note in value[:20]], stored="given"),
    "environment": _part(environments.check),
    "container": _part(docker.check),
    "ranks": _part(launchers.check),
    "code": _part(code_place.check),
    "restarts": _part(attempts.check),
    "slice": _part(measured_slice.check),
    "nodes": _part(gang.check),
    "downloads": _part(data_cache.check),
    "uploads": _part(data_uploads.check),
    "no_slot": JobField(bool, bool, stored="given"),
    "submission": JobField(str, str, stored="no"),
    "git_diff": JobField(str, str, stored="no"),
}  # fmt: skip


def check_payload(payload: Mapping[str, Any]) -> Submission:
    """Check a submit payload, whose fields are those of :data:`FIELDS`.

    Raises
    ------
    AgentError
        ``SubmitError`` that names the field.
    """
    for name, value in payload.items():
        if name not in FIELDS:
            raise _submit_error("unknown field %r. Check that kernel and agent have the same version." % name)
        types = FIELDS[name].types
        if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
            raise _submit_error("field %r has the wrong type %s." % (name, type(value).__name__))
    values: Dict[str, Any] = {}
    for name, field in FIELDS.items():
        value = payload.get(name)
        value = field.default() if value is None else value
        if not field.ok(value):
            raise _submit_error(field.text % value if "%" in field.text else field.text)
        values[name] = field.check(value) if value or field.stored != "given" else value
    if values["gpu_fraction"] < 1 and values["gpus"] != 1:
        raise _submit_error(FIELDS["gpu_fraction"].text % values["gpu_fraction"])
    if values["no_slot"] and (values["gpus"] or values["nodes"]):
        raise _submit_error("a job without a slot gets no GPU and runs on one machine.")
    job = {
        name: values[name]
        for name, field in FIELDS.items()
        if field.stored == "yes" or (field.stored == "given" and values[name] != field.default())
    }
    job["schema"], job["secrets"], job["name"] = SCHEMA, sorted(values["secrets"]), values["name"] or values["run"]
    job["share_gpus"] = job["share_gpus"] or sharing_requested({**values["environ"], **values["env"]})
    return Submission(job, values["environ"], values["secrets"], values["submission"], values["git_diff"])


def sharing_requested(environ: Mapping[str, str]) -> bool:
    """Whether the environment of a submitter allows sharing GPUs (``AMLTRAIN_SHARE_GPUS=1``)."""
    return environ.get(SHARE_VARIABLE, "") not in ("", "0")
