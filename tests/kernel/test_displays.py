"""Displayed values of runs over a real controller: between the lines of the log, live and ended, bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.frontend import display_handlers
from jupyter_amltrain.frontend.handlers import RequestHandlers
from jupyter_amltrain.kernel.shown_files import MAX_CHARS, MAX_DISPLAYS
from jupyter_amltrain.output.mime import bundle_of
from tests.helpers import DEADLINE, api_of, until


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("displays")) as module:
        yield module


def ask(api: Any, request: Any) -> Any:
    handlers = RequestHandlers(api.controller())
    return api.controller().loop.call(handlers.answer(request), DEADLINE)


TABLE = """
class Table:
    def __init__(self, text): self.text = text
    def __repr__(self): return f"row {self.text[:20]}\\nrow 2"
    def _repr_html_(self): return f"<table><tr><td>{self.text}</td></tr></table><script>alert(1)</script>"
"""


def test_displays_of_cell_are_between_the_lines_of_its_log(api: Any) -> None:
    run = api.submit(TABLE + "print('before')\ndisplay(Table('one'))\nprint('after')\nTable('last')").wait(DEADLINE)
    record = until(lambda: (r := run.record()).displays and r, "the displays")
    assert record.log.tail == "before\nrow one\nrow 2\nafter\nrow last\nrow 2\n"
    first, last = record.displays
    assert (first.line, first.blocks, last.line) == (1, ((1, 2),), 4)
    assert "one" in first.data["text/html"] and "script" not in first.data["text/html"] and not first.partial
    page = bundle_of(record)[0]["text/html"]
    assert page.index("before") < page.index("<td>one") < page.index("after") < page.index("<td>last")
    assert "row one" not in page and "row one" in bundle_of(record)[0]["text/plain"]


def test_displays_of_live_run_appear_and_change(api: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = (
        f"{TABLE}import os, time\nhandle = display(Table('first'), display_id=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\nhandle.update(Table('second'))\ntime.sleep(600)"
    )
    run = api.submit(code)
    frames: list[Any] = []
    run.watch(lambda record, picture: frames.append(record))

    def shows(text: str) -> Any:
        return frames and frames[-1].displays and text in str(frames[-1].displays[0].data)

    until(lambda: shows("first"), "the first version")
    gate.touch()
    until(lambda: shows("second"), "the second version")
    assert frames[-1].state == "running" and len(frames[-1].displays) == 1
    run.cancel()
    with pytest.raises(AmlTrainError):
        run.wait(DEADLINE)


def test_many_large_displays_are_bounded_in_record(api: Any) -> None:
    code = f"{TABLE}for i in range({MAX_DISPLAYS + 5}): display(Table(str(i) + 9000 * ' x'))"
    run = api.submit(code).wait(DEADLINE)
    record = until(lambda: (r := run.record()).displays and r, "the displays")
    assert len(record.displays) == MAX_DISPLAYS and record.displays_hidden == 5
    assert len(msgspec.json.encode(record.displays)) < MAX_CHARS + 5000 and len(msgspec.json.encode(record)) < 100_000
    assert [bool(one.data) for one in record.displays][-2:] == [True, True] and not record.displays[0].data
    reply = ask(api, display_handlers.GetDisplay(handle=run.handle, number=record.displays[0].number))
    assert reply.chars == len(reply.text) and json.loads(reply.text)["data"]["text/html"].startswith("<table>")
    with pytest.raises(CommandError):
        ask(api, display_handlers.GetDisplay(handle=run.handle, number=999))


PLOT = "import matplotlib.pyplot as plt\ndef plot(*values, title=''):\n    plt.plot(values); plt.title(title)\n"


def test_figures_stand_where_they_are_shown(api: Any) -> None:
    code = "print('before')\nplot(1, 2, title='rise')\nplt.show()\nprint('after')\nplot(3, 1)"
    run = api.submit(PLOT + code).wait(DEADLINE)
    record = until(lambda: len((r := run.record()).displays) == 2 and r, "both figures")
    assert record.log.tail == "before\nafter\n" and not record.pictures
    first, last = record.displays
    assert (first.line, first.picture, first.title) == (1, "pictures/figure-1.png", "rise") and last.line == 2
    assert [picture.name for picture in run.pictures] == ["figure-1.png", "figure-2.png"]
    bundle = bundle_of(record)[0]
    page = bundle["text/html"]
    assert page.index("before") < page.index('alt="rise"') < page.index("after") and page.count('alt="rise"') == 1
    assert "figure-1.png, figure-2.png" in bundle["text/plain"]


@pytest.mark.thorough
def test_each_of_many_figures_is_shown_once(api: Any) -> None:
    code = "import numpy as np\nfor n in range(9):\n    plot(*np.random.rand(900))\n    plt.show()\n    print(n)"
    run = api.submit(PLOT + code).wait(DEADLINE)

    def names(record: Any) -> list[str]:
        shown = [display.picture for display in record.displays] + [picture.path for picture in record.pictures]
        return sorted(shown) if record.displays and len(shown) >= 9 else []

    record = until(lambda: names(r := run.record()) and r, "the figures")
    assert names(record) == [f"pictures/figure-{n}.png" for n in range(1, 10)]
    assert all(display.data for display in record.displays) and record.pictures[0].thumbnail
    assert len(msgspec.json.encode(record)) < 100_000


@pytest.mark.thorough
def test_figure_that_replaces_cleared_one_is_alone(api: Any) -> None:
    code = "for n in range(4):\n    clear_output(wait=True)\n    plot(n, 1, title=str(n))\n    plt.show()"
    run = api.submit("from IPython.display import clear_output\n" + PLOT + code).wait(DEADLINE)
    record = until(lambda: (r := run.record()).displays and r, "the figure")
    assert [display.title for display in record.displays] == ["3"]
    assert not record.pictures and [picture.name for picture in run.pictures] == ["figure-4.png"]


@pytest.mark.thorough
def test_figure_that_stays_open_is_updated_in_its_place(api: Any, tmp_path: Path) -> None:
    code = "plot(1)\nplt.pause(1.1)\nprint('between')\nplt.title('changed')\nplt.pause(0.1)\nplt.close()\nprint('end')"
    run = api.submit(PLOT + code).wait(DEADLINE)
    record = until(lambda: (r := run.record()).displays and r, "the figure")
    (shown,) = record.displays
    assert shown.line == 0 and shown.title == "changed" and record.log.tail == "between\nend\n"


@pytest.mark.thorough
def test_displays_before_a_long_log_are_above_it(api: Any) -> None:
    run = api.submit(TABLE + "display(Table('early'))\nfor i in range(30_000): print('line', i)").wait(DEADLINE)
    record = until(lambda: (r := run.record()).displays and r, "the display")
    assert record.displays[0].line == -1 and "early" in record.displays[0].data["text/html"]
    page = bundle_of(record)[0]["text/html"]
    assert page.index("<td>early") < page.index("line 29999")


def test_cleared_output_is_not_shown(api: Any) -> None:
    code = (
        "from IPython.display import clear_output\nfor i in range(3):\n    clear_output(wait=True)\n"
        "    print('step', i)\n    display(Table(str(i)))"
    )
    record = api.submit(TABLE + code).wait(DEADLINE).record()
    assert record.log.tail == "step 2\nrow 2\nrow 2\n" and len(record.displays) == 1
    assert record.log.lines_hidden == 6


@pytest.mark.thorough
def test_hostile_files_and_marks_are_harmless(api: Any) -> None:
    code = """
import os, pathlib
folder = pathlib.Path(os.environ["AML_OUTPUT_DIR"]).parent / "displays"
folder.mkdir()
os.symlink("/dev/zero", folder / "1.json"); os.mkfifo(folder / "2.json")
(folder / "3.json").write_text("[" * 100_000); open(folder / "4.json", "wb").truncate(300 << 20)
(folder / "5.json").mkdir(); (folder / "7.json").write_text('{"data": {"text/html": "<b>seven</b>"}}')
for number in (*range(1, 8), 999_999_999):
    print(f"\\x1b_amltrain:display;{number};0\\x1b\\\\text {number}\\n\\x1b_amltrain:end\\x1b\\\\", end="")
print("\\x1b_amltrain:display;../../secret;0\\x1b\\\\never closed")
"""
    record = api.submit(code).wait(DEADLINE).record()
    assert [one.number for one in record.displays] == [7] and "text 1\n" in record.log.tail
