"""A Docker engine for tests: a program ``docker`` for the PATH, and a server that runs "containers" as processes here.

As with a real engine, a container is no child of ``docker run``: killing the client leaves it running. Every call is
recorded. ``settings.json`` in the folder changes the answers:

``images`` (names that are there), ``info`` (fields of ``docker info``), ``fail`` (by command: exit code and errors),
``hidden`` (processes of containers lack the mark of the run, as if another kernel ran them), ``gate`` (a file for which
``pull`` waits).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOCKET, RECORD, SETTINGS = "engine.sock", "record.jsonl", "settings.json"
IMAGE_ID = "sha256:" + "5eed" * 16
_SWITCHES = ("--rm", "--init", "--privileged")

_CLIENT = """#!{python} -IS
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
try:
    link.connect({path!r})
except OSError:
    sys.exit("Cannot connect to the Docker daemon at unix://{path}. Is the docker daemon running?")
request = json.dumps([sys.argv[1:], dict(os.environ)]).encode() + b"\\n"
socket.send_fds(link, [request[:1]], [1, 2])
link.sendall(request[1:])
answer = b""
while not answer.endswith(b"\\n"):
    piece = link.recv(4096)
    if not piece:
        sys.exit(125)
    answer += piece
sys.exit(json.loads(answer))
"""


class DockerEngine:
    """The test's side of an engine in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self.set(images=["test/python:1"])
        program = self.bin / "docker"
        program.write_text(_CLIENT.format(python=sys.executable, path=str(folder / SOCKET)))
        program.chmod(0o755)
        self.server = subprocess.Popen([sys.executable, "-S", __file__, str(folder)], start_new_session=True)
        until = time.monotonic() + 30
        while not (folder / SOCKET).exists() and time.monotonic() < until:
            time.sleep(0.01)

    def set(self, **values: Any) -> None:
        path = self.folder / SETTINGS
        known = json.loads(path.read_text()) if path.exists() else {}
        part = self.folder / "settings.part"
        part.write_text(json.dumps({**known, **values}))
        part.replace(path)

    def calls(self, command: str = "") -> list[dict[str, Any]]:
        """Recorded calls: ``argv``, ``env``."""
        path = self.folder / RECORD
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if not command or row["argv"][0] == command]

    def containers(self) -> list[str]:
        """Names of the containers that run."""
        return sorted(path.name for path in (self.folder / "containers").glob("*"))

    def close(self) -> None:
        self.server.terminate()
        self.server.wait(30)


@contextlib.contextmanager
def docker_engine(folder: Path) -> Iterator[DockerEngine]:
    engine = DockerEngine(folder)
    try:
        yield engine
    finally:
        engine.close()


# ---- the server


