"""Which imports of a script an interpreter does before there is a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.supervise import warm_plan
from jupyter_amltrain.agent.supervise.assignment import Assignment
from jupyter_amltrain.agent.telemetry import host


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import numpy as np, os\nfrom sklearn.svm import SVC\n", ["numpy os", "sklearn"]),
        (
            '"""About."""\nfrom __future__ import annotations\n# lr\nlr = -0.1\nlayers = [1, 2]\nimport torch\n',
            ["torch"],
        ),
        ("lr = 0.1; import a.b\nprint(1)\nimport c\n", ["a"]),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport numpy\n", ["os"]),
        ("import sys\nsys.path.insert(0, 'x')\nimport numpy\n", ["sys"]),
        ("try:\n    import a\nexcept ImportError:\n    a = None\nimport b\n", []),
        ("x = load('x')\nimport b\n", []),
        ("__builtins__ = {}\nimport b\n", []),
        ("from . import a\nimport b\n", []),
        ("import a\nif :\n", None),
        ("print('\\d')\n", []),
        ("", []),
    ],
)
def test_imports_before_first_other_statement(tmp_path: Path, code: str, expected: list[str] | None) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    found = warm_plan.leading_imports(str(script))
    assert (None if found is None else [" ".join(line.modules) for line in found]) == expected


def test_script_that_cannot_be_read_has_no_imports(tmp_path: Path) -> None:
    assert warm_plan.leading_imports(str(tmp_path / "absent.py")) is None
    (tmp_path / "binary.py").write_bytes(b"import a\n\xff\xfe")
    assert warm_plan.leading_imports(str(tmp_path / "binary.py")) is None


def task(**more: Any) -> Assignment:
    job = {"argv": ["python", "-u", "/run/x.py"], "cwd": "/", "env": {}, "tracking": {}, "spec": {}, **more}
    rest: dict[str, Any] = {"environ": {"AMLTRAIN_WARM": "600"}, "secrets": {}, "devices": []}
    rest = {name: more.get(name, value) for name, value in rest.items()}
    return Assignment(
        home="/home", folder="/run", job=job, state={}, cpu_slot=0, hide_gpus=False, queued_for=0.0, assigned=0.0,
        queue="/queue", number=1, **rest,
    )  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {"devices": ["GPU-1"]},
        {"secrets": {"TOKEN": "x"}},
        {"container": {"image": "x"}},
        {"ranks": {"kind": "pytorch"}},
        {"nodes": {"count": 2}},
        {"argv": ["python", "-u", "-m", "package"]},
        {"argv": ["bash", "x.sh"]},
        {"argv": ["python", "-u", "x.py"]},
        {"env": {"AMLTRAIN_WARM": "0"}},
        {"environ": {"AMLTRAIN_WARM": "0"}},
        {"env": {"AMLTRAIN_AUTOLOG": "1"}},
    ],
)
def test_job_that_is_no_plain_python_on_the_cpu_is_not_suitable(more: dict[str, Any]) -> None:
    assert warm_plan.is_suitable(task())
    assert not warm_plan.is_suitable(task(**more))


def test_setting_of_job_comes_before_that_of_its_submitter() -> None:
    assert warm_plan.idle_s(task(environ={})) == warm_plan.IDLE_S
    assert warm_plan.idle_s(task(environ={"AMLTRAIN_WARM": "60"})) == 60
    assert warm_plan.idle_s(task(environ={"AMLTRAIN_WARM": "60"}, env={"AMLTRAIN_WARM": "0"})) == 0


def test_only_short_run_on_machine_with_room_is_followed_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    load = 0.0
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    unset = task(environ={})
    assert warm_plan.is_worth(unset, 60) and not warm_plan.is_worth(unset, 3600)
    load = 100.0 * (os.cpu_count() or 1)
    assert not warm_plan.is_worth(unset, 60) and warm_plan.is_worth(task(), 3600)


def test_memory_is_bounded_by_that_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import numpy")

    def limit(available: int, total: int, **more: Any) -> int:
        monkeypatch.setattr(host, "memory_available", lambda: available << 20)
        monkeypatch.setattr(host, "memory_total", lambda: total << 20)
        plan = warm_plan.plan_of(task(argv=["python", "-u", str(script)], **more), {})
        assert plan is not None
        return plan.memory >> 20

    assert limit(64 << 10, 64 << 10) == 1024
    assert limit(1 << 10, 64 << 10) == 256
    assert limit(64 << 10, 4 << 10) == 512
    assert limit(64 << 10, 64 << 10, environ={"AMLTRAIN_WARM_MEMORY": "100"}) == 100


def test_trials_of_one_code_are_alike() -> None:
    code = {"spec": {"source_sha256": "a"}}
    assert warm_plan.is_alike(
        task(**code, tracking={"mode": "sink", "run_id": "1"}), task(**code, tracking={"mode": "sink"})
    )
    assert not warm_plan.is_alike(task(**code), task(spec={"source_sha256": "b"}))
    other = task(**code, cwd="/other/source")._replace(folder="/other")
    assert warm_plan.is_alike(task(**code, cwd="/run/source"), other)
    assert not warm_plan.is_alike(task(**code), task(**code, environ={"A": "1"}))


@pytest.mark.parametrize(
    ("name", "waiting", "job", "may"),
    [
        ("AML_OUTPUT_DIR", {"AML_OUTPUT_DIR": "a"}, {"AML_OUTPUT_DIR": "b"}, True),
        ("AML_OUTPUT_model", {}, {"AML_OUTPUT_model": "b"}, True),
        ("AMLTRAIN_PICTURES", {"AMLTRAIN_PICTURES": "a"}, {"AMLTRAIN_PICTURES": "b"}, True),
        ("AMLTRAIN_PICTURES", {"AMLTRAIN_PICTURES": "a"}, {}, False),
        ("AMLTRAIN_WARM", {"AMLTRAIN_WARM": "60"}, {}, True),
        ("OMP_NUM_THREADS", {}, {"OMP_NUM_THREADS": "1"}, False),
        ("CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "0"}, False),
    ],
)
def test_only_variables_of_the_run_may_differ(
    name: str, waiting: dict[str, str], job: dict[str, str], may: bool
) -> None:
    assert warm_plan.differences(waiting, job) == [name]
    assert warm_plan.may_differ(name, waiting, job) == may
