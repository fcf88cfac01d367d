"""Jobs in containers on this machine, as a user has them, with a Docker engine of the test."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import PreflightError, RunFailed, SpecError

from .fakes.docker_engine import IMAGE_ID, DockerEngine, docker_engine
from .helpers import until
from .web_server import serving

WAIT_S = 90.0
IMAGE = "test/python:1"


@pytest.fixture
def engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEngine]:
    with docker_engine(home.parent / "engine") as engine:
        monkeypatch.setenv("PATH", f"{engine.bin}{os.pathsep}{os.environ['PATH']}")
        for name in list(os.environ):
            if name.startswith("DOCKER_"):
                monkeypatch.delenv(name)
        yield engine


def state(home: Path, run: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((home / "runs" / run.run_id / "state.json").read_text())
    return value


def phases(home: Path, run: Any) -> list[str]:
    return [phase["name"] for phase in state(home, run)["phases"]]


SECRET = "s3cr3t-value"


def reason(home: Path, run: Any) -> str:
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    detail = str(state(home, run)["detail"])
    assert "\n" not in detail
    return detail


def test_cell_in_image_returns_values_metrics_and_log(
    api: Any, home: Path, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_KERNEL", "1")
    Path("data, raw").mkdir()
    script = """\
import importlib.util, os, time
import mlflow
print('image', os.environ['OF_THE_IMAGE'], os.environ.get('OF_THE_KERNEL'), os.environ['TOKEN_X'][:4], os.getcwd())
print('hooks', importlib.util.find_spec('amltrain_values') is not None)
mlflow.log_metric('loss', 0.5)
time.sleep(0.5)
answer = 6 * 7
"""
    run = api.submit(
        script, environment=IMAGE, out=["answer"], gpus=0, secrets={"TOKEN_X": SECRET},
        inputs={"data": os.path.abspath("data, raw")}, env={"A": "line one\nline two"},
    ).wait(WAIT_S)  # fmt: skip
    assert f"image 1 None s3cr {Path.cwd()}" in run.logs() and "hooks True" in run.logs()
    assert run.result("answer") == 42 and run.metrics()["loss"][-1][2] == 0.5
    assert state(home, run)["container"]["image"] == IMAGE and engine.containers() == []
    assert "preparing" not in phases(home, run) and any("is there already" in note for note in run.record().notes)
    telemetry = (home / "runs" / run.run_id / "telemetry/node-0.jsonl").read_text().splitlines()
    header, *ticks = map(json.loads, telemetry)
    at = header["columns"].index("processes")
    assert max(tick[at] for tick in ticks if isinstance(tick, list)) >= 2  # docker run, and the job
    provenance = json.loads((home / "runs" / run.run_id / "provenance.json").read_text())
    assert IMAGE in provenance["image"] and IMAGE_ID in provenance["image"] and "packages" not in provenance
    check_command(engine, home, run)


def check_command(engine: DockerEngine, home: Path, run: Any) -> None:
    """Check the command line of ``docker run``, and what is in no file and no command line."""
    call = engine.calls("run")[0]
    argv, folder = call["argv"], home / "runs" / run.run_id
    options = [f"{name} {value}" for name, value in zip(argv, argv[1:], strict=False)]
    user = f"--user {os.getuid()}:{os.getgid()}"
    for option in ("--network host", "--shm-size 2g", user, "--env A", "--env TOKEN_X"):
        assert option in options, options
    assert {"--rm", "--init", "--detach=false"} <= set(argv) and "--gpus" not in argv
    assert argv[argv.index("--name") + 1].startswith(f"amltrain-{run.run_id}-")
    mounts = [value for name, value in zip(argv, argv[1:], strict=False) if name == "--mount"]
    assert f"type=bind,source={folder},target={folder}" in mounts
    assert f"type=bind,source={Path.cwd()},target={Path.cwd()}" in mounts
    data = f"{Path.cwd()}/data, raw"
    assert f'type=bind,"source={data}","target={data}",readonly' in mounts
    assert any("/hook-" in mount and mount.endswith(",readonly") for mount in mounts)
    assert not any(SECRET in word or "line two" in word for one in engine.calls() for word in one["argv"])
    token = call["env"]["MLFLOW_TRACKING_TOKEN"]
    assert call["env"]["TOKEN_X"] == SECRET and not any(token in word for word in argv)
    for path in [path for path in home.rglob("*") if path.is_file()]:
        assert SECRET.encode() not in path.read_bytes(), path


def test_downloaded_input_is_mounted(
    api: Any, home: Path, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as web:
        run = api.submit(
            "import os; print(os.path.realpath(os.environ['AML_INPUT_DATA']))",
            environment=IMAGE, inputs={"data": web.url}, gpus=0,
        ).wait(WAIT_S)  # fmt: skip
    argv = engine.calls("run")[0]["argv"]
    sources = [word.split(",")[1].removeprefix("source=") for word in argv if word.startswith("type=bind")]
    assert run.logs().splitlines()[-1].startswith(f"{home}/data/") and f"{home}/data" in sources


# ---- the end


TRAP = """\
import os, signal, sys, time
def bye(*_):
    print('bye', flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, {handler})
