"""Conversion of a :class:`~jupyter_amltrain.schema.job.JobSpec` to the request that submits it. No I/O.

The body has the shape of ``properties`` in ARM's ``PUT .../jobs/NAME`` (api 2024-10-01, schema ``CommandJob``).
``--dry-run`` prints it, and the service process builds the SDK's object from it, so that both
are the same. A file of ``az ml`` is sent as text, and the SDK loads it there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import posixpath
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.agent.protocol import CHECKPOINTS_VARIABLE
from jupyter_amltrain.azure import terms as azure_terms
from jupyter_amltrain.azure.environments import environment_body, environment_shown
from jupyter_amltrain.azure.sweep_body import sweep_from_rest, sweep_to_rest
from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.jobs.launch import code_place, copied_fields, hook_variables, restarts_of, script_argv
from jupyter_amltrain.jobs.scaling import slice_limits
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.schema import az_yaml, az_yaml_job, searched_values
from jupyter_amltrain.schema.inputs import JobInput, JobOutput, input_variable, literal_text, output_variable
from jupyter_amltrain.schema.job import DEEPSPEED_FILE, DEEPSPEED_VARIABLE, LAUNCHED_AS, JobSpec, Resources
from jupyter_amltrain.schema.param_forms import variables_of
from jupyter_amltrain.schema.provenance import GitState
from jupyter_amltrain.schema.search_space import Expression
from jupyter_amltrain.schema.sweep import Sweep
from jupyter_amltrain.text import counted

#: Placeholder in a printed request for the id that the service assigns.
CODE_PLACEHOLDER = "(code asset with the content {})"
#: Placeholder for the address of data that is uploaded at the submit.
UPLOAD_PLACEHOLDER = "(upload of {})"

#: Seconds by which the service's limit is later than the agent's: the agent ends the script and records the reason,
#: the service kills a job that the agent could not stop.
SERVICE_LIMIT_MARGIN_S = 60.0
#: Output of a job that may start again, with its checkpoints.
CHECKPOINTS_OUTPUT = "amltrain_checkpoints"
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")


class JobLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Compute that a job is submitted to.

    Attributes
    ----------
    arm_id
        ARM id of the workspace.
    compute
        Name of the compute; empty for the service's own machines (serverless).
    size
        VM size, for serverless.
    gpus
        GPUs of one machine; ``None`` if unknown.
    tier
        As in :class:`~jupyter_amltrain.schema.job.JobSpec`, for serverless.
    own_machines
        Whether the compute determines size and tier (a cluster, an instance).
    """

    arm_id: str
    compute: str = ""
    size: str = ""
    gpus: int | None = None
    tier: str = ""
    own_machines: bool = False


def job_name(run_id: str) -> str:
    """Return the job's name at the service: letters, digits, ``-`` and ``_``."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", run_id).lstrip("-_")[:255]
    return name or "run"


def is_job_name(text: str) -> bool:
    """Return whether a job of the service can have this name."""
    return _JOB_NAME.fullmatch(text) is not None


def tracking_id(name: str) -> str:
    """Return the MLflow run id (32 hex digits) of a job in the project's own store: the same in every kernel."""
    return hashlib.sha256(f"amltrain:{name}".encode()).hexdigest()[:32]


def body_of(spec: JobSpec, place: JobLocation, code: str) -> dict[str, Any]:
    """Return ``properties`` of the job, without its environment (see :func:`.environments.environment_body`).

    Parameters
    ----------
    code
        Id of the code asset, or its placeholder in a printed request.
    """
    if spec.sweep is not None:
        return _sweep_body(spec, spec.sweep, place, code)
    body: dict[str, Any] = {
        "jobType": "Command",
        "displayName": spec.name,
        "experimentName": spec.experiment,
        "command": command_of(spec, place),
        "codeId": code,
        "environmentVariables": _environ(spec),
        "inputs": {name: _input(data) for name, data in spec.inputs.items()},
        "outputs": {name: _output(output) for name, output in spec.outputs.items()} | _checkpoints(spec, place),
        "resources": _resources(spec, place),
        "tags": dict(spec.tags),
    }
    if place.compute:
        body["computeId"] = f"{place.arm_id}/computes/{place.compute}"
    optional = {
        "distribution": _distribution(spec, place),
        "limits": _limits(spec),
        "queueSettings": _queue(spec, place),
        "identity": _identity(spec.identity),
        "services": {service.partition(":")[0]: _service(service) for service in spec.services} or None,
    }
    return body | {key: value for key, value in optional.items() if value}


