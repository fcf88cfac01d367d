"""The operation ``log``: text, and lines of a terminal's screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.frontend import run_handlers
from jupyter_amltrain.frontend.log_handlers import MAX_SCREENS, GetLog, LogReply, cut
from jupyter_amltrain.kernel.terminal_screen import HEIGHT, TerminalScreen
from tests.frontend.handler_harness import HandlerHarness
from tests.helpers import until

STREAMS = Path(__file__).parents[1] / "data" / "terminal"

# ---- text


def test_log_request_parts_join_to_whole_log(house: HandlerHarness) -> None:
    text = "".join(f"{i} äöü € 😀\rline\n" for i in range(400))
    run = house.ended(f"import sys\nsys.stdout.write({text!r});")
    found, offset, parts = "", 0, 0
    while True:
        reply = house.ask(GetLog(handle=run.handle, offset=offset, limit=101))
        assert reply.start == offset and reply.offset - reply.start == len(reply.text.encode())
        found, offset, parts = found + reply.text, reply.offset, parts + 1
        if reply.ended:
            break
    assert found == text and parts > 50 and reply.path.endswith("rank-0.txt")
    tail = house.ask(GetLog(handle=run.handle, offset=-200))
    assert tail.ended and text.endswith(tail.text) and text[: -len(tail.text)].endswith("\n")
    assert tail.offset == len(text.encode()) and tail.offset - tail.start == len(tail.text.encode()) <= 200
    whole = house.ask(GetLog(handle=run.handle, offset=-(10**6), limit=10**9))
    assert whole.text == text and whole.start == 0


def test_log_request_of_live_run_is_not_ended(house: HandlerHarness) -> None:
    run = house.api.submit("pass", target="endless")
    reply = until(lambda: (r := house.ask(GetLog(handle=run.handle))).text and r)
    assert reply.text == "fake: started\n" and not reply.ended
    again = house.ask(GetLog(handle=run.handle, offset=reply.offset))
    assert again.text == "" and again.start == again.offset == reply.offset
    house.ask(run_handlers.CancelRun(handle=run.handle))


@given(st.text(max_size=40), st.integers(0, 60), st.integers(0, 60))
def test_log_cut_keeps_whole_characters(text: str, first: int, last: int) -> None:
    data = text.encode("utf-8", "replace")[first:last]
    found, skipped, left = cut(data, complete=False)
    assert found.encode() == data[skipped : len(data) - left] and skipped <= 3 and left <= 3


def test_log_cut_of_invalid_bytes_advances() -> None:
    assert cut(b"\xff\xfe a", complete=False) == ("�� a", 0, 0)
    assert cut(b"abc\xf0\x9f", complete=True) == ("abc�", 0, 0)
    assert cut(b"\x80\x80\x80\x80", complete=False)[1] == 3


def test_log_request_after_truncation_restarts_at_zero(house: HandlerHarness, tmp_path: Path) -> None:
    gate = tmp_path / "go-on"
    script = """import os, sys, time
