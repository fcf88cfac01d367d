"""What every transport must do. An implementation inherits this and supplies fixtures."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.backends.transport import Transport
from jupyter_amltrain.errors import AmlTrainError, UnknownRun
from jupyter_amltrain.loop import LoopThread

Call = Callable[[Coroutine[Any, Any, Any]], Any]
DEADLINE = 60.0


class TransportContract:
    """Subclasses define the fixtures ``loop``, ``transport`` and ``there``: a folder of the machine, seen from here."""

    @pytest.fixture
    def call(self, loop: LoopThread) -> Call:
        return lambda coro: loop.call(coro, DEADLINE)

    def test_put_files_arrive_with_modes(self, call: Call, transport: Transport, there: Path, tmp_path: Path) -> None:
        script = tmp_path / "run.sh"
        script.write_text("echo\n")
        script.chmod(0o755)
        call(transport.put({"a.py": b"print(1)", "deep/er/run.sh": str(script), "empty": b""}, f"{there}/put"))
        assert (there / "put" / "a.py").read_bytes() == b"print(1)" and (there / "put" / "empty").read_bytes() == b""
        assert (there / "put" / "deep" / "er" / "run.sh").read_text() == "echo\n"
        modes = [stat.S_IMODE(os.stat(there / "put" / name).st_mode) for name in ("a.py", "deep/er/run.sh", "deep")]
        assert modes == [0o600, 0o700, 0o700]

    def test_put_large_files_arrive_whole(self, call: Call, transport: Transport, there: Path, tmp_path: Path) -> None:
        content = os.urandom(9 << 20)
        (tmp_path / "large").write_bytes(content)
        files = {"large": str(tmp_path / "large"), **{f"small{i}": b"%d" % i * 1000 for i in range(50)}}
        call(transport.put(files, f"{there}/many"))
        assert (there / "many" / "large").read_bytes() == content
        assert (there / "many" / "small49").read_bytes() == b"49" * 1000

    def test_read_from_offset_returns_rest(self, call: Call, transport: Transport, there: Path) -> None:
        (there / "log").write_bytes(b"0123456789")
        assert call(transport.read_from(f"{there}/log", 3, 4)) == b"3456"
        assert call(transport.read_from(f"{there}/log", 8, 100)) == b"89"
        assert call(transport.read_from(f"{there}/log", 10, 100)) == b""
        assert call(transport.size(f"{there}/log")) == 10

    def test_absent_files_are_empty(self, call: Call, transport: Transport, there: Path) -> None:
        for name in ("nothing", "nothing/below"):
            assert call(transport.read_from(f"{there}/{name}", 0, 10)) == b""
            assert call(transport.size(f"{there}/{name}")) == 0
            assert list(call(transport.list(f"{there}/{name}"))) == []
            assert call(transport.fetch(f"{there}/{name}")) is None

    def test_many_small_files_are_read_whole(self, call: Call, transport: Transport, there: Path) -> None:
        odd = os.fsdecode(b"sub/\xff \n.bin")
        (there / "sub").mkdir()
        (there / odd).write_bytes(b"odd")
        (there / "sub" / "b").write_bytes(b"")
        os.utime(there / odd, (1000.5, 1000.5))
        found = call(transport.read_many(str(there), [odd, "absent", "sub/b", "sub"], 1000))
        assert found[0] == (b"odd", 1000.5) and found[2].data == b"" and found[1] is found[3] is None
        facts = call(transport.stat(f"{there}/{odd}"))
        assert (facts.size, facts.modified) == (3, 1000.5)
        assert call(transport.stat(f"{there}/sub")) is None and call(transport.stat(f"{there}/nothing/below")) is None

    def test_pipe_is_not_read(self, call: Call, transport: Transport, there: Path) -> None:
        os.mkfifo(there / "pipe")
        assert call(transport.read_from(f"{there}/pipe", 0, 10)) == b""  # and does not block

    def test_list_and_fetch_have_all_files(self, call: Call, transport: Transport, there: Path) -> None:
        (there / "run" / "sub").mkdir(parents=True)
        (there / "run" / "a").write_bytes(b"one")
        (there / "run" / "sub" / "ü").write_bytes(b"two two")
        assert [(f.path, f.size) for f in call(transport.list(f"{there}/run"))] == [("a", 3), ("sub/ü", 7)]
        copy = Path(call(transport.fetch(f"{there}/run")))
        assert (copy / "sub" / "ü").read_bytes() == b"two two"
        (there / "run" / "a").write_bytes(b"longer now")
        assert (Path(call(transport.fetch(f"{there}/run"))) / "a").read_bytes() == b"longer now"
        assert Path(call(transport.fetch(f"{there}/run/a"))).read_bytes() == b"longer now"

    def test_call_returns_reply_or_error_of_agent(self, call: Call, transport: Transport) -> None:
        assert call(transport.call("poll", {"run_ids": []})) == {"runs": {}, "errors": {}}
        with pytest.raises(UnknownRun):
            call(transport.call("cancel", {"run": "nobody-22222"}))
        with pytest.raises(AmlTrainError):
            call(transport.call("no such call", {}))

    def test_events_report_changed_folders(self, call: Call, transport: Transport, there: Path) -> None:
        one, two = there / "one", there / "two"
        one.mkdir()
        two.mkdir()
        paths = [str(one), str(two)]

        async def scenario() -> list[set[str]]:
            changes, seen = transport.events(), []
            try:
                first: set[str] = set()
                while first != set(paths):  # each counts as changed at first
                    first |= set(await changes.wait(paths, 5.0))
                seen.append(first)
                (one / "log").write_text("x")
                seen.append(set(await changes.wait(paths, 20.0)))
                while await changes.wait(paths, 0.5):  # creating and writing a file may be two changes
                    pass
                with pytest.raises(asyncio.TimeoutError):  # a wait that is given up loses nothing
                    await asyncio.wait_for(changes.wait(paths, 20.0), 0.3)
                (two / "state").write_text("y")
                await asyncio.sleep(0.3)
                seen.append(set(await changes.wait(paths, 20.0)))
            finally:
                changes.close()
            return seen

        assert call(scenario()) == [set(paths), {str(one)}, {str(two)}]
