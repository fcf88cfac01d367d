from __future__ import annotations

import subprocess
import sys
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain.errors import AmlTrainError, CommandError

from .conftest import Cell

#: Of the standard library, and of what IPython loads itself by %load_ext.
CHEAP = {"IPython.core.magics.extension", "locale", "_locale", "gettext"}


def test_load_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "ip = InteractiveShell.instance()\n"
        "before = set(sys.modules)\n"
        "ip.run_line_magic('load_ext', 'jupyter_amltrain')\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    loaded = {name for name in done.stdout.split() if not name.startswith("jupyter_amltrain")}
    assert done.returncode == 0 and loaded <= CHEAP
    assert "jupyter_amltrain.magics" in done.stdout and "jupyter_amltrain.api" not in done.stdout


def test_package_import_imports_nothing_heavy() -> None:
    program = (
        "import sys, jupyter_amltrain\n"
        "assert not {'msgspec', 'IPython', 'asyncio', 'traitlets'} & set(sys.modules)\n"
        "import jupyter_amltrain.kernel.streams\n"
        "from jupyter_amltrain import runs, submit, TrackedRun\n"
        "assert callable(runs) and callable(jupyter_amltrain.runs) and jupyter_amltrain.__version__\n"
        "assert jupyter_amltrain.errors.RunFailed and 'submit' in dir(jupyter_amltrain)\n"
        "assert not {'IPython', 'mlflow', 'azure'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_load_twice_then_unload_is_clean(ip: InteractiveShell) -> None:
    from jupyter_amltrain import load_ipython_extension, unload_ipython_extension

    n = len(ip.configurables)
    load_ipython_extension(ip)
    assert len(ip.configurables) == n
    unload_ipython_extension(ip)
    unload_ipython_extension(ip)
    assert ip.find_line_magic("aml_runs") is None and ip.find_cell_magic("aml_submit") is None
    assert len(ip.configurables) == n - 1
    load_ipython_extension(ip)
    assert ip.find_line_magic("aml_runs") is not None and len(ip.configurables) == n


def test_magic_help_shows_examples_and_usage(ip: InteractiveShell, cell: Cell, capsys: Any) -> None:
    for name in ("aml_submit", "aml_runs", "aml_compute", "aml_monitor", "aml_model", "aml_data"):
        text = ip.object_inspect_text(f"%{name}")
        assert "Examples::" in text and f"usage: %{name}" in text
        cell(f"%{name} --help")
        assert "usage: " in capsys.readouterr().out


def test_config_magic_lists_and_sets_options(ip: InteractiveShell, cell: Cell, capsys: Any, caplog: Any) -> None:
    cell("%config AMLTrain")
    shown = capsys.readouterr().out
    for name in (
        "target",
        "experiment",
        "timeout",
        "environment",
        "short_errors",
        "log_lines",
        "refresh_rate",
        "progress",
    ):
        assert f"AMLTrain.{name}=" in shown
    cell("%config AMLTrain.timeout = 'soon'")
    cell("%config AMLTrain.log_lines = -3")
    cell("%config AMLTrain.environment = 'a b'")
    assert "AMLTrain.environment: --env a b: " in caplog.text
    cell("%config AMLTrain.short_errors = False")
    assert AmlTrainError.short is False
    assert len(CommandError("x")._render_traceback_()) >= 1
    cell("%config AMLTrain.short_errors = True")
    assert AmlTrainError.short is True


def test_config_file_sets_defaults(api: Any) -> None:
    from traitlets.config import Config

    from jupyter_amltrain import magics
    from jupyter_amltrain.commands.submit import Defaults

    shell = InteractiveShell(
        config=Config({"AMLTrain": {"timeout": "2h", "target": " local ", "environment": "kernel"}})
    )
    magics.register(shell)
    config = next(c for c in shell.configurables if type(c).__name__ == "AMLTrain")
    assert config.defaults() == Defaults(target="local", timeout=7200.0, environment="kernel")
    magics.unregister(shell)


def test_magic_error_is_one_line_and_fails_cell(ip: InteractiveShell, capsys: Any) -> None:
    assert not ip.run_cell("%aml_runs lst").success
    captured = capsys.readouterr()
    assert (captured.out + captured.err).strip().count("\n") == 0
    ip.run_cell("%config AMLTrain.short_errors = False")
    ip.run_cell("%aml_runs lst")
    captured = capsys.readouterr()
    assert "Traceback" in captured.out + captured.err
