"""Parts of the agent by themselves, and what it may be made of."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import jupyter_amltrain.agent as package
from jupyter_amltrain.agent import machine, protocol, testing
from jupyter_amltrain.agent.processes import Process, parse_stat
from jupyter_amltrain.agent.queue import slots
from jupyter_amltrain.agent.supervise import hook_table, outcome
from jupyter_amltrain.agent.telemetry.host import Usage
from jupyter_amltrain.backends import agent_zipapp

FOLDER = Path(package.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))
#: Modules that the kernel imports on any system.
KERNEL = ("protocol", "calls", "testing")


#: Libraries that a module uses where they are installed.
OPTIONAL = {
    ("nvml.py", "pynvml"),
    ("matplotlib_hook.py", "matplotlib"),
    ("rank.py", "amltrain_identity"),  # beside it on the machine
    ("ray_cluster.py", "ray"),
    ("tqdm_hook.py", "tqdm"),
    ("pandas_hook.py", "pandas"),
    ("pretty_text.py", "IPython"),
    ("tracker_hook.py", "mlflow"),
    ("mlflow_hook.py", "mlflow"),
    ("rich_forms.py", "vl_convert"),
    *(("tracker_reader.py", name) for name in ("tensorboard", "wandb")),
    *(("notebook_runner.py", name) for name in ("jupyter_client", "jupyter_core", "nbclient")),
} | {
    ("values.py", name)
    for name in [
        "IPython",
        "catboost",
        "cloudpickle",
        "joblib",
        "keras",
        "lightgbm",
        "numpy",
        "pandas",
        "polars",
        "pyarrow",
        "safetensors",
        "scipy",
        "skops",
        "torch",
        "xgboost",
    ]
}


#: Modules among the hooks of a job.
BESIDE = {hook.module for hook in hook_table.HOOKS if hook.is_importable}


@pytest.mark.thorough
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_agent_source_is_python_3_8_without_dependencies(path: Path) -> None:
    """Grammar of Python 3.8, standard library only, relative imports."""
    text = path.read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            is_beside = top in {
                hook.module for hook in hook_table.HOOKS if hook.is_importable
            }  # among the hooks of a job
            assert top in sys.stdlib_module_names or (path.name, top) in OPTIONAL or is_beside, name


def test_agent_without_posix_modules_imports() -> None:
    blocked = "import sys\nfor n in ('fcntl', 'pwd', 'resource', 'termios', 'grp'): sys.modules[n] = None\n"
    code = blocked + "".join(f"import jupyter_amltrain.agent.{name}\n" for name in KERNEL)
    code += "heavy = {'http.server', 'ctypes', 'pynvml', 'asyncio'} & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_zipapp_is_content_named_and_built_once(tmp_path: Path) -> None:
    first, second = agent_zipapp.build(tmp_path / "a"), agent_zipapp.build(tmp_path / "b")
    assert first.name == second.name and first.stat().st_mode & 0o777 == 0o600
    agent_zipapp._built.clear()
    before = first.stat().st_mtime_ns
    assert agent_zipapp.build(tmp_path / "a").stat().st_mtime_ns == before
    first.unlink()
    assert agent_zipapp.build(tmp_path / "a").exists()


def test_zipapp_existing_is_not_replaced(tmp_path: Path) -> None:
    """An agent that runs reads its modules by and by: the file may not become another below it."""
    path = agent_zipapp.build(tmp_path)
    before, inode = path.read_bytes(), path.stat().st_ino
    agent_zipapp._write(path, b"as good, but compiled to other bytes")  # who began before the file was there
    assert (path.read_bytes(), path.stat().st_ino) == (before, inode)
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_zipapp_on_other_python_uses_sources(tmp_path: Path) -> None:
    import zipfile

    path = agent_zipapp.build(tmp_path)
    other = tmp_path / "other.pyz"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, b"\0\0\r\n" + data[4:] if name.endswith(".pyc") else data)
    done = subprocess.run([sys.executable, "-I", "-S", str(other)], capture_output=True, timeout=60)
    assert done.returncode == 2 and b"usage" in done.stderr


def test_failpoint_acts_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testing.hit("anything")
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", "here:raise,there:sleep=0")
    testing.hit("there")
    testing.hit("elsewhere")
    for _ in range(2):
        with pytest.raises(testing.FailpointError, match="here"):
            testing.hit("here")
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(tmp_path))
    with pytest.raises(testing.FailpointError):
        testing.hit("here")
    testing.hit("here")
    killed = subprocess.run(
        [sys.executable, "-c", "from jupyter_amltrain.agent.testing import hit; hit('x')"],
        env={**os.environ, "AMLTRAIN_FAILPOINT": "x", "AMLTRAIN_FAILPOINT_ONCE": ""},
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL


def test_oom_counters_of_both_cgroup_versions_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free 1\noom_kill 5\n")
    monkeypatch.setenv("AMLTRAIN_TEST_VMSTAT", str(vmstat))
    groups, root = tmp_path / "cgroup", tmp_path / "fs"
    (root / "a").mkdir(parents=True)
    (root / "a" / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")
    groups.write_text("0::/a\n")
    assert outcome.oom_counters(str(groups), str(root)) == {"machine": 5, "group": 2}
    (root / "memory" / "b").mkdir(parents=True)
    (root / "memory" / "b" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n")
    groups.write_text("9:memory:/b\n8:cpu:/\n")
    assert outcome.oom_counters(str(groups), str(root)) == {"machine": 5, "group": 7}
    assert outcome.oom_happened({"machine": 5}, {"machine": 6})
    assert not outcome.oom_happened({"machine": 5}, {"machine": 5})


@pytest.mark.parametrize(
    ("status", "stopped", "oom", "expected"),
    [
        (0, None, False, ("completed", "exit", 0, None)),
        (3 << 8, None, False, ("failed", "exit", 3, None)),
        (9, None, False, ("failed", "signal", None, 9)),
        (9, None, True, ("failed", "oom", None, 9)),
        (137 << 8, None, True, ("failed", "oom", 137, None)),
        (1 << 8, None, True, ("failed", "exit", 1, None)),
        (9, "canceled", True, ("canceled", "canceled", None, 9)),
        (0, "canceled", False, ("canceled", "canceled", 0, None)),
        (15, "timeout", False, ("failed", "timeout", None, 15)),
        (11 | 0x80, None, False, ("failed", "signal", None, 11)),
    ],
)
def test_exit_status_is_classified(status: int, stopped: str | None, oom: bool, expected: tuple[object, ...]) -> None:
    found = outcome.classify(status, stopped, 5, oom)
    assert (found.state, found.reason, found.exit_code, found.signal) == expected


def test_proc_stat_of_odd_name_is_parsed() -> None:
    row = parse_stat(b"12 (a) R) b) S 1 2 3 4 5 6 7 8 9 10 100 20 30 4 20 0 7 0 999 4096 55 1 2\n")
    assert row is not None
    assert row[:6] == (12, "S", 1, 3, 120, 34) and (row.start, row.rss, row.threads) == (999, 55, 7)
    assert parse_stat(b"") is None


def test_cpu_time_of_ended_children_is_counted() -> None:
    usage = Usage(os.getpid())

    def row(pid: int, parent: int, own: int, children: int = 0) -> Process:
        return Process(pid, "S", parent, 99, own, children, pid, 1, 1)

    def total(*rows: Process) -> int:
        found = {r.pid: r for r in rows}
        ticks = usage._total_ticks(found)
        usage._before = found
        return ticks

    assert total(row(1, 0, 10), row(2, 1, 5), row(3, 2, 7)) == 22
    assert total(row(1, 0, 10), row(2, 1, 5, 8)) == 23  # 3 was reaped by 2, its last tick included
    assert total(row(1, 0, 10, 13)) == 23  # 2 was reaped by 1
    assert total(row(1, 0, 10, 13), row(4, 0, 6)) == 29  # an orphan
    assert total(row(1, 0, 11, 13)) == 30  # reaped by nobody of the run
    assert total(row(1, 0, 11, 13), row(5, 1, 4), row(6, 5, 9), row(7, 6, 2)) == 45
    assert total(row(1, 0, 11, 28)) == 45  # each was reaped by its parent, and these ended before the next reading


def test_first_cpu_reading_spans_half_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ticks = 100.0, 0
    usage = Usage(os.getpid(), shortest=0.5)
    monkeypatch.setattr(usage, "members", dict)
    monkeypatch.setattr(usage, "_total_ticks", lambda rows: ticks)
    monkeypatch.setattr("jupyter_amltrain.agent.telemetry.host.protocol.mono", lambda: now)
    found = [usage.read()[0]]
    for now, ticks in ((100.001, 1), (101.0, usage.hertz), (101.25, usage.hertz * 5 // 4)):  # noqa: B007
        found.append(usage.read()[0])
    assert found == [None, None, 100.0, 100.0]


def test_torn_tail_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert protocol.cut_torn_tail(str(path)) == b""
    for data, rest, last in (
        (b"", b"", b""),
        (b"torn", b"", b""),
        (b"a\nb\n", b"a\nb\n", b"b"),
        (b"a\nb\nto", b"a\nb\n", b"b"),
        (b"a\n" + b"y" * 9000 + b"\nz", b"a\n" + b"y" * 9000 + b"\n", b"y" * 9000),
        (b"a\n" + b"z" * 9000, b"a\n", b"a"),
    ):
        path.write_bytes(data)
        assert protocol.cut_torn_tail(str(path)) == last
        assert path.read_bytes() == rest
    assert list(protocol.whole_lines(b"a\nb\nto")) == [b"a", b"b"]


def test_json_file_is_private_and_newer_schema_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    protocol.write_json(str(path), {"schema": 1, "text": "ä\udce4"})
    assert path.stat().st_mode & 0o777 == 0o600 and list(tmp_path.iterdir()) == [path]
    assert protocol.read_json(str(path)) == {"schema": 1, "text": "ä\udce4"}
    path.write_text('{"schema": 99}')
    with pytest.raises(protocol.AgentError, match="schema 99"):
        protocol.read_json(str(path))
    path.write_text('{"sch')
    assert protocol.read_json(str(path)) is None


def test_cpu_slots_follow_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_CPU_SLOTS", "7")
    assert slots.cpu_slots() == 7
    monkeypatch.setenv("AMLTRAIN_CPU_SLOTS", "none")
    assert slots.cpu_slots() == slots.usable_cpus() >= 1


@pytest.mark.parametrize(
    ("env", "server", "why"),
    [
        ({"SLURM_JOB_ID": "42"}, "no", "Slurm"),
        ({"KUBERNETES_SERVICE_HOST": "x", "JUPYTERHUB_USER": "ann"}, "no", "JupyterHub"),
        ({"KUBERNETES_SERVICE_HOST": "x"}, "unknown", "Kubernetes"),
    ],
)
def test_survival_follows_environment(env: dict[str, str], server: str, why: str) -> None:
    answers = machine.survival(env)
    assert answers["server"]["answer"] == server and why in answers["server"]["why"]


def test_survival_follows_systemd_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("0::/system.slice/jupyter.service\n")
    monkeypatch.setattr(machine, "_container", lambda env: "")
    monkeypatch.setattr(machine, "_unit_property", lambda unit, path, name: "control-group")
    answers = machine.survival({}, str(groups))
    assert answers["server"]["answer"] == "no" and "jupyter.service" in answers["server"]["why"]
    assert answers["logout"]["answer"] == "yes"
    monkeypatch.setattr(machine, "_unit_property", lambda unit, path, name: "process")
    assert machine.survival({}, str(groups))["server"]["answer"] == "yes"
    groups.write_text("1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n")
    monkeypatch.setattr(machine, "_output", lambda argv: "b true" if argv[0] == "busctl" else None)
    answers = machine.survival({}, str(groups))
    assert answers["server"]["answer"] == "yes" and answers["logout"]["answer"] == "no"
