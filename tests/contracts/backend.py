"""What every backend must do. An implementation inherits this and supplies fixtures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import AmlTrainError, CommandError, ResultMissing
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, advances
from jupyter_amltrain.text import new_run_id

T = TypeVar("T")
Call = Callable[[Coroutine[Any, Any, T]], T]
DEADLINE = 60.0


class BackendContract:
    """Subclasses define the fixtures ``loop`` and ``backend``, and `spec`/`snapshot` makers.

    `short` ends by itself within seconds, `long` lives until it is canceled.
    """

    #: Whether a check tells the processors and memory of the target.
    describes_machine = True

    def short(self) -> tuple[JobSpec, Snapshot]:
        raise NotImplementedError

    def long(self) -> tuple[JobSpec, Snapshot]:
        raise NotImplementedError

    @pytest.fixture
    def call(self, loop: LoopThread) -> Call[Any]:
        return lambda coro: loop.call(coro, DEADLINE)

    async def _launch(self, backend: Backend, job: tuple[JobSpec, Snapshot]) -> Run:
        plan = await backend.plan(*job, new_run_id(job[0].name))
        return await backend.launch(plan, {"PATH": "/usr/bin:/bin"}, {})

    async def _until_ended(self, backend: Backend, run_id: str) -> list[RunState]:
        seen: list[RunState] = []
        changes = backend.events()
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            status = (await backend.poll((run_id,)))[run_id]
            if not seen or seen[-1] is not status.state:
                seen.append(status.state)
            if status.state.terminal:
                return seen
            await changes.wait((run_id,), (), 0.5)
        raise AssertionError(f"not ended: {seen}")

    def test_plan_sends_nothing_and_contains_no_secret(self, call: Call[Any], backend: Backend) -> None:
        spec, snapshot = self.short()
        plan = call(backend.plan(spec, snapshot, "planned-1"))
        assert plan.request and "s3cret" not in repr(plan.request)
        assert call(backend.poll(("planned-1",))) == {}

    def test_run_states_advance_to_end(self, call: Call[Any], backend: Backend) -> None:
        run = call(self._launch(backend, self.short()))
        assert run.status.state in (RunState.PREPARING, RunState.QUEUED, RunState.RUNNING)
        seen = call(self._until_ended(backend, run.run_id))
        assert seen[-1] is RunState.COMPLETED
        assert all(advances(a, b) for a, b in zip(seen, seen[1:], strict=False))

    def test_poll_of_unknown_id_is_empty(self, call: Call[Any], backend: Backend) -> None:
        assert call(backend.poll(("nobody-22222",))) == {}
        assert call(backend.find("nobody-22222")) is None

    def test_launched_run_is_found_and_listed_unchanged(self, call: Call[Any], backend: Backend) -> None:
        run = call(self._launch(backend, self.short()))
        found = call(backend.find(run.run_id))
        assert found is not None and found.handle == run.handle and found.spec == run.spec
        assert run.folder and found.folder == run.folder  # a run without a folder is not watched
        assert run.handle in [other.handle for other in call(backend.list())[1]]
        call(self._until_ended(backend, run.run_id))

    def test_cancel_repeated_ends_run_once(self, call: Call[Any], backend: Backend) -> None:
        run = call(self._launch(backend, self.long()))
        for _ in range(3):
            call(backend.cancel(run.run_id))
        assert call(self._until_ended(backend, run.run_id))[-1] is RunState.CANCELED
        call(backend.cancel(run.run_id))

    def test_delete_of_live_run_is_refused(self, call: Call[Any], backend: Backend) -> None:
        run = call(self._launch(backend, self.long()))
        with pytest.raises(CommandError):
            call(backend.delete(run.run_id))
        call(backend.cancel(run.run_id))
        call(self._until_ended(backend, run.run_id))
        call(backend.delete(run.run_id))
        assert call(backend.find(run.run_id)) is None

    def test_read_in_parts_returns_all_bytes_once(self, call: Call[Any], backend: Backend) -> None:
        run = call(self._launch(backend, self.short()))

        async def collect() -> bytes:
            parts, offset = [], 0
            await self._until_ended(backend, run.run_id)
            while (chunk := await backend.read(run.run_id, "log", offset, 5)).data:
                assert chunk.offset == offset + len(chunk.data)
                offset = chunk.offset
                parts.append(chunk.data)
            return b"".join(parts)

        whole = call(asyncio.wait_for(collect(), DEADLINE))
        assert whole
        again = call(backend.read(run.run_id, "log", 0))
        assert again.data == whole
        end = call(backend.read(run.run_id, "log", -4))
        assert end.data == whole[-4:] and end.offset == len(whole)

    def test_missing_output_is_error_value(self, call: Call[Any], backend: Backend) -> None:
        run = call(self._launch(backend, self.short()))
        call(self._until_ended(backend, run.run_id))
        values = call(backend.files.outputs(run.run_id, ("never_set",)))
        assert isinstance(values["never_set"], ResultMissing)

    def test_stream_of_each_node_is_readable(self, call: Call[Any], backend: Backend) -> None:
        run = call(self._launch(backend, self.short()))
        call(self._until_ended(backend, run.run_id))
        nodes = call(backend.poll((run.run_id,)))[run.run_id].nodes
        assert nodes >= 1
        for number in range(nodes):
            data = call(backend.read(run.run_id, f"telemetry/{number}", 0)).data
            assert data[:1] in (b"{", b"")  # a run may be shorter than a tick
        assert call(backend.read(run.run_id, "telemetry", 0)) == call(backend.read(run.run_id, "telemetry/0", 0))
        for stream in (f"telemetry/{nodes}", "minutes/77", "summary/77"):  # there is none, or none yet
            assert call(backend.read(run.run_id, stream, 0)).data == b""
        assert call(backend.read(run.run_id, "log/0", 0)) == call(backend.read(run.run_id, "log", 0))
        assert call(backend.read(run.run_id, "log/7", 0)).data == b""  # a run of one process
        for stream in ("metrics/1", "log/", "telemetry/", "telemetry/-1", "telemetry/../1", "nothing"):
            with pytest.raises(CommandError, match="There is no stream"):
                call(backend.read(run.run_id, stream, 0))

    def test_monitor_is_read_like_run(self, call: Call[Any], backend: Backend) -> None:
        monitors = backend.monitors
        if monitors is None:
            assert call(backend.read("monitors/watch-1", "telemetry", 0)).data == b""
            return

        async def first_tick() -> bytes:
            while True:
                data = (await backend.read("monitors/watch-1", "telemetry", 0)).data
                if data.count(b"\n") > 1:
                    return data
                await asyncio.sleep(0.01)

        assert call(backend.read("monitors/watch-1", "telemetry", 0)).data == b""
        folder = call(monitors.start("watch-1", None, 0.1))
        assert folder.endswith("monitors/watch-1")
        header = json.loads(call(asyncio.wait_for(first_tick(), DEADLINE)).split(b"\n")[0])
        assert header["columns"][:2] == ["seq", "t"] and header["period"] == 0.1
        assert call(monitors.start("watch-1", None, 0.1)) == folder
        call(monitors.stop("watch-1"))
        call(monitors.stop("watch-1"))
        assert call(backend.read("monitors/watch-1", "telemetry", 0)).data == b""

    def test_monitor_invalid_request_is_refused(self, call: Call[Any], backend: Backend) -> None:
        monitors = backend.monitors
        if monitors is not None:
            with pytest.raises(CommandError, match="GPU 99"):
                call(monitors.start("watch-2", [99], 1.0))
        for name in ("", "..", "a/b", "../runs/x"):
            if monitors is not None:
                with pytest.raises(CommandError, match="not a monitor id"):
                    call(monitors.start(name, None, 1.0))
            with pytest.raises(CommandError, match="not a monitor id"):
                call(backend.read(f"monitors/{name}", "telemetry", 0))

    def test_launch_with_taken_id_is_refused(self, call: Call[Any], backend: Backend) -> None:
        async def twice() -> None:
            spec, snapshot = self.short()
            plan = await backend.plan(spec, snapshot, "clash-22222")
            await backend.launch(plan, {}, {})
            await backend.launch(plan, {}, {})

        with pytest.raises(AmlTrainError, match="clash-22222"):
            call(twice())
        call(self._until_ended(backend, "clash-22222"))

    def test_files_of_an_unknown_run_are_absent(self, call: Call[Any], backend: Backend) -> None:
        assert call(backend.files.local_copy("nobody-22222")) is None
        assert call(backend.files.read("nobody-22222", "job.json")) == b""
        assert not call(backend.files.list("nobody-22222", "artifacts"))
        assert call(backend.files.read_part("nobody-22222", "job.json", 0, 8)) == b""
        assert list(call(backend.files.import_states(["nobody-22222"]))) == [""]

    def test_check_reports_resources(self, call: Call[Any], backend: Backend) -> None:
        info = call(backend.check())
        assert info.target == backend.target.name
        if self.describes_machine:
            assert info.cpus and info.memory and info.slots["cpu"]["total"] >= 1
        assert info.survives["kernel"]["answer"] in ("yes", "no", "unknown")
