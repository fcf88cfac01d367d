"""What pages hear: snapshot, changes, GPUs, beats; nothing while hidden; who is gone is forgotten."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jupyter_amltrain.answers.compute import ComputeAnswers
from jupyter_amltrain.panel import events as module
from jupyter_amltrain.panel import page as pages
from jupyter_amltrain.panel.events import Events
from jupyter_amltrain.panel.page import Page
from jupyter_amltrain.panel.protocol import Beat, Changes, Event, Gpus, Meter, Snapshot
from jupyter_amltrain.panel.protocol import Events as Wants
from jupyter_amltrain.spec.job import JobSpec
from tests.past_runs import write_runs
from tests.places import DEADLINE, api_of, until

TARGETS = {
    "endless": {"running": 600.0, "period": 0.1, "gpus": 4},
    "wide": {"running": 600.0, "period": 0.1, "gpus": 64},
    "two": {"running": 600.0, "period": 0.1, "gpus": 2, "nodes": 2},
    "quick": {"queued": 0.0, "running": 0.1},
    "bad": {"queued": 0.0, "running": 0.05, "exit_code": 3},
    "far": {"unreachable": True},
}


class House:
    """The events of one controller, entered from a test's thread."""

    def __init__(self, api: Any) -> None:
        self.api, self.controller = api, api.controller()
        self.sent: dict[str, list[tuple[float, Event, Sequence[bytes]]]] = {}
        self.busy = False
        self.events = Events(self.controller, ComputeAnswers(self.controller), lambda: self.busy, self._send)

    def _send(self, comm: str, event: Event, buffers: Sequence[bytes]) -> None:
        self.sent.setdefault(comm, []).append((time.monotonic(), event, buffers))

    def ask(self, comm: str = "c", **wants: Any) -> Any:
        wants.setdefault("seq", len(self.sent.get(comm, ())) - 1)
        return self.call(self.events.events(Wants(comm=comm, **wants)))

    def call(self, coro: Any) -> Any:
        return self.controller.loop.call(coro, DEADLINE)

    def on(self, fn: Callable[[], Any]) -> Any:
        async def go() -> Any:
            return fn()

        return self.call(go())

    def heard(self, kind: type[Any], comm: str = "c") -> list[Any]:
        return [event for _, event, _ in self.sent.get(comm, ()) if isinstance(event, kind)]

    def open(self, comm: str = "c", **wants: Any) -> Snapshot:
        assert self.ask(comm, seq=-1, **wants).snapshot
        return until(lambda: self.heard(Snapshot, comm), "a snapshot")[-1]

    def rows(self, comm: str = "c") -> dict[str, Any]:
        """Rows as a page has them now."""
        found: dict[str, Any] = {}
        for _, event, _ in list(self.sent.get(comm, ())):
            if isinstance(event, Snapshot):
                found = {row.handle: row for row in event.runs}
            elif isinstance(event, Changes):
                found |= {row.handle: row for row in event.runs}
                for handle in event.gone:
                    found.pop(handle)
        return found

    def submit(self, target: str, name: str = "story") -> str:
        handle: str = self.call(self.controller.submit(JobSpec(name=name, script="pass"), target))
        self.call(self.controller.accepted(handle))
        return handle


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with api_of(tmp_path) as api:
        rows = {name: {"kind": "fake", "name": name, **fields} for name, fields in TARGETS.items()}
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        (home / "targets.json").write_text(json.dumps({"schema": 1, "current": "endless", "targets": rows}))
        house = House(api)
        yield house
        house.on(house.events.close)


def test_a_new_comm_gets_a_snapshot_and_then_changes_without_a_gap(house: House) -> None:
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


def test_a_live_run_that_a_panel_shows_is_read(house: House) -> None:
    handle = house.submit("endless")
    house.open()
    until(lambda: house.rows()[handle].known and house.rows()[handle].metric == "loss" and house.rows()[handle].spark)
    assert house.rows()[handle].gpus == 4
    house.ask(shown="")
    until(lambda: house.on(lambda: house.controller.entry(handle).lookers) == 0)


