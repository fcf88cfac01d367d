"""Runs of several processes and machines.

The time until the first line of rank 0, against torchrun alone; the cancel of 16 processes on two machines over
SSH; one dashboard of 1,024 GPUs. ``python -m benchmarks.distributed start|cancel|gpus`` measures one of them.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.browsers import lab
from benchmarks.timing import interleaved, line, verdict
from tests.conftest import end_all
from tools import openssh
from tools.openssh import Sshd

#: Rounds of the start and of the cancel; processes on each of two machines.
ROUNDS, CANCELS, PROCESSES = 7, 5, 8
#: Machines and GPUs on each of the dashboard, windows of measurement and their seconds.
NODES, GPUS, WINDOWS, SECONDS = 128, 8, 6, 5.0
#: Seconds in which all processes end after the cancel of processes that obey SIGTERM.
CANCEL_GOAL_S = 2.0

_START = "import os, sys, time\nif os.environ['RANK'] == '0':\n    open(sys.argv[1], 'w').write(repr(time.time()))\n"
_WAIT = "import time\nprint('waits', flush=True)\ntime.sleep(600)\n"


def start() -> None:
    """Compare the time from a submit to rank 0 of two processes with torchrun of the same script."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ.update(AMLTRAIN_HOME=f"{folder}/home", AMLTRAIN_QUEUE=f"{folder}/queue")
        os.chdir(folder)
        from jupyter_amltrain import api

        script, mark = folder / "train.py", folder / "mark"
        script.write_text(_START)

        def ours() -> float:
            begin = time.time()
            run = api.submit(script, args=[str(mark)], processes=2, gpus=0, name="bench")
            run.wait(120)
            return float(mark.read_text()) - begin

        def torchrun() -> float:
            begin = time.time()
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            subprocess.run([*launcher, str(script), str(mark)], check=True, stderr=subprocess.DEVNULL)
            return float(mark.read_text()) - begin

        for contender in (ours, torchrun):
            contender()  # reads the files of PyTorch once
        figures = interleaved({"ours": ours, "torchrun": torchrun}, ROUNDS)
        api.close()
        end_all(folder / "home")
    print("From the submit to the first statement of rank 0, two processes on this machine")
    for contender, values in figures.items():
        print(line(contender, values, "s"))
    middle = {contender: statistics.median(values) for contender, values in figures.items()}
    print(verdict("submit / torchrun", middle["ours"] / middle["torchrun"], 1.2))


def cancel() -> None:
    """Measure the time from the cancel of a run on two machines to the end of its last process."""
    openssh.ensure()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ.update(HOME=f"{folder}/user", AMLTRAIN_HOME=f"{folder}/home", AMLTRAIN_QUEUE=f"{folder}/queue")
        (folder / "user" / ".ssh").mkdir(parents=True)
        os.chdir(folder)
        from jupyter_amltrain import api

        homes = [folder / "first", folder / "second"]
        servers = [
            Sshd(
                Path(f"{home}-sshd"),
                {"PATH": os.environ["PATH"], "AMLTRAIN_HOME": str(home), "AMLTRAIN_QUEUE": f"{home}-queue"},
            )
            for home in homes
        ]
        try:
            _attach(api, folder, servers)
            taken = [_cancel(api, folder, number) for number in range(CANCELS)]
            api.close()
        finally:
            for home, server in zip(homes, servers, strict=True):
                end_all(home)
                server.stop()
    print(f"From the cancel of {2 * PROCESSES} processes on two machines to the end of the last one")
    print(line("cancel", taken, "s"))
    print(verdict("cancel / 2 s", statistics.median(taken) / CANCEL_GOAL_S, 1.0))


def _attach(api: Any, folder: Path, servers: list[Sshd]) -> None:
    with (folder / "user" / ".ssh" / "config").open("w") as config:  # each server has a key of its own
        for number, server in enumerate(servers):
            settings = ("HostName 127.0.0.1", f"Port {server.port}", f"IdentityFile {server.key}")
            config.write("\n  ".join((f"Host node{number}", *settings)) + "\n")
    values = {
        "host": ",".join(f"node{number}" for number in range(len(servers))),
        "python": sys.executable,
        "accept_host_key": ",".join(server.fingerprint for server in servers),
    }
    errors = api.act("attach", "gpus", kind="ssh", values=values, confirmed=True).errors
    assert not errors, errors
    controller = api.controller()
    controller.loop.call(controller.target_manager.operations.finished("gpus", 60.0))


def _cancel(api: Any, folder: Path, number: int) -> float:
    """Start a run, cancel it, and return the seconds until none of its processes is left."""
    mark = f"bench-{os.getpid()}-{number}"
    run = api.submit(
        _WAIT, target="gpus", nodes=2, processes=PROCESSES, distribution="tensorflow", gpus=0, name="bench",
        env={"BENCH_MARK": mark},
    )  # fmt: skip
    count = 2 * PROCESSES
    _until(lambda: all(run.logs(rank=rank) for rank in range(count)), "all processes run")
    processes = [process for process in psutil.process_iter() if _has(process, mark)]
    assert len(processes) >= count, len(processes)
    begin = time.time()
    run.cancel()
    psutil.wait_procs(processes, timeout=60)
    taken = time.time() - begin
    assert not any(process.is_running() for process in processes)
    return taken


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("BENCH_MARK") == mark
    except psutil.Error:
        return False


def _until(condition: Any, what: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"not in {seconds:.0f} s: {what}")
        time.sleep(0.2)


def gpus() -> None:
    """Measure kernel, page and wire of a dashboard of 128 machines with 8 GPUs each."""
    target = {
        "kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": GPUS, "period": 1.0, "nodes": NODES,
    }  # fmt: skip
    with lab({"many": target}) as show:
        page = show("many", "%load_ext jupyter_amltrain", "%%aml_submit --target many\npass")
        page.notebook.cell("import os; print(f'pid={os.getpid()}')")
        found = re.search(r"pid=(\d+)", page.notebook.outputs_text())
        assert found is not None
        kernel = psutil.Process(int(found[1]))
        page.wait(10)
        page.received()
        spent: dict[str, list[float]] = {"kernel": [], "page": [], "samples": [], "bytes": []}
        for _ in range(WINDOWS):
            begin, cpu, drawn = time.monotonic(), sum(kernel.cpu_times()[:2]), page.cpu()
            page.wait(SECONDS)
            took = time.monotonic() - begin
            spent["kernel"].append(100 * (sum(kernel.cpu_times()[:2]) - cpu) / took)
            spent["page"].append(100 * (page.cpu() - drawn) / took)
            whole, fed = page.received()
            spent["samples"].append(fed / took / (NODES * GPUS))
            spent["bytes"].append(whole / took / (NODES * GPUS))
    print(f"One dashboard of {NODES * GPUS} GPUs, one reading of each per second")
    print(line("kernel", spent["kernel"], "%"))
    print(line("main thread of the page", spent["page"], "%"))
    print(line("samples of a GPU and reading", spent["samples"], "B"))
    print(line("with the record of the run", spent["bytes"], "B"))
    middle = {what: statistics.median(values) for what, values in spent.items()}
    print(verdict("kernel / 5 % of a core", middle["kernel"] / 5, 1.0))
    print(verdict("page / 25 % of a core", middle["page"] / 25, 1.0))
    print(verdict("bytes of samples / 12", middle["samples"] / 12, 1.0))


if __name__ == "__main__":
    parts = {"start": start, "cancel": cancel, "gpus": gpus}
    for part in sys.argv[1:] or parts:
        parts[part]()
