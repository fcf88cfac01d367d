"""A submitted cell's output in a real kernel: one bundle, kept current while other cells run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_amltrain.schema.group import GROUP_MIME
from jupyter_amltrain.schema.record import RECORD_MIME

from ..helpers import kernel_of
from ..ipykernel.harness import DEADLINE, Kernel

WAIT = "import os, time\nwhile not os.path.exists({gate!r}): time.sleep(0.02)\n"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with kernel_of(tmp_path_factory.mktemp("output")) as started:
        yield started


class Screen:
    """What a front end sees on IOPub after it executed cells."""

    def __init__(self, live: Kernel) -> None:
        self.client = live.client
        self.messages: list[dict[str, Any]] = []

    def until(self, wanted: Callable[[dict[str, Any]], Any], deadline: float = DEADLINE) -> dict[str, Any]:
        end = time.monotonic() + deadline
        while (left := end - time.monotonic()) > 0:
            message = self.client.get_iopub_msg(timeout=left)
            self.messages.append(message)
            if wanted(message):
                return dict(message)
        raise AssertionError("not seen on IOPub")

    def frames(self) -> list[dict[str, Any]]:
        """Contents with our bundle, oldest first."""
        found = [m["content"] for m in self.messages if m["msg_type"] in ("display_data", "update_display_data")]
        return [c for c in found if RECORD_MIME in c["data"]]

    def records_of(self, name: str) -> list[dict[str, Any]]:
        """The records of one run, oldest first: an earlier run's last frame may come late."""
        found = [frame["data"][RECORD_MIME] for frame in self.frames()]
        return [record for record in found if record["name"] == name]


def record_of(message: dict[str, Any]) -> dict[str, Any]:
    if message["msg_type"] not in ("display_data", "update_display_data"):
        return {}
    return dict(message["content"]["data"].get(RECORD_MIME, {}))


def idle_of(cell: str) -> Callable[[dict[str, Any]], bool]:
    return lambda m: (
        m["parent_header"].get("msg_id") == cell
        and m["msg_type"] == "status"
        and m["content"]["execution_state"] == "idle"
    )


