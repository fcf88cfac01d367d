"""What pages hear: snapshot, changes, beats; nothing while hidden; who is gone is forgotten."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from jupyter_amltrain.azure.workspace_file import WorkspaceFacts, WorkspaceFile
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.frontend import clients, events
from jupyter_amltrain.frontend.protocol import Beat, Changes, Gpus, StateSnapshot
from jupyter_amltrain.state_dir import StateRoot
from tests.helpers import until
from tests.past_runs import write_runs

from .event_harness import TARGETS, EventHarness, house

__all__ = ["house"]


def test_new_client_gets_snapshot_then_changes_without_gap(house: EventHarness) -> None:
    before = house.submit("endless", "before")
    snapshot = house.open()
    assert snapshot.current == "endless" and [row.handle for row in snapshot.runs] == [before]
    assert {row.name for row in snapshot.targets} == {"local", *TARGETS}
    later = house.submit("quick", "later")
    until(lambda: later in house.rows() and house.rows()[later].state == "completed")
    row = house.rows()[later]
    assert row.name == "later" and row.target == "quick" and row.again and row.ended is not None
    assert not house.ask().snapshot  # the same again, and nothing is lacking
    house.call(house.controller.delete(later))
    until(lambda: later not in house.rows())
    assert [event.seq for _, event, _ in house.sent["c"]] == list(range(len(house.sent["c"])))


def test_visible_live_run_streams_are_read(house: EventHarness) -> None:
    handle = house.submit("endless")
    house.open()
    until(lambda: house.rows()[handle].known and house.rows()[handle].metric == "loss" and house.rows()[handle].spark)
    assert house.rows()[handle].gpus == 4
    house.ask(shown="")
    until(lambda: house.on(lambda: house.controller.entry(handle).viewers) == 0)


def test_changes_are_coalesced_to_two_per_second(house: EventHarness) -> None:
    house.open()
    handles = [house.submit("endless", f"many-{i}") for i in range(30)]
    until(lambda: all(h in house.rows() and house.rows()[h].spark for h in handles[-5:]))
    times = [at for at, event, _ in house.sent["c"] if isinstance(event, Changes)]
    assert all(b - a > 0.4 for a, b in zip(times, times[1:], strict=False)), times


def test_sequence_gap_or_reshown_panel_gets_snapshot(house: EventHarness) -> None:
    house.open()
    house.submit("endless")
    until(lambda: house.heard(Changes))
    assert house.ask(seq=-1).snapshot
    until(lambda: len(house.heard(StateSnapshot)) == 2)
    assert not house.ask(shown="status").snapshot
    assert house.ask(shown="panel").snapshot
    until(lambda: len(house.heard(StateSnapshot)) == 3)


def test_event_in_flight_is_no_gap_and_lost_event_is(house: EventHarness) -> None:
    house.open()
    house.submit("endless")
    until(lambda: house.heard(Changes))
    seen = len(house.sent["c"]) - 2
    assert not house.ask(seq=seen).snapshot
    until(lambda: any(event.renew for event in house.heard(Changes)), "the question")
    assert house.ask(seq=seen).snapshot  # still: it was lost


@pytest.mark.thorough
def test_status_client_gets_only_state_changes(house: EventHarness) -> None:
    house.open(shown="status")
    handle, bad = house.submit("wide"), house.submit("bad")
    until(lambda: bad in house.rows() and house.rows()[bad].state == "failed")
    until(lambda: house.rows()[handle].started is not None)
    count = len(house.sent["c"])
    house.call(asyncio.sleep(2.5))  # its 64 GPUs tick ten times a second meanwhile
    assert len(house.sent["c"]) == count
    assert house.rows()[bad].attention.startswith("Exited")
    house.call(house.controller.cancel(handle))
    until(lambda: house.rows()[handle].state == "canceled")


def test_target_row_counts_runs(house: EventHarness) -> None:
    def counts() -> tuple[int, int]:
        found = (0, 0)
        for _, event, _ in list(house.sent["c"]):
            if isinstance(event, StateSnapshot | Changes) and event.targets is not None:
                found = next((row.running, row.queued) for row in event.targets if row.name == "endless")
        return found

    house.open()
    handles = [house.submit("endless") for _ in range(2)]
    until(lambda: counts() == (2, 0))
    house.call(house.controller.cancel(handles[0]))
    until(lambda: counts() == (1, 0))
    house.call(house.controller.cancel(handles[1]))
    until(lambda: counts() == (0, 0))


def test_two_clients_get_equal_rows(house: EventHarness) -> None:
    house.open("one")
    house.open("two")
    handle = house.submit("quick")
    until(lambda: all(handle in house.rows(c) and house.rows(c)[handle].ended for c in ("one", "two")))
    assert house.rows("one") == house.rows("two")


def test_current_target_change_is_sent(house: EventHarness) -> None:
    house.open()
    house.api.use("wide")
    until(lambda: any(event.current == "wide" for event in house.heard(Changes)))
    rows = next(event.targets for event in house.heard(Changes) if event.current == "wide")
    assert [row.name for row in rows if row.current] == ["wide"]


def test_workspace_change_is_sent(house: EventHarness, tmp_path: Path) -> None:
    assert house.open().workspaces == ()
    WorkspaceFile(StateRoot(tmp_path / "home")).put(
        WorkspaceFacts(name="lab", subscription="s", resource_group="g", workspace="w", user="ada")
    )
    until(lambda: [event for event in house.heard(Changes) if event.workspaces], "its row")
    (changes,) = [event for event in house.heard(Changes) if event.workspaces is not None]
    assert [(row.name, row.current, row.user) for row in changes.workspaces] == [("lab", True, "ada")]


def test_runs_of_other_kernels_are_sent_and_removed(house: EventHarness) -> None:
    house.open()
    root = house.controller.root.path
    (run_id,) = write_runs(root, 1, time.time())
    handle = f"local/{run_id}"
    until(lambda: handle in house.rows())
    (root / "runs" / run_id).rename(root / "runs" / f".gone-{run_id}")
    until(lambda: handle not in house.rows())


def test_past_run_details_are_sent_on_request(house: EventHarness) -> None:
    ids = write_runs(house.controller.root.path, 40, time.time(), gpus=2, seconds=120)
    house.open()
    until(lambda: len(house.rows()) == 40)
    assert not any(row.known for row in house.rows().values())
    handles = [f"local/{run_id}" for run_id in ids]
    house.ask(details=tuple(handles[:30]))
    until(lambda: all(house.rows()[handle].known for handle in handles[:30]))
    row = house.rows()[handles[0]]
    assert row.metric and row.value is not None and len(row.spark) > 10 and row.log_bytes > 0
    assert not any(house.rows()[handle].known for handle in handles[30:])
    assert house.on(lambda: house.controller.entry(handles[0]).telemetry.node(0).ticks) == 0  # nothing is kept


@pytest.mark.thorough
def test_loop_with_500_past_runs_is_not_blocked(house: EventHarness) -> None:
    write_runs(house.controller.root.path, 510, time.time(), gpus=1, seconds=5)
    stalls: list[float] = []

    async def watch() -> None:
        while True:
            # The processor time of the loop's own thread: other work on the machine does not count.
            begun = time.thread_time()
            await asyncio.sleep(0.001)
            stalls.append(time.thread_time() - begun)

    task = house.on(lambda: house.controller.loop.start(watch(), "stalls"))
    snapshot = house.open()
    until(lambda: len(house.rows()) >= 500)
    if len(snapshot.runs) == 500:
        assert snapshot.more == 10
    house.on(task.cancel)
    assert sorted(stalls)[-5] < 0.2  # tens of milliseconds on an idle machine


def test_heartbeat_is_sent_while_cell_runs_and_panel_visible(
    house: EventHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BEAT_INTERVAL_S", 0.05)
    house.open()
    house.open("hidden", shown="status")
    house.call(asyncio.sleep(0.3))
    assert not house.heard(Beat)
    house.busy = True
    until(lambda: len(house.heard(Beat)) > 3)
    assert not house.heard(Beat, "hidden")


def test_silent_client_is_pinged_then_dropped(house: EventHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_INTERVAL_S", 0.05)
    monkeypatch.setattr(clients, "SILENCE_S", 0.3)
    monkeypatch.setattr(clients, "REMOVE_AFTER_S", 0.5)
    house.open()
    house.busy = True
    until(lambda: any(event.renew for event in house.heard(Beat)))
    assert not house.ask().snapshot  # it is there
    until(lambda: "c" not in house.events._clients, "to be forgotten")
    assert sum(event.renew for event in house.heard(Beat)) >= clients.MAX_RENEWALS
    count = len(house.sent["c"])
    house.submit("quick")
    house.call(asyncio.sleep(1))
    assert len(house.sent["c"]) == count
    assert house.ask(seq=count - 1).snapshot  # it comes back


def test_events_request_invalid_is_refused(house: EventHarness) -> None:
    for comm in ("", "x" * 300, "a\nb"):
        with pytest.raises(CommandError) as caught:
            house.ask(comm, seq=-1)
        assert caught.value.code == "comm.invalid"


def test_closed_events_send_bye_and_nothing_more(house: EventHarness) -> None:
    house.open(gpus="target:wide")
    until(lambda: house.heard(Gpus))
    house.on(house.events.close)
    last = house.sent["c"][-1][1]
    assert isinstance(last, Changes) and last.renew  # who was loaded again meanwhile is found by asking
    count = len(house.sent["c"])
    house.submit("quick")
    house.call(asyncio.sleep(1))
    assert len(house.sent["c"]) == count
    assert not house.ask(seq=-1).snapshot


def test_unreadable_targets_file_is_shown_until_repaired(house: EventHarness, tmp_path: Path) -> None:
    house.open()
    path = tmp_path / "home" / "targets.json"
    good = path.read_text()
    path.write_text(json.dumps({"schema": 1, "current": "local", "targets": {"odd": {"kind": "fake"}}}))
    message = until(lambda: [e.trouble for e in house.heard(Changes) if e.trouble])[-1]
    assert str(path) in message and "remove that entry" in message
    path.write_text(good)
    until(lambda: any(event.trouble == "" for event in house.heard(Changes)))
