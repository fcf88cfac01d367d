"""What every target shows of a run that an exception has ended."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.errors import RunFailed
from jupyter_amltrain.output.text_view import record_text

CELL = """\
import array
password = "hunter2"
def step(rows, i):
    scale = 2
    return rows[i] * scale
for epoch in range(3):
    step([1, 2], 7)
"""


def check_failed_values(run: Any, timeout: float) -> None:
    """Check the values of a run of :data:`CELL`."""
    with pytest.raises(RunFailed) as caught:
        run.wait(timeout)
    frames = caught.value.frames
    shown = [(frame.code, frame.function) for frame in frames]
    assert shown == [("return rows[i] * scale", "step"), ("step([1, 2], 7)", "<module>")], run.logs()
    assert frames[0].cell_line == frames[1].cell_line - 2 == caught.value.cell_line
    assert {value.name: value.text for value in frames[0].values} == {"rows": "[1, 2]", "i": "7", "scale": "2"}
    text = record_text(run.record())
    assert (
        f"line {frames[0].cell_line} of the cell, in step" in text
        and "list of 2: [1, 2]" in text
        and "hunter2" not in text
    )
