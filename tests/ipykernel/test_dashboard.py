"""Live charts of a real run in a real kernel, asked for by control while a cell runs."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jupyter_amltrain.frontend import protocol
from tests.fakes import nvml
from tests.output.test_feed import decoded
from tests.tiers import thorough

from .harness import DEADLINE, Kernel, kernel

#: A cell that keeps the interpreter's lock as busy as Python can.
BUSY = "x = 0\nwhile True: x += 1"


def curve(gpu: int, t: float) -> tuple[int, int, int]:
    """Utilization (percent), memory (MiB) and power (W) of a scripted GPU at second `t`."""
    return int(50 + 40 * math.sin(t + gpu)), 1000 + 100 * gpu + 10 * int(t), 200 + gpu


def scripted(folder: Path, gpus: int, seconds: int = 120) -> dict[str, str]:
    """Environment with so many GPUs that follow :func:`curve` from now on."""
    lines = [f"epoch {time.time():.3f}"]
    lines += [f"{g} {t} {' '.join(map(str, curve(g, t)))}" for g in range(gpus) for t in range(seconds)]
    (folder / "curves").write_text("\n".join(lines) + "\n")
    return {
        "LD_LIBRARY_PATH": str(nvml.needed()),
        "AMLTRAIN_FAKE_NVML_GPUS": str(gpus),
        "AMLTRAIN_FAKE_NVML_CURVES": str(folder / "curves"),
        "AMLTRAIN_SAMPLE_PERIOD": "0.1",
    }


class Front:
    """A page's view of one kernel: control requests and what comes on comms."""

    def __init__(self, live: Kernel) -> None:
        self.client = live.client
        self.feed: dict[str, Any] = {}
        self.buffers: dict[tuple[str, ...], Any] = {}
        self.comm = ""
        self.ticks: list[tuple[int, float, np.ndarray]] = []  #: number, unix s, values

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        message = self.client.session.msg("amltrain_request", {"version": protocol.VERSION, "op": op, **fields})
        self.client.control_channel.send(message)
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            reply = self.client.control_channel.get_msg(timeout=DEADLINE)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return dict(reply["content"])
        raise AssertionError(op)

    def open(self, handle: str) -> str:
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            reply = self.ask("dashboard", handle=handle, page="p")
            assert reply["ok"], reply
            if reply["feed"]:
                return str(reply["feed"])
            assert not reply["reason"], reply
            time.sleep(0.2)
        raise AssertionError("no feed")

    def read(self, done: Any) -> None:
        """Take messages until `done()`."""
        until = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < until, "it does not come"
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except Exception:  # queue.Empty
                continue
            content = message["content"]
            if message["msg_type"] == "comm_open":
                state = content["data"].get("state", {})
                if state.get("_model_name") == "StreamFeedModel":
                    self.feed, self.comm = state, content["comm_id"]
                    paths = content["data"]["buffer_paths"]
                    self.buffers = {tuple(map(str, p)): b for p, b in zip(paths, message["buffers"], strict=True)}
            elif message["msg_type"] == "comm_msg" and content["comm_id"] == self.comm:
                inner = content["data"].get("content") or {}
                if "n" in inner:
                    columns = {node["node"]: node["columns"] for node in self.feed["layout"]["nodes"]}
                    (part,) = decoded(inner, bytes(message["buffers"][0]), columns)
                    for j, column in enumerate(part.values.T):
                        self.ticks.append((part.first + j, float(part.t[j]), column))


