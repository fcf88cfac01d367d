"""Backend of a machine that SSH reaches: the agent over SSH, and a local copy of finished runs."""

from __future__ import annotations

import logging
import os
import posixpath
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.agent.data.cache import KEY_CHARS
from jupyter_amltrain.agent.protocol import JOB, METRICS, SOURCE, STATE, WARM
from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.agent_files import AgentFiles
from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.backends.capabilities import TargetSettings
from jupyter_amltrain.backends.past_runs import TRACKING_FILE, tracking_state
from jupyter_amltrain.backends.run_files import copied_runs, end_of
from jupyter_amltrain.backends.ssh_connection import SshConnection
from jupyter_amltrain.backends.ssh_mlflow import ProjectTunnels
from jupyter_amltrain.backends.ssh_transport import SshTransport
from jupyter_amltrain.backends.target_files import read_local
from jupyter_amltrain.backends.transport import FileEvents
from jupyter_amltrain.errors import AmlTrainError, CommandError, PreflightError, SubmitError, TargetError
from jupyter_amltrain.jobs import environments
from jupyter_amltrain.jobs.local_data import read_data
from jupyter_amltrain.jobs.project_files import path_notes
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.inputs import uploads
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo
from jupyter_amltrain.state_dir import StateRoot, read_json, write_json
from jupyter_amltrain.tracking.job_server import project_id

log = logging.getLogger(__name__)

#: Folder of the state root with copies of runs of other machines.
MIRROR = "mirror"
#: Variables of the submitter that a job on another machine gets, besides --env-var and secrets.
PASSED_VARIABLES = ("LANG", "LC_ALL", "TZ", "AMLTRAIN_SHARE_GPUS", WARM)


class SshFiles(AgentFiles):
    """Files of the runs of a machine over SSH, and the copies of them on this machine.

    Parameters
    ----------
    mirror
        Local folder with the copies.
    machine
        Name of the machine for display.
    rows
        Decodes runs that a reply of the agent lists.
    """

    _transport: SshTransport

    def __init__(
        self,
        transport: SshTransport,
        loop: LoopThread,
        mirror: Path,
        machine: str,
        folder: Callable[[str], str],
        handle: Callable[[str], RunHandle],
        rows: Callable[[Mapping[str, Any]], Iterator[Run]],
    ) -> None:
        super().__init__(transport, folder, handle)
        self.has_live_copies = True
        self._loop, self._runs, self._machine, self._rows = loop, mirror / "runs", machine, rows
        self._journals: FileEvents | None = None
        self._tunnels = ProjectTunnels(transport.connection, loop)
        self._projects: dict[str, str] = {}  #: by run

    def sending(self, run_id: str) -> str:
        """See :meth:`TargetFiles.sending`."""
        code = f"{self._transport.home}/staging/{run_id}"  # that of data begins with it
        transfers = [
            one for folder, one in self._transport.sending.items() if folder == code or folder.startswith(f"{code}.")
        ]
        return next((transfer.text for transfer in transfers), "")

    async def local_copy(self, run_id: str, path: str = "") -> str | None:
        """See :meth:`TargetFiles.local_copy`; code comes with its list of names, which is beside it."""
        if path == SOURCE:
            await self._transport.fetch(f"{self._folder(run_id)}/{JOB}")
        return await super().local_copy(run_id, path)

    async def live_copies(self, run_ids: Sequence[str]) -> Mapping[str, str]:
        """See :meth:`TargetFiles.live_copies`; one long request of the machine says which journals have grown."""
        await self._tunnels.lead_to(await self._projects_of(run_ids))
        if not run_ids:
            if self._journals is not None:
                self._journals.close()
                self._journals = None
            return {}
        if self._journals is None:
            self._journals = self._transport.events()
        folders = {f"{self._folder(run_id)}/{posixpath.dirname(METRICS)}": run_id for run_id in run_ids}
        grown = [folders[path] for path in await self._journals.wait(tuple(folders), 0.0)]
        for run_id in grown:
            folder = self._folder(run_id)
            await self._transport.fetch_live([f"{folder}/{name}" for name in (JOB, STATE, METRICS)])
        return {run_id: str(self._runs / run_id) for run_id in grown}

    async def _projects_of(self, run_ids: Sequence[str]) -> set[str]:
        """Return the folders of the projects of runs, as far as their jobs were copied."""
        for run_id in set(run_ids) - self._projects.keys():
            project = await self._loop.offload(_project_of, self._runs / run_id / JOB)
            if project:
                self._projects[run_id] = project
        return {self._projects[run_id] for run_id in run_ids if run_id in self._projects}

    async def log_path(self, run_id: str) -> str:
        """See :meth:`TargetFiles.log_path`; with the name of the machine."""
        path = await super().log_path(run_id)
        home = self._transport.connection.facts.get("user_home", "")
        below = posixpath.relpath(path, home) if home not in ("", "/") else ".."
        return f"{self._machine}:{path if below.startswith('..') else f'~/{below}'}"

    async def known_runs(self) -> Sequence[Run]:
        """See :meth:`TargetFiles.known_runs`; those whose state this machine has copied."""
        found = await self._loop.offload(copied_runs, self._runs)
        return list(self._rows({"runs": [_listed(*one) for one in found if one[2]], "errors": {}}))

    async def copied_file(self, run_id: str, path: str) -> bytes:
        """See :meth:`TargetFiles.copied_file`."""
        return await self._loop.offload(end_of, self._runs / run_id / path)

    async def import_states(self, run_ids: Sequence[str]) -> Sequence[str]:
        """See :meth:`TargetFiles.import_states`; the importer works on the copy here."""
        files = [self._runs / run_id / TRACKING_FILE for run_id in run_ids]
        return await self._loop.offload(lambda: [tracking_state(read_local(str(file), 1 << 20)) for file in files])


