"""Jobs of several processes on this machine: what the scripts see, and how they end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_amltrain.agent.distributed import launchers
from jupyter_amltrain.errors import RunFailed
from tests.conftest import processes_of
from tests.helpers import api_of, until
from tests.tiers import thorough

from .scripts import ALL_REDUCE, ENVIRONMENT, LEAVE, TRAINING, needs_mpirun, needs_torch

WAIT_S = 150.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("several")


@pytest.fixture(scope="module")
def api(home: Path) -> Iterator[Any]:
    with api_of(home, AMLTRAIN_STALL="3") as module:  # reports ranks without progress soon
        yield module


def ranks(run: Any) -> dict[int, dict[str, Any]]:
    """The records of the processes, by rank."""
    rows = [json.loads(path.read_text()) for path in Path(run.run.folder, "ranks").glob("*.json")]
    return {row["rank"]: row for row in rows}


def job_of(run: Any, rank: int) -> psutil.Process:
    """The process of the job itself, below the program around it."""

    def find() -> psutil.Process | None:
        row = ranks(run).get(rank)
        children = psutil.Process(row["pid"]).children() if row else []
        return children[0] if children else None

    return until(find, f"rank {rank}")


@needs_torch
def test_pytorch_processes_connect_and_log_apart(api: Any) -> None:
    run = api.submit(ALL_REDUCE + LEAVE, processes=2, out=["total"], name="two").wait(WAIT_S)
    assert [run.logs(rank=rank).strip() for rank in range(2)] == ["rank 0 of 2 sum 3", "rank 1 of 2 sum 3"]
    assert run.result("total") == 3 and run.status.ranks == 2


@pytest.mark.thorough
@needs_torch
def test_rank_that_raises_is_named_with_its_line(api: Any) -> None:
    code = ALL_REDUCE + "if rank == 1:\n    raise ValueError('bad luck')\ndist.barrier()\n"
    run = api.submit(code, processes=2, name="raises")
    with pytest.raises(RunFailed) as raised:
        run.wait(WAIT_S)
    assert "bad luck" in str(raised.value) and "--rank 1" in str(raised.value)
    assert raised.value.cell_line and "bad luck" in raised.value.log_tail
    assert run.status.failed_rank == 1
    assert run.status.exit_code == 1 or run.status.signal == signal.SIGABRT  # Gloo may abort at the exit
    assert not processes_of(Path(os.environ["AMLTRAIN_HOME"])) or not job_pids(run)


def job_pids(run: Any) -> list[int]:
    """Pids of the run's processes that still live."""
    return [row["pid"] for row in ranks(run).values() if psutil.pid_exists(row["pid"])]


@pytest.mark.thorough
@needs_torch
def test_losses_do_not_depend_on_number_of_processes(api: Any) -> None:
    curves = []
    for processes in (2, 4):
        run = api.submit(TRAINING, processes=processes, name="train").wait(WAIT_S)
        curves.append([value for _, _, value in run.metrics()["loss"]])
    assert len(curves[0]) == 10 and curves[0] == pytest.approx(curves[1], rel=1e-6, abs=1e-6)


@needs_mpirun
def test_mpi_processes_have_open_mpi_variables(api: Any) -> None:
    run = api.submit(ENVIRONMENT, distribution="mpi", processes=3, name="mpi").wait(WAIT_S)
    seen = [json.loads(run.logs(rank=rank)) for rank in range(3)]
    assert [(row["OMPI_COMM_WORLD_RANK"], row["OMPI_COMM_WORLD_SIZE"]) for row in seen] == [
        ("0", "3"), ("1", "3"), ("2", "3"),
    ]  # fmt: skip
    assert seen[0]["AML_OUTPUT_DIR"] != seen[1]["AML_OUTPUT_DIR"]


def test_tensorflow_processes_have_one_cluster(api: Any, tmp_path: Path) -> None:
    # The server ends with the workers, which wait until it has printed.
    up = str(tmp_path / "up")
    code = ENVIRONMENT + (
        "import time\n"
        f"if '\"type\": \"ps\"' in os.environ['TF_CONFIG']:\n    open({up!r}, 'w').close()\n    time.sleep(600)\n"
        f"while not os.path.exists({up!r}):\n    time.sleep(0.1)\n"
    )
    run = api.submit(code, distribution="tensorflow:1", processes=2, name="tf").wait(WAIT_S)
    seen = [json.loads(json.loads(run.logs(rank=rank))["TF_CONFIG"]) for rank in range(3)]
    assert [(row["task"]["type"], row["task"]["index"]) for row in seen] == [("worker", 0), ("worker", 1), ("ps", 0)]
    assert seen[0]["cluster"] == seen[2]["cluster"] and len(set(seen[0]["cluster"]["worker"])) == 2
    assert not job_pids(run)


