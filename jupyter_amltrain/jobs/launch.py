"""Plan of a launch: the process or the processes that the agent starts for a job, as plain data."""

from __future__ import annotations

import operator
import posixpath
import shlex
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.agent.data.cache import input_path, is_web_address, link_path
from jupyter_amltrain.agent.protocol import AUTOLOG, OUTPUTS
from jupyter_amltrain.agent.queue.job_fields import FIELDS
from jupyter_amltrain.agent.supervise.hook_table import SWITCHED
from jupyter_amltrain.jobs.local_data import data_name
from jupyter_amltrain.jobs.notebook_file import RUNNER, is_notebook
from jupyter_amltrain.schema import searched_values
from jupyter_amltrain.schema.inputs import JobInput, input_variable, literal_text, output_variable, uploads, with_paths
from jupyter_amltrain.schema.job import DEEPSPEED_FILE, DEEPSPEED_VARIABLE, JobSpec
from jupyter_amltrain.schema.param_forms import form_of, variables_of, words_of

#: Exit code of a job with trials that another attempt would repeat, such as that of a sweep whose trials all fail.
FINAL_EXIT_CODE = 3


class TargetMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan of a job must know about the machine that runs it.

    Attributes
    ----------
    python
        Interpreter of jobs that name none; a path or a command of that machine.
    has_our_disk
        Whether paths of the kernel's machine mean the same there: the notebook's folder, and files of inputs.
    """

    python: str
    has_our_disk: bool


class ProcessPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Process that the agent starts.

    Attributes
    ----------
    argv
        Program and arguments; absolute paths of the target.
    cwd
        Working folder on the target.
    env
        Public variables on top of the submitter's environment.
    ranks
        Processes of a distributed job, for ``agent/distributed/launchers.py``; empty for one process.
    code
        Where the code is, for ``agent/supervise/code_place.py``; empty for a copy without further places.
    """

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    ranks: dict[str, Any] = {}
    code: dict[str, Any] = {}


def launch_plan(spec: JobSpec, source: str, machine: TargetMachine) -> ProcessPlan:
    """Plan one plain Python process for `spec`, whose code will be in the folder `source`.

    The working folder is the notebook's (read-only by convention, also in ``$AML_NOTEBOOK_DIR``), so that
    relative paths of data hold. It is the copied folder with ``--source``, and its place in the copy on a machine that
    does not have the notebook's. A file runs where it is (:func:`runs_in_place`).
    """
    python = spec.python or machine.python
    if spec.job_type:
        return _command_plan(spec, source, python, machine)
    data = _data(spec, posixpath.dirname(source), machine)
    own = spec.source or not spec.notebook_dir or not machine.has_our_disk
    cwd = posixpath.join(source, spec.working_place).rstrip("/") if own else spec.notebook_dir
    in_place = machine.has_our_disk and runs_in_place(spec)
    return ProcessPlan(
        argv=tuple(script_argv(spec, spec.root if in_place else source, python, data)),
        cwd=cwd,
        env={
            **_alone(spec, source),
            **_deepspeed(spec, source),
            **hook_variables(spec),
            **spec.env,
            **_variables(spec, data),
            **data,
        },
        ranks=_ranks(spec, python),
        code=code_place(spec, in_place),
    )


def runs_in_place(spec: JobSpec) -> bool:
    """Whether a job on this machine runs the file where it is, as ``python`` does, and not its copy.

    A container does not have the folder, and with ``--source`` the copy is what the user wants.
    """
    return bool(spec.root and not spec.script and not spec.source and not spec.environment.image)


def code_place(spec: JobSpec, in_place: bool = False) -> dict[str, Any]:
    """Return the field ``code`` of a job: the folder of its code, where modules are below it, and what is not in it."""
    place: dict[str, Any] = {"root": spec.root} if in_place else {}
    if in_place and spec.distribution.config:
        place["made"] = [DEEPSPEED_FILE]
    return {**place, "search": list(spec.search)} if spec.search else place


