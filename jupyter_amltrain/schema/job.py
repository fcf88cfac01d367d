"""Job specification: script, resources and services as frozen data, checked once by :func:`validated`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.agent.protocol import MAX_RESTARTS
from jupyter_amltrain.agent.secret_values import looks_secret
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.environment import Environment, check_environment
from jupyter_amltrain.schema.inputs import JobInput, JobOutput, check_data, check_references
from jupyter_amltrain.schema.param_forms import form_of, words_of
from jupyter_amltrain.schema.scaling import ScalingSlice
from jupyter_amltrain.schema.sweep import Sweep
from jupyter_amltrain.schema.taken import Taken

IDENTITIES = ("user", "managed", "aml")

SERVICES = ("jupyterlab", "vscode", "tensorboard", "ssh")

PRIORITIES = ("low", "medium", "high")

TIERS = ("spot", "basic", "standard", "premium")

_CLIENT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_PUBLIC_KEY = re.compile(r"(?:ssh-[a-z0-9-]+|ecdsa-[a-z0-9-]+|sk-[a-z0-9@.-]+) [A-Za-z0-9+/]+=*(?: [^\r\n]*)?")


def check_service(identity: str, services: Sequence[str], priority: str, tier: str) -> None:
    """Raise :class:`SpecError` for an invalid identity, service, priority or tier."""
    kind, colon, client = identity.partition(":")
    if identity and kind not in IDENTITIES:
        raise SpecError(
            "use user (your own), managed (the compute's) or aml (the workspace's).",
            hint="Try: --identity managed",
            code="spec.value",
            field="identity",
        ).about(f"--identity {identity[:80]!r}")
    if colon and (kind != "managed" or not _CLIENT.fullmatch(client)):
        raise SpecError(
            "expected a client id after 'managed:' and nothing after user or aml.",
            hint="Try: --identity managed:00000000-0000-0000-0000-000000000000",
            code="spec.value",
            field="identity",
        ).about(f"--identity {identity[:80]!r}")
    kinds = [service.partition(":")[0] for service in services]
    for service, service_kind in zip(services, kinds, strict=True):
        _check_service_kind(service_kind, service.partition(":")[2])
    if repeated := [service_kind for service_kind in kinds if kinds.count(service_kind) > 1]:
        raise SpecError(
            f"--service {repeated[0]} is given twice.", hint="Give it once.", code="spec.value", field="services"
        )
    if priority not in ("", *PRIORITIES):
        raise SpecError(
            f"must be one of {', '.join(PRIORITIES)}.",
            hint="Try: --priority low",
            code="spec.value",
            field="priority",
        ).about(f"--priority {priority[:80]!r}")
    if tier not in ("", *TIERS):
        raise SpecError(
            f"must be one of {', '.join(TIERS)}; spot is low priority.",
            hint="Try: --tier spot",
            code="spec.value",
            field="tier",
        ).about(f"--tier {tier[:80]!r}")


def _check_service_kind(kind: str, rest: str) -> None:
    if kind not in SERVICES:
        raise SpecError(
            f"must be one of {', '.join(SERVICES)}.",
            hint="Try: --service jupyterlab",
            code="spec.value",
            field="services",
        ).about(f"--service {kind[:80]!r}")
    if kind == "ssh" and not _PUBLIC_KEY.fullmatch(rest):
        # The message does not repeat the value: it may be a private key.
        raise SpecError(
            "expected a public key after 'ssh:'.",
            hint="Try: --service ssh:~/.ssh/id_ed25519.pub",
            code="spec.value",
            field="services",
        ).about("--service ssh")
    if kind in ("jupyterlab", "vscode") and rest:
        raise SpecError("takes no value.", hint=f"Try: --service {kind}", code="spec.value", field="services").about(
            f"--service {kind}"
        )
    if kind == "tensorboard" and ("\n" in rest or ".." in rest.split("/")):
        raise SpecError(
            "expected a log folder below the run's folder after 'tensorboard:'.",
            hint="Try: --service tensorboard:logs",
            code="spec.value",
            field="services",
        ).about("--service tensorboard")


#: Frameworks that are started by the launcher of another one where a service does not name them.
LAUNCHED_AS = {"deepspeed": "pytorch", "horovod": "mpi"}

#: Launchers that connect the processes of a job; empty for a single process.
DISTRIBUTIONS = ("pytorch", "mpi", "tensorflow", *LAUNCHED_AS, "ray")

#: File with DeepSpeed's configuration in the job's code, and the variable with its path.
DEEPSPEED_FILE, DEEPSPEED_VARIABLE = "aml_deepspeed.json", "AML_DEEPSPEED_CONFIG"

#: Larger numbers are typing errors; the service has lower limits and reports them itself.
MAX_NODES, MAX_PROCESSES = 1000, 512

_SIZE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

#: Docker's syntax; the service's default is ``2g``.
_SHM = re.compile(r"[1-9]\d{0,9}[bkmg]")


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that a job needs.

    Attributes
    ----------
    gpus
        GPUs on each node; ``None`` takes one if the machine has GPUs, else a CPU slot. A number below 1 is a
        fraction of one GPU, which several runs share.
    nodes
        Machines that the job runs on at the same time.
    instance_type
        VM size, on targets that allocate a machine for the run.
    shm_size
        Shared memory of the container: ``512m``, ``2g``; empty for the service's default.
    docker_args
        Further arguments of ``docker run``.
    """

    gpus: int | float | None = None
    nodes: int = 1
    instance_type: str = ""
    shm_size: str = ""
    docker_args: str = ""

    @property
    def gpu_fraction(self) -> float:
        """Part of the GPU that the job needs; 1 for whole GPUs."""
        return self.gpus if self.gpus and self.gpus < 1 else 1.0

    @property
    def gpu_count(self) -> int | None:
        """GPUs on each node, of which the job may have a fraction; ``None`` as for `gpus`."""
        return None if self.gpus is None else math.ceil(self.gpus)


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Distributed launch of a job's processes.

    Attributes
    ----------
    kind
        One of :data:`DISTRIBUTIONS`, or empty for none.
    processes
        Processes on each node; ``None`` for one per GPU, or one. TensorFlow: total number of workers,
        ``None`` for one on each node.
    parameter_servers
        Number of parameter servers; TensorFlow only.
    config
        DeepSpeed's configuration, which the job reads from the file ``$AML_DEEPSPEED_CONFIG``.
    """

    kind: str = ""
    processes: int | None = None
    parameter_servers: int = 0
    config: dict[str, Any] = {}


def distribution_of(
    kind: str, processes: int | None, nodes: int, parameter_servers: int = 0, config: Mapping[str, Any] | None = None
) -> Distribution:
    """Return the distribution; several nodes or processes without a kind mean PyTorch, or DeepSpeed if configured."""
    if not kind and config:
        kind = "deepspeed"
    if not kind and (nodes > 1 or (processes or 1) > 1):
        kind = "pytorch"
    return Distribution(kind=kind, processes=processes, parameter_servers=parameter_servers, config=dict(config or {}))


#: The smallest fraction of a GPU.
MIN_GPU_FRACTION = 0.01


def _check_gpus(resources: Resources, distribution: Distribution) -> None:
    gpus = resources.gpus
    if gpus is None:
        return
    reason, hint = "", "Try: --gpus 1"
    if not (gpus >= 0 and (gpus >= MIN_GPU_FRACTION or gpus == 0)):  # False of NaN
        reason = f"the number of GPUs must be 0 or more, or a fraction of at least {MIN_GPU_FRACTION}."
    elif gpus > 1 and gpus != int(gpus):
        reason, hint = "more than one GPU must be a whole number.", f"Try: --gpus {int(gpus)}"
    elif resources.gpu_fraction < 1 and (resources.nodes > 1 or (distribution.processes or 1) > 1):
        reason, hint = "a fraction of a GPU is for a job of one process.", "Try: --gpus 1"
    if reason:
        error = SpecError(reason, hint=hint, code="spec.value", field="resources.gpus")
        raise error.about(f"--gpus {gpus:g}")


def check_resources(resources: Resources, distribution: Distribution) -> None:
    """Raise :class:`SpecError` for invalid resources or an invalid distribution."""
    _check_gpus(resources, distribution)
    if not 1 <= resources.nodes <= MAX_NODES:
        raise SpecError(
            f"a run has 1 to {MAX_NODES} nodes.",
            hint="Try: --nodes 2",
            code="spec.value",
            field="resources.nodes",
        ).about(f"--nodes {resources.nodes}")
    if resources.instance_type and not _SIZE.fullmatch(resources.instance_type):
        raise SpecError(
            "expected the name of a VM size.",
            hint="Try: --instance-type Standard_NC4as_T4_v3",
            code="spec.value",
            field="resources.instance_type",
        ).about(f"--instance-type {resources.instance_type[:80]!r}")
    if resources.shm_size and not _SHM.fullmatch(resources.shm_size):
        raise SpecError(
            "expected a number and a unit: b, k, m or g.",
            hint="Try: --shm-size 8g",
            code="spec.value",
            field="resources.shm_size",
        ).about(f"--shm-size {resources.shm_size[:80]!r}")
    if "\n" in resources.docker_args or "\0" in resources.docker_args:
        raise SpecError(
            "must be a single line.",
            hint="Try: --docker-args '--ipc=host'",
            code="spec.value",
            field="resources.docker_args",
        ).about("--docker-args")
    if distribution.kind not in ("", *DISTRIBUTIONS):
        raise SpecError(
            f"must be one of {', '.join(DISTRIBUTIONS)}.",
            hint="Try: --distribution pytorch",
            code="spec.value",
            field="distribution.kind",
        ).about(f"--distribution {distribution.kind[:80]!r}")
    if distribution.processes is not None and not 1 <= distribution.processes <= MAX_PROCESSES:
        raise SpecError(
            f"must be 1 to {MAX_PROCESSES} per node.",
            hint="Try: --processes 2",
            code="spec.value",
            field="distribution.processes",
        ).about(f"--processes {distribution.processes}")
    if not 0 <= distribution.parameter_servers <= MAX_PROCESSES:
        raise SpecError(
            "invalid number of parameter servers.",
            hint="Try: --distribution tensorflow:1",
            code="spec.value",
            field="distribution.kind",
        ).about(f"--distribution tensorflow:{distribution.parameter_servers}")
    if distribution.parameter_servers and distribution.kind != "tensorflow":
        raise SpecError(
            "only TensorFlow has parameter servers.",
            hint=f"Try: --distribution tensorflow:{distribution.parameter_servers}",
            code="spec.value",
            field="distribution.kind",
        ).about(f"--distribution {distribution.kind or 'none'}")
    if distribution.config and distribution.kind not in ("deepspeed", "pytorch", "mpi"):
        raise SpecError(
            "needs processes that DeepSpeed connects.",
            hint="Leave --distribution out, or try: --distribution deepspeed",
            code="spec.value",
            field="distribution.config",
        ).about("--deepspeed")


#: Fields of a job by their names in messages.
_FIELDS = {
    "--param": "params",
    "--env-var": "env",
    "--tag": "tags",
    "--name": "name",
    "--experiment": "experiment",
    "--input": "inputs",
    "An argument": "args",
    "--docker-args": "resources.docker_args",
    "--pip": "environment.pip",
}


def check_confidential(spec: JobSpec) -> None:
    """Raise :class:`SpecError` for a value that looks like a secret; the message never contains the value."""
    for flag, name, value, env in _stored(spec):
        # The name itself may look like a secret.
        if looks_secret(name, value, env=env) or looks_secret("", name):
            shown = "" if looks_secret("", name) else name
            variable = re.sub(r"\W", "_", shown) if shown and flag != "--tag" else "NAME"
            raise SpecError(
                f"{flag}{' ' if shown else ''}{shown} looks like a secret; its value would be stored with the run.",
                hint=f"Write --secret {variable} (in Python secrets={{{variable!r}: ...}}), and in the code:"
                f" os.environ[{variable!r}]",
                code="spec.secret",
                field=_FIELDS[flag],
            )


def _stored(spec: JobSpec) -> Iterator[tuple[str, str, str, bool]]:
    """Yield flag, name and value of everything stored in clear text, and whether it is an environment variable."""
    for name, value in spec.params.items():
        yield from (("--param", *pair, False) for pair in _texts(name, value))
    for name, value in spec.env.items():
        yield "--env-var", name, value, True
    for name, value in spec.tags.items():
        yield "--tag", name, str(value), False
    yield "--name", "", spec.name, False
    yield "--experiment", "", spec.experiment, False
    for name, data in spec.inputs.items():
        if data.type == "literal":
            yield "--input", name, str(data.value), False
    yield from (("An argument", *pair, False) for pair in _arguments(spec.args))
    yield from (("--pip", "", line, False) for line in spec.environment.pip if "${" not in line)
    words = re.split(r"[\s'\"]+", spec.resources.docker_args)
    for word in words:
        name, equals, value = word.rpartition("--")[2].removeprefix("env=").partition("=")
        yield ("--docker-args", name, value, True) if equals else ("--docker-args", "", word, True)


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield names and texts of a JSON value, including nested lists and mappings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(name, inner)
    elif value is not None and not isinstance(value, bool):
        yield name, str(value)


def _arguments(args: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield name and value of ``--name=value``, ``--name value`` and positional arguments."""
    flag = ""
    for word in map(str, args):
        name, equals, value = word.partition("=")
        if word.startswith("-") and equals:
            yield name.lstrip("-"), value
        else:
            yield flag, word
        flag = word.lstrip("-") if word.startswith("-") and not equals else ""


