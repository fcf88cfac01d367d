"""Tab in IPython's own completer; the door of a real kernel is in ``tests/kernel``."""

from __future__ import annotations

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from .conftest import Cell


def tab(ip: InteractiveShell, code: str) -> list[str]:
    """What Tab offers at ``|``, each as the whole text up to the cursor."""
    before, _, after = code.partition("|")
    with provisionalcompleter():
        found = list(ip.Completer.completions(before + after, len(before)))
    assert all(c.end == len(before) for c in found)
    return [before[: c.start] + c.text for c in found]


@pytest.fixture(params=[True, False], ids=["jedi", "no jedi"])
def shell(ip: InteractiveShell, request: pytest.FixtureRequest) -> InteractiveShell:
    ip.Completer.use_jedi = request.param
    return ip


def test_tab_on_magic_line_offers_matches(shell: InteractiveShell) -> None:
    for code, expected in {
        "%aml_submit --ta|": ["%aml_submit --target", "%aml_submit --tag"],
        "run = %aml_submit --dry|": ["run = %aml_submit --dry-run"],
        "x = 1\n  %aml_runs l|\ny = 2": [f"x = 1\n  %aml_runs {verb}" for verb in ("list", "logs", "lines", "last")],
        "%%aml_submit --out a|\nimport os\nacc = 3": ["%%aml_submit --out acc"],
        "%%aml_submit --target=|\nimport os": ["%%aml_submit --target=local"],
        "aml_compute u|": ["aml_compute use"],
        "%aml_submit \\\n  --wa|": ["%aml_submit \\\n  --wait"],
        "%aml_monitor --window a|": ["%aml_monitor --window all"],
    }.items():
        assert tab(shell, code) == expected, code


@pytest.mark.thorough
def test_tab_on_other_line_is_unchanged(shell: InteractiveShell) -> None:
    shell.user_ns["target_rate"] = 1
    assert "target_rate" in tab(shell, "targ|")
    assert "%%aml_submit\ntarget_rate" in tab(shell, "%%aml_submit\ntarg|")
    assert "print('%aml_runs l', target_rate" in tab(shell, "print('%aml_runs l', targ|")
    assert "%%aml_submit --param lr=$target_rate" in tab(shell, "%%aml_submit --param lr=$targ|\npass")
    assert "%aml_submit" in tab(shell, "%aml_sub|")


@pytest.mark.thorough
def test_tab_offers_runs_newest_first(shell: InteractiveShell, cell: Cell) -> None:
    cell("%%aml_submit --name first --wait --as one\npass")
    cell("%%aml_submit --name second --wait --as two\npass")
    handles = [shell.user_ns[name].handle for name in ("two", "one")]
    assert tab(shell, "%aml_runs logs |") == [f"%aml_runs logs {x}" for x in (handles[0], "last", handles[1])]
    assert tab(shell, "%aml_runs delete local/f|") == [f"%aml_runs delete {handles[1]}"]


def test_terminal_complete_of_magic_line_offers_matches(shell: InteractiveShell) -> None:
    assert shell.complete(None, "%aml_runs att")[1] == ["attach"]
    assert shell.complete("att", "%aml_runs att", 13)[1] == ["attach"]


def test_terminal_menu_of_magic_line_offers_matches(shell: InteractiveShell) -> None:
    from IPython.terminal.ptutils import IPythonPTCompleter
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    completer = IPythonPTCompleter(ipy_completer=shell.Completer)
    for line, expected in {"%aml_submit --ta": {"--target", "--tag"}, "%aml_runs wait la": {"last"}}.items():
        found = list(completer.get_completions(Document(line), CompleteEvent()))
        begun = line.rpartition(" ")[2]
        assert {begun[: len(begun) + c.start_position] + c.text for c in found} == expected


@pytest.mark.thorough
def test_unload_removes_completion(ip: InteractiveShell) -> None:
    from jupyter_amltrain import load_ipython_extension, unload_ipython_extension

    load_ipython_extension(ip)
    assert len(ip.Completer.custom_matchers) == 1
    unload_ipython_extension(ip)
    assert ip.Completer.custom_matchers == [] and "%aml_submit --target" not in tab(ip, "%aml_submit --ta|")
