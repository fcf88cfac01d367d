"""``amltrain_ray.py CPUS GPUS PROGRAM ARG...``: runs a program beside a Ray cluster of this machine.

Ray's own command starts the cluster (https://docs.ray.io/en/latest/cluster/cli.html#ray-start); the program finds it
by ``RAY_ADDRESS``, so that its ``ray.init()`` connects. The cluster ends with the program.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, List, Optional

#: Seconds for the cluster to accept connections, and from SIGTERM to SIGKILL at its end.
_START_TIMEOUT_S = 120.0
_GRACE_S = 10.0


def main(argv: List[str]) -> int:
    """Run the program and return its exit code."""
    cpus, gpus, command = argv[1], argv[2], argv[3:]
    try:
        import ray.scripts.scripts  # noqa: F401
    except ImportError as error:
        print("Ray cannot be imported: %s" % error, flush=True)
        return 1
    ports = free_ports(3)
    # Ray listens on every interface: only who has the token may run code (Ray 2.52 and newer).
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=os.urandom(24).hex())
    # A short path: Ray has sockets below it, whose paths have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="aml-ray-") as folder:
        head = subprocess.Popen(_head(ports, cpus, gpus, folder), stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            if not _answers(ports[0], head):
                print("The Ray cluster did not start.", flush=True)
                return 1
            return _run(command, "127.0.0.1:%d" % ports[0], head)
        finally:
            _end(head)


def free_ports(number: int) -> List[int]:
    """Return ports of this machine that are free now on every interface."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:  # all are bound at once: no port is given twice
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _head(ports: List[int], cpus: str, gpus: str, folder: str) -> List[str]:
    """Return the command of the cluster's first and only node; no port is Ray's default, which another one may have.

    Parameters
    ----------
    ports
        For the cluster, for Ray's client, and for the agent of its dashboard.
    """
    port, client, agent = map(str, ports)
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--port", port, "--include-dashboard", "false"),
        # Without gRPC Ray has no server for its client, and refuses a port for it.
        *(("--ray-client-server-port", client) if importlib.util.find_spec("grpc") else ()),
        *("--dashboard-agent-listen-port", agent),
        *("--min-worker-port", "0", "--max-worker-port", "0"),  # free ones
        *("--num-cpus", cpus, "--num-gpus", gpus, "--temp-dir", folder),
    ]


def _answers(port: int, head: subprocess.Popen[bytes]) -> bool:
    """Wait until the cluster accepts connections."""
    until = time.monotonic() + _START_TIMEOUT_S
    while head.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return True
        except OSError:
            time.sleep(0.1)
    return False


def _run(command: List[str], address: str, head: subprocess.Popen[bytes]) -> int:
    """Run the program; a cluster that ends before it ends it."""
    process: Optional[subprocess.Popen[bytes]] = None

    def forward(number: int, frame: Any) -> None:
        if process is not None and process.returncode is None:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    env = dict(os.environ, RAY_ADDRESS=address)
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
    while process.poll() is None:
        if head.poll() is not None:
            print("The Ray cluster ended (exit code %s)." % head.returncode, flush=True)
            process.terminate()
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            return process.wait() or 1
        time.sleep(0.05)
    code = process.returncode
    return code if code >= 0 else 128 - code


def _end(head: subprocess.Popen[bytes]) -> None:
    """End every process of the cluster, which has a session of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(head.pid, number)
            head.wait(_GRACE_S)
        except (OSError, subprocess.TimeoutExpired):
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv))