__all__ = ["GPU_IDS", "MAX_NAME", "REQUIRE_GPU", "Distribution", "JobSpec", "Resources", "validated"]

#: Maximum length of a name, set by MLflow names, run folders and process titles.
MAX_NAME = 64

#: Actions for a job that does not use its GPUs; empty means ``warn``.
REQUIRE_GPU = ("", "stop", "warn")

#: Format of the job's ``CUDA_VISIBLE_DEVICES``; empty means ``uuid``.
GPU_IDS = ("", "uuid", "index")

_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


#: Word of ``--out`` for all values that a run keeps.
EVERY = "*"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    Attributes
    ----------
    script
        Text of the training script as executed.
    script_name
        File name in the run's ``source/``; with `source`, a path inside that folder, and `script` is empty.
    source
        Folder that is copied with the run; ``None`` for the script and the
        local modules that it imports.
    root
        Folder that `script_name`, `search` and `files` are relative to: the project around the script, where a file
        runs on this machine. Empty for `source`, else `notebook_dir`.
    module
        Name of the module that is run as a script (``python -m``); its file is `script_name`. Empty for a file.
    search
        Folders below `root` that the job's modules are imported from, besides the script's own.
    files
        Further files below `root` that the code names, which another machine gets with it.
    params
        Values assigned on the script's first line, or ``--name value`` arguments
        of a file. JSON values; ``${{inputs.NAME}}`` and ``${{outputs.NAME}}`` in them are the
        paths of data (:mod:`.inputs`).
    style, forms
        Style of a file's parameters on its command line, if the user named one, and the form of each
        (:mod:`.param_forms`).
    launcher
        Words of a program that starts the script in place of Python alone: ``torchrun --nproc_per_node 2``.
    args
        Further arguments of the script, with the same references.
    out
        Names of variables whose JSON value is returned when the script ends.
    values
        Values of the notebook that are assigned before the first line, as nodes of
        :mod:`jupyter_amltrain.agent.values`, by name.
    modules
        Sources of modules that travel with the script, by module name: functions and classes of the notebook.
    taken
        Names of the notebook that the cell took.
    allow_pickle
        Whether values may be pickled, and this notebook reads pickles that the job returns.
    env
        Public environment variables. Never secrets.
    secrets
        *Names* of environment variables whose values are passed to the agent
        over its socket and never stored.
    timeout
        Seconds of run time, of all attempts together, after which the job is stopped; ``None`` for no limit.
    max_restarts
        How often the job starts again after a failure or a pre-emption, with the same checkpoint folder.
    simulate_preemption
        Seconds after which each attempt but the last is ended as by a pre-emption; ``None`` for never.
    require_gpu
        ``stop``: end the job if it does not use the GPUs that it owns; ``warn`` or
        empty: only report it.
    gpu_grace
        Seconds of run time before idle GPUs are reported; ``None`` for the target's 60.
    share_gpus
        Whether the job may get GPUs on which processes of other users compute.
    gpu_ids
        Format of the job's ``CUDA_VISIBLE_DEVICES``: ``index`` for tools that parse numbers, ``uuid`` or empty.
    notebook_dir
        Folder of the notebook, or the one in which a file was submitted: the job's working folder, and
        ``$AML_NOTEBOOK_DIR``.
    project
        Folder whose ``.amltrain`` holds the MLflow store of the run.
    tracking
        ``sink``: the agent's own endpoint; ``direct``: the user's tracking server.
    python
        Interpreter on the target; empty for the target's default.
    cell
        The text as the user wrote it, for resubmitting and for the record.
    line_offset
        Script line minus cell line, so that errors can name the cell's line.
    environment
        Interpreter and packages; empty for the target's default.
    inputs, outputs
        Data by name; the script reads their paths from ``$AML_INPUT_<NAME>`` and ``$AML_OUTPUT_<NAME>``.
    distribution
        Launcher that connects the processes of the job.
    identity
        Identity for reading data: ``user``, ``managed``, ``managed:<client id>``, ``aml``; empty for the
        target's default.
    services
        Services to open while the job runs: ``jupyterlab``, ``vscode``, ``tensorboard:<folder>``,
        ``ssh:<public key>``.
    priority
        ``low``, ``medium``, ``high``, or empty.
    tier
        Tier of machines that the service allocates: ``spot`` (low priority), ``basic``, ``standard``,
        ``premium``, or empty.
    job_type
        ``type`` of an ``az ml`` job whose YAML is `cell` (:mod:`.az_yaml`); empty for a script. Such a job
        has no `script`, `script_name` is its file's name, `notebook_dir` the folder of the file.
    command
        For ``type: command``: command line that ``sh`` runs in the code folder, bindings as written.
    notes
        Notes for the user about the conversion of the text to `script`, one sentence each.
    parent
        Handle of the run that this one is part of, such as a sweep or a pipeline; empty for a run of its own.
    repeats
        Handle of the run whose job this is; empty for a new one.
    scaling
        Width and limits of a run that only measures the job's speed (``--scaling``).
    code_dir
        Folder with the files of the repeated run, which take the place of those in `source` and `notebook_dir`.
    sweep
        Search of a sweep. A target that runs sweeps itself takes it with the job of a trial; elsewhere the job is the
        driver, which submits the trials.
    trial
        Of a driver: the job of each trial, without the values that the sweep chooses.
    continues
        Of a driver, or of the job of a trial that is submitted as a sweep: handle of the sweep that it continues.
    trial_target
        Of a driver: name of the target of the trials, or of several, separated by commas.
    trial_slots
        Of a driver: number of trials that a target runs at the same time, by its name; absent if unknown.
    """

    name: str
    script: str = ""
    script_name: str = "script.py"
    source: str | None = None
    root: str = ""
    module: str = ""
    search: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    params: dict[str, Any] = {}
    style: str = ""
    forms: dict[str, str] = {}
    launcher: str = ""
    args: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    values: dict[str, Any] = {}
    modules: dict[str, str] = {}
    taken: Taken = Taken()
    allow_pickle: bool = False
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    resources: Resources = Resources()
    experiment: str = "default"
    tags: dict[str, str] = {}
    timeout: float | None = None
    max_restarts: int = 0
    simulate_preemption: float | None = None
    require_gpu: str = ""
    gpu_grace: float | None = None
    share_gpus: bool = False
    gpu_ids: str = ""
    notebook_dir: str = ""
    project: str = ""
    tracking: str = "sink"
    python: str = ""
    cell: str = ""
    line_offset: int = 0
    source_sha256: str = ""
    environment: Environment = Environment()
    inputs: dict[str, JobInput] = {}
    outputs: dict[str, JobOutput] = {}
    distribution: Distribution = Distribution()
    identity: str = ""
    services: tuple[str, ...] = ()
    priority: str = ""
    tier: str = ""
    job_type: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    parent: str = ""
    repeats: str = ""
    scaling: ScalingSlice | None = None
    code_dir: str = ""
    sweep: Sweep | None = None
    trial: JobSpec | None = None
    trial_target: str = ""
    trial_slots: dict[str, int] = {}
    continues: str = ""

    @property
    def code_root(self) -> str:
        """Folder that the names of the job's files are relative to; empty for the working folder."""
        return self.source or self.root or self.notebook_dir

    @property
    def working_place(self) -> str:
        """Place of the working folder below `code_root`, on a machine that has only the files of the job."""
        inside = self.root and not self.source and self.notebook_dir.startswith(self.root.rstrip("/") + "/")
        return self.notebook_dir[len(self.root.rstrip("/")) + 1 :] if inside else ""

    @property
    def out_names(self) -> tuple[str, ...]:
        """Names of ``--out``, without the word for all values."""
        return tuple(name for name in self.out if name != EVERY)


