"""Damaged run folders: every kind of damage to every file of a run, against every command.

A damage may cost what the file held. It never costs a traceback, a hang or another run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from jupyter_amltrain.errors import AmlTrainError

from ..helpers import api_of
from ..telemetry_files import write_node

pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]

GOLDEN = Path(__file__).parents[1] / "golden" / "schema-1" / "golden-22222"
HEALTHY = ("good-first", "good-last")
#: Files of a run folder, each with the text that stands in the healthy one.
FILES = (
    "job.json",
    "state.json",
    "tracking.json",
    "log/rank-0.txt",
    "log/agent.txt",
    "metrics/rank-0.jsonl",
    "telemetry/node-0.jsonl",
    "telemetry/minutes-0.jsonl",
    "telemetry/summary-0.json",
    "outputs/accuracy.json",
    "source/script.py",
)
FOLDERS = ("log", "metrics", "telemetry", "outputs", "source", "artifacts")
STREAMS = ("log/rank-0.txt", "metrics/", "telemetry/", "outputs/")
#: A job that waits for ever: who reads the pipe of another run gets no byte.
NOT_REGULAR = ("fifo", "socket", "device")


class Damage(NamedTuple):
    file: str
    kind: str
    make: Callable[[Path], None]

    @property
    def run_id(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", f"{self.file}-{self.kind}".lower()).strip("-")[:96]


def _text(text: str | bytes) -> Callable[[Path], None]:
    data = text.encode() if isinstance(text, str) else text
    return lambda path: path.write_bytes(data) and None


def _instead(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        make(path)

    return change


def _socket(path: Path) -> None:
    # The address of a Unix socket has about 100 bytes: bound from its own folder.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _change(**fields: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


#: Seconds after which a command counts as one that hangs; a busy machine takes long for an import.
HANG_S = 120
DEEP = "[" * 20_000
WHOLE: dict[str, Callable[[Path], None]] = {
    "missing": _instead(lambda path: None),
    "empty": _text(""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]) and None,
    "object": _text("{}\n"),
    "list": _text("[]\n"),
    "list of lists": _text("[[]]\n[[1]]\n"),
    "null": _text("null\n"),
    "number": _text("7\n"),
    "text": _text('"words"\n'),
    "huge number": _text(f'{{"schema":1,"state":{"9" * 5000},"columns":{"9" * 400}}}\n'),
    "not a number": _text('{"schema":1,"state":"completed","t":NaN,"value":NaN}\n[NaN,NaN,1e999]\n'),
    "not utf-8": _text(b'{"schema":1,"state":"\xff\xfe","columns":["\xff"]}\n\xff\xfe\xfd\n'),
    "nul bytes": _text(b"\0" * 4096),
    "deep lists": _text(DEEP + "\n"),
    "deep objects": _text('{"a":' * 20_000 + "\n"),
    "deep and closed": _text(DEEP + "]" * 20_000 + "\n"),
    "folder": _instead(lambda path: path.mkdir()),
    "fifo": _instead(lambda path: os.mkfifo(path)),
    "socket": _instead(_socket),
    "loop": _instead(lambda path: path.symlink_to(path.name)),
    "dangling": _instead(lambda path: path.symlink_to("nowhere")),
    "device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "mode 000": lambda path: path.chmod(0),
}
FOLDER = ("missing", "fifo", "socket", "loop", "dangling", "mode 000")
STRANGE: tuple[Any, ...] = (None, 7, -1, "words", "", [], {}, True, float("nan"), 10**30, "\ud800", [None], {"": []})
STATE_FIELDS = (
    "state",
    "detail",
    "reason",
    "exit_code",
    "signal",
    "phases",
    "devices",
    "node",
    "boot",
    "mark",
    "guardian",
    "supervisor",
    "rank",
    "changed",
    "version",
    "queue",
    "truth",
    "cause",
    "nodes",
    "cancel_requested",
)
JOB_FIELDS = (
    "run",
    "name",
    "argv",
    "spec",
    "snapshot",
    "tracking",
    "submitted",
    "project",
    "experiment",
    "out",
    "timeout",
    "notebook_dir",
)
SPEC_FIELDS = ("name", "script", "params", "out", "tags", "experiment", "source", "resources", "timeout", "secrets")


def damages() -> Iterator[Damage]:
    for file in FILES:
        for kind, make in WHOLE.items():
            yield Damage(file, kind, make)
    for folder in FOLDERS:
        for kind in FOLDER:
            yield Damage(folder, kind, WHOLE[kind])
        yield Damage(folder, "file", _instead(_text("words")))
    for name in ("cancel", "unknown.json", "telemetry/truth-0.json"):
        for kind in ("empty", "deep lists", "folder", "fifo", "loop"):
            yield Damage(name, kind, WHOLE[kind])
    for file in ("job.json", "state.json"):
        yield Damage(file, "newer schema", _change(schema=99))
        yield Damage(file, "schema is text", _change(schema="1"))
    yield Damage("state.json", "phases without end", _change(phases=[{"name": "running", "start": 1.0}]))
    yield Damage("state.json", "phases of text", _change(phases=[{"name": 1, "start": "x", "end": [], "seconds": {}}]))
    yield Damage("state.json", "live without node", _change(state="running", node=None))
    yield Damage("state.json", "live without phases", _change(state="queued", phases=[]))
    yield Damage("state.json", "pid of all", _change(state="running", supervisor={"pid": -1, "start": 1}))


def strange_fields() -> Iterator[Damage]:
    """A wrong value in one field."""
    for field in STATE_FIELDS:
        for i, value in enumerate(STRANGE):
            yield Damage("state.json", f"{field} {i}", _change(**{field: value}))
    for field in JOB_FIELDS:
        for i, value in enumerate(STRANGE):
            yield Damage("job.json", f"{field} {i}", _change(**{field: value}))
    for field in SPEC_FIELDS:
        for i, value in enumerate(STRANGE):

            def change(path: Path, field: str = field, value: Any = value) -> None:
                job = json.loads(path.read_text())
                job["spec"][field] = value
                path.write_text(json.dumps(job))

            yield Damage("job.json", f"spec {field} {i}", change)


def write_run(root: Path, run_id: str, submitted: float) -> Path:
    """A healthy ended run with every file."""
    folder = root / "runs" / run_id
    shutil.copytree(GOLDEN, folder)
    shutil.rmtree(folder / "telemetry")
    write_node(folder, gpus=1, seconds=90)
    job = json.loads((folder / "job.json").read_text().replace("golden-22222", run_id))
    job.update(submitted=submitted, project=str(root.parent / "work"), notebook_dir=str(root.parent / "work"))
    job["spec"].update(out=["accuracy"], notebook_dir=job["notebook_dir"], project=job["project"])
    (folder / "job.json").write_text(json.dumps(job))
    state = (folder / "state.json").read_text().replace("golden-22222", run_id)
    (folder / "state.json").write_text(state)
    (folder / "tracking.json").write_text('{"schema":1,"state":"imported"}')  # no import of hundreds of runs
    return folder


class Place(NamedTuple):
    api: Any
    home: Path
    shell: Any


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_amltrain import magics

    with api_of(tmp_path) as module:
        (tmp_path / "home" / "runs").mkdir(parents=True, mode=0o700)
        shell = InteractiveShell()
        shell.run_line_magic("load_ext", "jupyter_amltrain")
        try:
            yield Place(module, tmp_path / "home", shell)
        finally:
            magics.unregister(shell)
            for path in (tmp_path / "home" / "runs").rglob("*"):
                with contextlib.suppress(OSError):
                    path.chmod(0o700)


def damage_all(home: Path, table: list[Damage]) -> None:
    now = time.time()
    write_run(home, HEALTHY[0], now - 1e6)
    for number, damage in enumerate(table):
        folder = write_run(home, damage.run_id, now - 1e5 - number)
        damage.make(folder / damage.file)
    write_run(home, HEALTHY[1], now)


# ---- commands: each takes the place and a handle; only our own errors may leave it


def magic(line: str) -> Callable[[Place, str], Any]:
    def run(place: Place, handle: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            place.shell.run_line_magic("aml_runs", line.format(handle))
        out.getvalue().encode()  # what no terminal and no notebook takes
        return out.getvalue()

    return run


def shell(*words: str) -> Callable[[Place, str], Any]:
    def run(place: Place, handle: str) -> str:
        from jupyter_amltrain import cli

        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            assert cli._exit_code([word.format(handle) for word in words]) in (0, 1, 2)
        out.flush()
        return out.buffer.getvalue().decode()  # type: ignore[attr-defined]

    return run


def answer(make: Callable[[str], Any]) -> Callable[[Place, str], Any]:
    """An answer to the panel, as it crosses the wire."""

    def run(place: Place, handle: str) -> Any:
        from jupyter_amltrain.frontend.handlers import RequestHandlers
        from jupyter_amltrain.kernel.session import controller

        answers = _answers.get(id(controller())) or RequestHandlers(controller())
        _answers.clear()
        _answers[id(controller())] = answers
        return msgspec.json.encode(controller().loop.call(answers.answer(make(handle)), 60))

    return run


_answers: dict[int, Any] = {}


def rows(place: Place, handle: str) -> None:
    from jupyter_amltrain.kernel.run_row import row_of
    from jupyter_amltrain.kernel.session import controller

    async def all_rows() -> list[Any]:
        return [row_of(entry) for entry in controller().store.entries() if entry.run.handle == handle]

    assert msgspec.json.encode(controller().loop.call(all_rows()))


def details(place: Place, handle: str) -> None:
    from jupyter_amltrain.kernel.session import controller

    run = place.api.attach(handle)
    controller().loop.call(controller().stream_summary(run.handle), 60)


def series(place: Place, handle: str) -> None:
    run = place.api.attach(handle)
    run.metrics()
    run.telemetry()
    msgspec.json.encode(run.record())
    run._repr_mimebundle_()
    assert isinstance(run.logs(), str) and isinstance(run.logs(tail=3), str)


def result(place: Place, handle: str) -> None:
    place.api.attach(handle).result("accuracy")


def resubmit(place: Place, handle: str) -> None:
    from jupyter_amltrain.commands import resubmit as again

    run = place.api.attach(handle)
    again.resubmit(run.run, run.reader)


def register(place: Place, handle: str) -> None:
    place.shell.run_line_magic("aml_model", f"register {handle} --name damaged")


def known(place: Place, handle: str) -> None:
    from jupyter_amltrain.commands.completion import CompletionNames

    CompletionNames().refresh(60.0).runs()


def _questions() -> Any:
    from jupyter_amltrain.frontend import run_handlers

    return run_handlers


def _log_request(**fields: Any) -> Any:
    from jupyter_amltrain.frontend.log_handlers import GetLog

    return GetLog(**fields)


COMMANDS: dict[str, Callable[[Place, str], Any]] = {
    "show": magic("show {}"),
    "logs": magic("logs {}"),
    "logs --tail": magic("logs {} --tail 2"),
    "wait": magic("wait {} --timeout 30s"),
    "cancel": magic("cancel {}"),
    "export": magic("export {} telemetry.csv"),
    "delete (asks)": magic("delete {}"),
    "amltrain runs show --json": shell("runs", "show", "{}", "--json"),
    "amltrain runs logs": shell("runs", "logs", "{}"),
    "series of a run": series,
    "result": result,
    "row": rows,
    "details of a row": details,
    "resubmit": resubmit,
    "panel: run": answer(lambda handle: _questions().GetRun(handle=handle)),
    "panel: log": answer(lambda handle: _log_request(handle=handle, offset=-1, limit=4096)),
    "panel: screen of the log": answer(lambda handle: _log_request(handle=handle, offset=-4096, screen="s")),
    "panel: delete (asks)": answer(lambda handle: _questions().DeleteRuns(handles=(handle,))),
}
FEW = ("show", "amltrain runs show --json", "row", "cancel", "resubmit")
LISTS: dict[str, Callable[[Place, str], Any]] = {
    "list": magic("list --limit 0"),
    "amltrain runs --json": shell("runs", "list", "--json", "--limit", "0"),
    "completion": known,
}


def tried(place: Place, command: Callable[[Place, str], Any], handle: str, wrong: Counter[str], label: str) -> Any:
    """Run one cell of the table; what is not ours is counted and printed."""
    begin = time.monotonic()
    try:
        return command(place, handle)
    except AmlTrainError as error:
        text = str(error)
        if "\n" in text.split("Traceback")[0].strip() and "log_tail" not in dir(error):
            wrong["several lines"] += 1
            print("LINES", label, repr(text[:300]))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        wrong[type(error).__name__] += 1
        import traceback

        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        print("TRACEBACK", label, type(error).__name__, str(error)[:120], where)
    finally:
        if (took := time.monotonic() - begin) > HANG_S:
            wrong["hang"] += 1
            if wrong["hang"] > 3:
                pytest.exit("too many hangs", 1)
            print(f"HANG {took:.0f} s", label)
    return None


def opens_pipes_without_waiting(folder: Path) -> bool:
    """Whether the transport reads a FIFO in a run folder as absent: it is another branch's file."""
    from jupyter_amltrain.backends import transport

    path = folder / "probe"
    os.mkfifo(path)

    def read() -> None:
        with contextlib.suppress(Exception):
            transport.read(str(path), 0, 10, False)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(3.0)
    blocked = thread.is_alive()
    if blocked:
        os.close(os.open(path, os.O_WRONLY))
        thread.join()
    path.unlink()
    return not blocked


