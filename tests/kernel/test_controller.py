"""Submitting, waiting, finding, ending: the controller over the real local target and scripted ones."""

from __future__ import annotations

import _thread
import asyncio
import json
import math
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import (
    AmlTrainError,
    CapacityError,
    CommandError,
    ResultMissing,
    RunCanceled,
    RunFailed,
    SnapshotTooLarge,
    SpecError,
    StateError,
    TargetUnreachable,
    UnknownRun,
    UnknownTarget,
)
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import RunState, advances
from jupyter_amltrain.state_dir import StateRoot

from ..helpers import DEADLINE, api_of, until

TARGETS = {
    "quick": {"queued": 0.02, "running": 0.1},
    "endless": {"queued": 0.02, "running": 600.0},
    "waiting": {"queued": 600.0},
    "bad": {"queued": 0.0, "running": 0.05, "exit_code": 3},
    "far": {"unreachable": True},
}
GATE = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists({gate!r}): time.sleep(0.02)\n"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("controller")
    with api_of(folder) as module:
        rows = {name: {"kind": "fake", "name": name, **fields} for name, fields in TARGETS.items()}
        (folder / "home").mkdir(mode=0o700)
        (folder / "home" / "targets.json").write_text(json.dumps({"schema": 1, "current": "local", "targets": rows}))
        yield module


def rescript(api: Any, target: str, **changes: Any) -> None:
    async def go() -> None:
        api.controller().backend(target).rescript(**changes)

    api.controller().loop.call(go())


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    return text


# ---- ends


@pytest.mark.parametrize("target", ["local", "quick"])
def test_submit_and_wait_completes_run(api: Any, target: str) -> None:
    run = api.submit("print('here')", target=target, name="story")
    assert run.handle.startswith(f"{target}/story-") and run.name == "story"
    assert run.wait(DEADLINE) is run
    assert run.state == "completed" and run.status.exit_code == 0
    assert [phase.name for phase in run.status.phases][:2] == ["queued", "running"]
    assert run.logs() and run.log_path
    assert run.wait(DEADLINE).state == "completed"


@pytest.mark.parametrize("target", ["local", "quick"])
def test_parent_of_a_run_is_stored_and_listed(api: Any, target: str) -> None:
    controller, spec = api.controller(), JobSpec(name="trial", script="pass", parent="local/sweep-22222")
    handle = controller.loop.call(controller.jobs.submit(spec, target))
    assert api.attach(handle).wait(DEADLINE).run.parent == "local/sweep-22222"
    assert api.attach(handle).record().parent == "local/sweep-22222"
    if target == "local":  # another kernel lists it from the index and reads it from the run's folder
        other = Controller(controller.root)
        try:
            listed = {run.handle: run for run in other.loop.call(other.runs("local"), DEADLINE)}
            assert listed[handle].parent == "local/sweep-22222"
            assert other.loop.call(other.load(handle), DEADLINE).parent == "local/sweep-22222"
        finally:
            other.close()


def test_failed_run_error_names_line_and_log_tail(api: Any) -> None:
    lines = "\n".join(f"print('line', {i})" for i in range(40))
    run = api.submit(f"{lines}\ndef inner():\n    raise ValueError('no such digit')\ninner()\n")
    with pytest.raises(RunFailed) as caught:
        run.wait(DEADLINE)
    error = caught.value
    text = one_line(error)
    assert text.startswith(f"{run.handle} failed. Raised ValueError: no such digit in line ")
    assert f"%aml_runs logs {run.handle}" in text
    assert error.exit_code == 1 and error.cell_line is not None
    assert f"in line {error.cell_line} of the cell" in text
    assert run.spec.script.splitlines()[error.cell_line - 1 + run.spec.line_offset].strip().startswith("raise")
    assert error.log_tail.splitlines()[-1] == "ValueError: no such digit" and len(error.log_tail.splitlines()) <= 12
    shown = error._render_traceback_()
    assert shown[0] == f"RunFailed: {text}" and "end of the log:" in shown
    error.log_is_shown = True
    (title,) = error._render_traceback_()  # reason and log are above it
    assert run.handle in title and "%aml_runs logs" in title and "no such digit" not in title
    reason = run.record().error
    assert reason and reason in text and run.handle not in reason and run.record().done


