"""One process of a service's job under the real agent: nothing changes for the command."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from jupyter_amltrain.jobs.script import from_cell
from tests.agent import local_service
from tests.agent.conftest import alive, until
from tests.agent.local_service import Job, one_line, pythons

no_leftovers = local_service.no_leftovers

#: As root without rights over others' files, so that modes count.
POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
BINARY = bytes(range(256)) * 1024
SCRIPT = """
import os, sys, threading
data = bytes(range(256)) * 1024
print(os.environ["AML_INPUT_MY_DATA"], os.environ["AML_OUTPUT_MODEL"], os.getcwd(), os.environ["PYTHONUNBUFFERED"])
sys.stdout.flush()
sys.stdout.buffer.write(data)
sys.stderr.buffer.write(data[::-1])
sys.stdout.flush(), sys.stderr.flush()
os._exit(7)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_service_job_output_and_exit_code_are_unchanged(tmp_path, zipapp, python):
    job = Job(tmp_path, zipapp, SCRIPT)
    code, out, errors = job.run("in:my-data=/mnt/a=b", "out:model=/mnt/m", python=python)
    first, _, rest = out.partition(b"\n")
    assert code == 7 and rest == BINARY and errors == BINARY[::-1]
    assert first.decode() == f"/mnt/a=b /mnt/m {job.code} 1"
    state = job.json("state.json")
    assert (state["state"], state["exit_code"], state["detail"]) == ("failed", 7, "exited with code 7")
    assert [phase["name"] for phase in state["phases"]] == ["running", "finalizing"]
    header = job.lines("telemetry/node-0.jsonl")[0]
    assert header["node"] == 0 and header["gpus"] == [] and header["gpu_note"]


def test_service_job_inherits_descriptors(tmp_path, zipapp):
    job = Job(tmp_path, zipapp, "import os; print(*(os.fstat(n).st_ino for n in (1, 2)))")
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as o, err.open("wb") as e:
        words = [pythons()[0], ".amltrain/agent.pyz", "rank", ".amltrain/job.json"]
        subprocess.run(words, cwd=job.code, env=job.environ, stdout=o, stderr=e, check=True, timeout=60)
    assert out.read_text().split() == [str(out.stat().st_ino), str(err.stat().st_ino)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_service_job_signal_reaches_all_processes(tmp_path, zipapp, number):
    job = Job(
        tmp_path,
        zipapp,
        "import os, signal, time\n"
        "def end(n, f):\n    os.write(1, b'got %d\\n' % n); os._exit(5)\n"
        "signal.signal(signal.SIGTERM, end); signal.signal(signal.SIGINT, end)\n"
        "signal.signal(signal.SIGUSR1, lambda n, f: os.write(1, b'save\\n'))\n"
        "os.fork()\n"
        "os.write(1, b'up\\n')\n"
        # Short sleeps: a signal between Python's last look and the system call does not end a long one.
        "while True: time.sleep(0.05)\n",
    )
    process = job.start()
    lines = [process.stdout.readline() for _ in range(2)]  # of the command and of its child
    process.send_signal(signal.SIGUSR1)
    lines += [process.stdout.readline() for _ in range(2)]
    assert lines == [b"up\n"] * 2 + [b"save\n"] * 2
    process.send_signal(number)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 5 and errors == b""
    assert out == b"got %d\n" % number * 2
    state = job.json("state.json")
    assert state["state"] == "canceled" and "the service requested" in state["detail"]


def test_service_job_ignoring_sigterm_is_killed_after_grace(tmp_path, zipapp):
    job = Job(
        tmp_path,
        zipapp,
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)",
        grace=0.3,
    )
    process = job.start()
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL


@pytest.mark.thorough
def test_service_job_timeout_and_signal_have_exit_codes(tmp_path, zipapp):
    job = Job(tmp_path, zipapp, "import time; time.sleep(600)", timeout=0.3)
    code, _, errors = job.run()
    assert code == 124 and job.json("state.json")["reason"] == "timeout"
    one_line(errors, "time limit of 0.3 s")
    (job.code / "script.py").write_text(
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0))\nwhile True: time.sleep(0.05)"
    )
    assert job.run()[0] == 124
    (job.code / "script.py").write_text("import os; os.kill(os.getpid(), 11)")
    code, _, errors = job.run()
    assert code == 128 + signal.SIGSEGV and "SIGSEGV" in job.json("state.json")["detail"]
    assert b'script.py", line 1' in errors  # faulthandler names the line


def test_service_agent_killed_ends_job(tmp_path, zipapp):
    job = Job(tmp_path, zipapp, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    process = job.start()
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=30)
    until(lambda: not alive(pid), "the command's end")


def test_service_job_saves_out_values(tmp_path, zipapp):
    job = Job(
        tmp_path,
        zipapp,
        from_cell(
            "import subprocess\nloss = 0.25\nx = object()\nsubprocess.Popen(['sleep', '600'])", out=("loss", "x")
        ).text,
        out=["loss", "x"],
    )
    # The child that is left behind sleeps for longer than the test may take.
    code, _, errors = job.run(python=pythons()[-1])
    assert code == 0 and not errors
    assert job.json("outputs/loss.json") == {"amltrain": 1, "name": "loss", "value": 0.25}
    assert "error" in job.json("outputs/x.json")


def test_service_job_launch_failure_names_program(tmp_path, zipapp):
    job = Job(tmp_path, zipapp, argv=["no-such-program"])
    code, _, errors = job.run()
    assert code == 127
    one_line(errors, "the program no-such-program was not found")
    code, _, errors = job.run("nonsense")
    assert code == 2
    one_line(errors, "nonsense")
    (job.code / ".amltrain/job.json").write_text("{")
    code, _, errors = job.run()
    assert code == 2
    one_line(errors, "job.json holds no job")


def test_service_agent_failure_keeps_job(tmp_path, zipapp):
    job = Job(tmp_path, zipapp, "import os; print(os.environ.get('AML_INPUT_DATA', '')[:0] + 'trained'); os._exit(3)")
    code, out, errors = job.run("data=/plain", AMLTRAIN_FAILPOINT="before_start:raise")
    assert (code, out) == (3, b"trained\n")
    one_line(errors, "without telemetry")
    code, out, errors = job.run(AMLTRAIN_FAILPOINT="after_rank_start:raise")
    assert (code, out) == (3, b"trained\n")
    one_line(errors, "without telemetry")


# -- places


def test_service_job_in_read_only_folder_runs(tmp_path, zipapp):
    if POWERLESS and not shutil.which("setpriv"):
        pytest.skip("needs the right to run as another user, or setpriv: root may write to every folder")
    job = Job(tmp_path, zipapp, "import os; print(os.environ['AML_OUTPUT_DIR'])")
    job.environ.pop("HOME", None)
    job.code.chmod(0o555)
    try:
        code, out, errors = job.run(before=POWERLESS)
        tmp = Path(job.environ["TMPDIR"]) / f"amltrain-{job.name}-{os.getuid()}" / "node-0"
        assert (code, out.decode().strip()) == (0, str(tmp / "outputs"))
        one_line(errors, "not uploaded")
        assert json.loads((tmp / "state.json").read_text())["state"] == "completed"
        assert (tmp / "telemetry/node-0.jsonl").exists()
        # Nowhere at all.
        Path(job.environ["TMPDIR"]).chmod(0o555)
        shutil.rmtree(tmp.parent)
        code, out, errors = job.run(before=POWERLESS, TMPDIR=str(tmp_path / "none"))
        assert code == 0
        one_line(errors, "telemetry")
    finally:
        job.code.chmod(0o755)
        Path(job.environ["TMPDIR"]).chmod(0o755)


