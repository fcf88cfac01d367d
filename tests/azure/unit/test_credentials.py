"""Who we are, where nobody and nothing tells: it must not take long to find out."""

from __future__ import annotations

import socket
import threading

import pytest

from jupyter_amltrain.azure.service import auth, sdk
from jupyter_amltrain.azure.service.account import ARM_SCOPE, DATA_SCOPE
from jupyter_amltrain.errors import AuthenticationError


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    for name in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # no az, no pwsh, no azd
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def metadata(monkeypatch):
    """A service at the place of Azure's metadata that sends what it is given, or nothing at all."""
    servers = []

    def start(answer: bytes | None):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", f"http://127.0.0.1:{server.getsockname()[1]}")

        def serve():
            kept = []
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                if answer is not None:
                    connection.recv(4096)
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("answer", "there"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", False),  # Docker Desktop, gateways
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", False),
        (b"220 smtp\r\n", False),
        (None, False),
    ],
)
def test_managed_identity_probe_is_short(metadata, monkeypatch, answer, there):
    # An answer may take as long as a busy machine needs; none at all is waited for briefly.
    monkeypatch.setenv("AMLTRAIN_AZURE_IMDS", "0.3" if answer is None else "60")
    metadata(answer)
    assert auth._managed_identity() is there


def test_no_credential_error_names_connect(metadata, monkeypatch):
    monkeypatch.setenv("AMLTRAIN_AZURE_IMDS", "0.3")
    metadata(None)
    with pytest.raises(AuthenticationError, match=r"--sign-in device$"):
        next(auth.available_accounts())


@pytest.mark.parametrize("name", ["SSH_CONNECTION", "JUPYTERHUB_USER", "KUBERNETES_SERVICE_HOST"])
def test_browser_on_remote_session_is_unavailable(monkeypatch, name):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv(name, "x")
    assert auth.has_local_browser() is False


def test_browser_without_display_is_unavailable(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert auth.has_local_browser() is False


def test_sdk_field_reads_both_spellings():
    class Usage:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    assert sdk.field(Usage(current_value=3), "current_value") == 3
    assert sdk.field(Usage(current_value=None, currentValue=0), "current_value") == 0
    assert sdk.field(Usage(vCPUs=6), "v_cp_us") == 6
    assert sdk.field({"memoryGB": 1.5}, "memory_gb") == 1.5
    assert sdk.field(Usage(), "nothing", 7) == 7


def test_az_cli_token_is_cached(tmp_path):
    program = tmp_path / "az"
    program.write_text(
        "#!/bin/sh\necho x >> " + str(tmp_path / "calls") + "\n"
        """echo '{"accessToken": "secret", "expiresOn": "2099-01-01 00:00:00.000000", "expires_on": 4070908800}'\n"""
    )
    program.chmod(0o755)
    account = next(auth.available_accounts())
    assert account.description == "az login"
    for _ in range(5):
        assert account.get_token(ARM_SCOPE).token == "secret"
        assert account.get_token(DATA_SCOPE).token == "secret"
    calls = tmp_path / "calls"
    assert len(calls.read_text().split()) == 2
    account.get_new_token(ARM_SCOPE)  # the service did not take it
    assert len(calls.read_text().split()) == 3