@pytest.mark.parametrize(
    ("code", "more", "sentence", "exit_code"),
    [
        ("import sys\nprint('bye', flush=True)\nsys.exit(3)", {}, "exited with code 3", 3),
        ("import os\nos.kill(os.getpid(), 11)", {}, "killed by SIGSEGV", None),
        ("import os\nos.kill(os.getpid(), 9)", {}, "killed by SIGKILL", None),
        ("import time\ntime.sleep(600)", {"timeout": 0.3}, "time limit of 0.3 s reached", None),
    ],
)
def test_failed_run_error_names_cause(
    api: Any, code: str, more: dict[str, Any], sentence: str, exit_code: int | None
) -> None:
    run = api.submit(code, **more)
    with pytest.raises(RunFailed) as caught:
        run.wait(DEADLINE)
    text = one_line(caught.value)
    assert sentence.lower() in text.lower() and f"%aml_runs logs {run.handle}" in text
    assert caught.value.exit_code == exit_code == run.status.exit_code
    assert run.state == "failed"


def test_demo_failure_raises_run_failed(api: Any) -> None:
    with pytest.raises(RunFailed, match="code 3") as caught:
        api.submit("pass", target="bad").wait(DEADLINE)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("target", ["local", "endless", "waiting"])
def test_cancel_ends_live_run_and_keeps_ended(api: Any, target: str) -> None:
    run = api.submit("import time\ntime.sleep(600)", target=target)
    run.cancel()
    assert run.run.cancel_requested
    run.cancel()
    with pytest.raises(RunCanceled, match=f"{run.handle} was canceled"):
        run.wait(DEADLINE)
    run.cancel()
    assert run.state == "canceled"


@pytest.mark.parametrize("target", ["local", "endless"])
def test_cancel_while_preparing_marks_run_canceled(api: Any, target: str) -> None:
    c = api.controller()
    spec = JobSpec(name="early", script="import time\ntime.sleep(600)\n")

    async def go() -> Any:
        handle = await c.jobs.submit(spec, target)
        run = await c.cancel(handle)  # nothing was packed yet: the launch had no turn
        assert run.status.state is RunState.PREPARING and run.cancel_requested
        return handle

    run = api.TrackedRun(c.loop.call(go(), DEADLINE))
    with pytest.raises(RunCanceled):
        run.wait(DEADLINE)


