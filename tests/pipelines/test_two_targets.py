"""Pipelines of steps here and over SSH."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.pipelines.functions import step
from tools.openssh import Sshd

from ..helpers import DEADLINE
from ..ssh.conftest import remote_home, sshd  # noqa: F401
from ..ssh.test_ssh_runs import attach
from .shapes import check_whole, diamond, driver_of, ran

NAMES = ("prep", "left", "right", "join")
WHERE = ("local", "box")

pytestmark = pytest.mark.thorough


def test_diamond_over_two_targets_runs_only_what_has_changed(api: Any, sshd: Sshd) -> None:  # noqa: F811
    attach(api, sshd)
    first = api.pipeline(*diamond(far="box"), target="local").wait(DEADLINE)
    check_whole(api, first, NAMES, WHERE)
    assert first.result("width") == 2
    assert {child.name: child.handle.partition("/")[0] for child in first.children()}["right"] == "box"
    assert ran(api.pipeline(*diamond(far="box"), target="local").wait(DEADLINE)) == set()
    changed = api.pipeline(*diamond(right="max(data) + 1", far="box"), target="local").wait(DEADLINE)
    check_whole(api, changed, NAMES, WHERE)
    assert ran(changed) == {"right", "join"} and changed.result("width") == 3


@pytest.mark.parametrize("seed", range(3))
def test_killed_driver_of_two_targets_loses_and_doubles_no_step(api: Any, sshd: Sshd, seed: int) -> None:  # noqa: F811
    import random
    import signal
    import time

    attach(api, sshd)
    chance = random.Random(seed)
    run = api.pipeline(*diamond(far="box", pause=0.5), target="local", name="killed")
    time.sleep(chance.uniform(1, 5))
    if not run.run.status.state.terminal:
        driver_of(run).send_signal(signal.SIGKILL)
    run.wait(DEADLINE)
    check_whole(api, run, NAMES, WHERE)
    assert run.result("width") == 2


def test_folders_travel_both_ways_and_only_what_changed(api: Any, sshd: Sshd, remote_home: Path) -> None:  # noqa: F811
    attach(api, sshd)

    def steps(word: str, more: str = "") -> list[Any]:
        write = "import os\nfor i in range(3):\n    open(os.path.join(os.environ['AML_OUTPUT_{}'], f'{{i}}.txt'), 'w')"
        write += ".write({} + str(i))\n"
        read = "import os\ntext = ''.join(open(os.path.join({}, f'{{i}}.txt')).read() for i in range(3))\n"
        return [
            step("here", write.format("RAW", repr(word)) + more, outputs=["raw"], gpus=0),
            step("there", read.format("raw") + write.format("MADE", "text"), needs=["raw"], outputs=["made"],
                 target="box", gpus=0),
            step("there2", read.format("made") + "size = len(text)\n", needs=["made"], out=["size"], target="box",
                 gpus=0),
            step("back", read.format("made"), needs=["made"], out=["text"], gpus=0),
        ]  # fmt: skip

    first = api.pipeline(*steps("a"), target="local").wait(DEADLINE)
    assert first.result("text") == "a0a1a20a0a1a21a0a1a22" and first.result("size") == len(first.result("text"))
    same = api.pipeline(*steps("a", "print(1)"), target="local").wait(DEADLINE)
    assert ran(same) == {"here"} and same.result("text") == first.result("text")
    assert ran(api.pipeline(*steps("b"), target="local").wait(DEADLINE)) == {"here", "there", "there2", "back"}
    stored = [path for path in (remote_home / "data").rglob("*") if path.is_file()]
    assert len({path.read_bytes() for path in stored if path.suffix == ".txt"}) <= 6
