"""The kernel's side of the Azure process, with the real process behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import warnings

import psutil
import pytest

from jupyter_amltrain.azure.client import client_of, close_client
from jupyter_amltrain.errors import AmlTrainError, CommandError, TargetUnreachable
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.state_dir import StateRoot

DEADLINE = 60.0


@pytest.fixture
def loop():
    loop = LoopThread("test-link")
    yield loop
    loop.close()


@pytest.fixture
def root(tmp_path):
    return StateRoot(tmp_path / "home")


@pytest.fixture
def ask(loop, root):
    """Have one operation done, from this thread."""

    async def request(op, payload, **rest):
        return await client_of(loop, root).request(op, payload, **rest)

    yield lambda op="process.ping", payload=None, **rest: loop.call(request(op, payload or {}, **rest), DEADLINE)
    loop.call(close_client(loop), DEADLINE)


def gone(pid: int) -> bool:
    deadline = time.monotonic() + DEADLINE
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_service_process_starts_at_first_request_and_ends_with_close(ask, loop, root):
    pid = ask()["pid"]
    assert ask()["pid"] == pid != os.getpid()
    assert ask()["home"] == str(root.path)
    loop.call(close_client(loop), DEADLINE)
    assert gone(pid)


def test_concurrent_requests_run_and_progress_comes_first(ask, loop, root):
    changes = []

    async def all_of():
        link = client_of(loop, root)
        # None of them would end within this test: that all have begun shows that they are under way together.
        waits = [
            asyncio.ensure_future(
                link.request("process.ping", {"wait": 3600.0, "say": f"n{i}"}, progress=changes.append)
            )
            for i in range(12)
        ]
        while len(changes) < 12:
            await asyncio.sleep(0.01)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        return await link.request("process.ping", {"say": "last"}, progress=changes.append)

    ask()
    assert loop.call(all_of(), DEADLINE)["pid"]
    assert sorted(changes) == sorted(["last", *(f"n{i}" for i in range(12))])


def test_request_error_keeps_class_and_hint(ask):
    with pytest.raises(CommandError) as caught:
        ask("workspace.whoami", {"workspace": "nowhere"})
    assert "'nowhere'" in caught.value.message
    assert "%aml_compute connect" in caught.value.hint


def test_request_unexpected_error_is_one_redacted_line(ask, root):
    with pytest.raises(AmlTrainError, match=r"LookupError.*sig=\[redacted\]&se=1 .*azure\.txt") as caught:
        ask(payload={"fail": "at https://x/y?sig=aB%2Fc&se=1 with Bearer abcdefghijkl.mno"})
    log = (root.logs / "azure.txt").read_text()
    assert "Traceback" in log and "process.ping failed" in log
    for text in (str(caught.value), log):
        assert "aB%2Fc" not in text and "abcdefghijkl" not in text
    assert oct((root.logs / "azure.txt").stat().st_mode & 0o777) == "0o600"
    with pytest.raises(AmlTrainError, match="unknown operation 'no.such'"):
        ask("no.such")


def test_request_timeout_is_extended_by_progress(ask):
    ask()
    with pytest.raises(TargetUnreachable, match=r"process\.ping.*0\.3 s"):
        ask(payload={"wait": 30.0}, timeout=0.3)
    assert ask(timeout=5)["pid"]


def test_canceled_request_cancels_operation(ask, loop, root):
    async def give_up():
        link = client_of(loop, root)
        task = asyncio.ensure_future(
            link.request("process.ping", {"wait": 60.0, "say": "begun"}, progress=begun.append)
        )
        while not begun:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        # all sixteen threads are free again: none waits the minute out
        await asyncio.wait_for(asyncio.gather(*[link.request("process.ping", {"wait": 0.01}) for _ in range(32)]), 20)

    begun: list[str] = []
    loop.call(give_up(), DEADLINE)


def test_dead_service_process_fails_request_and_restarts(ask, loop, root):
    pid = ask()["pid"]

    async def killed():
        task = asyncio.ensure_future(client_of(loop, root).request("process.ping", {"wait": 60.0}))
        await asyncio.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        await task

    with pytest.raises(TargetUnreachable, match=r"signal 9.*logs.azure\.txt"):
        loop.call(killed(), DEADLINE)
    assert ask()["pid"] != pid


def test_service_process_ends_with_kernel(root):
    """Its input ends: also in the middle of an operation."""
    import subprocess

    code = (
        "import asyncio,os,sys\n"
        "from jupyter_amltrain.azure.client import client_of\n"
        "from jupyter_amltrain.loop import LoopThread\n"
        "from jupyter_amltrain.state_dir import StateRoot\n"
        "loop, root = LoopThread(), StateRoot(sys.argv[1])\n"
        "async def go():\n"
        "    link = client_of(loop, root)\n"
        "    print((await link.request('process.ping', {}))['pid'], flush=True)\n"
        "    await link.request('process.ping', {'wait': 60.0})\n"
        "loop.call(go(), 60)\n"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code, str(root.path)], stdout=subprocess.PIPE, text=True)
    assert kernel.stdout is not None
    pid = int(kernel.stdout.readline())
    kernel.kill()
    kernel.wait()
    assert gone(pid)


def test_forked_child_does_not_use_service_process(ask, loop, root):
    pid = ask()["pid"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:  # closes its copy of the pipe, and holds on for longer than the parent
        time.sleep(5)
        os._exit(0)
    assert ask()["pid"] == pid
    loop.call(close_client(loop), DEADLINE)
    assert gone(pid)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_environment_change_reaches_running_process(ask, loop, root, monkeypatch):
    ask()
    monkeypatch.setenv("AZURE_CLIENT_ID", "00000000-0000-4000-8000-000000000001")
    ask()

    async def of_process():
        link = client_of(loop, root)
        return link._rpc._sent_environ["AZURE_CLIENT_ID"]

    assert loop.call(of_process(), 10).endswith("0001")
    monkeypatch.delenv("AZURE_CLIENT_ID")
    assert ask()["pid"]


def test_kernel_does_not_import_azure(tmp_path):
    import subprocess

    code = (
        "import sys\n"
        "import jupyter_amltrain.kernel.controller, jupyter_amltrain.azure.workspaces\n"
        "import jupyter_amltrain.azure.commands.connect\n"
        "import jupyter_amltrain.azure.client, jupyter_amltrain.azure.errors\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('azure', 'msal', 'mlflow', 'aiohttp', 'requests')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_canceled_request_does_not_corrupt_large_frame(ask, loop, root):
    large = "x" * (4 << 20)  # of which a pipe takes 64 KiB at once

    async def given_up(after):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(client_of(loop, root).request("process.ping", {"wait": 60}), after)

    async def together():
        link = client_of(loop, root)
        whole = [link.request("process.ping", {"say": large}) for _ in range(2)]
        return (await asyncio.gather(*whole, *(given_up(0.003 * n) for n in range(40))))[:2]

    pids = {found["pid"] for _ in range(3) for found in loop.call(together(), DEADLINE)}
    assert pids == {ask()["pid"]}