def takes_any_json() -> bool:
    """Whether a value file of another shape is taken: it is another branch's file."""
    from jupyter_amltrain.backends.run_files import output_of

    try:
        output_of("x", b"[]", "local/x")
        output_of("x", DEEP.encode(), "local/x")
    except (AttributeError, TypeError, RecursionError):
        return False
    return True


def check(place: Place, table: list[Damage], commands: dict[str, Callable[[Place, str], Any]], share: int = 1) -> None:
    """Try the table; of other files than the two that make a run every `share`-th command, each in its turn."""
    damage_all(place.home, table)
    wrong: Counter[str] = Counter()
    cells = 0
    for name, command in LISTS.items():
        for _ in range(2):  # the second time some of it is known
            cells += 1
            tried(place, command, "", wrong, name)
    handles = {f"local/{run_id}" for run_id in HEALTHY}
    for number, damage in enumerate(table):
        handle = f"local/{damage.run_id}"
        for place_in_table, (name, command) in enumerate(commands.items()):
            if (number + place_in_table) % share and (share == 5 or damage.file not in ("job.json", "state.json")):
                continue
            cells += 1
            tried(place, command, handle, wrong, f"{damage.file} {damage.kind}: {name}")
    listed = {row["handle"]: row for row in json.loads(shell("runs", "list", "--json", "--limit", "0")(place, ""))}
    assert handles <= listed.keys()
    newer = {f"local/{damage.run_id}" for damage in table if damage.kind == "newer schema"}
    lost = {f"local/{damage.run_id}" for damage in table} - listed.keys() - newer
    print(f"{len(table)} damages x {len(commands)} commands and lists: {cells} cells, wrong: {dict(wrong) or 0}")
    assert not lost
    assert not wrong
    damaged = [row for row in listed.values() if row["reason"] == "damaged"]
    print(f"{len(damaged)} rows say that their run is damaged")
    assert damaged and all("\n" not in row["error"] and "damaged" in row["error"] for row in damaged)
    # All of them can be deleted, and nothing else goes with them.
    output = shell("runs", "delete", "--force", *sorted(row["handle"] for row in damaged))(place, "")
    left = {row["handle"] for row in json.loads(shell("runs", "list", "--json", "--limit", "0")(place, ""))}
    assert not left & {row["handle"] for row in damaged}, output
    assert handles <= left
    for damage in table:
        assert not (place.home / "runs" / damage.run_id).exists() or f"local/{damage.run_id}" in left | newer