@pytest.mark.parametrize("gpus", [64, *thorough(1, 8)])
def test_dashboard_of_busy_kernel_shows_scripted_curve(environ: dict[str, str], tmp_path: Path, gpus: int) -> None:
    with kernel({**environ, **scripted(tmp_path, gpus)}, tmp_path / "work") as live:
        live.run("%load_ext jupyter_amltrain")
        live.run(f"%%aml_submit --gpus {gpus} --as run\nimport time; time.sleep(600)")
        handle = live.run("print(run.handle)").stdout.strip()
        live.client.execute(BUSY)
        front = Front(live)
        feed = front.open(handle)
        front.read(lambda: len(front.ticks) >= 12)
        assert front.feed["feed"] == feed and front.feed["handle"] == handle
        (node,) = front.feed["layout"]["nodes"]
        names = node["columns"]
        (snapshot,) = front.feed["snapshot"]["nodes"]
        assert snapshot["s"] <= front.ticks[0][0]  # nothing between the state and the first tick
        assert len(front.buffers[("snapshot", "nodes", "0", "x")]) == 8 * snapshot["k"]
        numbers = [number for number, _, _ in front.ticks]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        epoch = float((tmp_path / "curves").read_text().split(None, 2)[1])
        for _, t, values in front.ticks:
            assert len(values) == len(names)
            for gpu in {0, gpus // 2, gpus - 1}:
                got = [values[names.index(f"gpu{gpu}.{name}")] for name in ("memory", "power")]
                # A reading is taken within its tick: around a step of the script either value is right.
                expected = [curve(gpu, s)[1:] for s in {math.floor(t - epoch - 0.3), math.floor(t - epoch)}]
                assert tuple(got) in [tuple(map(np.float32, pair)) for pair in expected]
        assert front.ask("follow", feed=feed, shown=False)["known"]
        assert front.ask("cancel", handle=handle)["accepted"]
        live.manager.interrupt_kernel()


@pytest.mark.thorough
def test_monitor_dashboard_without_run_is_shown(environ: dict[str, str], tmp_path: Path) -> None:
    with kernel({**environ, **scripted(tmp_path, 4)}, tmp_path / "work") as live:
        live.run("%load_ext jupyter_amltrain")
        shown = live.run("m = %aml_monitor --gpus 1,3 --rate 10 --window 5m")
        (display,) = [d for d in shown.displays if d["data"].get("application/vnd.amltrain.run+json")][:1]
        record = display["data"]["application/vnd.amltrain.run+json"]
        assert record["kind"] == "monitor" and record["view"] == "dashboard" and record["window"] == 300
        front = Front(live)
        front.open(record["handle"])
        front.read(lambda: len(front.ticks) >= 5)
        assert [gpu["index"] for gpu in front.feed["layout"]["gpus"]] == [1, 3]
        assert "host_cpu" in front.feed["layout"]["nodes"][0]["columns"]
        text = live.run("print([g['index'] for g in m.snapshot()['gpus']], m.snapshot()['gpus'][0]['memory'] >= 1100)")
        assert text.stdout == "[1, 3] True\n"
        wrong = live.run("%aml_monitor --gpus 9", check=False)
        assert wrong.error is not None and "9" in wrong.error["evalue"]
        ended = live.run("m.stop(); m.stop()\nimport time\nwhile not m.record().done: time.sleep(0.05)\nprint('over')")
        assert ended.stdout == "over\n" and len(live.run("print(len(m.snapshot()['gpus']))").stdout) == 2


@pytest.mark.thorough
def test_dashboard_without_extension_sends_whole_arrays(environ: dict[str, str], tmp_path: Path) -> None:
    """The same figures as plain widgets; a message holds the window and no more."""
    with kernel({**environ, **scripted(tmp_path, 2), "VSCODE_PID": "1"}, tmp_path / "work") as live:
        live.run("%load_ext jupyter_amltrain")
        shown = live.run("%%aml_submit --gpus 2 --as run\nimport time; time.sleep(600)")
        kinds = [list(d["data"]) for d in shown.displays]
        assert any("application/vnd.jupyter.widget-view+json" in kind for kind in kinds)
        assert kinds[0][0] == "application/vnd.amltrain.run+json"  # a bundle of its own, without a widget in it
        live.client.execute(BUSY)
        marks: dict[str, str] = {}
        drawn: list[int] = []
        until = time.monotonic() + DEADLINE
        while len(drawn) < 12 and time.monotonic() < until:
            try:
                message = live.client.get_iopub_msg(timeout=1)
            except Exception:  # queue.Empty
                continue
            content = message["content"]
            if message["msg_type"] == "comm_open":
                marks[content["comm_id"]] = content["data"].get("state", {}).get("_model_name", "")
            elif message["msg_type"] == "comm_msg" and marks.get(content["comm_id"]) == "LinesModel":
                drawn.append(sum(len(b) for b in message["buffers"]))
        assert len(drawn) >= 12 and 0 < max(drawn) < 300 * 8 * 4
        assert "StreamFeedModel" not in marks.values()
        live.manager.interrupt_kernel()