def _sweep_body(spec: JobSpec, sweep: Sweep, place: JobLocation, code: str) -> dict[str, Any]:
    """Return ``properties`` of a ``SweepJob``; the job of a trial is below ``trial``."""
    resources = _resources(spec, place)
    trial: dict[str, Any] = {
        "command": command_of(spec, place),
        "codeId": code,
        "environmentVariables": _environ(spec),
        "resources": resources,
    }
    trial |= {"distribution": distribution} if (distribution := _distribution(spec, place)) else {}
    body: dict[str, Any] = {
        "jobType": "Sweep",
        "displayName": spec.name,
        "experimentName": spec.experiment,
        "trial": trial,
        **sweep_to_rest(sweep),
        "inputs": {name: _input(data) for name, data in spec.inputs.items()},
        "outputs": {name: _output(output) for name, output in spec.outputs.items()},
        "resources": resources,
        "tags": dict(spec.tags),
    }
    if spec.timeout:  # the agent ends a trial first, as in :func:`_limits`
        body["limits"]["trialTimeout"] = azure_terms.iso_duration(spec.timeout + SERVICE_LIMIT_MARGIN_S)
    if place.compute:
        body["computeId"] = f"{place.arm_id}/computes/{place.compute}"
    optional = {"queueSettings": _queue(spec, place), "identity": _identity(spec.identity)}
    return body | {key: value for key, value in optional.items() if value}


def with_environment(body: Mapping[str, Any], environment: str) -> dict[str, Any]:
    """Return the body of :func:`body_of` with the id of the environment."""
    if "trial" in body:
        return {**body, "trial": {**body["trial"], "environmentId": environment}}
    return {**body, "environmentId": environment}


def check(spec: JobSpec, place: JobLocation) -> None:
    """Raise :class:`SpecError` for the first setting that `place` does not support; it names the flag and the field.

    Data and folders of this machine are rejected because the job runs elsewhere.
    """
    for error in _unsupported(spec, place):
        error.code = error.code or "azure.unsupported"
        raise error


def _unsupported(spec: JobSpec, place: JobLocation) -> Iterator[SpecError]:
    yield from _unsupported_inputs(spec)
    environment = spec.environment
    if environment.requirements or environment.project or environment.pip:
        flag = f"--pip {environment.pip[0]}" if environment.pip else f"--env {environment.file}"
        yield SpecError(
            f"{flag}: Azure ML builds environments from a conda file or an image, not from these packages.",
            hint="List them in conda.yml below 'pip:', and use --env conda.yml; or --env kernel",
            field="environment",
            code="environment.unsupported",
        )
    if spec.max_restarts and _has_several_processes(spec, place):
        yield SpecError(
            f"--max-restarts {spec.max_restarts}: on Azure ML only a job of one process is started again.",
            hint="Leave it out; Azure restarts jobs of low-priority machines by itself. Or use --processes 1.",
            field="max_restarts",
        )
    if spec.sweep is not None and spec.services:
        yield SpecError(
            "--service: the trials of an Azure ML sweep have no services.",
            hint="Leave it out.",
            field="services",
        )
    if place.own_machines and (spec.tier or spec.resources.instance_type):
        flag = f"--tier {spec.tier}" if spec.tier else f"--instance-type {spec.resources.instance_type}"
        yield SpecError(
            f"{flag}: the machines of {place.compute} were chosen when it was created.",
            hint="Leave it out, or submit to a serverless target.",
            field="tier" if spec.tier else "resources.instance_type",
        )
    yield from _unsupported_gpus(spec.resources, place)
    if not place.compute and not (spec.resources.instance_type or place.size):
        yield SpecError(
            "--instance-type is missing: a serverless job needs the size of its machine.",
            hint="Try: --instance-type Standard_DS3_v2 (%aml_compute sizes)",
            field="resources.instance_type",
        )


