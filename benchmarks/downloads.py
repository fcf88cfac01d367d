"""Downloads of many small files of a run: over SSH against ``tar`` on the same link, on this machine against ``cp``.

``python -m benchmarks.downloads [FILES]``.
"""

from __future__ import annotations

import contextlib
import io
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.ssh import ROUND_TRIP_S, attach, machine
from benchmarks.timing import interleaved, line, verdict

#: Files by default, bytes of each, rounds; ratios that are wanted.
FILES, FILE_BYTES, ROUNDS = 10_000, 1024, 5
SSH_GOAL, LOCAL_GOAL = 2.0, 8.0
#: Writes the files of a run.
_WRITE = """
import os
for number in range({files}):
    folder = os.path.join(os.environ["AML_OUTPUT_DIR"], "part%02d" % (number % 10))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "%06d.bin" % number), "wb") as file:
        file.write(os.urandom({size}))
"""


def compare(api: Any, folder: Path, target: str, peer: list[str], files: int) -> tuple[float, float]:
    """Time a download of a run's files and a shell line that copies the same; return the medians in seconds."""
    run = api.submit(_WRITE.format(files=files, size=FILE_BYTES), target=target, gpus=0, name="many").wait(600)
    source, copies = f"{run.run.folder}/outputs", iter(range(1000))
    peer = [word.replace("SOURCE", source) for word in peer]
    listed: list[float] = []

    def ours() -> float:
        to = folder / f"ours-{target}-{next(copies)}"
        begin = time.perf_counter()
        found = run.files()
        listed.append(time.perf_counter() - begin)
        with contextlib.redirect_stdout(io.StringIO()):  # the line with the progress
            found.download("outputs", to)
        return checked(to / "outputs", time.perf_counter() - begin)

    def theirs() -> float:
        to = folder / f"theirs-{target}-{next(copies)}"
        to.mkdir()
        begin = time.perf_counter()
        subprocess.run(["sh", "-c", *[word.replace("TO", str(to)) for word in peer]], check=True)
        return checked(to, time.perf_counter() - begin)

    def checked(to: Path, seconds: float) -> float:
        assert len(list(to.rglob("*.bin"))) == files
        shutil.rmtree(to)
        return seconds

    figures = interleaved({"ours": ours, "peer": theirs}, ROUNDS)
    print(line("ours", figures["ours"], "s"))
    print(line("ours, the list alone", listed, "s"))
    print(line("peer", figures["peer"], "s"))
    medians = {name: statistics.median(values) for name, values in figures.items()}
    print(f"  files a second: ours {files / medians['ours']:,.0f}, peer {files / medians['peer']:,.0f}")
    return medians["ours"], medians["peer"]


def main(files: int) -> None:
    """Compare over SSH with two round trips, then on this machine."""
    for round_trip in (0.0, ROUND_TRIP_S):
        with machine() as (folder, sshd, proxy):
            from jupyter_amltrain import api

            proxy.delay = round_trip / 2
            attach(api, sshd, proxy)
            options = f"-p {proxy.port} -i {sshd.key} -o StrictHostKeyChecking=no -o LogLevel=ERROR"
            tar = f"ssh {options} {sshd.user}@127.0.0.1 tar cf - -C SOURCE . | tar xf - -C TO"
            print(f"{files:,} files of {FILE_BYTES} bytes over SSH, round trip {1000 * round_trip:.0f} ms; peer: tar")
            ours, peer = compare(api, folder, "box", [tar], files)
            print(verdict("over SSH", ours / peer, SSH_GOAL))
            if not round_trip:
                print(f"{files:,} files of {FILE_BYTES} bytes on this machine; peer: cp -r")
                ours, peer = compare(api, folder, "local", ["cp -r SOURCE/. TO"], files)
                print(verdict("on this machine", ours / peer, LOCAL_GOAL))
            api.close()
    print(f"  memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else FILES)
