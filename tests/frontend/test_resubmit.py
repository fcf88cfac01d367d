"""Run again, by a kernel that has only listed the run (controllers of its own: it closes them)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.frontend import run_handlers
from tests.frontend.handler_harness import HandlerHarness
from tests.helpers import DEADLINE, api_of


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["cell", "file"])
def test_resubmit_of_listed_run_keeps_whole_job(tmp_path: Path, kind: str) -> None:
    """Lists know only part of the job of an ended run: without the rest it would run with other settings."""
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['DEPTH'])\n")
    script = "import os\nprint(os.environ['DEPTH'])" if kind == "cell" else tmp_path / "train.py"
    with api_of(tmp_path) as api:
        past = HandlerHarness(api).ended(script, env={"DEPTH": "7"}, timeout=300.0, name="past")
        handle, spec = past.handle, past.spec
        for _ in range(2):  # the second kernel has the run from the index
            api.close()
            house = HandlerHarness(api)
            listed = house.controller.loop.call(house.controller.runs(), DEADLINE)
        assert next(run for run in listed if run.handle == handle).partial
        again = api.attach(house.ask(run_handlers.ResubmitRun(handle=handle)).handle)
        assert msgspec.structs.replace(again.spec, repeats="") == spec and again.wait(DEADLINE).logs().strip() == "7"
        api.close()
        house = HandlerHarness(api)
        house.controller.loop.call(house.controller.runs(), DEADLINE)
        # At once, because the import into MLflow may still write there.
        (tmp_path / "home" / "runs" / handle.partition("/")[2]).rename(tmp_path / "gone")
        with pytest.raises(CommandError, match="cannot run again"):
            house.ask(run_handlers.ResubmitRun(handle=handle))