def _unsupported_gpus(resources: Resources, place: JobLocation) -> Iterator[SpecError]:
    gpus = resources.gpus
    if resources.gpu_fraction < 1:
        yield SpecError(
            f"--gpus {gpus:g} is not supported on Azure ML: a job does not share its GPUs.",
            hint="Try: --gpus 1",
            field="resources.gpus",
        )
    elif gpus and place.gpus is not None and gpus > place.gpus:
        count = counted(place.gpus, "GPU") if place.gpus else "no GPU"
        yield SpecError(
            f"--gpus {gpus}: a machine of {place.compute or place.size} has {count}.",
            hint="See: %aml_compute sizes --gpu",
            field="resources.gpus",
        )


def _unsupported_inputs(spec: JobSpec) -> Iterator[SpecError]:
    for name, data in spec.inputs.items():
        flag = f"--input {name}={data.path}"
        if data.type != "literal" and "${" in data.path and data.path.lower().startswith("http"):
            yield SpecError(
                f"{flag}: a secret in an address is not supported on Azure ML.",
                hint="Reach it through a datastore: azureml://datastores/NAME/paths/...",
                field="inputs",
                details={"input": name},
            )
        if data.local and not data.upload:
            yield SpecError(
                f"{flag}: the path exists only on this machine, but the job runs in Azure.",
                hint=f"To upload it once: --input {name}={data.path},upload; or give the address of data in Azure:"
                f" --input {name}=azureml:NAME:1 (%aml_data list)",
                field="inputs",
                details={"input": name},
            )


def check_files(snapshot: Snapshot) -> None:
    """Raise :class:`CommandError` for a file of the snapshot in the agent's reserved folder."""
    for name in snapshot.files:
        if name.split("/")[0] == ".amltrain":
            raise CommandError(
                f"{name}: .amltrain/ is a reserved folder name.",
                hint="Rename the folder, or leave it out.",
                code="azure.reserved_folder",
            )


def request_of(
    spec: JobSpec, snapshot: Snapshot, place: JobLocation, name: str, tags: Mapping[str, str]
) -> dict[str, Any]:
    """Return the exact request, printable; `tags` are the user's and those of :func:`tags_of`."""
    body = {**body_of(spec, place, CODE_PLACEHOLDER.format(snapshot.digest[:16])), "tags": dict(tags)}
    environment = environment_body(spec, place.gpus)
    return {
        "request": f"PUT {place.arm_id}/jobs/{name}",
        "properties": with_environment(body, environment_shown(environment)),
        "environment": environment,
        "code": {
            "digest": snapshot.digest,
            "bytes": snapshot.bytes,
            "files": {file: sized(snapshot.files[file]) for file in sorted(snapshot.files)[:200]},
            "more": max(0, len(snapshot.files) - 200),
            ".amltrain/job.json": job_file(spec),
        },
    }


def sized(content: str | bytes) -> int | None:
    """Return the size of a snapshot's file in bytes, if it is known without reading the disk."""
    return len(content) if isinstance(content, bytes) else None


def _limits(spec: JobSpec) -> dict[str, Any] | None:
    if not spec.timeout:
        return None
    return {"jobLimitsType": "Command", "timeout": azure_terms.iso_duration(spec.timeout + SERVICE_LIMIT_MARGIN_S)}


def _environ(spec: JobSpec) -> dict[str, str]:
    literals = {
        input_variable(name): literal_text(data.value) for name, data in spec.inputs.items() if data.type == "literal"
    }
    config = {DEEPSPEED_VARIABLE: DEEPSPEED_FILE} if spec.distribution.config else {}  # in the working folder
    parameters = {} if spec.script else variables_of(spec.params, spec.forms)
    return {**literals, **config, **hook_variables(spec), **spec.env, **parameters}


def _input(data: JobInput) -> dict[str, Any]:
    if data.type == "literal":
        return {"jobInputType": "literal", "value": literal_text(data.value)}
    uri = UPLOAD_PLACEHOLDER.format(data.path) if data.upload else data.path
    body = {"jobInputType": data.type, "uri": uri}
    return body | ({"mode": azure_terms.MODES.arm(data.mode)} if data.mode else {})


def _output(output: JobOutput) -> dict[str, Any]:
    body = {"jobOutputType": output.type}
    body |= {"uri": output.path} if output.path else {}
    return body | ({"mode": azure_terms.MODES.arm(output.mode)} if output.mode else {})


def _checkpoints(spec: JobSpec, place: JobLocation) -> dict[str, Any]:
    """Return the output with the checkpoints of a job that may start again; the service writes it through a mount.

    Without an address it is a folder of the default datastore that is named after the job, as for each attempt.
    """
    if spec.sweep is not None:  # the trials of a sweep would share the folder
        return {}
    is_spot = (spec.tier or ("" if place.compute else place.tier)) == "spot"
    if not spec.max_restarts and not is_spot:
        return {}
    return {CHECKPOINTS_OUTPUT: _output(JobOutput(type="uri_folder", mode="rw_mount"))}


def _resources(spec: JobSpec, place: JobLocation) -> dict[str, Any]:
    resources = spec.resources
    body: dict[str, Any] = {"instanceCount": resources.nodes}
    size = resources.instance_type or ("" if place.compute else place.size)
    body |= {"instanceType": size} if size else {}
    body |= {"shmSize": resources.shm_size} if resources.shm_size else {}
    return body | ({"dockerArgs": resources.docker_args} if resources.docker_args else {})


def _distribution(spec: JobSpec, place: JobLocation) -> dict[str, Any] | None:
    distribution, nodes = spec.distribution, spec.resources.nodes
    processes = distribution.processes or spec.resources.gpus or place.gpus or 1
    # Without a distribution the nodes would all run the same script and not connect to each other.
    launcher = LAUNCHED_AS.get(distribution.kind, distribution.kind)
    kind = azure_terms.DISTRIBUTIONS.arm(launcher or ("pytorch" if nodes > 1 else ""))
    if distribution.kind == "tensorflow":
        return {
            "distributionType": kind,
            "workerCount": distribution.processes or nodes,
            "parameterServerCount": distribution.parameter_servers,
        }
    return {"distributionType": kind, "processCountPerInstance": processes} if kind else None


def _has_several_processes(spec: JobSpec, place: JobLocation) -> bool:
    body = _distribution(spec, place) or {}
    processes = body.get("processCountPerInstance") or body.get("workerCount") or 1
    return spec.resources.nodes > 1 or processes > 1 or bool(body.get("parameterServerCount"))


def _queue(spec: JobSpec, place: JobLocation) -> dict[str, Any] | None:
    tier = spec.tier or ("" if place.compute else place.tier)
    body: dict[str, Any] = {"jobTier": azure_terms.TIERS.arm(tier)} if tier else {}
    body |= {"priority": int(azure_terms.PRIORITIES.arm(spec.priority))} if spec.priority else {}
    return body or None


def _identity(word: str) -> dict[str, Any] | None:
    kind, _, client = word.partition(":")
    body = {"identityType": azure_terms.IDENTITIES.arm(kind)}
    return body | ({"clientId": client} if client else {}) if kind else None


def _service(text: str) -> dict[str, Any]:
    kind, _, rest = text.partition(":")
    body: dict[str, Any] = {"jobServiceType": azure_terms.SERVICES.arm(kind)}
    if kind == "tensorboard":
        body["properties"] = {"logDir": rest or "outputs/tensorboard"}
    elif kind == "ssh":
        body["properties"] = {"sshPublicKeys": rest}
    return body


_INTERPRETER = "@python"


def command_of(spec: JobSpec, place: JobLocation) -> str:
    """Return the command line that the service starts for each process (POSIX sh).

    The agent runs in the foreground and starts the script. An image without Python 3.8 runs the
    script alone. Environment variables pass the paths of inputs and outputs to both.
    """
    exports = "".join(
        f'export {variable}="${{{{{kind}.{name}}}}}"; '
        for kind, variable, name in (
            *(("inputs", input_variable(n), n) for n, data in spec.inputs.items() if data.type != "literal"),
            *(("outputs", output_variable(n), n) for n in spec.outputs),
            *(("outputs", CHECKPOINTS_VARIABLE, n) for n in _checkpoints(spec, place)),
            *(("search_space", searched_values.variable(n), n) for n in _searched(spec)),
        )
    )
    plain = shlex.join(["python" if word == _INTERPRETER else word for word in argv_of(spec)])
    enter = "".join(f"{line}; " for line in az_yaml_job.place_lines(spec))
    switches = searched_values.switches(spec)
    for name in _searched(spec):  # from the variable: the reference is not replaced in single quotes
        reference, value = searched_values.reference(name), searched_values.shell_word(name, switches.get(name))
        plain = plain.replace(shlex.quote(reference), value).replace(reference, f"'{value}'")
    return (
        f"{exports}P=$(command -v python3 || command -v python); "
        'if [ -n "$P" ] && "$P" -c \'import sys; sys.exit(sys.version_info < (3, 8))\'; then '
        'exec "$P" .amltrain/agent.pyz rank .amltrain/job.json; fi; '
        'echo "amltrain: no Python 3.8+ in this image: no telemetry"; '
        'for F in .amltrain/*.tar.gz; do if [ -e "$F" ]; then tar -xzf "$F"; fi; done; '
        f"{enter}exec {plain}"
    )


