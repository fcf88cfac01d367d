"""Bytes that a live dashboard of 8 GPUs costs, against bqplot that resends its arrays with every tick.

First a real kernel with a run, a dashboard and the cell's own output, and in the same
kernel a thread with plain bqplot: bytes of all ZMQ frames. Then a day of ticks through
the kernel's own code: bytes and CPU of a tick in hour 24 and in minute 10.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.kernels import running_kernel
from benchmarks.page import Message, Page
from benchmarks.timing import interleaved, line, verdict
from tests import telemetry_files as files
from tests.conftest import end_all
from tests.fakes import nvml

GPUS, SECONDS = 8, 61
DAY, EARLY = 86_400, 600
CHUNK, ROUNDS = 50, 24

_PEER = f"""
import threading, time
import bqplot, numpy as np
def resend(points):
    x, y = np.arange(float(points)), np.random.rand({GPUS}, points)
    mark = bqplot.Lines(x=x, y=y, scales={{"x": bqplot.LinearScale(), "y": bqplot.LinearScale()}})
    def loop():
        nonlocal x, y
        while True:
            time.sleep(1.0)
            x, y = x + 1, np.roll(y, -1, axis=1)
            y[:, -1] = np.random.rand({GPUS})
            with mark.hold_sync():
                mark.x, mark.y = x, y
    threading.Thread(target=loop, daemon=True).start()
    return mark.comm.comm_id
print(resend(600), resend(3600))
"""

#: A run an hour old: its record goes out each 5 minutes.
_OLD = """
from jupyter_amltrain.kernel.session import controller
async def age():
    controller().store.amend(run.handle, created=time.time() - 3600)
