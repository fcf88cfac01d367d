"""Runs on a machine over SSH, as a user has them: attached, submitted, cut off, found again."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.backends.ssh_connection import SshConnection
from jupyter_amltrain.commands.compute import show_text
from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.commands.resubmit import repeated_spec
from jupyter_amltrain.errors import CommandError, RunFailed
from tests.helpers import until
from tools.openssh import Sshd

from .proxy import Proxy
from .test_ssh_backend import target_of

TRAIN = """
import os, time
import mlflow
print("in", os.getcwd(), flush=True)
for step in range({steps}):
    mlflow.log_metric("loss", 1 / (step + 1), step=step)
    print("step", step, "x" * 200, flush=True)
    time.sleep(0.1)
with open(os.environ["AML_OUTPUT_DIR"] + "/model.joblib", "wb") as file:
    file.write(b"m" * 2_500_000)
answer = 42
"""

#: In place of the end of :data:`TRAIN`.
WAIT = """
while not os.path.exists({gate!r}):
    time.sleep(0.1)
answer = 42
"""


def attach(api: Any, sshd: Sshd, name: str = "box", **more: Any) -> None:
    fields = target_of(sshd, name=name, **more)
    values = {key: getattr(fields, key) for key in ("host", "port", "identity_file", "python", "accept_host_key")}
    assert not api.act("attach", name, kind="ssh", values=values, confirmed=True).errors
    until(
        lambda: api.controller().loop.call(api.controller().target_manager.operations.finished(name, 30.0)) is not None,
        "attached",
    )


@pytest.fixture
def proxy(sshd: Sshd) -> Iterator[Proxy]:
    made = Proxy(sshd.port)
    yield made
    made.thaw()
    made.close()


@pytest.mark.thorough
def test_local_run_repeated_over_ssh_gives_same_values_with_its_own_code(
    api: Any, sshd: Sshd, home: Path, remote_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(api, sshd)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("def scaled(x):\n    return 2 * x\n")
    code = "import random, model\nrandom.seed(seed)\nscore = model.scaled(random.random())\n"
    here = api.submit(code, params={"seed": 7}, out=["score"], gpus=0).wait(120)
    (tmp_path / "model.py").write_text("def scaled(x):\n    return -1\n")
    there = api.submit_spec(repeated_spec(here, {}, target="box"), target="box").wait(120)
    assert there.result("score") == here.result("score") and there.handle.startswith("box/")
    back = api.submit_spec(repeated_spec(there, {"seed": 8}, target="local"), target="local").wait(120)
    assert back.result("score") > 0 and back.result("score") != here.result("score")
    assert there.provenance["packages"] and there.provenance["machine"]["host"]
    found = run("runs", ["restore", there.handle, str(tmp_path / "code")], Context(prog="%aml_runs"))
    assert found.data["exact"] and (tmp_path / "code" / "model.py").read_text().endswith("2 * x\n")


def test_run_has_log_metrics_values_files_and_mlflow_record(
    api: Any, sshd: Sshd, home: Path, remote_home: Path
) -> None:
    attach(api, sshd)
    run = api.submit(TRAIN.format(steps=10), target="box", name="digits", out=["answer"], gpus=0).wait(120)
    assert run.result("answer") == 42 and run.handle.startswith("box/digits-")
    assert run.logs().count("step ") == 10 and str(remote_home) in run.logs()
    assert [value for _, _, value in run.metrics()["loss"]] == [1 / (i + 1) for i in range(10)]
    assert len(run.telemetry()) > 3
    model = run.files()["outputs/model.joblib"]
    assert hashlib.sha256(model.read()).hexdigest() == hashlib.sha256(b"m" * 2_500_000).hexdigest()
    until(lambda: run.run.tracking == "imported", "MLflow has the run")
    assert api.register_model("digits", run=run.handle).version == "1"
    assert run.handle in [row.handle for row in api.runs()]
    run.delete()
    assert (
        not (remote_home / "runs" / run.run_id).exists()
        and not (home / "mirror" / "box" / "runs" / run.run_id).exists()
    )


@pytest.mark.thorough
def test_record_in_mlflow_grows_while_the_run_lives(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    attach(api, sshd)
    code = TRAIN.format(steps=30).replace("answer = 42", WAIT.format(gate=str(tmp_path / "gate")))
    run = api.submit(code, target="box", gpus=0, out=["answer"])
    until(lambda: len(points_in_store(run)) >= 20, "MLflow's store has what was logged so far")
    assert run.state == "running"
    until(lambda: len(points_in_store(run)) == 30, "the rest follows")
    (tmp_path / "gate").touch()
    run.wait(60)
    until(lambda: run.run.tracking == "imported", "the record is complete")
    assert points_in_store(run) == [1 / (i + 1) for i in range(30)]


def points_in_store(run: Any) -> list[float]:
    """The values of the loss that MLflow's store has."""
    path = Path(run.run.project, ".amltrain/mlflow.db")
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db,
    ):
        return [row[0] for row in db.execute("select value from metrics where key = 'loss' order by step")]
    return []


