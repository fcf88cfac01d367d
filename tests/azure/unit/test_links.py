"""Addresses that are shown hold nothing that could be a secret."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_amltrain.azure.service import links


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://lab-1.eastus.nodes.azureml.ms", "https://lab-1.eastus.nodes.azureml.ms"),
        ("https://lab-1.eastus.nodes.azureml.ms:8888/lab/tree", "https://lab-1.eastus.nodes.azureml.ms:8888/lab/tree"),
        ("https://lab.ms/lab?token=SECRET#SECRET", "https://lab.ms/lab"),
        ("https://me:SECRET@lab.ms/", "https://lab.ms/"),
        ("wss://ssh.ms", ""),
        ("javascript:alert(1)", ""),
        ("https://[", ""),
        (None, ""),
    ],
)
def test_addresses_are_plain(address: str | None, shown: str) -> None:
    assert links.safe_url(address) == shown


@pytest.mark.parametrize(
    ("spelled", "kind"),
    [
        ("JupyterLab", "jupyterlab"),
        ("jupyter_lab", "jupyterlab"),
        ("VSCode", "vscode"),
        ("vs_code", "vscode"),
        ("Tensor Board", "tensorboard"),
        ("SSH", "ssh"),
        ("Studio", ""),
        ("Tracking", ""),
        ("Custom", "other"),
        (None, ""),
    ],
)
def test_link_kind_spelling_is_normalized(spelled: str | None, kind: str) -> None:
    assert links._kind(spelled) == kind


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ({"error": {"code": "UserError", "message": "The port\nis taken."}}, "not open: The port is taken."),
        ({"code": "UserError", "message": "No node."}, "not open: No node."),
        ({"error": {"code": "PortTaken"}}, "not open: PortTaken"),
        ("The port is taken.", "not open: The port is taken."),
    ],
)
def test_failed_link_hint_has_service_message(error: Any, hint: str) -> None:
    place: Any = SimpleNamespace(resource_group="g", workspace="w")
    service = {"type": "JupyterLab", "error": error, "endpoint": None}
    assert links._link(place, "job", "lab", service, "")["hint"] == hint
