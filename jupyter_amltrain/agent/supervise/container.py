"""Container of a run: the command line of ``docker run`` for its job, and its end through the Docker engine.

The supervisor and its helpers stay outside of the container. The process that they watch is ``docker run``, which ends
with the container and has its exit code; only the engine can end the container itself.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional

from .. import protocol
from ..data.cache import DataCache
from ..environments.docker import SHM_SIZE, Engine, failure_in, is_client_variable
from ..processes import user_of
from ..protocol import LOG, private_folder
from ..queue import visible_gpus
from .outcome import tail_of

if TYPE_CHECKING:
    from .assignment import Assignment

Json = Dict[str, Any]

#: Folder of the state root that is the home folder in containers: downloads of one run are there for the next.
HOME = "container-home"
#: Seconds for the engine to remove a container.
REMOVE_TIMEOUT_S = 20.0
#: Seconds after ``docker kill`` until the processes themselves get SIGKILL.
KILL_TIMEOUT_S = 5.0
#: Exit code of ``docker run`` for an error of the engine, and those for a program that could not be started.
ENGINE_ERROR, START_ERRORS = 125, (126, 127)
#: Last line of ``docker run`` when it could not start a container.
_START_ERROR = re.compile(
    r"^(?:docker: (?=error|cannot|permission|failed|invalid|unable)|(?=unknown (?:shorthand )?flag: ))(?P<text>.+)",
    re.IGNORECASE | re.MULTILINE,
)
#: Folders of every system: the image's own would be hidden.
_SYSTEM_FOLDERS = frozenset(
    ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")
)
#: Prefixes and names of the submitter's variables that a job in a container gets; the image has the others.
_INHERITED_PREFIX = "MLFLOW_"
_INHERITED = frozenset(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "TZ"))
#: Starts the job: $1 is its umask, $2 the folder of the hooks, $3 its program. An image's own PYTHONPATH is kept, and
#: ``python`` may have only the name ``python3`` in it.
_START = """\
umask "$1"
if [ -n "$2" ]; then PYTHONPATH="$2${PYTHONPATH:+:$PYTHONPATH}"; export PYTHONPATH; fi
program=$3; shift 3
if [ "$program" = python ]; then
  program=$(command -v python3 || command -v python) || { echo "The image has no python." >&2; exit 127; }
