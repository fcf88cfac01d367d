"""A stand-in for the supervisor: opens the socket, forks the sink, forks it again when it dies.

``python sink_host.py <run folder> <token> [run id]``: prints ``port``, then ``sink <pid>`` for each
fork; ends at EOF on standard input.
"""

import os
import select
import signal
import socket
import sys

from jupyter_amltrain.agent.mlflow import sink_server
from jupyter_amltrain.agent.mlflow.sink_state import Recorder
from jupyter_amltrain.agent.process_setup import log_line


def fork(listening: socket.socket, folder: str, token: str, run_id: str) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            recorder = Recorder(
                journal=os.path.join(folder, "metrics", "rank-0.jsonl"),
                artifacts=os.path.join(folder, "artifacts"),
                run_id=run_id,
                run_name="digits",
                experiment_name="numbers",
                on_note=lambda text: log_line(folder, "mlflow-sink: " + text),
            )
            code = sink_server.serve(listening, recorder, token)
        finally:
            os._exit(code)
    print("sink", pid, flush=True)
    return pid


def main(folder: str, token: str, run_id: str) -> None:
    os.makedirs(os.path.join(folder, "log"), exist_ok=True)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    print("port", listening.getsockname()[1], flush=True)
    wakeup_r, wakeup_w = os.pipe()
    os.set_blocking(wakeup_w, False)
    signal.set_wakeup_fd(wakeup_w)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pid = fork(listening, folder, token, run_id)
    while True:
        ready, _, _ = select.select([0, wakeup_r], [], [])
        if wakeup_r in ready:
            os.read(wakeup_r, 64)
            done, _ = os.waitpid(pid, os.WNOHANG)
            if done:
                pid = fork(listening, folder, token, run_id)
        if 0 in ready and not os.read(0, 64):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.kill(pid, signal.SIGTERM)
            _, status = os.waitpid(pid, 0)
            sys.exit(os.waitstatus_to_exitcode(status) and 3)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
