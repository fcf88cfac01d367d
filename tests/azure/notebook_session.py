"""A person at a notebook over the emulated Azure: cells are run, what is seen is kept, secrets are sought in it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from tests.azure.conftest import Azure
from tests.helpers import DEADLINE, state_root
from tests.helpers import until as until

SIZE = "Standard_DS2_v2"
#: Time constants in which every retry of the product and of the SDK is over in a moment.
QUICK = {
    "AMLTRAIN_AZURE_BACKOFF": "0.01",
    "AMLTRAIN_AZURE_WARM": "0",
    "AMLTRAIN_AZURE_READ_TIMEOUT": "1",
    "AMLTRAIN_AZURE_UNREACHABLE": "1",
    "AMLTRAIN_AZURE_UNSURE": "1",
    "AMLTRAIN_AZURE_YOUNG": "2",
}
#: What no secret looks like, wherever it is found: a signature, a token, an account's key, a connection string.
SECRETS = re.compile(
    rb"[?&]sig=(?!\.\.\.|\[redacted\])[A-Za-z0-9%+/]{8,}"
    rb"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    rb"|AccountKey=(?!\[redacted\])|SharedAccessSignature=(?!\[redacted\])"
)


class CellResult(NamedTuple):
    """What a cell gave."""

    text: str
    error: BaseException | None
    result: Any

    def one_line(self) -> str:
        """The only line that a failed cell shows; fails for a traceback, a second line or an internal error."""
        from jupyter_amltrain.errors import AmlTrainError

        assert isinstance(self.error, AmlTrainError), f"{self.error!r}\n{self.text}"
        assert "Traceback" not in self.text, self.text
        message = str(self.error)
        assert "\n" not in message and len(message) < 700, message
        assert f"{type(self.error).__name__}: {message}" in self.text.replace("\n", " ").replace("  ", " "), self.text
        assert "internal error" not in message, message
        return message


class NotebookSession:
    """One notebook.

    Attributes
    ----------
    outputs
        What the cells printed and displayed so far.
    """

    def __init__(self, azure: Azure, home: Path) -> None:
        self.azure, self.home = azure, home
        self.shell: Any = InteractiveShell(colors="NoColor")  # type: ignore[no-untyped-call]
        self.outputs: list[str] = []
        self._jobs: set[str] = set()
        self._wire: list[dict[str, Any]] = []
        self._seen = 0
        self.good("%load_ext jupyter_amltrain")

    def cell(self, source: str) -> CellResult:
        """Run a cell."""
        with capture_output() as captured:
            result = self.shell.run_cell(source)
        text = captured.stdout + captured.stderr + "".join(json.dumps(o.data, default=str) for o in captured.outputs)
        self.outputs.append(text)
        return CellResult(text, result.error_before_exec or result.error_in_exec, result.result)

    def good(self, source: str) -> CellResult:
        """Run a cell that must succeed."""
        seen = self.cell(source)
        assert seen.error is None, seen.text
        return seen

    def bad(self, source: str) -> str:
        """Run a cell that must fail; its one line."""
        return self.cell(source).one_line()

    def connect(self) -> CellResult:
        """Connect the sandbox's workspace as ``lab``."""
        return self.cell(self.connect_line)

    @property
    def connect_line(self) -> str:
        az = self.azure
        return (
            f"%aml_compute connect --subscription {az.subscription} --resource-group {az.resource_group}"
            f" --workspace {az.workspace} --name lab"
        )

    def cluster(self, name: str = "cpu", more: str = "") -> None:
        """Make a cluster and use it."""
        self.good(f"%aml_compute create {name} --kind amlcompute --size {SIZE} --max-nodes 4 {more} --yes --wait")
        self.good(f"%aml_compute use {name}")

    def jobs(self) -> list[str]:
        """Names of the jobs that the service was really given."""
        puts = [w for w in self.wire() if w["method"] == "PUT" and re.search(r"/jobs/[^/]+$", w["path"])]
        self._jobs |= {w["path"].rpartition("/")[2] for w in puts if w["route"] and w["status"] in (0, 200, 201)}
        return sorted(self._jobs)

    def wire(self) -> list[dict[str, Any]]:
        """Requests since this was asked last; they are kept for :meth:`no_secret`."""
        found: list[dict[str, Any]] = self.azure.control("/wire", since=self._seen)
        self._seen = max([self._seen, *(w["n"] for w in found)])
        self._wire += found
        return found

    def steady(self) -> None:
        """No fault any more."""
        self.azure.control("/faults", clear=True)
        self.azure.control("/network", up=True)
        self.azure.control("/switch", authorization="")

    def no_secret(self, *more: Path) -> None:
        """Fail where a secret is: in what was seen, any file of the state root, the wire's bodies and queries."""
        known = [self.azure.environ["AZURE_CLIENT_SECRET"].encode()]
        places: dict[str, bytes] = {"what was seen": "".join(self.outputs).encode()}
        for folder in (self.home, *more):
            for path in folder.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    with contextlib.suppress(OSError):
                        places[str(path)] = path.read_bytes()
        self.wire()
        for entry in self._wire:
            if not (entry["path"].endswith("/listSecrets") or "/oauth2/" in entry["path"]):
                places[f"request {entry['n']} {entry['method']} {entry['path']}"] = str(entry["body"]).encode()
        for where, data in places.items():
            found = SECRETS.search(data)
            assert found is None, f"{where}: {found and data[max(0, found.start() - 80) : found.end()]!r}"
            for secret in known:
                assert secret not in data, where


@contextlib.contextmanager
def session_of(azure: Azure, folder: Path, **more: str) -> Iterator[NotebookSession]:
    """A notebook with a state root of its own, over the emulated Azure as new."""
    from jupyter_amltrain import api, magics
    from jupyter_amltrain.errors import AmlTrainError
    from jupyter_amltrain.magics import display

    azure.control("/reset")
    azure.control("/switch", scale_seconds=0.1, create_seconds=0.05, job_seconds=0.02)
    with pytest.MonkeyPatch.context() as patch, state_root(folder, **{**azure.environ, **QUICK, **more}) as home:
        # On a busy machine a submit takes longer than a cell waits for it, which then has no error yet.
        patch.setattr(display, "ACCEPT_TIMEOUT_S", DEADLINE)
        api.close()
        desk = NotebookSession(azure, home)
        try:
            yield desk
        finally:
            azure.control("/network", up=True)
            magics.unregister(desk.shell)
            AmlTrainError.short = True
            api.close()


@contextlib.contextmanager
def cluster_of(azure: Azure, folder: Path, **more: str) -> Iterator[NotebookSession]:
    """A notebook with the workspace connected and a cluster in use; nothing wrong was asked, no secret is left."""
    with session_of(azure, folder, **more) as desk:
        assert desk.connect().error is None
        desk.cluster()
        yield desk
        desk.steady()
        assert azure.control("/problems")["problems"] == []
        desk.no_secret()


def until_log(run: Any, text: str) -> str:
    """The log of a run, once `text` is in it."""

    def found() -> str:
        log = str(run.logs())
        return log if text in log else ""

    return until(found, f"{text!r} in the log", DEADLINE)