def validated(spec: JobSpec) -> JobSpec:
    """Return `spec`, or raise :class:`SpecError` that names the field and its valid values."""
    check_confidential(spec)  # first, because the other messages quote the invalid value
    _check_names(spec)
    check_resources(spec.resources, spec.distribution)
    _check_times_and_gpus(spec)
    _check_restarts(spec)
    _check_program(spec)
    _check_variables(spec)
    check_environment(spec.environment)
    check_data(spec.inputs, spec.outputs)
    if not spec.job_type:  # the service resolves references in a file of az ml
        check_references(spec.params, spec.args, spec.inputs, spec.outputs)
    check_service(spec.identity, spec.services, spec.priority, spec.tier)
    return spec


def _check_names(spec: JobSpec) -> None:
    if not spec.name or len(spec.name) > MAX_NAME or "/" in spec.name or not spec.name.isprintable():
        raise SpecError(
            f"must have 1 to {MAX_NAME} printable characters and no '/' (this name has {len(spec.name)}).",
            hint="Try: --name digits",
            code="spec.value",
            field="name",
        ).about(f"--name {spec.name[:80]!r}")
    if not spec.experiment or len(spec.experiment) > 250:
        raise SpecError(
            "a name must have 1 to 250 characters.",
            hint="Try: --experiment digits",
            code="spec.value",
            field="experiment",
        ).about("--experiment")