controller().loop.call(age())
"""


def in_a_kernel(environ: dict[str, str], folder: str) -> dict[str, list[int]]:
    """Sizes of messages, by what they are."""
    sizes: dict[str, list[int]] = {"tick": [], "record": [], "other": [], "600": [], "3600": []}
    with running_kernel(environ, folder) as kernel:
        kernel.run("%load_ext jupyter_amltrain")
        kernel.run(f"%%aml_submit --gpus {GPUS} --as run\nimport time; time.sleep(600)")
        page = Page(kernel)
        page.open(kernel.run("print(run.handle)").strip())
        page.collect(60, page.is_tick)
        peers = dict(zip(kernel.run(_PEER).split(), ("600", "3600"), strict=True))
        kernel.run("import time" + _OLD)
        page.collect(4)
        for message in page.collect(SECONDS):
            sizes[_kind(message, page, peers)].append(message.size)
        kernel.run("run.cancel()")
    return sizes


def _kind(message: Message, page: Page, peers: dict[str, str]) -> str:
    if message.comm in peers:
        return peers[message.comm]
    if page.is_tick(message):
        return "tick"
    return "record" if message.kind == "update_display_data" else "other"


class Wire:
    """Sends as ipykernel does, by its own thread to a socket that somebody reads; counts bytes and CPU."""

    def __init__(self) -> None:
        import comm
        import zmq
        from comm.base_comm import BaseComm
        from ipykernel.iostream import IOPubThread
        from jupyter_client.session import Session

        session, wire = Session(key=b"k"), self
        publisher = zmq.Context.instance().socket(zmq.PUB)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        self._thread = IOPubThread(publisher)
        self._thread.start()
        reader = f"import zmq; s = zmq.Context().socket(zmq.SUB); s.connect('tcp://127.0.0.1:{port}')"
        reader += "; s.subscribe(b''); print(flush=True)\nwhile True: s.recv_multipart()"
        self._reader = subprocess.Popen([sys.executable, "-c", reader], stdout=subprocess.PIPE)
        assert self._reader.stdout is not None
        self._reader.stdout.readline()
        self.bytes, self.spent, self.mode = 0, 0.0, "off"

        class Counting(BaseComm):
            def publish_msg(self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None,
                            **keys: Any) -> None:  # fmt: skip
                if wire.mode == "off":
                    return
                begin = time.thread_time()
                content = {"data": data or {}, "comm_id": self.comm_id, **keys}
                topic = f"comm-{self.comm_id}".encode()
                sent = session.send(wire._thread.background_socket, msg_type, content, metadata=metadata, ident=topic,
                                    buffers=buffers)  # fmt: skip
                wire.spent += time.thread_time() - begin
                if wire.mode == "count":
                    parts = session.serialize(sent, topic)
                    wire.bytes += sum(map(len, parts)) + sum(memoryview(b).nbytes for b in buffers or ())

        comm.create_comm = lambda *args, **keys: Counting(*args, **keys)

    def flush(self) -> None:
        """Wait until all is handed to the socket."""
        done = threading.Event()
        self._thread.schedule(done.set)
        done.wait()

    def close(self) -> None:
        self._reader.kill()
        self._reader.wait()
        logging.getLogger("asyncio").disabled = True  # the thread is not ended, and the interpreter would say so


class Replay:
    """One node's ticks through the kernel's end of a feed."""

    def __init__(self, path: Path, ticks: int, wire: Wire) -> None:
        self._wire, self.own = wire, 0.0
        from jupyter_amltrain.output.dashboard import Dashboard
        from jupyter_amltrain.output.layout import layout_of
        from tests.output.test_feed import entry_of

        self.entry = entry_of()
        self._lines = self._read(path)
        self.node = self.entry.telemetry.node(0)
        self.entry.telemetry.feed(0, b"".join(islice(self._lines, 3)))
        layout = layout_of(self.entry)
        assert layout is not None
        self._feed = Dashboard(layout).connect("f", self.entry.telemetry, done=False)
        self.advance(ticks - self.node.ticks)

    @staticmethod
    def _read(path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            yield from file

    def advance(self, ticks: int) -> None:
        end = self.node.ticks + ticks
        for text in self._lines:
            if self.entry.telemetry.feed(0, text):
                self._feed.push()
                if self.node.ticks >= end:
                    return

    def cpu(self) -> float:
        """Microseconds of CPU a tick, of all threads, over the next few."""
        self._wire.flush()
        self._wire.mode = "send"
        begin, own, spent = time.process_time(), time.thread_time(), self._wire.spent
        for _ in range(CHUNK):
            self.advance(1)
            time.sleep(0.002)  # they come one by one: in a flood many leave at once
        self.own = (time.thread_time() - own - (self._wire.spent - spent)) / CHUNK * 1e6
        self._wire.flush()
        self._wire.mode = "off"
        return (time.process_time() - begin) / CHUNK * 1e6

    def size(self) -> float:
        """Bytes a tick, over the next few."""
        before, self._wire.mode = self._wire.bytes, "count"
        self.advance(CHUNK)
        self._wire.mode = "off"
        return (self._wire.bytes - before) / CHUNK

    def record(self) -> int:
        """Bytes of one frame of the record as it is now."""
        from jupyter_amltrain.kernel.run_record import record_of
        from jupyter_amltrain.output.mime import bundle_of

        return len(json.dumps(bundle_of(record_of(self.entry))[0]))


def over_a_day(folder: str) -> None:
    """Print bytes and CPU late and early."""
    files.write_node(Path(folder), gpus=GPUS, seconds=DAY, minutes=False, summary=False)
    path = Path(folder) / "telemetry" / "node-0.jsonl"
    wire = Wire()
    late = Replay(path, DAY - (ROUNDS + 3) * CHUNK, wire)
    assert late.node.seq > 0.98 * DAY
    # One that went on would leave minute 10.
    early = [Replay(path, EARLY, wire) for _ in range(ROUNDS)]
    sizes = [late.size(), Replay(path, EARLY, wire).size()]
    rounds, own = iter(early), []

    def late_cpu() -> float:
        spent = late.cpu()
        own.append(late.own)
        return spent

    figures = interleaved({"hour 24": late_cpu, "minute 10": lambda: next(rounds).cpu()}, ROUNDS)
    wire.close()
    print(f"A tick of {GPUS} GPUs from the file's line to the socket (CPU of all threads)")
    for name, values in figures.items():
        print(line(name, values, "us"))
    middle = {name: statistics.median(values) for name, values in figures.items()}
    ours = statistics.median(own), statistics.median([replay.own for replay in early])
    print(f"  without the sending: {ours[0]:.1f} us in hour 24, {ours[1]:.1f} us in minute 10")
    print(f"  bytes a tick: {sizes[0]:.0f} in hour 24, {sizes[1]:.0f} in minute 10")
    print("  a record goes out each 5 min while a page draws the samples:", end=" ")
    print(f"{late.record()} bytes in hour 24, {early[0].record()} in minute 10")
    print(verdict("bytes a tick, hour 24 / minute 10", sizes[0] / sizes[1], 1.10))
    print(verdict("CPU a tick, hour 24 / minute 10", middle["hour 24"] / middle["minute 10"], 1.10))


def _curves(path: Path) -> Path:
    """Write readings of all GPUs that change with each second, so that charts and table have something to show."""
    with path.open("w") as file:
        for second in range(600):
            for gpu in range(GPUS):
                util = 60 + (7 * second + 11 * gpu) % 40
                file.write(f"{gpu} {second} {util} {20_000 + 13 * second + gpu} {200 + 5 * util}.5 {40 + util // 4} ")
                file.write(f"{1700 + second % 90}\n")
    return path


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "AMLTRAIN_HOME": f"{folder}/home",
            "AMLTRAIN_QUEUE": f"{folder}/queue",
            "AMLTRAIN_DISPATCHER_IDLE": "5",
            "IPYTHONDIR": f"{folder}/ipython",
            "LD_LIBRARY_PATH": str(nvml.build()),
            "AMLTRAIN_FAKE_NVML_GPUS": str(GPUS),
            "AMLTRAIN_FAKE_NVML_CURVES": str(_curves(Path(folder) / "curves")),
        }
        try:
            sizes = in_a_kernel(environ, folder)
        finally:
            end_all(Path(folder) / "home")
        ticks = len(sizes["tick"])
        ours = statistics.median(sizes["tick"])
        everything = sum(map(sum, (sizes["tick"], sizes["record"], sizes["other"]))) / ticks
        print(f"Bytes on iopub with each of {ticks} ticks of {GPUS} GPUs, 1 a second (all frames)")
        for name, label in (("tick", "our tick"), ("record", "our record"), ("other", "tables, status"),
                            ("600", "bqplot resend 8x600"), ("3600", "bqplot resend 8x3600")):  # fmt: skip
            print(line(label, sizes[name], "B") if sizes[name] else f"  {label:<34} none")
        for points, goal in (("600", 0.02), ("3600", 0.004)):
            peer = statistics.median(sizes[points])
            print(verdict(f"a tick / bqplot resend 8x{points}", ours / peer, goal))
            print(verdict(f"all that we send, per tick / bqplot resend 8x{points}", everything / peer, goal))
        over_a_day(folder)


if __name__ == "__main__":
    main()