def test_changes_are_coalesced_to_two_a_second(house: House) -> None:
    house.open()
    handles = [house.submit("endless", f"many-{i}") for i in range(30)]
    until(lambda: all(h in house.rows() and house.rows()[h].spark for h in handles[-5:]))
    times = [at for at, event, _ in house.sent["c"] if isinstance(event, Changes)]
    assert all(b - a > 0.4 for a, b in zip(times, times[1:], strict=False)), np.diff(times)


def test_a_gap_and_a_panel_that_is_shown_again_get_a_snapshot(house: House) -> None:
    house.open()
    house.submit("endless")
    until(lambda: house.heard(Changes))
    assert house.ask(seq=-1).snapshot
    until(lambda: len(house.heard(Snapshot)) == 2)
    assert not house.ask(shown="status").snapshot
    assert house.ask(shown="panel").snapshot
    until(lambda: len(house.heard(Snapshot)) == 3)


def test_what_is_on_its_way_is_no_gap_and_what_was_lost_is(house: House) -> None:
    house.open()
    house.submit("endless")
    until(lambda: house.heard(Changes))
    seen = len(house.sent["c"]) - 2
    assert not house.ask(seq=seen).snapshot
    until(lambda: any(event.renew for event in house.heard(Changes)), "the question")
    assert house.ask(seq=seen).snapshot  # still: it was lost


def test_status_hears_of_beginnings_ends_and_trouble_only(house: House) -> None:
    house.open(shown="status")
    handle, bad = house.submit("wide"), house.submit("bad")
    until(lambda: bad in house.rows() and house.rows()[bad].state == "failed")
    until(lambda: house.rows()[handle].started is not None)
    count = len(house.sent["c"])
    house.call(asyncio.sleep(2.5))  # its 64 GPUs tick ten times a second meanwhile
    assert len(house.sent["c"]) == count
    assert house.rows()[bad].attention.startswith(f"{bad} failed")
    house.call(house.controller.cancel(handle))
    until(lambda: house.rows()[handle].state == "canceled")


def test_two_pages_get_the_same(house: House) -> None:
    house.open("one")
    house.open("two")
    handle = house.submit("quick")
    until(lambda: all(handle in house.rows(c) and house.rows(c)[handle].ended for c in ("one", "two")))
    assert house.rows("one") == house.rows("two")


def ticks(house: House, comm: str = "c") -> tuple[Gpus, dict[str, np.ndarray]]:
    """The first event of GPUs and all that came after it, as tables."""
    first, found = None, {}
    for _, event, buffers in list(house.sent[comm]):
        if not isinstance(event, Gpus):
            continue
        if event.first:
            first, found = event, {"t": [], "util": [], "memory": [], "host": []}
        if first is None or not buffers:
            continue
        g = len(first.labels)
        found["t"].append(np.frombuffer(buffers[0], np.float64))
        found["util"].append(np.frombuffer(buffers[1], np.uint8).reshape(event.n, g))
        found["memory"].append(np.frombuffer(buffers[2], np.uint8).reshape(event.n, g))
        found["host"].append(np.frombuffer(buffers[3], np.float32).reshape(event.n, 2))
    assert first is not None
    return first, {name: np.concatenate(parts) for name, parts in found.items()}


def count_of(house: House) -> int:
    try:
        return len(ticks(house)[1]["t"])
    except (AssertionError, ValueError):
        return 0