def test_slow_submit_has_detail(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_amltrain.kernel.submit_queue.SLOW_SUBMIT_NOTICE_S", 0.1)
    c, accepted = api.controller(), threading.Event()
    backend = c.loop.call(_backend(c, "quick"))
    launch = backend.launch

    async def slow(*what: Any) -> Any:
        while not accepted.is_set():
            await asyncio.sleep(0.01)
        return await launch(*what)

    monkeypatch.setattr(backend, "launch", slow)
    handle = c.loop.call(c.jobs.submit(JobSpec(name="slow", script="pass\n"), "quick"), DEADLINE)
    run = api.TrackedRun(handle)
    try:
        until(lambda: "accepted" in run.status.detail and run.state == "preparing", "its detail")
    finally:
        accepted.set()
    run.wait(DEADLINE)
    assert "accepted" not in run.status.detail


async def _backend(c: Any, target: str) -> Any:
    return c.backend(target)


def test_delete_while_preparing_is_refused(api: Any) -> None:
    c = api.controller()

    async def go() -> Any:
        handle = await c.jobs.submit(JobSpec(name="kept", script="pass\n"), "local")
        with pytest.raises(CommandError, match="has not ended"):
            await c.delete(handle)
        return handle

    assert api.TrackedRun(c.loop.call(go(), DEADLINE)).wait(DEADLINE).state == "completed"


def test_delete_of_ended_run_removes_folder(api: Any) -> None:
    run = api.submit("pass")
    folder = Path(api.attach(run.handle).run.folder)
    run.wait(DEADLINE)
    run.delete()
    assert not folder.exists()
    assert run.handle not in [other.handle for other in api.runs()]
    with pytest.raises(UnknownRun):
        api.attach(run.handle)
    live = api.submit("pass", target="endless")
    with pytest.raises(CommandError, match=f"cancel {live.handle}"):
        live.delete()
    live.cancel()


def test_delete_at_once_keeps_mlflow_record(api: Any) -> None:
    run = api.submit("pass", name="brief").wait(DEADLINE)
    store = Path(run.run.project) / ".amltrain" / "mlflow.db"
    run.delete()
    with sqlite3.connect(store) as database:
        assert database.execute("SELECT status FROM runs WHERE name='brief'").fetchall() == [("FINISHED",)]
    database.close()


def test_runs_of_same_name_are_separate(api: Any) -> None:
    both = [api.submit(f"value = {i}", name="twin", out=["value"]) for i in range(2)]
    assert both[0].handle != both[1].handle
    assert [run.wait(DEADLINE).result("value") for run in both] == [0, 1]


# ---- launches that fail


def refused(api: Any, kind: type[AmlTrainError], *args: Any, **more: Any) -> str:
    with pytest.raises(kind) as caught:
        api.submit(*args, **more)
    return one_line(caught.value)


def test_source_folder_over_limit_is_refused(api: Any) -> None:
    big = Path("big")
    big.mkdir()
    (big / "train.py").write_text("pass\n")
    with (big / "weights.bin").open("wb") as file:
        file.truncate(400_000_000)
    text = refused(api, SnapshotTooLarge, big / "train.py", source=big)
    assert "weights.bin (400.0 MB)" in text and ".amlignore" in text


def test_more_gpus_than_there_are(api: Any) -> None:
    assert "99 GPUs" in refused(api, CapacityError, "pass", gpus=99)


def test_submit_with_secret_without_value_is_refused(api: Any) -> None:
    with pytest.raises(CommandError, match="--secret TOKEN: no value"):
        api.submit_spec(JobSpec(name="s", script="pass", secrets=("TOKEN",)))


def test_unreachable_target_is_refused(api: Any) -> None:
    assert "%aml_compute test far" in refused(api, TargetUnreachable, "pass", target="far")
    with pytest.raises(TargetUnreachable):
        api.compute("far")
    with pytest.raises(TargetUnreachable):
        api.runs("far")
    assert api.runs() is not None  # the others answer


def test_unknown_target_error_suggests_similar(api: Any) -> None:
    assert "Did you mean quick?" in refused(api, UnknownTarget, "pass", target="qick")


@pytest.mark.parametrize("name", ["n" * 65, "a/b", "two\nlines"])
def test_submit_with_invalid_name_is_refused(api: Any, name: str) -> None:
    assert "1 to 64 printable characters" in refused(api, SpecError, "pass", name=name)


def test_refused_run_error_is_raised_later(api: Any) -> None:
    before = {run.handle for run in api.runs("local")}
    run = api.submit_spec(JobSpec(name="greedy", script="pass", resources=_gpus(99)))
    with pytest.raises(AmlTrainError, match=f"{run.handle} was not submitted: .*99 GPUs"):
        run.wait(DEADLINE)
    record = run.record()
    assert record.done and record.reason == "launch" and run.logs() == "" and run.metrics() == {}
    run.delete()
    assert {run.handle for run in api.runs("local")} == before


def _gpus(count: int) -> Any:
    from jupyter_amltrain.schema.job import Resources

    return Resources(gpus=count)


# ---- reachable or not


def test_run_on_unreachable_target_is_not_lost(api: Any) -> None:
    rescript(api, "endless", running=600.0)
    run = api.submit("pass", target="endless")
    states: list[tuple[str, bool]] = []
    run.watch(lambda record, picture: states.append((record.state, record.reachable)), rate=1000)
    until(lambda: run.state == "running")
    rescript(api, "endless", unreachable=True)
    until(lambda: not run.run.reachable)
    assert run.state == "running"  # the last that was seen
    assert not run.record().reachable and not run.record().done
    with pytest.raises(TimeoutError):
        run.wait(0.3)
    rescript(api, "endless", unreachable=False)
    until(lambda: run.run.reachable)
    assert run.state == "running"
    rescript(api, "endless", running=0.0)
    run.wait(DEADLINE)
    assert run.run.reachable and run.state == "completed"
    assert ("running", False) in states and states[-1] == ("completed", True)
    assert "lost" not in [state for state, _ in states]
    rescript(api, "endless", running=600.0)


# ---- which run is meant


def test_attach_finds_run_by_handle_id_prefix_and_last(api: Any) -> None:
    first = api.submit("pass", target="quick", name="zebra").wait(DEADLINE)
    second = api.submit("pass", target="quick", name="yak").wait(DEADLINE)
    assert api.attach("last").handle == api.attach().handle == second.handle
    for text in (first.handle, first.run_id, "zebra-", "quick/zebra", f" {first.handle} "):
        assert api.attach(text).handle == first.handle
    assert [run.handle for run in api.runs("quick")][:2] == [second.handle, first.handle]


def test_dashboard_of_deleted_run_is_refused(api: Any) -> None:
    run = api.submit("pass", target="quick").wait(DEADLINE)
    assert repr(run.dashboard(window=0)) == f"<View of {run.handle}>"
    run.delete()
    with pytest.raises(UnknownRun, match=run.handle):
        run.dashboard()


def test_monitor_of_earlier_kernel_is_unknown(api: Any) -> None:
    c = api.controller()
    with pytest.raises(UnknownRun, match="monitor.*%aml_monitor"):
        c.loop.call(c.source("local/monitor-22222"))
    run = api.submit("pass", target="quick", name="monitor").wait(DEADLINE)
    assert c.loop.call(c.source(run.handle)).run.handle == run.handle


def test_ambiguous_run_error_names_matches(api: Any) -> None:
    both = [api.submit("pass", target="quick", name="koala") for _ in range(2)]
    with pytest.raises(UnknownRun) as caught:
        api.attach("koala")
    text = one_line(caught.value)
    assert "2 runs" in text and all(run.handle in text for run in both) and "prefix" in text


@pytest.mark.parametrize("text", ["capibara-22222", "local/capibara-22222"])
def test_unknown_run_error_suggests_similar(api: Any, text: str) -> None:
    run = api.submit("pass", name="capybara").wait(DEADLINE)
    with pytest.raises(UnknownRun, match=f"Did you mean .*{run.handle}"):
        api.attach(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("nobody/x", UnknownTarget),
        ("a/b/c", CommandError),
        ("local/", CommandError),
        ("", UnknownRun),
        ("local/" + "x" * 300, UnknownRun),
        ("local/nul\0", CommandError),
        ("local/..", UnknownRun),
        ("x" * 5000, UnknownRun),
    ],
)
def test_attach_with_invalid_text_is_refused(api: Any, text: str, kind: type[AmlTrainError]) -> None:
    with pytest.raises(kind) as caught:
        api.attach(text)
    assert len(one_line(caught.value)) < 6000


