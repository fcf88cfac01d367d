"""What is made of answers that a job, or the whole workspace, is not there: once is nothing, for long is the end."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_amltrain.azure import errors, job_tracker, polling
from jupyter_amltrain.azure import status as azure_status
from jupyter_amltrain.azure.service import jobs
from jupyter_amltrain.azure.targets import InstanceTarget
from jupyter_amltrain.errors import AuthenticationError, TargetUnreachable, WorkspaceGone
from jupyter_amltrain.schema.run import RunState

ROW = {"name": "a", "status": "Running"}
WORKSPACE = (
    b'{"error": {"code": "ResourceNotFound", "message": "The Resource'
    b" 'Microsoft.MachineLearningServices/workspaces/w' under resource group 'g' was not found.\"}}"
)


class Jobs(job_tracker.JobTracker):
    """Jobs of a service that answers what a test wants."""

    def __init__(self) -> None:
        super().__init__(self)  # type: ignore[arg-type]  # it is its compute, too
        self.answer: Any = {}
        self.watched[0] = frozenset("a")  # asked every second

    loop = root = target = None

    async def request(self, op: str, progress: Any = None, timeout: float = 0, **payload: Any) -> Any:
        assert op == "jobs.poll"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def look(self, answer: Any) -> Any:
        """The rows of the run ``a``, or the error."""
        self.answer = answer
        try:
            # In a thread of its own: this one may have the browser's loop already.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(asyncio.run, self.rows(["a"])).result()
        except Exception as error:
            return error


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=1000.0, time=time.time)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(polling, "time", made)
    monkeypatch.setattr(job_tracker, "time", made)
    return made


def test_workspace_missing_for_long_has_no_jobs(clock: SimpleNamespace) -> None:
    backend, gone = Jobs(), WorkspaceGone("There is no workspace 'w'.")
    assert backend.look({"a": ROW}) == {"a": ROW}
    for _ in range(6):
        clock.now += 1.5
        assert backend.look(gone) is gone
    clock.now += 3.0
    assert backend.look(gone) == {}
    clock.now += 1.5
    assert backend.look({"a": ROW}) == {"a": ROW}  # somebody has restored it
    clock.now += 6.0
    assert backend.look(gone) is gone


def test_workspace_missing_once_after_sleep_is_not_gone(clock: SimpleNamespace) -> None:
    backend, gone = Jobs(), WorkspaceGone("There is no workspace 'w'.")
    assert backend.look(gone) is gone
    clock.now += 1000.0  # the computer slept
    assert backend.look(gone) is gone
    clock.now += 2.0
    assert isinstance(backend.look(TargetUnreachable("no way")), TargetUnreachable)
    assert backend.look(gone) is gone
    assert backend.look(gone) == {}


def test_job_missing_briefly_keeps_last_row(clock: SimpleNamespace) -> None:
    backend = Jobs()
    assert backend.look({"a": ROW}) == {"a": ROW}
    clock.now += 6.0
    assert backend.look({}) == {"a": ROW}
    clock.now += 5.0
    assert backend.look({}) == {"a": ROW}
    newer = {**ROW, "revision": 2}
    assert backend.look({"a": newer}) == {"a": newer}  # it is asked at once again
    for _ in range(4):
        clock.now += 3.0
        found = backend.look({})
    assert found == {"a": newer}
    clock.now += 3.0
    assert backend.look({}) == {}


class OnInstance(Jobs):
    """Jobs of an instance whose state a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.target = self.azure = InstanceTarget(name="mine", size="S")  # type: ignore[assignment]
        self.compute: Any = {"state": "stopped"}

    async def request(self, op: str, progress: Any = None, timeout: float = 0, **payload: Any) -> Any:
        if op == "computes.get":
            if isinstance(self.compute, Exception):
                raise self.compute
            return self.compute
        return await super().request(op, progress, timeout, **payload)


@pytest.mark.parametrize(
    ("compute", "word"),
    [({"state": "stopped"}, "start mine"), ({"state": "starting"}, "starting"), (None, "deleted"),
     ({"state": "ready"}, ""), (TargetUnreachable("no way"), "")],
)  # fmt: skip
def test_queued_job_on_instance_names_instance_state(clock: SimpleNamespace, compute: Any, word: str) -> None:
    backend = OnInstance()
    backend.compute = compute
    queued = {"name": "a", "status": "Queued"}
    status = azure_status.status_of(backend.look({"a": queued})["a"])
    assert status is not None and status.state is RunState.QUEUED
    assert word in status.detail if word else status.detail == "waits for a machine"
    clock.now += 6.0
    backend.compute = {"state": "ready"}
    status = azure_status.status_of(backend.look({"a": queued})["a"])
    assert status is not None and status.detail == "waits for a machine"
    clock.now += 6.0
    assert backend.look({"a": ROW}) == {"a": ROW}  # it runs: nothing to say


class Service:
    """Run history and ARM of a workspace."""

    name, history = "lab", "history"

    def __init__(self, history: int, arm: tuple[int, bytes]) -> None:
        self.data = SimpleNamespace(get=lambda path, **_: self._refuse(history, b""))
        self.arm = SimpleNamespace(get=lambda path, **_: self._arm(*arm))

    def _arm(self, status: int, body: bytes) -> Any:
        return self._refuse(status, body) if errors.no_workspace(status, body) else SimpleNamespace(status=status)

    def _refuse(self, status: int, body: bytes) -> Any:
        raise errors.error_of_answer(status, {}, body, where="lab")


