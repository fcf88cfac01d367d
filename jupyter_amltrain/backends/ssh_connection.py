"""One SSH connection to a machine, and the agent's server at its other end. Loop thread only.

The connection is made at the first request and made again after a loss, with growing pauses; requests in between fail
at once with the reason of the last attempt. The agent is sent as one file, named by its content.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import random
import shlex
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent.serve import MAX_FRAME_BYTES
from jupyter_amltrain.errors import AmlTrainError, TargetError, TargetUnreachable
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.text import bytes_text

if TYPE_CHECKING:
    import asyncssh

#: Seconds: for a connection, for the agent's start, for a reply; between two keep-alives, of which three may be lost.
CONNECT_TIMEOUT_S, START_TIMEOUT_S, REPLY_TIMEOUT_S, KEEPALIVE_S = 15.0, 60.0, 60.0, 10.0
#: Pauses after failed attempts: the first, and the longest (seconds).
MIN_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
#: Code of the error of a request that was sent and has no answer.
LOST = "ssh.lost"
#: Bytes after which the agent's server speaks: a login shell may print a banner before.
_MARK = b"\x01amltrain\x01"
_HEAD = struct.Struct("!II")
#: Maximum bytes that a login shell may print before.
_MAX_BANNER_BYTES = 1 << 20
#: Starts the agent's server; runs on Python 2.7 and 3, where it reports a version that is too old.
_BOOT = """
import sys, os, json, hashlib
def say(**f):
    o = getattr(sys.stdout, 'buffer', sys.stdout); o.write(MARK + json.dumps(f).encode() + b'\\n'); o.flush()
i = getattr(sys.stdin, 'buffer', sys.stdin)
q = json.loads(i.readline().decode())
if sys.version_info < (3, 8):
    say(old='.'.join(map(str, sys.version_info[:2]))); sys.exit(0)
