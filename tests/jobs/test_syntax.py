from __future__ import annotations

import ast
import threading
import warnings
from typing import Any

import pytest

from jupyter_amltrain.jobs import preflight

LOUD = 'x = "\\d"\nassert (x, "always true")\nx is 3\n'


@pytest.mark.parametrize("action", ["always", "error"])
def test_parse_emits_no_warnings(action: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        preflight.check_syntax(preflight.parse(LOUD))
        assert preflight.literal(' "\\d"') == "\\d"
        count = len(warnings.filters)
        preflight.parse(LOUD)
        assert len(warnings.filters) == count
        if action == "always":
            compile("x is 3", "<other>", "exec")
        else:
            with pytest.raises(SyntaxError):
                compile("x is 3", "<other>", "exec")
    assert len(caught) == (action == "always")  # of others it is


def test_parse_keeps_warning_filters_of_other_threads() -> None:
    stop = threading.Event()

    def parse() -> None:
        while not stop.is_set():
            preflight.check_syntax(preflight.parse(LOUD))

    with warnings.catch_warnings():
        warnings.resetwarnings()
        thread = threading.Thread(target=parse)
        thread.start()
        try:
            for number in range(200):
                warnings.filterwarnings("ignore", message=f"mine {number}")
        finally:
            stop.set()
            thread.join()
        mine = {entry[1].pattern for entry in warnings.filters if entry[1] is not None}  # type: ignore[union-attr]
    assert mine == {f"mine {number}" for number in range(200)}


def test_parse_errors_are_syntax_errors() -> None:
    with pytest.raises(SyntaxError):
        preflight.parse("x =")
    with pytest.raises(SyntaxError):
        preflight.check_syntax(preflight.parse("break"))
    with pytest.raises(ValueError):
        preflight.literal("print()")
    assert isinstance(preflight.parse(b"x = 1"), ast.Module)


def test_parse_spoiled_by_another_thread_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python 3.11 raises, rarely, while the notebook's thread compiles a cell."""
    answers: list[Any] = [SystemError("AST constructor recursion depth mismatch (before=36, after=30)")] * 2
    real = ast.parse

    def parse(*args: Any) -> Any:
        if answers:
            raise answers.pop()
        return real(*args)

    monkeypatch.setattr(ast, "parse", parse)
    assert isinstance(preflight.parse("x = 1"), ast.Module)
    assert answers == []
