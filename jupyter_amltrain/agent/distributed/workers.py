"""``amltrain_workers.py WORKERS SERVERS CLUSTER PROGRAM ARG...``: starts the processes of a TensorFlow cluster.

``CLUSTER`` is the JSON of a cluster on several machines with the tasks of this one, or empty for one machine. Its
files ``workers_done`` and ``servers_end`` say that the workers have ended here, and on all machines.

TensorFlow has no launcher: a service or a scheduler starts each process with ``TF_CONFIG``, which names the address of
all of them, and TensorFlow connects them itself (https://www.tensorflow.org/guide/distributed_training#TF_CONFIG).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List

#: Seconds between SIGTERM and SIGKILL for the other processes, after one has failed.
_GRACE_S = 10.0


def main(argv: List[str]) -> int:
    """Start the processes; return the first exit code that is not 0, after the others have ended."""
    workers, servers, given, command = int(argv[1]), int(argv[2]), argv[3], argv[4:]
    plan = json.loads(given) if given else _plan(workers, servers)
    cluster, tasks = plan["cluster"], plan["tasks"]
    processes: List[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: Any) -> None:
        for process in processes:
            if process.returncode is None:
                process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    for kind, index in tasks:
        config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        processes.append(subprocess.Popen(command, env=dict(os.environ, TF_CONFIG=config), stdin=subprocess.DEVNULL))
    return _wait(processes, workers, lambda: not given or _is_done_everywhere(plan))


def _plan(workers: int, servers: int) -> Dict[str, Any]:
    """Return a cluster on this machine, and its tasks."""
    sockets = [socket.socket() for _ in range(workers + servers)]
    for one in sockets:  # all are bound at once: no port is given twice
        one.bind(("127.0.0.1", 0))
    addresses = ["127.0.0.1:%d" % one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    cluster: Dict[str, Any] = {"worker": addresses[:workers]}
    if servers:
        cluster["ps"] = addresses[workers:]
    return {
        "cluster": cluster,
        "tasks": [("worker", index) for index in range(workers)] + [("ps", index) for index in range(servers)],
    }


def _is_done_everywhere(plan: Dict[str, Any]) -> bool:
    """Whether the workers of all machines have ended; tells the supervisor that those of this one have."""
    try:
        open(plan["workers_done"], "a").close()
    except OSError:  # a full disk: tried again
        pass
    return os.path.exists(plan["servers_end"])


def _wait(processes: List[subprocess.Popen[bytes]], workers: int, may_end: Callable[[], bool]) -> int:
    """Wait for the workers; parameter servers never end by themselves, but as soon as they `may_end`."""
    code, kill_at = 0, None
    while [process for process in processes if process.poll() is None]:  # polls all of them
        failed = [process.returncode for process in processes if process.returncode]
        done = all(process.returncode is not None for process in processes[:workers])
        if kill_at is None and (failed or done and may_end()):
            code, kill_at = failed[0] if failed else 0, time.monotonic() + _GRACE_S
            for process in processes:
                if process.returncode is None:
                    process.terminate()
        if kill_at is not None and time.monotonic() > kill_at:
            for process in processes:
                if process.returncode is None:
                    process.kill()
        time.sleep(0.05)
    code = code or next((process.returncode for process in processes[:workers] if process.returncode), 0)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv))
