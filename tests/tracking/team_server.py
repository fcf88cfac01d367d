"""MLflow's own server of a team, with its basic authentication, as a process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

USER, PASSWORD = "ada", "a-team-password-of-length"


class TeamServer:
    """A server with a database and artifacts of its own; it may stop and start again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "auth.ini").write_text(
            f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{folder}/auth.db\n"
            f"admin_username = {USER}\nadmin_password = {PASSWORD}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        )

    @property
    def credentials(self) -> dict[str, str]:
        return {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": PASSWORD}

    def start(self) -> TeamServer:
        env = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        env |= {"MLFLOW_AUTH_CONFIG_PATH": str(self.folder / "auth.ini"), "MLFLOW_FLASK_SERVER_SECRET_KEY": "x" * 20}
        words = ["--app-name", "basic-auth", "--backend-store-uri", f"sqlite:///{self.folder}/team.db"]
        words += ["--artifacts-destination", str(self.folder / "artifacts"), "--host", "127.0.0.1"]
        with open(self.folder / "server.txt", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *words, "--port", str(self.port), "--workers", "1"],
                stdout=log, stderr=log, env=env, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + 300
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError):
                try:
                    urllib.request.urlopen(f"{self.uri}/health", timeout=5)
                    return self
                except urllib.error.HTTPError:
                    return self
            time.sleep(0.2)
        raise AssertionError((self.folder / "server.txt").read_text()[-2000:])

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait(30)
            self._process = None
