from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.commands.run_compare import MAX_DIFF_LINES, _diff
from jupyter_amltrain.errors import CommandError


@pytest.mark.thorough
def test_three_runs_are_compared_by_what_differs(api: Any) -> None:
    code = "import mlflow\nmlflow.log_metric('loss', lr)\n"
    runs = [
        api.submit(source, name=name, params={"lr": lr, "size": 3}, gpus=0).wait(120)
        for name, lr, source in (("a", 0.1, code), ("b", 0.2, code), ("c", 0.1, code + "print('more')\n"))
    ]
    names = [one.handle for one in runs]
    result = run("runs", ["compare", *names], Context(prog="%aml_runs"))
    rows = {(row["group"], row["name"]): row for row in result.data["rows"]}
    assert result.data["runs"] == names and rows["params", "lr"]["values"] == [0.1, 0.2, 0.1]
    assert rows["metrics", "loss"]["differs"] and not rows["params", "size"]["differs"]
    assert result.data["code"][names[1]] == [] and "+print('more')" in result.data["code"][names[2]]
    assert "+print('more')" in result.text and "size" not in result.text
    assert "size" in run("runs", ["compare", *names, "--all-rows"], Context(prog="%aml_runs")).text
    for words, code in (([names[0]], "compare.count"), ([names[0], names[0]], "compare.twice")):
        with pytest.raises(CommandError) as caught:
            run("runs", ["compare", *words], Context(prog="%aml_runs"))
        assert caught.value.code == code


def test_code_of_files_is_compared_and_unreadable_code_is_named(api: Any, tmp_path: Path) -> None:
    handles = []
    for text in ("print(1)\n", "print(2)\n"):
        (tmp_path / "train.py").write_text(text)
        handles.append(api.submit(str(tmp_path / "train.py"), gpus=0).wait(120).handle)
    result = run("runs", ["compare", *handles], Context(prog="%aml_runs"))
    assert {"-print(1)", "+print(2)"} <= set(result.data["code"][handles[1]])
    assert "b" in _diff("x", None, "a", "b")[0]


def test_long_code_diff_is_bounded() -> None:
    assert len(_diff("", "x\n" * 1000, "a", "b")) == MAX_DIFF_LINES + 1
