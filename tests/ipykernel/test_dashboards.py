"""Dashboards as values of cells: shown once, and again when they are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_amltrain.schema.record import RECORD_MIME

from .harness import Cell, kernel


def shown(cell: Cell) -> list[str]:
    """Display ids of the records that a cell shows, in order."""
    ids = [d.get("transient", {}).get("display_id", "value") for d in cell.displays if RECORD_MIME in d["data"]]
    return list(dict.fromkeys(ids))


@pytest.mark.thorough
def test_dashboard_is_shown_once_and_again_by_name(environ: dict[str, str], tmp_path: Path) -> None:
    with kernel(environ, tmp_path / "work") as live:
        live.run("%load_ext jupyter_amltrain")
        live.run("%%aml_submit --name digits --wait\nprint('hi')")
        for line in ("%aml_monitor --rate 5 --window 30m", "%aml_runs dashboard last --window 30m"):
            first = live.run(line)
            assert len(shown(first)) == 1, line
            record = next(d for d in first.displays if RECORD_MIME in d["data"])["data"][RECORD_MIME]
            assert (record["view"], record["window"]) == ("dashboard", 1800.0)
            assert shown(live.run(f"view = {line}")) != []
            assert live.run("1 + 1").displays[-1]["data"]["text/plain"] == "2"
            assert len(shown(live.run("view"))) == 1, line
            silent = live.run(f"{line};")
            assert len(shown(silent)) == 1, line
        live.run("view = %aml_monitor\nview.stop()")
