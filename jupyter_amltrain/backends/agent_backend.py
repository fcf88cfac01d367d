"""Backend that runs jobs with the agent, over a transport to the target's machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.agent import testing
from jupyter_amltrain.agent.protocol import PICTURES, valid_run_id
from jupyter_amltrain.backends.agent_environments import AgentEnvironments
from jupyter_amltrain.backends.agent_files import AgentFiles
from jupyter_amltrain.backends.base import Backend, LaunchPlan
from jupyter_amltrain.backends.capabilities import RunQuestions, TargetMonitors, TargetSettings
from jupyter_amltrain.backends.local_limits import check_machine
from jupyter_amltrain.backends.past_runs import Key, PastRun, PastRunIndex, listed_fields_of, tracking_of
from jupyter_amltrain.backends.run_files import damaged_run, file_of, run_of, status_of
from jupyter_amltrain.backends.streams import STATUS, STREAMS, Chunk, RunEvents, StreamChanges, monitor_of
from jupyter_amltrain.backends.target_files import TargetFiles
from jupyter_amltrain.backends.transport import FileEvents, LocalTransport, Transport
from jupyter_amltrain.errors import DamagedRun, PreflightError, ProtocolError, SpecError
from jupyter_amltrain.jobs import environments
from jupyter_amltrain.jobs.data_paths import kept_elsewhere
from jupyter_amltrain.jobs.launch import copied_fields, downloads, launch_plan, restarts_of
from jupyter_amltrain.jobs.project_files import project_files
from jupyter_amltrain.jobs.requirements import absent_modules, needed_modules, package_of
from jupyter_amltrain.jobs.scaling import slice_limits
from jupyter_amltrain.jobs.snapshot import Snapshot, digest_of
from jupyter_amltrain.jobs.values import makers, other_versions, with_code
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle, RunStatus, make_handle
from jupyter_amltrain.schema.target import ComputeTarget, LocalTarget, TargetInfo
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.tracking.job_server import job_server_command

#: Variables that lead an interpreter to its own packages.
_INTERPRETER_VARIABLES = frozenset(
    (
        *("VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "PYTHONPATH", "PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"),
        *("CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER", "CONDA_SHLVL"),
    )
)
#: Maximum number of runs per agent call that reads run directories: all their jobs are in memory meanwhile.
_MAX_RUNS_PER_CALL = 500
#: Runs of a list that are decoded before the loop gets a turn.
_RUNS_PER_TURN = 50


class AgentMonitors(TargetMonitors):
    """Samples of the machine that `transport` reaches."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def start(self, monitor_id: str, gpus: Sequence[int] | None, period: float) -> str:
        """See :meth:`TargetMonitors.start`."""
        chosen = None if gpus is None else list(gpus)
        answer = await self._transport.call("monitor", {"id": monitor_id, "gpus": chosen, "period": period})
        return str(answer["folder"])

    async def stop(self, monitor_id: str) -> None:
        """See :meth:`TargetMonitors.stop`."""
        await self._transport.call("monitor", {"id": monitor_id, "stop": True})


class AgentQuestions(RunQuestions):
    """Questions to the runs of an agent."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def ask(self, run_id: str, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :meth:`RunQuestions.ask`."""
        return await self._transport.call("ask", {**question, "run": run_id})