@pytest.mark.parametrize("share", [6, pytest.param(1, marks=pytest.mark.thorough)])
def test_damaged_file_leaves_other_runs_readable(place: Place, tmp_path: Path, share: int) -> None:
    table = list(damages())
    if not opens_pipes_without_waiting(tmp_path):
        skipped = [d for d in table if d.kind in NOT_REGULAR and d.file.startswith(STREAMS)]
        print(f"left out until the transport opens pipes without waiting: {len(skipped)} damages")
        table = [damage for damage in table if damage not in skipped]
    if not takes_any_json():
        skipped = [d for d in table if d.file.startswith("outputs/")]
        print(f"left out until values of any shape are taken: {len(skipped)} damages")
        table = [damage for damage in table if damage not in skipped]
    check(place, table, COMMANDS, share)


def test_wrong_field_value_leaves_other_runs_readable(place: Place) -> None:
    check(place, list(strange_fields()), {name: COMMANDS[name] for name in FEW}, share=5)


def test_damaged_run_after_repair_is_listed(place: Place) -> None:
    folder = write_run(place.home, "once-damaged", time.time() - 100)
    whole = (folder / "state.json").read_bytes()
    (folder / "state.json").write_text("{}")
    assert [run.run.status.reason for run in place.api.runs()] == ["damaged"]
    (folder / "state.json").write_bytes(whole)
    (run,) = place.api.runs()
    assert (run.state, run.run.status.reason, run.run.error) == ("completed", "exit", None)


