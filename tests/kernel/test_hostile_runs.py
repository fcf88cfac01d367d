"""No file that a job can write stops the watcher, the list or another run."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import ResultMissing

from ..helpers import DEADLINE, api_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

#: A job that replaces one file of its run as its arguments say.
JOB = """
import json, os, pathlib, shutil, socket, sys

def spoil(name, kind, text):
    path = pathlib.Path(os.environ["AML_OUTPUT_DIR"]).parent / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
    if kind == "text":
        path.write_bytes(text.encode("latin-1"))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        (path / "inside").mkdir(parents=True)
    elif kind == "socket":
        os.chdir(path.parent)  # the name of a socket is short
        socket.socket(socket.AF_UNIX).bind(path.name)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "link":
        path.symlink_to(text)
    elif kind == "sparse":
        with open(path, "wb") as file:
            file.truncate(300 << 20)

for one in json.loads(pathlib.Path(sys.argv[-1]).read_text()):
    spoil(*one)
"""
SHAPES = ["0.93", "[1, 2]", '"text"', "null", "true", '{"error": 1}', '{"value": 2}']
SHAPES += ['{"amltrain": 1}', "[" * 200 + "]" * 200]
NOT_JSON = ["", "{", "\xff\xfe\x00", "[" * 100_000, '{"a":' * 50_000, "nan,", '"\\ud800"', "1" * 5000, "\n" * 1000]
FILES = [
    "outputs/acc.json", "metrics/rank-0.jsonl", "telemetry/node-0.jsonl", "telemetry/minutes-0.jsonl",
    "telemetry/summary-0.json", "telemetry/truth-0.json", "log/rank-0.txt",
]  # fmt: skip
KINDS = [
    ("fifo", ""),
    ("folder", ""),
    ("socket", ""),
    ("loop", ""),
    ("link", "/dev/zero"),
    ("link", "/nonexistent/place"),
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("hostile"), AMLTRAIN_CPU_SLOTS="4") as module:
        Path("job.py").write_text(JOB)
        yield module


def spoiled(api: Any, *what: tuple[str, str, str]) -> Any:
    Path("plan.json").write_text(json.dumps(what))
    return api.submit(Path("job.py"), args=[os.path.abspath("plan.json")], out=["acc"], gpus=0, name="hostile")


def others_are_fine(api: Any) -> None:
    """Another run ends, is imported and is listed; the events for a page can be sent."""
    friend = api.submit("n = 3", out=["n"], gpus=0, name="friend")
    assert friend.wait(DEADLINE).result("n") == 3
    listed = api.runs()
    assert friend.handle in [run.handle for run in listed]

    async def rows() -> Any:
        from jupyter_amltrain.kernel.run_record import record_of
        from jupyter_amltrain.kernel.run_row import row_of

        return [(record_of(entry), row_of(entry)) for entry in api.controller().store.entries()]

    assert msgspec.json.encode(api.controller().loop.call(rows()))


@pytest.mark.thorough
@pytest.mark.parametrize("text", [*SHAPES, *NOT_JSON], ids=lambda text: repr(text[:12]))
def test_hostile_output_affects_only_its_run(api: Any, text: str) -> None:
    run = spoiled(api, ("outputs/acc.json", "text", text)).wait(DEADLINE)
    try:
        assert run.result("acc") == json.loads(text) or text == "nan,"
    except ResultMissing as error:
        assert text not in SHAPES[:7] and "\n" not in str(error)
    assert msgspec.json.encode(run.record())
    others_are_fine(api)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind))
def test_hostile_file_kind_affects_only_its_run(api: Any, kind: tuple[str, str]) -> None:
    run = spoiled(api, *((name, *kind) for name in FILES)).wait(DEADLINE)
    with pytest.raises(ResultMissing):
        run.result("acc")
    assert run.record().done
    others_are_fine(api)


@pytest.mark.thorough
def test_endless_metrics_line_keeps_kernel(api: Any) -> None:
    run = spoiled(api, ("metrics/rank-0.jsonl", "sparse", ""), ("telemetry/node-0.jsonl", "sparse", "")).wait(DEADLINE)
    assert run.record().metrics == {}
    others_are_fine(api)


HEADER = '{"schema": 1, "columns": ["seq", "t", "cpu"], "gpus": [{"index": 0}], "gpu_columns": ["util"]}'
LINES = [
    '{"seq": "x"}',
    '{"seq": 1, "op": "runs/log-metric", "b": []}',
    '{"seq": 5, "op": "runs/log-batch", "b": {"metrics": 7}}',
    '{"seq": 9, "op": "init", "a": {"id": [1]}}',
    "7",
    "null",
    '"x"',
    "[]",
    HEADER,
    '{"columns": 5}',
    '{"columns": [1, [2]]}',
    '{"columns": ["seq", "t", "cpu"], "gpus": 3}',
    '{"columns": ["seq", "t"], "gpus": [1, {"index": "x"}]}',
    '{"gpu": [[0, {"throttle": "x"}]]}',
    '{"gpu": 5}',
    '{"processes": [[1]]}',
    '{"processes": 1}',
    '{"note": [1]}',
    "[0, 1.0, 5, 5]",
    '[1, "x", 5, 5]',
    "[2, 1e999, [1], 5]",
    "[3, -1, null, null]",
    '["a", 1, 2, 3]',
    "[4, 5, 1e308, 7]",
    '{"columns": ["cpu", "gpu0.util"]}',
    "[1, 2, 3, 4, 5, 6, 7, 8]",
    '[1, 2, 3, 4, "x", [1], [1], [1]]',
    '{"gpus": [1], "hint": [2], "seconds": "x"}',
    '{"gpus": {"a": 1}}',
    '{"cpu_mean": {}}',
    "ÿþ",
]


def test_hostile_metrics_and_telemetry_are_read(api: Any) -> None:
    text = "\n".join([*LINES, ""])
    run = spoiled(api, *((name, "text", text) for name in FILES)).wait(DEADLINE)
    assert msgspec.json.encode(run.record())
    others_are_fine(api)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(200))
def test_hostile_files_random_keep_kernel(api: Any, number: int) -> None:
    throw = random.Random(int(os.environ.get("AMLTRAIN_SOAK_SEED", "20261121")) + number)
    plan: list[tuple[str, str, str]] = []
    for name in throw.sample(FILES, throw.randint(1, len(FILES))):
        kind, text = throw.choice([*KINDS, *[("text", "")] * 2 * len(KINDS)])
        if kind == "text":
            parts = throw.choices([*SHAPES, *NOT_JSON, *LINES], k=throw.randint(1, 8))
            text = throw.choice(["\n", "", "\n\n"]).join([throw.choice(["", HEADER]), *parts])
            if throw.random() < 0.3:
                text = throw.randbytes(throw.randint(1, 5000)).decode("latin-1") + text
        plan.append((name, kind, text))
    hostile = spoiled(api, *plan)
    friend = api.submit("n = 3", out=["n"], gpus=0, name="friend")
    assert friend.wait(DEADLINE).result("n") == 3, plan
    hostile.wait(DEADLINE)
    assert msgspec.json.encode(hostile.record())
    assert {hostile.handle, friend.handle} <= {run.handle for run in api.runs()}
    hostile.delete()
    friend.delete()