def _check_times_and_gpus(spec: JobSpec) -> None:
    if spec.timeout is not None and not 0 < spec.timeout < 10**9:
        raise SpecError(
            "not a valid time.",
            hint="Try: --timeout 30m",
            code="spec.value",
            field="timeout",
        ).about(f"--timeout {spec.timeout:g}")
    if spec.require_gpu not in REQUIRE_GPU:
        raise SpecError(
            "must be stop or warn.",
            hint="Try: --require-gpu stop|warn",
            code="spec.value",
            field="require_gpu",
        ).about(f"--require-gpu {spec.require_gpu[:80]}")
    if spec.require_gpu == "stop" and spec.resources.gpus == 0:
        raise SpecError(
            "the run has no GPU to use.",
            hint="Try: --gpus 1",
            code="spec.value",
            field="require_gpu",
        ).about("--require-gpu stop with --gpus 0")
    if spec.gpu_ids not in GPU_IDS:
        raise SpecError(
            "must be uuid or index.",
            hint="Try: --gpu-ids uuid|index",
            code="spec.value",
            field="gpu_ids",
        ).about(f"--gpu-ids {spec.gpu_ids[:80]}")
    if spec.gpu_grace is not None and not 0 < spec.gpu_grace < 10**9:
        raise SpecError(
            f"gpu_grace {spec.gpu_grace:g}: not a valid time in seconds.",
            hint="Try: gpu_grace=60",
            code="spec.value",
            field="gpu_grace",
        )