#: A job of two processes by the launcher that needs no framework.
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, *thorough(signal.SIGSEGV)])
def test_killed_rank_ends_run_and_is_named(api: Any, number: int) -> None:
    run = api.submit(SLEEP, distribution="tensorflow", processes=2, name="killed")
    job_of(run, 1).send_signal(number)
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    assert (run.status.failed_rank, run.status.signal, run.status.reason) == (1, number, "signal")
    assert not job_pids(run)


def test_killed_program_around_rank_ends_run_and_is_named(api: Any) -> None:
    run = api.submit(SLEEP, distribution="tensorflow", processes=2, name="killed")
    job = job_of(run, 1)
    psutil.Process(ranks(run)[1]["pid"]).kill()
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    assert run.status.failed_rank == 1
    until(lambda: not job.is_running() or job.status() == psutil.STATUS_ZOMBIE, "the end of its process")


def test_cancel_ends_all_ranks(api: Any) -> None:
    run = api.submit(SLEEP, distribution="tensorflow", processes=3, name="canceled")
    jobs = [job_of(run, rank) for rank in range(3)]
    began = time.monotonic()
    run.cancel()
    until(lambda: run.status.state.terminal, "the end")
    assert run.status.state == "canceled" and run.status.failed_rank is None
    assert not any(job.is_running() and job.status() != psutil.STATUS_ZOMBIE for job in jobs)
    assert time.monotonic() - began < WAIT_S


@pytest.mark.thorough
@needs_torch
def test_hung_rank_is_named_with_its_line_and_run_goes_on(api: Any) -> None:
    code = ALL_REDUCE.replace("total = torch", "import time\ntime.sleep(600 * rank)\ntotal = torch")
    run = api.submit(code, processes=2, name="hangs")
    until(lambda: "rank 1" in run.status.detail, "the hung rank")
    line = code.splitlines().index("time.sleep(600 * rank)") + 1
    assert f"line {line} " in run.status.detail and "all_reduce" in run.status.detail
    assert run.status.state == "running"
    run.cancel()
    until(lambda: run.status.state.terminal, "the end")
    assert not job_pids(run)


@pytest.mark.thorough
def test_time_limit_ends_all_ranks(api: Any) -> None:
    run = api.submit(SLEEP, distribution="tensorflow", processes=2, timeout=2, name="late")
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    assert run.status.reason == "timeout" and not job_pids(run)


def test_absent_mpirun_fails_with_its_package(api: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = api.submit("1", distribution="mpi", processes=2, name="none")
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    assert run.status.reason == "launch" and "openmpi" in run.status.detail


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter without packages."""
    import venv

    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    return str(tmp_path / "bare" / "bin" / "python")


@pytest.mark.parametrize(("kind", "package"), [("pytorch", "torch"), ("deepspeed", "deepspeed"), ("ray", "ray")])
def test_absent_framework_is_named_with_its_package(bare_python: str, kind: str, package: str) -> None:
    message = launchers.missing({"kind": kind, "python": bare_python})
    assert "pip install" in message and package in message


@pytest.mark.thorough
@needs_torch
def test_taken_port_in_environment_does_not_matter(api: Any) -> None:
    run = api.submit(ALL_REDUCE + LEAVE, processes=2, env={"MASTER_PORT": "22"}, name="port").wait(WAIT_S)
    assert "sum 3" in run.logs(rank=1)


def test_two_runs_beside_each_other_use_other_ports(api: Any) -> None:
    code = ENVIRONMENT + "import time; time.sleep(1)\n"
    runs = [api.submit(code, distribution="tensorflow", processes=2, name="beside") for _ in range(2)]
    clusters = [json.loads(json.loads(run.wait(WAIT_S).logs(rank=0))["TF_CONFIG"])["cluster"]["worker"] for run in runs]
    assert not set(clusters[0]) & set(clusters[1])


@pytest.mark.thorough
@needs_torch
def test_pytorch_processes_restart_together_at_checkpoint(api: Any) -> None:
    code = ALL_REDUCE + (
        "place = os.environ['AML_CHECKPOINT_DIR'] + '/step'\n"
        "first = not os.path.exists(place)\ndist.barrier()\n"
        "if first and rank == 0: open(place, 'w').write('7')\n"
        "dist.barrier()\n"
        "if first and rank == 1: os.kill(os.getpid(), 9)\n"
        "dist.barrier()\nprint('from', open(place).read(), flush=True)\n"
    )
    run = api.submit(code, processes=2, max_restarts=1, name="again").wait(WAIT_S)
    assert run.status.attempt == 2 and run.status.attempts[0].detail.startswith("rank 1")
    for rank in range(2):
        assert run.logs(rank=rank).count("sum 3") == 2 and run.logs(rank=rank).count("from 7") == 1
