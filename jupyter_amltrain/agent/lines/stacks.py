"""Stacks of a job's Python threads, in lines of the user's own files.

``supervise/job_hooks.py`` puts this file into a job's Python as ``amltrain_stacks.py``. Frames of libraries count for
the user's line that called them; what such a call waits in becomes one word. It keeps no frame.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

import os
import sys

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

#: Frames of a thread that are read, innermost first.
MAX_FRAMES = 1000
#: Nodes of the tree of stacks, and files; further lines count for the line that called them.
MAX_NODES, MAX_FILES = 3000, 300
#: Longest name of a function, a thread or a file.
MAX_NAME, MAX_PATH = 80, 400
#: The event loop has nothing to run.
LOOP = "event loop"
#: File and function of a library -> what a thread waits in there. The outermost one of a call counts.
_WAITS = {
    "threading.py": {"wait": "lock", "acquire": "lock", "join": "thread", "_wait_for_tstate_lock": "thread"},
    "queue.py": {"get": "queue", "put": "queue", "join": "queue"},
    "queues.py": {"get": "queue", "put": "queue"},
    "synchronize.py": {"__enter__": "lock", "wait": "lock"},
    "connection.py": dict.fromkeys(("recv", "recv_bytes", "_recv", "_recv_bytes", "poll", "_poll", "wait"), "pipe"),
    "selectors.py": {"select": "socket"},
    "base_events.py": {"_run_once": LOOP},
    "socket.py": dict.fromkeys(("readinto", "accept", "create_connection", "getaddrinfo"), "socket"),
    "ssl.py": dict.fromkeys(("read", "recv", "recv_into", "do_handshake"), "socket"),
    "subprocess.py": dict.fromkeys(("wait", "_wait", "_try_wait", "communicate", "_communicate"), "process"),
    "popen_fork.py": {"wait": "process", "poll": "process"},
    "popen_spawn_posix.py": {"wait": "process", "poll": "process"},
    "_base.py": {"result": "future", "wait": "future", "as_completed": "future"},
    "pool.py": {"wait": "pool", "get": "pool", "next": "pool"},
    "dataloader.py": {"_try_get_data": "DataLoader", "_get_data": "DataLoader"},
    "streams.py": {"synchronize": "synchronize"},
    "__init__.py": {"synchronize": "synchronize"},
    "distributed_c10d.py": dict.fromkeys(
        ("all_reduce", "barrier", "broadcast", "all_gather", "reduce_scatter", "recv", "all_to_all", "gather",
         "all_gather_into_tensor", "reduce_scatter_tensor", "monitored_barrier"), "other ranks",
    ),
}  # fmt: skip


def text_of(value: "Any") -> str:
    """Return a value as a JSON string; the module json is not imported into the user's program."""
    parts = []
    for one in str(value):
        code = ord(one)
        if 32 <= code < 127 and one not in '"\\':
            parts.append(one)
        elif code < 0x10000:
            parts.append("\\u%04x" % code)
        else:
            code -= 0x10000
            parts.append("\\u%04x\\u%04x" % (0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF)))
    return '"%s"' % "".join(parts)


class Stacks:
    """The tree of the lines that were seen, from the outermost line of a thread to the innermost.

    Parameters
    ----------
    own
        Folder with the agent's own files.

    Attributes
    ----------
    new
        Lines of the file that describe new files and nodes; the caller removes them.
    """

    def __init__(self, own: str) -> None:
        self._library = os.path.dirname(os.__file__) + "/"
        self._own = own + "/"
        searched = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        self._roots: List[str] = [os.getcwd(), *(os.path.abspath(one) for one in searched if one)]
        self._has_main = False
        self._files: Dict[str, int] = {}
        self._nodes: Dict[Tuple[int, int, int, str], int] = {}
        self._count = 0
        self.new: List[str] = []

    def read(self, frame: "Any") -> "Tuple[int, str]":
        """Return the node of a thread's innermost line of the user's, 0 for none, and what it waits in."""
        if not self._has_main:
            self._add_main()
        entries: List[Tuple[int, int, str]] = []
        word, files, count = "", self._files, 0
        while frame is not None and count < MAX_FRAMES:
            count += 1
            code = frame.f_code
            path = code.co_filename
            number = files.get(path)
            if number is None:
                number = self._file(path)
            if number >= 0:
                entries.append((number, frame.f_lineno or 0, code.co_name))
            elif not entries:
                if word == LOOP and code.co_name == "run_until_complete":
                    entries += self._awaited(frame.f_locals.get("future"))
                else:
                    word = _WAITS.get(path[path.rfind("/") + 1 :], {}).get(code.co_name, word)
            frame = frame.f_back
        return (self._node(entries), word) if entries else (0, word)

    def _awaited(self, task: "Any") -> "List[Tuple[int, int, str]]":
        """Return the lines at which a task of asyncio waits, innermost first."""
        found: List[Tuple[int, int, str]] = []
        waiting: Any = getattr(task, "get_coro", lambda: None)()
        for _ in range(100):
            frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
            if frame is None:
                break
            path = frame.f_code.co_filename
            number = self._files.get(path)
            number = self._file(path) if number is None else number
            if number >= 0:
                found.append((number, frame.f_lineno or 0, frame.f_code.co_name))
            waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
        found.reverse()
        return found

    def _node(self, entries: "List[Tuple[int, int, str]]") -> int:
        node, last = 0, len(entries) - 1
        inner = {entry: at for at, entry in zip(range(last, -1, -1), reversed(entries))} if last else {}
        for at in range(last, -1, -1):
            entry = entries[at]
            if last and inner[entry] != at:
                continue  # of a recursion the innermost call counts
            key = (node, *entry)
            known = self._nodes.get(key)
            if known is None:
                if self._count >= MAX_NODES:
                    break
                self._count = known = self._nodes[key] = self._count + 1
                facts = (known, node, entry[0], entry[1], text_of(entry[2][:MAX_NAME]))
                self.new.append('["n",%d,%d,%d,%d,%s]' % facts)
            node = known
        return node

    def _add_main(self) -> None:
        path = getattr(sys.modules.get("__main__"), "__file__", None)
        if isinstance(path, str):
            self._has_main = True
            folder = os.path.dirname(os.path.abspath(path))
            for one in (folder, os.path.realpath(folder)):
                if one not in self._roots:
                    self._roots.append(one)
            for name in [name for name, number in self._files.items() if number < 0]:
                del self._files[name]

    def _file(self, path: str) -> int:
        """Return the number of a user's file; -1 for one of a library."""
        known = self._files
        if len(known) >= 20_000:
            return -1
        whole = path if path.startswith("/") else os.path.abspath(path)
        number = -1
        if self._is_own(path, whole) and len(known) - list(known.values()).count(-1) < MAX_FILES:
            number = max(known.values(), default=-1) + 1
            self.new.append('["f",%d,%s]' % (number, text_of(whole[-MAX_PATH:])))
        known[path] = number
        return number

    def _is_own(self, path: str, whole: str) -> bool:
        if path.startswith("<") or "/site-packages/" in whole or "/dist-packages/" in whole:
            return False
        if whole.startswith((self._library, self._own)):
            return False
        return "/ipykernel_" in whole or any(root == "/" or whole.startswith(root + "/") for root in self._roots)
