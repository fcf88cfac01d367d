"""Answers about runs over a real controller: delete, again, MLflow's page, the submit's line."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.frontend import log_handlers, run_handlers, target_handlers
from tests.frontend.handler_harness import HandlerHarness
from tests.helpers import DEADLINE, until

# ---- which run

BY_NAME = {
    "run": lambda name: run_handlers.GetRun(handle=name),
    "dashboard": lambda name: run_handlers.OpenDashboard(handle=name, page="p"),
    "log": lambda name: log_handlers.GetLog(handle=name),
    "cancel": lambda name: run_handlers.CancelRun(handle=name),
    "again": lambda name: run_handlers.ResubmitRun(handle=name),
    "stack": lambda name: run_handlers.WhereIsRun(handle=name),
    "mlflow": lambda name: run_handlers.OpenMlflow(handle=name),
}


@pytest.mark.parametrize("op", BY_NAME)
def test_page_request_with_partial_handle_is_refused(house: HandlerHarness, op: str) -> None:
    """A page may ask because of a notebook that somebody else wrote: ``last`` would be the run of another one."""
    live = house.api.submit("pass", target="endless", name="private")
    try:
        target, run_id = live.handle.split("/")
        address = f"https://ml.azure.com/runs/{run_id}"
        guesses = ["last", "", "/", run_id, live.handle[:-1], f"{target}/", f"{target}/p", f" {live.handle}", address]
        for name in [*guesses, f"{target}/..", f"{target}/../runs/{run_id}", f"nowhere/{run_id}", "private"]:
            with pytest.raises(AmlTrainError) as caught:
                house.ask(BY_NAME[op](name))
            assert run_id in name or run_id not in str(caught.value)
        deleted = house.ask(run_handlers.DeleteRuns(handles=("last", run_id), confirmed=True))
        assert not deleted.deleted and set(deleted.errors) == {"last", run_id}
        record = house.ask(run_handlers.GetRun(handle=live.handle)).record
        assert record.handle == live.handle and not record.cancel_requested
    finally:
        live.cancel()


# ---- where it is


def test_stack_request_names_the_line_of_a_running_job(house: HandlerHarness) -> None:
    run = house.api.submit("import time\nwhile True:\n    time.sleep(0.5)  # here", gpus=0)
    try:
        until(lambda: run.state == "running" and "time.sleep(0.5)  # here" in _stack(house, run.handle), "its line")
    finally:
        run.cancel()
    until(lambda: run.status.state.terminal, "its end")
    with pytest.raises(AmlTrainError) as caught:
        house.ask(run_handlers.WhereIsRun(handle=run.handle))
    assert caught.value.code == "ask.ended"


def test_stack_request_to_a_target_without_our_agent_is_refused(house: HandlerHarness) -> None:
    run = house.api.submit("pass", target="endless")
    try:
        with pytest.raises(CommandError) as caught:
            house.ask(run_handlers.WhereIsRun(handle=run.handle))
        assert caught.value.code == "ask.target"
    finally:
        run.cancel()


def _stack(house: HandlerHarness, handle: str) -> str:
    try:
        return str(house.ask(run_handlers.WhereIsRun(handle=handle)).text)
    except CommandError as error:
        assert error.code == "ask.state"  # its process has not begun
        return ""


# ---- delete


def test_delete_request_asks_confirmation_then_deletes(house: HandlerHarness) -> None:
    run = house.ended()
    folder = Path(run.run.folder)
    live = house.api.submit("pass", target="endless")
    handles = (run.handle, live.handle, "local/none-22222")
    reply = house.ask(run_handlers.DeleteRuns(handles=handles))
    assert (
        reply.deleted == ()
        and "permanently deletes" in reply.confirmation
        and "MLflow record is kept" in reply.confirmation
    )
    assert run.handle in reply.confirmation and "(5 B)" in reply.confirmation and str(folder) in reply.confirmation
    assert (
        "only ended runs can be deleted" in reply.errors[live.handle] and "No run" in reply.errors["local/none-22222"]
    )
    assert folder.is_dir()
    reply = house.ask(run_handlers.DeleteRuns(handles=handles, confirmed=True))
    assert reply.deleted == (run.handle,) and set(reply.errors) == {live.handle, "local/none-22222"}
    until(lambda: not folder.exists())
    assert house.ask(run_handlers.CancelRun(handle=live.handle)).accepted


@pytest.mark.thorough
def test_delete_request_without_mlflow_record_names_loss(house: HandlerHarness, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".amltrain" / "mlflow.db").mkdir(parents=True)  # no store can be made
    run = house.ended("import mlflow; mlflow.log_metric('loss', 0.5)", target="local", gpus=0)
    folder = Path(run.run.folder)
    until(lambda: run.run.tracking.startswith("failed"))
    reply = house.ask(run_handlers.DeleteRuns(handles=(run.handle,)))
    assert "MLflow has no record" in reply.confirmation and reply.unrecorded == (run.handle,)
    # A page that has not shown that sentence does not agree to the loss.
    assert house.ask(run_handlers.DeleteRuns(handles=(run.handle,), confirmed=True)).errors.keys() == {run.handle}
    assert folder.is_dir()
    agreed = run_handlers.DeleteRuns(handles=(run.handle,), confirmed=True, unrecorded=reply.unrecorded)
    assert house.ask(agreed).deleted == (run.handle,)
    until(lambda: not folder.exists())


def test_delete_request_and_magic_messages_are_equal(house: HandlerHarness) -> None:
    from jupyter_amltrain.commands import runs

    run = house.ended()
    with pytest.raises(CommandError) as caught:
        runs.delete([run.handle], force=False)
    assert str(caught.value).startswith(house.ask(run_handlers.DeleteRuns(handles=(run.handle,))).confirmation)


def test_deleted_run_closes_dashboard(house: HandlerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(house.handlers.runs.live, "close_run", forgotten.append)
    run = house.ended()
    house.handlers.runs._subscribed = False
    house.ask(run_handlers.OpenDashboard(handle=run.handle, page="p"))
    house.ask(run_handlers.DeleteRuns(handles=(run.handle,), confirmed=True))
    until(lambda: forgotten == [run.handle])


# ---- again


def test_resubmit_keeps_params_and_secrets(house: HandlerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "s3cret")
    script = "import os\nprint(lr, os.environ['MY_SECRET'] == 's3cret')"
    run = house.ended(script, params={"lr": 0.5}, secrets={"MY_SECRET": "s3cret"}, name="twice")
    handle = house.ask(run_handlers.ResubmitRun(handle=run.handle)).handle
    assert handle != run.handle and handle.startswith("local/twice-")
    other = house.api.attach(handle).wait(DEADLINE)
    assert other.logs().strip() == "0.5 True" and other.spec.repeats == run.handle
    assert msgspec.structs.replace(other.spec, repeats="") == run.spec
    monkeypatch.delenv("MY_SECRET")
    with pytest.raises(AmlTrainError, match="--secret MY_SECRET"):
        house.ask(run_handlers.ResubmitRun(handle=run.handle))


def test_resubmit_of_changed_code_uses_copy_of_run(house: HandlerHarness, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('first')\n")
    run = house.ended(str(tmp_path / "train.py"))
    handle = house.ask(run_handlers.ResubmitRun(handle=run.handle)).handle
    assert house.api.attach(handle).wait(DEADLINE).logs().strip() == "first"
    copied = house.ended("train.py", source=tmp_path)
    (tmp_path / "train.py").write_text("print('second')\n")
    for name in (run.handle, copied.handle):
        handle = house.ask(run_handlers.ResubmitRun(handle=name)).handle
        assert house.api.attach(handle).wait(DEADLINE).logs().strip() == "first"
    os.remove(tmp_path / "train.py")
    repeated = house.api.attach(house.ask(run_handlers.ResubmitRun(handle=handle)).handle)
    assert repeated.wait(DEADLINE).logs().strip() == "first"
    (Path(run.run.folder) / "source" / "train.py").write_text("print('third')\n")
    with pytest.raises(CommandError) as caught:
        house.ask(run_handlers.ResubmitRun(handle=run.handle))
    assert caught.value.code == "resubmit.changed" and "\n" not in str(caught.value)


def test_resubmit_on_remote_target_is_accepted(house: HandlerHarness) -> None:
    run = house.ended("pass", target="quick")
    assert house.ask(run_handlers.ResubmitRun(handle=run.handle)).handle.startswith("quick/run-")


# ---- MLflow


@pytest.mark.thorough
def test_mlflow_ui_request_starts_once_and_links_run(house: HandlerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    run = house.ended("import mlflow\nmlflow.log_metric('loss', 1)")
    until(lambda: house.api.attach(run.handle).run.tracking == "imported", "the MLflow record")
    started: list[str] = []
    gate = asyncio.Event()

    async def open_ui(project: str) -> dict[str, Any]:
        started.append(project)
        await gate.wait()
        return {"url": "http://127.0.0.1:5999/"}

    monkeypatch.setattr(house.controller, "open_ui", open_ui)
    monkeypatch.setattr(run_handlers, "MLFLOW_TIMEOUT_S", 0.05)
    for _ in range(3):
        assert house.ask(run_handlers.OpenMlflow(handle=run.handle)) == run_handlers.MlflowReply()
    assert started == [run.spec.project]

    async def let() -> None:
        gate.set()

    house.controller.loop.call(let())
    reply = until(lambda: (r := house.ask(run_handlers.OpenMlflow(handle=run.handle))).url and r)
    place = reply.url.removeprefix("http://127.0.0.1:5999/#/experiments/").split("/")
    assert place[0].isdigit() and place[1:] == ["runs", run.run.tracking_id]

    async def open_at_server(project: str) -> dict[str, Any]:
        return {"url": "http://localhost:8888/base/amltrain/mlflow/1/", "path": "/base/amltrain/mlflow/1/"}

    monkeypatch.setattr(house.controller, "open_ui", open_at_server)  # the browser knows the server by its own name
    reply = until(lambda: (r := house.ask(run_handlers.OpenMlflow(handle=run.handle))).url and r)
    assert reply.url.startswith("/base/amltrain/mlflow/1/#/experiments/")

    async def broken(project: str) -> dict[str, Any]:
        raise CommandError("MLflow's page needs the full mlflow package.")

    monkeypatch.setattr(house.controller, "open_ui", broken)
    assert "full mlflow package" in house.ask(run_handlers.OpenMlflow(handle=run.handle)).reason


def test_mlflow_ui_request_of_live_run_gives_reason(house: HandlerHarness) -> None:
    run = house.api.submit("pass", target="endless")
    assert "when it has finished" in house.ask(run_handlers.OpenMlflow(handle=run.handle)).reason
    house.ask(run_handlers.CancelRun(handle=run.handle))


# ---- the submit's line


def test_compose_request_checks_target(house: HandlerHarness) -> None:
    reply = house.ask(target_handlers.ComposeSubmit(cell="x = 1", values={"target": "quick", "gpus": 1}))
    assert reply.line == "%%aml_submit --target quick --gpus 1" and reply.errors == {}
    reply = house.ask(target_handlers.ComposeSubmit(cell="x = 1", values={"target": "quik"}))
    assert "Did you mean quick?" in reply.errors["target"]


def test_kinds_request_returns_all_forms(house: HandlerHarness) -> None:
    reply = house.ask(target_handlers.GetForms())
    assert {field.name for field in reply.submit} >= {"target", "gpus", "param", "wait"}
