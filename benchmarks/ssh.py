"""A machine over SSH, at a round trip of 20 ms.

A second submit against rsync and ssh, log lines, a list of 200 runs, and cells beside a file of 2 GiB that is copied.
``python -m benchmarks.ssh submit|lines|list|fetch`` measures one of them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.kernels import running_kernel
from benchmarks.log_tail import log_chunks
from benchmarks.many_runs import write_past
from benchmarks.timing import interleaved, line, verdict
from tests.conftest import end_all
from tests.ssh.proxy import Proxy
from tools import openssh, system_packages
from tools.openssh import Sshd

#: Seconds of the round trip; files of the tree, rounds of each measurement, runs of the list.
ROUND_TRIP_S, FILES, ROUNDS, RUNS = 0.020, 10_000, 7, 200
#: Bytes that a second submit may send besides the changed file.
MORE_BYTES = 4096

_MAIN = "import sys, time\nopen(sys.argv[1], 'w').write(repr(time.time()))\nprint('started', flush=True)\n"
_LINES = """
import time
for i in range(60):
    print("STAMP", repr(time.time()), flush=True)
    time.sleep(0.23)
"""
_LIST = """
import psutil
%load_ext jupyter_amltrain
import jupyter_amltrain as aml
before = psutil.Process().memory_info().rss
many = aml.runs(target="box")
print("FIGURES", len(many), before / 1e6, psutil.Process().memory_info().rss / 1e6)
"""
#: Bytes of the file, and milliseconds that an empty cell may take longer meanwhile.
LARGE_BYTES, MORE_MS = 2 << 30, 20.0
_COPY = """
%load_ext jupyter_amltrain
import os, signal, threading, time
import jupyter_amltrain as aml
file = aml.attach("{handle}").files()["outputs/large.bin"]
def interrupt():
    time.sleep(2.0)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
begin = time.perf_counter()
try:
    file.save("{folder}")
except KeyboardInterrupt:
    pass
parts = [os.path.join("{folder}", name) for name in os.listdir("{folder}") if name.startswith(".large.bin.")]
print("FIGURES", time.perf_counter() - begin, sum(map(os.path.getsize, parts)))
"""
_REST = """
copying = threading.Thread(target=file.save, args=("{folder}",))
copying.start()
"""
_DONE = """
copying.join()
print("FIGURES", os.path.getsize("{folder}/large.bin"))
"""


@contextmanager
def machine() -> Iterator[tuple[Path, Sshd, Proxy]]:
    """Start a server with a slow link in front of it; this process' variables lead to folders of its own."""
    openssh.ensure()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "user" / ".ssh").mkdir(parents=True)
        os.environ.update(
            HOME=f"{folder}/user",
            AMLTRAIN_HOME=f"{folder}/home",
            AMLTRAIN_QUEUE=f"{folder}/queue",
            IPYTHONDIR=f"{folder}/ipython",
        )
        there = {"AMLTRAIN_HOME": f"{folder}/remote", "AMLTRAIN_QUEUE": f"{folder}/remote-queue"}
        sshd = Sshd(folder / "sshd", {"PATH": os.environ["PATH"], **there})
        proxy = Proxy(sshd.port)
        proxy.delay = ROUND_TRIP_S / 2
        try:
            yield folder, sshd, proxy
        finally:
            proxy.close()
            end_all(folder / "remote")
            sshd.stop()
            shutil.rmtree(folder, ignore_errors=True)


def attach(api: Any, sshd: Sshd, proxy: Proxy) -> None:
    """Attach the machine as ``box``."""
    values = {
        "host": "127.0.0.1",
        "port": proxy.port,
        "identity_file": str(sshd.key),
        "python": sys.executable,
        "accept_host_key": sshd.fingerprint,
    }
    assert not api.act("attach", "box", kind="ssh", values=values, confirmed=True).errors
    controller = api.controller()
    controller.loop.call(controller.target_manager.operations.finished("box", 30.0))


