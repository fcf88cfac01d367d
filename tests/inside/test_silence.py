"""A run that hangs shows by itself in which line it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers import api_of, until

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("silence"), AMLTRAIN_STALL="2") as module:
        yield module


def test_run_that_waits_for_ever_shows_its_line_until_it_goes_on(api: Any) -> None:
    code = "import queue\nimport os, time\ndef take(q):\n    return q.get(timeout=1e6)\nq = queue.Queue()\ntake(q)\n"
    code += "while not os.path.exists('end'):\n    sum(range(10000))\nprint('went on')\n"
    run = api.submit(code, name="hangs")
    text = until(lambda: run.status.detail, "the report")
    assert "line 4 of the cell (return q.get(timeout=1e6))" in text and "threading.py" in text
    run.poke("q.put(1)")
    until(lambda: not run.status.detail, "its end")
    run.poke("open('end', 'w')")
    run.wait(60)
    assert "went on" in run.logs()


def test_run_that_computes_without_a_word_is_left_alone(api: Any) -> None:
    code = "import time\nend = time.monotonic() + 6\nwhile time.monotonic() < end:\n    sum(range(10000))\n"
    run = api.submit(code, name="computes")
    seen: set[str] = set()
    until(lambda: seen.add(run.status.detail) or run.status.state.terminal, "its end")
    assert not any("for" in one for one in seen)
