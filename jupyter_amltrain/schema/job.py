"""Job specification: script, resources and services as frozen data, checked once by :func:`validated`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.agent.protocol import GPU_IDS, MAX_RESTARTS, REQUIRE_GPU
from jupyter_amltrain.agent.secret_values import looks_secret
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.environment import Environment, check_environment
from jupyter_amltrain.schema.inputs import JobInput, JobOutput, check_data, check_references
from jupyter_amltrain.schema.param_forms import form_of, words_of
from jupyter_amltrain.schema.scaling import ScalingSlice
from jupyter_amltrain.schema.sweep import OwnTrials, Sweep
from jupyter_amltrain.schema.taken import Taken

__all__ = ["MAX_NAME", "Distribution", "DriverPlan", "JobSpec", "Resources", "validated"]

#: Maximum length of a name, set by MLflow names, run folders and process titles.
MAX_NAME = 64

_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

IDENTITIES = ("user", "managed", "aml")

SERVICES = ("jupyterlab", "vscode", "tensorboard", "ssh")

PRIORITIES = ("low", "medium", "high")

TIERS = ("spot", "basic", "standard", "premium")

_CLIENT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_PUBLIC_KEY = re.compile(r"(?:ssh-[a-z0-9-]+|ecdsa-[a-z0-9-]+|sk-[a-z0-9@.-]+) [A-Za-z0-9+/]+=*(?: [^\r\n]*)?")

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

#: Main memory, in powers of 1024.
_MEMORY = re.compile(r"[1-9]\d{0,9}[KMGT]")
MAX_CPUS = 4096


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
    cpus, memory
        Processors and main memory (``64G``) on each node, of a target that assigns them; 0 and empty for its default.
    """

    gpus: int | float | None = None
    nodes: int = 1
    cpus: int = 0
    memory: str = ""
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


#: Word of ``--out`` for all values that a run keeps.
EVERY = "*"


class DriverPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver of a plug-in works with. A driver is a run without a slot, which submits other runs.

    Attributes
    ----------
    kind
        What it drives, as people call it: ``pipeline``.
    plan
        What only its plug-in reads, as JSON.
    jobs
        Jobs that it submits, by name. Their code travels with it, as it was at the submit.
    """

    kind: str
    plan: dict[str, Any] = {}
    jobs: dict[str, JobSpec] = {}


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
    tracking_uri
        MLflow server of a team, which also gets the record; empty for none.
    metric_lines
        Patterns of printed lines with metrics, ``NAME=TEXT`` (:mod:`jupyter_amltrain.agent.trackers.line_pattern`).
    autolog
        Whether MLflow logs for the libraries that it knows, without a call in the script.
    no_lines
        Whether the job's Python is not sampled; the samples say in which lines its time went.
    debug
        Whether ``breakpoint()`` and the exception that ends the script wait for a debugger.
    sealed
        Whether nobody may ask the run where it is, or evaluate something in there.
    stop_on_nan
        Metric that ends the run when it is not a number; ``*`` for any, empty for none.
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
    options
        Further options of the program that starts jobs on the target, as that program takes them.
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
    own_trials
        Goal of a job that tries many models itself: the board of its run shows the trials that it reports.
    continues
        Of a driver, or of the job of a trial that is submitted as a sweep: handle of the sweep that it continues.
    trial_target
        Of a driver: name of the target of the trials, or of several, separated by commas.
    driver_target
        Of a driver, or of the job of a trial that is submitted as a sweep: target that runs the driver; empty for this
        machine.
    trial_slots
        Of a driver: number of trials that a target runs at the same time, by its name; absent if unknown.
    driver
        Of the driver of a plug-in: what it works with.
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
    tracking_uri: str = ""
    metric_lines: tuple[str, ...] = ()
    autolog: bool = False
    no_lines: bool = False
    debug: bool = False
    sealed: bool = False
    stop_on_nan: str = ""
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
    options: tuple[str, ...] = ()
    job_type: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    parent: str = ""
    repeats: str = ""
    scaling: ScalingSlice | None = None
    code_dir: str = ""
    sweep: Sweep | None = None
    own_trials: OwnTrials | None = None
    trial: JobSpec | None = None
    trial_target: str = ""
    driver_target: str = ""
    trial_slots: dict[str, int] = {}
    continues: str = ""
    driver: DriverPlan | None = None

    @property
    def is_driver(self) -> bool:
        """Whether the job is a driver, which takes no slot and submits other runs."""
        return self.trial is not None or self.driver is not None

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


class _Rule(NamedTuple):
    """A condition on a field, and the error of a job that breaks it.

    Attributes
    ----------
    ok
        Whether a value is valid, in its job.
    subject, text, hint
        Of the error, as formats of ``v`` (the value, its first 80 characters), ``n`` (its length) and ``job``.
    each
        The values of the field; default: the field itself is the value.
    """

    field: str
    ok: Callable[[Any, JobSpec], bool]
    subject: str
    text: str
    hint: str
    each: Callable[[JobSpec], Iterable[Any]] | None = None
    code: str = "spec.value"

    def check(self, job: JobSpec) -> None:
        """Raise :class:`SpecError` if a job breaks this rule."""
        for value in [operator.attrgetter(self.field)(job)] if self.each is None else self.each(job):
            if not self.ok(value, job):
                is_text = isinstance(value, str)
                v, n = (value[:80], len(value)) if is_text else (value, 0)
                subject, text, hint = (one.format(v=v, n=n, job=job) for one in (self.subject, self.text, self.hint))
                raise SpecError(text, hint=hint, code=self.code, field=self.field).about(subject)


def _is_time(seconds: float | None, job: JobSpec) -> bool:
    return seconds is None or 0 < seconds < 10**9


def _is_variable(name: str, job: JobSpec) -> bool:
    return _ENV.fullmatch(name) is not None


def _identity_ok(identity: str, job: JobSpec) -> bool:
    kind, colon, client = identity.partition(":")
    return not colon or (kind == "managed" and _CLIENT.fullmatch(client) is not None)


def _services(job: JobSpec) -> list[tuple[str, str]]:
    return [(kind[:80], rest) for kind, _, rest in (service.partition(":") for service in job.services)]


def _repeated_services(job: JobSpec) -> list[str]:
    kinds = [kind for kind, _ in _services(job)]
    return [kind for kind in kinds if kinds.count(kind) > 1]


def _is_notebook(job: JobSpec) -> bool:
    return job.script_name.endswith(".ipynb")


_LAUNCHER_HINT = "Leave out one of them: --launcher 'torchrun --nproc_per_node 2' starts its processes itself."

#: All that can be wrong with one field, or with two together; the first rule that a job breaks is its error.
_RULES = (
    _Rule("name", lambda v, _: 0 < len(v) <= MAX_NAME and "/" not in v and v.isprintable(), "--name {v!r}",
          f"must have 1 to {MAX_NAME} printable characters and no '/' (this name has {{n}}).", "Try: --name digits"),
    _Rule("experiment", lambda v, _: 0 < len(v) <= 250, "--experiment", "a name must have 1 to 250 characters.",
          "Try: --experiment digits"),
    _Rule("resources.gpus", lambda v, _: v is None or v == 0 or v >= MIN_GPU_FRACTION, "--gpus {v:g}",
          f"the number of GPUs must be 0 or more, or a fraction of at least {MIN_GPU_FRACTION}.", "Try: --gpus 1"),
    _Rule("resources.gpus", lambda v, _: v[0] == v[1], "--gpus {v[0]:g}", "more than one GPU must be a whole number.",
          "Try: --gpus {v[1]}", lambda job: [(gpus, int(gpus)) for gpus in [job.resources.gpus or 0] if gpus > 1]),
    _Rule("resources.gpus", lambda _, job: job.resources.gpu_fraction == 1
          or (job.resources.nodes <= 1 and (job.distribution.processes or 1) <= 1), "--gpus {v:g}",
          "a fraction of a GPU is for a job of one process.", "Try: --gpus 1"),
    _Rule("resources.nodes", lambda v, _: 1 <= v <= MAX_NODES, "--nodes {v}", f"a run has 1 to {MAX_NODES} nodes.",
          "Try: --nodes 2"),
    _Rule("resources.cpus", lambda v, _: 0 <= v <= MAX_CPUS, "--cpus {v}", f"a node gives 1 to {MAX_CPUS} processors.",
          "Try: --cpus 8"),
    _Rule("resources.memory", lambda v, _: not v or _MEMORY.fullmatch(v) is not None, "--mem {v!r}",
          "expected a number and a unit: K, M, G or T.", "Try: --mem 64G"),
    _Rule("options", lambda v, _: v.startswith("--") and v.isprintable() and len(v) < 1000, "--option {v!r}",
          "expected one option with two dashes and its value.", "Try: --option=--nice=100", lambda job: job.options),
    _Rule("resources.instance_type", lambda v, _: not v or _SIZE.fullmatch(v) is not None, "--instance-type {v!r}",
          "expected the name of a VM size.", "Try: --instance-type Standard_NC4as_T4_v3"),
    _Rule("resources.shm_size", lambda v, _: not v or _SHM.fullmatch(v) is not None, "--shm-size {v!r}",
          "expected a number and a unit: b, k, m or g.", "Try: --shm-size 8g"),
    _Rule("resources.docker_args", lambda v, _: "\n" not in v and "\0" not in v, "--docker-args",
          "must be a single line.", "Try: --docker-args '--ipc=host'"),
    _Rule("distribution.kind", lambda v, _: v in ("", *DISTRIBUTIONS), "--distribution {v!r}",
          f"must be one of {', '.join(DISTRIBUTIONS)}.", "Try: --distribution pytorch"),
    _Rule("distribution.processes", lambda v, _: v is None or 1 <= v <= MAX_PROCESSES, "--processes {v}",
          f"must be 1 to {MAX_PROCESSES} per node.", "Try: --processes 2"),
    _Rule("distribution.kind", lambda _, job: 0 <= job.distribution.parameter_servers <= MAX_PROCESSES,
          "--distribution tensorflow:{job.distribution.parameter_servers}", "invalid number of parameter servers.",
          "Try: --distribution tensorflow:1"),
    _Rule("distribution.kind", lambda v, job: v == "tensorflow" or not job.distribution.parameter_servers,
          "--distribution {v}", "only TensorFlow has parameter servers.",
          "Try: --distribution tensorflow:{job.distribution.parameter_servers}",
          lambda job: [job.distribution.kind or "none"]),
    _Rule("distribution.config", lambda v, job: not v or job.distribution.kind in ("deepspeed", "pytorch", "mpi"),
          "--deepspeed", "needs processes that DeepSpeed connects.",
          "Leave --distribution out, or try: --distribution deepspeed"),
    _Rule("timeout", _is_time, "--timeout {v:g}", "not a valid time.", "Try: --timeout 30m"),
    _Rule("require_gpu", lambda v, _: v in REQUIRE_GPU, "--require-gpu {v}", "must be stop or warn.",
          "Try: --require-gpu stop|warn"),
    _Rule("require_gpu", lambda v, job: v != "stop" or job.resources.gpus != 0, "--require-gpu stop with --gpus 0",
          "the run has no GPU to use.", "Try: --gpus 1"),
    _Rule("gpu_ids", lambda v, _: v in GPU_IDS, "--gpu-ids {v}", "must be uuid or index.",
          "Try: --gpu-ids uuid|index"),
    _Rule("gpu_grace", _is_time, "gpu_grace {v:g}", "not a valid time in seconds.", "Try: gpu_grace=60"),
    _Rule("max_restarts", lambda v, _: 0 <= v <= MAX_RESTARTS, "--max-restarts {v}",
          f"must be 0 to {MAX_RESTARTS}.", "Try: --max-restarts 3"),
    _Rule("simulate_preemption", _is_time, "--simulate-preemption {v:g}", "not a valid time.",
          "Try: --simulate-preemption 60s"),
    _Rule("simulate_preemption", lambda v, job: v is None or job.max_restarts > 0, "",
          "--simulate-preemption needs a restart to rehearse.", "Add --max-restarts 1"),
    _Rule("launcher", lambda v, job: not v or not job.distribution.kind, "--launcher",
          "--processes and --distribution cannot be combined with a launcher of your own.", _LAUNCHER_HINT,
          code="spec.launcher"),
    _Rule("launcher", lambda v, job: not v or not _is_notebook(job), "--launcher",
          "A notebook cannot be combined with a launcher of your own.", _LAUNCHER_HINT, code="spec.launcher"),
    _Rule("args", lambda v, job: bool(not v or job.script or job.job_type or not _is_notebook(job)), "",
          "{job.script_name} is a notebook, which takes no arguments: {v}.",
          "Set variables of it: --param name=value", lambda job: [" ".join(job.args)], "submit.notebook_arguments"),
    _Rule("env", _is_variable, "--env-var {v!r}", "not a valid name of an environment variable.",
          "Try: --env-var MY_NAME", lambda job: job.env),
    _Rule("secrets", _is_variable, "--secret {v!r}", "not a valid name of an environment variable.",
          "Try: --secret MY_NAME", lambda job: job.secrets),
    _Rule("out", lambda v, job: EVERY not in v or (job.sweep is None and bool(job.cell)), "--out *",
          "all values are returned only of a single run of a cell.", "Name them: --out accuracy"),
    _Rule("out", lambda v, _: v.isidentifier(), "--out {v!r}", "not a variable name.", "Try: --out accuracy",
          lambda job: job.out_names),
    _Rule("env", lambda v, job: v not in job.secrets, "", "{v} is given by both --env-var and --secret.",
          "Give it once.", lambda job: sorted(job.env)),
    _Rule("tags", lambda v, _: len(v[0]) <= 250 and len(v[1]) <= 5000, "--tag {v[0]:.40}…",
          "MLflow allows 250 characters in a name and 5000 in a value.", "Shorten it.", lambda job: job.tags.items()),
    _Rule("identity", lambda v, _: v.partition(":")[0] in IDENTITIES or not v, "--identity {v!r}",
          "use user (your own), managed (the compute's) or aml (the workspace's).", "Try: --identity managed"),
    _Rule("identity", _identity_ok, "--identity {v!r}",
          "expected a client id after 'managed:' and nothing after user or aml.",
          "Try: --identity managed:00000000-0000-0000-0000-000000000000"),
    _Rule("services", lambda v, _: v[0] in SERVICES, "--service {v[0]!r}", f"must be one of {', '.join(SERVICES)}.",
          "Try: --service jupyterlab", _services),
    # The message does not repeat the value: it may be a private key.
    _Rule("services", lambda v, _: v[0] != "ssh" or _PUBLIC_KEY.fullmatch(v[1]) is not None, "--service ssh",
          "expected a public key after 'ssh:'.", "Try: --service ssh:~/.ssh/id_ed25519.pub", _services),
    _Rule("services", lambda v, _: v[0] not in ("jupyterlab", "vscode") or not v[1], "--service {v[0]}",
          "takes no value.", "Try: --service {v[0]}", _services),
    _Rule("services", lambda v, _: v[0] != "tensorboard" or ("\n" not in v[1] and ".." not in v[1].split("/")),
          "--service tensorboard", "expected a log folder below the run's folder after 'tensorboard:'.",
          "Try: --service tensorboard:logs", _services),
    _Rule("services", lambda _, __: False, "", "--service {v} is given twice.", "Give it once.", _repeated_services),
    _Rule("priority", lambda v, _: v in ("", *PRIORITIES), "--priority {v!r}",
          f"must be one of {', '.join(PRIORITIES)}.", "Try: --priority low"),
    _Rule("tier", lambda v, _: v in ("", *TIERS), "--tier {v!r}",
          f"must be one of {', '.join(TIERS)}; spot is low priority.", "Try: --tier spot"),
)  # fmt: skip


def validated(spec: JobSpec) -> JobSpec:
    """Return `spec`, or raise :class:`SpecError` that names the field and its valid values."""
    check_confidential(spec)  # first, because the other messages quote the invalid value
    for rule in _RULES:
        rule.check(spec)
    if not spec.script and not spec.job_type:
        for name, value in spec.params.items():
            words_of(name, value, form_of(name, spec.forms))
    check_environment(spec.environment)
    check_data(spec.inputs, spec.outputs)
    if not spec.job_type:  # the service resolves references in a file of az ml
        check_references(spec.params, spec.args, spec.inputs, spec.outputs)
    return spec
