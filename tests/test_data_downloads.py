"""Inputs that are web addresses, as a user has them on this machine: downloaded by the agent before the run."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_amltrain.agent.data.cache import DataCache, key_of
from jupyter_amltrain.commands.resubmit import repeated_spec
from jupyter_amltrain.errors import RunFailed, SpecError

from .helpers import until
from .web_server import WebServer, serving

WAIT_S = 60.0
SHOW = "import os\npath = os.environ['AML_INPUT_DATA']\nprint('read', len(open(path, 'rb').read()), path)\n"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as server:
        yield server


def state(home: Path, run: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((home / "runs" / run.run_id / "state.json").read_text())
    return value


def everything(home: Path) -> bytes:
    """All files of the state root except for the cached data."""
    return b"\n".join(path.read_bytes() for path in home.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.mark.thorough
def test_web_input_is_downloaded_once_and_recorded(api: Any, home: Path, web: WebServer) -> None:
    inputs = {"data": web.url}
    first = api.submit(SHOW, inputs=inputs, gpus=0).wait(WAIT_S)
    assert f"read {len(web.content)} " in first.logs() and first.logs().rstrip().endswith("inputs/data/table.csv")
    digest = hashlib.sha256(web.content).hexdigest()
    assert f"sha256 {digest}" in first.logs()
    assert [phase["name"] for phase in state(home, first)["phases"]][:3] == ["queued", "preparing", "running"]
    second = api.submit(SHOW, inputs=inputs, gpus=0).wait(WAIT_S)
    assert second.logs().startswith("read") and web.sent == len(web.content)
    found = second.read_provenance().inputs["data"]
    assert (found.sha256, found.bytes, found.path) == (digest, len(web.content), web.url)
    assert not any("table.csv" in note or " data " in note for note in repeated_spec(first, {}).notes)
    web.content += b"3,4\n"
    third = api.submit(SHOW, inputs=inputs, gpus=0).wait(WAIT_S)
    assert f"read {len(web.content)} " in third.logs()


def test_web_input_fills_reference_in_parameter(api: Any, home: Path, web: WebServer) -> None:
    run = api.submit(
        "print(open(path).read())\n", inputs={"data": web.url}, params={"path": "${{inputs.data}}"}, gpus=0
    )
    assert web.content.decode() in run.wait(WAIT_S).logs()


def test_missing_file_fails_run_before_its_start(api: Any, home: Path, web: WebServer) -> None:
    web.statuses = [404]
    run = api.submit(SHOW, inputs={"data": web.url}, gpus=0)
    with pytest.raises(RunFailed, match="404"):
        run.wait(WAIT_S)
    assert state(home, run)["reason"] == "data" and "read" not in run.logs() and "Traceback" not in run.logs()


@pytest.mark.thorough
def test_cancel_during_download_ends_run_and_next_one_continues(api: Any, home: Path, web: WebServer) -> None:
    web.content = os.urandom(4 << 20)
    web.pause_s = 0.1
    run = api.submit(SHOW, inputs={"data": web.url}, gpus=0)
    part = Path(DataCache(str(home)).below(key_of(web.url), "file.part"))
    until(lambda: part.exists() and part.stat().st_size > 1 << 18, "a beginning of the file")
    until(lambda: "MiB" in state(home, run)["detail"], "progress")
    run.cancel()
    until(lambda: state(home, run)["state"] == "canceled", "the end")
    kept = part.stat().st_size
    web.pause_s = 0.0
    sent = web.sent
    assert f"read {len(web.content)} " in api.submit(SHOW, inputs={"data": web.url}, gpus=0).wait(WAIT_S).logs()
    assert web.sent - sent <= len(web.content) - kept + web.block


@pytest.mark.thorough
def test_killed_download_leaves_no_file_and_next_run_continues(api: Any, home: Path, web: WebServer) -> None:
    web.content = os.urandom(4 << 20)
    web.pause_s = 0.1
    run = api.submit(SHOW, inputs={"data": web.url}, gpus=0)
    part = Path(DataCache(str(home)).below(key_of(web.url), "file.part"))
    until(lambda: part.exists() and part.stat().st_size > 1 << 18, "a beginning of the file")
    supervisor = psutil.Process(state(home, run)["supervisor"]["pid"])
    for child in supervisor.children():
        child.send_signal(signal.SIGKILL)
    with pytest.raises(RunFailed, match="killed"):
        run.wait(WAIT_S)
    assert DataCache(str(home)).record(key_of(web.url)) is None
    web.pause_s = 0.0
    assert f"read {len(web.content)} " in api.submit(SHOW, inputs={"data": web.url}, gpus=0).wait(WAIT_S).logs()
    assert any(headers.get("range") for _, _, headers in web.requests)


@pytest.mark.thorough
def test_runs_at_the_same_time_download_once(api: Any, home: Path, web: WebServer) -> None:
    web.content = os.urandom(1 << 20)
    web.pause_s = 0.02
    runs = [api.submit(SHOW, inputs={"data": web.url}, gpus=0) for _ in range(3)]
    for run in runs:
        assert f"read {len(web.content)} " in run.wait(WAIT_S).logs()
    assert web.sent == len(web.content)


def test_secret_in_address_is_in_no_file(api: Any, home: Path, web: WebServer) -> None:
    secrets = {"SIGNATURE": "s3cr3t-signature"}
    run = api.submit(SHOW, inputs={"data": web.url + "?sig=${SIGNATURE}"}, secrets=secrets, gpus=0).wait(WAIT_S)
    assert f"read {len(web.content)} " in run.logs()
    assert web.requests[0][1].endswith("?sig=s3cr3t-signature")
    web.statuses = [403]
    failed = api.submit(SHOW, inputs={"data": web.url + "?sig=${SIGNATURE}"}, secrets=secrets, gpus=0)
    with pytest.raises(RunFailed) as error:
        failed.wait(WAIT_S)
    assert "s3cr3t" not in str(error.value) + failed.logs() and b"s3cr3t" not in everything(home)


@pytest.mark.parametrize(
    "address",
    [
        "https://me:pass@host/x.csv",
        "https://token@host/x.csv",
        "https://host/x.csv?sig=abc",
        "https://h/x?a=1&X-Amz-Signature=f",
    ],
)
def test_secret_in_address_is_refused_without_repeating_it(api: Any, home: Path, address: str) -> None:
    with pytest.raises(SpecError) as error:
        api.submit(SHOW, inputs={"data": address}, gpus=0)
    assert "signature" in str(error.value) and address not in str(error.value) and "--secret" in str(error.value)


def test_folder_at_web_address_is_refused(api: Any, home: Path) -> None:
    with pytest.raises(SpecError, match="uri_file"):
        api.submit(SHOW, inputs={"data": "https://host/folder/"}, gpus=0)
