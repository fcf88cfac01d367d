from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.cli import main

from .helpers import until

pytestmark = pytest.mark.usefixtures("home")

LINE = [sys.executable, "-m", "jupyter_amltrain.cli"]


def amltrain(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*LINE, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def test_cli_submit_wait_and_show_run(home: Path) -> None:
    Path("train.py").write_text(
        "import json, os, sys\nprint(sys.argv[1:], flush=True)\n"
        "json.dump({'name': 'a', 'value': 5}, open(os.environ['AML_OUTPUT_DIR'] + '/a.json', 'w'))\n"
    )
    done = amltrain("submit", "train.py", "--param", "lr=0.1", "--out", "a", "--wait", "--", "-v")
    assert done.stdout.splitlines() == ["['-v', '--lr', '0.1']", "a = 5"]
    handle = done.stderr.splitlines()[0]
    rows = json.loads(amltrain("runs", "--json").stdout)
    assert [(row["handle"], row["state"]) for row in rows] == [(handle, "completed")]
    assert handle in amltrain("runs", "show").stdout
    assert amltrain("runs", "logs", "--follow").stdout == "['-v', '--lr', '0.1']\n"
    assert (Path(".amltrain") / "mlflow.db").exists()  # the record was waited for
    assert "done" not in amltrain("runs", "cancel", handle).stdout
    done = amltrain("runs", "delete", handle, code=2)
    assert f"amltrain runs delete --force {handle}" in done.stderr
    amltrain("runs", "delete", "-f", handle)


@pytest.mark.thorough
def test_cli_submit_returns_when_accepted() -> None:
    Path("slow.py").write_text("import time\nprint('go', flush=True)\ntime.sleep(600)")
    handle = json.loads(amltrain("submit", "slow.py", "--json").stdout)["handle"]
    assert "still running" in amltrain("runs", "wait", "--timeout", "0.2", code=1).stderr
    follow = subprocess.Popen([*LINE, "runs", "logs", "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert follow.stdout is not None
    assert follow.stdout.readline() == "go\n"
    follow.send_signal(signal.SIGINT)
    _, output = follow.communicate(timeout=240)
    assert follow.returncode == 130 and output.startswith("amltrain: interrupted")
    assert "cancel requested" in amltrain("runs", "cancel", handle).stdout
    assert "was canceled" in amltrain("runs", "wait", handle, code=1).stderr


@pytest.mark.thorough
def test_cli_cancel_of_ended_run_is_one_line() -> None:
    Path("quick.py").write_text("import os\nopen(os.environ['AML_OUTPUT_DIR'] + '/n.json', 'w').write('3')")
    for _ in range(3):
        handle = amltrain("submit", "quick.py").stdout.strip()
        amltrain("runs", "wait", handle)
        done = amltrain("runs", "cancel", handle)  # it begins to write the record, and ends at once
        assert done.stdout.count("\n") == 1 and "ended" in done.stdout and done.stderr == ""


@pytest.mark.thorough
def test_cli_out_prints_json_and_names_missing() -> None:
    Path("train.py").write_text("import os\nopen(os.environ['AML_OUTPUT_DIR'] + '/acc.json', 'w').write('0.93')")
    done = amltrain("submit", "train.py", "--out", "acc,loss,rate", "--wait", code=1)
    assert done.stdout == "acc = 0.93\n"
    notes, error = done.stderr.splitlines()[:-1], done.stderr.splitlines()[-1]
    assert "loss" in error and "rate" in error and "acc:" not in error
    assert sum("note: --out" in note for note in notes) == 2


KEYRING = """
from keyring.backend import KeyringBackend
class Store(KeyringBackend):
    priority = 1
    def get_password(self, service, username):
        return "s3cr3t-" + "value" if (service, username) == ("amltrain", "HUB_TOKEN") else None
    def set_password(self, service, username, password):
        raise AssertionError("nothing is stored")
"""


@pytest.mark.thorough
def test_cli_secret_comes_from_keyring(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault" / "store.py").write_text(KEYRING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "vault"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "store.Store")
    Path("script.py").write_text("import os\nprint(len(os.environ['HUB_TOKEN']))")
    done = amltrain("submit", "script.py", "--secret", "HUB_TOKEN", "--wait")
    assert done.stdout.strip() == "12"
    assert "s3cr3t-value" not in done.stdout + done.stderr
    assert not [p for p in home.rglob("*") if p.is_file() and b"s3cr3t-value" in p.read_bytes()]
    assert "keyring set amltrain OTHER" in amltrain("submit", "script.py", "--secret", "OTHER", code=2).stderr


@pytest.mark.thorough
def test_cli_wait_of_failed_run_exits_1() -> None:
    Path("bad.py").write_text("raise SystemExit(3)")
    amltrain("submit", "bad.py")
    done = amltrain("runs", "wait", code=1)
    assert "code 3" in done.stderr.splitlines()[-1] and "%aml" not in done.stderr


def test_cli_wrong_usage_exits_2_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text("x = 1")
    Path("wrong.py").write_text("x = = 1")
    for words, text in {
        ("submit", "trian.py"): "Cannot read",
        ("submit", "wrong.py"): "wrong.py line 1",
        ("submit",): "no script",
        ("submit", "bad.py", "--targt", "x"): "Did you mean --target",
        ("submit", "bad.py", "--target", "locl"): "Did you mean local? amltrain compute lists them.",
        ("rnus",): "Did you mean amltrain runs?",
        ("runs", "show", "nope"): "No run 'nope'",
    }.items():
        assert main(words) == 2
        output = capsys.readouterr().err
        assert text in output and output.count("\n") == 1, (words, output)


@pytest.mark.thorough
def test_cli_compute_and_help_print_text() -> None:
    assert json.loads(amltrain("compute", "--json").stdout)[0]["target"] == "local"
    until(lambda: "CPUs" in amltrain("compute").stdout, "the machine to be listed")
    assert amltrain("compute", "test").stdout.startswith("local: ready")
    assert "usage: amltrain" in amltrain("--help").stdout == amltrain().stdout
    assert "usage: amltrain submit" in amltrain("submit", "-h").stdout
    assert amltrain("--version").stdout.strip()


@pytest.mark.thorough
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["compute"], ["submit", "--help"]], ids=["rows", "help"])
def test_cli_closed_pipe_is_no_error(words: list[str], unbuffered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*LINE, *words], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=240)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.thorough
def test_cli_closed_stdout_is_no_error() -> None:
    line = ["sh", "-c", '"$@" >&-', "sh", *LINE, "compute"]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.thorough
def test_cli_failure_with_closed_pipe_is_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    Path("train.py").write_text("raise SystemExit(3)")
    reader, writer = os.pipe()
    os.close(reader)
    line = [*LINE, "submit", "train.py", "--wait", "--json"]
    done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=240)
    os.close(writer)
    assert done.returncode == 1 and "Traceback" not in done.stderr


