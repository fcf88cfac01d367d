"""Environments on this machine, as a user has them: built by the agent before the run, once, shared, removed."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_amltrain.agent.environments.environment_store import MARKER, EnvironmentStore
from jupyter_amltrain.commands.submit import parse_submit, send
from jupyter_amltrain.errors import CommandError, PreflightError, RunFailed, SpecError

from .helpers import until
from .wheels import make_wheel

WAIT_S = 90.0
SHOW = "import alpha, sys\nprint('version', alpha.version, sys.prefix)\n"


@pytest.fixture
def wheels(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with packages, beside the working folder; uv has a cache of its own."""
    folder = home.parent / "wheels"
    make_wheel(folder, "alpha", "1.0")
    make_wheel(folder, "alpha", "2.0")
    make_wheel(folder, "beta", "1.0", requires=("alpha<2",))
    make_wheel(folder, "mlflow-skinny", "9.0", code="version = 'skinny'\n")
    monkeypatch.setenv("UV_CACHE_DIR", str(home.parent / "uv-cache"))
    return folder


def requirements(*lines: str, name: str = "requirements.txt") -> str:
    """A file in the working folder; its packages come from the folder of wheels."""
    Path(name).write_text("\n".join(["--no-index", "--find-links ../wheels", *lines, ""]))
    return name


def environments(home: Path) -> list[str]:
    return EnvironmentStore(str(home)).list_keys()