@pytest.mark.parametrize(("target", "gpus"), [("endless", 4), ("wide", 64), ("two", 4)])
def test_gpus_of_a_run_stream_in_order(house: House, target: str, gpus: int) -> None:
    handle = house.submit(target)
    house.open()
    assert house.ask(gpus=handle).why == ""
    until(lambda: count_of(house) > 30)
    first, found = ticks(house)
    assert first.source == handle and len(first.labels) == gpus == len(first.names) == len(first.memory)
    assert first.labels[0] == "0:0" and len(set(first.labels)) == gpus
    assert first.cpus and first.host_memory and first.period == 0.1
    assert (np.diff(found["t"]) > 0).all() and np.allclose(np.diff(found["t"]), 0.1, atol=0.02)
    known = found["util"] != 255
    assert known.mean() > 0.9 and found["util"][known].max() <= 100 and 0 < found["memory"][known].max() <= 100
    assert np.isfinite(found["host"]).all()
    times = [at for at, event, _ in house.sent["c"] if isinstance(event, Gpus)]
    assert all(b - a > 0.4 for a, b in zip(times, times[1:], strict=False))
    house.ask(gpus="")
    count = len(house.heard(Gpus))
    house.call(asyncio.sleep(1.2))
    assert len(house.heard(Gpus)) == count


def test_the_past_comes_first_600_ticks_at_most(house: House) -> None:
    handle = house.submit("endless")
    life = house.on(lambda: house.controller.backend("endless")._lives[handle.partition("/")[2]])
    life.start -= 200  # it has run for a while: 2000 ticks
    house.open()
    house.ask(gpus=handle)
    until(lambda: house.heard(Gpus))
    assert house.heard(Gpus)[0].first and house.heard(Gpus)[0].n == 600
    until(lambda: count_of(house) > 605)
    assert (np.diff(ticks(house)[1]["t"]) > 0).all()


def test_an_ended_run_shows_its_past_and_ends(house: House) -> None:
    handle = house.submit("endless")
    until(lambda: house.call(house.controller.settle(handle)).telemetry.node(0).ticks > 5)
    house.call(house.controller.cancel(handle))
    until(lambda: house.on(lambda: house.controller.entry(handle).run.status.state.terminal))
    house.open()
    house.ask(gpus=handle)
    until(lambda: house.heard(Gpus) and house.heard(Gpus)[-1].ended)
    assert ticks(house)[1]["t"].size > 5


def test_a_target_is_sampled_for_all_pages_together_and_let_go(house: House) -> None:
    for comm in ("c", "d"):
        house.open(comm)
        assert house.ask(comm, gpus="target:wide").why == ""
    until(lambda: count_of(house) > 2)
    backend = house.on(lambda: house.controller.backend("wide"))
    assert len(backend._monitors) == 1
    first, found = ticks(house)
    assert len(first.labels) == 64 and np.isfinite(found["host"]).all()
    house.ask("c", shown="status")
    house.call(asyncio.sleep(0.2))
    assert len(backend._monitors) == 1
    house.ask("d", shown="")
    until(lambda: not backend._monitors)


def test_why_there_are_no_gpus_to_stream(house: House) -> None:
    house.open()
    assert "Cannot reach 'far'" in house.ask(gpus="target:far").why
    assert "No compute target named 'nowhere'" in house.ask(gpus="target:nowhere").why
    assert "No run" in house.ask(gpus="endless/none-22222").why
    until(lambda: any("Cannot reach" in event.note and event.ended for event in house.heard(Gpus)))


def test_a_meter_tells_of_the_target_in_use(house: House) -> None:
    house.open(shown="status", meter=0.5)
    until(lambda: any(event.util is not None for event in house.heard(Meter)))
    told = house.heard(Meter)[-1]
    assert told.target == "endless" and told.gpus == 4 and 0 <= told.util <= 100
    house.ask(shown="status", meter=0)
    backend = house.on(lambda: house.controller.backend("endless"))
    until(lambda: not backend._monitors)


def test_a_change_of_the_target_in_use_is_noticed_without_a_click(house: House) -> None:
    house.open()
    house.api.use("wide")
    until(lambda: any(event.current == "wide" for event in house.heard(Changes)))
    rows = next(event.targets for event in house.heard(Changes) if event.current == "wide")
    assert [row.name for row in rows if row.current] == ["wide"]


def test_runs_of_other_kernels_come_and_go_without_a_click(house: House) -> None:
    house.open()
    root = house.controller.root.path
    (run_id,) = write_runs(root, 1, time.time())
    handle = f"local/{run_id}"
    until(lambda: handle in house.rows())
    (root / "runs" / run_id).rename(root / "runs" / f".gone-{run_id}")
    until(lambda: handle not in house.rows())