class _Server:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.lock = threading.Lock()
        (folder / "containers").mkdir(exist_ok=True)

    def serve(self) -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self.folder / "engine.new"))
        listening.listen(64)
        os.rename(self.folder / "engine.new", self.folder / SOCKET)
        while True:
            link, _ = listening.accept()
            threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def settings(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / SETTINGS).read_text()))

    def _answer(self, link: socket.socket) -> None:
        data, handles, _, _ = socket.recv_fds(link, 1, 2)
        while not data.endswith(b"\n"):
            data += link.recv(1 << 16)
        argv, env = json.loads(data)
        with self.lock, open(self.folder / RECORD, "a") as file:
            file.write(json.dumps({"argv": argv, "env": env}) + "\n")
        try:
            code = self._call(argv, env, handles, link)
        finally:
            for handle in handles:
                os.close(handle)
        with contextlib.suppress(OSError):  # the client was killed
            link.sendall(json.dumps(code).encode() + b"\n")
        link.close()

    def _call(self, argv: list[str], env: dict[str, str], handles: list[int], link: socket.socket) -> int:
        settings = self.settings()
        command = argv[0]
        if failure := (settings.get("fail") or {}).get(command):
            os.write(handles[1], failure[1].encode() + b"\n")
            return int(failure[0])
        if command == "info":
            facts = {"OperatingSystem": "Debian", "SecurityOptions": ["name=seccomp"], **settings.get("info", {})}
            os.write(handles[0], json.dumps(facts).encode() + b"\n")
            return 0
        if command == "image":
            if argv[-1] not in settings["images"]:
                os.write(handles[1], f"Error: No such image: {argv[-1]}\n".encode())
                return 1
            os.write(handles[0], IMAGE_ID.encode() + b"\n")
            return 0
        if command == "pull":
            return self._pull(argv[-1], handles, link, settings)
        if command == "run":
            return self._run(argv[1:], env, handles, settings)
        return self._end(command, argv, handles)

    def _pull(self, image: str, handles: list[int], link: socket.socket, settings: dict[str, Any]) -> int:
        link.setblocking(False)

        def text(line: str) -> None:
            with contextlib.suppress(OSError):
                os.write(handles[0], line.encode() + b"\n")

        text("1: Pulling from " + image)
        for layer in ("0123456789ab", "ba9876543210"):
            text(f"{layer}: Pulling fs layer")
        text("0123456789ab: Pull complete")
        is_open = not settings.get("gate")
        while not is_open:
            is_open = os.path.exists(settings["gate"])
            try:
                if link.recv(1) == b"":
                    return 1  # the client was killed, which ends the pull
            except BlockingIOError:
                time.sleep(0.02)
        text("ba9876543210: Pull complete")
        part = self.folder / "settings.pulled"
        part.write_text(json.dumps({**settings, "images": [*settings["images"], image]}))
        part.replace(self.folder / SETTINGS)
        text("Status: Downloaded newer image for " + image)
        link.setblocking(True)
        return 0

    def _run(self, words: list[str], env: dict[str, str], handles: list[int], settings: dict[str, Any]) -> int:
        options: dict[str, list[str]] = {}
        at = 0
        while words[at].startswith("-"):
            name, equals, value = words[at].partition("=")
            if not equals and name not in _SWITCHES:
                at += 1
                value = words[at]
            options.setdefault(name, []).append(value)
            at += 1
        image, rest = words[at], words[at + 1 :]
        name = options["--name"][0]
        if image not in settings["images"]:
            os.write(handles[1], f"docker: Error response from daemon: No such image: {image}\n".encode())
            return 125
        inside = {"PATH": os.path.dirname(sys.executable) + os.pathsep + os.defpath, "OF_THE_IMAGE": "1"}
        for item in options.get("--env", []):
            key, equals, value = item.partition("=")
            if equals or key in env:
                inside[key] = value if equals else env[key]
        if settings.get("hidden"):
            inside.pop("AMLTRAIN_RUN", None)
        process = subprocess.Popen(
            [*options["--entrypoint"], *rest], cwd=options["--workdir"][0], env=inside, stdin=subprocess.DEVNULL,
            stdout=handles[0], stderr=handles[1], start_new_session=True,
        )  # fmt: skip
        with self.lock:
            self.running[name] = process
            (self.folder / "containers" / name).touch()
        code = process.wait()
        self._signal(process, signal.SIGKILL)
        with self.lock:
            self.running.pop(name, None)
            (self.folder / "containers" / name).unlink(missing_ok=True)
        return code if code >= 0 else 128 - code

    def _end(self, command: str, argv: list[str], handles: list[int]) -> int:
        process = self.running.get(argv[-1])
        if process is None:
            os.write(handles[1], f"Error response from daemon: No such container: {argv[-1]}\n".encode())
            return 1
        if command == "stop":
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGTERM)  # the init process passes it to its child only
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(float(argv[argv.index("-t") + 1]))
        self._signal(process, signal.SIGKILL)
        process.wait()
        return 0

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)

    def close(self, *_: object) -> None:
        for process in list(self.running.values()):
            self._signal(process, signal.SIGKILL)
        os._exit(0)


if __name__ == "__main__":
    server = _Server(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, server.close)
    server.serve()
