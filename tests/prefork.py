"""Helper processes for tests, forked from one that has imported their libraries already.

A new helper imports MLflow (3 s of CPU) or Azure's SDK (5 s), and MLflow makes the store of a new project by dozens of
migrations (1 s). Repeated for each test, that was most of what the tests did. Here one process for each kind of helper
imports everything once; each helper that a test's controller starts is a fork of it, with the environment, working
folder and pipes of a real one. Real ones are started by ``tests/test_worker.py``, ``tests/test_child_process.py``, the
tests with kernels and those in JupyterLab.

``python -m tests.prefork MODULE`` is the process that forks; :func:`installed` makes controllers use it.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import io
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from jupyter_amltrain.rpc import child_process

WORKER = "jupyter_amltrain.tracking.worker"
AZURE = "jupyter_amltrain.azure.service"
READY_TIMEOUT_S = 240.0
#: Variables that tell a library what it is while it is imported: a helper with one of these is started for real.
_READ_AT_IMPORT = ("MLFLOW_", "PYTHON", "MPL", "LD_", "COVERAGE_")


class ForkedProcess:
    """What ``subprocess.Popen`` is for a helper, of one that is forked for us by another process."""

    def __init__(self, connection: socket.socket, pid: int, stdin: Any, stdout: Any) -> None:
        self.pid = pid
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._connection = connection
        self._turn = threading.Lock()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while self.returncode is None:
            try:
                ended = bool(select.select([self._connection], [], [], timeout)[0])
            except (OSError, ValueError):  # another thread has just closed it
                continue
            if not ended:
                raise subprocess.TimeoutExpired("a forked helper", timeout or 0.0)
            with self._turn:
                if self.returncode is None:
                    text = b""
                    with contextlib.suppress(OSError):
                        text = self._connection.recv(16)
                    self.returncode = int(text or b"-9")
                    self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Parent:
    """Our end of one process that forks helpers."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("AMLTRAIN_", "MLFLOW_"))}
        self.path = os.path.join(tempfile.mkdtemp(prefix="amltrain-prefork-"), "s")
        atexit.register(shutil.rmtree, os.path.dirname(self.path), ignore_errors=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen(64)
            self._life, theirs = socket.socketpair()
            names = [str(listener.fileno()), str(theirs.fileno())]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.prefork", module, *names],
                cwd=Path(__file__).parents[1],
                env=self.environ,
                pass_fds=[listener.fileno(), theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            theirs.close()
        self._life.settimeout(READY_TIMEOUT_S)
        self._ready = False

    def wait_ready(self) -> None:
        """Wait until it has imported everything."""
        if not self._ready:
            assert self._life.recv(1), f"the process that forks {self.module} ended; its own message stands above"
            self._ready = True

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether a process that began with our environment may become one with `env`."""
        names = {n for n in {*env, *os.environ} if n.startswith(_READ_AT_IMPORT)} - {"PYTHONUNBUFFERED"}
        return all(env.get(name) == self.environ.get(name) for name in names)

    def fork(self, arguments: tuple[str, ...], log: Path, env: Mapping[str, str]) -> ForkedProcess:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self.path)
            request = {"arguments": arguments, "cwd": str(log.parent), "env": dict(env)}
            body = json.dumps(request).encode()
            handles = array.array("i", [theirs_in, theirs_out, errors])
            head = b"%10d" % len(body)
            connection.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
            connection.sendall(body)
            pid = int(connection.recv(10))
        except BaseException:
            os.close(ours_in)
            os.close(ours_out)
            connection.close()
            raise
        finally:
            for handle in (theirs_in, theirs_out, errors):
                os.close(handle)
        return ForkedProcess(connection, pid, io.FileIO(ours_in, "wb"), io.FileIO(ours_out, "rb"))


_parents: dict[str, _Parent] = {}


def prepare(module: str, wait: bool = True) -> None:
    """Start the process that forks helpers of this module; `wait` until it can."""
    if module not in _parents:
        _parents[module] = _Parent(module)
    if wait:
        _parents[module].wait_ready()


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Have helpers of the prepared modules forked; those that are left are killed at the end."""
    started: list[ForkedProcess] = []
    prepare(WORKER)  # not when a controller starts its helper: that happens on an event loop
    real = child_process.start

    def start(module: str, *arguments: str, log: Path, env: Mapping[str, str]) -> Any:
        parent = _parents.get(module)
        if parent is not None and parent.fits(env):
            with contextlib.suppress(OSError):  # it has ended: a real one does as well
                started.append(parent.fork(arguments, log, env))
                return started[-1]
        return real(module, *arguments, log=log, env=env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_process, "start", start)
        try:
            yield
        finally:
            for process in started:
                process.kill()
                process.wait(READY_TIMEOUT_S)


# ---- the process that forks


def _import_worker() -> None:
    from jupyter_amltrain.tracking import importer, mlflow_store, worker  # noqa: F401

    worker.warm()
    for module, _, _ in (operation.partition(":") for operation in worker.OPERATIONS.values()):
        importlib.import_module(module)


def _copy_stores() -> None:
    """New stores are copies of one that MLflow has made: the same tables, other paths."""
    from jupyter_amltrain.tracking import mlflow_store

    make = mlflow_store._create
    folder = Path(tempfile.mkdtemp(prefix="amltrain-store-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    template, root = folder / "mlflow.db", folder / "mlartifacts"
    pid = os.fork()  # MLflow keeps what it opened for ever
    if not pid:
        try:
            make(template, root)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)

    def copy(path: Path, artifacts: Path) -> None:
        if "AMLTRAIN_FAILPOINT" in os.environ:
            return make(path, artifacts)
        new = path.with_name(f"mlflow.db.new-{os.getpid()}")
        handle = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(template.read_bytes())
        with contextlib.closing(sqlite3.connect(new)) as connection, connection:
            connection.execute(
                "UPDATE experiments SET artifact_location = replace(artifact_location, ?, ?)",
                (root.as_uri(), artifacts.as_uri()),
            )
        os.replace(new, path)

    if template.exists():
        mlflow_store._create = copy


def _import_azure() -> None:
    from jupyter_amltrain.azure import client, service

    os.environ.setdefault("AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED", "false")
    os.environ.update({name: value for name, value in client._environment().items() if name.startswith("AZURE_")})
    with contextlib.suppress(ImportError):
        import azure.ai.ml.entities
        import azure.identity  # noqa: F401
    for found in pkgutil.iter_modules(service.__path__):
        if found.name != "__main__":
            importlib.import_module(f"{service.__name__}.{found.name}")


PREPARE = {WORKER: (_import_worker, _copy_stores), AZURE: (_import_azure,)}


def _serve(module: str, listener: socket.socket, life: socket.socket) -> None:
    """Fork for each connection, and tell its other end how the child ended."""
    children: dict[int, socket.socket] = {}
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    while True:
        ready = select.select([listener, life, wake], [], [])[0]
        if life in ready:
            return
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            while children:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if not pid:
                    break
                if (connection := children.pop(pid, None)) is not None:
                    with contextlib.suppress(OSError):
                        connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))
                    connection.close()
        if listener in ready:
            connection, _ = listener.accept()
            head, handles, _, _ = socket.recv_fds(connection, 10, 3)
            size, body = int(head), b""
            while len(body) < size:
                body += connection.recv(size - len(body))
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (listener, life, connection, *children.values()):
                    other.close()
                os.close(wake)
                os.close(woken)
                _become(module, json.loads(body), handles)
            for handle in handles:
                os.close(handle)
            children[pid] = connection
            connection.sendall(b"%10d" % pid)


def _main_of(module: str) -> Any:
    """Its function ``main``; a package's is in ``__main__``."""
    found = importlib.import_module(module)
    return (found if hasattr(found, "main") else importlib.import_module(f"{module}.__main__")).main


def _become(module: str, request: dict[str, Any], handles: list[int]) -> NoReturn:
    """Be a helper as :func:`jupyter_amltrain.rpc.child_process.start` makes one."""
    code = 1
    try:
        os.setsid()
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
            os.close(handle)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = [module, *request["arguments"]]
        atexit._clear()  # what was registered before is the parent's to do
        try:
            _main_of(module)()
        finally:
            atexit._run_exitfuncs()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Entry of the process."""
    module = sys.argv[1]
    listener, life = socket.socket(fileno=int(sys.argv[2])), socket.socket(fileno=int(sys.argv[3]))
    for step in PREPARE[module]:
        step()
    life.sendall(b"1")
    _serve(module, listener, life)


if __name__ == "__main__":
    main()
