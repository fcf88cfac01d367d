"""A run that its GPU ended, from the driver's event to the sentence that a user reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import RunFailed
from jupyter_amltrain.output.text_view import record_text
from tests.fakes import driver as fake
from tests.fakes.driver import SwitchableDriver

from ..helpers import api_of, until


@pytest.fixture
def driver(tmp_path: Path) -> SwitchableDriver:
    return fake.needed(tmp_path, gpus=1)


@pytest.fixture
def api(tmp_path: Path, driver: SwitchableDriver) -> Iterator[Any]:
    with api_of(tmp_path, AMLTRAIN_SAMPLE_PERIOD="0.1", **driver.environment()) as api:
        yield api


@pytest.mark.thorough
def test_xid_is_in_error_and_record(api: Any, driver: SwitchableDriver, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nraise ValueError('CUDA error')"
    run = api.submit(code, name="dies", gpus=1)
    folder = Path(until(lambda: run.run.folder, "its folder"))
    telemetry = folder / "telemetry" / "node-0.jsonl"
    until(lambda: telemetry.exists() and telemetry.read_bytes().count(b"\n[") > 2, "ticks")
    driver.xid(0, 79)
    until(lambda: b"Xid 79" in telemetry.read_bytes(), "a note")
    go.touch()
    with pytest.raises(RunFailed) as caught:
        run.wait(60)
    text = str(caught.value)
    assert "GPU 0 reported Xid 79" in text and "line 3" in text and "Reboot" in text
    state = json.loads((folder / "state.json").read_text())
    assert state["cause"]["kind"] == "xid"
    record = until(lambda: run.record() if run.record().summary else None, "the summary")
    shown = record_text(record)
    assert "Xid 79" in shown.splitlines()[1] and "Xid 79" in shown.partition("GPU: ")[2]
    import msgspec

    from jupyter_amltrain.output.picture import _lines

    assert any("Xid 79" in line for line, _ in _lines(msgspec.to_builtins(record)))