print('up', flush=True)
time.sleep(600)
"""


def up(run: Any, engine: DockerEngine) -> None:
    until(lambda: "up" in run.logs() and engine.containers(), "the container runs")


@pytest.mark.thorough
@pytest.mark.parametrize("hidden", [False, True])
def test_canceled_run_ends_its_container_by_the_engine(
    api: Any, home: Path, engine: DockerEngine, hidden: bool
) -> None:
    engine.set(hidden=hidden)
    run = api.submit(TRAP.format(handler="bye"), environment=IMAGE, gpus=0)
    up(run, engine)
    run.cancel()
    until(lambda: state(home, run)["state"] == "canceled", "the run is canceled")
    assert run.logs().count("bye") == 1 and engine.containers() == []
    assert [call["argv"][:2] for call in engine.calls("stop")] == [["stop", "-t"]]


@pytest.mark.thorough
def test_time_limit_kills_container_that_ignores_sigterm(api: Any, home: Path, engine: DockerEngine) -> None:
    engine.set(hidden=True)
    run = api.submit(TRAP.format(handler="signal.SIG_IGN"), environment=IMAGE, gpus=0, timeout=3)
    assert "time limit" in reason(home, run) and state(home, run)["reason"] == "timeout"
    assert engine.containers() == []


@pytest.mark.thorough
@pytest.mark.parametrize("victims", [["supervisor"], ["guardian", "supervisor"]])
def test_killed_supervisor_leaves_no_container(api: Any, home: Path, engine: DockerEngine, victims: list[str]) -> None:
    engine.set(hidden=True)
    run = api.submit(TRAP.format(handler="bye"), environment=IMAGE, gpus=0)
    up(run, engine)
    before = state(home, run)
    for victim in victims:
        os.kill(before[victim]["pid"], signal.SIGKILL)
    until(lambda: state(home, run)["state"] == "lost", "the run is lost")
    until(lambda: not engine.containers(), "the container is gone")


def test_killed_docker_run_ends_container_and_run(api: Any, home: Path, engine: DockerEngine) -> None:
    engine.set(hidden=True)
    run = api.submit(TRAP.format(handler="bye"), environment=IMAGE, gpus=0)
    up(run, engine)
    os.kill(state(home, run)["rank"]["pid"], signal.SIGKILL)
    assert "SIGKILL" in reason(home, run) and engine.containers() == []


# ---- images


@pytest.mark.thorough
def test_image_is_pulled_in_phase_preparing_and_pull_can_be_canceled(
    api: Any, home: Path, engine: DockerEngine
) -> None:
    gate = engine.folder / "gate"
    engine.set(images=[], gate=str(gate))
    first = api.submit("print('ran')", environment=IMAGE, gpus=0)
    until(lambda: "1 of 2 layers" in str(state(home, first)["detail"]), "the pull shows its progress")
    assert state(home, first)["state"] == "preparing" and f"[image] pulling {IMAGE}" in first.logs()
    first.cancel()
    until(lambda: state(home, first)["state"] == "canceled", "the run is canceled")
    assert "pulled" in state(home, first)["detail"] and engine.calls("run") == []
    gate.touch()
    second = api.submit("print('ran')", environment=IMAGE, gpus=0).wait(WAIT_S)
    assert "[image] pulled in" in second.logs() and second.logs().endswith("ran\n")
    assert phases(home, second)[:3] == ["queued", "preparing", "running"]
    assert "Pull complete" in (home / "runs" / second.run_id / "log/environment.txt").read_text()
    engine.set(images=[])
    plan = api.plan_spec(second.run.spec)
    assert any("the last pull took" in note for note in plan.notes)


@pytest.mark.thorough
def test_image_is_pulled_in_advance_by_env_build(api: Any, engine: DockerEngine) -> None:
    engine.set(images=[])
    run = api.build_environment(IMAGE).wait(WAIT_S)
    assert "[image] pulled in" in run.logs() and "Python 3" in run.logs()


#: Failures of the engine before a start: settings, variables, code of the error and a word of its text.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, str], str, str]] = {
    "daemon": ({"fail": {"info": [1, "Cannot connect to the Docker daemon at unix"]}}, {}, "docker.daemon", "start"),
    "errors": ({"info": {"ServerErrors": ["Cannot connect to the Docker daemon"]}}, {}, "docker.daemon", "start"),
    "permission": (
        {"fail": {"info": [1, "permission denied while trying to connect to the docker API at unix:///docker.sock"]}},
        {}, "docker.permission", "usermod",
    ),
    "rootless": ({"info": {"SecurityOptions": ["name=rootless"]}}, {}, "docker.mode", "rootless"),
    "desktop": ({"info": {"OperatingSystem": "Docker Desktop"}}, {}, "docker.mode", "Desktop"),
    "remote": ({}, {"DOCKER_HOST": "tcp://elsewhere:2375"}, "docker.mode", "DOCKER_HOST"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_engine_that_cannot_run_jobs_is_refused_before_submit(
    api: Any, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    settings, variables, code, word = REFUSED[case]
    engine.set(**settings)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PreflightError, match=word) as caught:
        api.submit("x = 1", environment=IMAGE, gpus=0)
    assert caught.value.code == code and "\n" not in str(caught.value) and not engine.calls("run")


def test_machine_without_docker_is_refused_before_submit(
    api: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightError, match="not installed") as caught:
        api.submit("x = 1", environment=IMAGE, gpus=0)
    assert caught.value.code == "docker.missing" and "\n" not in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("image", "fail", "word"),
    [
        (
            "test/absent:1",
            {"pull": [1, "Error response from daemon: manifest for test/absent:1 not found: manifest unknown"]},
            "no such image",
        ),
        (
            IMAGE,
            {"run": [125, 'docker: Error response from daemon: could not select device driver "" with capabilities']},
            "NVIDIA Container Toolkit",
        ),
        (IMAGE, {"run": [127, 'docker: Error response from daemon: exec: "/bin/sh": no such file']}, "/bin/sh"),
        (IMAGE, {"run": [125, "docker: Error response from daemon: odd.\n\nRun 'docker run --help'"]}, "daemon: odd"),
    ],
)  # fmt: skip
def test_error_of_engine_is_reason_of_run_in_one_line(
    api: Any, home: Path, engine: DockerEngine, image: str, fail: dict[str, Any], word: str
) -> None:
    engine.set(fail=fail)
    run = api.submit("x = 1", environment=image, gpus=0)
    assert word in reason(home, run)
    assert state(home, run)["reason"] == ("environment" if "pull" in fail else "launch")


@pytest.mark.thorough
def test_exit_codes_of_the_job_are_its_own(api: Any, home: Path, engine: DockerEngine) -> None:
    run = api.submit("import sys\nprint('docker: in the middle')\nsys.exit(125)\n", environment=IMAGE, gpus=0)
    assert "125" in reason(home, run) and state(home, run)["reason"] == "exit"


# ---- flags


@pytest.mark.thorough
def test_interpreter_of_image_is_found_there_or_named(api: Any, home: Path, engine: DockerEngine) -> None:
    run = api.submit("print('ran')", environment=IMAGE, gpus=0).wait(WAIT_S)
    first = api.plan_spec(run.run.spec)
    assert first.request["argv"][0] == "python" and first.request["container"]["image"] == IMAGE
    named = api.submit_spec(msgspec.structs.replace(run.run.spec, name="named", python=sys.executable)).wait(WAIT_S)
    assert named.logs() == "ran\n" and sys.executable in engine.calls("run")[1]["argv"]


def test_options_of_docker_run_come_before_those_of_the_run(api: Any, engine: DockerEngine) -> None:
    run = api.submit(
        "import os\nprint(os.environ['B'])", environment=IMAGE, gpus=0, shm_size="8g",
        docker_args="--ulimit memlock=-1 --env 'B=two words'",
    ).wait(WAIT_S)  # fmt: skip
    assert "two words" in run.logs()
    argv = engine.calls("run")[0]["argv"]
    assert argv[1:3] == ["--ulimit", "memlock=-1"] and argv[argv.index("--shm-size") + 1] == "8g"


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"environment": f"kernel,{IMAGE}"}, "installs no packages"),
        ({"environment": "."}, "Dockerfile"),
        ({"environment": "python:3.11"}, "docker.io/library/python:3.11"),
        ({"environment": IMAGE, "docker_args": "one"}, "--docker-args"),
        ({"environment": IMAGE, "docker_args": "--env 'x"}, "--docker-args"),
        ({"shm_size": "2g"}, "--shm-size"),
    ],
)
def test_flag_without_meaning_is_refused_with_its_name(
    api: Any, engine: DockerEngine, values: dict[str, str], word: str
) -> None:
    with pytest.raises(SpecError, match=word) as caught:
        api.submit("x = 1", gpus=0, **values)
    assert "\n" not in str(caught.value) and api.runs() == []