def _check_restarts(spec: JobSpec) -> None:
    if not 0 <= spec.max_restarts <= MAX_RESTARTS:
        raise SpecError(
            f"must be 0 to {MAX_RESTARTS}.", hint="Try: --max-restarts 3", code="spec.value", field="max_restarts"
        ).about(f"--max-restarts {spec.max_restarts}")
    after = spec.simulate_preemption
    if after is not None and not 0 < after < 10**9:
        raise SpecError(
            "not a valid time.", hint="Try: --simulate-preemption 60s", code="spec.value", field="simulate_preemption"
        ).about(f"--simulate-preemption {after:g}")
    if after is not None and not spec.max_restarts:
        raise SpecError(
            "--simulate-preemption needs a restart to rehearse.",
            hint="Add --max-restarts 1",
            code="spec.value",
            field="simulate_preemption",
        )


def _check_program(spec: JobSpec) -> None:
    """Check what starts a file, and the words of its parameters."""
    if spec.launcher and (spec.distribution.kind or spec.script_name.endswith(".ipynb")):
        other = "--processes and --distribution" if spec.distribution.kind else "A notebook"
        raise SpecError(
            f"{other} cannot be combined with a launcher of your own.",
            hint="Leave out one of them: --launcher 'torchrun --nproc_per_node 2' starts its processes itself.",
            code="spec.launcher",
            field="launcher",
        ).about("--launcher")
    if not spec.script and not spec.job_type:
        if spec.args and spec.script_name.endswith(".ipynb"):
            raise SpecError(
                f"{spec.script_name} is a notebook, which takes no arguments: {' '.join(spec.args)[:80]}.",
                hint="Set variables of it: --param name=value",
                code="submit.notebook_arguments",
                field="args",
            )
        for name, value in spec.params.items():
            words_of(name, value, form_of(name, spec.forms))


