"""The sbatch script of a job: what ``--dry-run`` prints, and Slurm gets."""

from __future__ import annotations

import math
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.slurm.agent.runs import OUTPUTS, array_file, output_file
from jupyter_amltrain.slurm.target import SlurmTarget

#: Seconds by which Slurm may send its signal earlier than asked: it looks at time limits once a minute.
_SLACK_S = 60.0
#: Seconds that Slurm gets as limit of a driver where nothing limits it.
_DRIVER_S = 7 * 86400.0
#: Seconds before Slurm's limit at which it sends SIGTERM, beyond the grace period.
_NOTICE_S = 20.0
#: Since Slurm 22.05 a step does not take over the processors that its job has for each task.
_PROCESSORS = "${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}"


class LoginNode(msgspec.Struct, frozen=True, kw_only=True):
    """What a script must know of the login node.

    Attributes
    ----------
    agent, python
        The agent's file, and the interpreter that runs it.
    home
        State root, in a folder that the compute nodes share.
    kill_wait
        Seconds from SIGTERM to SIGKILL at the end of a job.
    """

    agent: str
    python: str
    home: str
    kill_wait: int = 30


def notice_s(grace: float) -> int:
    """Return the seconds before the time limit at which Slurm sends SIGTERM."""
    return math.ceil(grace + _NOTICE_S)


def time_limit(timeout: float | None, grace: float, longest: float | None) -> int | None:
    """Return the minutes that Slurm gets as limit; ``None`` for the default of the partition.

    The run ends by its own limit: Slurm's signal and Slurm's limit follow later, where the partition allows it.
    """
    if timeout is None:
        return None
    limit = timeout + notice_s(grace) + _SLACK_S
    if longest is not None:
        limit = max(timeout, min(limit, longest))
    return max(1, math.ceil(limit / 60))


def _seconds(spec: JobSpec, longest: float | None) -> float | None:
    """Return the seconds that a job may take; the driver of a sweep as many as its sweep may, or Slurm gives."""
    if spec.sweep is None or spec.trial is None:
        return spec.timeout
    return spec.timeout or spec.sweep.limits.max_duration_s or longest or _DRIVER_S


def batch_script(
    spec: JobSpec,
    target: SlurmTarget,
    name: str,
    machine: LoginNode,
    grace: float,
    longest: float | None = None,
    *,
    is_array: bool = False,
) -> str:
    """Return the script of a run, or of all runs of an array.

    Parameters
    ----------
    name
        Id of the run, or name of the array.
    grace
        Seconds from SIGTERM to SIGKILL of the run itself.
    longest
        Seconds that the partition allows; ``None`` for no limit.
    """
    # Not in the run's folder, which appears a moment after the job was submitted: Slurm may start it before.
    nodes, output = spec.resources.nodes, output_file(machine.home, name)
    minutes = time_limit(_seconds(spec, longest), grace, longest)
    notice = notice_s(grace)
    below_srun = nodes > 1 or target.container_runtime == "pyxis"
    options = [
        f"--job-name={name}",
        f"--output={_word(output.replace('%', '%%'))}",
        "--open-mode=append",
        f"--chdir={_word(machine.home)}",
        *_placement(target),
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={spec.resources.cpus}" if spec.resources.cpus else "",
        f"--mem={spec.resources.memory}" if spec.resources.memory else "",
        f"--gpus-per-node={spec.resources.gpu_count}" if spec.resources.gpus else "",
        f"--time={minutes}" if minutes else "",
        # To the script, which is the supervisor; below srun to the supervisors, and not to srun.
        f"--signal={'' if below_srun else 'B:'}TERM@{notice}",
        "--requeue" if spec.max_restarts else "",  # else as the cluster does it
        *spec.options,
    ]
    command = _supervisor_command(machine, notice, '"$run"' if is_array else shlex.quote(name))
    if below_srun:
        command = f"{_srun(target, machine.home, nodes)} {command}"
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options if option)]
    lines += [*(_task(machine.home, name) if is_array else ()), *_setup(target)]
    lines += ["unset SLURM_EXPORT_ENV  # srun of the job passes its variables", f"exec {command}"]
    return "\n".join(lines) + "\n"


