"""The kernel's client of the Azure service process (:mod:`.job.operations`): one for each loop."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.rpc import child_process
from jupyter_amltrain.rpc.client import RpcCancelled, RpcClient, RpcClosed, RpcEnded, RpcFault, RpcTimeout
from jupyter_amltrain.state_dir import StateRoot

#: Seconds without a reply and without a progress event of an operation.
REQUEST_TIMEOUT_S = 120.0
#: Seconds that the process may take to end.
CLOSE_TIMEOUT_S = 1.0
#: Of these, variables that hold a path; the process has another working folder.
_PATH_VARIABLES = ("AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_CONFIG_DIR", "AZURE_FEDERATED_TOKEN_FILE")
#: Prefixes of the environment variables that Azure's packages read.
_VARIABLE_PREFIXES = (
    "AZURE",
    "AMLTRAIN_AZURE",
    "ARM_",
    "IDENTITY_",
    "MSI_",
    "IMDS_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_",
)


class NoReply(TargetUnreachable):
    """The process sent no reply within the timeout: the request may have been carried out."""


class ProcessEnded(NoReply):
    """The process ended during a request."""


class ServiceClient:
    """Requests to the Azure process, which is started by the first one and again after a crash.

    Use it from one loop.

    Parameters
    ----------
    root
        The state root; the process' log is its ``logs/azure.txt``.
    """

    def __init__(self, root: StateRoot) -> None:
        self._rpc = RpcClient(
            "jupyter_amltrain.azure.service",
            str(root.path),
            log=root.logs / "azure.txt",
            environment=_environment,
            watched=_watched,
        )

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._rpc.pid

    async def request(
        self,
        op: str,
        payload: Mapping[str, Any],
        *,
        progress: Callable[[str], None] | None = None,
        signin: Callable[[dict[str, Any]], None] | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """Run one operation; several can run at once. Canceling the call asks the process to stop the operation.

        Parameters
        ----------
        op
            A key of :data:`.job.operations.OPERATIONS`.
        payload
            Keyword arguments of the operation, plain data.
        progress
            Called on the loop with a sentence about the progress.
        signin
            Called with the instructions to sign in: ``{"text", "url", "code"}``.
        timeout
            Seconds without a reply and without an event.

        Raises
        ------
        AmlTrainError
            The error of the operation.
        TargetUnreachable
            The process ended or did not reply. The next request starts a new one.
        """

        def event(fields: dict[str, Any]) -> None:
            if fields.get("kind") == "progress":
                if progress is not None:
                    progress(str(fields.get("text", "")))
            elif signin is not None:
                signin(fields)

        try:
            return await self._rpc.request(op, payload, event=event, timeout=timeout)
        except RpcClosed:
            raise TargetUnreachable("The connection to Azure has been closed.", hint="Restart the kernel.") from None
        except RpcTimeout:
            raise NoReply(f"Azure did not respond to {op} within {timeout:g} s.", hint="Try again.") from None
        except RpcEnded as error:
            ending = f" ({error.ending})" if error.ending else ""
            hint = f"The next request starts it again. See {self._rpc.log}"
            raise ProcessEnded(f"The process that talks to Azure ended{ending}.", hint=hint) from error
        except RpcCancelled as error:
            raise AmlTrainError(str(error), code="azure.canceled") from error
        except RpcFault as error:
            raise self._internal_error(op, error) from error

    def _internal_error(self, op: str, error: RpcFault) -> AmlTrainError:
        failed = "Could not connect to the workspace" if op == "workspace.connect" else f"{op} failed"
        return AmlTrainError(
            f"{failed} (internal error): {error.kind}: {str(error).rstrip('.')}.",
            hint=f"See {self._rpc.log}",
            code="internal",
            details={"operation": op, "kind": error.kind},
        )

    async def close(self) -> None:
        """End the process. Operations that the service has accepted continue there."""
        await self._rpc.close(kill_after=CLOSE_TIMEOUT_S)


def _watched() -> dict[str, str]:
    """Return the variables of Azure's packages, with absolute paths: the process has another working folder."""
    env = os.environ | child_process.absolute_paths(os.environ, _PATH_VARIABLES)
    return {name: value for name, value in env.items() if name.startswith(_VARIABLE_PREFIXES)}


def _environment() -> dict[str, str]:
    """Return the environment that the process is started with: without telemetry of Azure's packages."""
    quiet = {"AZURE_CORE_COLLECT_TELEMETRY": "false", "AZURE_TRACING_ENABLED": "false", "PYTHONUNBUFFERED": "1"}
    return child_process.environment() | child_process.absolute_paths(os.environ, _PATH_VARIABLES) | quiet


_clients: weakref.WeakKeyDictionary[LoopThread, ServiceClient] = weakref.WeakKeyDictionary()


def client_of(loop: LoopThread, root: StateRoot) -> ServiceClient:
    """Return the client of a loop; its process is started by the first request."""
    loop.check()
    if loop not in _clients:
        _clients[loop] = ServiceClient(root)
    return _clients[loop]


async def close_client(loop: LoopThread) -> None:
    """Close the client of a loop, if it has one."""
    client = _clients.pop(loop, None)
    if client is not None:
        await client.close()