def _check_variables(spec: JobSpec) -> None:
    for kind, names in (("--env-var", spec.env), ("--secret", spec.secrets)):
        for name in names:
            if not _ENV.fullmatch(name):
                raise SpecError(
                    f"{kind} {name!r}: not a valid name of an environment variable.",
                    hint=f"Try: {kind} MY_NAME",
                    code="spec.value",
                    field="env" if kind == "--env-var" else "secrets",
                )
    if EVERY in spec.out and (spec.sweep is not None or not spec.cell):
        raise SpecError(
            "all values are returned only of a single run of a cell.",
            hint="Name them: --out accuracy",
            code="spec.value",
            field="out",
        ).about("--out *")
    for name in spec.out_names:
        if not name.isidentifier():
            raise SpecError("not a variable name.", hint="Try: --out accuracy", code="spec.value", field="out").about(
                f"--out {name!r}"
            )
    if repeated := sorted(set(spec.env) & set(spec.secrets)):
        raise SpecError(
            f"{repeated[0]} is given by both --env-var and --secret.",
            hint="Give it once.",
            code="spec.value",
            field="env",
        )
    for key, value in spec.tags.items():
        if len(key) > 250 or len(value) > 5000:
            raise SpecError(
                "MLflow allows 250 characters in a name and 5000 in a value.",
                hint="Shorten it.",
                code="spec.value",
                field="tags",
            ).about(f"--tag {key[:40]}…")