def make_tree(tree: Path) -> None:
    """Write a project of many small files."""
    for i in range(FILES // 100):
        part = tree / f"package{i:02d}"
        part.mkdir(parents=True)
        for j in range(100):
            (part / f"module{j:02d}.py").write_text(f"# {i} {j}\n" + "value = 1\n" * 100)
    (tree / "main.py").write_text(_MAIN)


def submit() -> None:
    """Compare a second submit after one edit with rsync and ssh of the same."""
    if not shutil.which("rsync"):
        system_packages.install("rsync", "rsync")
    with machine() as (folder, sshd, proxy):
        from jupyter_amltrain import api

        attach(api, sshd, proxy)
        tree, copy = folder / "tree", folder / "copy"
        make_tree(tree)
        edits = 0
        accepted: list[float] = []
        sent: dict[str, list[int]] = {"ours": [], "rsync": []}
        options = f"-p {proxy.port} -i {sshd.key} -o StrictHostKeyChecking=no -o LogLevel=ERROR"

        def edit() -> int:
            nonlocal edits
            edits += 1
            text = f"# edit {edits}\n" + "value = 2\n" * 100
            (tree / "package07" / "module42.py").write_text(text)
            time.sleep(3)  # what was written before has settled, and earlier runs have ended
            return len(text)

        def ours() -> float:
            edit()
            mark, before, begin = folder / f"ours-{edits}", proxy.sent, time.time()
            run = api.submit(Path("main.py"), source=str(tree), args=[str(mark)], target="box", gpus=0, name="bench")
            accepted.append(time.time() - begin)
            sent["ours"].append(proxy.sent - before)
            run.wait(120)
            return float(mark.read_text()) - begin

        def rsync() -> float:
            edit()
            mark, before, begin = folder / f"rsync-{edits}", proxy.sent, time.time()
            where = f"{sshd.user}@127.0.0.1"
            subprocess.run(["rsync", "-az", "-e", f"ssh {options}", f"{tree}/", f"{where}:{copy}/"], check=True)
            subprocess.run(
                ["ssh", *options.split(), where, f"{sys.executable} {copy}/main.py {mark}"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            sent["rsync"].append(proxy.sent - before)
            return float(mark.read_text()) - begin

        first = {"ours": ours(), "rsync": rsync()}
        accepted.clear()
        for values in sent.values():
            values.clear()
        figures = interleaved({"ours": ours, "rsync": rsync}, ROUNDS)
        size = edit()
        api.close()
    print(f"Submit after one edit of {FILES} files, round trip {1000 * ROUND_TRIP_S:.0f} ms, until the script runs")
    print(f"  first: ours {first['ours']:.2f} s, rsync and ssh {first['rsync']:.2f} s")
    print(line("ours", figures["ours"], "s"))
    print(line("ours, until it is accepted", accepted, "s"))
    print(line("rsync -az, then ssh", figures["rsync"], "s"))
    print(line("bytes sent: ours", sent["ours"], "B"))
    print(line("bytes sent: rsync and ssh", sent["rsync"], "B"))
    more = statistics.median(sent["ours"]) - size
    print(f"  besides the file of {size} bytes: {more:.0f}  goal <= {MORE_BYTES}")
    print(verdict("second submit", statistics.median(figures["ours"]) / statistics.median(figures["rsync"]), 1.0))
    print(verdict("accepted", statistics.median(accepted) / statistics.median(figures["rsync"]), 1.0))


def lines() -> None:
    """Compare the way of a log line with the link's round trip."""
    with machine() as (_, sshd, proxy):
        from jupyter_amltrain import api

        attach(api, sshd, proxy)
        run = api.submit(_LINES, target="box", gpus=0, name="lines")
        controller = api.controller()
        late: list[float] = []

        async def follow() -> None:
            rest = ""
            async for chunk in log_chunks(controller.backend("box"), run.run_id):
                now = time.time()
                whole, _, rest = (rest + chunk.data.decode()).rpartition("\n")
                for row in whole.splitlines():
                    if row.startswith("STAMP "):
                        late.append((now - float(row.split()[1])) * 1000)

        controller.loop.call(follow(), 300)
        api.close()
    print(f"A log line from the job to the kernel, round trip {1000 * ROUND_TRIP_S:.0f} ms")
    print(line("ours", late, "ms"))
    print(verdict("median / round trip", statistics.median(late) / (1000 * ROUND_TRIP_S), 2.0))


def many() -> None:
    """Memory of a kernel that lists many runs of the machine."""
    with machine() as (folder, sshd, proxy):
        from jupyter_amltrain import api

        attach(api, sshd, proxy)
        api.close()
        write_past(folder / "remote", RUNS)
        figures = []
        for _ in range(3):
            with running_kernel(dict(os.environ), str(folder)) as kernel:
                count, before, after = map(float, kernel.run(_LIST).partition("FIGURES")[2].split())
            assert count == RUNS, count
            figures.append((before, after))
    print(f"{RUNS} runs of the machine in a list")
    print(line("kernel before", [before for before, _ in figures], "MB"))
    print(line("kernel after", [after for _, after in figures], "MB"))


def fetch() -> None:
    """Copy a large file: interrupt it, and continue it while cells run."""
    with machine() as (folder, sshd, proxy):
        from jupyter_amltrain import api

        attach(api, sshd, proxy)
        code = f"import os\nopen(os.environ['AML_OUTPUT_DIR'] + '/large.bin', 'wb').truncate({LARGE_BYTES})"
        run = api.submit(code, target="box", gpus=0, name="large").wait(120)
        names = {"handle": run.handle, "folder": folder}
        api.close()
        with running_kernel(dict(os.environ), str(folder)) as kernel:
            before = [kernel.latency() for _ in range(60)]
            text = kernel.run(_COPY.format(**names), timeout=120)
            seconds, part = map(float, text.partition("FIGURES")[2].split())
            begin = time.time()
            kernel.run(_REST.format(**names))
            during: list[float] = []
            while not (folder / "large.bin").exists():
                during.append(kernel.latency())
                time.sleep(0.1)
            rest = time.time() - begin
            size = float(kernel.run(_DONE.format(**names), timeout=120).partition("FIGURES")[2])
        assert size == LARGE_BYTES and 0 < part < LARGE_BYTES, (size, part)
    print(f"A file of {LARGE_BYTES >> 30} GiB of the machine")
    print(f"  interrupted after 2 s: the cell ended after {seconds:.1f} s, with {part / 1e6:.0f} MB")
    print(f"  the rest in {rest:.1f} s: {(LARGE_BYTES - part) / rest / 1e6:.0f} MB/s")
    print(line("empty cell before", before, "ms"))
    print(line("empty cell meanwhile", during, "ms"))
    more = statistics.median(during) - statistics.median(before)
    print(f"  an empty cell takes {more:.1f} ms more (median)  goal <= {MORE_MS:g}")


if __name__ == "__main__":
    for name, measure in (("submit", submit), ("lines", lines), ("list", many), ("fetch", fetch)):
        if not sys.argv[1:] or name in sys.argv[1:]:
            measure()
            print(flush=True)
