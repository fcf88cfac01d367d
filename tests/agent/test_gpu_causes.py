"""Why a run on GPUs failed: Xid errors, lost GPUs, memory errors, on a driver that is switched meanwhile."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import driver as fake
from tests.fakes.driver import Fails, Instance, SwitchableDriver

from .conftest import Agent, processes_of, until


class Job:
    """Jobs on GPUs of a driver that the test switches; they run until the test says how they end."""

    def __init__(self, agent: Agent, driver: SwitchableDriver, folder: Path) -> None:
        self.agent, self.driver, self.word = agent, driver, folder / "word"

    def start(self, gpus: int = 1, **payload: Any) -> str:
        """Start a job, once its sampler has ticked and its process runs."""
        code = (
            "import os, sys, time; print('up')\n"
            f"while not os.path.exists({str(self.word)!r}): time.sleep(0.01)\n"
            f"exec(open({str(self.word)!r}).read())\n"
        )
        run = self.agent.submit("", argv=[sys.executable, "-S", "-u", "-c", code], gpus=gpus, grace=2, **payload)
        self.agent.running(run, "up")
        self.ticked(run)
        return run

    def ticked(self, run: str, more: int = 2) -> None:
        """Wait for further ticks: what was switched before is read by then."""
        before = self._ticks(run)
        until(lambda: self._ticks(run) >= before + more, "ticks")

    def _ticks(self, run: str) -> int:
        return sum(isinstance(line, list) for line in self.agent.telemetry(run))

    def end(self, run: str, code: str = "sys.exit(1)") -> dict[str, Any]:
        draft = self.word.with_suffix(".new")
        draft.write_text(code)
        draft.rename(self.word)
        return self.agent.wait(run)

    def notes(self, run: str) -> list[str]:
        return [line["note"] for line in self.agent.telemetry(run) if isinstance(line, dict) and "note" in line]

    def summary(self, run: str) -> list[dict[str, Any]]:
        import json

        path = self.agent.run_folder(run) / "telemetry" / "summary-0.json"
        return json.loads(path.read_text())["gpus"]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SwitchableDriver:
    monkeypatch.setenv("AMLTRAIN_SAMPLE_PERIOD", "0.1")
    return fake.needed(tmp_path, gpus=2).use(monkeypatch)


@pytest.fixture
def job(agent: Agent, driver: SwitchableDriver, tmp_path: Path) -> Job:
    return Job(agent, driver, tmp_path)


def test_xid_before_failure_is_cause(job: Job, driver: SwitchableDriver) -> None:
    run = job.start()
    driver.xid(0, 79)
    until(lambda: job.notes(run), "a note")
    state = job.end(run)
    assert state["state"] == "failed" and state["exit_code"] == 1
    assert state["cause"]["kind"] == "xid" and "Xid 79 (GPU has fallen off the bus)" in state["cause"]["text"]
    assert state["cause"]["text"] in state["detail"] and "before" in state["cause"]["text"]
    assert "Reboot" in state["cause"]["action"]
    assert any("Xid 79" in note for note in job.notes(run))
    assert job.summary(run)[0]["xids"] == "79"


def test_xid_at_end_is_cause(job: Job, driver: SwitchableDriver) -> None:
    """The sampler takes what came since its last tick when it closes."""
    run = job.start()
    # No further tick reads it: the job gets its signal to end in the same moment.
    driver.xid(0, 31)
    state = job.end(run, "os._exit(3)")
    assert "Xid 31" in state["cause"]["text"] and "Xid 31" in state["detail"]


def test_xid_before_run_or_on_other_gpu_is_no_cause(job: Job, driver: SwitchableDriver) -> None:
    driver.xid(0, 79)
    run = job.start()
    driver.xid(1, 79)
    job.ticked(run)
    state = job.end(run)
    assert state["state"] == "failed" and "cause" not in state and "Xid" not in state["detail"]
    assert not job.notes(run)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "word"), [("sys.exit(0)", "completed"), ("import signal; os.kill(os.getpid(), 9)", "failed")]
)
def test_xid_of_completed_run_is_recorded_only(job: Job, driver: SwitchableDriver, code: str, word: str) -> None:
    run = job.start()
    driver.xid(0, 48)
    job.ticked(run)
    state = job.end(run, code)
    assert state["state"] == word and ("cause" in state) == (word == "failed")
    assert job.summary(run)[0]["xids"] == "48"


@pytest.mark.thorough
def test_xid_hardware_error_precedes_followers(job: Job, driver: SwitchableDriver) -> None:
    run = job.start()
    for number in (63, 31, 95, 45, 43):
        driver.xid(0, number)
    job.ticked(run)
    text = job.end(run)["cause"]["text"]
    assert "reported Xid 95" in text and "31" in text


@pytest.mark.thorough
def test_xid_of_cleanup_is_no_cause(job: Job, driver: SwitchableDriver) -> None:
    run = job.start()
    driver.xid(0, 45)
    job.ticked(run)
    assert "cause" not in job.end(run)


def test_canceled_run_with_xid_has_no_cause(job: Job, driver: SwitchableDriver) -> None:
    run = job.start()
    driver.xid(0, 79)
    job.ticked(run)
    job.agent.good("cancel", run=run)
    state = job.agent.wait(run)
    assert state["state"] == "canceled" and "cause" not in state


def test_lost_gpu_without_events_is_cause(job: Job, driver: SwitchableDriver) -> None:
    driver.answer("nvmlDeviceRegisterEvents", 4)  # no permission
    run = job.start()
    driver.lose(0)
    until(lambda: job.notes(run), "a note")
    state = job.end(run)
    assert state["cause"]["kind"] == "lost" and "GPU 0 was lost" in state["detail"]


def test_xid_with_simultaneous_gpu_loss_is_cause(job: Job, driver: SwitchableDriver) -> None:
    run = job.start()
    with driver.changes():
        driver.xid(0, 79)
        driver.lose(0)
    until(lambda: job.notes(run), "a note")
    assert "Xid 79" in job.end(run)["cause"]["text"]


def test_xid_events_after_driver_reload_are_read(job: Job, driver: SwitchableDriver) -> None:
    run = job.start()
    driver.down()
    until(lambda: any("unloaded" in note for note in job.notes(run)), "the driver to be away")
    driver.up()
    until(lambda: any("back" in note for note in job.notes(run)), "the driver to be back")
    job.ticked(run)
    driver.xid(0, 119)
    until(lambda: any("Xid 119" in note for note in job.notes(run)), "a note")
    assert "Xid 119" in job.end(run)["cause"]["text"]


@pytest.mark.thorough
@pytest.mark.parametrize("missing", [("nvmlEventSetWait_v2",), ("nvmlEvent*", "nvmlDeviceRegisterEvents")])
def test_library_without_events_is_supported(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Sequence[str]
) -> None:
    monkeypatch.setenv("AMLTRAIN_SAMPLE_PERIOD", "0.1")
    driver = fake.needed(tmp_path, without=missing).use(monkeypatch)
    job = Job(agent, driver, tmp_path)
    run = job.start()
    driver.xid(0, 79)
    job.ticked(run)
    state = job.end(run)
    assert ("cause" in state) == (missing == ("nvmlEventSetWait_v2",))


def test_memory_errors_during_run_are_counted(job: Job, driver: SwitchableDriver) -> None:
    driver.ecc(0, 7, uncorrected=False)
    driver.ecc(0, 1)
    driver.set(0, remapped_rows=(2, 0, 0, 0))
    driver.retired_pages(0, 3)
    run = job.start()
    with driver.changes():
        driver.ecc(0, 12, uncorrected=False)
        driver.ecc(0, 2)
        driver.set(0, remapped_rows=(2, 1, 1, 0))
        driver.retired_pages(0, 4)
    state = job.end(run)
    gpu = job.summary(run)[0]
    assert gpu["ecc_correctable"] == 5 and gpu["ecc_uncorrectable"] == 1
    assert gpu["rows_remapped"] == 1 and gpu["pages_retired"] == 1
    assert state["cause"]["kind"] == "gpu-memory" and "uncorrectable" in state["detail"]


@pytest.mark.thorough
@pytest.mark.parametrize("value", [Fails(3), Fails(4), (1 << 64) - 1, (1 << 32) - 1], ids=str)
def test_refused_error_counters_are_ignored(job: Job, driver: SwitchableDriver, value: Any) -> None:
    run = job.start()
    driver.ecc(0, value)
    driver.ecc(0, value, uncorrected=False)
    driver.retired_pages(0, Fails(3))
    driver.set(0, remapped_rows=Fails(3))
    state = job.end(run)
    assert "cause" not in state and not {"ecc_correctable", "xids"} & job.summary(run)[0].keys()


def test_xid_of_mig_instance_reaches_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for the sampler: the driver names the GPU, and the instance by its ids."""
    driver = fake.needed(tmp_path, gpus=1).use(monkeypatch)
    driver.mig(0, [Instance(0, 3), Instance(1, 5)])
    code = (
        "import sys, json\n"
        "from jupyter_amltrain.agent.telemetry.sampler import find_gpus\n"
        "from jupyter_amltrain.agent.telemetry.gpu_incidents import GpuEvents\n"
        f"readings, note = find_gpus([{driver.uuid(0, 1)!r}], None, None)\n"
        "events = GpuEvents(readings)\n"
        "for line in sys.stdin: print(json.dumps([list(one) for one in events.read()]), flush=True)\n"
    )
    import json
    import os
    import subprocess

    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **driver.environment()},
    ) as process:

        def take() -> list[list[int]]:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        assert take() == []
        driver.event(0, fake.XID, 13, 3, 0)
        assert take() == []
        driver.event(0, fake.XID, 31, 5, 0)
        driver.event(0, fake.XID, 79)
        assert take() == [[0, 31], [0, 79]]
        assert process.stdin is not None
        process.stdin.close()


