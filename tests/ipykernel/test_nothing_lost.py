"""Kernel and server die; attached again from a new kernel elsewhere, all is there.

The deaths of the fast tier share one state root and overlap, as those of several notebooks
would; one fresh kernel in another folder then looks at every run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from .conftest import environ_of
from .harness import DEADLINE, Kernel, kernel

pytestmark = pytest.mark.thorough

LINES = 80
CELL = f"""%%aml_submit --name {{name}} --out total
import mlflow, sys, time
total = 0
for i in range({LINES}):
    total += i
    print("line", i, "x" * (i % 50), flush=True)
    if i % 4 == 0:
        mlflow.log_metric("total", total, step=i)
    time.sleep(0.02)
print("bytes that are not text:", flush=True)
sys.stdout.buffer.write(b"\\xff\\xfe\\n");
"""
EXPECTED_METRIC = [[i, sum(range(i + 1))] for i in range(0, LINES, 4)]
POINTS = ["kernel_after_submit", "kernel_before_finish", "kernel_before_import"]
SEEDS = [1, 2, 3]

ATTACH_SCRIPT = """
import hashlib, json, jupyter_amltrain as aml
all_found = {{}}
for which in {which!r}:
    try:
        run = aml.attach(which)
        run.wait(100)
    except aml.errors.AmlTrainError as error:
        all_found[which] = dict(error=str(error))
        continue
    all_found[which] = dict(
        handle=run.handle, state=run.state, exit_code=run.status.exit_code,
        log=hashlib.sha256(open(run.log_path, "rb").read()).hexdigest(),
        metric=[[step, value] for step, _, value in run.metrics().get("total", [])],
        seq=run.telemetry()["seq"].tolist(), outputs=run.run.outputs)
print("FOUND" + json.dumps(all_found))
"""


def _look(environ: dict[str, str], cwd: Path, *which: str) -> dict[str, dict[str, Any]]:
    with kernel(environ, cwd) as fresh:
        text = fresh.run(ATTACH_SCRIPT.format(which=which), timeout=2 * DEADLINE).stdout
    found: dict[str, dict[str, Any]] = json.loads(text.partition("FOUND")[2])
    return found


def _is_whole(found: dict[str, Any]) -> None:
    lines = "".join(f"line {i} {'x' * (i % 50)}\n" for i in range(LINES))
    whole = lines.encode() + b"bytes that are not text:\n\xff\xfe\n"
    import hashlib

    assert found["state"] == "completed" and found["exit_code"] == 0
    assert found["log"] == hashlib.sha256(whole).hexdigest()
    assert found["metric"] == EXPECTED_METRIC
    assert found["outputs"] == {"total": sum(range(LINES))}
    assert found["seq"] == list(range(int(found["seq"][0]), int(found["seq"][0]) + len(found["seq"])))
    assert len(found["seq"]) >= 3


def _load(k: Kernel) -> None:
    k.run("%load_ext jupyter_amltrain")


def _dies_at(environ: dict[str, str], folder: Path, point: str) -> None:
    with kernel(environ, folder / "work", AMLTRAIN_FAILPOINT=point) as first:
        _load(first)
        first.submit_and_die(CELL.format(name=point))


def _killed_at(environ: dict[str, str], folder: Path, name: str, moment: float) -> None:
    with kernel(environ, folder / "work") as first:
        _load(first)
        first.run(CELL.format(name=name))
        time.sleep(moment)  # a random moment of the run is what is tested
        first.kill()


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Everybody dies; what a fresh kernel elsewhere finds, by the run's name."""
    import jupyter_client.manager  # its parts import each other: not in several threads at once

    assert jupyter_client.manager.KernelManager
    folder = tmp_path_factory.mktemp("deaths")
    with environ_of(folder) as environ, ThreadPoolExecutor(4) as pool:
        done = [pool.submit(_server_dies_at, environ, folder, point) for point in POINTS]
        for seed in SEEDS:
            moment = random.Random(seed).uniform(0.0, 5.0)
            done.append(pool.submit(_server_killed, environ, folder, f"server-seed-{seed}", moment))
            done.append(pool.submit(_killed_at, environ, folder, f"seed-{seed}", moment))
        done += [pool.submit(_dies_at, environ, folder, point) for point in (*POINTS, "kernel_before_submit")]
        for future in done:
            future.result(2 * DEADLINE)
        names = [*POINTS, "kernel_before_submit", *(f"seed-{seed}" for seed in SEEDS)]
        names += [*(f"server_{point}" for point in POINTS), *(f"server-seed-{seed}" for seed in SEEDS)]
        yield _look(environ, folder / "elsewhere", *(name.replace("_", "-") for name in names))