@pytest.mark.thorough
def test_cli_monitor_prints_snapshot(home: Path) -> None:
    assert "host: cpu" in amltrain("monitor", "--once").stdout
    snapshot = json.loads(amltrain("monitor", "local", "--once", "--json", "--rate", "10").stdout)
    assert snapshot["host"]["memory"] > 0 and isinstance(snapshot["gpus"], list)
    assert "Did you mean local" in amltrain("monitor", "locl", "--once", code=2).stderr
    endless = subprocess.Popen([*LINE, "monitor", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert endless.stdout is not None and json.loads(endless.stdout.readline())["host"]
    endless.send_signal(signal.SIGINT)
    _, output = endless.communicate(timeout=240)
    assert (endless.returncode, output) == (0, "")
    assert not list((home / "monitors").glob("*"))  # it was stopped, and its folder is gone


@pytest.mark.thorough
def test_cli_export_writes_file() -> None:
    Path("train.py").write_text("import time; time.sleep(0.5)")
    amltrain("submit", "train.py", "--wait")
    assert "telemetry of local/train-" in amltrain("runs", "export", "last", "run.csv").stdout
    assert Path("run.csv").read_text().count("\n") >= 3
    assert "example run.csv" in amltrain("runs", "export", "last", "run.cvs", code=2).stderr


def test_cli_submit_of_damaged_notebook_is_one_line() -> None:
    Path("train.ipynb").write_text("{}")
    output = amltrain("submit", "train.ipynb", code=2).stderr
    assert "not a notebook" in output and len(output.splitlines()) == 1
