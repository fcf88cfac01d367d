"""The flags of a job: one table for ``%%aml_submit``, ``amltrain submit``, :func:`jupyter_amltrain.submit`,
the completion and the panel's form.

A new flag is a field of :class:`~jupyter_amltrain.schema.job.JobSpec` (or of its resources), a row here, and
the code that acts on the field.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.agent.supervise.hook_table import SWITCHED
from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.jobs import flag_types, flag_values, requirement_files
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.inputs import JobInput, JobOutput
from jupyter_amltrain.schema.job import DISTRIBUTIONS, IDENTITIES, SERVICES, Distribution, Resources, distribution_of
from jupyter_amltrain.schema.param_forms import STYLES


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobFlag:
    """A flag that is a field of a job.

    Attributes
    ----------
    flag
        As it is typed.
    field
        Path of the field: ``timeout``, ``resources.gpus``.
    help
        One sentence, for the help and the form.
    type
        Reads a typed value; ``None`` keeps the text.
    repeated, switch
        It may be given several times; it has no value.
    keyword
        Of :func:`jupyter_amltrain.submit`; default the last part of `field`.
    keyword_help
        What the keyword takes, where that differs from the flag.
    convert
        Makes the field's value of what was typed, or of what the keyword got.
    yaml
        The key of an ``az ml`` job file that decides it, empty for none: the flag is not for such a file.
        ``None``: it may stand beside a file.
    by_kernel
        Whether the kernel honors it, whatever the target; the others a target must honor (:mod:`.honored`).
    offers, samples
        For the completion: the values that there are; examples of one.
    """

    flag: str
    field: str
    help: str
    metavar: str = ""
    type: Callable[[str], Any] | None = None
    repeated: bool = False
    switch: bool = False
    keyword: str = ""
    keyword_help: str = ""
    convert: Callable[[Any], Any] = lambda value: value
    yaml: str | None = ""
    by_kernel: bool = False
    offers: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Keyword of :func:`jupyter_amltrain.submit`."""
        return self.keyword or self.field.rpartition(".")[2]

    @property
    def dest(self) -> str:
        """Attribute of a parsed line."""
        return self.flag.lstrip("-").replace("-", "_")


def _names(value: Iterable[Any]) -> tuple[str, ...]:
    """Names, each once; of a flag that takes several with commas, lists of them."""
    return tuple(dict.fromkeys(name for item in value for name in ([item] if isinstance(item, str) else item)))