@pytest.mark.thorough
def test_output_bundle_is_updated_while_other_cell_runs(live: Kernel, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    screen = Screen(live)
    script = f"print('one', flush=True)\n{WAIT.format(gate=first)}print('two', flush=True)\nn = 5\n"
    cell = screen.client.execute(f"%%aml_submit --name live --out n\n{script}")
    other = screen.client.execute(WAIT.format(gate=second))
    screen.until(lambda m: record_of(m).get("log", {}).get("tail") == "one\n")
    Path(first).touch()
    last = screen.until(lambda m: record_of(m).get("done") and record_of(m).get("outputs"))
    # All of it arrived while the other cell still ran.
    assert not any(idle_of(other)(m) for m in screen.messages)
    Path(second).touch()
    screen.until(idle_of(other))
    frames = screen.frames()
    kinds = [m["msg_type"] for m in screen.messages if record_of(m)]
    assert kinds[0] == "display_data" and set(kinds[1:]) == {"update_display_data"}
    assert len({frame["transient"]["display_id"] for frame in frames}) == 1
    for frame in frames:
        assert list(frame["data"])[:2] == [RECORD_MIME, "text/plain"]
        assert set(frame["data"]) <= {RECORD_MIME, "text/plain", "text/html", "image/png"}
    assert {m["parent_header"]["msg_id"] for m in screen.messages if record_of(m)} == {cell}
    handles = {frame["data"][RECORD_MIME]["handle"] for frame in frames}
    assert len(handles) == 1
    record = record_of(last)
    assert record["state"] == "completed" and record["log"]["tail"] == "one\ntwo\n" and record["outputs"] == {"n": 5}
    assert f"{record['handle']}  completed" in last["content"]["data"]["text/plain"]
    assert "widget-view" not in json.dumps(list(last["content"]["data"]))


def test_output_last_frame_of_many_runs_is_end_state(live: Kernel) -> None:
    screen = Screen(live)
    cells = [screen.client.execute(f"%%aml_submit --name many --wait\nprint({i})") for i in range(4)]
    for cell in cells:
        screen.until(idle_of(cell))
    last = {}
    for message in screen.messages:
        if record_of(message):
            last[message["content"]["transient"]["display_id"]] = record_of(message)
    assert len(last) == 4
    assert [(r["done"], r["state"], r["log"]["tail"]) for r in last.values()] == [
        (True, "completed", f"{i}\n") for i in range(4)
    ]


def test_submits_of_one_cell_share_one_output(live: Kernel) -> None:
    screen = Screen(live)
    submit = "ip.run_cell_magic('aml_submit', '--name loop --param n=$i', 'print(n)')"
    loop = f"ip = get_ipython()\nfor i in range(3):\n    {submit}"
    cell = screen.client.execute(loop)

    def group_of(message: dict[str, Any]) -> dict[str, Any]:
        return dict(message.get("content", {}).get("data", {}).get(GROUP_MIME, {}))

    last = screen.until(lambda m: group_of(m).get("done") and len(group_of(m)["rows"]) == 3)
    shown = [m for m in screen.messages if m["parent_header"].get("msg_id") == cell and "transient" in m["content"]]
    assert len({m["content"]["transient"]["display_id"] for m in shown}) == 1
    assert [m["msg_type"] for m in shown].count("display_data") == 1
    assert [row["values"] for row in group_of(last)["rows"]] == [["0"], ["1"], ["2"]]
    assert RECORD_MIME not in last["content"]["data"] and "<table" in last["content"]["data"]["text/html"]
    other = screen.client.execute("%%aml_submit --name alone --wait\nprint(1)")
    screen.until(idle_of(other))
    assert screen.records_of("alone")[-1]["done"]


@pytest.mark.thorough
def test_output_frames_of_chatty_script_are_limited(live: Kernel) -> None:
    screen = Screen(live)
    start = time.monotonic()
    cell = screen.client.execute(
        "%%aml_submit --name talk --wait\nimport time\nend = time.monotonic() + 2\n"
        "while time.monotonic() < end: print('x' * 50, flush=True); time.sleep(0.0005)"
    )
    screen.until(idle_of(cell))
    spent = time.monotonic() - start
    frames = screen.records_of("talk")
    assert len(frames) <= 2 * spent + 10  # two a second, a few at once, the end
    assert frames[-1]["done"] and len(json.dumps(frames[-1])) < 200_000


@pytest.mark.thorough
def test_output_of_binary_log_bounds_memory(live: Kernel) -> None:
    screen = Screen(live)
    kernel = psutil.Process(live.pid)
    before = kernel.memory_info().rss
    script = (
        "import os\nblock = (b'\\xff\\xfe caf\\xc3\\xa9 10%\\r 50%\\r100%\\n' * 50_000)[: 1 << 20]\n"
        "for i in range(200): os.write(1, block)\n"
        "os.write(1, b'\\nthe end \\xff\\n');\n"
    )
    cell = screen.client.execute(f"%%aml_submit --name flood --wait --as flood\n{script}")
    peak = before
    while not any(idle_of(cell)(m) for m in screen.messages[-1:]):
        screen.until(lambda m: True)
        peak = max(peak, kernel.memory_info().rss)
    last = screen.records_of("flood")[-1]
    assert last["done"] and last["state"] == "completed"
    assert last["log"]["bytes"] == (200 << 20) + len(b"\nthe end \xff\n")
    assert last["log"]["tail"].endswith("\nthe end \ufffd\n") and len(last["log"]["tail"]) <= 8192
    assert "\r" not in last["log"]["tail"] and "100%" in last["log"]["tail"]
    assert len(json.dumps(last, ensure_ascii=False).encode()) < 200_000
    shown = live.run("%aml_runs logs last")
    assert len(shown.stdout) < 400_000 and "the whole log: " in shown.stdout
    peak = max(peak, kernel.memory_info().rss)
    assert peak - before < 100 << 20
