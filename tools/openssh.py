"""A real OpenSSH server on loopback: for the tests, notebook 02, and ``make ssh-sandbox``.

``python -m tools.openssh`` starts one of the current user and says how to attach it; Ctrl-C ends it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tools import system_packages
from tools.environment import say

#: Folders that are often outside of a user's PATH.
_FOLDERS = ("/usr/sbin", "/sbin")
#: Seconds for a server to listen.
_START_TIMEOUT_S = 30.0


def find() -> str | None:
    """Path of a server on this machine, or None."""
    return shutil.which("sshd", path=os.pathsep.join((os.environ.get("PATH", ""), *_FOLDERS)))


def ensure() -> None:
    """Install it when we may; otherwise say in one sentence that the SSH tests are skipped."""
    if not find():
        system_packages.install("an SSH server", "openssh-server")
    if not find():
        say("no OpenSSH server: the SSH tests are skipped. Type: apt install openssh-server")


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def make_key(path: Path, passphrase: str = "") -> Path:
    """Make a key pair; returns the private key's path."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True)
    return path


class Sshd:
    """A server of the current user in `folder`; its sessions have the variables `environ`."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.port = free_port()
        self.user = getpass.getuser()
        self.host_key, self.key = make_key(folder / "host"), make_key(folder / "user")
        (folder / "authorized").write_text((folder / "user.pub").read_text())
        (folder / "authorized").chmod(0o600)
        self._environ = dict(environ)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the server's key, ``SHA256:...``."""
        shown = subprocess.run(["ssh-keygen", "-lf", str(self.host_key)], check=True, capture_output=True, text=True)
        return shown.stdout.split()[1]

    def alias(self, home: Path, name: str) -> None:
        """Let the user with the folder `home` reach the server as ``ssh name``."""
        own = home / ".ssh"
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        (own / "config").write_text(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {self.port}\n  User {self.user}\n  IdentityFile {self.key}\n"
        )
        public = " ".join(self.host_key.with_suffix(".pub").read_text().split()[:2])
        (own / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}\n")

    def start(self) -> None:
        """Start it, again on the same port."""
        settings = {
            "Port": self.port,
            "ListenAddress": "127.0.0.1",
            "HostKey": self.host_key,
            "AuthorizedKeysFile": self.folder / "authorized",
            "PidFile": self.folder / "pid",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "LogLevel": "VERBOSE",
            "SetEnv": " ".join(f'{name}="{value}"' for name, value in self._environ.items()) or "AMLTRAIN_SANDBOX=1",
        }
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        with contextlib.suppress(OSError):
            Path("/run/sshd").mkdir(exist_ok=True)  # a server of root wants it
        program = find()
        assert program is not None
        with (self.folder / "log").open("ab") as log:
            argv = [program, "-D", "-e", "-f", str(config)]
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._listens():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)

    def _listens(self) -> bool:
        assert self.process is not None and self.process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def stop(self) -> None:
        """Kill the server and every session, as a crash of the machine's SSH service would; runs go on."""
        if self.process is None:
            return
        import psutil

        server = psutil.Process(self.process.pid)
        for process in [*server.children(recursive=True), server]:
            # Dispatchers and runs have left the session: they are not killed.
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()
        self.process = None


def machine_environ(folder: Path) -> dict[str, str]:
    """Return the variables of sessions that take ``folder/machine`` for the home of another machine."""
    home = folder / "machine"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {"HOME": str(home), "AMLTRAIN_QUEUE": str(folder / "machine-queue"), "AMLTRAIN_DISPATCHER_IDLE": "60"}


def main() -> int:
    """Start a sandbox, say how to use it, and wait for Ctrl-C."""
    ensure()
    if find() is None:
        return 1
    with tempfile.TemporaryDirectory(prefix="amltrain-ssh-") as folder:
        server = Sshd(Path(folder) / "server", machine_environ(Path(folder)))
        line = (
            f"%aml_compute attach gpubox --kind ssh --host 127.0.0.1 --port {server.port} --user {server.user}"
            f" --identity-file {server.key} --python {sys.executable} --accept-host-key {server.fingerprint}"
        )
        print("A machine to practise on runs at 127.0.0.1. Attach it in a notebook:\n")
        print(f"    %load_ext jupyter_amltrain\n    {line}\n")
        print("then add --target gpubox to any %%aml_submit. Delete it with: %aml_compute delete gpubox")
        print("Ctrl-C ends the machine and deletes its runs.", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
