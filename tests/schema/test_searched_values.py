from __future__ import annotations

import os
import subprocess

import msgspec
import pytest

from jupyter_amltrain.schema import searched_values
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.search_space import Choice
from jupyter_amltrain.schema.sweep import Objective, Sweep


@pytest.mark.parametrize(
    ("words", "value", "expected"),
    [
        (("--fast", ""), "True", ["--fast"]), (("--fast", ""), "false", []), (("", "--slow"), "False", ["--slow"]),
        (("--amp", "--no-amp"), "true", ["--amp"]), (("--amp", "--no-amp"), "False", ["--no-amp"]),
        (None, "a b", ["a b"]),
    ],
)  # fmt: skip
def test_shell_word_of_a_switch_is_that_of_its_value(
    words: tuple[str, str] | None, value: str, expected: list[str]
) -> None:
    line = f'for word in {searched_values.shell_word("fast", words)}; do echo "$word"; done'
    environ = {**os.environ, searched_values.variable("fast"): value}
    done = subprocess.run(["sh", "-c", line], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == expected


def test_switches_are_those_that_a_service_chooses() -> None:
    space = {"fast": Choice(values=(True, False)), "slow": Choice(values=(True, False)), "n": Choice(values=(1, 2))}
    sweep = Sweep(space=space, objective=Objective(metric="loss", goal="minimize"))
    forms = {"fast": "on --fast", "slow": "value --slow", "n": "on --n"}
    spec = JobSpec(name="s", script_name="train.py", forms=forms, sweep=sweep)
    assert searched_values.switches(spec) == {"fast": ("--fast", "")}
    assert searched_values.switches(msgspec.structs.replace(spec, script="pass")) == {}
