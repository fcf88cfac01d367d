"""One emulated Azure for each pytest process, and the environment that leads a test there."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import prefork
from tests.ssh.conftest import remote_home, sshd

__all__ = ["remote_home", "sshd"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Azure:
    """A sandbox that runs.

    Attributes
    ----------
    environ : dict of str
        What leads a process there: proxy, CA bundle, sign-in, short time constants.
    subscription, resource_group, workspace, tenant : str
        What is there after a reset.
    """

    environ: dict[str, str]
    subscription: str
    resource_group: str
    workspace: str
    tenant: str
    _control: str

    @property
    def where(self) -> dict[str, str]:
        """Subscription, resource group and workspace."""
        return {
            "subscription": self.subscription,
            "resource_group": self.resource_group,
            "workspace": self.workspace,
        }

    def control(self, path: str, **body: Any) -> Any:
        """Call the sandbox's control endpoint (azureml_emulator/control.py).

        Raises
        ------
        RuntimeError
            It refused; the message holds its answer.
        """
        request = urllib.request.Request(self._control + path, json.dumps(body).encode(), method="POST")
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"control {path}: {error.read().decode()}") from None


@contextlib.contextmanager
def sandbox() -> Iterator[Azure]:
    """A sandbox in a process of its own; it ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "azureml_emulator.sandbox"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    lines = iter(process.stdout)
    line = next((one for one in lines if one.startswith("{")), "")
    assert line, "the sandbox did not start; its own message stands above"
    facts = json.loads(line)
    control = facts.pop("control")
    try:
        yield Azure(**facts, _control=control)
    finally:
        process.stdin.close()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="session")
def azure() -> Iterator[Azure]:
    """The sandbox of this pytest process; it ends with it."""
    for module in (prefork.AZURE, prefork.WORKER):
        prefork.prepare(module, wait=False)
    with sandbox() as found:
        prefork.prepare(prefork.AZURE)
        yield found


@pytest.fixture
def azure_env(azure: Azure, monkeypatch: pytest.MonkeyPatch) -> Azure:
    """The sandbox as new, and this process led there."""
    azure.control("/reset")
    for name, value in azure.environ.items():
        monkeypatch.setenv(name, value)
    return azure
