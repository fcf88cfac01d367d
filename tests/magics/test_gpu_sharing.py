"""Sharing of GPUs, lost GPUs and broken drivers as one types and reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain import api
from jupyter_amltrain.errors import AmlTrainError, GpuDriverError
from tests.agent.conftest import stranger, until
from tests.azure import yaml_files
from tests.fakes import driver as fake
from tests.fakes.driver import Process, SwitchableDriver

from .conftest import Cell

Fails = Callable[[str], AmlTrainError]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> SwitchableDriver:
    (tmp_path / "root" / "dev").mkdir(parents=True)
    (tmp_path / "root" / "dev" / "nvidiactl").touch()
    monkeypatch.setenv("AMLTRAIN_DEVICE_ROOT", str(tmp_path / "root"))
    return fake.needed(tmp_path, gpus=2).use(monkeypatch)


@pytest.fixture
def busy(driver: SwitchableDriver) -> Iterator[int]:
    """The pid of a stranger on all GPUs."""
    with stranger() as pid:
        for gpu in (0, 1):
            driver.processes(gpu, [Process(pid)])
        yield pid


def test_share_gpus_flag_is_in_run_and_record(
    ip: InteractiveShell, cell: Cell, busy: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cell("%%aml_submit --share-gpus --gpus 1 --wait --as run\npass")
    run = ip.user_ns["run"]
    assert run.spec.share_gpus
    note = run.record().notes[0]
    assert "shared" in note.lower() and str(busy) in note
    capsys.readouterr()
    cell("%aml_runs show last")
    shown = capsys.readouterr().out
    assert note in shown and "--share-gpus" in shown


def test_api_submit_with_share_gpus_shares(busy: int) -> None:
    run = api.submit("pass", gpus=1, share_gpus=True)
    assert run.wait().run.status.notes


def test_share_gpus_setting_is_edited_by_magic(cell: Cell, fails: Fails, driver: SwitchableDriver, capsys: Any) -> None:
    cell("%aml_compute edit local --share-gpus yes\n%aml_compute show")
    output = capsys.readouterr().out
    assert "share GPUs" in output and "GPU sharing" in output
    cell("%aml_compute edit local --share-gpus no\n%aml_compute show")
    assert "GPU sharing" not in capsys.readouterr().out
    assert "nothing to change" in str(fails("%aml_compute edit local"))
    assert "yes" in str(fails("%aml_compute edit local --share-gpus maybe"))
    assert "Did you mean local" in str(fails("%aml_compute edit locl --share-gpus yes"))


@pytest.mark.thorough
def test_lost_gpu_is_shown_in_texts(cell: Cell, driver: SwitchableDriver, capsys: Any) -> None:
    cell("%aml_compute show")
    driver.lose(1)
    until(lambda: api.compute().gpus_lost, "another reading")
    cell("%aml_compute show\n%aml_compute test\n%aml_monitor local --rate 5")
    output = capsys.readouterr().out
    assert "1 free of 2, 1 lost" in output and SwitchableDriver.uuid(1) in output
    tested, monitored = output[output.index("local: ready") :].split("\n", 1)
    assert "GPU 1 lost" in tested
    assert any("lost" in line and line.startswith("GPU 1") for line in monitored.splitlines())


def test_broken_driver_raises_gpu_driver_error(fails: Fails, cell: Cell, ip: Any, driver: SwitchableDriver) -> None:
    driver.answer("nvmlInit", 18)
    error = fails("%%aml_submit --wait\npass")
    assert isinstance(error, GpuDriverError) and "reboot" in str(error).lower() and ".." not in str(error)
    cell("%%aml_submit --gpus 0 --wait --as run\npass")
    assert "no GPU" in ip.user_ns["run"].record().notes[0]


@pytest.mark.thorough
def test_compute_show_says_who_has_the_gpus(
    cell: Cell, driver: SwitchableDriver, ip: InteractiveShell, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def shown(*words: str) -> str:
        def read() -> str:
            cell("%aml_compute show")
            text = capsys.readouterr().out
            return text if all(word in text for word in words) else ""

        return str(until(read, f"{words}"))

    driver.set(0, utilization=(98, 40), memory=(12 << 30, 80 << 30))
    assert "2 free of 2" in shown("98 %", "free")
    gate = tmp_path / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    cell(f"%%aml_submit --gpus 0.25 --as run\n{wait}")
    run = ip.user_ns["run"]
    until(lambda: run.run.status.state.value == "running", "the run")
    with stranger("import sys, time; time.sleep(600) # --token secret") as pid:
        driver.processes(1, [Process(pid, 3 << 30)])
        text = shown(f"used by {run.handle}", "0.75 of it is free", f"pid {pid}")
        assert "0 free of 2" in text and "3.0 GiB" in text and "secret" not in text
        slots = next(line for line in text.splitlines() if line.startswith("gpu slots"))
        assert run.handle in slots and str(pid) in slots
    gate.touch()
    run.wait()


@pytest.mark.thorough
def test_sweep_with_trials_per_gpu_shares_one(
    cell: Cell, driver: SwitchableDriver, ip: InteractiveShell, fails: Fails, tmp_path: Path
) -> None:
    driver.set_gpus(1)
    seen = tmp_path / "seen"
    seen.mkdir()
    code = (
        "import os, pathlib, time\n"
        f"folder = pathlib.Path({str(seen)!r})\n"
        "(folder / f'{x}').write_text(os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "while len(list(folder.iterdir())) < 4: time.sleep(0.01)\n"  # all four run at the same time
        "loss = x"
    )
    line = "--param 'x=choice(1,2,3,4)' --sampler grid --goal 'minimize loss' --out loss"
    cell(f"%%aml_sweep {line} --trials-per-gpu 4 --wait --as sweep\n{code}")
    assert {path.read_text() for path in seen.iterdir()} == {driver.uuid(0)}
    assert [trial.state for trial in ip.user_ns["sweep"].children()] == ["completed"] * 4
    assert "--gpus 1" in str(fails(f"%%aml_sweep {line} --trials-per-gpu 4 --gpus 1\n{code}"))


@pytest.mark.parametrize("wrong", [{"trials_per_gpu": 0}, {"trials_per_gpu": 101}, {"trials_per_gpu": 4, "gpus": 1}])
def test_api_sweep_with_wrong_part_of_gpu_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(AmlTrainError) as error:
        api.sweep("loss = x", params={"x": "choice(1,2)"}, goal="minimize loss", **wrong)  # type: ignore[arg-type]
    assert error.value.code == "sweep.gpus" and "\n" not in str(error.value)


def test_trials_per_gpu_with_sweep_file_is_refused(fails: Fails, tmp_path: Path) -> None:
    yaml_files.write(tmp_path, "sweep")
    path = tmp_path / "sweep.yml"
    assert "max_concurrent_trials" in str(fails(f"%aml_sweep {path} --trials-per-gpu 4"))
    with pytest.raises(AmlTrainError) as error:
        api.sweep(path, trials_per_gpu=4)
    assert error.value.code == "sweep.gpus"