def state(home: Path, run: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((home / "runs" / run.run_id / "state.json").read_text())
    return value


def phases(home: Path, run: Any) -> list[str]:
    return [phase["name"] for phase in state(home, run)["phases"]]


def test_requirements_file_is_built_once_and_shown_in_log(api: Any, home: Path, wheels: Path) -> None:
    file = requirements("alpha<2  # a comment", "beta")
    first = api.submit(SHOW, environment=file, gpus=0).wait(WAIT_S)
    log = first.logs()
    assert "version 1.0" in log and f"{home}/envs/" in log.rpartition("version")[2]
    assert "[environment]" in log and "alpha==1.0" in log and "beta==1.0" in log
    assert phases(home, first)[:3] == ["queued", "preparing", "running"]
    second = api.submit(SHOW, environment=file, gpus=0).wait(WAIT_S)
    assert second.logs().startswith("version 1.0") and "preparing" not in phases(home, second)
    assert any("built already" in note for note in second.record().notes)
    assert len(environments(home)) == 1
    marker = json.loads((home / "envs" / environments(home)[0] / MARKER).read_text())
    assert marker["packages"] == ["alpha==1.0", "beta==1.0"] and marker["seconds"] > 0
    requirements("alpha==2.0")
    plan = api.plan_spec(first.run.spec)  # a run that is submitted again keeps the packages that it had
    assert plan.request["environment"]["packages"][2:] == ["alpha<2", "beta"]
    assert "version 2.0" in api.submit(SHOW, environment=file, gpus=0).wait(WAIT_S).logs()
    assert len(environments(home)) == 2


FILES = {
    "pyproject.toml": '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.8"\ndependencies = ["alpha<2"]\n',
    "conda.yml": "channels: [defaults]\ndependencies:\n  - python={python}\n  - pip\n  - pip:\n    - alpha<2\n",
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", FILES)
def test_project_and_conda_file_with_pip_packages_need_no_conda(
    api: Any, home: Path, wheels: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))  # the user's settings of uv reach the build
    monkeypatch.setenv("UV_NO_INDEX", "1")
    Path(name).write_text(FILES[name].replace("{python}", f"{sys.version_info[0]}.{sys.version_info[1]}"))
    assert "version 1.0" in api.submit(SHOW, environment=name, gpus=0).wait(WAIT_S).logs()


@pytest.mark.thorough
def test_packages_of_the_line_and_settings_of_pip_are_used(
    api: Any, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_FIND_LINKS", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PYTHONPATH", "/of/the/kernel")
    script = SHOW + "print(sys.path)\n"
    run = api.submit(script, pip=["beta alpha<2"], env={"PYTHONPATH": "/of/the/job"}, gpus=0).wait(WAIT_S)
    assert "version 1.0" in run.logs() and "beta==1.0" in run.logs()
    assert "/of/the/job" in run.logs()
    assert "/of/the/kernel" not in api.submit(script, pip=["beta alpha<2"], gpus=0).wait(WAIT_S).logs()


def test_secret_of_the_line_reaches_the_build_and_no_file(api: Any, home: Path, wheels: Path) -> None:
    Path("r.txt").write_text("--no-index\n--find-links ${PRIVATE_WHEELS}\nalpha<2\n")
    run = api.submit(SHOW, environment="r.txt", secrets={"PRIVATE_WHEELS": str(wheels)}, gpus=0).wait(WAIT_S)
    assert "version 1.0" in run.logs()
    marker = (home / "envs" / environments(home)[0] / MARKER).read_text()
    assert "${PRIVATE_WHEELS}" in marker and str(wheels) not in marker


def test_dry_run_as_file_of_az_ml_has_the_packages(api: Any, wheels: Path) -> None:
    from jupyter_amltrain.commands.submit import parse_submit, plan_text

    file = requirements("alpha<2")
    text = plan_text(parse_submit(["--env", file, "--dry-run", "--yaml"], "x = 1"))
    assert "alpha<2" in text and "image:" in text


def test_script_with_mlflow_gets_it_with_a_note(api: Any, wheels: Path) -> None:
    file = requirements("alpha")
    text = "def log():\n    import mlflow\nimport mlflow_skinny\nprint(mlflow_skinny.version)\n"
    run = api.submit(text, environment=file, gpus=0).wait(WAIT_S)
    assert "skinny" in run.logs() and any("mlflow-skinny" in note for note in run.record().notes)


@pytest.mark.thorough
def test_ten_concurrent_submits_build_once(api: Any, home: Path, wheels: Path) -> None:
    file = requirements("beta")
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        runs = list(pool.map(lambda _: api.submit(SHOW, environment=file, gpus=0), range(10)))
    for run in runs:
        assert "version 1.0" in run.wait(WAIT_S).logs()
    builds = sum("installed " in run.logs() for run in runs)
    assert builds == 1 and len(environments(home)) == 1


@pytest.mark.thorough
def test_two_kernels_that_need_one_environment_build_it_once(api: Any, home: Path, wheels: Path) -> None:
    file = requirements("beta")
    code = (
        "import sys\nfrom jupyter_amltrain import api\n"
        f"run = api.submit({SHOW!r}, environment={file!r}, gpus=0).wait({WAIT_S})\n"
        "sys.stdout.write(run.logs())"
    )
    others = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    mine = api.submit(SHOW, environment=file, gpus=0).wait(WAIT_S)
    logs = [mine.logs(), *(other.communicate(timeout=WAIT_S)[0] for other in others)]
    assert all("version 1.0" in log for log in logs), logs
    assert sum("installed " in log for log in logs) == 1 and len(environments(home)) == 1


# ---- bad input: one line each


BROKEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "absent": ("nosuch-package", ("nosuch-package",)),
    "conflict": ("alpha==2.0\nbeta", ("alpha", "beta")),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", BROKEN)
def test_packages_that_cannot_be_had_fail_run_with_reason_in_one_line(
    api: Any, home: Path, wheels: Path, case: str
) -> None:
    lines, words = BROKEN[case]
    run = api.submit("print('ran')", environment=requirements(*lines.split("\n")), gpus=0)
    with pytest.raises(RunFailed) as caught:
        run.wait(WAIT_S)
    reason = state(home, run)["detail"]
    assert "\n" not in reason and all(word in reason for word in words), reason
    assert state(home, run)["reason"] == "environment" and reason in str(caught.value)[:2000].replace("Its", "its")
    assert "ran" not in run.logs().splitlines() and not environments(home)
    whole = (home / "runs" / run.run_id / "log" / "environment.txt").read_text()
    assert words[0] in whole and "$ " in whole
    assert [name for name in os.listdir(home / "envs") if name.startswith(".")] == []


@pytest.mark.parametrize(
    ("content", "line"),
    [("alpha\nbeta >> 1\n", "line 2"), ("alpha\n\n--nonsense x\n", "line 3"), (None, "nothere.txt")],
)
def test_file_with_error_is_refused_before_submit_with_its_line(api: Any, content: str | None, line: str) -> None:
    name = "r.txt" if content is not None else "nothere.txt"
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(SpecError) as caught:
        api.submit("x = 1", environment=name, gpus=0)
    assert line in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.code in ("environment.requirements", "environment.file") and api.runs() == []


@pytest.mark.thorough
def test_python_that_is_not_there_is_refused_with_what_is_there(
    api: Any, home: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    Path("conda.yml").write_text("dependencies: [python=3.99, pip]\n")
    run = api.submit("x = 1", environment="conda.yml", gpus=0)
    with pytest.raises(RunFailed):
        run.wait(WAIT_S)
    reason = state(home, run)["detail"]
    assert "Python 3.99" in reason and f"{sys.version_info[0]}.{sys.version_info[1]}." in reason


@pytest.mark.thorough
def test_full_disk_is_named_and_build_succeeds_when_there_is_space(api: Any, home: Path, wheels: Path) -> None:
    folder = home / "envs"
    folder.mkdir(parents=True, mode=0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        make_wheel(wheels, "large", size=4_000_000)
        run = api.submit("x = 1", environment=requirements("large"), gpus=0)
        with pytest.raises(RunFailed):
            run.wait(WAIT_S)
        assert "no space is left" in state(home, run)["detail"] and not environments(home)
        assert "version 1.0" in api.submit(SHOW, environment=requirements("beta"), gpus=0).wait(WAIT_S).logs()
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# ---- interrupted builds


@pytest.fixture
def slow_uv(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A ``uv`` that waits before it installs until the returned file exists."""
    from jupyter_amltrain.jobs.environments import submitter_uv

    real, gate, folder = submitter_uv(), home.parent / "gate", home.parent / "bin"
    folder.mkdir()
    (folder / "uv").write_text(
        '#!/bin/sh\nif [ "$1" = pip ]; then echo "Resolved 2 packages in 1ms"; echo "Downloading big (33.7MiB)"; fi\n'
        f'if [ "$1" = pip ]; then while [ ! -e {gate} ]; do sleep 0.05; done; fi\nexec {real} "$@"\n'
    )
    (folder / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    yield gate
    gate.touch()


def builders(gate: Path) -> list[psutil.Process]:
    """Processes of builds that wait at the gate."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(gate.parent / "bin" / "uv") in process.cmdline()[:2] and "install" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.thorough
def test_canceled_build_ends_its_programs(api: Any, home: Path, wheels: Path, slow_uv: Path) -> None:
    run = api.submit(SHOW, environment=requirements("beta"), gpus=0)
    until(lambda: builders(slow_uv), "the build has begun")
    assert state(home, run)["state"] == "preparing"
    run.cancel()
    until(lambda: state(home, run)["state"] == "canceled", "the run is canceled")
    until(lambda: not builders(slow_uv), "no program of the build is left")
    slow_uv.touch()
    assert "version 1.0" in api.submit(SHOW, environment=requirements("beta"), gpus=0).wait(WAIT_S).logs()


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["uv", "builder", "supervisor"])
def test_killed_build_is_built_again_by_the_next_run(
    api: Any, home: Path, wheels: Path, slow_uv: Path, victim: str
) -> None:
    run = api.submit(SHOW, environment=requirements("beta"), gpus=0)
    process = until(lambda: builders(slow_uv), "the build has begun")[0]
    pid = {"uv": process.pid, "builder": process.ppid(), "supervisor": state(home, run)["supervisor"]["pid"]}[victim]
    os.kill(pid, signal.SIGKILL)
    until(lambda: state(home, run)["state"] in ("failed", "lost"), "the run has ended")
    assert not environments(home)
    until(lambda: not builders(slow_uv), "no program of the build is left")
    slow_uv.touch()
    assert "version 1.0" in api.submit(SHOW, environment=requirements("beta"), gpus=0).wait(WAIT_S).logs()
    assert [name for name in os.listdir(home / "envs") if name.startswith(".")] == []


@pytest.mark.thorough
def test_second_run_waits_for_build_and_takes_over_when_it_is_canceled(
    api: Any, home: Path, wheels: Path, slow_uv: Path
) -> None:
    file = requirements("beta")
    first = api.submit(SHOW, environment=file, gpus=0)
    until(lambda: builders(slow_uv), "the build has begun")
    second = api.submit(SHOW, environment=file, gpus=0)
    until(lambda: "waiting" in second.logs(), "the second run says that it waits")
    first.cancel()
    slow_uv.touch()
    assert "version 1.0" in second.wait(WAIT_S).logs()


@pytest.mark.thorough
def test_build_shows_its_progress_and_time_of_last_build(api: Any, home: Path, wheels: Path, slow_uv: Path) -> None:
    file = requirements("beta")
    first = api.submit(SHOW, environment=file, gpus=0)
    until(lambda: "2 packages, 0.0 of 33.7 MiB" in state(home, first)["detail"], "the build shows its progress")
    assert "last time" not in state(home, first)["detail"]
    slow_uv.touch()
    first.wait(WAIT_S)
    slow_uv.unlink()
    second = api.submit(SHOW, environment=requirements("beta", "alpha<2"), gpus=0)
    until(lambda: "last time took" in state(home, second)["detail"], "the next build of the file says how long")
    assert any("the last build took" in note for note in second.record().notes)
    slow_uv.touch()
    second.wait(WAIT_S)


# ---- conda


def recording_micromamba(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``micromamba`` that records its arguments and its file, and makes an environment with this interpreter."""
    folder.mkdir()
    record, program = folder / "record.txt", folder / "micromamba"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {record}\n'
        'while [ $# -gt 0 ]; do case "$1" in -p) prefix=$2;; -f) file=$2;; esac; shift; done\n'
        f'cat "$file" >> {record}\n'
        'mkdir -p "$prefix/bin" "$prefix/conda-meta"\n'
        f'ln -s {sys.executable} "$prefix/bin/python"\n'
        """echo '{"name": "gsl", "version": "2.7", "build": "h1"}' > "$prefix/conda-meta/gsl.json"\n"""
        'echo "Linking gsl-2.7"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return record


@pytest.mark.thorough
def test_conda_packages_are_installed_by_micromamba(api: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = recording_micromamba(home.parent / "conda", monkeypatch)
    Path("conda.yml").write_text("dependencies:\n  - python=3.11\n  - gsl=2.7\n  - pip:\n    - alpha\n")
    run = api.submit("import os\nprint(os.environ['CONDA_PREFIX'])\n", environment="conda.yml", gpus=0).wait(WAIT_S)
    key = environments(home)[0]
    assert str(home / "envs" / key) in run.logs() and "Linking gsl-2.7" in run.logs()
    text = record.read_text()
    assert text.startswith("create --yes") and "conda-forge" in text and "gsl=2.7" in text and "alpha" in text
    assert EnvironmentStore(str(home)).marker(key)["packages"] == ["gsl=2.7=h1"]  # type: ignore[index]


PIP = "dependencies:\n  - pip:\n    - --no-index\n    - --find-links ../wheels\n    - alpha<2\n"
JOB = "command: python -c 'import sys; print(sys.prefix)'\nenvironment:\n  image: ubuntu:24.04\n  conda_file: "


@pytest.mark.thorough
@pytest.mark.parametrize("conda_file", ["conda.yml", "\n    " + PIP.replace("\n", "\n    ")])
def test_job_file_of_az_ml_gets_its_conda_packages(api: Any, home: Path, wheels: Path, conda_file: str) -> None:
    Path("conda.yml").write_text(PIP)
    Path("job.yml").write_text(JOB + conda_file)
    run = send(parse_submit(["job.yml"])).wait(WAIT_S)
    (key,) = environments(home)
    assert run.logs().splitlines()[-1] == f"{home}/envs/{key}"
    (note,) = run.record().notes
    assert "ubuntu:24.04" in note  # which is not used
    again = send(parse_submit(["job.yml"])).wait(WAIT_S)
    assert "preparing" not in phases(home, again) and environments(home) == [key]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "value", ["azureml:mine@latest", "\n  conda_file:\n    dependencies: [python, numpy]", "\n  image: ubuntu:24.04"]
)
def test_job_file_whose_environment_cannot_be_built_runs_with_a_note(
    api: Any, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no micromamba
    Path("job.yml").write_text(f"command: python -c 'import sys; print(sys.prefix)'\nenvironment: {value}\n")
    run = send(parse_submit(["job.yml"])).wait(WAIT_S)
    assert run.logs().strip() == sys.prefix
    (note,) = run.record().notes
    assert "environment of job.yml" in note


@pytest.mark.parametrize(
    ("text", "word"), [("dependencies: [python=3.11, gsl]\n", "micromamba"), ("dependencies: [pip]\n", "uv")]
)
def test_target_without_the_program_refuses_before_submit(
    api: Any, monkeypatch: pytest.MonkeyPatch, text: str, word: str, tmp_path: Path
) -> None:
    from jupyter_amltrain.agent.environments import build
    from jupyter_amltrain.jobs import environments as job_environments

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(build, "find_base", lambda base, path="": str(tmp_path / "python"))
    monkeypatch.setattr(job_environments, "submitter_uv", lambda: "")
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("conda.yml").write_text(text)
    with pytest.raises(PreflightError, match=word) as caught:
        api.submit("x = 1", environment="conda.yml", gpus=0)
    assert caught.value.code == "environment.no_tool" and "\n" not in str(caught.value)


def test_environment_of_azure_is_refused(api: Any) -> None:
    with pytest.raises((SpecError, CommandError), match="--env"):
        api.submit("x = 1", environment="digits:3", gpus=0)