def _searched(spec: JobSpec) -> Mapping[str, Expression]:
    return {} if spec.sweep is None else spec.sweep.space


def _search_form(name: str, e: Expression, switches: Mapping[str, tuple[str, str]]) -> Any:
    """Return how the agent turns the text of a value into an argument; of a switch, its words by the text."""
    if name in switches:
        return dict(zip(("true", "false"), switches[name], strict=True))
    return searched_values.form_of(e)


def argv_of(spec: JobSpec) -> list[str]:
    """Return program and arguments in the working folder; ``@python`` is the interpreter of the image.

    References to inputs and outputs are kept: the agent, or in the plain command the service, replaces them by paths.
    """
    words = script_argv(spec, ".", spec.python or _INTERPRETER, {})
    at_script = f"./{spec.script_name}"
    return [posixpath.relpath(word, spec.working_place or ".") if word == at_script else word for word in words]


def job_file(spec: JobSpec) -> dict[str, Any]:
    """Return the content of ``.amltrain/job.json``: the agent's view of the job.

    It contains nothing specific to one run (id, name, experiment come from the service's variables), so that
    the same code results in the same code asset.
    """
    searched, switches = _searched(spec), searched_values.switches(spec)
    return {
        "schema": 1,
        **copied_fields(spec),
        **dict.fromkeys(("run", "name", "experiment", "notebook_dir", "project"), ""),
        "argv": argv_of(spec),
        "cwd": spec.working_place,
        "env": {},
        **({"code": place} if (place := code_place(spec)) else {}),
        **({"restarts": restarts} if (restarts := restarts_of(spec)) else {}),
        "tracking": {"run_id": "", "mode": spec.tracking},
        "snapshot": {},
        "spec": {
            "resources": {"nodes": spec.resources.nodes},
            "is_cell": bool(spec.script),
            "script_name": spec.script_name,
        },
        "inputs": sorted(spec.inputs),
        "outputs": sorted(spec.outputs),
        **({"slice": limits} if (limits := slice_limits(spec)) else {}),
        **({"search": {name: _search_form(name, e, switches) for name, e in searched.items()}} if searched else {}),
        **({"goal": spec.sweep.objective.metric} if spec.sweep and spec.sweep.objective.metric in spec.out else {}),
    }


#: Characters of one property, and the number of properties (the service allows 1,000 and 50, and others need some).
MAX_PROPERTY_CHARS, MAX_PROPERTIES = 1000, 30
SPEC = "amltrain.spec"
#: Fields that are dropped in this order from a spec that is too long.
_LONG_FIELDS = ("cell", "script", "params", "args", "env")
_MAX_SPEC_BYTES = 16 << 20


def tags_of(spec: JobSpec, target: str, version: str) -> dict[str, str]:
    """Return the tags of a job: the user's, and those of jupyter_amltrain."""
    own = {"amltrain.name": spec.name, "amltrain.target": target, "amltrain.version": version}
    if spec.source_sha256:
        own["amltrain.source_sha256"] = spec.source_sha256
    return {**spec.tags, **own}


def git_properties(git: GitState | None) -> dict[str, str]:
    """Return a git state as properties of a job, under the names of Azure's SDK."""
    tags = {} if git is None else git.mlflow_tags()
    names = {"mlflow.source.git.dirty": "azureml.git.dirty"}
    return {
        names.get(name, name): (value.capitalize() if name in names else value)[:MAX_PROPERTY_CHARS]
        for name, value in tags.items()
    }


