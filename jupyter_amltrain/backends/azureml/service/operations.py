"""The operations of the Azure service process, and its entry.

The one process that imports Azure's packages, so that the kernel need not: ``python -m
jupyter_amltrain.backends.azureml.service STATE_ROOT``. Many operations run at once, each may be canceled
(:mod:`jupyter_amltrain.rpc.server`). The process ends with its input, at once: whatever the service was asked to do
goes on there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import errors
from jupyter_amltrain.rpc import server
from jupyter_amltrain.rpc.server import Call

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Cloud

log = logging.getLogger("amltrain.azure")

#: Operations at the same time; most of their time they wait for the service.
MAX_OPERATIONS = 16

_HERE = "jupyter_amltrain.backends.azureml.service"

#: Operation -> "module:function", imported at first use; each is ``def op(call: ServiceCall, **payload)``.
OPERATIONS = {
    "workspace.connect": f"{_HERE}.workspaces:connect",
    "workspace.add": f"{_HERE}.workspaces:add",
    "workspace.whoami": f"{_HERE}.workspaces:whoami",
    "workspace.forget": f"{_HERE}.workspaces:forget",
    "computes.list": f"{_HERE}.computes:list_all",
    "computes.get": f"{_HERE}.computes:get",
    "computes.create": f"{_HERE}.computes:create",
    "computes.attach": f"{_HERE}.computes:attach",
    "computes.update": f"{_HERE}.computes:update",
    "computes.start": f"{_HERE}.computes:start",
    "computes.stop": f"{_HERE}.computes:stop",
    "computes.restart": f"{_HERE}.computes:restart",
    "computes.delete": f"{_HERE}.computes:delete",
    "computes.detach": f"{_HERE}.computes:detach",
    "sizes.list": f"{_HERE}.billing:list_sizes",
    "quota.list": f"{_HERE}.billing:quota",
    "billing.list": f"{_HERE}.billing:list_all",
    "environments.conda": f"{_HERE}.images:conda",
    "jobs.submit": f"{_HERE}.jobs:submit",
    "jobs.yaml": f"{_HERE}.jobs:submit_yaml",
    "jobs.yaml_check": f"{_HERE}.jobs:check_yaml",
    "jobs.poll": f"{_HERE}.jobs:poll",
    "jobs.get": f"{_HERE}.jobs:get",
    "jobs.list": f"{_HERE}.jobs:list_all",
    "jobs.cancel": f"{_HERE}.jobs:cancel",
    "jobs.archive": f"{_HERE}.jobs:archive",
    "jobs.outputs": f"{_HERE}.jobs:outputs",
    "mirror.sync": f"{_HERE}.mirror:sync",
    "monitor.metrics": f"{_HERE}.metrics:monitor",
    "models.register": f"{_HERE}.models:register",
    "models.list": f"{_HERE}.models:list_all",
    "models.download": f"{_HERE}.models:download",
    "process.ping": f"{_HERE}.operations:ping",
}


class ServiceCall(Call):
    """A call with what every operation needs.

    Attributes
    ----------
    root
        The state root.
    """

    def __init__(self, number: int, send: Callable[[dict[str, Any]], None], root: Path, cloud: Callable[[], Cloud]):
        super().__init__(number, send)
        self.root = root
        self._cloud = cloud

    @property
    def cloud(self) -> Cloud:
        """The workspaces and their clients; made at first use, for its packages take a second to import."""
        return self._cloud()


class CloudOnce:
    """Makes the process' one :class:`Cloud` at first use."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._cloud: Cloud | None = None

    def __call__(self) -> Cloud:
        """Return it."""
        with self._lock:
            if self._cloud is None:
                from jupyter_amltrain.backends.azureml.service.cloud import Cloud

                self._cloud = Cloud(self._root)
            return self._cloud


def make_server(source: int, sink: int, root: Path) -> server.RpcServer:
    """Return the server of :data:`OPERATIONS`.

    Parameters
    ----------
    root
        The state root.
    """

    def run(call: ServiceCall, op: str, payload: dict[str, Any]) -> Any:
        return server.resolve_operation(OPERATIONS, op)(call, **payload)

    return server.RpcServer(
        source,
        sink,
        run,
        threads=MAX_OPERATIONS,
        make_call=partial(ServiceCall, root=root, cloud=CloudOnce(root)),
        explain=errors.of_exception,
        redact=errors.redacted,
    )


def ping(call: ServiceCall, *, wait: float = 0.0, fail: str = "", say: str = "") -> dict[str, Any]:
    """Return facts of the process; reports `say`, waits `wait` seconds, and fails with the sentence `fail` before."""
    if say:
        call.progress(say)
    if wait:
        call.wait(wait)
    if fail:
        raise LookupError(fail)
    return {"pid": os.getpid(), "python": sys.version.split()[0], "home": str(call.root)}


class _RedactingFormatter(logging.Formatter):
    """Keeps tokens and signed addresses out of the log, whoever writes it."""

    def format(self, record: logging.LogRecord) -> str:
        return errors.redacted(super().format(record))


def log_to(stream: Any) -> None:
    """Write the log of this process to `stream`; Azure's own loggers are silent."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    for name in ("amltrain.azure", "amltrain.rpc"):
        logging.getLogger(name).setLevel(os.environ.get("AMLTRAIN_AZURE_LOG", "INFO"))
    for name in ("azure", "msal", "msrest", "urllib3", "requests"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def main() -> None:
    """Entry of the process."""
    source, sink = server.own_process()
    log_to(sys.stderr)
    make_server(source, sink, Path(sys.argv[1])).serve()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)  # threads that wait for the service must not hold us
