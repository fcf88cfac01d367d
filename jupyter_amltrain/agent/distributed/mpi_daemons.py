"""``amltrain_mpi.py start FOLDER HOST COMMAND...``, and ``amltrain_mpi.py serve FOLDER``: MPI on several machines.

mpirun runs on node 0. It starts a daemon (``orted``, in Open MPI 5 ``prted``) on each other machine by a remote shell,
for which it takes ``start`` (``plm_rsh_agent``, https://docs.open-mpi.org/en/main/launching-apps/ssh.html). That hands
the command to the supervisor of node 0; the processes that connect the nodes carry it to the node, where ``serve``, the
node's own process of the job, runs the daemon. So the machines need no SSH login to each other. Nodes with one run
folder find the commands in it: ``leave`` takes the place of ``start``, and ``lead`` runs a launcher that starts the
processes of all nodes itself, and lets the other nodes end after it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, List, Optional

#: Socket of node 0 that takes the commands of daemons; file of another node with the command of its own, and the same
#: in the run folder of all nodes, by the attempt and the number of the node.
SOCKET, COMMAND, SHARED_COMMAND = "mpi.sock", "ranks/mpi-daemon.json", "ranks/mpi-daemon-%s-%s.json"
#: Names of the other nodes for mpirun, which no resolver knows: it is to start their daemons by ``start``.
HOST = "amltrain-node-%d"
#: Variable with the command of a process. Folders and interpreters differ between the machines.
EACH = "AMLTRAIN_RANK_COMMAND"
#: Programs that are a daemon, in Open MPI 4 and 5.
PROGRAMS = ("orted", "prted")
#: What precedes the daemon in its command: where mpirun's own machine has Open MPI.
_PREFIX = re.compile(r"^.*?(?:^|[\s;/])(?=(?:%s)\s)" % "|".join(PROGRAMS), re.S)
#: Options after which a daemon leaves the process that started it.
_DETACHING = ("--daemonize", "-daemonize")
_LOOK_S = 0.05


def main(argv: List[str]) -> int:
    """Hand over the command of a daemon, or run it; return the exit code."""
    if argv[1] == "start":
        return start(argv[2], argv[3], argv[4:])
    if argv[1] == "leave":
        return leave(argv[2], argv[3], argv[4].rpartition("-")[2], " ".join(argv[5:]))
    if argv[1] == "lead":
        return lead(argv[2], argv[3], int(argv[4]), argv[5:])
    return serve(argv[2], *argv[3:])


def start(folder: str, host: str, words: List[str]) -> int:
    """Hand the command of a daemon to the supervisor of node 0.

    Parameters
    ----------
    host
        Name of the node, as of :data:`HOST`.
    words
        The command, whose words a remote shell would join.
    """
    node = host.rpartition("-")[2]
    os.chdir(folder)  # the address of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(json.dumps({"node": node, "command": " ".join(words)}).encode(), SOCKET)
    except OSError as error:
        print("The daemon of Open MPI on node %s cannot be started: %s" % (node, error.strerror), flush=True)
        return 1
    return 0


def leave(folder: str, attempt: str, node: str, command: str) -> int:
    """Write the command of a node into the run folder that all nodes have."""
    path = os.path.join(folder, SHARED_COMMAND % (attempt, node))
    try:
        with open(path + ".part", "w") as file:
            json.dump(command, file)
        os.replace(path + ".part", path)
    except OSError as error:
        print("The processes of node %s cannot be started: %s" % (node, error.strerror), flush=True)
        return 1
    return 0


def lead(folder: str, attempt: str, nodes: int, words: List[str]) -> int:
    """Run a launcher of all nodes to its end, and let the processes of the other nodes that wait for it end, too."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: process.send_signal(number))
    code = process.wait()
    for node in range(1, nodes):
        leave(folder, attempt, str(node), "true")
    return code if code >= 0 else 128 - code


def serve(folder: str, attempt: str = "", node: str = "") -> int:
    """Wait for the command of this node's daemon, and run it to its end."""
    process: Optional[subprocess.Popen[bytes]] = None
    is_ended = False

    def end(number: int, frame: Any) -> None:
        nonlocal is_ended
        is_ended = True
        if process is not None and process.returncode is None:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    path = os.path.join(folder, SHARED_COMMAND % (attempt, node) if attempt else COMMAND)
    # A listing asks a file server, a missing name may not.
    while not os.path.isdir(os.path.dirname(path)) or os.path.basename(path) not in os.listdir(os.path.dirname(path)):
        if is_ended:
            return 0
        time.sleep(_LOOK_S)
    with open(path) as file:
        words = daemon_command(json.load(file))
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    if is_ended:
        process.terminate()
    code = process.wait()
    return code if code >= 0 else 128 - code


def daemon_command(command: str) -> List[str]:
    """Return the words of a daemon's command, with the daemon of this machine, which is to stay in the foreground."""
    program, *words = shlex.split(_PREFIX.sub("", command))
    return [shutil.which(program) or program, *(word for word in words if word not in _DETACHING)]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