def _pairs_of(flag: str) -> Callable[[Iterable[tuple[str, Any]] | Mapping[str, Any]], dict[str, Any]]:
    """Return the function that makes the values of a flag a dictionary, in which each name is given once."""

    def pairs(value: Iterable[tuple[str, Any]] | Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(value, Mapping):
            return dict(value)
        found: dict[str, Any] = {}
        for name, one in value:
            if name in found:
                field = {"--param": "params", "--env-var": "env"}.get(flag, "tags")
                raise CommandError(
                    f"{flag} {name} is given twice.", hint="Give it once.", code="flag.twice", field=field
                )
            found[name] = one
        return found

    return pairs


def _specs(value: Iterable[Any]) -> tuple[str, ...]:
    """Requirements, each once; of a flag that takes several with spaces, lists of them."""
    return _names(requirement_files.split_specs(item) if isinstance(item, str) else item for item in value)


def _inputs(value: Any) -> dict[str, JobInput]:
    return flag_values.inputs_of(_once("--input", "inputs", value))


def _outputs(value: Any) -> dict[str, JobOutput]:
    return flag_values.outputs_of(_once("--output", "outputs", value))


def _metric_lines(value: Iterable[str]) -> tuple[str, ...]:
    """Patterns of printed lines, each once."""
    return _names(flag_types.metric_line(text) for text in ([value] if isinstance(value, str) else value))


def _once(flag: str, field: str, value: Any) -> Any:
    """Pairs that were typed as a mapping; other values as they are."""
    pairs = value if isinstance(value, list) and all(isinstance(item, tuple) for item in value) else []
    if not pairs:
        return value
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SpecError(
            f"{flag}: {twice} is given twice.", hint="Give it once, or rename one.", code="flag.twice", field=field
        )
    return mapping


FLAGS = (
    JobFlag(
        flag="--source", field="source", metavar="FOLDER", yaml="code", by_kernel=True,
        help="include this folder and make it the working folder (.amlignore and .gitignore apply)",
    ),
    JobFlag(
        flag="--param", field="params", metavar="K=V", type=flag_types.param, repeated=True, by_kernel=True,
        convert=_pairs_of("--param"), yaml=None,
        help="set K before the first line; a script gets --K V as arguments; '${{inputs.data}}' is the path of"
        " --input data",
        keyword_help="values by name",
    ),
    JobFlag(
        flag="--style", field="style", metavar="STYLE", offers=tuple(STYLES), type=flag_types.style, yaml="command",
        by_kernel=True,
        help="how a script takes parameters: argparse (--k v), flag (--k), hydra (k=v), absl (--k=v), fire, env;"
        " default what its parser is",
    ),
    JobFlag(
        flag="--out", field="out", metavar="NAME", type=flag_types.out_names, repeated=True, convert=_names,
        by_kernel=True, yaml="outputs",
        help="return this variable to the notebook when the script finishes; * for all of the cell",
        keyword_help="names of variables; afterwards run.result(name)",
    ),
    JobFlag(
        flag="--env-var", field="env", metavar="K=V", type=flag_types.env_var, repeated=True,
        convert=_pairs_of("--env-var"),
        yaml="environment_variables",
        help="set a public environment variable of the run; for secrets use --secret",
        keyword_help="environment variables by name",
    ),
    JobFlag(
        flag="--secret", field="secrets", metavar="NAME", repeated=True, convert=_names, yaml="environment_variables",
        help="set an environment variable from your environment or keyring; its value is stored nowhere",
        keyword_help="values by name; passed to the job's process, stored nowhere",
    ),
    JobFlag(
        flag="--gpus", field="resources.gpus", metavar="N", type=flag_types.gpus, yaml="resources.instance_type",
        samples=("1", "2", "0.25"),
        help="number of GPUs; default 1 if the machine has a GPU, 0 for none; 0.25: four such runs share one GPU",
    ),
    JobFlag(
        flag="--require-gpu", field="require_gpu", metavar=flag_types.require_gpu.metavar,
        type=flag_types.require_gpu,
        help="warn about a run that does not use its GPUs (default), or stop it",
    ),
    JobFlag(
        flag="--gpu-grace", field="gpu_grace", metavar="TIME", type=flag_types.duration, samples=("60s", "5m"),
        help="time in which the run has to start using its GPUs; default 60s", keyword_help="seconds",
    ),
    JobFlag(
        flag="--share-gpus", field="share_gpus", switch=True,
        help="also allow GPUs that others use: this kernel, other users",
    ),
    JobFlag(
        flag="--gpu-ids", field="gpu_ids", metavar=flag_types.gpu_ids.metavar, type=flag_types.gpu_ids,
        help="format of CUDA_VISIBLE_DEVICES in the run; index for tools that parse numbers (DeepSpeed, vLLM)",
    ),
    JobFlag(
        flag="--name", field="name", yaml=None, by_kernel=True,
        help="display name; default the name of the notebook or script",
    ),
    JobFlag(
        flag="--experiment", field="experiment", metavar="NAME", yaml=None, by_kernel=True,
        help="MLflow experiment; default the notebook's name",
    ),
    JobFlag(
        flag="--tag", field="tags", metavar="K=V", type=flag_types.tag, repeated=True,
        convert=_pairs_of("--tag"), yaml=None, by_kernel=True,
        help="MLflow tag", keyword_help="MLflow tags by name",
    ),
    JobFlag(
        flag="--metric", field="metric_lines", keyword="metrics", metavar="NAME=TEXT", type=flag_types.metric_line,
        repeated=True, convert=_metric_lines, yaml=None, samples=("'loss=Loss: {value} after {step} batches'",),
        help="record a metric that the script prints; {} is any other word, {step} may be absent",
        keyword_help="patterns as for --metric",
    ),
    JobFlag(
        flag="--autolog", field="autolog", switch=True, yaml=None,
        help="let MLflow log for libraries that it knows, as with mlflow.autolog() in the first line",
    ),
    *(
        JobFlag(
            flag=one.flag, field=one.field, switch=not one.metavar, metavar=one.metavar, samples=one.samples,
            yaml=None, help=one.help,
        )
        for _, one in SWITCHED
    ),
    JobFlag(
        flag="--sealed", field="sealed", switch=True, yaml=None,
        help="let nobody evaluate or run something in the job (runs stack, peek, poke)",
    ),
    JobFlag(
        flag="--timeout", field="timeout", metavar="TIME", type=flag_types.duration, yaml="limits.timeout",
        help="stop the run after this time: 90 (seconds), 30s, 15m, 2h, 1d", keyword_help="seconds of run time",
        samples=("30m", "2h", "1d"),
    ),
    JobFlag(
        flag="--max-restarts", field="max_restarts", metavar="N", type=flag_types.count, samples=("1", "3"),
        help="start the run again, up to N times, after a failure, a pre-emption or a reboot; its files in"
        " $AML_CHECKPOINT_DIR stay",
    ),
    JobFlag(
        flag="--simulate-preemption", field="simulate_preemption", metavar="TIME", type=flag_types.duration,
        help="rehearse a pre-emption: end each attempt but the last after this time, by SIGTERM and then SIGKILL",
        keyword_help="seconds", samples=("60s",),
    ),
    JobFlag(
        flag="--nodes", field="resources.nodes", metavar="N", type=flag_types.count, yaml="resources.instance_count",
        help="number of machines; default 1", samples=("2", "4"),
    ),
    JobFlag(
        flag="--processes", field="distribution.processes", metavar="N", type=flag_types.count,
        yaml="distribution.process_count_per_instance", help="processes on each node; default one per GPU",
    ),
    JobFlag(
        flag="--distribution", field="distribution.kind", keyword="distribution", metavar="KIND",
        type=flag_values.parse_distribution, offers=DISTRIBUTIONS, yaml="distribution",
        help="framework of the launcher: pytorch (default for several processes), mpi, horovod, deepspeed, ray,"
        " tensorflow or tensorflow:N with N parameter servers",
    ),
    JobFlag(
        flag="--launcher", field="launcher", metavar="WORDS", type=flag_types.words, yaml="command",
        samples=("'torchrun --nproc_per_node 2'", "'accelerate launch'", "deepspeed"),
        help="start the script by this program, with its own flags: 'accelerate launch --num_processes 2'",
    ),
    JobFlag(
        flag="--deepspeed", field="distribution.config", metavar="CONFIG", type=flag_values.deepspeed_config, yaml="",
        keyword="deepspeed", convert=flag_values.deepspeed_dict,
        help="DeepSpeed's configuration: a JSON file, or a dict of the notebook; the job has it in"
        " $AML_DEEPSPEED_CONFIG",
        keyword_help="a dict, or the path of a JSON file",
    ),
    JobFlag(
        flag="--cpus", field="resources.cpus", metavar="N", type=flag_types.count, samples=("4", "16"),
        help="processors on each node, for targets that assign them to a run",
    ),
    JobFlag(
        flag="--mem", field="resources.memory", metavar="SIZE", samples=("16G", "64G"),
        help="main memory on each node, for targets that assign it to a run: 16G, 500M",
    ),
    JobFlag(
        flag="--option", field="options", metavar="OPTION", repeated=True, convert=_names,
        samples=("--nice=100",),
        help="a further option for the program that starts jobs on the target: --option=--nice=100",
        keyword_help="further options for the program that starts jobs on the target",
    ),
    JobFlag(
        flag="--instance-type", field="resources.instance_type", metavar="SIZE", yaml="resources.instance_type",
        help="machine size, for targets that select a machine for each run",
    ),
    JobFlag(
        flag="--shm-size", field="resources.shm_size", metavar="SIZE", yaml="resources.shm_size",
        help="shared memory of the container: 512m, 8g", samples=("2g", "8g"),
    ),
    JobFlag(
        flag="--docker-args", field="resources.docker_args", metavar="ARGS", yaml="resources.docker_args",
        help="more arguments for docker run; write --docker-args=--ipc=host",
    ),
    JobFlag(
        flag="--env", field="environment", metavar="ENV", type=flag_values.parse_environment, yaml="environment",
        help="packages: kernel (as installed here), requirements.txt, pyproject.toml or conda.yml (built once, here and"
        " over SSH too), an image (here and over SSH with Docker); in a workspace also NAME:3, NAME@latest,"
        " conda.yml,IMAGE, a folder with a Dockerfile",
        keyword_help="as --env, or an Environment (env are environment variables)",
    ),
    JobFlag(
        flag="--python", field="python", metavar="PATH",
        help="interpreter of the job, on its machine; --env and --pip build their environment with it",
        keyword_help="path of the job's interpreter on its machine",
    ),
    JobFlag(
        flag="--pip", field="environment.pip", metavar="SPEC", type=requirement_files.split_specs, repeated=True,
        convert=_specs, yaml="environment", samples=("pandas", "'torch>=2'"),
        help="add a package to the environment, or several in quotes; without --env an environment of these packages",
        keyword_help="packages as pip writes them",
    ),
    JobFlag(
        flag="--derive-env", field="environment.derive", keyword="derive_env", switch=True, yaml="environment",
        help="if MLflow of the named environment cannot log, derive an environment that can",
    ),
    JobFlag(
        flag="--input", field="inputs", metavar="NAME=URI", type=flag_values.input_pair, repeated=True, convert=_inputs,
        yaml=None,
        help="data, with its path in $AML_INPUT_NAME; after commas a mode (download, ro_mount), a type, or upload",
        keyword_help="by name: a path or address as for --input, a number, true or false, or a JobInput",
    ),
    JobFlag(
        flag="--output", field="outputs", metavar="NAME[=URI]", type=flag_values.output_pair, repeated=True,
        convert=_outputs, yaml="outputs",
        help="a folder to write to, in $AML_OUTPUT_NAME; after commas a mode (upload, rw_mount) and a type",
        keyword_help="names, or addresses by name",
    ),
    JobFlag(
        flag="--identity", field="identity", metavar="WHO", offers=IDENTITIES, yaml="identity",
        help="identity for reading data: user (you), managed or managed:CLIENT-ID (the compute), aml (the workspace)",
    ),
    JobFlag(
        flag="--service", field="services", metavar="NAME", type=flag_values.parse_service, repeated=True,
        offers=SERVICES, yaml="services",
        convert=lambda value: _names(flag_values.parse_service(service) for service in value),
        help="open this service while the job runs: jupyterlab, vscode, tensorboard:FOLDER, ssh:PUBLIC-KEY-FILE",
    ),
    JobFlag(
        flag="--priority", field="priority", metavar=flag_types.priority.metavar, type=flag_types.priority,
        yaml="queue_settings.priority", help="priority in the queue",
    ),
    JobFlag(
        flag="--tier", field="tier", metavar=flag_types.tier.metavar, type=flag_types.tier,
        yaml="queue_settings.job_tier", help="machines that the service selects; spot is low priority",
    ),
)  # fmt: skip


def typed_values(args: Any) -> dict[str, Any]:
    """What a parsed line says, by path of the field; flags that are not given are left out."""
    values = {flag: getattr(args, flag.dest, None) for flag in FLAGS}
    return {
        flag.field: flag.convert(value)
        for flag, value in values.items()
        if value is not None and value is not False and value != []
    }


def keyword_values(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """What keywords of :func:`jupyter_amltrain.submit` say, by path of the field; empty ones are left out.

    Raises
    ------
    TypeError
        There is no such keyword.
    SpecError
        A text where a list is expected, or no number where one is.
    CommandError
        A text that is no time or count.
    """
    by_name = {flag.name: flag for flag in FLAGS}
    values: dict[str, Any] = {}
    for name, value in keywords.items():
        if name not in by_name:
            raise TypeError(f"submit() got an unexpected keyword argument {name!r}")
        flag = by_name[name]
        if flag.repeated and isinstance(value, str):
            raise SpecError(
                f"{name} must be a list of strings, got {value!r}.",
                hint=f"Example: {name}=[{value!r}]",
                code="flag.value",
                field=flag.field,
            )
        if value is None or (not isinstance(value, int | float) and not value):
            continue
        if flag.field == "distribution.kind" and isinstance(value, str):
            value = flag_values.parse_distribution(value)
        if flag.type in (flag_types.duration, flag_types.count, flag_types.gpus):
            value = _number(flag, value)
        values[flag.field] = flag.convert(value)
    return values


def _number(flag: JobFlag, value: Any) -> Any:
    """Return the number of a keyword; a text is read as on the line: ``timeout="30m"``."""
    if isinstance(value, str) and flag.type is not None:
        try:
            return flag.type(value)
        except CommandError as error:
            raise error.about(f"{flag.name}={value[:80]!r}") from None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        what = "a number of seconds" if flag.type is flag_types.duration else "a whole number"
        raise SpecError(
            f"{flag.name} must be {what}, not {type(value).__name__}.",
            hint=f"Example: {flag.name}={60 if flag.type is flag_types.duration else 1}",
            code="flag.value",
            field=flag.field,
        )
    return int(value) if isinstance(value, numbers.Integral) else value


def job_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a :class:`~jupyter_amltrain.schema.job.JobSpec` from values by path of the field."""
    fields: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        name, nested, part = path.partition(".")
        if nested:
            parts.setdefault(name, {})[part] = value
        else:
            fields[name] = value
    resources = Resources(**parts.get("resources", {}))
    distribution = parts.get("distribution", {})
    kind = distribution.get("kind") or Distribution()
    processes = distribution.get("processes")
    environment = fields.get("environment", "")
    options = parts.get("environment", {})
    if not isinstance(environment, Environment):
        environment = flag_values.environment_of(environment, options.get("derive", False))
    if options.get("pip"):
        environment = msgspec.structs.replace(environment, pip=(*environment.pip, *options["pip"]))
    return {
        **fields,
        "resources": resources,
        "distribution": distribution_of(
            kind.kind, processes, resources.nodes, kind.parameter_servers, distribution.get("config")
        ),
        "environment": environment,
    }