print("old text " * 20, flush=True)
while not os.path.exists(os.environ["GO_ON"]): time.sleep(0.02)
os.ftruncate(1, 0)
print("new", flush=True)
time.sleep(600)
"""
    run = house.api.submit(script, name="empties", env={"GO_ON": str(gate)})
    try:
        ask = GetLog(handle=run.handle)
        first = until(lambda: (r := house.ask(ask)).text.endswith("\n") and r)
        until(lambda: "old text" in house.ask(run_handlers.GetRun(handle=run.handle)).record.log.tail)
        gate.touch()
        on = GetLog(handle=run.handle, offset=first.offset)
        second = until(lambda: (r := house.ask(on)).text and r)
        assert (second.start, second.text) == (0, "new\n")
        tail = until(lambda: "new" in (t := house.ask(run_handlers.GetRun(handle=run.handle)).record.log.tail) and t)
        assert "old text" not in tail and tail.endswith("new\n")
        assert house.ask(ask).restarts == 1
    finally:
        run.cancel()


# ---- screens


class View:
    """One view of a log that the test writes: it keeps lines as a page does."""

    def __init__(self, house: HandlerHarness, handle: str, **request: Any) -> None:
        self._house, self._request = house, {"handle": handle, "screen": "one", **request}
        self.lines: list[str] = []
        self.offset = 0

    def ask(self, offset: int | None = None, **more: Any) -> LogReply:
        request = GetLog(**{**self._request, "offset": self.offset if offset is None else offset, **more})
        reply: LogReply = self._house.ask(request)
        if not request.earlier:
            self.lines = [*([] if reply.fresh else self.lines[: reply.first]), *reply.lines]
            self.offset = reply.offset
        return reply


@pytest.fixture(scope="module")
def handle(house: HandlerHarness) -> str:
    return str(house.ended("pass", name="writes").handle)


@pytest.fixture()
def log(house: HandlerHarness, handle: str) -> Path:
    """The log of an ended run, emptied; the view of a test has a screen of its own."""
    folder = Path(house.api.attach(handle).run.folder) / "log"
    for path in folder.glob("rank-*.txt"):
        path.write_bytes(b"")
    return folder / "rank-0.txt"


def write(log: Path, text: str) -> None:
    with log.open("ab") as file:
        file.write(text.encode())


def shown_of(data: bytes) -> list[str]:
    screen = TerminalScreen()
    screen.feed(data.decode("utf-8", "replace"))
    return screen.lines()


@pytest.mark.parametrize(
    "stream", ["tqdm_nested", "rich_progress_log", "rich_live", "long_scroll", "tqdm_three", "wide"]
)
def test_screen_in_parts_has_lines_of_the_whole_stream(
    house: HandlerHarness, handle: str, log: Path, stream: str
) -> None:
    data = (STREAMS / f"{stream}.log").read_bytes()
    log.write_bytes(data)
    view, replies = View(house, handle, screen=stream, limit=97), 0
    while view.offset < len(data):
        assert view.ask().start + 97 >= view.offset
        replies += 1
    assert view.lines == shown_of(data) and replies >= len(data) // 97


def test_screen_sends_only_lines_from_the_first_changed_one(house: HandlerHarness, handle: str, log: Path) -> None:
    view = View(house, handle, screen="changed")
    write(log, "begin\nouter 0%\ninner 0%")
    first = view.ask()
    assert (first.fresh, first.first, first.lines, first.text) == (True, 0, ("begin", "outer 0%", "inner 0%"), "")
    write(log, "\rinner 9%")
    assert (view.ask().first, view.lines) == (2, ["begin", "outer 0%", "inner 9%"])
    write(log, "\x1b[A\r\x1b[31mouter 1%\x1b[0m")
    reply = view.ask()
    assert (reply.first, reply.lines) == (1, ("\x1b[31mouter 1%\x1b[0m", "inner 9%"))
    same = view.ask()
    assert (same.fresh, same.first, same.lines, same.start) == (False, 3, (), view.offset)
    write(log, "\x1b[J")  # takes the last line away
    assert (view.ask().first, view.lines) == (2, ["begin", "\x1b[31mouter 1%\x1b[0m"])
    write(log, "\n" + "".join(f"{k}\n" for k in range(3 * HEIGHT)))
    reply = view.ask()
    assert reply.first == 2 and view.lines[2:] == [*map(str, range(3 * HEIGHT)), ""]
    write(log, "more\n")
    reply = view.ask()
    assert (reply.first, reply.lines) == (len(view.lines) - 2, ("more", ""))


def test_screen_joins_characters_and_codes_that_a_read_has_cut(house: HandlerHarness, handle: str, log: Path) -> None:
    text = "äöü € 😀 \x1b[32mgrün\x1b[0m 日本\n"
    write(log, text)
    view = View(house, handle, screen="cut", limit=5)
    while view.offset < len(text.encode()):
        reply = view.ask()
        assert reply.offset == min(reply.start + 5, len(text.encode()))
    assert view.lines == ["äöü € 😀 \x1b[32mgrün\x1b[0m 日本", ""]
    log.write_bytes(b"half a character \xf0\x9f")
    view = View(house, handle, screen="half")
    assert view.ask().ended and view.lines == ["half a character �"]


@pytest.mark.thorough
def test_screen_from_the_end_starts_at_a_line(house: HandlerHarness, handle: str, log: Path) -> None:
    write(log, "one\ntwo\nthree\nfour")
    view = View(house, handle, screen="end")
    reply = view.ask(offset=-12)
    assert (reply.fresh, reply.start, view.lines) == (True, 8, ["three", "four"])
    assert view.ask(offset=-1000).start == 0 and view.lines == ["one", "two", "three", "four"]


def test_screen_with_another_offset_is_fresh(house: HandlerHarness, handle: str, log: Path) -> None:
    write(log, "one\ntwo\n")
    view, other = View(house, handle, screen="lost"), View(house, handle, screen="other")
    view.ask()
    write(log, "three\n")
    assert other.ask(offset=4).fresh and other.lines == ["two", "three", ""]
    reply = view.ask()  # another view takes nothing from this one
    assert not reply.fresh and view.lines == ["one", "two", "three", ""]
    write(log, "four\n")
    reply = view.ask(offset=8)  # as after a reply that has been lost
    assert (reply.fresh, reply.start, reply.first, reply.lines) == (True, 8, 0, ("three", "four", ""))
    for number in range(MAX_SCREENS):
        View(house, handle, screen=str(number)).ask()
    assert view.ask().fresh


def test_marks_are_where_a_new_screen_shows_the_same(house: HandlerHarness, handle: str, log: Path) -> None:
    view = View(house, handle, screen="marks")
    write(log, "one\ntwo\n")
    assert view.ask().marks == ((2, 8),)
    for unclean in ("half", "\x1b[31m", "\n", "\x1b[1", "m", "\nbar\n\x1b[A", "over it"):
        write(log, unclean)
        assert view.ask().marks == (), unclean
    write(log, "\x1b[0m\n\n")
    assert view.ask().marks == ((len(view.lines) - 1, view.offset),)
    write(log, "".join(f"a line with number {k}\n" for k in range(5000)))
    marks = view.ask().marks
    data = log.read_bytes()
    assert len(marks) > 5 and all(view.lines[line:] == shown_of(data[at:]) for line, at in marks)


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_earlier_lines_have_neither_gap_nor_doubled_line(
    house: HandlerHarness, handle: str, log: Path, most: int
) -> None:
    bars = "".join(f"\r{k}%" for k in range(0, 101, 5))
    write(log, "".join(f"line {k}\n{'' if k % 3 else f'bar {k} {bars}' + chr(10)}" for k in range(60)))
    whole = shown_of(log.read_bytes())
    view = View(house, handle, screen="early")
    start = view.ask(offset=-300).start
    lines = view.lines
    while start:
        reply = view.ask(offset=max(0, start - 300), limit=min(300, start), earlier=most)
        assert reply.start < start == reply.offset and len(reply.lines) <= most
        lines, start = [*reply.lines, *lines], reply.start
    assert lines == whole
    assert not view.ask().fresh  # earlier lines leave the screen alone


def test_earlier_part_of_an_endless_bar_has_no_line(house: HandlerHarness, handle: str, log: Path) -> None:
    write(log, "begin\n" + "".join(f"\r{k} of 1000" for k in range(1000)))
    view = View(house, handle, screen="bar")
    start = view.ask(offset=-500).start
    assert view.lines == ["999 of 1000"]
    reply = view.ask(offset=start - 500, limit=500, earlier=100)
    assert (reply.lines, reply.start) == ((), start - 500)
    assert view.ask(offset=0, limit=start, earlier=100).lines == ("begin",)


def test_screen_of_truncated_log_is_fresh_from_its_start(house: HandlerHarness, handle: str, log: Path) -> None:
    view = View(house, handle, screen="truncated")
    write(log, "old text\n" * 10)
    view.ask()
    log.write_bytes(b"new\n")
    reply = view.ask()
    assert (reply.fresh, reply.start, view.lines) == (True, 0, ["new", ""])


def test_each_rank_has_a_screen(house: HandlerHarness, handle: str, log: Path) -> None:
    write(log, "zero\n")
    write(log.with_name("rank-1.txt"), "one\n")
    views = [View(house, handle, screen="ranks", rank=rank) for rank in (0, 1)]
    for view in views:
        assert view.ask().fresh
    write(log, "0")
    write(log.with_name("rank-1.txt"), "1")
    assert [view.ask().lines for view in views] == [("0",), ("1",)]
    assert [view.lines for view in views] == [["zero", "0"], ["one", "1"]]
