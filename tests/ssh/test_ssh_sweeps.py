"""A sweep whose trials run on a machine over SSH, driven from this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.commands.registry import Context, run
from tests.helpers import DEADLINE
from tests.sweeps.test_driver import QUADRATIC
from tools.openssh import Sshd

from .test_ssh_runs import attach


@pytest.mark.thorough
def test_grid_has_same_trials_over_ssh_as_here(api: Any, sshd: Sshd, remote_home: Path, tmp_path: Path) -> None:
    attach(api, sshd)
    Path("scale.py").write_text("FACTOR = 3\n")
    code = QUADRATIC.replace("(x - 2) ** 2", "scale.FACTOR * (x - 2) ** 2").replace("import json", "import json, scale")
    values = {
        "goal": "minimize loss", "params": {"x": "choice(1, 2, 4)"}, "sampler": "grid", "gpus": 0, "max_concurrent": 2,
    }  # fmt: skip
    here = api.sweep(code, name="grid", **values)
    there = api.sweep(code, name="grid", target="box", **values)
    both = api.sweep(code, name="grid", target="box,local", **values)
    Path("scale.py").write_text("FACTOR = 0\n")  # the trials have the code of the submit
    results = [
        [(child.params, child.value, child.state) for child in run.wait(2 * DEADLINE).children()]
        for run in (here, there, both)
    ]
    assert results[0] == results[1] == results[2] == [({"x": x}, 3.0 * (x - 2) ** 2, "completed") for x in (1, 2, 4)]
    assert there.handle.startswith("local/")
    trials = [api.attach(child.handle) for child in there.children()]
    assert all(trial.handle.startswith("box/") and trial.parent.handle == there.handle for trial in trials)
    shared = [child.handle for child in both.children()]
    assert {handle.partition("/")[0] for handle in shared} == {"box", "local"}
    trials += [api.attach(handle) for handle in shared if handle.startswith("box/")]
    assert sorted(trial.run_id for trial in trials) == sorted(path.name for path in (remote_home / "runs").iterdir())


@pytest.mark.thorough
def test_values_travel_once_for_all_trials(
    api: Any, sshd: Sshd, remote_home: Path, trials: int = 6, size: int = 1 << 20
) -> None:
    attach(api, sshd)
    found: list[Any] = []
    namespace = {"__name__": "__main__", "array": np.arange(size, dtype="float64")}
    context = Context(
        "%%aml_sweep", cell="loss = array[:x].sum()", namespace=namespace, submitted=lambda run, *_: found.append(run)
    )
    line = f"--target box --param x=choice({','.join(map(str, range(1, trials + 1)))}) --sampler grid --out loss"
    line += f" --goal 'minimize loss' --max-concurrent 4 --gpus 0 --max-trials {trials}"
    run("sweep", magic_line.split(line), context)
    children = found[0].wait(20 * DEADLINE).children()
    assert [child.value for child in children] == [sum(range(x)) for x in range(1, trials + 1)]
    stored = [path for path in remote_home.rglob("*") if path.is_file() and path.stat().st_size >= 8 * size]
    of_runs = [path for path in stored if "runs" in path.relative_to(remote_home).parts]
    assert len({path.stat().st_ino for path in stored}) == 1 and len(of_runs) == trials, stored
