"""A controller that answers a page, with two simulated targets."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.frontend.handler_harness import HandlerHarness
from tests.helpers import api_of

TARGETS = {"quick": {"queued": 0.0, "running": 0.05}, "endless": {"running": 600.0}}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandlerHarness]:
    folder = tmp_path_factory.mktemp("answers")
    with api_of(folder) as api:
        (folder / "home").mkdir(mode=0o700, exist_ok=True)
        rows = {name: {"kind": "fake", "name": name, **fields} for name, fields in TARGETS.items()}
        (folder / "home" / "targets.json").write_text(json.dumps({"schema": 1, "current": "local", "targets": rows}))
        yield HandlerHarness(api)
