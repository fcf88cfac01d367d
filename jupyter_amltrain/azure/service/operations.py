"""Operations and entry point of the Azure service process.

Only this process imports Azure's packages: ``python -m jupyter_amltrain.azure.service STATE_ROOT``.
Operations run concurrently, and each can be canceled (:mod:`jupyter_amltrain.rpc.server`). The process exits as soon
as its input is closed; requests that the service has accepted continue there.
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

from jupyter_amltrain.azure import errors
from jupyter_amltrain.rpc import server
from jupyter_amltrain.rpc.server import Call

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Cloud

log = logging.getLogger("amltrain.azure")

#: Maximum concurrent operations; they mostly wait for the service.
MAX_OPERATIONS = 16

_PACKAGE = "jupyter_amltrain.azure.service"

#: Operation -> "module:function", imported at first use; each is ``def op(call: ServiceCall, **payload)``.
OPERATIONS = {
    "workspace.connect": f"{_PACKAGE}.workspaces:connect",
    "workspace.add": f"{_PACKAGE}.workspaces:add",
    "workspace.whoami": f"{_PACKAGE}.workspaces:whoami",
    "workspace.forget": f"{_PACKAGE}.workspaces:forget",
    "computes.list": f"{_PACKAGE}.computes:list_all",
    "computes.get": f"{_PACKAGE}.computes:get",
    "computes.create": f"{_PACKAGE}.computes:create",
    "computes.attach": f"{_PACKAGE}.computes:attach",
    "computes.update": f"{_PACKAGE}.computes:update",
    "computes.configure": f"{_PACKAGE}.computes:configure",
    "computes.start": f"{_PACKAGE}.computes:start",
    "computes.stop": f"{_PACKAGE}.computes:stop",
    "computes.restart": f"{_PACKAGE}.computes:restart",
    "computes.delete": f"{_PACKAGE}.computes:delete",
    "computes.detach": f"{_PACKAGE}.computes:detach",
    "machine.get": f"{_PACKAGE}.virtual_machines:get",
    "machine.start": f"{_PACKAGE}.virtual_machines:start",
    "machine.stop": f"{_PACKAGE}.virtual_machines:stop",
    "machine.restart": f"{_PACKAGE}.virtual_machines:restart",
    "sizes.list": f"{_PACKAGE}.billing:list_sizes",
    "quota.list": f"{_PACKAGE}.billing:quota",
    "billing.list": f"{_PACKAGE}.billing:list_all",
    "environments.conda": f"{_PACKAGE}.images:conda",
    "environments.list": f"{_PACKAGE}.named_environments:list_all",
    "environments.show": f"{_PACKAGE}.named_environments:show",
    "environments.register": f"{_PACKAGE}.named_environments:register",
    "jobs.submit": f"{_PACKAGE}.jobs:submit",
    "jobs.yaml": f"{_PACKAGE}.jobs:submit_yaml",
    "jobs.yaml_check": f"{_PACKAGE}.jobs:check_yaml",
    "jobs.poll": f"{_PACKAGE}.jobs:poll",
    "jobs.get": f"{_PACKAGE}.jobs:get",
    "jobs.list": f"{_PACKAGE}.jobs:list_all",
    "jobs.cancel": f"{_PACKAGE}.jobs:cancel",
    "jobs.archive": f"{_PACKAGE}.jobs:archive",
    "jobs.outputs": f"{_PACKAGE}.jobs:outputs",
    "jobs.files": f"{_PACKAGE}.job_outputs:job_files",
    "jobs.file": f"{_PACKAGE}.artifacts:read_job_file",
    "schedules.create": f"{_PACKAGE}.schedules:create",
    "schedules.list": f"{_PACKAGE}.schedules:list_all",
    "schedules.remove": f"{_PACKAGE}.schedules:remove",
    "mirror.sync": f"{_PACKAGE}.mirror:sync",
    "monitor.metrics": f"{_PACKAGE}.metrics:monitor",
    "data.send": f"{_PACKAGE}.data_upload:send",
    "data.register": f"{_PACKAGE}.data_assets:register",
    "data.list": f"{_PACKAGE}.data_assets:list_all",
    "models.register": f"{_PACKAGE}.models:register",
    "models.list": f"{_PACKAGE}.models:list_all",
    "models.download": f"{_PACKAGE}.models:download",
    "process.ping": f"{_PACKAGE}.operations:ping",
}


class ServiceCall(Call):
    """A call with the state that every operation needs.

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
        """Workspaces and their clients; created at first use, because the packages take a second to import."""
        return self._cloud()


class CloudOnce:
    """Creates the only :class:`Cloud` of the process at first use."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._cloud: Cloud | None = None

    def __call__(self) -> Cloud:
        """Return the :class:`Cloud`."""
        with self._lock:
            if self._cloud is None:
                from jupyter_amltrain.azure.service.cloud import Cloud

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
        explain=errors.error_of_exception,
        redact=errors.redact,
    )


def ping(call: ServiceCall, *, wait: float = 0.0, fail: str = "", say: str = "") -> dict[str, Any]:
    """Return facts of the process, after reporting `say`, waiting `wait` seconds and raising `fail`, if given."""
    if say:
        call.progress(say)
    if wait:
        call.wait(wait)
    if fail:
        raise LookupError(fail)
    return {"pid": os.getpid(), "python": sys.version.split()[0], "home": str(call.root)}


class _RedactingFormatter(logging.Formatter):
    """Removes tokens and signed URLs from all log messages."""

    def format(self, record: logging.LogRecord) -> str:
        return errors.redact(super().format(record))


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
    """Run the service process."""
    source, sink = server.own_process()
    log_to(sys.stderr)
    make_server(source, sink, Path(sys.argv[1])).serve()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)  # do not wait for threads that are blocked on the service