fi
exec "$program" "$@"
"""
#: Repeats ``docker stop``: a container that the engine is still creating has no name yet.
_STOP = 'for try in 1 2 3 4 5 6 7 8; do "$@" >/dev/null && exit; sleep 1; done'


class ContainerError(Exception):
    """The job cannot run in a container; the message is shown to the user."""


def name_of(mark: str) -> str:
    """Return the name of the container of a run, given the mark of its processes."""
    return "amltrain-" + mark.replace(":", "-")


def inherited(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables of a submitter that its job gets in a container."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_INHERITED_PREFIX) or name.upper() in _INHERITED
    }


class Container:
    """The container of a run, seen from outside.

    Parameters
    ----------
    mark
        Mark of the run's processes.
    environ
        Environment of the submitter, with the variables of ``docker``.
    """

    def __init__(self, mark: str, environ: Mapping[str, str]) -> None:
        self.name = name_of(mark)
        self.engine = Engine(environ)
        self._is_killed = False

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM to the job, and SIGKILL after `grace_s`; do not wait for its end."""
        stop = [self.engine.program, "stop", "-t", str(max(1, math.ceil(grace_s))), self.name]
        self._start(["/bin/sh", "-c", _STOP, "sh", *stop])

    def discard(self) -> None:
        """Kill and remove the container if it exists, without waiting."""
        if self.engine.program:
            self._start([self.engine.program, "rm", "--force", self.name])

    def kill(self) -> bool:
        """Kill the container, without waiting; return whether this is the first time."""
        is_first, self._is_killed = not self._is_killed, True
        if is_first:
            self._start([self.engine.program, "kill", self.name])
        return is_first

    def _start(self, argv: List[str]) -> None:
        try:
            subprocess.Popen(
                argv, env=self.engine.environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, close_fds=True
            )
        except OSError:  # no process can be forked now: the end of the run tries again
            pass

    def remove(self, tick: Callable[[], None] = lambda: None) -> str:
        """Kill and remove the container if it exists; return why it may still run, empty if it does not.

        Parameters
        ----------
        tick
            Called while the engine works.
        """
        if not self.engine.program:
            return ""
        argv = [self.engine.program, "rm", "--force", self.name]
        try:
            process = subprocess.Popen(
                argv, env=self.engine.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            return self._left(error.strerror or str(error))
        until = protocol.mono() + REMOVE_TIMEOUT_S
        while True:
            tick()
            try:
                output, _ = process.communicate(timeout=0.25)
                break
            except subprocess.TimeoutExpired:
                if protocol.mono() > until:
                    process.kill()
                    process.communicate()
                    return self._left("the Docker engine does not answer")
        text = output.decode("utf-8", "replace").strip()
        if process.returncode == 0 or "No such container" in text or "already in progress" in text:
            return ""
        return self._left(text.splitlines()[-1][:200] if text else "exit code %d" % process.returncode)

    def _left(self, reason: str) -> str:
        return "its container may still run (%s); end it there: docker rm -f %s" % (reason, self.name)


def command(task: Assignment, env: Dict[str, str], hook: str, container: Container, umask: int) -> List[str]:
    """Return the command line that runs a job in its container; it contains no value of a secret.

    Parameters
    ----------
    env
        Variables of the job. Replaced by those of the process ``docker run``, which passes them on by their names.
    hook
        Folder of the hooks, empty for none.

    Raises
    ------
    ContainerError
        For example, a folder does not exist.
    """
    spec = task.job["container"]
    home = os.path.join(task.home, HOME)
    private_folder(home)
    _complete(env, task, home, bool(hook))
    # The last of two equal options counts, so that those of the user come first.
    argv = [container.engine.program, "run", *spec["args"], "--rm", "--init", "--detach=false", "--sig-proxy=false"]
    argv += ["--name", container.name, "--label", "amltrain.run=" + str(task.job["run"])]
    argv += ["--pull", "never", "--log-driver", "none", "--network", "host"]
    argv += ["--user", "%d:%d" % (os.getuid(), os.getgid())]
    for group in sorted(set(os.getgroups()) - {os.getgid()}):
        argv += ["--group-add", str(group)]
    if spec["shm_size"] or not any(arg.startswith("--ipc") for arg in spec["args"]):
        argv += ["--shm-size", spec["shm_size"] or SHM_SIZE]
    if task.devices:
        argv += ["--gpus", '"device=%s"' % ",".join(task.devices)]
    for mount in _mounts(task, home, hook):
        argv += ["--mount", mount]
    argv += ["--workdir", task.job["cwd"], *_variables(env, task.secrets)]
    for name in [name for name in env if is_client_variable(name)]:
        del env[name]
    env.update(container.engine.environ)
    argv += ["--entrypoint", "/bin/sh", spec["image"], "-c", _START, "amltrain", "%04o" % umask, hook]
    return [*argv, *task.job["argv"]]


def _complete(env: Dict[str, str], task: Assignment, home: str, has_hook: bool) -> None:
    """Change the variables of a job on this machine to those of a job in a container."""
    own = {**task.job["env"], **task.secrets}
    if has_hook:  # the script of the start puts the hook before the image's own
        env.pop("PYTHONPATH", None)
        env.update({"PYTHONPATH": own["PYTHONPATH"]} if "PYTHONPATH" in own else {})
    user = user_of(os.getpid())  # the image does not know the user, and libraries ask for the name
    for name, value in (("HOME", home), ("USER", user), ("LOGNAME", user)):
        if name not in own:
            env[name] = value
    if not task.devices:
        env.setdefault("NVIDIA_VISIBLE_DEVICES", "void")  # images of NVIDIA ask for all
    elif task.job.get("gpu_ids") == visible_gpus.INDEX:  # the container has no others
        env[visible_gpus.VARIABLE] = ",".join(str(at) for at in range(len(task.devices)))


def _variables(env: Mapping[str, str], secrets: Mapping[str, str]) -> List[str]:
    """Return options that pass on variables by name, with the value only if ``docker`` itself reads the variable."""
    options: List[str] = []
    for name, value in sorted(env.items()):
        is_own = is_client_variable(name)
        if is_own and name in secrets:
            raise ContainerError("--secret %s cannot reach a container: docker itself reads this variable" % name)
        options += ["--env", "%s=%s" % (name, value) if is_own else name]
    return options


def _mounts(task: Assignment, home: str, hook: str) -> List[str]:
    """Return the folders that the job sees, at the same paths: its own can be written, the others only read."""
    cwd, notebook = task.job["cwd"], task.job["notebook_dir"]
    written = [task.folder, home]
    if not _is_below(cwd, task.folder):
        written.append(cwd)
    read = [path for path in (hook, notebook if notebook != cwd else "") if path]
    read += [path for path in task.job["container"]["inputs"] if path not in read]
    if task.job.get("downloads") or task.job.get("uploads"):  # inputs of the run's folder are links to files in it
        read.append(DataCache(task.home).folder)
    for path in (*written, *read):
        if os.path.normpath(path) in _SYSTEM_FOLDERS:
            raise ContainerError("the folder %s would hide that of the image. Use a folder below it" % path)
        if not os.path.exists(path):
            raise ContainerError("%s does not exist" % path)
    return [_mount(path, False) for path in written] + [_mount(path, True) for path in read]


def _is_below(path: str, folder: str) -> bool:
    return os.path.normpath(path) == folder or os.path.normpath(path).startswith(os.path.join(folder, ""))


def _mount(path: str, read_only: bool) -> str:
    """Return a value of ``--mount``, which is one line of CSV."""
    line = io.StringIO()
    fields = ["type=bind", "source=" + path, "target=" + path, *(["readonly"] if read_only else [])]
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def start_failure(folder: str, status: int) -> Optional[str]:
    """Return why a container was not started, given the wait status of ``docker run``; ``None`` if it was.

    A job may end with the same exit codes itself, so the log must have an error of ``docker run``.
    """
    if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in (ENGINE_ERROR, *START_ERRORS):
        return None
    tail = tail_of(os.path.join(folder, LOG))
    errors = list(_START_ERROR.finditer(tail))
    if not errors:
        return None
    known = failure_in(tail[errors[-1].start() :])
    return known.reason if known else errors[-1]["text"].strip().rstrip(".")