def script_argv(spec: JobSpec, source: str, python: str, data: Mapping[str, str]) -> list[str]:
    """Program and arguments of a script.

    Parameters
    ----------
    data
        Variables with the paths of inputs and outputs; references to those that are not in it stay as they are.
    """
    script = ["--module" if spec.launcher else "-m", spec.module] if spec.module else [f"{source}/{spec.script_name}"]
    if is_notebook(spec.script_name):
        params = msgspec.json.encode(with_paths(spec.params, data)).decode()
        return [python, "-u", "-m", RUNNER, *script, params]
    argv = [*_program(spec, python), *script, *with_paths(spec.args, data)]
    if not spec.script:  # a file: its parameters are arguments, nothing is injected
        given = with_paths(spec.params, data)
        if spec.sweep is not None and spec.trial is None:  # the service chooses their values
            given |= {name: searched_values.reference(name) for name in spec.sweep.space}
        forms = {name: form_of(name, spec.forms) for name in given}
        switches = searched_values.switches(spec)
        for name in sorted(given, key=lambda name: forms[name] != "positional"):
            argv += [given[name]] if name in switches else words_of(name, given[name], forms[name])
    return argv


#: Launchers and their modules: the program may not be on the PATH of the interpreter.
_LAUNCHERS = {
    ("torchrun",): "torch.distributed.run",
    ("accelerate", "launch"): "accelerate.commands.launch",
    ("deepspeed",): "deepspeed.launcher.runner",
}


def _program(spec: JobSpec, python: str) -> list[str]:
    """Return the words that start a script: an interpreter, or a launcher, which starts interpreters itself."""
    if not spec.launcher:
        return [python, "-u"]
    words = shlex.split(spec.launcher)
    for program, module in _LAUNCHERS.items():
        if tuple(words[: len(program)]) == program:
            return [python, "-u", "-m", module, *words[len(program) :]]
    return [*words, python, "-u"]


def _variables(spec: JobSpec, data: Mapping[str, str]) -> dict[str, str]:
    """Parameters of a file that are environment variables."""
    return {} if spec.script else variables_of(with_paths(spec.params, data), spec.forms)


def _command_plan(spec: JobSpec, source: str, python: str, machine: TargetMachine) -> ProcessPlan:
    """A ``type: command`` file: its line by ``sh`` in the code folder, where ``python`` is this interpreter."""
    from jupyter_amltrain.schema.az_yaml_job import fill_bindings

    env = _data(spec, posixpath.dirname(source), machine)
    places: dict[str, str] = {}
    for name, given in spec.inputs.items():
        place = env[input_variable(name)]
        places[f"inputs.{name}"] = place if given.type == "literal" else shlex.quote(place)
    for name, wanted in spec.outputs.items():
        inside = f"/{name}" if wanted.type == "uri_file" else ""
        places[f"outputs.{name}"] = shlex.quote(env[output_variable(name)] + inside)
    path = f"PATH={shlex.quote(posixpath.dirname(python))}:$PATH; export PATH; " if "/" in python else ""
    line = path + fill_bindings(spec.command, places)
    return ProcessPlan(
        argv=("/bin/sh", "-c", line),
        cwd=source,
        env={**_alone(spec, source), **hook_variables(spec), **spec.env, **env},
        ranks=_ranks(spec, python),
    )


def is_single_process(spec: JobSpec) -> bool:
    """Whether the job is one process, without a launcher.

    A file of ``az ml`` without a number of processes means one, a line means one for each GPU.
    """
    distribution = spec.distribution
    processes = distribution.processes or (1 if spec.job_type else 0)
    is_alone = processes == 1 and not distribution.parameter_servers and distribution.kind != "ray"
    return not distribution.kind or (is_alone and spec.resources.nodes == 1)


