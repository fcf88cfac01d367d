"""The whole emulated Azure in one process tree: ``python -m azureml_emulator.sandbox [--port 0] [--print-env]``.

Prints one JSON line when ready, ``{"environ", "control", "subscription", "resource_group", "workspace", "tenant"}``
(with ``--print-env`` shell lines, with ``--explain`` instructions), and ends when stdin is closed, on SIGTERM
or on Ctrl-C, together with its child processes.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import functools
import json
import logging
import os
import secrets
import shlex
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from azureml_emulator import tls
from azureml_emulator.app import App
from azureml_emulator.blob import Blob
from azureml_emulator.proxy import USER, Proxy
from azureml_emulator.world import World
from tools.azurite import Azurite

ACCOUNT = "amltrainstore"
#: Poll intervals that are shorter than appropriate for the real service.
_SHORT_INTERVALS = {"AMLTRAIN_AZURE_POLL": "0.1", "AMLTRAIN_FORWARD_PERIOD": "0.5"}


def environ_of(world: World, certificates: tls.Certificates, proxy: int) -> dict[str, str]:
    """Return the environment variables that direct a client to the emulator, including its sign-in."""
    proxy_url = f"http://{USER}:{world.proxy_secret}@127.0.0.1:{proxy}"
    no_proxy_hosts = "127.0.0.1,localhost"
    return {
        "HTTPS_PROXY": proxy_url,
        "https_proxy": proxy_url,
        "NO_PROXY": no_proxy_hosts,
        "no_proxy": no_proxy_hosts,
        "REQUESTS_CA_BUNDLE": str(certificates.bundle),
        "SSL_CERT_FILE": str(certificates.bundle),
        "AZURE_TENANT_ID": world.tenant,
        "AZURE_CLIENT_ID": world.client,
        "AZURE_CLIENT_SECRET": world.client_secret,
        **_SHORT_INTERVALS,
    }


@contextlib.asynccontextmanager
async def running(folder: Path, control_port: int = 0) -> AsyncIterator[tuple[World, dict[str, Any]]]:
    """Run the whole emulator, with files in the private `folder`; the second value is the output of `main`."""
    world = World()
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    certificates = await asyncio.to_thread(tls.make, folder)
    azurite = await asyncio.to_thread(Azurite, ACCOUNT, key, certificates.cert, certificates.key, folder)
    runners: list[web.AppRunner] = []
    proxy: Proxy | None = None
    try:
        app = App(world)
        emulator = str(folder / "emulator.sock")
        site = web.UnixSite(await _runner(app.application(), runners), emulator, ssl_context=certificates.context())
        await site.start()
        control = await _listen(app.control(), runners, port=control_port)
        blob = Blob(world, ACCOUNT, key, await asyncio.to_thread(azurite.port))
        world.blob = blob

        def port_or_socket(kind: str) -> int | str:
            return blob.port if kind == "blob" and not world.switches["blobs_recorded"] else emulator

        proxy = Proxy(port_or_socket, world.proxy_secret)
        await proxy.start()
        world.proxy = proxy
        world.environ = environ_of(world, certificates, proxy.port)
        await world.reset()
        yield (
            world,
            {
                "environ": world.environ,
                "control": f"http://127.0.0.1:{control}/{world.control_secret}",
                "subscription": world.subscription,
                "resource_group": world.resource_group,
                "workspace": world.workspace,
                "tenant": world.tenant,
            },
        )
    finally:
        await world.close()
        if proxy is not None:
            await proxy.close()
        if world.blob is not None:
            await world.blob.close()
        for runner in runners:
            await runner.cleanup()
        await asyncio.to_thread(azurite.close)


async def _listen(app: web.Application, runners: list[web.AppRunner], port: int = 0) -> int:
    runner = await _runner(app, runners)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return int(runner.addresses[0][1])


async def _runner(app: web.Application, runners: list[web.AppRunner]) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, auto_decompress=False)
    await runner.setup()
    runners.append(runner)
    return runner


def _shell(facts: Mapping[str, Any]) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in facts["environ"].items()]
    where = " ".join(
        f"--{option} {facts[name]}"
        for option, name in (
            ("subscription", "subscription"),
            ("resource-group", "resource_group"),
            ("workspace", "workspace"),
        )
    )
    return "\n".join([*lines, f"# in a notebook: %aml_compute connect {where}", f"# control: {facts['control']}"])


def _explained(facts: Mapping[str, Any], folder: Path) -> str:
    """Prepare `folder` for interactive use, and return instructions.

    Runs and targets of the sandbox stay below `folder`; the notebooks are copies, with a ``config.json`` beside them.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # it may be left from an earlier version
    notebooks = folder / "notebooks"
    notebooks.mkdir(exist_ok=True)
    for notebook in (Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"):
        if not (notebooks / notebook.name).exists():
            shutil.copy2(notebook, notebooks)
    names = {"subscription_id": facts["subscription"], "resource_group": facts["resource_group"]}
    (notebooks / "config.json").write_text(json.dumps({**names, "workspace_name": facts["workspace"]}, indent=2) + "\n")
    environ = {**facts["environ"], "AMLTRAIN_HOME": str(folder / "state"), "AMLTRAIN_NOTEBOOKS": str(notebooks)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environ.items()]
    _write_private(folder / "environ.sh", "\n".join(lines) + "\n")
    shown = os.path.relpath(folder)
    return f"""
A simulated Azure ML workspace is running here. Press Ctrl-C to stop it. It needs no account and costs nothing.

1. In another terminal:    source {shown}/environ.sh && make lab
                           (repeat after each start: the passwords change)
2. In a notebook there:    %load_ext jupyter_amltrain
                           %aml_compute connect
   or open 03_azure_cluster.ipynb and run it from the top.

Fault injection: {facts["control"]} (azureml_emulator/control.py)."""


def _write_private(path: Path, text: str) -> None:
    """Replace the file, so that processes that have the old one open cannot read the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent)  # 0600
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(name, path)


async def _serve(port: int, describe: Callable[[Mapping[str, Any]], str], stay: bool) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if not stay:
        # A thread, because event loops cannot watch files and terminals on all platforms.
        threading.Thread(target=_await_end, args=(loop, stopped), daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="amltrain-azure-") as folder:
        async with running(Path(folder), port) as (_, facts):
            print(describe(facts), flush=True)
            await stopped.wait()


def _await_end(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(stopped.set)


def _has_input() -> bool:
    """Whether standard input is a terminal or a pipe, whose end means something."""
    try:
        return os.isatty(0) or stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:
        return False


def main(arguments: list[str]) -> int:
    """Run the sandbox until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m azureml_emulator.sandbox", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port of the control API (default: a free one)")
    parser.add_argument("--print-env", action="store_true", help="print shell lines to source instead of JSON")
    parser.add_argument(
        "--explain",
        nargs="?",
        const="build/azure-sandbox",
        metavar="FOLDER",
        help="print instructions for interactive use",
    )
    parser.add_argument("--stay", action="store_true", help="keep running after stdin is closed")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    # Connections that break during TLS are expected with fault injection.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    describe: Callable[[Mapping[str, Any]], str] = _shell if args.print_env else json.dumps
    if args.explain:
        describe = functools.partial(_explained, folder=Path(args.explain).absolute())
    # A person's sandbox in the background (nohup) has no input: it stays until it is killed.
    asyncio.run(_serve(args.port, describe, args.stay or bool(args.explain and not _has_input())))
    if args.explain:
        print("The sandbox has ended: its workspace and certificate are gone.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
