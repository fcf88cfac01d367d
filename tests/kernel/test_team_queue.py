"""What waits for a team's server is sent in order, and one server delays no other."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError, StateError, TargetUnreachable
from jupyter_amltrain.kernel import team_queue
from jupyter_amltrain.kernel.team_queue import TeamQueue
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.tracking import team_ledger, team_sender

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


def sent_by_command(
    loop: LoopThread, tmp_path: Path, run_ids: list[str], errors: dict[str, list[Exception]]
) -> tuple[list[str], dict[str, team_ledger.Entry]]:
    """Send runs of the ledger as the command does, by a queue whose own attempts have ended."""
    sender = Sender(errors)

    async def story() -> dict[str, team_ledger.Entry]:
        queue = TeamQueue(loop, StateRoot(tmp_path / "home"))
        queue._sender = sender  # type: ignore[assignment]
        entries = await queue.send(str(tmp_path), run_ids)
        await queue.close()
        return entries

    return sender.sent, loop.call(story(), 60)


def test_refused_run_is_sent_by_the_command(loop: LoopThread, tmp_path: Path) -> None:
    sent(loop, tmp_path, [("a", TEAM), ("b", TEAM)], {TEAM: [CommandError("too large")]})
    refused = team_ledger.entry_of(str(tmp_path), "a")
    assert [entry["run"] for entry in team_ledger.unsent(str(tmp_path))] == ["a"] and refused["error"]
    found, entries = sent_by_command(loop, tmp_path, ["a"], {})
    assert found == ["a"] and entries["a"]["state"] == team_ledger.SENT and not entries["a"]["error"]
    assert not team_ledger.unsent(str(tmp_path))


def test_run_that_is_refused_again_has_the_new_reason(loop: LoopThread, tmp_path: Path) -> None:
    sent(loop, tmp_path, [("a", TEAM)], {TEAM: [CommandError("too large")]})
    found, entries = sent_by_command(loop, tmp_path, ["a"], {TEAM: [CommandError("no such field")]})
    assert not found and entries["a"]["state"] == team_ledger.REFUSED and entries["a"]["error"] == "no such field"


def test_command_ends_when_the_server_of_its_runs_is_away(loop: LoopThread, tmp_path: Path) -> None:
    project = str(tmp_path)
    for number, (run_id, uri) in enumerate([("a", AWAY), ("b", TEAM), ("c", AWAY)]):
        team_ledger.add(project, run_id, f"local/{run_id}", uri, float(number))
        team_ledger.update(project, run_id, error="of an earlier attempt")
    found, entries = sent_by_command(loop, tmp_path, ["b", "c"], {AWAY: [TargetUnreachable("away")]})
    assert found == ["b"] and entries["b"]["state"] == team_ledger.SENT
    assert entries["c"]["state"] == team_ledger.WAITING and not entries["c"]["error"]
    assert team_ledger.entry_of(project, "a")["error"] == "away"


def test_run_that_is_added_at_the_end_of_an_attempt_is_sent(
    loop: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, sender = str(tmp_path), Sender({})
    team_ledger.add(project, "a", "local/a", TEAM, 1.0)

    async def story() -> None:
        queue = TeamQueue(loop, StateRoot(tmp_path / "home"))
        queue._sender = sender  # type: ignore[assignment]
        send_all = queue._send_all

        async def send_all_and_add(place: str) -> bool:
            is_empty = await send_all(place)
            if not team_ledger.entry_of(project, "b"):
                team_ledger.add(project, "b", "local/b", TEAM, 2.0)
                queue.resume(project)
            return is_empty

        monkeypatch.setattr(queue, "_send_all", send_all_and_add)
        queue.resume(project)
        while len(sender.sent) < 2:
            await asyncio.sleep(0.01)
        await queue.close()

    loop.call(story(), 60)
    assert sender.sent == ["a", "b"]


def test_refusal_names_the_command_that_sends_the_run_again() -> None:
    refused = OSError("experiments need a cost center")
    refused.response = SimpleNamespace(status_code=400)  # type: ignore[attr-defined]
    text = str(team_sender._explained(refused, TEAM, "local/a"))
    assert text.endswith("(400): experiments need a cost center. When that is solved: %aml_runs send local/a")


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
