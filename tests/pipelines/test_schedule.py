"""The line for ``cron``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import CommandError


def test_line_runs_the_file_from_its_folder(api: Any, tmp_path: Path) -> None:
    folder = tmp_path / "my pipes"
    folder.mkdir()
    (folder / "p.yml").write_text("type: pipeline\n")
    words = ["schedule", str(folder / "p.yml"), "--cron", "0 6 * * 1", "--target", "local"]
    text = run("pipeline", words, Context("%aml_pipeline")).text
    line = text.splitlines()[0]
    assert line.startswith("0 6 * * 1 cd ") and f"'{folder}'" in line and line.endswith("submit p.yml --target local")


@pytest.mark.parametrize("when", ["hourly", "0 6 * *", "0 6 * * 1; rm"])
def test_other_time_is_refused(tmp_path: Path, when: str) -> None:
    (tmp_path / "p.yml").write_text("type: pipeline\n")
    with pytest.raises(CommandError, match="--cron"):
        run("pipeline", ["schedule", str(tmp_path / "p.yml"), "--cron", when], Context("%aml_pipeline"))


def test_missing_file_is_refused() -> None:
    with pytest.raises(CommandError, match="gone"):
        run("pipeline", ["schedule", "gone.yml"], Context("%aml_pipeline"))


def test_machine_has_no_schedules_to_list(api: Any) -> None:
    with pytest.raises(CommandError, match="local"):
        run("pipeline", ["schedule"], Context("%aml_pipeline"))