def test_damaged_live_run_on_delete_is_canceled(place: Place) -> None:
    run = place.api.submit("import time\nprint('here', flush=True)\ntime.sleep(600)", name="live", gpus=0)
    run.accepted(60)
    deadline = time.monotonic() + 60
    while "here" not in run.logs():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    folder = Path(run.run.folder)
    place.api.close()  # another kernel, which has not seen it whole
    whole = (folder / "state.json").read_bytes()
    (folder / "state.json").write_text("{}")
    again = place.api.attach(run.handle)
    assert again.run.status.reason == "damaged"
    with pytest.raises(AmlTrainError, match="still running"):
        again.delete()
    again.cancel()
    assert (folder / "cancel").exists()
    if (folder / "state.json").read_text() == "{}":
        (folder / "state.json").write_bytes(whole)


def test_damaged_run_with_linked_folder_is_handled(place: Place) -> None:
    folder = write_run(place.home, "far-away", time.time())
    moved = place.home / "elsewhere"
    folder.rename(moved)
    folder.symlink_to(moved)
    (moved / "state.json").unlink()
    assert [run.run.status.reason for run in place.api.runs()] == ["damaged"]
    place.api.attach("far-away").delete()
    assert place.api.runs() == [] and stat.S_ISDIR(moved.stat().st_mode)
