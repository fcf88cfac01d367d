"""What travels: changed files only, in parts, with progress, and again from where it was interrupted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.backends.ssh_transport import SshTransport
from jupyter_amltrain.errors import AmlTrainError
from tests.helpers import until
from tools.openssh import Sshd

from .proxy import Proxy
from .test_ssh_runs import attach

HELLO = "from pathlib import Path\nprint(len(list(Path('.').rglob('*.py'))), Path('data.txt').read_text())\n"


@pytest.fixture
def proxy(sshd: Sshd) -> Iterator[Proxy]:
    made = Proxy(sshd.port)
    yield made
    made.thaw()
    made.close()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of many small files, which have not changed for a while."""
    folder = tmp_path / "tree"
    for i in range(400):
        path = folder / f"package{i % 20}" / f"module{i}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {i}\n" * 20)
        os.utime(path, (1e9, 1e9))
    (folder / "main.py").write_text(HELLO)
    (folder / "data.txt").write_text("first")
    return folder


def submit(api: Any, tree: Path, **more: Any) -> Any:
    return api.submit(Path("main.py"), source=str(tree), target="box", gpus=0, name="tree", **more)


@pytest.mark.thorough
def test_second_submit_sends_only_the_edited_file(api: Any, sshd: Sshd, proxy: Proxy, tree: Path) -> None:
    attach(api, sshd, port=proxy.port)
    assert submit(api, tree).wait(120).logs() == "401 first\n"
    (tree / "data.txt").write_text("second " * 100)
    before = proxy.sent
    run = submit(api, tree)
    sent = proxy.sent - before
    assert run.wait(120).logs().startswith("401 second second")
    # The benchmark measures the bytes; on a busy machine a few more requests are sent meanwhile.
    assert sent <= 700 + 3 * 4096
    (tree / "package0" / "module0.py").unlink()
    assert submit(api, tree).wait(120).logs().startswith("400 ")


@pytest.mark.thorough
def test_run_copied_for_mlflow_leaves_its_code_there(api: Any, sshd: Sshd, home: Path, tree: Path) -> None:
    attach(api, sshd)
    run = submit(api, tree).wait(120)
    until(lambda: run.run.tracking == "imported", "MLflow has the run")
    copy = home / "mirror" / "box" / "runs" / run.run_id
    assert (copy / "job.json").exists() and not (copy / "source").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["manifests", "a file", "everything"])
def test_files_deleted_there_are_sent_again(
    api: Any, sshd: Sshd, remote_home: Path, tree: Path, tmp_path: Path, what: str
) -> None:
    attach(api, sshd)
    submit(api, tree).wait(120)
    store = remote_home / "blobs"
    if what == "a file":
        (store / hashlib.sha256(b"value = 7\n" * 20).hexdigest()).unlink()
    else:  # moved: a spare tree may be being made there
        (store / "manifests" if what == "manifests" else store).rename(tmp_path / "deleted")
    assert submit(api, tree).wait(120).logs() == "401 first\n"