def _supervisor_command(machine: LoginNode, notice: int, run: str) -> str:
    """Return the command that supervises a run on its node; `run` is a word of the shell."""
    words = [machine.python, "-I", "-S", machine.agent, "guest", "slurm", "run"]
    words += ["--kill-wait", str(machine.kill_wait), "--notice", str(notice), machine.home]
    return " ".join([*map(shlex.quote, words), run])


def _srun(target: SlurmTarget, home: str, nodes: int) -> str:
    """Return the command that starts one process on each node, with pyxis in the container of the target."""
    step = f"srun --ntasks-per-node=1 --nodes={nodes} --kill-on-bad-exit=0 --wait=0 {_PROCESSORS}"
    if target.container_runtime != "pyxis":
        return step
    mount = shlex.quote(f"{home}:{home}")
    return f"{step} --container-image={shlex.quote(target.container)} --container-mounts={mount}"


def _task(home: str, name: str) -> Sequence[str]:
    """Return the lines by which a task of an array finds its run, whose output follows."""
    folder, file = shlex.quote(posixpath.join(home, OUTPUTS)), shlex.quote(array_file(home, name))
    return [
        f'run=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {file}) && [ -n "$run" ] || exit 1',
        f'exec >>{folder}/"$run".txt 2>&1',
    ]


def probe_script(target: SlurmTarget, python: str, gpus: int = 0) -> str:
    """Return the script of the job that looks at the shared folder from a compute node."""
    code = (
        "import json,os,shutil,socket,sys,time; f='PROBE_FOLDER';"
        "r={'host':socket.gethostname(),'python':sys.version.split()[0],'time':time.time(),"
        "'shared':os.path.exists(f+'/token'),'runtime':shutil.which(RUNTIME) or ''};"
        "open(f+'/part','w').write(json.dumps(r)); os.rename(f+'/part',f+'/result.json')"
    )
    code = code.replace("RUNTIME", repr("apptainer" if target.container_runtime == "apptainer" else "sh"))
    options = [
        "--job-name=amltrain-probe", "--output=PROBE_FOLDER/output", "--chdir=/tmp", "--time=1", "--nodes=1",
        *_placement(target), *([f"--gpus-per-node={gpus}"] if gpus else []),
    ]  # fmt: skip
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), *_setup(target)]
    return "\n".join([*lines, f"exec {shlex.quote(python)} -c {shlex.quote(code)}"]) + "\n"


def _placement(target: SlurmTarget) -> Sequence[str]:
    values: Mapping[str, Any] = {
        "partition": target.partition,
        "account": target.account,
        "qos": target.qos,
        "constraint": target.constraint,
    }
    return [f"--{name}={_word(value)}" for name, value in values.items() if value]


def _setup(target: SlurmTarget) -> Sequence[str]:
    """Return the lines before the supervisor; one that fails ends the job with its own text."""
    lines = []
    if target.modules:
        lines.append("command -v module >/dev/null || source /etc/profile.d/modules.sh 2>/dev/null"
                     " || source /etc/profile.d/lmod.sh 2>/dev/null || true")  # fmt: skip
        for name in target.modules.replace(",", " ").split():
            lines.append(
                f"module load {shlex.quote(name)} || {{ echo {shlex.quote('module load ' + name)} failed; exit 1; }}"
            )
    if target.setup:
        lines.append(f"{target.setup} || {{ echo {shlex.quote(target.setup)} failed; exit 1; }}")
    return lines


def _word(text: str) -> str:
    """Return a value as an ``#SBATCH`` line takes it."""
    return shlex.quote(text) if any(letter in text for letter in " '\"#$`\\") else text
