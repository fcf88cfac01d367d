"""MLflow's servers of this computer's projects, for jobs of a machine that SSH reaches: sockets there lead here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent.mlflow.project_server import ServerProcess
from jupyter_amltrain.agent.mlflow.validation import Refusal
from jupyter_amltrain.backends.ssh_connection import SshConnection
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.tracking.job_server import job_server_command, project_id

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection, SSHListener, SSHReader, SSHWriter

log = logging.getLogger(__name__)

#: Seconds for the other machine to listen.
_LISTEN_TIMEOUT_S = 15.0

#: Bytes that are passed on at once.
_PART_BYTES = 1 << 16


class ProjectTunnels:
    """Sockets of the other machine that lead to MLflow's servers here. Loop thread only.

    Jobs there find them through ``agent/mlflow/project_sockets.py``. A server starts with the first call.
    """

    def __init__(self, connection: SshConnection, loop: LoopThread) -> None:
        self._connection, self._loop = connection, loop
        self._tunnels: dict[str, _Tunnel] = {}  #: by project

    async def lead_to(self, projects: Collection[str]) -> None:
        """Have sockets for these projects and no others; those of a lost connection are made again.

        Raises
        ------
        TargetUnreachable
            The machine does not answer.
        """
        for project in self._tunnels.keys() - set(projects):
            await self._tunnels.pop(project).close()
        for project in projects:
            tunnel = self._tunnels.setdefault(project, _Tunnel(project, self._loop))
            await tunnel.open(self._connection)


class _Tunnel:
    """Socket of the other machine for one project, and the server here."""

    def __init__(self, project: str, loop: LoopThread) -> None:
        self._project, self._loop = project, loop
        self._server = ServerProcess(job_server_command(project, is_elsewhere=True), log.info)
        self._over: SSHClientConnection | None = None  #: the connection that it was tried on
        self._listener: SSHListener | None = None

    async def open(self, connection: SshConnection) -> None:
        """Listen on the other machine, once for each connection."""
        import asyncssh

        ssh = await connection.ssh()
        if ssh is self._over:
            return
        self._over = ssh
        reply, _ = await connection.request(
            "call", call="project_sockets", payload={"project": project_id(self._project)}
        )
        folder = reply["reply"].get("folder")
        if folder is None:
            return
        path = f"{folder}/{secrets.token_hex(4)}.sock"
        try:
            listening = ssh.start_unix_server(lambda: self._join, path, encoding=None)
            self._listener = await asyncio.wait_for(listening, _LISTEN_TIMEOUT_S)
        except (OSError, asyncssh.Error, asyncio.TimeoutError) as error:  # forbidden there: AllowStreamLocalForwarding
            log.info("%s: no socket for MLflow: %s", connection.target.name, error)

    async def close(self) -> None:
        """Close the socket and end the server."""
        if self._listener is not None:
            self._listener.close()
        await self._loop.offload(self._server.close)

    async def _join(self, reader: SSHReader[bytes], writer: SSHWriter[bytes]) -> None:
        """Pass a connection of the other machine on to the server, which is started for its first bytes."""
        import asyncssh

        try:
            begin = await reader.read(_PART_BYTES)
            if not begin:  # somebody looks whether the socket is served
                return
            record = await self._loop.offload(self._server.record)
            here, there = await asyncio.open_unix_connection(record["address"]["unix"])
            there.write(begin)
            await asyncio.gather(_pass_on(reader, there), _pass_on(here, writer))
        except (OSError, asyncssh.Error, AmlTrainError, Refusal) as error:
            log.info("MLflow's server of %s: %s", self._project, error)
        finally:
            with contextlib.suppress(OSError, asyncssh.Error):
                writer.close()


async def _pass_on(reader: Any, writer: Any) -> None:
    """Copy bytes until their end, and end the other side."""
    try:
        while part := await reader.read(_PART_BYTES):
            writer.write(part)
            await writer.drain()
    finally:
        writer.close()
