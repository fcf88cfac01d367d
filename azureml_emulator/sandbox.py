"""The whole emulated Azure in one process tree: ``python -m azureml_emulator.sandbox [--port 0] [--print-env]``.

Prints one JSON line when ready, ``{"environ", "control", "subscription", "resource_group", "workspace", "tenant"}``
(with ``--print-env`` shell lines instead, with ``--explain`` words for a person), and ends with its stdin, SIGTERM or
Ctrl-C, taking its children with it.
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
#: Time constants that are shorter than a real service wants.
SHORT = {"AMLTRAIN_AZURE_POLL": "0.1", "AMLTRAIN_FORWARD_PERIOD": "0.5"}


def environ_of(world: World, certificates: tls.Certificates, proxy: int) -> dict[str, str]:
    """What leads a client here, sign-in included."""
    through = f"http://{USER}:{world.proxy_secret}@127.0.0.1:{proxy}"
    aside = "127.0.0.1,localhost"
    return {
        "HTTPS_PROXY": through,
        "https_proxy": through,
        "NO_PROXY": aside,
        "no_proxy": aside,
        "REQUESTS_CA_BUNDLE": str(certificates.bundle),
        "SSL_CERT_FILE": str(certificates.bundle),
        "AZURE_TENANT_ID": world.tenant,
        "AZURE_CLIENT_ID": world.client,
        "AZURE_CLIENT_SECRET": world.client_secret,
        **SHORT,
    }


@contextlib.asynccontextmanager
async def running(folder: Path, control_port: int = 0) -> AsyncIterator[tuple[World, dict[str, Any]]]:
    """Everything, started, with files in `folder`, which is private; the second value is what `main` prints."""
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

        def place_of(kind: str) -> int | str:
            return blob.port if kind == "blob" and not world.switches["blobs_recorded"] else emulator

        proxy = Proxy(place_of, world.proxy_secret)
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
    """Fill `folder` with all that a person needs, and say how to go there.

    Runs and targets of practice stay below `folder`; the notebooks are copies, with a ``config.json`` beside them.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # one of an earlier version
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
An Azure ML for practice runs on this machine until Ctrl-C. It asks for no account and costs nothing.

1. In another terminal:    source {shown}/environ.sh && make lab
                           (again after each start: its passwords are new)
2. There, in a notebook:   %load_ext jupyter_amltrain
                           %aml_compute connect
   or open 03_azure_cluster.ipynb and run it from the top.

Fault injection: {facts["control"]} (azureml_emulator/control.py)."""


def _write_private(path: Path, text: str) -> None:
    """Replace the file, so that nobody who has the old one open reads the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent)  # 0600
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(name, path)


async def _serve(port: int, shown: Callable[[Mapping[str, Any]], str], stay: bool) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    if not stay:
        # A thread, because stdin may be a file or a terminal, which event loops cannot watch everywhere.
        threading.Thread(target=_await_end, args=(loop, over), daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="amltrain-azure-") as folder:
        async with running(Path(folder), port) as (_, facts):
            print(shown(facts), flush=True)
            await over.wait()


def _await_end(loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(over.set)


def main(arguments: list[str]) -> int:
    """Run until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m azureml_emulator.sandbox", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port of the control door (default: a free one)")
    parser.add_argument("--print-env", action="store_true", help="print shell lines to source instead of JSON")
    parser.add_argument("--explain", nargs="?", const="build/azure-sandbox", metavar="FOLDER", help="say how to use it")
    parser.add_argument("--stay", action="store_true", help="do not end with stdin")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    # Clients that break off in the middle of TLS are what faults are for.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    shown: Callable[[Mapping[str, Any]], str] = _shell if chosen.print_env else json.dumps
    if chosen.explain:
        shown = functools.partial(_explained, folder=Path(chosen.explain).absolute())
    asyncio.run(_serve(chosen.port, shown, chosen.stay))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
