"""A real JupyterLab of this environment on a free port, and a notebook of it in a real Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

RECORD_MIME = "application/vnd.amltrain.run+json"
DEADLINE = float(os.environ.get("AMLTRAIN_UI_DEADLINE", 90))  # seconds, for whatever has to happen on a busy machine
MS = 1000 * DEADLINE


def eventually(what: str, condition: Callable[[], Any], deadline: float = DEADLINE) -> Any:
    """The first true value of `condition`; fails after `deadline` seconds naming `what`."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {deadline:g} s: {what}"
        time.sleep(0.05)


def run_output(record: dict[str, Any], text: str = "a run") -> dict[str, Any]:
    """A cell output that holds a record."""
    return {"output_type": "display_data", "metadata": {}, "data": {RECORD_MIME: record, "text/plain": text}}


def code_cell(source: str, outputs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A code cell as a notebook file has it."""
    return {
        "cell_type": "code",
        "id": secrets.token_hex(4),
        "metadata": {},
        "execution_count": 1 if outputs else None,
        "source": source,
        "outputs": outputs or [],
    }


class LabServer:
    """One JupyterLab process with a home, settings and state of its own under `folder`.

    Parameters
    ----------
    arguments
        More words for its command line.
    app
        Module of the application: ``jupyterlab``, or ``notebook`` for Notebook 7.
    **more
        Environment variables.
    """

    def __init__(self, folder: Path, arguments: Sequence[str] = (), app: str = "jupyterlab", **more: str) -> None:
        self.folder = folder
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True)
        self.token = secrets.token_hex(8)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = (folder / "server.txt").open("wb")
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "AMLTRAIN"))},
            "HOME": str(folder),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "IPYTHONDIR": str(folder / "ipython"),
            "AMLTRAIN_HOME": str(folder / "state"),
            "AMLTRAIN_QUEUE": str(folder / "queue"),
            **more,
        }
        if "AMLTRAIN_UI_BUNDLE" in os.environ:  # a bundle of one's own, while another is being built in the checkout
            self.environment["JUPYTER_PATH"] = os.environ["AMLTRAIN_UI_BUNDLE"]
        options = {
            "ServerApp.port": self.port,
            "ServerApp.port_retries": 0,
            "ServerApp.root_dir": self.notebooks,
            "ServerApp.allow_root": True,
            "ServerApp.open_browser": False,
            "IdentityProvider.token": self.token,
            "LabApp.expose_app_in_browser": True,
            "LabApp.user_settings_dir": folder / "settings",
            "LabApp.workspaces_dir": folder / "workspaces",
        }
        argv = [sys.executable, "-m", app, *arguments]
        argv += [f"--{name}={value}" for name, value in options.items()]
        # The question about news covers a corner of every screenshot.
        quiet = folder / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
        quiet.parent.mkdir(parents=True)
        quiet.write_text('{"fetchNews": "false", "checkForUpdates": false}')
        self.process = subprocess.Popen(
            argv, env=self.environment, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )
        eventually("JupyterLab answers", self._answers)

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "server.txt").read_text()[-3000:]
        try:
            url = f"{self.url}/api/status?token={self.token}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kernelspec(self, name: str, display: str, language: str = "python", site: str = "") -> None:
        """Add a kernel: ipykernel under another name, whose interpreter runs the code `site` when it starts."""
        folder = self.folder / "data" / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "sitecustomize.py").write_text(site)
        paths = [str(folder), os.environ.get("PYTHONPATH", "")] if site else [os.environ.get("PYTHONPATH", "")]
        spec = {
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": display,
            "language": language,
            "env": {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        }
        (folder / "kernel.json").write_text(json.dumps(spec))

    def put_targets(self, targets: dict[str, dict[str, Any]], current: str = "local") -> None:
        """Write the file of targets before any kernel reads it."""
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        (state / "schema.json").write_text('{"schema":1}')
        named = {name: {"name": name, **fields} for name, fields in targets.items()}
        (state / "targets.json").write_text(json.dumps({"schema": 1, "current": current, "targets": named}))

    def write(self, name: str, cells: list[dict[str, Any]], kernel: str | None = "python3") -> str:
        """Put a notebook into the server's folder and return its name."""
        spec = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}} if kernel else {}
        content = {"cells": cells, "metadata": spec, "nbformat": 4, "nbformat_minor": 5}
        (self.notebooks / name).write_text(json.dumps(content))
        return name

    def read(self, name: str) -> dict[str, Any]:
        """A notebook as it lies on disk."""
        found: dict[str, Any] = json.loads((self.notebooks / name).read_text())
        return found

    def copy_without_kernel(self, name: str, copy: str) -> str:
        """Copy a notebook so that JupyterLab asks for a kernel when it opens the copy.

        Neither kernelspec nor language may be left: by the language alone JupyterLab starts a kernel.
        """
        (self.notebooks / copy).write_text(json.dumps({**self.read(name), "metadata": {}}))
        return copy

    def end_runs(self) -> None:
        """Cancel every run and wait for its end: one that is left holds the slot of the next test."""

        def live(folder: Path) -> bool:
            state = json.loads((folder / "state.json").read_text())["state"]
            return state not in ("completed", "failed", "canceled", "lost")

        folders = [path.parent for path in (self.folder / "state" / "runs").glob("*/state.json")]
        for folder in filter(live, folders):
            (folder / "cancel").touch()
        eventually("all runs have ended", lambda: not any(map(live, folders)))

    def kill(self) -> None:
        """``kill -9`` on the server alone; its kernels go on until they notice."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """End the server and its kernels."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(20)
                break
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break
        self.log.close()