def test_past_runs_say_their_details_when_asked(house: House) -> None:
    ids = write_runs(house.controller.root.path, 40, time.time(), gpus=2, seconds=120)
    snapshot = house.open()
    assert len(snapshot.runs) == 40 and not any(row.known for row in snapshot.runs)
    handles = [f"local/{run_id}" for run_id in ids]
    house.ask(details=tuple(handles[:30]))
    until(lambda: all(house.rows()[handle].known for handle in handles[:30]))
    row = house.rows()[handles[0]]
    assert row.metric and row.value is not None and len(row.spark) > 10 and row.log_bytes > 0
    assert not any(house.rows()[handle].known for handle in handles[30:])
    assert house.on(lambda: house.controller.entry(handles[0]).telemetry.node(0).ticks) == 0  # nothing is kept


def test_500_past_runs_never_hold_the_loop(house: House) -> None:
    write_runs(house.controller.root.path, 510, time.time(), gpus=1, seconds=5)
    stalls: list[float] = []

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            stalls.append(time.perf_counter() - begun)

    task = house.on(lambda: house.controller.loop.start(watch(), "stalls"))
    begun = time.monotonic()
    snapshot = house.open()
    until(lambda: len(house.rows()) >= 500)
    assert time.monotonic() - begun < 10
    if len(snapshot.runs) == 500:
        assert snapshot.more == 10
    house.on(task.cancel)
    assert sorted(stalls)[-5] < 0.2  # tens of milliseconds on an idle machine


def test_beats_while_a_cell_runs_and_a_panel_is_seen(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT", 0.05)
    house.open()
    house.open("hidden", shown="status")
    house.call(asyncio.sleep(0.3))
    assert not house.heard(Beat)
    house.busy = True
    until(lambda: len(house.heard(Beat)) > 3)
    assert not house.heard(Beat, "hidden")


def test_who_does_not_answer_is_asked_and_then_forgotten(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT", 0.05)
    monkeypatch.setattr(pages, "SILENT", 0.3)
    monkeypatch.setattr(pages, "PATIENCE", 0.5)
    house.open()
    house.busy = True
    until(lambda: any(event.renew for event in house.heard(Beat)))
    assert not house.ask().snapshot  # it is there
    until(lambda: "c" not in house.events._pages, "to be forgotten")
    assert sum(event.renew for event in house.heard(Beat)) >= pages.QUESTIONS
    count = len(house.sent["c"])
    house.submit("quick")
    house.call(asyncio.sleep(1))
    assert len(house.sent["c"]) == count
    assert house.ask(seq=count - 1).snapshot  # it comes back


def test_a_page_that_only_gets_gpus_is_asked_too() -> None:
    sent: list[Event] = []
    page = Page("c", lambda comm, event, buffers: sent.append(event))
    page.send(Gpus, source="x")
    page.asked -= pages.SILENT + 1
    page.send(Gpus, source="x")
    page.send(Gpus, source="x")
    assert [type(event) for event in sent] == [Gpus, Gpus, Changes, Gpus]
    assert sent[2].renew and [event.seq for event in sent] == [0, 1, 2, 3]


def test_nonsense_is_refused_in_one_sentence(house: House) -> None:
    for comm in ("", "x" * 300, "a\nb"):
        with pytest.raises(Exception, match="no id of a comm"):
            house.ask(comm, seq=-1)


def test_after_the_end_a_word_that_it_is_one_and_nothing_more(house: House) -> None:
    house.open(gpus="target:wide")
    until(lambda: house.heard(Gpus))
    house.on(house.events.close)
    assert house.sent["c"][-1][1].renew  # who was loaded again meanwhile is found by asking
    count = len(house.sent["c"])
    house.submit("quick")
    house.call(asyncio.sleep(1))
    assert len(house.sent["c"]) == count
    assert not house.ask(seq=-1).snapshot