class AgentBackend(Backend):
    """Runs jobs as processes of the agent, on the machine that `transport` reaches.

    Parameters
    ----------
    python
        Interpreter of jobs that name none, from the target; empty for the machine's default.
    files
        Default: :class:`AgentFiles`.
    """

    Target: ClassVar[type[ComputeTarget]]

    def __init__(
        self,
        target: ComputeTarget,
        loop: LoopThread,
        transport: Transport,
        python: str = "",
        files: TargetFiles | None = None,
    ) -> None:
        super().__init__(target, files or AgentFiles(transport, self._folder, self._handle))
        self._loop = loop
        self._transport = transport
        self._machine = transport.machine
        if python:
            self._machine = msgspec.structs.replace(self._machine, python=python)
        self.environments: AgentEnvironments = AgentEnvironments(transport, target.name, lambda: self._machine)
        self.monitors: AgentMonitors = AgentMonitors(transport)
        self.questions: AgentQuestions = AgentQuestions(transport)
        self.settings = TargetSettings(target.name, share_gpus=self._share_gpus)
        self._modules: dict[str, set[str]] = {}  #: by interpreter, modules that it is known to have
        self._versions: dict[str, dict[str, str]] = {}  #: by interpreter, versions of its packages by their modules

    def _folder(self, run_id: str) -> str:
        monitor = monitor_of(run_id)
        return f"{self._transport.home}/{f'monitors/{monitor}' if monitor else f'runs/{run_id}'}"

    def _handle(self, run_id: str) -> RunHandle:
        return make_handle(self.target.name, run_id)

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`."""
        uv = await self._loop.offload(environments.submitter_uv) if self._machine.has_our_disk else ""
        answer = await self._transport.call("info", {"base": self._machine.python, "tool": uv})
        known = {field.name for field in msgspec.structs.fields(TargetInfo)}
        facts = {name: value for name, value in answer.items() if name in known}
        kind = str(type(self.target).__struct_config__.tag)
        return msgspec.convert(
            {**facts, "target": self.target.name, "kind": kind, "home": self._transport.home},
            TargetInfo,
        )

    async def _share_gpus(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._transport.call("configure", dict(settings))

    def check_job(self, spec: JobSpec) -> None:
        """See :meth:`Backend.check_job`."""
        super().check_job(spec)
        check_machine(spec, self.target.name, self._machine.has_our_disk)

    def complete_spec(self, spec: JobSpec) -> JobSpec:
        """See :meth:`Backend.complete_spec`; fills in the packages of a built environment, and files to send."""
        # A container does not have the folder of the script either.
        if not self._machine.has_our_disk or (environments.is_image(spec) and not spec.script):
            spec = msgspec.structs.replace(spec, files=project_files(spec))
        return environments.completed(spec, self._machine.has_our_disk)

    async def _planned_build(self, spec: JobSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the request to build a job's environment, and a note on it; empty if the job runs without it."""
        request = self.environments.request(spec.environment, spec.python)
        # A file of `az ml` was written for a service: what cannot be built here is noted, and the job runs.
        found = await self.environments.find(spec.environment, spec.python, check=not spec.job_type)
        if spec.job_type:
            note = environments.file_note(spec, found, self.target.name)
            return ({} if found["reason"] else request), (note,)
        return request, (environments.note(spec.environment, found),)

    async def _check_interpreter(self, spec: JobSpec, snapshot: Snapshot) -> tuple[str, ...]:
        """Check that a job's interpreter has what the script imports; return notes on its versions.

        Raises
        ------
        PreflightError
            It does not start, or a module is missing.
        """
        python, name = spec.python or self._machine.python, self.target.name
        # Those of folders that only the machine knows are not looked for.
        elsewhere = "PYTHONPATH" in spec.env
        modules = [] if elsewhere else await self._loop.offload(needed_modules, spec, snapshot)
        made, versions = makers(spec), self._versions.setdefault(python, {})
        packages = [package_of(module) for module in made if module not in versions]
        if python in self._modules:
            modules = [module for module in modules if module not in self._modules[python]]
            if not modules and not packages:
                return self._version_notes(spec, made, versions)
        request = {"python": python, "names": modules, "packages": packages}
        answer = await self._transport.call("modules", request)
        if answer["reason"]:
            other = "--python PATH" if spec.python else "delete the target, and attach it with --python PATH"
            raise PreflightError(
                f"The interpreter {python} on {name} cannot be used: {answer['reason']}.",
                hint=f"Name another one: {other}",
                code="interpreter.unusable",
                field="python",
            )
        if missing := answer["missing"]:
            raise PreflightError(
                f"{python} on {name} does not have: {', '.join(missing)}.",
                hint=f"Install there: {python} -m pip install {' '.join(map(package_of, missing))}; or give the job"
                f" an environment: {' '.join(f'--pip {package_of(module)}' for module in missing)}",
                code="interpreter.missing_modules",
                details={"modules": missing},
            )
        self._modules.setdefault(python, set()).update(modules)
        found = answer.get("versions", {})
        versions.update({module: found.get(package_of(module), "") for module in made if module not in versions})
        versions["python"] = found.get("python", "")
        return self._version_notes(spec, made, versions)

    def _version_notes(self, spec: JobSpec, made: Mapping[str, str], there: Mapping[str, str]) -> tuple[str, ...]:
        other = other_versions(made, {name: version for name, version in there.items() if version})
        if not other:
            return ()
        names = with_code(spec)
        if names and other.startswith("Python"):
            raise PreflightError(
                f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} functions without source, which only this"
                f" version of Python can read: {other}.",
                hint="Make them there: --replay all, or define the functions by def in a cell.",
                code="closure.version",
            )
        return (f"Values travel as pickles to other versions: {other}. If one cannot be read on {self.target.name!r},"
                " send arrays or a file, or make it there: --replay all",)  # fmt: skip

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`."""
        check_path(self._transport.home, "state root", "Set AMLTRAIN_HOME to another folder and restart the kernel.")
        if spec.tracking != "direct":
            check_path(spec.project, "notebook's folder", "Rename it, or log to a server: MLFLOW_TRACKING_URI.")
        source = f"{self._folder(run_id)}/source"
        machine = self._machine
        request: dict[str, Any] = {}
        container: dict[str, Any] = {}
        notes: tuple[str, ...] = ()
        if environments.is_built(spec):
            request, notes = await self._planned_build(spec)
        elif spec.job_type and (note := environments.file_note(spec, None, self.target.name)):
            notes = (note,)
        if request:
            # The agent puts the environment's folder first on the PATH.
            machine = msgspec.structs.replace(machine, python="python")
        elif environments.is_image(spec):
            container = environments.container_request(spec, machine.has_our_disk)
            found = await self.environments.find_image(container)
            notes = (environments.image_note(spec.environment.image, found),)
            # The agent finds python3 or python on the PATH of the image.
            machine = msgspec.structs.replace(machine, python="python")
        planned = msgspec.structs.replace(spec, python="") if request else spec
        launch = launch_plan(planned, source, machine)
        parts = {
            "environment": request,
            "container": container,
            "downloads": downloads(spec),
            "ranks": launch.ranks,
            "code": launch.code,
            "restarts": restarts_of(spec),
            "slice": slice_limits(spec),
            "no_slot": spec.is_driver,
        }
        job = {
            "run": run_id,
            **copied_fields(spec),
            "argv": list(launch.argv),
            "cwd": launch.cwd,
            "env": launch.env,
            "notebook_dir": spec.notebook_dir if self._machine.has_our_disk else "",
            "tracking": {"run_id": uuid.uuid4().hex, "mode": spec.tracking, "lines": list(spec.metric_lines)},
            "snapshot": {"digest": snapshot.digest, "files": len(snapshot.files), "bytes": snapshot.bytes},
            "spec": msgspec.to_builtins(spec),
            **{name: part for name, part in parts.items() if part},
        }
        return LaunchPlan(run_id=run_id, spec=spec, snapshot=snapshot, request=job, notes=notes)

    async def launch(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """See :meth:`Backend.launch`."""
        await self._send(plan)
        return await self._submit(plan, environ, secrets)

    def _staging(self, run_id: str) -> str:
        return f"{self._transport.home}/staging/{run_id}"

    async def _send(self, plan: LaunchPlan) -> None:
        """Send the files of a job."""
        await self._transport.put(plan.snapshot.files, self._staging(plan.run_id))

    def _project_server(self, project: str) -> dict[str, Any]:
        """Return where a job finds MLflow's server of its project."""
        return {"server": job_server_command(project)} if self._machine.has_our_disk else {}

    async def _submit(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """Submit a job whose files were sent."""
        job = {**plan.request, "notes": list(plan.notes)}  # which stay with the run, and not with its job
        if plan.spec.tracking != "direct":
            job["tracking"] = {**job["tracking"], **self._project_server(plan.spec.project)}
        digest = await self._sent_digest(plan.snapshot, self._staging(plan.run_id))
        testing.hit("kernel_before_submit")
        answer = await self._transport.call(
            "submit",
            # The submission's id makes the call idempotent: after a lost reply a repeated
            # call does not start the job twice.
            {
                **job,
                "snapshot": {**plan.request["snapshot"], "digest": digest},
                "provenance": {
                    **msgspec.to_builtins(plan.origin.provenance),
                    "interpreter": plan.spec.python or self._machine.python,
                },
                "git_diff": plan.origin.git_diff,
                "environ": dict(environ),
                "secrets": dict(secrets),
                "submission": uuid.uuid4().hex,
            },
        )
        testing.hit("kernel_after_submit")
        state = {"state": answer["state"], "notes": job["notes"]}
        return self._run(plan.run_id, {**job, "submitted": time.time()}, state)

    async def _sent_digest(self, snapshot: Snapshot, staging: str) -> str:
        """Return the digest of the files that were sent."""
        return snapshot.digest

    def _run(self, run_id: str, job: Mapping[str, Any], state: Mapping[str, Any]) -> Run:
        return run_of(self._handle(run_id), self._folder(run_id), job, state)

    def _damaged(self, run_id: str, error: Mapping[str, Any]) -> Run:
        return damaged_run(
            self._handle(run_id), self._folder(run_id), str(error["message"]), float(error.get("changed") or 0.0)
        )

    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        """See :meth:`Backend.poll`; of a run that cannot be read, `absence_reasons` has the reason."""
        answer = await self._transport.call("poll", {"run_ids": list(run_ids)})
        for run_id in run_ids:
            self.absence_reasons.pop(run_id, None)
        self.absence_reasons |= {
            run_id: str(error["message"]).rstrip(".") for run_id, error in answer["errors"].items()
        }
        return {run_id: status_of(state) for run_id, state in answer["runs"].items()}

    async def find(self, run_id: str) -> Run | None:
        """See :meth:`Backend.find`."""
        answer = await self._transport.call("list", {"full": True, "run_ids": [run_id]})
        if (error := answer["errors"].get(run_id)) is not None and not _is_damage(error):
            raise ProtocolError(str(error["message"]))
        return next(iter(self._rows(answer)), None)

    def _rows(self, answer: Mapping[str, Any]) -> Iterator[Run]:
        """Yield the runs in a reply to ``list``, including damaged ones."""
        for row in answer["runs"]:
            if valid_run_id(row["run"]):  # it becomes the name of a folder here
                yield self._run(row["run"], row["job"], row["status"])
        for run_id, error in answer["errors"].items():
            if valid_run_id(run_id) and _is_damage(error):
                yield self._damaged(run_id, error)

    async def list(self, known: Collection[str] = ()) -> tuple[Collection[str], Sequence[Run | PastRun]]:
        """See :meth:`Backend.list`; directories of known runs are not read."""
        answer = await self._transport.call("list", {"full": True, "but": sorted(known)})
        # An older agent does not support `but`: it returns all runs and no list of ids.
        ids = answer.get("ids", [row["run"] for row in answer["runs"]])
        known_ids, runs = frozenset(known), []
        for run in self._rows(answer):
            if run.run_id not in known_ids:
                runs.append(run)
                if not len(runs) % _RUNS_PER_TURN:
                    await asyncio.sleep(0)  # let charts update during a long list
        return frozenset([*ids, *answer["errors"]]), runs

    async def cancel(self, run_id: str) -> None:
        """See :meth:`Backend.cancel`."""
        await self._transport.call("cancel", {"run": run_id})

    async def delete(self, run_id: str) -> None:
        """See :meth:`Backend.delete`."""
        await self._transport.call("delete", {"run": run_id})

    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """See :meth:`Backend.read`."""
        path = f"{self._folder(run_id)}/{file_of(stream)}"
        try:
            if offset < 0:
                offset = max(0, await self._transport.size(path) + offset)
            data = await self._transport.read_from(path, offset, limit)
        except OSError as error:
            raise DamagedRun(_unreadable(path, error)) from error
        return Chunk(data, offset + len(data))

    def events(self) -> RunEvents:
        """See :meth:`Backend.events`."""
        return _FolderRunEvents(self._transport.events(), self._folder)

    async def close(self) -> None:
        """See :meth:`Backend.close`."""
        await self._transport.close()


class _FolderRunEvents(RunEvents):
    """Events of runs, from changes of their folders."""

    def __init__(self, changes: FileEvents, folder: Callable[[str], str]) -> None:
        self._changes, self._folder = changes, folder

    async def wait(self, run_ids: Sequence[str], viewed: Sequence[str], timeout: float) -> StreamChanges:
        owner: dict[str, tuple[str, set[str]]] = {}
        for run_id in {**dict.fromkeys(run_ids), **dict.fromkeys(viewed)}:
            owner[self._folder(run_id)] = run_id, {STATUS}
        for run_id in viewed:
            for stream in STREAMS:
                path = os.path.dirname(f"{self._folder(run_id)}/{file_of(stream)}")
                owner.setdefault(path, (run_id, set()))[1].add(stream)
            owner[f"{self._folder(run_id)}/{PICTURES}"] = run_id, {PICTURES}
        events: dict[str, set[str]] = {}
        for path in await self._changes.wait(list(owner), timeout):
            run_id, streams = owner[path]
            events.setdefault(run_id, set()).update(streams)
        return events

    def close(self) -> None:
        self._changes.close()


def _absent(modules: Sequence[str]) -> PreflightError:
    packages = " ".join(f"--pip {package_of(name)}" for name in modules)
    return PreflightError(
        f"{', '.join(modules)} {'is' if len(modules) == 1 else 'are'} not installed here.",
        hint=f"Add to the line: {packages}",
        code="interpreter.missing_modules",
        details={"modules": list(modules)},
    )


class LocalFiles(AgentFiles):
    """Files of the runs of this machine."""

    _transport: LocalTransport

    def sending(self, run_id: str) -> str:
        """See :meth:`TargetFiles.sending`."""
        copy = self._transport.copies.get(f"{self._transport.home}/staging/{run_id}")
        return copy.transfer.text if copy else ""


class LocalBackend(AgentBackend):
    """Backend of this machine, the built-in default target. Its list of ended runs comes from an index."""

    Target = LocalTarget

    def __init__(self, target: LocalTarget, loop: LoopThread, root: StateRoot) -> None:
        transport = LocalTransport(loop, root.path)
        files = LocalFiles(transport, self._folder, self._handle)
        super().__init__(target, loop, transport, target.python, files)
        self._index = PastRunIndex(root.path)

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`; notes files of a cell that the run does not keep.

        Raises
        ------
        PreflightError
            An interpreter other than the kernel's does not have what the script imports.
        """
        has_packages = environments.is_built(spec) or environments.is_image(spec)
        versions: tuple[str, ...] = ()
        if not has_packages and not spec.job_type:
            if (spec.python or self._machine.python) != sys.executable:
                versions = await self._check_interpreter(spec, snapshot)
            elif missing := await self._loop.offload(absent_modules, spec, snapshot):
                raise _absent(missing)
        plan = await super().plan(spec, snapshot, run_id)
        plan = msgspec.structs.replace(plan, notes=(*plan.notes, *versions)) if versions else plan
        if not spec.script or spec.source or not spec.notebook_dir:
            return plan
        paths = await self._loop.offload(kept_elsewhere, spec.script.encode())
        notes = [
            f"Line {path.line - spec.line_offset} of the cell names {path.text!r}, which is in the notebook's folder."
            " To keep the file with the run: os.environ['AML_OUTPUT_DIR']"
            for path in paths[:1]
        ]
        return msgspec.structs.replace(plan, notes=(*plan.notes, *notes))

    def complete_spec(self, spec: JobSpec) -> JobSpec:
        """See :meth:`Backend.complete_spec`; also makes the path of the interpreter absolute.

        Raises
        ------
        SpecError
            There is no such interpreter.
        """
        if spec.python and not environments.is_image(spec):
            spec = msgspec.structs.replace(spec, python=_absolute(spec.python, spec.notebook_dir))
        return super().complete_spec(spec)

    async def launch(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """See :meth:`Backend.launch`; another interpreter gets no variables of this kernel's."""
        python = plan.spec.python or self._machine.python
        if python != sys.executable or environments.is_built(plan.spec):
            environ = {name: value for name, value in environ.items() if name not in _INTERPRETER_VARIABLES}
        return await super().launch(plan, environ, secrets)

    async def _sent_digest(self, snapshot: Snapshot, staging: str) -> str:
        """Return the digest of the copy: a file may have changed between the plan and the copy."""
        if all(isinstance(content, bytes) for content in snapshot.files.values()):
            return snapshot.digest
        return await self._loop.offload(digest_of, staging, list(snapshot.files))

    async def list(self, known: Collection[str] = ()) -> tuple[Collection[str], Sequence[Run | PastRun]]:
        """See :meth:`Backend.list`; ended runs have only the listed fields of their jobs."""
        scan = await self._loop.offload(self._index.scan, frozenset(known), self.target.name)
        runs: list[Run | PastRun] = [*scan.runs]
        others = list(scan.others)
        for start in range(0, len(others), _MAX_RUNS_PER_CALL):
            some = others[start : start + _MAX_RUNS_PER_CALL]
            answer = await self._transport.call("list", {"full": True, "run_ids": some})
            runs += await self._loop.offload(self._listed, answer, scan.others)
        return frozenset(scan.ids), sorted(runs, key=lambda run: run.created)

    def _listed(self, answer: Mapping[str, Any], keys: Mapping[str, Key]) -> Sequence[Run]:
        """Return the runs in a reply to ``list`` with listed fields; index ended ones. Blocks on the disk."""
        found = []
        for run in self._rows(answer):
            if run.status.state.terminal and not run.damaged:
                state = tracking_of(run.folder)
                run = listed_fields_of(msgspec.structs.replace(run, tracking=state) if state else run)
            found.append(run)
        self._index.add(found, keys)
        return found


def _absolute(python: str, folder: str) -> str:
    """Return the absolute path of an interpreter that is named by path, from `folder`, or as on the PATH."""
    path = os.path.expanduser(python)
    # A link stays one: an environment is found by the path of its link to the interpreter.
    found = shutil.which(os.path.abspath(os.path.join(folder, path)) if "/" in path else path)
    if found is None:
        raise SpecError(
            f"--python {python}: there is no such program on this machine.",
            hint="Give the path of an interpreter: --python .venv/bin/python",
            code="interpreter.unusable",
            field="python",
        )
    return found


def check_path(path: str, what: str, hint: str) -> None:
    """Refuse a folder whose name is not UTF-8: MLflow cannot log or store anything there.

    Raises
    ------
    SpecError
        One sentence that names the folder.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise SpecError(
            f"The {what} {shown} has a name that is not UTF-8, which MLflow cannot use.", hint=hint
        ) from None


def _unreadable(path: str, error: OSError) -> str:
    return f"Cannot read {path}: {error.strerror or error}. The other files of the run are not affected."


def _is_damage(error: Mapping[str, Any]) -> bool:
    return error.get("type") == DamagedRun.__name__