@pytest.mark.thorough
def test_failed_script_names_its_line(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    with pytest.raises(RunFailed) as caught:
        api.submit("x = 1\nraise ValueError('no')\n", target="box", gpus=0).wait(60)
    assert "ValueError: no" in str(caught.value) and caught.value.exit_code == 1


@pytest.mark.thorough
def test_cancel_and_timeout_end_the_job_there(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    run = api.submit("import time\nprint('up', flush=True)\ntime.sleep(600)", target="box", gpus=0)
    until(lambda: "up" in run.logs(), "it runs")
    run.cancel()
    until(lambda: run.state == "canceled", "canceled")
    with pytest.raises(RunFailed, match="[Tt]ime limit"):
        api.submit("import time\ntime.sleep(600)", target="box", gpus=0, timeout=1.0).wait(60)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 23))])
def test_run_goes_on_while_link_is_cut_and_kernel_is_gone(
    api: Any, sshd: Sshd, proxy: Proxy, remote_home: Path, seed: int
) -> None:
    chance, long = random.Random(seed), seed >= 3  # the soak's links are cut for a minute
    steps = 800 if long else 60
    attach(api, sshd, port=proxy.port)
    run = api.submit(TRAIN.format(steps=steps), target="box", name="cut", out=["answer"], gpus=0)
    until(lambda: "step 3" in run.logs(), "it runs")
    time.sleep(chance.uniform(0, 1))
    (proxy.cut if chance.random() < 0.5 else proxy.freeze)()
    handle = run.handle
    time.sleep(30 if long else chance.uniform(0.5, 2))
    api.close()  # as a kernel that ends
    time.sleep(30 if long else chance.uniform(0, 2))
    proxy.thaw()
    proxy.cut()
    proxy.mend()
    again = api.attach(handle)
    assert again.wait(240).result("answer") == 42
    whole = (remote_home / "runs" / again.run_id / "log" / "rank-0.txt").read_bytes()
    assert hashlib.sha256(again.logs().encode()).hexdigest() == hashlib.sha256(whole).hexdigest()
    assert again.logs().count("step ") == steps and again.status.exit_code == 0
    ticks = again.telemetry()
    ticks = ticks[ticks["node"] == 0] if "node" in ticks else ticks
    there = (remote_home / "runs" / again.run_id / "telemetry" / "node-0.jsonl").read_text().count("\n[")
    assert len(ticks) > 20 and list(ticks["seq"]) == list(range(there))


@pytest.mark.thorough
def test_kernel_reconnects_and_reads_on(api: Any, sshd: Sshd, proxy: Proxy) -> None:
    attach(api, sshd, port=proxy.port)
    run = api.submit(TRAIN.format(steps=80), target="box", name="link", gpus=0)
    until(lambda: "step 3" in run.logs(), "it runs")
    records: list[Any] = []
    run.watch(lambda record, picture: records.append(record), 4.0)
    proxy.cut()
    until(lambda: records and not records[-1].reachable, "the output says that the target does not answer")
    assert records[-1].state == "running"
    proxy.mend()
    until(lambda: records[-1].reachable, "it answers again")
    until(lambda: records[-1].done, "the end is seen", 120)
    assert records[-1].state == "completed" and records[-1].metrics["loss"].n == 80