def shared_gpu_note(spec: JobSpec) -> str:
    """Return a note for processes that have fewer GPUs than they are; empty for others."""
    gpus, distribution = spec.resources.gpus, spec.distribution
    processes = distribution.processes or 1
    if (
        not gpus
        or processes <= gpus
        or spec.resources.gpu_fraction < 1
        or distribution.kind not in ("pytorch", "deepspeed")
    ):
        return ""
    return (
        f"{processes} processes share {gpus} GPU{'s' if gpus > 1 else ''}, which NCCL refuses: cuda:{gpus} does not"
        f" exist. Use --gpus {processes}, --processes {gpus}, or the backend gloo."
    )


def _ranks(spec: JobSpec, python: str) -> dict[str, Any]:
    """Processes of a distributed job."""
    if is_single_process(spec):
        return {}
    distribution = spec.distribution
    return {
        "kind": distribution.kind,
        "processes": distribution.processes or (1 if spec.job_type else 0),
        "servers": distribution.parameter_servers,
        "restarts": 0,
        "python": python,
    }


def copied_fields(spec: JobSpec) -> dict[str, Any]:
    """Return the fields of a submission that are copies of attributes of a job."""
    values = {name: operator.attrgetter(field.spec)(spec) for name, field in FIELDS.items() if field.spec}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if FIELDS[name].stored != "given" or value != FIELDS[name].default()
    }


def restarts_of(spec: JobSpec) -> dict[str, Any]:
    """Return the restarts of a job, for ``agent/supervise/attempts.py``; empty for a job that starts once."""
    if not spec.max_restarts:
        return {}
    final = {"final": [FINAL_EXIT_CODE]} if spec.is_driver or spec.own_trials is not None else {}
    return {"max": spec.max_restarts, "preempt_after": spec.simulate_preemption or 0.0, **final}


def _alone(spec: JobSpec, source: str) -> dict[str, str]:
    """What a script of PyTorch or DeepSpeed finds where it is the only process."""
    if spec.distribution.kind not in ("pytorch", "deepspeed") or _ranks(spec, ""):
        return {}
    port = 20000 + zlib.crc32(source.encode()) % 10000  # runs beside each other take others
    alone = {"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _deepspeed(spec: JobSpec, source: str) -> dict[str, str]:
    """Where DeepSpeed's configuration is."""
    return {DEEPSPEED_VARIABLE: f"{source}/{DEEPSPEED_FILE}"} if spec.distribution.config else {}


def hook_variables(spec: JobSpec) -> dict[str, str]:
    """Variables of a job for MLflow's logging for libraries, and for the hooks that it turns on."""
    given = {AUTOLOG: "1"} if spec.autolog else {}
    for variable, one in SWITCHED:
        if value := getattr(spec, one.field):
            given[variable] = value if isinstance(value, str) else "0" if one.is_off else "1"
    return given


def _data(spec: JobSpec, folder: str, machine: TargetMachine) -> dict[str, str]:
    """Where inputs are and outputs go; the agent makes the folders of the outputs."""
    env = {
        input_variable(name): literal_text(given.value) if given.type == "literal" else given.path
        for name, given in spec.inputs.items()
    }
    env |= {input_variable(name): link_path(folder, name, url) for name, url in downloads(spec).items()}
    if not machine.has_our_disk:
        names = {name: data_name(path) for name, path in uploads(spec.inputs).items()}
        env |= {input_variable(name): input_path(folder, name, file) for name, file in names.items()}
    return env | {output_variable(name): f"{folder}/{OUTPUTS}/{name}" for name in spec.outputs}


def downloads(spec: JobSpec) -> dict[str, str]:
    """Return the web addresses that the agent downloads before the run starts, by the name of the input."""
    return {name: data.path for name, data in spec.inputs.items() if is_downloaded(data)}


def is_downloaded(data: JobInput) -> bool:
    """Whether the agent downloads an input; with the mode ``direct`` the job gets the address itself."""
    return data.type != "literal" and data.mode != "direct" and is_web_address(data.path)