@pytest.mark.parametrize("point", POINTS)
def test_kernel_death_at_failpoint_loses_nothing(deaths: dict[str, dict[str, Any]], point: str) -> None:
    _is_whole(deaths[point.replace("_", "-")])


def test_kernel_death_before_submit_leaves_no_run(deaths: dict[str, dict[str, Any]]) -> None:
    assert deaths["kernel-before-submit"]["error"].startswith("No run 'kernel-before-submit'")


@pytest.mark.parametrize("seed", SEEDS)
def test_kernel_death_at_random_moment_loses_nothing(deaths: dict[str, dict[str, Any]], seed: int) -> None:
    _is_whole(deaths[f"seed-{seed}"])


@pytest.mark.parametrize("point", POINTS)
def test_server_death_at_failpoint_loses_nothing(deaths: dict[str, dict[str, Any]], point: str) -> None:
    _is_whole(deaths[f"server-{point}".replace("_", "-")])


@pytest.mark.parametrize("seed", SEEDS)
def test_server_death_at_random_moment_loses_nothing(deaths: dict[str, dict[str, Any]], seed: int) -> None:
    _is_whole(deaths[f"server-seed-{seed}"])


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_kernel_death_repeated_loses_nothing(environ: dict[str, str], tmp_path: Path, number: int) -> None:
    seed = int(os.environ.get("AMLTRAIN_SOAK_SEED", "20261121")) + number
    _killed_at(environ, tmp_path, "soak", random.Random(seed).uniform(0.0, 6.0))
    _is_whole(_look(environ, tmp_path / "elsewhere", "last")["last"])


@pytest.mark.soak
@pytest.mark.parametrize("number", range(20))
def test_server_death_repeated_loses_nothing(environ: dict[str, str], tmp_path: Path, number: int) -> None:
    seed = int(os.environ.get("AMLTRAIN_SOAK_SEED", "20261121")) + 100 + number
    _server_killed(environ, tmp_path, "soak", random.Random(seed).uniform(0.0, 6.0))
    _is_whole(_look(environ, tmp_path / "elsewhere", "last")["last"])


def _server_killed(environ: dict[str, str], folder: Path, name: str, moment: float) -> None:
    with _kernel_of_a_server(environ, folder, name) as (_, client):
        client.execute_interactive(CELL.format(name=name), timeout=DEADLINE, output_hook=lambda message: None)
        time.sleep(moment)


def _server_dies_at(environ: dict[str, str], folder: Path, point: str) -> None:
    """The kernel dies at a failpoint and the server a moment later, before it can start another."""
    name = f"server_{point}"
    with _kernel_of_a_server({**environ, "AMLTRAIN_FAILPOINT": point}, folder, name) as (kernel_id, client):
        (its,) = [p for p in psutil.process_iter(["cmdline"]) if kernel_id in " ".join(p.info["cmdline"] or ())]
        client.execute(CELL.format(name=name))
        its.wait(DEADLINE)


@contextlib.contextmanager
def _kernel_of_a_server(environ: dict[str, str], folder: Path, name: str) -> Iterator[tuple[str, Any]]:
    """Id and client of a kernel that has loaded us; its server is killed with all its children."""
    from jupyter_client import BlockingKernelClient

    runtime = folder / f"runtime-{name}"
    server = subprocess.Popen(
        [
            sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--port=0",
            "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True",
            f"--ServerApp.root_dir={folder / 'work'}",
        ],
        env={**environ, "JUPYTER_RUNTIME_DIR": str(runtime)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = _server_url(runtime)
        request = urllib.request.Request(f"{url}api/kernels", data=b'{"name": "python3"}', method="POST")
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            kernel_id = json.load(answer)["id"]
        client = BlockingKernelClient(connection_file=str(runtime / f"kernel-{kernel_id}.json"))
        client.load_connection_file()
        client.start_channels()
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                client.wait_for_ready(timeout=DEADLINE)
                break
            except RuntimeError:  # without its manager, a client takes a slow start for a death
                assert time.monotonic() < deadline
        client.execute_interactive("%load_ext jupyter_amltrain", timeout=DEADLINE)
        yield kernel_id, client
        client.stop_channels()
    finally:
        parent = psutil.Process(server.pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        server.wait(DEADLINE)


def _server_url(runtime: Path) -> str:
    """URL of the server, when it answers: its file is there a moment before it listens."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        for file in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(ValueError, KeyError, OSError):
                url = str(json.loads(file.read_text())["url"])
                with urllib.request.urlopen(f"{url}api/status", timeout=DEADLINE):
                    return url
        time.sleep(0.05)
    raise AssertionError("the server did not start")
