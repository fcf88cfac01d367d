"""Folders that another user made under our names, in a place where everybody may write."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain.agent.azure.job import private_folder
from jupyter_amltrain.agent.calls import call
from jupyter_amltrain.agent.json_dir import open_queue
from jupyter_amltrain.agent.protocol import AgentError
from tests.agent.local_service import Job
from tests.agent.test_service_rank import POWERLESS, packed
from tests.other_user import OTHER_UID, needs_root, run_as_other_user
from tests.rpc.test_child_process import plant

#: As the other user: a folder of the name in argv, with a file of his; everybody may write in it.
SQUAT = """
for path in sys.argv[1:]:
    os.mkdir(path)
    pathlib.Path(path, "theirs").touch()
    os.chmod(path, 0o777)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder like /tmp: everybody may make files, nobody may remove those of others."""
    folder = Path(tempfile.mkdtemp(prefix="amltrain-public-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def as_other_user(script: str, *args: object) -> None:
    done = run_as_other_user(script, *map(str, args))
    assert done.returncode == 0, done.stderr


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@needs_root
def test_private_folder_of_other_user_is_not_used(public):
    squatted = public / f"amltrain-digits-{os.getuid()}"
    as_other_user(SQUAT, squatted)
    folder = Path(private_folder(str(public), "digits"))
    found = folder.lstat()
    assert folder != squatted and folder.parent == public
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.getuid(), 0o700)


@needs_root
def test_private_folder_foreign_link_is_not_used(public):
    as_other_user(SQUAT, public / "theirs")
    as_other_user("os.symlink(*sys.argv[1:])", public / "theirs", public / f"amltrain-digits-{os.getuid()}")
    assert Path(private_folder(str(public), "digits")).resolve().lstat().st_uid == os.getuid()
    assert below(public / "theirs") == ["theirs"]


def test_private_folder_writable_by_others_is_not_used(tmp_path):
    first = private_folder(str(tmp_path), "digits")
    assert private_folder(str(tmp_path), "digits") == first
    os.chmod(first, 0o770)
    assert private_folder(str(tmp_path), "digits") != first


@needs_root
def test_code_unpacked_by_other_user_is_not_run(public, tmp_path, zipapp):
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv: root without it may write to every folder")
    job = Job(tmp_path, zipapp, "print('ours')")
    hidden = job.code / ".amltrain"
    (hidden / "base-1.tar.gz").write_bytes(packed({"lib.py": ""}))
    (hidden / "manifest.json").write_text(json.dumps({"schema": 1, "digest": "d", "packs": ["base-1.tar.gz"]}))
    plant = """
    copy = pathlib.Path(sys.argv[1], "code-d")
    (copy / ".amltrain").mkdir(parents=True)
    (copy / ".amltrain/unpacked").write_text("d")
    (copy / ".amltrain/turn").touch()
    (copy / "script.py").write_text("print('theirs')")
    for path in [copy.parent, *copy.parent.rglob("*")]:
        path.chmod(0o777)
    """
    as_other_user(textwrap.dedent(plant), public / f"amltrain-{job.name}-{os.getuid()}")
    [folder.chmod(0o555) for folder in (job.code, hidden)]
    try:
        code, out, errors = job.run(before=POWERLESS, TMPDIR=str(public))
    finally:
        [folder.chmod(0o755) for folder in (job.code, hidden)]
    assert (code, out) == (0, b"ours\n"), errors


@needs_root
def test_queue_foreign_link_is_refused(public):
    as_other_user(SQUAT, public / "trap")
    queue = public / f"amltrain-{os.getuid()}"
    as_other_user("os.symlink(*sys.argv[1:])", public / "trap", queue)
    with pytest.raises(AgentError) as refused:
        open_queue(str(queue))
    assert refused.value.kind == "StateError" and "AMLTRAIN_QUEUE" in str(refused.value)
    assert below(public / "trap") == ["theirs"]


@needs_root
def test_queue_of_other_user_is_refused_with_action(public, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 54322)  # root could remove it
    queue = public / "amltrain-54322"
    as_other_user(SQUAT, queue)
    with pytest.raises(AgentError) as refused:
        open_queue(str(queue))
    message = str(refused.value)
    assert f"uid {OTHER_UID}" in message and "AMLTRAIN_QUEUE" in message and "Remove" not in message
    assert below(queue) == ["theirs"]


def test_queue_as_file_is_refused_with_action(tmp_path):
    (tmp_path / "queue").touch()
    answer = call("info", {}, str(tmp_path / "home"), queue=str(tmp_path / "queue"))
    assert answer["error"]["type"] == "StateError" and "Remove it" in answer["error"]["message"], answer


def test_queue_is_private(tmp_path):
    queue = Path(open_queue(str(tmp_path / "a" / "queue")))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (queue, queue / "tickets", queue / "slots")} == {0o700}


def test_agent_ignores_modules_of_submitter_folder(agent, tmp_path, monkeypatch):
    notebook = tmp_path / "notebook"
    ran = plant(notebook)
    monkeypatch.chdir(notebook)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(notebook)]))
    # The job itself would import them, as any script of the folder does.
    agent.submit("", run="beside", argv=[sys.executable, "-I", "-c", "pass"])
    assert agent.wait("beside")["state"] == "completed"
    assert list(ran.iterdir()) == []
