"""Marks of displays in a log: where they stand between its last lines, whatever a job writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.agent.displays.display_hook import MARK
from jupyter_amltrain.kernel.display_places import MAX_PLACES
from jupyter_amltrain.kernel.streams import LOG_WINDOW_BYTES, LogEnd, LogWindow


def display(number: int, text: str) -> str:
    return f"{MARK % f'display;{number};0'}{text}{MARK % 'end'}\n"


def update(number: int, version: int, text: str, end: str = "\n") -> str:
    return f"{MARK % f'update;{number};{version}'}{text}{MARK % 'end'}{end}"


def end_of(*parts: str, size: int = 0) -> LogEnd:
    """The end of a log that is read in parts, of `size` bytes each if given."""
    window, data = LogWindow(), "".join(parts).encode()
    step = size or max(1, len(data))
    for at in range(0, len(data), step):
        window.feed(data[at : at + step], min(len(data), at + step))
    return window.end()


def places(end: LogEnd) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
    return [tuple(place) for place in end.places]  # type: ignore[misc]


def test_display_stands_where_its_text_is() -> None:
    end = end_of("a\n", display(1, "x\ny"), "b\n", display(2, "z"))
    assert end.text == "a\nx\ny\nb\nz\n"
    assert places(end) == [(1, 1, ((1, 2),)), (2, 4, ((4, 1),))]


def test_display_is_the_same_however_the_log_is_read() -> None:
    parts = ("a\n", display(1, "xé\ny"), "b\n\x1b]0;title\x1b\\c\n", update(1, 2, "u"), "d")
    assert end_of(*parts, size=1) == end_of(*parts) == end_of(*parts, size=5)


def test_display_after_unfinished_line_leaves_it() -> None:
    end = end_of("loss ", display(1, "x\ny"))
    assert end.text == "loss x\ny\n" and places(end) == [(1, 1, ((1, 1),))]


def test_update_covers_its_text_and_keeps_the_place() -> None:
    end = end_of(display(1, "0 %"), "a\n", update(1, 3, "50 %"), update(1, 4, "", ""), "b\n")
    assert places(end) == [(1, 0, ((0, 1), (2, 1)))]


def test_text_without_end_mark_is_covered_so_far() -> None:
    assert places(end_of("a\n", MARK % "display;1;0", "x\ny\n")) == [(1, 1, ((1, 2),))]


def test_long_text_of_display_does_not_push_out_other_lines() -> None:
    end = end_of("before\n", display(1, "\n".join(["row " + 60 * "x"] * 110)), "after\n")
    assert end.text.startswith("before\n") and end.text.endswith("after\n")
    assert end_of("before\n", display(1, "x" * 30_000), "after\n").text == "after\n"


def test_display_above_the_last_lines_is_above_them() -> None:
    end = end_of(display(1, "x"), "line\n" * 5000, display(2, "y"))
    assert [place[:2] for place in places(end)] == [(1, -1), (2, len(end.text.split("\n")) - 2)]


def test_clear_shows_only_what_follows() -> None:
    end = end_of("a\n", display(1, "x"), MARK % "clear", "b\n", display(2, "y"))
    assert end == LogEnd("b\ny\n", 2, end.places) and places(end) == [(2, 1, ((1, 1),))]
    assert end_of("a\n", MARK % "clear").text == ""


def test_clear_that_waits_keeps_lines_until_more_is_written() -> None:
    before = ("a\n", display(1, "x"), MARK % "clear-next")
    assert places(end_of(*before)) == [(1, 1, ((1, 1),))]
    assert end_of(*before, "b").text == "b" and end_of(*before, display(2, "y")).text == "y\n"
    assert end_of(*before, MARK % "clear-next", "b\n", MARK % "clear-next", "c\n", size=3).text == "c\n"


def test_gap_in_the_log_forgets_places() -> None:
    window = LogWindow()
    data = display(1, "x").encode()
    window.feed(data, len(data))
    window.feed(b"rest\nlast\n", 10**6)
    assert not window.whole and window.end().text == "last\n" and not window.end().places


def test_update_of_a_display_above_the_window_keeps_it_above() -> None:
    assert places(end_of("a\n", update(7, 1, "u"), "b\n")) == [(7, -1, ((1, 1),))]


def test_places_are_bounded() -> None:
    end = end_of(*(display(number, "x") for number in range(3 * MAX_PLACES)))
    assert len(end.places) == MAX_PLACES and end.places[-1].number == 3 * MAX_PLACES - 1


MARKS = st.sampled_from(
    ["display;1;0", "display;2;9", "update;1;3", "update;9;9", "end", "clear", "clear-next", "other", "display"]
)
CODES = st.sampled_from(
    ["\x1b[2J", "\x1b[A", "\x1b[3M", "\r", "\x1b[50L", "\x1bc", "\x1b_amltrain:", "\x1b\\", "\n" * 80]
)


@given(st.lists(st.one_of(st.text("ab\n", max_size=20), MARKS.map(lambda name: MARK % name), CODES), max_size=40))
def test_any_log_has_places_among_its_lines(parts: list[str]) -> None:
    end = end_of(*parts)
    count = len(end.text.split("\n"))
    for place in end.places:
        assert -1 <= place.line <= count
        assert all(start >= 0 and n > 0 and start + n <= count + 1 for start, n in place.blocks)


def test_text_of_many_lines_is_bounded() -> None:
    end = end_of(display(1, "\n" * 10**5), size=LOG_WINDOW_BYTES)
    assert len(end.text) <= 2 * 8192 + 2
