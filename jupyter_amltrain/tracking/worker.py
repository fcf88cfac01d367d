"""The process that imports MLflow and Matplotlib for the kernel; and the kernel's client of it.

``python -m jupyter_amltrain.tracking.worker`` serves :data:`OPERATIONS`, one at a time, so that only one writes the
MLflow store. The process ends when its input is closed and its last operation has finished. The client closes it after
some idle minutes (:data:`IDLE_S`), because it takes a quarter of a gigabyte, and the next request starts another.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.rpc import child_process, client, server
from jupyter_amltrain.state_dir import StateRoot

log = logging.getLogger(__name__)

#: Operation -> "module:function", imported at first use. Names, not imports: layers
#: above this one (the picture) are reached without depending on them.
OPERATIONS = {
    "busy": "jupyter_amltrain.tracking.worker:busy",
    "ping": "jupyter_amltrain.tracking.worker:ping",
    "warm": "jupyter_amltrain.tracking.worker:warm",
    "import_run": "jupyter_amltrain.tracking.importer:import_run",
    "record_live": "jupyter_amltrain.tracking.live_import:record_live",
    "model_register": "jupyter_amltrain.tracking.model_registry:register",
    "model_list": "jupyter_amltrain.tracking.model_registry:list_models",
    "model_download": "jupyter_amltrain.tracking.model_registry:download",
    "ui_start": "jupyter_amltrain.tracking.ui:start",
    "ui_stop": "jupyter_amltrain.tracking.ui:stop",
    "send": "jupyter_amltrain.tracking.team_sender:send",
    "picture": "jupyter_amltrain.output.picture:draw",
}
#: Importing the record of a long run takes minutes.
REQUEST_TIMEOUT_S = 600.0
#: Maximum seconds of the question whether the process is needed.
BUSY_TIMEOUT_S = 60.0
#: Seconds without a request after which the process ends; ``AMLTRAIN_HELPER_IDLE`` sets another number.
IDLE_S = 300.0


class WorkerError(AmlTrainError):
    """The worker process died, hung, or failed with a bug.

    Attributes
    ----------
    kind
        Name of the exception in the worker.
    """

    def __init__(self, message: str, *, kind: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint, code="worker.failed", details={"kind": kind})
        self.kind = kind


class TrackingWorker:
    """Client of the worker: starts it at the first request and again after a crash.

    Use it from one event loop.

    Parameters
    ----------
    root
        The state root; the process' standard error goes to its ``logs/worker.txt``.
    environment
        Returns the environment of the process; default: that of this one without another tracking server.
    watched
        Returns variables that the running process gets before each request.
    """

    def __init__(
        self,
        root: StateRoot,
        environment: Callable[[], Mapping[str, str]] | None = None,
        watched: Callable[[], dict[str, str]] = dict,
    ) -> None:
        module, own = "jupyter_amltrain.tracking.worker", environment or _environment
        self._rpc = client.RpcClient(
            module, log=root.logs / "worker.txt", environment=own, watched=watched, serial=True
        )
        self._requests = 0  #: that wait for their reply
        self._timer: asyncio.TimerHandle | None = None
        self._resting: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._rpc.pid

    async def request(self, op: str, payload: dict[str, Any], timeout: float = REQUEST_TIMEOUT_S) -> Any:
        """Run one operation; requests are answered in order.

        Parameters
        ----------
        op
            A key of :data:`OPERATIONS`.
        payload
            Keyword arguments of the operation; plain data.
        timeout
            Seconds until the worker counts as hung and is killed.

        Raises
        ------
        WorkerError
            The process ended or hung in this request (the next one starts a new process), or the operation
            failed by a bug: then `kind` is the exception's name.
        AmlTrainError
            The operation raised one of amltrain's errors.
        """
        self._requests += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            return await self._request(op, payload, timeout)
        finally:
            self._requests -= 1
            self._rest_later()

    def _rest_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if not self._requests and self.pid is not None:
            self._timer = asyncio.get_running_loop().call_later(_idle_s(), self._rest_soon)

    def _rest_soon(self) -> None:
        self._resting = asyncio.get_running_loop().create_task(self._rest())

    async def _rest(self) -> None:
        """End the idle process, unless it serves MLflow's page."""
        try:
            if await self._request("busy", {}, BUSY_TIMEOUT_S):
                self._rest_later()
            elif not self._requests:
                await self._rpc.rest()
        except AmlTrainError as error:
            log.info("%s", error)

    async def _request(self, op: str, payload: dict[str, Any], timeout: float) -> Any:
        log = self._rpc.log
        try:
            return await self._rpc.request(op, payload, timeout=timeout)
        except client.RpcClosed:
            raise WorkerError("The worker process has been closed.") from None
        except client.RpcTimeout:
            raise WorkerError(
                f"The worker process did not finish {op!r} within {timeout:g} s.",
                kind="TimeoutError",
                hint=f"See {log}",
            ) from None
        except client.RpcEnded as error:
            ending = error.ending or "its reply was unreadable"
            raise WorkerError(
                f"The worker process ended during {op!r} ({ending}).",
                kind="EOFError",
                hint=f"The next request starts it again. See {log}",
            ) from error
        except client.RpcFault as error:
            raise WorkerError(str(error), kind=error.kind) from error

    async def close(self, last: Sequence[tuple[str, dict[str, Any]]] = ()) -> None:
        """Close the client: the process finishes its operation, then `last`, and ends.

        Parameters
        ----------
        last
            Operations and payloads without a waiting caller.
        """
        if self._timer is not None:
            self._timer.cancel()
        await self._rpc.close(last)


def _idle_s() -> float:
    try:
        return max(0.1, float(os.environ.get("AMLTRAIN_HELPER_IDLE", "")))
    except ValueError:
        return IDLE_S


def _environment() -> dict[str, str]:
    """Return the environment of the worker: MLflow opens the project's store there and nothing else."""
    return {
        name: value for name, value in child_process.environment().items() if not name.startswith("MLFLOW_TRACKING_")
    }


def ping() -> dict[str, Any]:
    """Return the process id and the version of Python."""
    return {"pid": os.getpid(), "python": sys.version.split()[0]}


def busy() -> bool:
    """Return whether this process serves something beside its requests: MLflow's page ends with it."""
    ui = sys.modules.get("jupyter_amltrain.tracking.ui")
    return ui is not None and bool(ui.serves())


def warm() -> dict[str, Any]:
    """Import the modules of the first import (2 to 5 s), while the first job is still running."""
    from jupyter_amltrain.tracking import mlflow_private

    for name in (mlflow_private.STORE, "matplotlib.backends.backend_agg", "matplotlib.figure"):
        importlib.import_module(name)
    return {"mlflow": importlib.import_module("mlflow").__version__}


def run_operation(op: str, payload: dict[str, Any]) -> Any:
    """Run one operation; its payload is the function's keyword arguments."""
    return server.resolve_operation(OPERATIONS, op)(**payload)


def main() -> None:
    """Entry point of the process."""
    source, sink = server.own_process()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    serving = server.RpcServer(source, sink, lambda call, op, payload: run_operation(op, payload))
    serving.serve()
    serving.finish()


if __name__ == "__main__":
    main()