@pytest.mark.thorough
def test_submit_with_lost_answer_starts_one_job(
    api: Any, sshd: Sshd, proxy: Proxy, remote_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(api, sshd, port=proxy.port)
    request, cuts = SshConnection.request, []

    async def cut_after_submit(self: SshConnection, op: str, *rest: Any, **fields: Any) -> Any:
        if fields.get("call") == "submit" and not cuts:
            cuts.append(op)
            proxy.delay_back = 3600.0  # the request goes there, the answer does not come back
            asyncio.get_running_loop().call_later(2.0, proxy.cut)
            asyncio.get_running_loop().call_later(3.0, proxy.mend)
        return await request(self, op, *rest, **fields)

    monkeypatch.setattr(SshConnection, "request", cut_after_submit)
    run = api.submit("print('once')", target="box", name="unsure", gpus=0).wait(90)
    assert cuts and run.logs() == "once\n"
    assert len(list((remote_home / "runs").glob("unsure-*"))) == 1


@pytest.mark.thorough
def test_crash_of_ssh_service_does_not_harm_run(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    run = api.submit(TRAIN.format(steps=40), target="box", name="crash", gpus=0)
    until(lambda: "step 3" in run.logs(), "it runs")
    sshd.stop()
    time.sleep(1)
    sshd.start()
    assert run.wait(120).logs().count("step ") == 40


@pytest.mark.thorough
def test_submit_to_machine_that_does_not_answer_is_refused(api: Any, sshd: Sshd, proxy: Proxy) -> None:
    attach(api, sshd, port=proxy.port)
    proxy.cut()
    with pytest.raises(Exception, match="Cannot reach"):
        api.submit("print(1)", target="box", gpus=0).wait(60)


@pytest.mark.thorough
def test_password_of_variable_is_nowhere_on_disk(
    api: Any, sshd: Sshd, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOX_PASSWORD", "hunter2-very-secret")
    fields = target_of(sshd, password_from="BOX_PASSWORD")
    values = {
        key: getattr(fields, key)
        for key in ("host", "port", "identity_file", "python", "accept_host_key", "password_from")
    }
    api.act("attach", "box", kind="ssh", values=values, confirmed=True)
    run = api.submit("import os\nprint('BOX_PASSWORD' in os.environ)", target="box", gpus=0).wait(60)
    assert run.logs().strip() == "False"
    until(lambda: run.run.tracking == "imported", "nothing is written any more")
    for file in home.rglob("*"):
        assert not file.is_file() or b"hunter2" not in file.read_bytes(), file


def test_attach_without_host_names_the_field(api: Any, sshd: Sshd) -> None:
    assert "host" in api.act("attach", "box", kind="ssh", values={}, confirmed=True).errors
    with pytest.raises(CommandError):
        api.submit("print(1)", target="box")


@pytest.mark.thorough
def test_code_comes_back_with_modes_and_one_that_its_run_changed_is_named(
    api: Any, sshd: Sshd, home: Path, tmp_path: Path
) -> None:
    attach(api, sshd)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "tool.sh").write_text("#!/bin/sh\necho tool\n")
    (tree / "tool.sh").chmod(0o755)
    (tree / "main.py").write_text("import subprocess\nprint(subprocess.check_output('./tool.sh').decode())\n")

    def submit() -> Any:
        return api.submit(Path("main.py"), source=str(tree), target="box", name="tree", gpus=0).wait(120)

    def restored(of: Any, folder: str) -> bool:
        return bool(
            run("runs", ["restore", of.handle, str(tmp_path / folder)], Context(prog="%aml_runs")).data["exact"]
        )

    kept = submit()
    (tree / "main.py").write_text("open('tool.sh', 'w').close()\n")
    changing = submit()
    (tree / "main.py").write_text("pass\n")
    assert api.submit_spec(repeated_spec(kept, {})).wait(120).logs().startswith("tool")
    assert restored(kept, "kept") and (tmp_path / "kept" / "tool.sh").stat().st_mode & 0o100
    assert not restored(changing, "changing")
    with pytest.raises(CommandError) as caught:
        repeated_spec(changing, {})
    assert caught.value.code == "resubmit.changed"
    assert (home / "mirror" / "box" / "runs" / kept.run_id / "job.json").exists()


@pytest.mark.thorough
def test_idle_machine_is_stopped_by_a_line_that_is_shown(
    api: Any, sshd: Sshd, remote_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(api, sshd)
    shown = run("compute", ["edit", "box", "--idle-shutdown", "1h"], Context(prog="%aml_compute")).text
    info = api.compute("box")
    assert info.stops in shown and "60 min" in info.stops and info.stops in show_text(info)
    assert api.controller().targets.get("box").idle_shutdown == 60
    line = info.stops.partition("*/5 * * * * ")[2]
    request, _, stop = line.partition(" && ")
    assert " 3600" in request and stop == "sudo -n shutdown -h now"
    gate = tmp_path / "gate"
    monkeypatch.setenv("AMLTRAIN_QUEUE", str(tmp_path / "remote-queue"))

    def ask(seconds: int) -> int:
        return subprocess.run(["sh", "-c", request.replace(" 3600", f" {seconds}")], check=False, timeout=60).returncode

    assert ask(0) == 0
    job = api.submit(WAIT.format(gate=str(gate)).replace("while", "import os, time\nwhile", 1), target="box", gpus=0)
    until(lambda: job.state == "running", "the run")
    assert ask(0) == 1
    gate.touch()
    job.wait(60)
    assert ask(3600) == 1 and ask(0) == 0
    off = run("compute", ["edit", "box", "--idle-shutdown", "off"], Context(prog="%aml_compute")).text
    assert "crontab" in off and not api.compute("box").stops
