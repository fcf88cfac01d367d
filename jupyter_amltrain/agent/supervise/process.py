"""Process of a job: its environment and its start."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from .. import testing
from ..distributed import launchers
from ..environments.build import INTERPRETER_VARIABLES
from ..kept_values import SECRETS
from ..process_setup import log_line
from ..protocol import (
    ARTIFACTS,
    ASKS,
    CHECKPOINTS,
    CHECKPOINTS_VARIABLE,
    KEPT_LINKS,
    LOG,
    MARK,
    METRICS,
    OUTPUTS,
    SOURCE,
)
from ..queue import visible_gpus
from . import code_place, job_hooks
from . import container as containers
from .assignment import Assignment
from .container import Container, ContainerError
from .env_filter import without_kernel

if TYPE_CHECKING:
    from ..mlflow.sink_state import Recorder
    from ..trackers.follower import MetricFollower

#: Umask of jobs; the dispatcher sets it to the umask of its starter.
USER_UMASK = 0o077


class LaunchFailed(Exception):
    """The process of the job could not be started; the message is shown to the user."""


class NoProcess(Exception):
    """The process of the job could not be forked because of a process limit. Can be retried."""


#: Returns a process that has become that of a job with these arguments, folder and variables, or ``None``.
Become = Callable[[List[str], str, Dict[str, str], Assignment], "Optional[subprocess.Popen[bytes]]"]


class SinkEndpoint:
    """Socket and token of the MLflow sink of a run.

    Raises
    ------
    OSError
        There is no loopback interface.
    """

    def __init__(self) -> None:
        self.token = os.urandom(16).hex()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(128)

    @property
    def port(self) -> int:
        """Port on 127.0.0.1."""
        return int(self.socket.getsockname()[1])


def environment(task: Assignment, sink: Optional[SinkEndpoint]) -> Dict[str, str]:
    """Return the environment of the rank, merged from submitter, job, agent and secrets, in this order."""
    env = without_kernel(task.environ)
    job_hooks.clear(env)  # of a job that submits jobs
    env.update(task.job["env"])
    if sink is not None:
        from ..mlflow import sink_server

        for name in sink_server.CLEARED:
            if name not in task.job["env"]:
                env.pop(name, None)
        env.update(sink_server.client_env(sink.port, sink.token, env))
    env[MARK] = task.mark
    env["PYTHONUNBUFFERED"] = "1"
    env.setdefault("PYTHONFAULTHANDLER", "1")  # a crash says in which line
    built = task.state.get("environment")
    if built:
        for name in INTERPRETER_VARIABLES:
            if name not in task.job["env"]:
                env.pop(name, None)
        env["CONDA_PREFIX" if built["conda"] else "VIRTUAL_ENV"] = built["path"]
        env["PATH"] = os.pathsep.join([os.path.join(built["path"], "bin"), env.get("PATH", os.defpath)])
    env["AML_OUTPUT_DIR"] = os.path.join(task.folder, OUTPUTS)
    if CHECKPOINTS_VARIABLE not in task.job["env"]:
        env[CHECKPOINTS_VARIABLE] = os.path.join(task.folder, CHECKPOINTS)
    if task.job["notebook_dir"]:
        env["AML_NOTEBOOK_DIR"] = task.job["notebook_dir"]
    outer = visible_gpus.submitter_value(task.environ)
    env.pop(visible_gpus.SUBMITTER_VARIABLE, None)
    if outer is not None:
        env[visible_gpus.SUBMITTER_VARIABLE] = outer
    if task.devices:
        env.update(task.gpu_variables or visible_gpus.variables(task.devices, visible_gpus.UUID, ()))
    elif task.hide_gpus and visible_gpus.VARIABLE not in task.job["env"]:
        env[visible_gpus.VARIABLE] = ""
    env.update(task.secrets)
    if task.secrets:
        env[SECRETS] = ",".join(task.secrets)
    return env


def cell_of(job: Dict[str, Any]) -> str:
    """Return the name of the script of a job that is a cell of a notebook; empty for a file."""
    spec = job.get("spec")
    if not isinstance(spec, dict) or not (spec.get("script") or spec.get("is_cell")):
        return ""
    return os.path.basename(str(spec.get("script_name") or "script.py"))


def variables(
    task: Assignment, sink: Optional[SinkEndpoint], search: Optional[Sequence[str]] = None
) -> Tuple[Dict[str, str], str]:
    """Return the environment of the job with its hooks, and the folder of the hooks.

    Parameters
    ----------
    search
        Further folders of modules; by default those of the code where it was submitted.
    """
    if search is None:
        root = (task.job.get("code") or {}).get("root") or os.path.join(task.folder, SOURCE)
        search = code_place.search_folders(task.job, root)
    env = environment(task, sink)
    code_place.add_search(env, search)
    hook = job_hooks.add(
        env, task.folder, os.path.join(task.home, "agent"), gpus=bool(task.devices), cell=cell_of(task.job),
        is_needed=job_hooks.runs_notebook(task.job["argv"]), sink=(sink.port, sink.token) if sink else None,
        is_alone=not (task.job.get("ranks") or task.job.get("container")),
    )  # fmt: skip
    return env, hook


def start(
    task: Assignment,
    sink: Optional[SinkEndpoint],
    container: Optional[Container] = None,
    become: Become = lambda *args: None,
) -> subprocess.Popen[bytes]:
    """Start the process of the job; its output is appended to ``log/rank-0.txt``.

    A job of several processes is started by their launcher, whose own output is a file beside those of the ranks.

    Parameters
    ----------
    container
        Container in which the job runs; then the process is that of ``docker run``.
    become
        Returns a process that has waited for the job.

    Raises
    ------
    LaunchFailed
        For example, its program or working folder does not exist.
    """
    if container is not None:
        task = task._replace(environ=containers.inherited(task.environ))
    code = code_place.place_of(task)
    if not (task.job.get("spec") or {}).get("sealed"):
        os.makedirs(os.path.join(task.folder, ASKS), mode=0o700, exist_ok=True)
    env, hook = variables(task, sink, code.search)
    code_place.make_working_folder(task.job["cwd"], os.path.join(task.folder, SOURCE))
    if code.note and code.note not in task.state.get("notes", ()):
        task.state["notes"] = [*task.state.get("notes", ()), code.note]
    _create_outputs(task, env)
    _link_kept_folders(task)
    argv, cwd, output = code.argv, task.job["cwd"], LOG
    if task.job.get("ranks"):
        argv, output = _launcher_command(task, argv, env), launchers.LAUNCHER_LOG
    if container is not None:
        try:
            argv, cwd = containers.command(task, env, hook, container, USER_UMASK), os.sep
        except ContainerError as error:
            raise LaunchFailed(str(error)) from error
    log = _open_log(os.path.join(task.folder, output))
    umask = os.umask(USER_UMASK)
    try:
        return become(argv, cwd, env, task) or spawn(argv, cwd, env, stdout=log, stderr=log, close_fds=True)
    finally:
        os.umask(umask)
        os.close(log)


def _open_log(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise LaunchFailed("the log cannot be written: %s" % (error.strerror or error)) from error


def _launcher_command(task: Assignment, argv: Sequence[str], env: Dict[str, str]) -> List[str]:
    """Return the command of the launcher of a job of several processes; see :func:`launchers.command`."""
    ranks, home = task.job["ranks"], os.path.join(task.home, "agent")
    try:
        command = launchers.command(ranks, argv, task.devices, env, task.folder, home, task.job["cwd"])
    except (launchers.NoLauncher, OSError) as error:
        raise LaunchFailed(str(error)) from error
    task.state["ranks"] = launchers.count(ranks, task.devices)
    return command


def _link_kept_folders(task: Assignment) -> None:
    """Let ``./outputs`` and ``./logs`` of a job that works in its copy of the code lead to folders of the run.

    The files of a folder ``outputs`` of the code itself are moved there, as services keep them with the others.
    """
    source = os.path.join(task.folder, SOURCE)
    if os.path.abspath(task.job["cwd"]) != os.path.abspath(source):
        return
    for name, link in KEPT_LINKS.items():
        path, kept = os.path.join(source, name), os.path.join(task.folder, name)
        if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
            continue  # a file of the code
        try:
            os.makedirs(kept, mode=0o700, exist_ok=True)
            if os.path.isdir(path):
                for entry in os.listdir(path):
                    os.rename(os.path.join(path, entry), os.path.join(kept, entry))
                os.rmdir(path)
            os.symlink(link, path)
        except OSError:  # a file system without links: the job makes the folder itself
            pass


def spawn(argv: List[str], cwd: str, env: Dict[str, str], **popen_args: Any) -> subprocess.Popen[bytes]:
    """Start the process of a job in a session of its own, without input.

    Parameters
    ----------
    popen_args
        Further arguments of `subprocess.Popen`; ``stdout`` and ``stderr`` are inherited by default.

    Raises
    ------
    LaunchFailed
        For example, its program or working folder does not exist.
    NoProcess
        No process can be forked now.
    """
    try:
        testing.hit("before_rank_fork")
        return subprocess.Popen(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, start_new_session=True, **popen_args)
    except testing.FailpointError as error:
        raise NoProcess(os.strerror(errno.EAGAIN)) from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if getattr(error, "errno", None) == errno.EAGAIN:
            raise NoProcess(os.strerror(errno.EAGAIN)) from error
        raise LaunchFailed(_launch_error_text(error, argv[0], cwd)) from error


def _create_outputs(task: Assignment, env: Dict[str, str]) -> None:
    """Create the output folders that the job names, ``AML_OUTPUT_<NAME>`` below ``AML_OUTPUT_DIR``; and checkpoints."""
    output_dir = env["AML_OUTPUT_DIR"]
    for name, path in [*task.job["env"].items(), (CHECKPOINTS_VARIABLE, env[CHECKPOINTS_VARIABLE])]:
        is_output = name.startswith("AML_OUTPUT_") and os.path.dirname(path) == output_dir
        if is_output or name == CHECKPOINTS_VARIABLE:
            try:
                os.makedirs(path, mode=0o700, exist_ok=True)
            except OSError as error:
                raise LaunchFailed("the folder %s cannot be created: %s" % (path, error.strerror or error)) from error


def _launch_error_text(error: Exception, program: str, cwd: str) -> str:
    number = getattr(error, "errno", None)
    if not os.path.isdir(cwd):
        return "the working folder %s does not exist" % cwd
    if number == errno.ENOENT:
        return "the program %s was not found" % program
    if number == errno.EACCES:
        return "no permission to execute the program %s (or to enter the folder %s)" % (program, cwd)
    if number == errno.E2BIG:
        return "environment and arguments exceed the limit of the system"
    return "%s could not be started: %s" % (program, getattr(error, "strerror", None) or error)


def serve_sink(task: Assignment, endpoint: SinkEndpoint, journal: str = METRICS, artifacts: str = ARTIFACTS) -> int:
    """Run the MLflow sink in a forked process; return its exit code.

    Parameters
    ----------
    journal, artifacts
        Paths relative to the run folder, or absolute.
    """
    from ..mlflow import project_server, project_sockets, sink_server

    tracking = task.job["tracking"]
    recorder, follower = _recorder(task, journal, artifacts)
    place: Optional[project_server.ServerPlace] = None
    if tracking.get("server"):  # its command: the store is on this machine
        place = project_server.ServerProcess(tracking["server"], recorder.note_once)
    elif tracking.get("project"):
        place = project_sockets.ProjectSockets(task.queue, str(tracking["project"]))
    follower.start()
    return sink_server.serve(endpoint.socket, recorder, endpoint.token, place, follower.finish)


def record_output(task: Assignment, endpoint: SinkEndpoint) -> int:
    """Record the metrics that an ended job has printed, in a forked process; return its exit code."""
    recorder, follower = _recorder(task, METRICS, ARTIFACTS)
    follower.finish()
    recorder.close()
    return 0


def _recorder(task: Assignment, journal: str, artifacts: str) -> Tuple[Recorder, MetricFollower]:
    """Return the writer of the journal, and the follower of what does not come from MLflow."""
    from ..mlflow.sink_state import Recorder
    from ..trackers.follower import FollowedJob, MetricFollower

    tracking = task.job["tracking"]
    recorder = Recorder(
        journal=os.path.join(task.folder, journal),
        artifacts=os.path.join(task.folder, artifacts),
        run_id=tracking["run_id"],
        run_name=task.job["name"],
        experiment_name=task.job["experiment"],
        on_note=lambda text: log_line(task.folder, "mlflow-sink: " + text),
    )
    job = FollowedJob(
        task.folder,
        os.path.join(task.folder, LOG),
        tracking.get("lines") or (),
        has_autolog=job_hooks.has_autolog(task.job["env"]),
        is_contained=bool(task.job.get("container")),
    )
    return recorder, MetricFollower(recorder, job)
