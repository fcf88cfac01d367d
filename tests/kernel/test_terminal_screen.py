"""A stream leaves on our screen what it leaves on a terminal.

``tests/data/terminal/NAME.log`` is what a program has written, and ``NAME.txt`` what ``tmux capture-pane`` shows after
it, in a window of 400 columns and 50 rows.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.kernel.terminal_screen import HEIGHT, MAX_LINE, TerminalScreen, shown, styled
from jupyter_amltrain.text import without_ansi

STREAMS = sorted((Path(__file__).parents[1] / "data" / "terminal").glob("*.log"))


def seen(lines: list[str]) -> list[str]:
    """Lines as a terminal's text: tabs are spaces, and what is blank at the end is not there."""
    found = [without_ansi(line).expandtabs(8).rstrip() for line in lines]
    while found and not found[-1]:
        found.pop()
    return found


@pytest.mark.parametrize("stream", STREAMS, ids=lambda path: path.stem)
@pytest.mark.parametrize("size", [1, 13, 1 << 20])
def test_recorded_stream_leaves_what_a_terminal_shows(stream: Path, size: int) -> None:
    text, screen = stream.read_bytes().decode("utf-8", "replace"), TerminalScreen()
    for at in range(0, len(text), size):
        screen.feed(text[at : at + size])
    assert seen(screen.lines()) == seen(stream.with_suffix(".txt").read_text(encoding="utf-8").split("\n"))


def test_recorded_streams_are_many() -> None:
    assert len(STREAMS) >= 40


@given(st.text("ab\t\b\r\n\x1b[;?0123456789ABCDHJKLMPX@mdG78日🚀\0"), st.integers(1, 9))
def test_any_stream_is_the_same_in_parts(text: str, size: int) -> None:
    whole, parts = TerminalScreen(), TerminalScreen()
    whole.feed(text)
    for at in range(0, len(text), size):
        parts.feed(text[at : at + size])
    assert whole.lines() == parts.lines() and whole.count == parts.count
    assert not any("\n" in line or "\0" in line for line in whole.lines())


def test_line_in_colors_has_their_codes_and_ends_plain() -> None:
    assert shown("\x1b[1;31mred\nstill\x1b[0m plain\r") == "\x1b[1;31mred\x1b[0m\n\x1b[1;31mstill\x1b[0m plain"
    assert shown("\x1b[32mgreen\rGR\x1b[39mE\r") == "\x1b[32mGR\x1b[0mE\x1b[32men\x1b[0m"
    assert shown("no codes\n") == "no codes\n" and shown("a\tb\r") == "a\tb"


@pytest.mark.parametrize(
    ("style", "args", "after"),
    [
        ("", "1;31", "1;31"),
        ("1;31", "", ""),
        ("1;31", "22", "31"),
        ("1;31", "39;4", "1;4"),
        ("", "38;5;208", "38;5;208"),
        ("38;5;208;41", "48;2;1;2;3", "38;5;208;48;2;1;2;3"),
        ("48;2;1;2;3", "49;97", "97"),
        ("", "38;5", ""),
        ("3;7", "27;23;107", "107"),
        ("", "4:3", "4"),
        ("", "38:2::1:2:3;48:5:7", "38;2;1;2;3;48;5;7"),
    ],
)
def test_style_after_codes_is_that_of_a_terminal(style: str, args: str, after: str) -> None:
    assert styled(style, args) == after


def test_lines_above_the_screen_are_final_and_bounded() -> None:
    screen = TerminalScreen(1000)
    screen.feed("".join(f"line {i}\n" for i in range(10_000)))
    screen.feed(f"\x1b[{10 * HEIGHT}Atop")
    lines = screen.lines()
    assert screen.count == 10_001 and len(lines) == 10_001 - screen.first
    assert lines[0] == f"line {screen.first}" and sum(map(len, lines)) < 3000
    assert screen.lines(screen.final)[0] == f"tope {screen.final}" and len(screen.lines(10_000)) == 1


@pytest.mark.parametrize(
    "stream",
    [
        "\x1b[999999999B\x1b[999999999Cx" * 1000,
        "\x1b[999999999L\x1b[999999999@" * 1000,
        "." * (3 * MAX_LINE),
        "\x1b]0;" + "t" * 100_000,
        "\x1b[" + "1;" * 100_000,
        "\x1b[38;5;" * 1000 + "m\x1b[48;2m\x1b[38m.",
    ],
    ids=["moves", "inserts", "line", "title", "arguments", "colors"],
)
def test_hostile_stream_costs_little(stream: str) -> None:
    screen = TerminalScreen(64 * 1024)
    begun = time.monotonic()
    for at in range(0, len(stream), 1024):
        screen.feed(stream[at : at + 1024])
    assert len(screen.lines()) <= 1100 and sum(map(len, screen.lines())) < 8_000_000
    assert time.monotonic() - begun < 60
