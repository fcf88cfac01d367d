"""Waiting interpreter: a child of a supervisor without a job, which has imported the packages of the last run.

It is the process of the next job if that job would start the same Python with the same packages
(``supervise/warm_hook.py``); else it is killed, and the job starts as always. Nothing is forked from it: it becomes one
job, so that threads, random states and temporary files of its packages are the job's own.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import struct
import subprocess
from typing import Any, Callable, Dict, List, Optional, Sequence

from .. import protocol
from ..process_setup import log_line
from ..protocol import LOG
from . import code_place, warm_plan
from . import process as job_process
from .assignment import Assignment
from .process import SinkEndpoint
from .warm_hook import GO, SCRIPT_HANDLE, WAITING, receive
from .warm_plan import WarmPlan

#: Seconds that a job waits for an interpreter that still imports: to begin again would take longer, as long as its
#: imports do not hang.
READY_TIMEOUT_S = 30.0
#: Seconds between two looks at whether the job is still to start.
_LOOK_S = 0.2
#: Seconds for the interpreter to check whether it can become a job: on a network disk, a look at thousands of files.
CHECK_TIMEOUT_S = 5.0
#: Characters for which a command line may be longer than the last one.
_ROOM = 48


class WarmInterpreter:
    """The interpreter of a supervisor, if it has one; see the module.

    Attributes
    ----------
    is_used
        Whether its process is that of a job.
    sink
        Socket of the MLflow sink, whose port the interpreter has in its environment; ``None`` if that run had no sink.
    """

    def __init__(self) -> None:
        self.sink: Optional[SinkEndpoint] = None
        self.is_used = False
        #: Called while a job waits; returns whether it is still to start.
        self.is_needed: Callable[[], bool] = lambda: True
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._plan: Optional[WarmPlan] = None

    def start(self, last: Optional[Assignment]) -> None:
        """Start an interpreter for the run after `last`, if that run allows one."""
        if last is None:
            return
        try:
            self._plan = self._made_plan(last)
            if self._plan is not None:
                self._start(self._plan)
        except Exception as error:  # the next job starts as always
            print("%.3f no waiting interpreter: %r" % (protocol.wall(), error), flush=True)
            self._dismiss()

    def _made_plan(self, task: Assignment) -> Optional[WarmPlan]:
        built = warm_plan.with_built_environment(task)
        if built is None or not warm_plan.leading_imports(task.job["argv"][2]):
            return None
        if task.job["tracking"].get("mode") == "sink":
            self.sink = SinkEndpoint()
        env, _ = job_process.variables(built, self.sink)
        plan = warm_plan.plan_of(task, env)
        if plan is not None:
            code_place.make_working_folder(plan.cwd, warm_plan.in_next(task, task.folder))
        return plan

    def _start(self, plan: WarmPlan) -> None:
        self._channel, other = socket.socketpair()
        length = len(os.fsencode(" ".join(plan.argv[2:]))) + _ROOM
        start, end = "/proc/self/fd/", str(SCRIPT_HANDLE)
        self._placeholder = start + "./" * (max(0, length - len(start) - len(end)) // 2) + end
        for one, seconds in ((other, plan.idle_s), (self._channel, READY_TIMEOUT_S)):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", max(1, int(seconds)), 0))
        env = {**plan.env, WAITING: str(other.fileno())}
        umask = os.umask(job_process.USER_UMASK)
        try:
            output = os.memfd_create("log", os.MFD_CLOEXEC)  # a process that has written something is not used
            try:
                self._process = job_process.spawn(
                    [plan.argv[0], "-u", self._placeholder], plan.cwd, env,
                    stdout=output, stderr=output, close_fds=True, pass_fds=[other.fileno()],
                )  # fmt: skip
            finally:
                os.close(output)
        except (job_process.LaunchFailed, job_process.NoProcess) as error:
            raise OSError(str(error)) from error
        finally:
            os.umask(umask)
            other.close()
        order = {
            "lines": [tuple(line) for line in plan.lines], "argv": plan.argv[2:], "path": plan.argv[2],
            "placeholder": self._placeholder, "memory": plan.memory,
        }  # fmt: skip
        self._send(order)

    def is_alive(self) -> bool:
        """Whether there is an interpreter; one that has ended is reaped."""
        return self._process is not None and self._process.poll() is None

    def become(
        self, argv: List[str], cwd: str, env: Dict[str, str], task: Assignment
    ) -> Optional[subprocess.Popen[bytes]]:
        """Return the process, which now is that of the job; ``None`` if it cannot be, and has been killed.

        Raises
        ------
        NoProcess
            The job is not to start any more.
        """
        process = self._process
        if process is None:
            return None
        try:
            reason = self._refusal(argv, cwd, env, task)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            reason = "it has ended"
        except Exception as error:  # it may send anything; the job starts as always
            reason = "%s: %s" % (type(error).__name__, error)
        if reason:
            log_line(task.folder, "supervisor: a cold start: %s" % reason)
            self.end()
            if not self.is_needed():
                raise job_process.NoProcess("the run is to end")
            return None
        self._channel.close()
        self._process, self.is_used = None, True
        log_line(task.folder, "supervisor: a warm start")
        return process

    def _refusal(self, argv: List[str], cwd: str, env: Dict[str, str], task: Assignment) -> str:
        """Offer the job to the interpreter; return why it does not take it, empty if it does."""
        plan = self._plan
        if plan is None or not warm_plan.is_suitable(task) or argv[:2] != plan.argv[:2]:
            return "another program"
        if warm_plan.in_next(task, cwd) != plan.cwd:
            return "another working folder"
        changed = warm_plan.differences(plan.env, env)
        other = [name for name in changed if not warm_plan.may_differ(name, plan.env, env)]
        if other:
            return "its variables differ: %s" % ", ".join(sorted(other))
        word, *rest = self._receive(READY_TIMEOUT_S)
        if word != "ready":
            return "; ".join(rest)
        count, used = int(rest[0]), set(rest[1:])
        if "*" in used or used.intersection(changed):
            return "its packages read %s" % (", ".join(sorted(used.intersection(changed))) or "all variables")
        lines = warm_plan.leading_imports(argv[2])
        if lines is None or lines[:count] != plan.lines[:count]:
            return "it imports something else"
        values = {name: env[name] for name in changed if name in env}
        unset = [name for name in changed if name not in env]
        log = os.path.join(task.folder, LOG)
        self._send({"argv": argv, "cwd": cwd, "log": log, "set": values, "unset": unset})
        word, *rest = self._receive(CHECK_TIMEOUT_S)
        if word != "ok":
            return "; ".join(rest)
        self._send_bytes(GO)
        return ""

    def _send(self, message: Dict[str, Any]) -> None:
        self._send_bytes(marshal.dumps(message, 2))  # a format that each Python reads

    def _send_bytes(self, data: bytes) -> None:
        self._channel.sendall(len(data).to_bytes(8, "big") + data)

    def _receive(self, timeout_s: float) -> Sequence[str]:
        until = protocol.mono() + timeout_s
        while not select.select([self._channel], [], [], _LOOK_S)[0]:
            if protocol.mono() > until or not self.is_needed():
                raise OSError("it did not answer in %g s" % timeout_s)
        return receive(self._channel.fileno()).decode("utf-8", "replace").split("\0")

    def end_unless_suitable(self, task: Assignment) -> None:
        """Kill the interpreter if it cannot become the process of a job; then its sink is not needed either."""
        if self._plan is not None and not warm_plan.is_suitable(task):
            self._dismiss()

    def _dismiss(self) -> None:
        self.end()
        if self.sink is not None:
            self.sink.socket.close()
            self.sink = None

    def end(self) -> None:
        """Kill the interpreter; the supervisor reaps it with its other children."""
        process, self._process = self._process, None
        if process is None:
            return
        self._channel.close()
        if process.returncode is None:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except OSError:  # it has ended
                pass
            process.returncode = 0  # Popen must not wait for it