def test_service_job_on_full_disk_runs(tmp_path, zipapp):
    mount = 'mount -t tmpfs -o size=256k none logs && head -c 1M /dev/zero > logs/x 2>/dev/null; exec "$0" "$@"'
    full = ("unshare", "-m", "sh", "-c", mount)
    job = Job(tmp_path, zipapp, "import time; time.sleep(0.5); print('trained')")
    (job.code / "logs").mkdir()
    if not shutil.which("unshare") or subprocess.run([*full, "true"], cwd=job.code, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    code, out, errors = job.run(before=full)
    assert (code, out) == (0, b"trained\n")
    one_line(errors, "No space left")


# -- code


def packed(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def test_service_job_packed_code_is_unpacked(tmp_path, zipapp):
    job = Job(tmp_path, zipapp, "import sys; sys.path.insert(0, '.'); import lib.part; print(lib.part.NAME)")
    hidden = job.code / ".amltrain"
    base = {"lib/part.py": "NAME = 'old'", "lib/gone.py": "", "run.sh": "true", "../evil.py": "", "lib/__init__.py": ""}
    edit = {"lib/part.py": "NAME = 'new'"}
    (hidden / "base-1.tar.gz").write_bytes(packed(base))
    (hidden / "edit-2.tar.gz").write_bytes(packed(edit))
    packs = ["base-1.tar.gz", "edit-2.tar.gz"]
    manifest = {"schema": 1, "digest": "d", "packs": packs, "removed": ["lib/gone.py"]}
    (hidden / "manifest.json").write_text(json.dumps(manifest))
    if not POWERLESS or shutil.which("setpriv"):
        folders = [job.code, hidden]
        [folder.chmod(0o555) for folder in folders]
        try:
            code, out, errors = job.run(before=POWERLESS)
        finally:
            [folder.chmod(0o755) for folder in folders]
        assert (code, out) == (0, b"new\n"), errors
        assert not (job.code / "lib").exists()
    processes = [job.start(RANK=str(n), LOCAL_RANK=str(n), NODE_RANK="0", WORLD_SIZE="2") for n in range(2)]
    assert [process.communicate(timeout=60)[0] for process in processes] == [b"new\n"] * 2
    assert os.access(job.code / "run.sh", os.X_OK) and not (job.code / "lib/gone.py").exists()
    assert not (tmp_path / "evil.py").exists()
    (hidden / "edit-2.tar.gz").unlink()
    (hidden / "unpacked").unlink()
    code, _, errors = job.run()
    assert code == 2
    one_line(errors, "the code lacks edit-2.tar.gz")


RESTARTED = """
import os, sys
folder = os.environ["AML_CHECKPOINT_DIR"]
print(len(os.listdir(folder)), flush=True)
open(os.path.join(folder, str(len(os.listdir(folder)))), "w").close()
sys.exit(len(os.listdir(folder)) < 3)
"""


def test_service_job_starts_again_in_place(tmp_path, zipapp, monkeypatch):
    job = Job(tmp_path, zipapp, RESTARTED, restarts={"max": 3, "preempt_after": 0.0})
    job.environ["AMLTRAIN_RESTART_PAUSE"] = "0.05"
    code, out, errors = job.run()
    assert (code, out.split()) == (0, [b"0", b"1", b"2"]) and errors.count(b"attempt") == 2
    assert job.json("state.json")["attempt"] == 3
    assert sorted(os.listdir(job.code / "outputs" / "checkpoints")) == ["0", "1", "2"]


def test_service_job_of_several_processes_starts_once(tmp_path, zipapp):
    job = Job(tmp_path, zipapp, RESTARTED, restarts={"max": 3})
    code, out, _ = job.run(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", AML_CHECKPOINT_DIR=str(tmp_path / "shared"))
    assert (code, out.split()) == (1, [b"0"]) and os.listdir(tmp_path / "shared") == ["0"]
