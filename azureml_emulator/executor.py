"""Runs a job's processes on this machine in the way the service runs them on its nodes.

Each node is a folder: a copy of the code that its processes share, a home, a temporary folder. A process is a shell
with the job's command, in a session of its own, whose output goes to one file. Nothing of the emulator's environment
reaches it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from azureml_emulator import images
from azureml_emulator.images import Image
from azureml_emulator.ranks import Rank


@dataclass(frozen=True)
class Exit:
    """Exit of the first process that failed; code 0 if all succeeded."""

    code: int
    rank: int


@dataclass
class Place:
    """Folders of one attempt of a job."""

    root: Path
    nodes: int
    image: Image = field(default_factory=Image)

    def code(self, node: int) -> Path:
        """The code folder of a node: where its processes run."""
        return self.root / f"node-{node}" / "wd"

    def log(self, rank: Rank) -> Path:
        """What a process prints."""
        return self.root / "user_logs" / rank.log

    def prepare(self, code: Path | None) -> None:
        """Make the folders; the code is copied to each node."""
        (self.root / "user_logs").mkdir(parents=True)
        for node in range(self.nodes):
            here = self.code(node)
            for folder in ("home", "tmp"):
                (here.parent / folder).mkdir(parents=True)
            if code is None:
                here.mkdir()
            else:
                shutil.copytree(code, here)
            if self.image.readonly != "all":
                (here / "outputs").mkdir(exist_ok=True)
                (here / "logs").mkdir(exist_ok=True)
            if self.image.readonly:
                _shut(here, keep=("outputs", "logs"))

    def remove(self) -> None:
        """Take the folders away."""
        remove(self.root)


def remove(root: Path) -> None:
    """Take a folder away, whatever may not be written in it."""
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o755)
    shutil.rmtree(root, ignore_errors=True)


def _shut(folder: Path, keep: Sequence[str]) -> None:
    for here, folders, files in os.walk(folder, topdown=False):
        if Path(here).relative_to(folder).parts[:1] and Path(here).relative_to(folder).parts[0] in keep:
            continue
        for name in files:
            os.chmod(os.path.join(here, name), 0o444)
        del folders
        os.chmod(here, 0o555)


def kill_inside(root: Path) -> None:
    """End every process that runs in a folder, whatever session it made for itself: its container is gone (Linux)."""
    mark = os.fsencode(root)
    for entry in os.scandir("/proc") if os.path.isdir("/proc") else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            inside = os.fsencode(os.readlink(f"/proc/{entry.name}/cwd")).startswith(mark)
            if not inside:
                inside = mark in Path(f"/proc/{entry.name}/environ").read_bytes()
            if inside:
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody has at this moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


class Execution:
    """The processes of one attempt of a job.

    Parameters
    ----------
    place
        Its folders, prepared.
    ranks
        Its processes.
    command
        What each runs, bindings put in.
    env
        Environment of all processes.
    node_env
        Environment of the processes of a node, by node number.
    """

    def __init__(
        self,
        place: Place,
        ranks: Sequence[Rank],
        command: str,
        env: Mapping[str, str],
        node_env: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self._place = place
        self._ranks = list(ranks)
        self._command = command
        self._env = dict(env)
        self._node_env = list(node_env)
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        """Start every process."""
        shell = shutil.which("bash") or "/bin/sh"
        words = images.words(self._place.image)
        for rank in self._ranks:
            code = self._place.code(rank.node)
            own = self._node_env[rank.node] if rank.node < len(self._node_env) else {}
            env = {
                "PATH": images.path_of(self._place.image),
                "HOME": str(code.parent / "home"),
                "TMPDIR": str(code.parent / "tmp"),
                "LANG": "C.UTF-8",
                "LC_ALL": "C.UTF-8",
                "SHELL": "/bin/bash",
                **self._env,
                **own,
                **rank.env,
            }
            with open(self._place.log(rank), "ab") as output:
                self._processes.append(
                    await asyncio.create_subprocess_exec(
                        *words,
                        shell,
                        "-c",
                        self._command,
                        cwd=code,
                        env=env,
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )

    async def wait(self, grace: float) -> Exit:
        """Wait for all; one that fails ends the others.

        Parameters
        ----------
        grace
            Seconds between the request to end and the end of the others.
        """
        waiting = {asyncio.ensure_future(process.wait()): rank for rank, process in enumerate(self._processes)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    rank = waiting.pop(task)
                    if task.result():
                        await self.end(grace)
                        return Exit(task.result(), rank)
            # What a process left running in its session ends with the container.
            self._signal(signal.SIGKILL)
            return Exit(0, 0)
        finally:
            for task in waiting:
                task.cancel()

    async def end(self, grace: float) -> None:
        """Ask every process to end, and end what is left after a while."""
        self._signal(signal.SIGTERM)
        alive = [process.wait() for process in self._processes]
        try:
            await asyncio.wait_for(asyncio.gather(*alive), grace)
        except asyncio.TimeoutError:
            pass
        self._signal(signal.SIGKILL)
        await asyncio.gather(*(process.wait() for process in self._processes))

    def kill(self) -> None:
        """End everything at once: the machine is gone."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            try:
                os.killpg(process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass
