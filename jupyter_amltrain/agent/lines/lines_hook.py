"""Hook in a job's Python: a thread that samples the stacks of the others, and writes how long each line took.

``supervise/job_hooks.py`` puts this file into a job's Python as ``amltrain_lines.py``, and ``supervise/import_hook.py``
calls :func:`start` at the end of the start of each Python of the job. Nothing that goes wrong here may reach the
script: then the lines are missing.

What makes the shares true:

* The moments of the samples are random and do not depend on what the script does. A sample that comes late, because
  a native function kept the interpreter's lock, counts for all moments that have passed.
* While one thread runs, it gives the lock to this one after 0.2 ms in place of 5 ms: else the end of a short burst of
  Python would count for what follows it.
* Each thread's processor clock is read a millisecond before the sample, too: so working is told from waiting.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Key = Tuple[int, int, str]

#: File in that folder with the last readings of the run's GPUs (``telemetry/line_gpus.py``).
GPUS = "gpus"
#: Seconds since the start -> mean seconds between two samples.
_PERIODS = ((60.0, 0.025), (600.0, 0.05), (3600.0, 0.1), (float("inf"), 0.2))
#: Seconds since the start -> seconds that one line of the file is about.
_WINDOWS = ((0.8, 0.3), (4.0, 1.0), (600.0, 2.0), (3600.0, 10.0), (float("inf"), 60.0))
_MAX_WINDOW_S = 900.0
#: Seconds before a sample in which the processor clocks of the threads are compared.
_CLOCK_S = 0.001
#: Largest part of one processor's time that this thread takes.
_MAX_PRICE = 0.004
#: Seconds after which a thread that runs gives the interpreter's lock to another one: Python's, and while only
#: this thread wants it.
_SWITCH_S, _FAST_SWITCH_S = 0.005, 0.0002
#: Bytes of all files of a run in a day, and the part of them that is there from the start.
_DAY_BYTES, _FIRST_PART = 900_000, 0.1
_MAX_FILES, _MAX_ROWS, _MAX_PENDING_BYTES = 64, 60, 1 << 16
#: Threads of one process that are told apart, and beyond which the processor clocks are read once.
_MAX_THREADS = 64
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "AMLTRAIN_RANK")

_lines: "Optional[_Lines]" = None


def start(folder: str, load: "Callable[[str], Dict[str, Any]]") -> None:
    """Begin to sample, if this is the main interpreter of a process.

    Parameters
    ----------
    folder
        Folder for the file of this process.
    load
        Returns the names of a module beside this file.
    """
    global _lines
    import _signal

    # A subinterpreter, whose start runs this too, must have no thread at its end.
    _signal.signal(_signal.SIGUSR2, _signal.getsignal(_signal.SIGUSR2))
    import atexit

    _lines = lines = _Lines(folder, load("amltrain_stacks"))
    atexit.register(lines.close)
    os.register_at_fork(before=lines.before_fork, after_in_parent=lines.after_fork, after_in_child=lines.in_child)
    lines.begin()


def _of(steps: "Tuple[Tuple[float, float], ...]", age: float) -> float:
    return next(value for limit, value in steps if age < limit)


class _Lines:
    """The samples of this process."""

    def __init__(self, folder: str, stacks: "Dict[str, Any]") -> None:
        self._folder = folder
        self._modules = stacks
        self._text_of = stacks["text_of"]
        self._random = int(time.time_ns()) & 0xFFFFFFFF
        self._is_off = False
        self._reset()

    def _reset(self) -> None:
        """Begin anew: at the start, and in a process that was forked."""
        hooks = os.path.dirname(__file__)
        self._stacks = self._modules["Stacks"](os.path.dirname(hooks))
        self._pid = os.getpid()
        self._main = _thread.get_ident()
        self._idents = [self._main]
        self._stop: Any = None
        self._done: Any = None
        self._started = self._window_start = time.monotonic()
        self._clock_offset = time.time() - time.monotonic()
        self._sums: Dict[Key, List[float]] = {}
        self._pending: Dict[Key, float] = {}
        self._threads: Dict[Tuple[int, str], int] = {}
        self._new_threads: List[str] = []
        self._path = ""
        self._data = b""
        self._written = 0
        self._files = 1
        self._flushes = 0
        self._slower = self._longer = 1.0
        self._gpu_read = self._gpu_time = 0.0
        self._memory = self._memory_due = 0.0
        self._has_lines = False

    # ---- the thread

    def begin(self) -> None:
        """Start the thread, unless it runs."""
        if self._stop is not None or self._is_off:
            return
        stop, done = _thread.allocate_lock(), _thread.allocate_lock()
        stop.acquire()
        done.acquire()
        self._stop, self._done = stop, done
        try:
            _thread.start_new_thread(self._run, (stop, done))
        except Exception:  # no further thread
            self._stop = None
            self._is_off = True

    def _end(self, timeout: float) -> bool:
        """End the thread; return whether it has ended."""
        stop, done, self._stop = self._stop, self._done, None
        if stop is None:
            return True
        stop.release()
        return bool(done.acquire(True, timeout))

    def _run(self, stop: "Any", done: "Any") -> None:
        try:
            self._sample(stop)
        except Exception:
            self._is_off = True
        finally:
            if sys.getswitchinterval() == _FAST_SWITCH_S:
                sys.setswitchinterval(_SWITCH_S)
            done.release()

    def _sample(self, stop: "Any") -> None:
        own = _thread.get_ident()
        due = now = time.monotonic()
        price = time.thread_time()
        gap = self._gap(now)
        while not self._is_off:
            if stop.acquire(True, max(0.0, due + gap - _CLOCK_S - now)):
                return
            before, clocks = time.monotonic(), self._clocks()
            if stop.acquire(True, _CLOCK_S):
                return
            now = time.monotonic()
            weight, lateness = 0.0, now - due - gap
            while due + gap <= now:
                due += gap
                weight += gap
                gap = self._gap(now)
                if weight > 10.0:
                    weight, due = weight + now - due, now
            if weight:
                self._add(own, weight, now - before, clocks)
            self._set_switch(lateness)
            if now - self._window_start >= _of(_WINDOWS, now - self._started) * self._longer:
                new_price = time.thread_time()
                self._limit((new_price - price) / (now - self._window_start))
                price = new_price
                self.flush()
            now = time.monotonic()

    def _gap(self, now: float) -> float:
        """Return the seconds to the next sample: random, so that no period of the script is in step with it."""
        self._random = (self._random * 1664525 + 1013904223) & 0xFFFFFFFF
        period = max(2 * _CLOCK_S, _of(_PERIODS, now - self._started) * self._slower)
        return period * (0.5 + self._random / 0xFFFFFFFF)

    def _set_switch(self, lateness: float) -> None:
        """Let a thread that runs alone give way soon; not where a native function keeps the lock for long."""
        now = sys.getswitchinterval()
        if now in (_SWITCH_S, _FAST_SWITCH_S):
            wanted = _FAST_SWITCH_S if len(self._idents) == 1 and lateness < 0.02 else _SWITCH_S
            if now != wanted:
                sys.setswitchinterval(wanted)

    def _limit(self, price: float) -> None:
        """Sample less often where a sample is expensive, as with deep stacks."""
        self._slower = min(10.0, max(1.0, self._slower * min(2.0, price / _MAX_PRICE)))

    # ---- one sample

    def _clocks(self) -> "Dict[int, float]":
        """Return the processor time of the threads of the last sample, as far as it is known."""
        known = getattr(sys.modules.get("threading"), "_active", {})
        found: Dict[int, float] = {}
        for ident in self._idents[:_MAX_THREADS]:
            number = self._pid if ident == self._main else getattr(known.get(ident), "native_id", None)
            if number:
                try:  # the clock of a thread by its number, as the C library makes it; of an ended one an error
                    found[ident] = time.clock_gettime((~number << 3) | 6)
                except (OSError, AttributeError, OverflowError):
                    pass
        return found

    def _add(self, own: int, weight: float, seconds: float, before: "Dict[int, float]") -> None:
        clocks, read, main = self._clocks(), self._stacks.read, self._main
        frames = sys._current_frames()
        frames.pop(own, None)
        found = [(ident, *read(frame)) for ident, frame in frames.items()]
        frames.clear()  # before anything that may wait: nobody's variables live longer
        self._idents = [ident for ident, _, _ in found]
        for ident, node, word in found:
            if not node and ident != main:
                continue
            self._has_lines = self._has_lines or node > 0
            used = clocks.get(ident, 0.0) - before.get(ident, 0.0) if ident in before else 0.0
            used = min(1.0, max(0.0, used / seconds))
            key = (self._thread(ident), node, "" if used > 0.5 else word)
            sums = self._sums.get(key)
            if sums is None:
                sums = self._sums[key] = [0.0] * 5
            sums[0] += weight
            sums[1] += weight * used
            self._pending[key] = self._pending.get(key, 0.0) + weight
            if ident == main:
                self._add_memory(sums)
        self._add_gpus()

    def _thread(self, ident: int) -> int:
        if ident == self._main:
            return 0
        thread = getattr(sys.modules.get("threading"), "_active", {}).get(ident)
        name = str(getattr(thread, "_name", "") or "thread")
        key = (ident, name)
        number = self._threads.get(key)
        if number is None:
            number = min(len(self._threads) + 1, _MAX_THREADS)
            self._threads[key] = number
            if number == len(self._threads):
                name = name[:80] if number < _MAX_THREADS else "other threads"
                self._new_threads.append('["t",%d,%s]' % (number, self._text_of(name)))
        return number

    def _add_memory(self, sums: "List[float]") -> None:
        """Count the growth of the process's memory for the line of its main thread."""
        now = time.monotonic()
        if now < self._memory_due:
            return
        self._memory_due = now + 0.1
        data = _content("/proc/self/statm")
        pages = float(data.split()[1]) if data else 0.0
        if self._memory:
            sums[2] += (pages - self._memory) * 4.0
        self._memory = pages

    def _add_gpus(self) -> None:
        """Give the samples since the last reading of the GPUs their utilization."""
        now = time.monotonic()
        if now < self._gpu_read:
            return
        self._gpu_read = now + 0.5
        data = _content("%s/%s" % (self._folder, GPUS))
        if not data:
            self._gpu_read = now + 5.0
            self._pending.clear()
            return
        stamp, percent = (float(one) for one in data.split()[:2])
        if stamp <= self._gpu_time:
            if now - stamp > 5.0:
                self._pending.clear()
            return
        self._gpu_time = stamp
        if percent >= 0:
            for key, weight in self._pending.items():
                sums = self._sums.setdefault(key, [0.0] * 5)
                sums[3] += weight
                sums[4] += weight * percent
        self._pending.clear()

    # ---- the file

    def flush(self) -> None:
        """Write the window that ends now."""
        now = time.monotonic()
        begun, self._window_start = self._window_start, now
        sums, self._sums = self._sums, {}
        if not self._has_lines:  # a Python that runs no file of the user's
            return
        if not self._path and not self._open():
            return
        rows = sorted(sums.items(), key=lambda one: -one[1][0])
        text = [_row(key, values, self._text_of) for key, values in rows[:_MAX_ROWS]]
        rest: Dict[int, List[float]] = {}
        for (thread, _, _), values in rows[_MAX_ROWS:]:
            rest[thread] = [a + b for a, b in zip(rest.get(thread, [0.0] * 5), values)]
        text += [_row((thread, 0, "other"), values, self._text_of) for thread, values in rest.items()]
        window = '["w",%.2f,%.2f,[%s]]' % (begun + self._clock_offset, now + self._clock_offset, ",".join(text))
        new = [*self._stacks.new, *self._new_threads, window, ""]
        self._stacks.new, self._new_threads = [], []
        self._write("\n".join(new).encode("ascii", "replace"))
        self._flushes += 1
        age = now - self._started
        share = _DAY_BYTES / max(2, self._files) * (_FIRST_PART + (1 - _FIRST_PART) * age / 86400.0)
        length = _of(_WINDOWS, age) * self._longer
        if self._written > share and length < _MAX_WINDOW_S:
            self._longer *= 2.0
        elif self._written < share / 2 and self._longer > 1.0:
            self._longer /= 2.0

    def _open(self) -> bool:
        """Choose the file; return false where a run has enough of them."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if len(os.listdir(self._folder)) >= _MAX_FILES:
            self._is_off = True
            return False
        rank = next((os.environ[name] for name in _RANKS if os.environ.get(name, "").isdigit()), "0")
        self._path = "%s/%s-%d.jsonl" % (self._folder, rank[:6], self._pid)
        main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        facts = (self._text_of(self._name()), self._text_of(str(main)[-400:]), os.getppid())
        begun = self._started + self._clock_offset
        header = '["h",1,%d,%s,%.2f,%s,%s,%d]\n' % (self._pid, int(rank), begun, *facts)
        self._data = header.encode("ascii", "replace")
        return True

    def _name(self) -> str:
        """Return the name of this process among those of the job; empty for one that nothing names."""
        worker = getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_info", None)
        if worker is not None:
            return "DataLoader worker %s" % worker.id
        process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
        name = str(getattr(process, "_name", ""))
        return "" if name == "MainProcess" else name[:80]

    def _write(self, data: bytes) -> None:
        """Append to the file. It does not stay open: a script may close all descriptors, and open others."""
        self._data += data
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                count = os.write(handle, self._data)
            finally:
                os.close(handle)
            self._data = self._data[count:]
            self._written += count
            if self._flushes % 10 == 0:
                self._files = len(os.listdir(self._folder))
        except OSError:  # a full disk: the next time
            if len(self._data) > _MAX_PENDING_BYTES:
                self._is_off = True

    # ---- the life of the process

    def close(self) -> None:
        """Write the last window, at the end of Python."""
        try:
            if self._pid == os.getpid() and self._end(0.5) and not self._is_off:
                self._is_off = True
                self.flush()
        except Exception:
            pass

    def before_fork(self) -> None:
        """End the thread where Python warns of a fork of several threads."""
        try:
            if sys.version_info < (3, 12) or self._stop is None:
                return
            count = _thread_count()
            self._end(0.1)
            limit = time.monotonic() + 0.02
            while _thread_count() >= count and time.monotonic() < limit:
                time.sleep(0)
        except Exception:
            pass

    def after_fork(self) -> None:
        """Start the thread again. Python 3.13 and newer warn after this: there once the fork has returned."""
        try:
            if sys.version_info < (3, 13):
                self.begin()
            elif self._stop is None and not self._is_off and sys.getprofile() is None:
                sys.setprofile(self._begin_later)
        except Exception:
            pass

    def _begin_later(self, frame: "Any", event: str, arg: "Any") -> None:
        """Profile function that sees the first call or return outside of this file."""
        if frame.f_code.co_filename != __file__:
            sys.setprofile(None)
            self.begin()

    def in_child(self) -> None:
        """Sample a forked process, too, into a file of its own."""
        try:
            self._is_off = self._is_off or not os.path.isdir(os.path.dirname(self._folder))
            self._reset()
            self.begin()
        except Exception:
            pass


def _row(key: "Key", values: "List[float]", text_of: "Callable[[Any], str]") -> str:
    """Return ``[thread, node, word, wall ms, processor ms, growth of memory KiB, ms with GPU readings, percent]``."""
    wall, used, memory, gpu, percent = values
    row = "[%d,%d,%s,%.0f,%.0f,%.0f" % (key[0], key[1], text_of(key[2]), wall * 1e3, used * 1e3, memory)
    return row + (",%.0f,%.1f]" % (gpu * 1e3, percent / gpu) if gpu else "]")


def _content(path: str) -> bytes:
    """Return a small file; empty if there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, 256)
    except OSError:
        return b""
    finally:
        os.close(handle)


def _thread_count() -> int:
    try:
        return os.stat("/proc/self/task").st_nlink
    except OSError:
        return 0
