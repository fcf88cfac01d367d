"""Backend of an Azure virtual machine that SSH reaches: Azure tells its address, and starts and stops it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.azure.catalog import Size, find, sizes_of
from jupyter_amltrain.azure.client import NoReply, client_of
from jupyter_amltrain.azure.cost_prompts import gpu_text
from jupyter_amltrain.azure.workspace_file import WorkspaceFile
from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.backends.provisioner import (
    Progress,
    Provisioner,
    ProvisionState,
    start_stop_actions,
    stopped_runs_text,
)
from jupyter_amltrain.backends.ssh import SshBackend
from jupyter_amltrain.errors import AmlTrainError, CreateUnsure, TargetError, TargetUnreachable
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.fields import TargetAction
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.text import money

#: Seconds without a progress event before a start or stop fails.
OPERATION_TIMEOUT_S = 300.0
#: Seconds that the SSH server of a machine may take after Azure reports the machine as running.
SSH_TIMEOUT_S = 180.0
#: Seconds between two attempts to connect meanwhile.
SSH_PAUSE_S = 2.0
#: Power state of a machine that was shut down from inside: Azure keeps it allocated, and charges for it.
_SHUT_DOWN = "stopped"


class AzureVmBackend(SshBackend, Provisioner):
    """Backend of a virtual machine that a resource id names.

    The sign-in is that of a connected workspace, which also tells the price of the machine's size.
    """

    def __init__(self, target: SshTarget, loop: LoopThread, root: StateRoot) -> None:
        super().__init__(target, loop, root)
        self._root = root
        #: Azure's last description of the machine, and whether Azure has answered at all.
        self._row: dict[str, Any] | None = None
        self._is_known = False
        self._size: Size | None = None

    # ---- requests

    @property
    def _target(self) -> SshTarget:
        assert isinstance(self.target, SshTarget)
        return self.target

    async def _request(self, op: str, progress: Progress | None = None, timeout: float = 120.0, **payload: Any) -> Any:
        workspace = WorkspaceFile(self._root).get(self._target.azure_workspace).name
        client = client_of(self._loop, self._root)
        return await client.request(op, {"workspace": workspace, **payload}, progress=progress, timeout=timeout)

    async def _read(self) -> dict[str, Any] | None:
        """Read the machine's state and address."""
        self._note(await self._request("machine.get", machine=self._target.resource_id))
        return self._row

    def _note(self, row: dict[str, Any] | None) -> None:
        self._row, self._is_known = row, True
        if row is not None and row["address"] and row["address"] != self._target.address:
            self._change(address=row["address"])

    def _change(self, **fields: Any) -> None:
        self.target = msgspec.structs.replace(self._target, **fields)
        self._ssh.connection.target = self._target
        self._ssh.connection.retry_soon()

    async def _price(self) -> Size | None:
        """Fetch the size of the machine, with its price; ``None`` if Azure ML has no such size."""
        if self._size is None and self._row is not None:
            try:
                rows = await self._request("sizes.list", location=self._row["location"])
            except AmlTrainError:
                return None
            self._size = find(sizes_of(rows), self._row["size"])
        return self._size

    # ---- Provisioner

    async def prepare(self) -> None:
        """See :meth:`Provisioner.prepare`."""
        await self._read()
        await self._price()

    async def state(self) -> ProvisionState:
        """See :meth:`Provisioner.state`."""
        row = await self._read()
        if row is None:
            return ProvisionState(
                state="failed",
                detail=f"Azure has no virtual machine {self._target.resource_id.rpartition('/')[2]!r}: it was deleted,"
                f" or this sign-in may not read it. Remove it from the list: %aml_compute delete {self.target.name}",
            )
        size = await self._price()
        low, billed = row["low_priority"], row["power"] != "deallocated"
        price = None if size is None else size.cost(low)
        return ProvisionState(
            state=row["state"],
            size=row["size"],
            cpus=None if size is None else size.cpus,
            memory=None if size is None else size.memory,
            gpus=None if size is None else size.gpus,
            gpu_name="" if size is None else gpu_text(size),
            price_node=price,
            price=None if price is None else price * billed,
            currency="" if size is None else size.currency,
            detail="" if row["power"] != _SHUT_DOWN else self._still_billed,
        )

    @property
    def _stop_command(self) -> str:
        # A machine that is shut down from inside is still charged.
        return f"az login --identity -o none && az vm deallocate --no-wait --ids {self._target.resource_id}"

    @property
    def _still_billed(self) -> str:
        return f"Shut down from inside: Azure still charges for it. Release it: %aml_compute stop {self.target.name}"

    async def create(self, progress: Progress) -> None:
        """See :meth:`Provisioner.create`; attaches the machine, which is started if it is stopped.

        Raises
        ------
        TargetError
            There is no such machine.
        """
        if not self._target.azure_workspace:
            self._change(azure_workspace=WorkspaceFile(self._root).get("").name)
        progress("Asking Azure for the address of the machine")
        row = await self._read()
        if row is None:
            raise TargetError(
                f"Azure has no virtual machine {self._target.resource_id}, or this sign-in may not read it.",
                hint="See yours: az vm list --query [].id --output tsv",
                code="azure.no_machine",
            )
        if row["state"] == "ready":
            await self._check_login(progress, time.monotonic())
        else:
            await self.start(progress)

    async def remove(self, progress: Progress) -> None:
        """See :meth:`Provisioner.remove`; the machine stays as it is."""

    async def start(self, progress: Progress) -> None:
        """See :meth:`Provisioner.start`; waits until SSH answers."""
        await self._power("start", progress)
        await self._check_login(progress, time.monotonic() + SSH_TIMEOUT_S)

    async def stop(self, progress: Progress) -> None:
        """See :meth:`Provisioner.stop`; deallocates the machine, which ends its charges."""
        await self._power("stop", progress)

    async def restart(self, progress: Progress) -> None:
        """See :meth:`Provisioner.restart`."""
        await self._power("restart", progress)
        await self._check_login(progress, time.monotonic() + SSH_TIMEOUT_S)

    async def _power(self, verb: str, progress: Progress) -> None:
        try:
            row = await self._request(
                f"machine.{verb}", progress, OPERATION_TIMEOUT_S, machine=self._target.resource_id
            )
        except NoReply as error:
            raise CreateUnsure(
                f"{error.message} The {verb} may still be carried out.",
                hint=f"See its state: %aml_compute test {self.target.name}",
            ) from error
        self._note(row)

    async def _check_login(self, progress: Progress, deadline: float) -> None:
        """Connect and check the machine; a machine that has just started may refuse connections until `deadline`."""
        while True:
            try:
                await super().check()
                break
            except TargetUnreachable:
                if time.monotonic() > deadline:
                    raise
                progress("Waiting for the SSH server of the machine")
                await asyncio.sleep(SSH_PAUSE_S)
        if not self._target.accept_host_key:  # the same machine may have another address after the next start
            self._change(accept_host_key=self._ssh.connection.host_key)

    def confirmation(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """See :meth:`Provisioner.confirmation`."""
        name, row = self.target.name, self._row
        if verb == "delete":
            return (
                f"Removes {name!r} from the list of targets; the virtual machine, its charges and its runs are not"
                " affected."
            )
        if verb in ("stop", "restart"):
            doing = "Stops" if verb == "stop" else "Restarts"
            return f"{doing} {name!r}: {stopped_runs_text(running)} too." if running else ""
        if verb == "create" and row is not None and row["state"] == "ready":
            return ""
        price = None if self._size is None or row is None else self._size.cost(row["low_priority"])
        amount = "an unknown price" if price is None else money(price, self._size.currency if self._size else "")
        costs = f"costs {amount} per hour until you stop it. It does not stop automatically; its disk is always billed."
        if verb == "start":
            return f"Starts {name!r}: it {costs}"
        begin = "Starts the machine, which" if row is not None else "If the machine is stopped, it is started and"
        return f"{begin} {costs}"

    def actions(self, state: ProvisionState) -> tuple[TargetAction, ...]:
        """See :meth:`Provisioner.actions`."""
        stopped = state.state == "stopped"
        start, stop = start_stop_actions(stopped)
        if stopped and self._row is not None and self._row["power"] == _SHUT_DOWN:
            stop = msgspec.structs.replace(stop, disabled_reason="")
        restart = TargetAction(verb="restart", disabled_reason="The machine is stopped." if stopped else "")
        return (start, stop, restart, TargetAction(verb="delete"))

    def renew(self, target: ComputeTarget) -> None:
        """See :meth:`Provisioner.renew`."""
        assert isinstance(target, SshTarget)
        self.target = target
        self._ssh.connection.target = target

    # ---- Backend

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`.

        Raises
        ------
        TargetError
            The machine is stopped.
        """
        if not self._is_known:
            await self._read()
        self._require_running()
        return await super().check()

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`.

        Raises
        ------
        TargetError
            The machine is stopped.
        """
        if self._row is None or self._row["state"] != "ready":
            await self._read()
            self._require_running()
        try:
            return await super().plan(spec, snapshot, run_id)
        except TargetUnreachable:
            await self._read()
            self._require_running()
            raise

    def _require_running(self) -> None:
        row = self._row
        if row is None or row["state"] == "ready":
            return
        raise TargetError(
            f"{self.target.name!r} is {row['power'] or row['state']}.",
            hint=f"Start it: %aml_compute start {self.target.name}",
            code="azure.machine_stopped",
        )