def properties_of(spec: JobSpec) -> dict[str, str]:
    """Return the properties of a job that contain its spec."""
    fields = msgspec.to_builtins(spec)
    dropped: list[str] = []
    for field in ("", *_LONG_FIELDS):
        if field:
            dropped.append(field)
            fields.pop(field, None)
        packed = base64.b85encode(zlib.compress(msgspec.json.encode(fields), 9)).decode()
        if len(packed) <= MAX_PROPERTY_CHARS * MAX_PROPERTIES:
            break
    else:
        return {f"{SPEC}.cut": "all"}
    pieces = {
        f"{SPEC}.{i // MAX_PROPERTY_CHARS}": packed[i : i + MAX_PROPERTY_CHARS]
        for i in range(0, len(packed), MAX_PROPERTY_CHARS)
    }
    return pieces | ({f"{SPEC}.cut": ",".join(dropped)} if dropped else {})


def spec_from(properties: Mapping[str, Any]) -> JobSpec | None:
    """Return the spec from :func:`properties_of`; ``None`` for a job of another tool, or an unreadable spec."""
    pieces: list[str] = []
    while (piece := properties.get(f"{SPEC}.{len(pieces)}")) is not None:
        pieces.append(str(piece))
    if not pieces:
        return None
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b85decode("".join(pieces)), _MAX_SPEC_BYTES)
        return msgspec.json.decode(data, type=JobSpec)
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError):
        return None


def spec_of_foreign_job(name: str, properties: Mapping[str, Any]) -> JobSpec:
    """Return a spec for a job that another tool submitted, from its JSON.

    Parameters
    ----------
    name
        Name of the job.
    properties
        ``properties`` of the job.
    """
    from jupyter_amltrain.schema.job import Resources

    resources = properties.get("resources") or (properties.get("trial") or {}).get("resources") or {}
    shown = "".join(c for c in str(properties.get("displayName") or name) if c.isprintable()).replace("/", "-")
    env = {str(k): str(v) for k, v in (properties.get("environmentVariables") or {}).items()}
    kind = {"Pipeline": "pipeline", "Sweep": "sweep", "AutoML": "automl", "Spark": "spark"}
    return JobSpec(
        sweep=sweep_of_body(properties),
        job_type=kind.get(str(properties.get("jobType") or ""), ""),
        name=shown[:64] or name[:64],
        script=str(properties.get("command") or f"# a {properties.get('jobType', '')} job of Azure ML\n"),
        script_name="command.sh",
        experiment=str(properties.get("experimentName") or "Default")[:250],
        env=env,
        tags={str(k): str(v) for k, v in (properties.get("tags") or {}).items() if not str(k).startswith("_aml")},
        resources=Resources(nodes=int(resources.get("instanceCount") or 1)),
        tracking="direct",
    )


def sweep_of_body(properties: Mapping[str, Any]) -> Sweep | None:
    """Return the sweep of a job's JSON; ``None`` for another job, and for a sweep of another form."""
    if properties.get("jobType") != "Sweep":
        return None
    try:
        return sweep_from_rest(properties)
    except SpecError:
        return None


#: Property with the compute of a job; ARM reports the compute of command jobs only.
COMPUTE_PROPERTY = "amltrain.compute"


def doc_of(spec: JobSpec, place: JobLocation) -> dict[str, Any]:
    """Return the file to submit: on the target's compute, as the line has changed it, named after the run."""
    doc = az_yaml.with_compute(az_yaml_job.file_of(spec), place.compute, place.size)
    doc.pop("name", None)  # replaced by the run's unique id
    doc["display_name"] = spec.name
    doc["experiment_name"] = spec.experiment
    return doc


def yaml_payload_of(spec: JobSpec, place: JobLocation, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the ``job`` of the operations ``jobs.yaml`` and ``jobs.yaml_check``."""
    return {
        "name": name,
        "text": az_yaml.to_yaml(doc_of(spec, place)),
        "source_text": spec.cell,
        "file": spec.script_name,
        "folder": spec.notebook_dir,
        "tags": dict(tags),
        "properties": {**properties_of(spec), COMPUTE_PROPERTY: place.compute},
    }


def yaml_request_of(spec: JobSpec, place: JobLocation, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the request that ``--dry-run`` prints."""
    doc = doc_of(spec, place)
    return {
        "request": f"PUT {place.arm_id}/jobs/{name}",
        "type": spec.job_type,
        "job": {**doc, "tags": {**doc.get("tags", {}), **tags}},
        "folder": spec.notebook_dir,
    }