try:
    r = q['home'] or os.environ.get('AMLTRAIN_HOME') or os.path.join(
        os.environ.get('XDG_STATE_HOME') or os.path.expanduser('~/.local/state'), 'amltrain')
    h = os.path.abspath(os.path.expanduser(r))
    a = os.path.join(h, 'agent', q['name'])
    for d in ('', 'agent', 'runs', 'staging', 'logs'):
        os.makedirs(os.path.join(h, d), mode=0o700, exist_ok=True)
    have = b''
    if os.path.exists(a):
        with open(a, 'rb') as f: have = f.read()
    if hashlib.sha256(have).hexdigest() != q['digest']:
        say(need=1)
        b = b''
        while len(b) < q['size']:
            p = i.read(q['size'] - len(b))
            if not p: sys.exit(0)
            b += p
        t = a + '.%d' % os.getpid()
        with os.fdopen(os.open(t, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'wb') as f: f.write(b)
        os.replace(t, a)
    say(home=h, agent=a, user_home=os.path.expanduser('~'), python=sys.executable)
except OSError as e:
    say(oserror=e.strerror or str(e), path=str(e.filename or ''))
    sys.exit(0)
sys.path.insert(0, a)
from amltrain_agent.serve import main
main(h, a)
"""


class SshConnection:
    """Requests to the agent's server of one machine.

    Parameters
    ----------
    root
        The state root of this kernel, where the agent's file is built.
    """

    def __init__(self, target: SshTarget, loop: LoopThread, root: Path) -> None:
        self.target = target
        self._loop, self._root = loop, root
        self._lock = asyncio.Lock()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._process: asyncssh.SSHClientProcess[bytes] | None = None
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self._number = 0
        self._reading: asyncio.Task[None] | None = None
        self._failures = 0
        self._next_attempt = 0.0
        self._error: AmlTrainError | None = None
        #: Monotonic second of the last bytes of the agent's server.
        self.heard_at = 0.0
        #: This end has closed it for good.
        self.closed = False
        #: Facts about the machine, of the last start of its server: ``home, user_home, agent, python, ...``.
        self.facts: dict[str, str] = {}

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._process is not None

    @property
    def is_new(self) -> bool:
        """Whether there was no attempt to connect yet that has ended."""
        return not self.facts and not self._failures

    @property
    def host_key(self) -> str:
        """Fingerprint of the key that the machine has shown; empty without a connection."""
        key = None if self._connection is None else self._connection.get_server_host_key()
        return "" if key is None else str(key.get_fingerprint())

    @property
    def address(self) -> str:
        """Address of the machine, or of the machine in between; empty without a connection."""
        peer = None if self._connection is None else self._connection.get_extra_info("peername")
        return str(peer[0]) if peer and not self.target.jump else ""

    async def request(
        self, op: str, data: bytes = b"", timeout: float = REPLY_TIMEOUT_S, **fields: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request of ``agent/serve.py`` and return its reply and data.

        Raises
        ------
        TargetUnreachable
            The machine does not answer.
        OSError
            The other machine's error.
        """
        import asyncssh

        await self.connect()
        process = self._process
        assert process is not None
        self._number += 1
        number = self._number
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            text = json.dumps({"id": number, "op": op, **fields}, separators=(",", ":")).encode()
            if max(len(text), len(data)) > MAX_FRAME_BYTES:  # its server would end
                raise TargetError(
                    f"The request to {self.target.name} has {bytes_text(max(len(text), len(data)))}.",
                    hint="Put large values into a file that the script reads, and send it with: --source DIR",
                    code="ssh.size",
                )
            try:
                process.stdin.write(_HEAD.pack(len(text), len(data)) + text + data)
                await process.stdin.drain()
                reply, found = await asyncio.wait_for(future, timeout)
            except asyncio.TimeoutError:
                self._lose(f"no answer within {timeout:.0f} s")
                raise self._unreachable(f"no answer within {timeout:.0f} s") from None
            except (OSError, asyncssh.Error) as error:  # BrokenPipeError; ConnectionLost while it waits for space
                raise self._unreachable(str(error) or type(error).__name__) from error
        finally:
            self._waiting.pop(number, None)
        if "oserror" in reply:
            raise OSError(*reply["oserror"])
        return reply, found

    async def connect(self) -> None:
        """Connect if there is no connection.

        Raises
        ------
        TargetUnreachable, AuthenticationError, TargetError
            The machine does not answer, does not accept the login, or cannot run the agent.
        """
        async with self._lock:
            if self._process is not None:
                return
            if self._error is not None and time.monotonic() < self._next_attempt:
                raise self._error
            try:
                await self._open()
            except AmlTrainError as error:
                self._failures += 1
                pause = min(MAX_PAUSE_S, MIN_PAUSE_S * 2 ** (self._failures - 1))
                self._next_attempt = time.monotonic() + pause * random.uniform(0.7, 1.3)
                self._error = error
                await self._close_all()
                raise
            self._failures, self._error = 0, None

    async def ssh(self) -> asyncssh.SSHClientConnection:
        """Return the connection itself, for what SSH does without the agent.

        Raises
        ------
        TargetUnreachable
            The machine does not answer.
        """
        await self.connect()
        assert self._connection is not None
        return self._connection

    def retry_soon(self) -> None:
        """Let the next request try again at once, because a user asks."""
        self._next_attempt = 0.0

    async def close(self) -> None:
        """End the connection; runs continue."""
        self.closed = True
        self._lose("the connection was closed")
        await self._close_all()

    # ---- connect

    async def _open(self) -> None:
        import asyncssh

        from jupyter_amltrain.backends.ssh_login import explained, options_of

        self._connection = self._process = None
        target = self.target
        options, known = await self._loop.offload(options_of, target)
        for may_repeat in (True, False):
            try:
                connecting = asyncssh.connect(
                    target.destination,
                    client_factory=known.client,
                    keepalive_interval=KEEPALIVE_S,
                    keepalive_count_max=3,
                    **options,
                )
                self._connection = await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
                break
            except (OSError, asyncssh.Error, asyncio.TimeoutError, ValueError) as error:
                # sshd drops some of many connections at once (MaxStartups), and a link may return just now.
                is_dropped = isinstance(error, ConnectionError | asyncssh.ConnectionLost)
                if not (may_repeat and is_dropped) or isinstance(error, ConnectionRefusedError):
                    raise explained(error, target, known) from error
            await asyncio.sleep(MIN_PAUSE_S * random.uniform(0.7, 1.3))
        assert self._connection is not None
        try:
            await asyncio.wait_for(self._start_server(self._connection), START_TIMEOUT_S)
        except (OSError, asyncssh.Error, asyncio.TimeoutError) as error:
            raise explained(error, target, known) from error
        except json.JSONDecodeError as error:
            raise self._unreachable("its agent answered with something else than JSON") from error

    async def _start_server(self, connection: asyncssh.SSHClientConnection) -> None:
        from jupyter_amltrain.backends.agent_zipapp import build

        target = self.target
        file = await self._loop.offload(build, self._root)
        code = await self._loop.offload(file.read_bytes)
        boot = base64.b64encode(_BOOT.replace("MARK", repr(_MARK)).encode()).decode()
        # One line of sh, whatever the login shell is. The agent's interpreter need not be that of the jobs.
        find = "for p in python3 python; do command -v $p >/dev/null 2>&1 && break; done; "
        start = f"exec $p -u -c \"import base64;exec(base64.b64decode('{boot}'))\""
        process = await connection.create_process(f"sh -c {shlex.quote(find + start)}", encoding=None)
        digest = hashlib.sha256(code).hexdigest()
        # By these bytes, and not by the sources, which another kernel may have compiled to other ones: a file there
        # that does not have the digest of its name is damaged, and no running agent needs it.
        request = {"name": f"{digest[:16]}.pyz", "digest": digest, "size": len(code), "home": target.workdir}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        facts = await self._hear(process)
        if "need" in facts:
            process.stdin.write(code)
            facts = await self._hear(process)
        if "old" in facts:
            raise TargetError(
                f"{target.name} has Python {facts['old']}; its agent needs Python 3.8 or newer.",
                hint="Install one there, for example: sudo apt-get install python3",
                code="ssh.python",
            )
        if "oserror" in facts:
            raise TargetError(
                f"Cannot write {facts['path'] or 'the state folder'} on {target.name}: {facts['oserror']}.",
                hint="Choose another folder there: --workdir DIR",
                code="ssh.not_writable",
            )
        self.facts = {name: str(value) for name, value in facts.items()}
        self.heard_at = time.monotonic()
        self._process = process
        self._reading = self._loop.start(self._read(process), f"read {target.name}")

    async def _hear(self, process: asyncssh.SSHClientProcess[bytes]) -> dict[str, Any]:
        """Return what the boot code says; a banner before it is skipped."""
        heard = b""
        while _MARK not in heard or b"\n" not in heard.partition(_MARK)[2]:
            part = await process.stdout.read(1 << 16)
            heard += part
            if not part or len(heard) > _MAX_BANNER_BYTES:
                if not part:
                    heard += await process.stderr.read(4096)
                    await process.wait_closed()
                raise self._no_server(process.exit_status, heard)
        line = heard.partition(_MARK)[2].partition(b"\n")[0]
        facts: dict[str, Any] = json.loads(line)
        return facts

    def _no_server(self, status: int | None, output: bytes) -> TargetError:
        target = self.target
        if status == 127:
            return TargetError(
                f"{target.name} has no Python: its agent needs Python 3.8 or newer.",
                hint="Install it there, for example: sudo apt-get install python3",
                code="ssh.no_python",
            )
        last = output.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {status}"]
        return TargetError(
            f"The agent does not start on {target.name}: {last[0][:300]}.",
            hint=f"Try there: ssh {target.destination} python3 -V",
            code="ssh.agent",
        )

    # ---- replies

    async def _read(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        why = "the connection was lost"
        try:
            while True:
                size, more = _HEAD.unpack(await self._receive(process, _HEAD.size))
                reply = json.loads(await self._receive(process, size))
                data = await self._receive(process, more)
                future = self._waiting.get(reply.get("id"))
                if future is not None and not future.done():
                    future.set_result((reply, data))
        except asyncio.IncompleteReadError:
            pass
        except Exception as error:  # asyncssh's errors and OSError
            why = str(error) or type(error).__name__
        finally:
            if self._process is process:
                self._lose(why)

    async def _receive(self, process: asyncssh.SSHClientProcess[bytes], size: int) -> bytes:
        """Return the next `size` bytes; notes when some have come."""
        data = bytearray()
        while len(data) < size:
            part = await process.stdout.read(size - len(data))
            if not part:
                raise asyncio.IncompleteReadError(bytes(data), size)
            self.heard_at = time.monotonic()
            data += part
        return bytes(data)

    def _lose(self, why: str) -> None:
        """The connection is gone: let every request fail."""
        connection, self._connection, self._process = self._connection, None, None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._unreachable(why))
        if connection is not None:
            connection.abort()

    async def _close_all(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()
        connection, self._connection, self._process = self._connection, None, None
        if connection is not None:
            connection.abort()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(connection.wait_closed(), 2.0)

    def _unreachable(self, why: str) -> TargetUnreachable:
        return TargetUnreachable(
            f"Cannot reach {self.target.name!r} ({self.target.destination}): {why}. Its runs continue.",
            hint=f"Try again: %aml_compute test {self.target.whole_name}",
            code=LOST,
        )