@pytest.mark.thorough
def test_job_that_changes_its_code_does_not_change_later_runs(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    tree = tmp_path / "own"
    tree.mkdir()
    (tree / "main.py").write_text("text = open('data.txt', 'r+')\nprint(text.read())\ntext.write(' changed')\n")
    (tree / "data.txt").write_text("first")
    attach(api, sshd)
    assert [submit(api, tree).wait(60).logs() for _ in range(2)] == ["first\n", "first\n"]


@pytest.mark.thorough
def test_slow_upload_shows_progress_and_is_canceled(
    api: Any, sshd: Sshd, proxy: Proxy, remote_home: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "large"
    tree.mkdir()
    (tree / "main.py").write_text("print('never')")
    (tree / "weights.bin").write_bytes(os.urandom(4 << 20))
    attach(api, sshd, port=proxy.port)
    proxy.rate = 50_000
    run = api.submit_spec(api_spec(tree), target="box")

    def detail() -> str:
        return str(run.run.status.detail)

    until(lambda: "sending" in detail() and "left" in detail(), "progress", 60)
    run.cancel()
    until(lambda: run.state == "canceled", "canceled", 60)
    assert not list((remote_home / "runs").glob("*"))
    proxy.rate = 0
    assert api.submit("print('after')", target="box", gpus=0).wait(60).logs() == "after\n"


def api_spec(tree: Path) -> Any:
    from jupyter_amltrain.schema.job import JobSpec

    return JobSpec(
        name="large", script_name="main.py", source=str(tree), notebook_dir=str(tree), source_sha256="0" * 64
    )


@pytest.mark.thorough
def test_interrupted_download_continues(
    api: Any, sshd: Sshd, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_amltrain.backends.transfer.RESUME_S", 0.5)
    attach(api, sshd, port=proxy.port)
    size = 6 << 20
    code = f"import os\nopen(os.environ['AML_OUTPUT_DIR'] + '/big.bin', 'wb').write(os.urandom({size}));"
    run = api.submit(code, target="box", gpus=0).wait(60)
    proxy.rate = 2_000_000
    file = run.files()["outputs/big.bin"]

    def part_size() -> int:
        return sum(part.stat().st_size for part in tmp_path.glob(".big.bin.*.part"))

    def cut() -> None:
        until(lambda: part_size() > 1 << 20, "a part is there", 60)
        proxy.cut()

    threading.Thread(target=cut, daemon=True).start()
    with pytest.raises(AmlTrainError):
        file.save(tmp_path)
    kept = part_size()
    assert 1 << 20 < kept < size and not (tmp_path / "big.bin").exists()
    proxy.mend()
    proxy.rate, before = 0, proxy.received

    def answers() -> bool:
        try:
            return bool(run.files())
        except AmlTrainError:  # the pause after a failed attempt to connect
            return False

    until(answers, "it answers again", 60)
    saved = file.save(tmp_path)
    assert saved.stat().st_size == size and proxy.received - before < size - kept + (1 << 20)
    assert hashlib.sha256(saved.read_bytes()).hexdigest() == hashlib.sha256(file.read()).hexdigest()
    assert part_size() == 0


@pytest.mark.thorough
def test_download_of_many_files_survives_a_cut_connection(api: Any, sshd: Sshd, proxy: Proxy, tmp_path: Path) -> None:
    attach(api, sshd, port=proxy.port)
    code = (
        "import os\nfor i in range(4000):\n"
        "    open(os.environ['AML_OUTPUT_DIR'] + f'/{i:04}.bin', 'wb').write(os.urandom(1000))\n"
        "open(os.environ['AML_OUTPUT_DIR'] + '/large.bin', 'wb').write(os.urandom(3 << 20))\n"
    )
    run = api.submit(code, target="box", gpus=0).wait(60)
    files = run.files()
    proxy.rate = 1_000_000
    folder = tmp_path / "copy" / "outputs"

    def cut() -> None:
        for wanted in (lambda: len(os.listdir(folder)) > 1000, lambda: list(folder.glob(".large.bin.*.part"))):
            until(lambda wanted=wanted: folder.exists() and wanted(), "some of it is there", 60)
            proxy.cut()
            time.sleep(2.0)
            proxy.mend()

    cutting = threading.Thread(target=cut, daemon=True)
    cutting.start()
    files.download("outputs", tmp_path / "copy")
    cutting.join(60)
    names = [file.path.removeprefix("outputs/") for file in files if file.path.startswith("outputs/")]
    assert sorted(os.listdir(folder)) == sorted(names) and len(names) == 4001
    there = Path(run.run.folder) / "outputs"
    assert all((folder / name).read_bytes() == (there / name).read_bytes() for name in names)


@pytest.mark.thorough
def test_log_is_read_while_a_large_file_is_copied(api: Any, sshd: Sshd, proxy: Proxy, tmp_path: Path) -> None:
    attach(api, sshd, port=proxy.port)
    code = "import os\nopen(os.environ['AML_OUTPUT_DIR'] + '/big.bin', 'wb').write(os.urandom(3 << 20));"
    big = api.submit(code, target="box", gpus=0).wait(60)
    talk = api.submit(
        "import time\nfor i in range(300):\n    print(time.time(), flush=True)\n    time.sleep(0.2)",
        target="box",
        gpus=0,
    )
    until(lambda: talk.logs().count("\n") > 3, "it talks")
    proxy.rate = 200_000
    file, late = big.files()["outputs/big.bin"], []
    copying = threading.Thread(target=file.save, args=(tmp_path,))
    copying.start()
    while copying.is_alive():
        lines = talk.logs().splitlines()
        late.append(time.time() - float(lines[-1]))
        time.sleep(0.3)
    copying.join()
    talk.cancel()
    # A read that waits for the copy would be the only one.
    assert len(late) >= 3 and sorted(late)[len(late) // 2] < 4.0
    assert (tmp_path / "big.bin").stat().st_size == 3 << 20


@pytest.mark.thorough
def test_put_of_a_file_outside_of_its_folder_is_refused(api: Any, sshd: Sshd, remote_home: Path) -> None:
    attach(api, sshd)
    backend = api.controller().loop.call(_backend(api))
    transport: SshTransport = backend._ssh
    with pytest.raises(AmlTrainError):
        api.controller().loop.call(transport.put({"../../evil": b"x"}, f"{remote_home}/staging/a"), 30)
    assert not (remote_home / "evil").exists()


async def _backend(api: Any) -> Any:
    return api.controller().backend("box")


@pytest.mark.thorough
@pytest.mark.parametrize("part", [b"a" * 1000, b"x" * 1000])
def test_copy_of_ended_process_is_continued_or_starts_over(
    api: Any, sshd: Sshd, remote_home: Path, home: Path, part: bytes
) -> None:
    attach(api, sshd)
    file = remote_home / "file.bin"
    file.write_bytes(b"a" * 5000)
    transport: SshTransport = api.controller().loop.call(_backend(api))._ssh
    local = home / "mirror" / "box" / "file.bin"
    local.parent.mkdir(parents=True, exist_ok=True)
    ended = subprocess.Popen(["true"])
    ended.wait()
    local.with_name(f".file.bin.5000-{file.stat().st_mtime * 1000:.0f}.{ended.pid}.part").write_bytes(part)
    copy = api.controller().loop.call(transport.fetch(str(file)), 30)
    assert Path(copy) == local and local.read_bytes() == b"a" * 5000
    assert [path.name for path in local.parent.glob(".file*")] == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["../../../evil", "sub/../../evil", "/tmp/evil-of-a-list"])
def test_listed_name_outside_of_its_folder_is_refused(
    api: Any, sshd: Sshd, remote_home: Path, home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    attach(api, sshd)
    transport: SshTransport = api.controller().loop.call(_backend(api))._ssh
    request = transport.connection.request

    async def changed(op: str, *rest: Any, **fields: Any) -> Any:
        reply, data = await request(op, *rest, **fields)
        if op == "list":
            reply["files"] = [[name, 0, 1e9, False]]
        return reply, data

    monkeypatch.setattr(transport.connection, "request", changed)
    before = set(home.parent.rglob("*evil*"))
    for coroutine in (transport.fetch(f"{remote_home}/runs"), transport.list(f"{remote_home}/runs")):
        with pytest.raises(AmlTrainError) as caught:
            api.controller().loop.call(coroutine, 30)
        assert caught.value.code == "ssh.path"
    assert set(home.parent.rglob("*evil*")) == before and not Path("/tmp/evil-of-a-list").exists()


@pytest.mark.thorough
def test_file_that_is_replaced_during_its_first_copy_is_not_mixed(
    api: Any, sshd: Sshd, remote_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(api, sshd)
    file = remote_home / "file.bin"
    file.write_bytes(b"a" * 2_000_000)
    transport: SshTransport = api.controller().loop.call(_backend(api))._ssh
    read_from, parts = transport.read_from, []

    async def replaced(path: str, offset: int, limit: int) -> bytes:
        data = await read_from(path, offset, limit)
        parts.append(offset)
        if len(parts) == 1:
            file.write_bytes(b"b" * 2_500_000)
        return data

    monkeypatch.setattr(transport, "read_from", replaced)
    copy = Path(api.controller().loop.call(transport.fetch(str(file)), 60))
    assert copy.read_bytes() == b"b" * 2_500_000 and parts.count(0) == 2
