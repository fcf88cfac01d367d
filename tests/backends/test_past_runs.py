"""The index of ended runs: never believed over the folders, rebuilt whatever happens to it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_amltrain.backends.past_runs import FILE, PastRunIndex

from ..golden.test_golden import GOLDEN
from ..helpers import api_of

COUNT = 8


def write(home: Path, run_id: str, submitted: float) -> Path:
    folder = home / "runs" / run_id
    shutil.copytree(GOLDEN / "golden-22222", folder)
    job = json.loads((folder / "job.json").read_text().replace("golden-22222", run_id))
    job["submitted"] = submitted
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "tracking.json").write_text('{"schema":1,"state":"imported"}')
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Any, Path]]:
    with api_of(tmp_path) as api:
        home = tmp_path / "home"
        (home / "runs").mkdir(parents=True, mode=0o700)
        for number in range(COUNT):
            write(home, f"past-{number:05d}", 1e9 + number)
        yield api, home


def listed(api: Any) -> list[Any]:
    """What a fresh kernel lists."""
    api.close()
    from jupyter_amltrain.kernel.session import controller

    runs = controller().loop.call(controller().runs(), 60)
    return [
        (run.handle, run.status, run.created, run.spec.name, run.spec.params, run.tracking, run.folder, run.error)
        for run in runs
    ]


def test_index_list_equals_folder_list(place: tuple[Any, Path]) -> None:
    api, home = place
    first = listed(api)
    assert len(first) == COUNT and (home / FILE).stat().st_mode & 0o777 == 0o600
    scan = PastRunIndex(home).scan(frozenset(), "local")
    assert len(scan.runs) == COUNT and not scan.others  # all of it came from the file
    assert listed(api) == first


def test_index_keeps_non_finite_params(place: tuple[Any, Path]) -> None:
    api, home = place
    path = write(home, "past-odd", 2e9) / "job.json"
    job = json.loads(path.read_text())
    job["spec"]["params"] = {"clip": float("inf"), "more": [{"x": float("nan")}]}
    path.write_text(json.dumps(job))
    for _ in range(3):
        (odd, *_) = listed(api)
        assert repr(odd[4]) == "{'clip': inf, 'more': [{'x': nan}]}"


def test_indexed_run_whole_job_is_read_on_request(place: tuple[Any, Path]) -> None:
    api, _ = place
    listed(api)
    listed(api)
    from jupyter_amltrain.kernel.session import controller

    (newest, *_) = controller().loop.call(controller().runs(), 60)
    assert newest.partial and not newest.spec.script
    assert "mlflow.log_params" in api.attach(newest.handle).spec.script
    assert "mlflow.log_params" in api.runs()[1].spec.script


@pytest.mark.parametrize("what", ["state", "job", "tracking", "deleted", "new", "damaged"])
def test_index_list_after_folder_change_is_updated(place: tuple[Any, Path], what: str) -> None:
    api, home = place
    before = {row[0]: row for row in listed(api)}
    folder, handle = home / "runs" / "past-00003", "local/past-00003"
    if what == "deleted":
        shutil.rmtree(folder)
    elif what == "new":
        write(home, "zz-new", time.time())
    elif what == "damaged":
        (folder / "state.json").write_text("{}")
    elif what == "state":
        text = (folder / "state.json").read_text()
        (folder / "state.json").write_text(text.replace("completed", "canceled"))
    elif what == "job":
        text = (folder / "job.json").read_text()
        (folder / "job.json").write_text(text.replace('"lr": 0.1', '"lr": 0.7'))
    else:
        (folder / "tracking.json").unlink()
    after = {row[0]: row for row in listed(api)}
    if what == "deleted":
        assert before.keys() - after.keys() == {handle}
    elif what == "new":
        assert after.keys() - before.keys() == {"local/zz-new"}
    else:
        assert {name for name in before if before[name] != after[name]} == {handle}
    assert listed(api) == list(after.values())  # and so it stays


def _as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _as_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _as_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("/etc/passwd")


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "nul bytes": lambda file: file.write_bytes(b"\0" * 10_000),
    "deep": lambda file: file.write_bytes(b"00000000 " + b"[" * 100_000),
    "wrong checksums": lambda file: file.write_bytes(file.read_bytes().replace(b"completed", b"failed")),
    "folder": _as_folder,
    "fifo": _as_fifo,
    "link": _as_link,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_index_is_rebuilt_silently(place: tuple[Any, Path], damage: str) -> None:
    api, home = place
    before = listed(api)
    passwd = Path("/etc/passwd").read_bytes()
    DAMAGES[damage](home / FILE)
    assert listed(api) == before
    assert listed(api) == before
    assert Path("/etc/passwd").read_bytes() == passwd
    if damage not in ("folder", "fifo", "link"):
        assert len(PastRunIndex(home).scan(frozenset(), "local").runs) == COUNT


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=20)), min_size=1, max_size=8))
def test_index_with_flipped_byte_keeps_list(place: tuple[Any, Path], changes: list[tuple[int, bytes]]) -> None:
    api, home = place
    if not (home / FILE).exists():
        listed(api)
    data = (home / FILE).read_bytes()
    truth = {run.handle: run.read() for run in PastRunIndex(home).scan(frozenset(), "local").runs}
    broken = bytearray(data)
    for at, new in changes:
        at %= len(broken)
        broken[at : at + len(new)] = new
    (home / FILE).write_bytes(broken)
    try:
        scan = PastRunIndex(home).scan(frozenset(), "local")
        assert len(scan.runs) + len(scan.others) == COUNT
        assert all(run.read() == truth[run.handle] for run in scan.runs)
    finally:
        (home / FILE).write_bytes(data)


def test_index_row_of_other_version_is_reread(place: tuple[Any, Path]) -> None:
    api, home = place
    before = listed(api)
    lines = (home / FILE).read_bytes().splitlines()
    rows = [json.loads(line[9:]) for line in lines if line]
    rows[0]["status"]["state"] = "sleeping"
    (home / FILE).write_bytes(
        b"".join(b"%08x %s\n" % (zlib.crc32(d), d) for d in (json.dumps(r).encode() for r in rows))
    )
    odd = f"local/{rows[0]['run']}"
    api.close()
    from jupyter_amltrain.kernel.session import controller

    def seen() -> dict[str, bool]:
        return {run.handle: run.damaged for run in controller().loop.call(controller().runs(), 60)}

    assert [handle for handle, damaged in seen().items() if damaged] == [odd]
    assert not any(seen().values())
    assert listed(api) == before


def test_list_with_limit_decodes_only_shown_runs(place: tuple[Any, Path]) -> None:
    api, _ = place
    listed(api)
    api.close()
    from jupyter_amltrain.kernel.session import controller

    async def unread() -> int:
        return sum(entry.unread for entry in controller().store.entries())

    shown = controller().loop.call(controller().runs(limit=2), 60)
    assert [run.run_id for run in shown] == [f"past-{COUNT - 1:05d}", f"past-{COUNT - 2:05d}"]
    assert controller().loop.call(unread(), 60) == COUNT - 2
    assert len(controller().loop.call(controller().handles(), 60)) == COUNT
    assert controller().loop.call(unread(), 60) == COUNT - 2


def test_concurrent_index_writes_lose_nothing(place: tuple[Any, Path]) -> None:
    _, home = place
    seed = PastRunIndex(home)
    keys = seed.scan(frozenset(), "local").others
    from jupyter_amltrain.agent.damage import read_job, read_state
    from jupyter_amltrain.backends.past_runs import listed_fields_of as light
    from jupyter_amltrain.backends.run_files import run_of

    runs = [
        light(
            run_of(f"local/{name}", str(home / "runs" / name), read_job(str(home), name), read_state(str(home), name))
        )  # type: ignore[arg-type]
        for name in keys
    ]

    def write_all(index: PastRunIndex) -> None:
        for run in runs:
            index.add([run], keys)

    threads = [threading.Thread(target=write_all, args=(PastRunIndex(home),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    scan = PastRunIndex(home).scan(frozenset(), "local")
    assert len(scan.runs) == COUNT and not scan.others


def test_index_with_stale_rows_is_compacted(place: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    api, home = place
    monkeypatch.setattr("jupyter_amltrain.backends.past_runs.MAX_STALE_LINES", 3)
    listed(api)
    for number in range(COUNT - 2):
        shutil.rmtree(home / "runs" / f"past-{number:05d}")
    size = (home / FILE).stat().st_size
    assert len(listed(api)) == 2
    assert (home / FILE).stat().st_size < size / 2 and len(PastRunIndex(home).scan(frozenset(), "local").runs) == 2