def users_of_the_driver(agent: Agent) -> set[int]:
    """Processes of the agent that have the driver's library loaded."""
    found = set()
    for pid in processes_of(agent.home):
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue
        if "libnvidia-ml" in maps:
            found.add(pid)
    return found


def test_driver_without_runs_is_released(job: Job) -> None:
    run = job.start()
    assert users_of_the_driver(job.agent)  # its sampler
    job.end(run, "sys.exit(0)")
    dispatcher = job.agent.dispatcher()
    job.agent.good("info")
    until(lambda: not users_of_the_driver(job.agent), "every process of this test to release the driver")
    assert dispatcher in processes_of(job.agent.home)  # it lives on, without the driver


def test_driver_after_monitor_stop_is_released(job: Job) -> None:
    job.agent.good("monitor", id="w", gpus=None, period=0.1)
    until(lambda: users_of_the_driver(job.agent), "the monitor to read the driver")
    job.agent.good("monitor", id="w", stop=True)
    until(lambda: not users_of_the_driver(job.agent), "the driver to be let go")


def test_damaged_incident_file_is_ignored(job: Job, driver: SwitchableDriver) -> None:
    """A job can write into its run folder."""
    run = job.start()
    path = job.agent.run_folder(run) / "telemetry" / "gpu-incidents-0.json"
    spoiled = '{"errors": [{"gpu": []}, 7, {"gpu": 0, "kind": "xid", "first": 1e999}], "base": 3, "processes": [1]}'
    path.write_text(spoiled)
    job.ticked(run)
    driver.xid(0, 79)
    until(lambda: job.notes(run), "a note")
    assert "Xid 79" in job.end(run)["detail"]


def test_killed_sampler_keeps_recorded_errors(job: Job, driver: SwitchableDriver) -> None:
    run = job.start()
    driver.xid(0, 79)
    until(lambda: job.notes(run), "a note")
    (sampler,) = users_of_the_driver(job.agent)
    os.kill(sampler, signal.SIGKILL)
    until(lambda: users_of_the_driver(job.agent) - {sampler}, "another sampler")
    job.ticked(run)
    assert "Xid 79" in job.end(run)["cause"]["text"] and job.summary(run)[0]["xids"] == "79"
