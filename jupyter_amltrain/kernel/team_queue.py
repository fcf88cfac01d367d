"""Sends recorded runs to the team's MLflow server, in the order of their submission, until the server has them.

What waits is in the project's ledger (:mod:`jupyter_amltrain.tracking.team_ledger`): an outage, and the end of a
kernel, only delay it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection

from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.rpc import child_process
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.tracking import team_ledger, team_sender
from jupyter_amltrain.tracking.worker import TrackingWorker

log = logging.getLogger(__name__)

#: Longest seconds of one run: it may have a model of many gigabytes.
SEND_TIMEOUT_S = 6 * 3600.0

#: Pauses after an attempt that failed, in seconds: the first, and the longest.
MIN_PAUSE_S, MAX_PAUSE_S = 5.0, 300.0


class TeamQueue:
    """Sends the runs of the projects that this kernel has to do with. Loop thread only."""

    def __init__(self, loop: LoopThread, root: StateRoot) -> None:
        self._loop, self._root = loop, root
        self._sender: TrackingWorker | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}  #: by project
        self._adding: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._closed = False

    def add(self, run: Run) -> None:
        """Send a run that was recorded, if its job names a server."""
        if run.spec.tracking_uri and run.project and run.tracking_id:
            task = self._loop.start(self._add(run), f"send {run.handle}")
            self._adding.add(task)
            task.add_done_callback(self._adding.discard)

    async def _add(self, run: Run) -> None:
        entry = (run.project, run.tracking_id, run.handle, run.spec.tracking_uri, run.created)
        pause = MIN_PAUSE_S
        while not self._closed:
            try:
                await self._loop.offload(team_ledger.add, *entry)
                return self.resume(run.project)
            except (OSError, AmlTrainError) as error:  # a full disk
                log.info("%s is not noted for its team's server: %s", run.handle, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_S)

    @staticmethod
    def project_left() -> str:
        """Return the working folder if earlier kernels have left something in it to send, else an empty text."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:  # it was deleted
            return ""
        return folder if team_ledger.waiting(folder) else ""

    def resume(self, project: str) -> None:
        """Send what waits in a project, now: also what earlier kernels have left."""
        self._wake.set()
        if project not in self._tasks and not self._closed:
            self._tasks[project] = self._loop.start(self._run(project), f"send runs of {project}")

    async def settle(self, project: str) -> None:
        """Send what waits in a project; return when the server has it, or the first attempt has failed."""
        if self._adding:
            await asyncio.wait(self._adding)
        if await self._loop.offload(team_ledger.waiting, project):
            self.resume(project)
        while (task := self._tasks.get(project)) is not None and not await self._has_failed(project):
            await asyncio.wait([task], timeout=0.1)

    async def send(self, project: str, run_ids: Collection[str]) -> dict[str, team_ledger.Entry]:
        """Send runs now that wait or were refused; return their entries when each is sent, refused or has to wait."""
        if self._adding:
            await asyncio.wait(self._adding)
        await self._loop.offload(team_ledger.renew, project, run_ids)
        self.resume(project)
        while (task := self._tasks.get(project)) is not None:
            left = await self._loop.offload(team_ledger.waiting, project)
            errors = {entry["uri"]: entry["error"] for entry in left if entry.get("error")}
            if all(entry["uri"] in errors for entry in left if entry["run"] in run_ids):
                break  # one that has failed stops the later ones of its server
            await asyncio.wait([task], timeout=0.1)
        return {run_id: await self._loop.offload(team_ledger.entry_of, project, run_id) for run_id in run_ids}

    async def _has_failed(self, project: str) -> bool:
        entries = await self._loop.offload(team_ledger.waiting, project)
        return not entries or any(entry.get("error") for entry in entries)

    async def _run(self, project: str) -> None:
        pause = MIN_PAUSE_S
        try:
            while not self._closed:
                self._wake.clear()
                try:
                    if await self._send_all(project) and not self._wake.is_set():
                        break
                except OSError as error:  # the ledger is on a full disk
                    log.info("runs of %s are not sent: %s", project, error)
                try:
                    await asyncio.wait_for(self._wake.wait(), pause)
                    pause = MIN_PAUSE_S
                except asyncio.TimeoutError:
                    pause = min(2 * pause, MAX_PAUSE_S)
        finally:
            self._tasks.pop(project, None)

    async def _send_all(self, project: str) -> bool:
        """Send the runs of each server in their order; return whether nothing waits."""
        silent: set[str] = set()
        for entry in await self._loop.offload(team_ledger.waiting, project):
            if entry["uri"] not in silent and not await self._send(project, entry):
                silent.add(entry["uri"])  # its later runs wait, too: the order stays
        return not await self._loop.offload(team_ledger.waiting, project)

    async def _send(self, project: str, entry: team_ledger.Entry) -> bool:
        """Send one run; return whether its server has it, or never will."""
        run_id = str(entry["run"])
        try:
            await self._worker().request("send", {"project": project, "run_id": run_id}, timeout=SEND_TIMEOUT_S)
            return True
        except AmlTrainError as error:
            log.info("%s is not sent: %s", entry.get("handle"), error)
            is_final = isinstance(error, CommandError)
            changes = {"error": str(error).splitlines()[0], **({"state": team_ledger.REFUSED} if is_final else {})}
        await self._loop.offload(lambda: team_ledger.update(project, run_id, **changes))
        return is_final

    def _worker(self) -> TrackingWorker:
        if self._sender is None:
            self._sender = TrackingWorker(
                self._root, lambda: team_sender.environment(child_process.environment()), team_sender.variables
            )
        return self._sender

    async def close(self) -> None:
        """Stop; another kernel sends what waits."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        if self._sender is not None:
            await self._sender.close()
