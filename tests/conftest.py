"""What every test may use: a state root of its own, and nothing that outlives the test."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

# A shell that starts the tests behind itself makes them deaf to Ctrl-C, and their children too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The fast tier tries the same examples every time; new ones are sought by `make soak`.
# A busy machine is slow: how long data takes says nothing about the code.
settings.register_profile("fast", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# The fake GPUs of tests that run side by side have the same UUIDs, and their locks are the whole machine's.
os.environ["AMLTRAIN_GPU_LOCK_SCOPE"] = f"test-{os.getpid()}-"


def processes_of(home: Path) -> list[psutil.Process]:
    """Every process that works for the state root `home`, by its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get("AMLTRAIN_HOME") == str(home):
                found.append(process)
    return found


def end_all(home: Path) -> None:
    """Kill every process of `home`; in a loop, because supervisors start helpers again."""
    deadline = time.monotonic() + 60
    while (left := processes_of(home)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.05)


SETTINGS = {
    "AMLTRAIN_DISPATCHER_IDLE": "600",
    "AMLTRAIN_SAMPLE_PERIOD": "0.1",
    "AMLTRAIN_GRACE": "1",
    "AMLTRAIN_READ_LIMIT": "60",  # a busy machine is no silent target
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """State root and queue of this test, in the environment; its processes end with it."""
    home = tmp_path / "home"
    for name in list(os.environ):
        if name.startswith(("AMLTRAIN_FAIL", "MLFLOW_")):
            monkeypatch.delenv(name)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AMLTRAIN_HOME", str(home))
    monkeypatch.setenv("AMLTRAIN_QUEUE", str(tmp_path / "queue"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    yield home
    end_all(home)


@pytest.fixture(scope="session", autouse=True)
def agent_packed_once() -> Iterator[None]:
    """The agent's archive is made once for equal sources, not again for each state root (0.3 s of CPU)."""
    from jupyter_amltrain.backends import agent_zipapp

    pack, made = agent_zipapp._packed, dict[int, bytes]()

    def once(sources: dict[str, bytes]) -> bytes:
        key = hash(tuple(sorted(sources.items())))
        if key not in made:
            made[key] = pack(sources)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_zipapp, "_packed", once)
        yield


@pytest.fixture
def api(home: Path) -> Iterator[object]:
    """`jupyter_amltrain.api` with a controller of this test."""
    from jupyter_amltrain import api as module

    from . import prefork

    with prefork.installed():
        module.close()
        yield module
        module.close()


@pytest.hookimpl(trylast=True)  # after `-m` has selected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a part of the files: ``AMLTRAIN_TEST_PART=1/7`` every seventh in alphabetical order, from the first on."""
    if part := os.environ.get("AMLTRAIN_TEST_PART"):
        number, parts = map(int, part.split("/"))
        files = sorted({item.path for item in items})
        others = set(files) - set(files[number - 1 :: parts])
        config.hook.pytest_deselected(items=[item for item in items if item.path in others])
        items[:] = [item for item in items if item.path not in others]


#: What takes a minute and more, longest first. Begun last, one of them would go on alone.
LONGEST = (
    "tests/ui",
    "tests/sweeps/test_driver.py",
    "tests/tracking/test_differential.py",
    "tests/tracking/test_other_trackers.py",
    "tests/tracking/test_job_project.py",
    "tests/agent/test_gpu_queue.py",
    "tests/test_notebooks.py",
    "tests/test_cli.py",
    "tests/azure/test_backend.py",
    "tests/agent/test_faults.py",
    "tests/agent/test_hostile_jobs.py",
    "tests/azure/test_computes.py",
    "tests/azure/test_connect.py",
    "tests/agent/test_gpu_gate.py",
    "tests/ipykernel/test_dashboard.py",
    "tests/ipykernel/test_panel.py",
    "tests/ui/test_dashboard.py",
    "tests/ui/test_panel_runs.py",
    "tests/ui/test_panel_compute.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one worker: they share kernels, servers and environments."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            # Beside other tests, one browser and one server serve all of ui/.
            return "tests/ui" if file.startswith("tests/ui/") and not self._is_ui_alone else file

        @functools.cached_property
        def _is_ui_alone(self) -> bool:
            return all(nodeid.startswith("tests/ui/") for nodeid in self.collection)

        def _assign_work_unit(self, node: Any) -> None:
            if longest := next((scope for scope in LONGEST if scope in self.workqueue), None):
                self.workqueue.move_to_end(longest, last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)
