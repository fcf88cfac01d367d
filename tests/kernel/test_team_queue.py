"""What waits for a team's server is sent in order, and one server delays no other."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError, StateError, TargetUnreachable
from jupyter_amltrain.kernel import team_queue
from jupyter_amltrain.kernel.team_queue import TeamQueue
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.tracking import team_ledger

AWAY, TEAM = "https://away", "https://team"


class Sender:
    """A process that sends; `errors` by server, one for each attempt."""

    def __init__(self, errors: dict[str, list[Exception]]) -> None:
        self.errors, self.sent = errors, list[str]()

    async def request(self, op: str, payload: dict[str, Any], timeout: float) -> None:
        entry = team_ledger.entry_of(payload["project"], payload["run_id"])
        if errors := self.errors.get(entry["uri"]):
            raise errors.pop(0)
        self.sent.append(entry["run"])
        team_ledger.update(payload["project"], entry["run"], state=team_ledger.SENT)

    async def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


def sent(
    loop: LoopThread, tmp_path: Path, runs: list[tuple[str, str]], errors: dict[str, list[Exception]]
) -> list[str]:
    """Send runs, given by id and server in the order of their submission, until nothing waits."""
    for number, (run_id, uri) in reversed([*enumerate(runs)]):
        team_ledger.add(str(tmp_path), run_id, f"local/{run_id}", uri, float(number))
    sender = Sender(errors)

    async def story() -> None:
        queue = TeamQueue(loop, StateRoot(tmp_path / "home"))
        queue._sender = sender  # type: ignore[assignment]
        queue.resume(str(tmp_path))
        while team_ledger.waiting(str(tmp_path)):
            await asyncio.sleep(0.01)
        await queue.close()

    loop.call(story(), 60)
    return sender.sent


def test_runs_are_sent_in_order_of_submission(loop: LoopThread, tmp_path: Path) -> None:
    assert sent(loop, tmp_path, [("a", TEAM), ("b", TEAM), ("c", TEAM)], {}) == ["a", "b", "c"]


@pytest.mark.parametrize("error", [TargetUnreachable("away"), StateError("locked")])
def test_server_that_is_away_delays_its_own_runs_only(
    loop: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(team_queue, "MIN_PAUSE_S", 0.05)
    found = sent(loop, tmp_path, [("a", AWAY), ("b", TEAM), ("c", AWAY)], {AWAY: [error, error]})
    assert found == ["b", "a", "c"]


def test_server_that_is_away_for_an_hour_gets_each_run_once_in_order(
    loop: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = [team_queue.MIN_PAUSE_S]
    while sum(pauses) < 3600:
        pauses.append(min(2 * pauses[-1], team_queue.MAX_PAUSE_S))
    monkeypatch.setattr(team_queue, "MIN_PAUSE_S", team_queue.MIN_PAUSE_S / 10_000)
    monkeypatch.setattr(team_queue, "MAX_PAUSE_S", team_queue.MAX_PAUSE_S / 10_000)
    away: list[Exception] = [TargetUnreachable("away")] * len(pauses)
    assert sent(loop, tmp_path, [("a", TEAM), ("b", TEAM)], {TEAM: away}) == ["a", "b"]
    assert len(pauses) < 30  # a server that is away is left alone


def test_run_that_ends_on_a_full_disk_is_sent_when_there_is_space(
    loop: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_queue, "MIN_PAUSE_S", 0.01)
    full = [OSError(errno.ENOSPC, "no space"), StateError("no space")]
    add = team_ledger.add

    def add_or_fail(*entry: Any) -> None:
        if full:
            raise full.pop()
        add(*entry)

    monkeypatch.setattr(team_ledger, "add", add_or_fail)
    sender = Sender({})
    run = Run(
        handle=RunHandle("local/a"),
        spec=JobSpec(name="a", tracking_uri=TEAM),
        status=RunStatus(state=RunState.COMPLETED),
        created=1.0,
        project=str(tmp_path),
        tracking_id="a",
    )

    async def story() -> None:
        queue = TeamQueue(loop, StateRoot(tmp_path / "home"))
        queue._sender = sender  # type: ignore[assignment]
        queue.add(run)
        while not sender.sent:
            await asyncio.sleep(0.01)
        await queue.close()

    loop.call(story(), 60)
    assert sender.sent == ["a"] and not full


def test_error_that_cannot_be_noted_on_a_full_disk_does_not_end_the_queue(
    loop: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_queue, "MIN_PAUSE_S", 0.01)
    update, full = team_ledger.update, [OSError(errno.ENOSPC, "no space")]

    def update_or_fail(project: str, run_id: str, **changes: Any) -> None:
        if full and "error" in changes:
            raise full.pop()
        update(project, run_id, **changes)

    monkeypatch.setattr(team_ledger, "update", update_or_fail)
    assert sent(loop, tmp_path, [("a", TEAM), ("b", TEAM)], {TEAM: [TargetUnreachable("away")]}) == ["a", "b"]
    assert not full


def test_run_that_a_server_refuses_lets_later_ones_pass(loop: LoopThread, tmp_path: Path) -> None:
    assert sent(loop, tmp_path, [("a", TEAM), ("b", TEAM)], {TEAM: [CommandError("too large")]}) == ["b"]
    entry = team_ledger.entry_of(str(tmp_path), "a")
    assert entry["state"] == team_ledger.REFUSED and "too large" in team_ledger.text_of(entry)


def test_sent_run_is_not_sent_again_but_to_another_server(tmp_path: Path) -> None:
    project = str(tmp_path)
    team_ledger.add(project, "a", "local/a", TEAM, 1.0)
    team_ledger.update(project, "a", state=team_ledger.SENT, experiment="1", there="x")
    team_ledger.add(project, "a", "local/a", TEAM, 1.0)
    assert team_ledger.waiting(project) == []
    assert team_ledger.page_of(team_ledger.entry_of(project, "a")) == f"{TEAM}/#/experiments/1/runs/x"
    team_ledger.add(project, "a", "local/a", AWAY, 1.0)
    assert [entry["uri"] for entry in team_ledger.waiting(project)] == [AWAY]


def test_damaged_entry_is_skipped(tmp_path: Path) -> None:
    team_ledger.add(str(tmp_path), "a", "local/a", TEAM, 1.0)
    (tmp_path / ".amltrain" / "team" / "b.json").write_text("{")
    assert [entry["run"] for entry in team_ledger.waiting(str(tmp_path))] == ["a"]
