"""``%aml_env``: names, builds, lists, exact packages, and removal after a question."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.completion import CompletionNames, complete
from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import CommandError, ConfirmationNeeded, SpecError
from tests.helpers import until
from tests.wheels import make_wheel

WAIT_S = 90.0


def line(text: str) -> str:
    return run("env", shlex.split(text), Context(prog="%aml_env")).text


@pytest.fixture
def file(api: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with one package, in the working folder."""
    make_wheel(home.parent / "wheels", "alpha", "1.0")
    make_wheel(home.parent / "wheels", "beta", "2.0")
    monkeypatch.setenv("UV_CACHE_DIR", str(home.parent / "uv-cache"))
    Path("requirements.txt").write_text("--no-index\n--find-links ../wheels\nalpha\n")
    return "requirements.txt"


@pytest.mark.thorough
def test_named_environment_is_built_used_frozen_and_deleted(api: Any, home: Path, file: str) -> None:
    assert "No environments" in line("list")
    assert "--env digits" in line(f"create digits {file} --pip beta")
    assert "digits" in [offer.text for offer in complete("submit", "--env dig", CompletionNames()).offers]
    assert "not built" in line("list") and "digits" in line("")
    Path(file).write_text("nonsense\n")  # a name keeps the packages that it was given
    build = run("env", ["build", "digits", "--target", "local"], Context(prog="%aml_env")).value
    assert "Python" in build.wait(WAIT_S).logs()
    script = "import alpha, beta\nprint(alpha.version, beta.version)\n"
    used = api.submit(script, environment="digits", gpus=0).wait(WAIT_S)
    assert used.logs().startswith("1.0 2.0")
    assert line("freeze digits") == "alpha==1.0\nbeta==2.0\n"
    assert "Wrote 2" in line("freeze digits --to exact.txt") and Path("exact.txt").read_text().startswith("alpha")
    with pytest.raises(CommandError, match="exact"):
        line("freeze digits --to exact.txt")
    row = api.environment("digits")
    assert row.packages == ("alpha==1.0", "beta==2.0") and row.names == ("digits",) and row.seconds > 0
    assert until(lambda: api.environment("digits").bytes, "the size") > 1000
    shown = line(f"show {row.key[:6]}")
    assert row.path in shown and "beta==2.0" in shown and "just now" in shown
    with pytest.raises(ConfirmationNeeded, match="--yes"):
        line("delete digits")
    assert row.key in line("delete digits --yes") and not Path(row.path).exists()
    assert "No environments" in line("list")
    with pytest.raises(SpecError, match="digits"):
        api.submit(script, environment="digits", gpus=0)


def test_environment_that_a_run_uses_is_not_deleted(api: Any, home: Path, file: str) -> None:
    gate = home.parent / "gate"
    script = f"import os, time\nprint('here', flush=True)\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\n"
    used = api.submit(script, environment=file, gpus=0)
    until(lambda: "here" in used.logs(), "the run uses it")
    assert "in use" in line("list")
    with pytest.raises(CommandError, match="uses it"):
        line(f"delete {file} --yes")
    gate.touch()
    used.wait(WAIT_S)
    until(lambda: not api.environment(file).in_use, "the run has ended")
    assert "Deleted" in line(f"delete {file} --yes")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("show nothing", "nothing"),
        ("freeze nothing", "nothing"),
        ("delete nothing --yes", "nothing"),
        ("create bad/name requirements.txt", "bad/name"),
        ("create name", "packages"),
        ("create name nothere.txt", "nothere.txt"),
        ("build", "build"),
        ("build --pip 'alpha >> 1'", "alpha >> 1"),
        ("list --target nowhere", "nowhere"),
    ],
)
def test_wrong_line_is_one_sentence_that_names_it(api: Any, text: str, word: str) -> None:
    with pytest.raises(CommandError, match=word) as caught:
        line(text)
    assert "\n" not in str(caught.value)


def test_target_without_environments_says_which_have_them(api: Any) -> None:
    assert not api.act("create", "demo", kind="fake", confirmed=True).errors
    with pytest.raises(CommandError) as caught:
        line("list --target demo")
    assert caught.value.code == "environment.unsupported"