class SshBackend(AgentBackend):
    """Backend of a machine that SSH reaches.

    Parameters
    ----------
    machine
        Name of the machine for display; default: that of the target.
    """

    Target: ClassVar[type[ComputeTarget]] = SshTarget
    #: Transport to the machine: that of another backend may call other operations of the agent.
    transport_type: ClassVar[type[SshTransport]] = SshTransport

    def __init__(self, target: SshTarget, loop: LoopThread, root: StateRoot, machine: str = "") -> None:
        self._mirror = root.path / MIRROR / target.name
        connection = SshConnection(target, loop, root.path)
        self._ssh = self.transport_type(connection, loop, self._mirror)
        files = SshFiles(self._ssh, loop, self._mirror, machine or target.name, self._folder, self._handle, self._rows)
        super().__init__(target, loop, self._ssh, target.python, files)
        changes = {"share_gpus": self._share_gpus, "idle_shutdown": self._set_idle_shutdown}
        self.settings = TargetSettings(target.name, **changes)

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`; completes the target's fields with what the machine says."""
        assert isinstance(self.target, SshTarget)
        self.target = await self._connect(self.target)
        return msgspec.structs.replace(await super().check(), stops=self._stops_text())

    async def _set_idle_shutdown(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        requested: ComputeTarget = msgspec.structs.replace(self.target, **settings)
        for field, error in requested.field_errors().items():
            raise CommandError(error, code="compute.values", field=field, details={"errors": {field: error}})
        await self.check()  # the line has paths of the machine
        assert isinstance(self.target, SshTarget)
        self.target = self._ssh.connection.target = msgspec.structs.replace(self.target, **settings)
        return {**settings, "stops": self._stops_text() or "is not stopped; remove the line from crontab -e there"}

    def _stops_text(self) -> str:
        """Return the line for cron that stops the idle machine; empty if it is never stopped."""
        assert isinstance(self.target, SshTarget)
        minutes, facts = self.target.idle_shutdown, self._ssh.connection.facts
        if not minutes or not facts:
            return ""
        agents = f"{shlex.quote(posixpath.dirname(facts['agent']))}/*.pyz"
        request = f'{shlex.quote(facts["python"])} "$(ls -t {agents} | head -1)" idle {shlex.quote(facts["home"])}'
        line = f"*/5 * * * * {request} {60 * minutes} && {self._stop_command}".replace("%", "\\%")
        return f"stops after {minutes} min without a run once crontab -e there has this line: {line}"

    @property
    def _stop_command(self) -> str:
        """Command that stops the machine from inside."""
        return "sudo -n shutdown -h now"

    async def _connect(self, target: SshTarget) -> SshTarget:
        """Connect to a machine; return its target with what it says."""
        connection = self._ssh.connection
        connection.retry_soon()
        await connection.connect()
        facts = connection.facts
        completed = msgspec.structs.replace(target, workdir=facts["home"], python=target.python or facts["python"])
        connection.target = completed
        self._ssh.home = facts["home"]
        self._machine = msgspec.structs.replace(self._machine, python=completed.python)
        return completed

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`; names the imports that the machine's interpreter does not have.

        Raises
        ------
        PreflightError
            A module is missing.
        """
        if not self._ssh.home:  # submitted while the target is being attached
            await self.check()
        await self._check_inputs(spec)
        if environments.is_built(spec) or environments.is_image(spec):
            return await self._completed(await super().plan(spec, snapshot, run_id))
        notes = await self._check_interpreter(spec, snapshot)
        plan = await self._completed(await super().plan(spec, snapshot, run_id))
        return msgspec.structs.replace(plan, notes=(*plan.notes, *notes))

    async def _check_inputs(self, spec: JobSpec) -> None:
        """Raise :class:`PreflightError` for an input that the machine does not have."""
        for name, data in spec.inputs.items():
            if not data.local or data.upload:
                continue
            kind = await self._ssh.kind(data.path)
            flag, there = f"--input {name}={data.path}", self.target.name
            if not kind:
                is_here = await self._loop.offload(os.path.exists, data.path)
                hint = f"It is on this computer. To send it: {flag},upload" if is_here else f"Give a path of {there}."
                reason = f"{flag}: {there} has no such file or folder."
                raise PreflightError(reason, hint=hint, code="data.missing", field="inputs")
            if kind == "file" and data.type == "uri_folder":
                reason, hint = f"{flag}: on {there} the path is a file.", "Add the type: ,uri_file"
                raise PreflightError(reason, hint=hint, code="data.type", field="inputs")

    async def _completed(self, plan: LaunchPlan) -> LaunchPlan:
        """Return a plan with the data that is to be sent, and notes on paths that the machine does not have."""
        sent = await self._loop.offload(_data_to_send, plan.spec)
        notes = await self._loop.offload(path_notes, plan.spec, plan.snapshot, self.target.name)
        request = {**plan.request, "uploads": sent} if sent else plan.request
        return msgspec.structs.replace(plan, request=request, notes=(*plan.notes, *notes))

    async def _send(self, plan: LaunchPlan) -> None:
        """Send the files of a job, and the data of its inputs that the machine does not have."""
        for name, data in plan.request.get("uploads", {}).items():
            await self._send_data(f"{plan.run_id}.{name}", data)
        await super()._send(plan)

    async def _send_data(self, staged: str, sent: Mapping[str, Any]) -> None:
        request = {"key": sent["key"]}
        if (await self._transport.call("data", {**request, "verb": "find"}))["found"]:
            return
        data = await self._loop.offload(read_data, sent["path"])
        if data.sha256 != sent["sha256"]:
            raise SubmitError(
                f"{sent['path']} has changed since the submit.", hint="Submit again.", code="data.changed"
            )
        below = f"{sent['file']}/" if data.is_folder else ""
        folder = self._staging(staged)
        await self._transport.put({below + name: file.path for name, file in data.files.items()}, folder)
        self._ssh.sent_digest(folder)  # only that of code is needed
        keep = {**request, "verb": "keep", "staged": staged, "file": sent["file"]}
        if not (await self._transport.call("data", keep))["found"]:
            raise TargetError(f"{self.target.name} does not keep the data that was sent.")

    async def _submit(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """Submit a job; the machine's own environment is used, and a few variables of this one."""
        passed = {name: environ[name] for name in PASSED_VARIABLES if name in environ}
        # Digests of paths of this machine would be those of other data: the machine's own are not read.
        provenance = msgspec.structs.replace(plan.origin.provenance, inputs={})
        plan = msgspec.structs.replace(plan, origin=plan.origin._replace(provenance=provenance))
        run = await super()._submit(plan, passed, secrets)
        job = {**plan.request, "submitted": run.created}
        await self._loop.offload(_keep_submitted, self._mirror / "runs" / run.run_id, job, run.status.state.value)
        return run

    def _project_server(self, project: str) -> dict[str, Any]:
        return {"project": project_id(project)}

    async def _sent_digest(self, snapshot: Snapshot, staging: str) -> str:
        """Return the digest of what was sent: a file may have changed between the plan and the copy."""
        return self._ssh.sent_digest(staging)

    async def close(self) -> None:
        """See :meth:`Backend.close`."""
        await self.files.live_copies(())
        await super().close()

    async def delete(self, run_id: str) -> None:
        """See :meth:`Backend.delete`; the copy here goes, too."""
        await super().delete(run_id)
        copy = self._mirror / "runs" / run_id
        await self._loop.offload(shutil.rmtree, copy, True)


def _keep_submitted(folder: Path, job: Mapping[str, Any], state: str) -> None:
    """Write what is known of a run that was submitted, for kernels that start while the machine does not answer."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(folder / JOB, dict(job))
        write_json(folder / STATE, {"state": state})
    except OSError as error:
        log.info("%s: %s", folder, error)


def _project_of(file: Path) -> str:
    """Return the folder of the project of a run, from its copied job; empty if it is not known."""
    try:
        return str(read_json(file)["spec"]["project"])
    except (AmlTrainError, OSError, KeyError, TypeError):
        return ""


def _listed(run_id: str, job: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as the agent lists it."""
    return {"run": run_id, "job": job, "status": state}


def _data_to_send(spec: JobSpec) -> dict[str, Any]:
    """Return what the agent must know of the data that is to be sent, by the name of the input. Blocks on the disk."""
    sent = {}
    for name, path in uploads(spec.inputs).items():
        data = read_data(path)
        facts = {"path": path, "sha256": data.sha256, "files": len(data.files), "bytes": data.bytes}
        sent[name] = {"key": data.sha256[:KEY_CHARS], "file": data.name, **facts}
    return sent