# ---- waiting is not owning


def test_interrupted_wait_keeps_run(api: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = api.submit(GATE.format(gate=str(gate)))
    until(lambda: "up" in run.logs())

    def interrupt() -> None:
        async def viewers() -> int:
            return int(api.controller().entry(run.handle).viewers)

        until(lambda: api.controller().loop.post(viewers()).result(DEADLINE))
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    thread.join(DEADLINE)
    assert run.state == "running" and not run.run.cancel_requested
    gate.touch()
    run.wait(DEADLINE)


def test_wait_timeout_keeps_run(api: Any) -> None:
    run = api.submit("pass", target="waiting")
    with pytest.raises(TimeoutError):
        run.wait(0.1)
    assert run.state == "queued" and not run.run.cancel_requested
    run.cancel()


def test_close_keeps_runs_running(api: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = api.submit(GATE.format(gate=str(gate)) + "n = 7", out=["n"])
    api.close()
    again = api.attach(run.run_id)
    until(lambda: again.state == "running")
    gate.touch()
    assert again.wait(DEADLINE).result("n") == 7
    assert run.result("n") == 7  # the object from before finds the new controller


def test_close_failure_of_one_part_closes_others(tmp_path: Path) -> None:
    controller = Controller(StateRoot(tmp_path / "home"))
    closed: list[str] = []

    async def fails() -> None:
        raise StateError("Cannot write.")

    async def let_go() -> None:
        closed.append("backend")

    async def use() -> None:
        backend = controller.backend("local")
        backend.close = let_go  # type: ignore[method-assign]
        controller.imports.close = fails  # type: ignore[method-assign]

    controller.loop.call(use())
    thread = controller.loop._thread
    controller.close()
    assert closed == ["backend"] and thread is not None and not thread.is_alive()


# ---- frames


def test_watch_sends_first_frame_and_none_without_change(api: Any) -> None:
    run = api.submit("pass", target="waiting")
    until(lambda: run.state == "queued")
    frames: list[RunRecord] = []
    watching = run.watch(lambda record, picture: frames.append(record))
    until(lambda: frames)
    assert frames[0].state == "queued" and not frames[0].done
    assert watching.cancel()
    assert run.state == "queued"
    run.cancel()


@pytest.mark.parametrize("target", ["local", "quick"])
def test_wait_returns_after_last_frame(api: Any, target: str) -> None:
    for _ in range(3):
        frames: list[RunRecord] = []
        run = api.submit("value = 1\nprint('the end')", target=target, out=["value"] if target == "local" else ())
        run.watch(lambda record, picture, frames=frames: frames.append(record), rate=0.5)
        run.wait(DEADLINE)
        assert frames[-1].done and frames[-1].state == "completed"
        states = [RunState(frame.state) for frame in frames]
        assert all(a is b or advances(a, b) for a, b in zip(states, states[1:], strict=False))
        if target == "local":
            assert frames[-1].outputs == {"value": 1} and frames[-1].log.tail == "the end\n"


@pytest.mark.thorough
def test_watched_run_shows_live_log_and_metrics(api: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = "import mlflow\nmlflow.log_metric('loss', 0.5, step=1)\n" + GATE.format(gate=str(gate))
    frames: list[RunRecord] = []
    run = api.submit(code)
    run.watch(lambda record, picture: frames.append(record))
    until(lambda: frames and "up" in frames[-1].log.tail and "loss" in frames[-1].metrics)
    assert frames[-1].state == "running" and frames[-1].metrics["loss"].last == 0.5
    gate.touch()
    run.wait(DEADLINE)
    assert [(step, value) for step, _, value in run.metrics()["loss"]] == [(1, 0.5)]
    assert list(run.telemetry().columns[:3]) == ["node", "seq", "time"]


# ---- values


def test_out_values_are_returned(api: Any) -> None:
    code = "n = 3\ntext = 'é'\nrow = [1, 2.5, None]\nnested = {'a': {'b': [True]}}\nbad = float('nan')\n"
    run = api.submit(code, out=["n", "text", "row", "nested", "bad"]).wait(DEADLINE)
    assert run.result("n") == 3 and run.result("text") == "é"
    assert run.result("row") == [1, 2.5, None] and run.result("nested") == {"a": {"b": [True]}}
    assert math.isnan(run.result("bad"))


def test_missing_out_values_raise(api: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = GATE.format(gate=str(gate)) + "import threading\ngood = 1\nthing = threading.Lock()\nif good > 1: never = 1"
    run = api.submit(code, out=["good", "thing", "never"])
    with pytest.raises(ResultMissing, match="available once"):
        run.result("good")
    with pytest.raises(ResultMissing, match=r"good, thing, never.*--out other"):
        run.result("other")
    gate.touch()
    run.wait(DEADLINE)  # the run itself is well
    assert run.result("good") == 1
    for name in ("thing", "never"):
        with pytest.raises(ResultMissing) as caught:
            run.result(name)
        assert name in one_line(caught.value)


def test_plan_creates_no_run(api: Any) -> None:
    plan = api.plan_spec(JobSpec(name="dry", script="pass", secrets=("TOKEN",)))
    assert plan.request["spec"]["secrets"] == ("TOKEN",) and json.dumps(plan.request)
    with pytest.raises(UnknownRun):
        api.attach(plan.run_id)