@pytest.mark.parametrize("status", [403, 404, 410])
def test_poll_of_deleted_workspace_raises_workspace_gone(status: int) -> None:
    call: Any = SimpleNamespace(cloud=SimpleNamespace(workspace=lambda name: Service(status, (404, WORKSPACE))))
    with pytest.raises(WorkspaceGone, match=r"'w'.*disconnect lab"):
        jobs.poll(call, workspace="lab", names=["a"])


def test_poll_of_forbidden_workspace_raises_authentication_error() -> None:
    call: Any = SimpleNamespace(cloud=SimpleNamespace(workspace=lambda name: Service(403, (404, b""))))
    with pytest.raises(AuthenticationError):
        jobs.poll(call, workspace="lab", names=["a"])


def test_missing_resource_group_is_workspace_gone() -> None:
    body = b'{"error": {"code": "ResourceGroupNotFound", "message": "Resource group \'g\' could not be found."}}'
    assert errors.no_workspace(404, body) and not errors.no_workspace(403, body)
    error = errors.error_of_answer(404, {}, body, where="lab")
    assert isinstance(error, WorkspaceGone) and "resource group 'g'" in str(error)


class History:
    """Run history with one run: its details, and its record with the fields that details have not."""

    name, history = "lab", "history"

    def __init__(self, name: str) -> None:
        self.run, self.requests = name, list[str]()
        self.status, self.reasons = "Queued", dict[str, Any]()
        self.limit: str | None = None
        self.data = self.arm = SimpleNamespace(get=self.get)

    def get(self, path: str, **_: Any) -> Any:
        self.requests.append(path.rpartition("/")[2])
        found: dict[str, Any] = {"runId": self.run, "status": self.status}
        if path.startswith("jobs/"):
            found = {"name": self.run, "properties": {"status": self.status, "limits": {"timeout": self.limit}}}
        elif not path.endswith("/details"):
            found |= self.reasons
        return SimpleNamespace(status=200, json=found)

    def polled(self) -> tuple[dict[str, Any], list[str]]:
        """Return the row, and what was asked for it."""
        self.requests.clear()
        call: Any = SimpleNamespace(cloud=SimpleNamespace(workspace=lambda name: self))
        return jobs.poll(call, workspace="lab", names=[self.run])[self.run], list(self.requests)


@pytest.fixture
def history(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> History:
    from jupyter_amltrain.azure.service import links

    monkeypatch.setattr(links, "links_of", lambda place, row: [])
    return History(request.node.name)


def test_poll_of_waiting_run_reads_reason(history: History) -> None:
    history.reasons = {"queueingInfo": {"code": "Queued", "message": "no quota is left"}}
    row, requests = history.polled()
    assert row["why"] == "no quota is left" and requests == ["details", history.run]
    row, requests = history.polled()
    assert row["why"] == "no quota is left" and requests == [history.run]  # no more requests than before
    history.status = "Running"
    row, requests = history.polled()
    assert row["status"] == "Running" and requests == [history.run, "details"]
    assert history.polled()[1] == ["details"]


def test_poll_of_run_canceled_at_limit_is_timeout(history: History) -> None:
    history.status, history.reasons = "Canceled", {"cancelationReason": "exceeded its maximum run duration"}
    status = azure_status.status_of(history.polled()[0])
    assert status is not None and status.reason == "timeout"
    history.reasons, history.limit = {"startTimeUtc": "2026-01-01T00:00:00Z"}, "PT1M30S"
    assert history.polled()[0]["limit"] == 90.0


_PARENT = "Can not perform requested operation on nested resource. Parent resource 'w' not found."
_BY_PATH = "Failed to perform 'read' on resource(s) of type 'workspaces/jobs', because the parent resource '{}' could"
_ID = "/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/w"


@pytest.mark.parametrize(
    ("message", "gone"),
    [(_PARENT, True), (_BY_PATH.format(_ID), True), (_BY_PATH.format(f"{_ID}/codes/c"), False)],
)
def test_missing_parent_resource_is_classified(message: str, gone: bool) -> None:
    body = json.dumps({"error": {"code": "ParentResourceNotFound", "message": message}}).encode()
    assert errors.no_workspace(404, body) is gone
    error = errors.error_of_answer(404, {}, body, where="lab")
    assert isinstance(error, WorkspaceGone) is gone and "\n" not in str(error)


def test_cancel_in_deleted_workspace_fails() -> None:
    body = json.dumps({"error": {"code": "ParentResourceNotFound", "message": _PARENT}}).encode()
    service = Service(404, (404, body))
    service.arm.post = lambda path, ok=(), **_: service._arm(404, body)
    call: Any = SimpleNamespace(cloud=SimpleNamespace(workspace=lambda name: service))
    with pytest.raises(WorkspaceGone):
        jobs.cancel(call, workspace="lab", name="a")


def test_preempted_job_without_retry_is_failed() -> None:
    error = "PreemptionError: Nodes of this job got pre-empted. Check if the run has failed or restarted"
    status = azure_status.status_of({"name": "a", "status": "Failed", "error": error, "created": 1.0, "started": 2.0})
    assert status is not None and (status.state.value, status.reason) == ("failed", "preempted")
    status = azure_status.status_of({"name": "a", "status": "Queued", "attempt": 2})
    assert status is not None and status.state.value == "queued"
