"""The operation ``lines``, and the lines in a record, of a real run."""

from __future__ import annotations

import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.frontend.line_handlers import GetLines
from jupyter_amltrain.output.text_view import record_text
from tests.frontend.handler_harness import HandlerHarness
from tests.helpers import DEADLINE

SCRIPT = """import time
def wait(seconds):
    time.sleep(seconds)
for _ in range(20):
    wait(0.1)
"""


@pytest.mark.thorough
def test_lines_of_a_run_are_in_its_record_and_in_the_reply(house: HandlerHarness) -> None:
    run = house.ended(SCRIPT)
    reply = house.ask(GetLines(handle=run.handle))
    assert {3, 5} <= {mark.line for mark in reply.lines.marks}
    assert [box.depth for box in reply.boxes][:2] == [0, 1] and "time.sleep" in reply.boxes[1].label
    record = house.controller.loop.call(house.controller.record(run.handle), DEADLINE)
    assert record.lines is not None and record.lines.table == reply.lines.table
    assert record.lines.sentence in record_text(record)
    (process,) = [one for one in record.phases if one.name == "running"]
    middle = house.ask(GetLines(handle=run.handle, start=process.start + 0.5, end=process.start + 1.5))
    assert sum(mark.share for mark in middle.lines.marks) > 0 and middle.lines.span != reply.lines.span
    with pytest.raises(CommandError):
        house.ask(GetLines(handle=run.handle, start=process.start + 1000, end=process.start + 2000))


@pytest.mark.thorough
def test_lines_of_a_run_that_is_not_sampled_are_refused(house: HandlerHarness) -> None:
    run = house.ended("import time\ntime.sleep(3)", no_lines=True)
    with pytest.raises(CommandError, match="--no-lines"):
        house.ask(GetLines(handle=run.handle))
    assert house.controller.loop.call(house.controller.record(run.handle), DEADLINE).lines is None