def _opened(fifo: str) -> int | None:
    """A descriptor of the writing end, or None as long as nobody waits at the other."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


class NotebookPage:
    """One notebook open in one page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @property
    def runs(self) -> Locator:
        """Our outputs, in the order of the cells."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-AmlRun")

    def cell(self, source: str, wait: bool = True) -> None:
        """Append a cell, run it, and wait for its end unless told otherwise."""
        self.page.evaluate(
            """async ([source, wait]) => {
                const panel = jupyterapp.shell.currentWidget;
                const shared = panel.content.model.sharedModel;
                shared.insertCell(shared.cells.length, {cell_type: 'code', source, metadata: {}});
                panel.content.activeCellIndex = shared.cells.length - 1;
                panel.content.deselectAll();
                const done = jupyterapp.commands.execute('notebook:run-cell');
                if (wait) { await done; }
            }""",
            [source, wait],
        )

    def wait_for_kernel(self) -> None:
        """Wait until the notebook's kernel has answered once."""
        self.page.evaluate(
            """async () => {
                const panel = jupyterapp.shell.currentWidget;
                await panel.sessionContext.ready;
                await panel.sessionContext.session.kernel.info;
            }"""
        )

    def restart_kernel(self) -> None:
        """Restart the kernel as the menu does, and wait until JupyterLab is connected to the new one.

        Before that, JupyterLab drops what a cell prints.
        """
        self.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
        self.wait_for_kernel()

    def sleeping_cell(self) -> Locator:
        """Append a cell that sleeps for minutes and return its prompt once the cell has begun.

        The page's status of the kernel does not tell: a reply on the control channel makes it idle while a cell
        runs (jupyterlab#10701), until our kernel side repairs it.
        """
        self.cell("import time; print('now asleep', flush=True); time.sleep(600)", wait=False)
        eventually("the cell runs", lambda: "now asleep" in self.outputs_text())
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").last.locator(".jp-InputPrompt")

    @contextlib.contextmanager
    def interpreter_held(self) -> Iterator[None]:
        """Keep the kernel's interpreter in one C call, as a long sort in NumPy does, until the block ends."""
        with tempfile.TemporaryDirectory() as folder:
            gate = f"{folder}/gate"
            os.mkfifo(gate)
            # It opens when somebody opens the other end, and holds the interpreter's lock until then.
            self.cell(f"import ctypes; ctypes.PyDLL(None).open({gate.encode()!r}, 0); print('let go')", wait=False)
            try:
                yield
            finally:
                os.close(eventually("the call has begun", lambda: _opened(gate)))

    def kernel_status(self) -> str:
        """What the page believes of the kernel."""
        return str(self.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"))

    def has_kernel(self) -> bool:
        """Whether the notebook has a kernel."""
        return bool(self.page.evaluate("() => !!jupyterapp.shell.currentWidget.sessionContext.session?.kernel"))

    def interrupt(self) -> None:
        """Interrupt the kernel and wait until no cell of this page runs: one sent earlier would be aborted with it."""
        self.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.interrupt()")
        prompts = self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-InputPrompt")
        expect(prompts.filter(has_text="[*]")).to_have_count(0, timeout=MS)

    def records(self) -> list[dict[str, Any]]:
        """The records in the notebook's model, as a save would write them."""
        found: list[dict[str, Any]] = self.page.evaluate(
            """mime => [...jupyterapp.shell.currentWidget.content.model.cells]
                .flatMap(cell => cell.outputs ? cell.outputs.toJSON() : [])
                .map(output => output.data?.[mime]).filter(Boolean)""",
            RECORD_MIME,
        )
        return found

    def outputs_text(self) -> str:
        """Stream texts and error texts of all cells."""
        return str(
            self.page.evaluate(
                """() => [...jupyterapp.shell.currentWidget.content.model.cells]
                    .flatMap(cell => cell.outputs ? cell.outputs.toJSON() : [])
                    .map(o => o.text ?? o.traceback?.join('\\n') ?? '').join('\\n')"""
            )
        )

    def sources(self) -> list[str]:
        """What stands in the cells, from above."""
        found: list[str] = self.page.evaluate(
            "() => [...jupyterapp.shell.currentWidget.content.model.cells].map(cell => cell.sharedModel.getSource())"
        )
        return found

    def save(self) -> None:
        """Save the notebook."""
        self.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")

    def close(self) -> None:
        """Shut the kernel down and close the notebook without a question."""
        self.page.evaluate(
            """async () => {
                const panel = jupyterapp.shell.currentWidget;
                await panel.sessionContext.shutdown();
                panel.dispose();
            }"""
        )

    def cancel(self, run: Locator, name: str = "") -> None:
        """Cancel a run by the button in its output, and agree to the question."""
        button = run.locator("button.jp-AmlRun-cancel")
        (button.and_(self.page.get_by_role("button", name=f"Cancel: {name}")) if name else button).click()
        self.page.locator(".jp-Dialog").get_by_role("button", name="Cancel run").click()

    def theme(self, name: str) -> None:
        """``JupyterLab Light`` or ``JupyterLab Dark``."""
        self.page.evaluate("name => jupyterapp.commands.execute('apputils:change-theme', {theme: name})", name)
        dark = "false" if "Dark" in name else "true"
        self.page.locator(f"body[data-jp-theme-light='{dark}']").wait_for(state="attached", timeout=MS)


def open_notebook(page: Page, server: LabServer, name: str, kernel: bool = True) -> NotebookPage:
    """Show a notebook in the page, which loads JupyterLab only the first time."""
    if page.url.startswith(server.url):
        # Not awaited: without a kernelspec it ends only when the question about the kernel is answered.
        page.evaluate("path => void jupyterapp.commands.execute('docmanager:open', {path})", name)
        return attach(page, name, kernel)
    return load_page(page, server, name, kernel)


def load_page(page: Page, server: LabServer, name: str, kernel: bool = True) -> NotebookPage:
    """Reload the whole page with this notebook alone, as a person's reload does."""
    page.goto(f"{server.url}/lab/tree/{name}?reset&token={server.token}")
    return attach(page, name, kernel)


def attach(page: Page, name: str, kernel: bool = True) -> NotebookPage:
    """Wait until the notebook is drawn and, unless it shall have none, its kernel has answered."""
    try:
        page.wait_for_function(
            "name => window.jupyterapp?.shell?.currentWidget?.context?.path === name"
            " && window.jupyterapp.shell.currentWidget.context.isReady",
            arg=name,
        )
    except Exception:
        if "AMLTRAIN_SHOTS" in os.environ:
            page.screenshot(path=Path(os.environ["AMLTRAIN_SHOTS"]) / "not-opened.png")
        raise
    if not kernel:
        page.locator(".jp-Dialog button", has_text="No Kernel").click()
    notebook = NotebookPage(page)
    if kernel:
        notebook.wait_for_kernel()
    return notebook
