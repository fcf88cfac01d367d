"""Hook in a job's Python: a thread that samples the stacks of the others, and writes how long each line took.

``supervise/job_hooks.py`` puts this file into a job's Python as ``amltrain_lines.py``, and ``supervise/import_hook.py``
calls :func:`start` at the end of the start of each Python of the job. Nothing that goes wrong here may reach the
script: then the lines are missing.

What makes the shares true:

* The moments of the samples are random and do not depend on what the script does. A sample that comes late, because
  a native function kept the interpreter's lock, counts for all moments that have passed.
* While one thread runs, it gives the lock to this one after 0.2 ms in place of 5 ms: else the end of a short burst of
  Python would count for what follows it.
* Each thread's processor clock is read again a millisecond after the sample: so working differs from waiting. How
  long a thread worked in all comes from the system.

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

#: Seconds after which a reading of the GPUs (``telemetry/line_gpus.py``) is too old.
_MAX_GPU_AGE_S = 5.0
#: Seconds since the start -> mean seconds between two samples.
_PERIODS = ((60.0, 0.025), (600.0, 0.05), (3600.0, 0.1), (float("inf"), 0.2))
#: Seconds since the start -> seconds that one line of the file is about.
_WINDOWS = ((0.8, 0.3), (4.0, 1.0), (600.0, 2.0), (3600.0, 10.0), (float("inf"), 60.0))
_MAX_WINDOW_S = 900.0
#: Seconds after a sample in which the processor clocks of the threads are compared.
_CLOCK_S = 0.001
#: Seconds from which a sample is late, and from which a native function must have delayed it.
_LATE_S, _LONG_S = 0.003, 0.03
#: Largest part of one processor's time that this thread takes.
_MAX_PRICE = 0.007
#: Seconds after which a thread that runs gives the interpreter's lock to another one: Python's, and while only
#: this thread wants it.
_SWITCH_S, _FAST_SWITCH_S = 0.005, 0.0002
#: Bytes of all files of a run in a day, and the part of them that is there from the start.
_DAY_BYTES, _FIRST_PART = 900_000, 0.1
_MAX_FILES, _MAX_ROWS, _MAX_PENDING_BYTES = 64, 60, 1 << 16
#: Samples that wait for a reading of the GPUs.
_MAX_WAITING = 1000
#: Threads of one process that have a name, and processor clocks, of their own.
_MAX_THREADS = 64
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
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
    if not _is_main_interpreter():  # whose start runs this too, and which must have no thread at its end
        return
    import atexit

    _lines = lines = _Lines(folder, load("amltrain_stacks"))
    atexit.register(lines.close)
    os.register_at_fork(before=lines.before_fork, after_in_parent=lines.after_fork, after_in_child=lines.in_child)
    lines.begin()


def _is_main_interpreter() -> bool:
    if sys.version_info >= (3, 12):
        return bool(_thread._is_main_interpreter())  # type: ignore[attr-defined]
    import _signal

    try:
        _signal.signal(_signal.SIGUSR2, _signal.getsignal(_signal.SIGUSR2))
    except ValueError:  # only the main interpreter may set handlers
        return False
    return True


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
        """Begin again: at the start, and in a process that was forked."""
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
        self._pending: List[Tuple[float, Key, float]] = []
        self._gpu_file = ""
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
        self._slow_until = self._waited = self._wakes = 0.0
        self._natives: Dict[int, int] = {}
        self._new_natives: List[int] = []
        self._rates: Dict[Tuple[int, int, str], List[float]] = {}
        self._clock_of: Dict[int, Tuple[float, ...]] = {}

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
            if abs(sys.getswitchinterval() - _FAST_SWITCH_S) < 1e-6:
                sys.setswitchinterval(_SWITCH_S)
            done.release()

    def _sample(self, stop: "Any") -> None:
        own = _thread.get_ident()
        due = now = time.monotonic()
        price = time.thread_time()
        gap = self._gap(now)
        seen: Any = None
        last: Dict[int, float] = {}
        last_rates: Dict[int, float] = {}
        last_time = now
        while not self._is_off:
            if seen is None:
                if stop.acquire(True, max(0.0, due + gap - now)):
                    return
                seen = self._look(own)
                now = time.monotonic()
            weight, lateness = 0.0, now - due - gap
            while due + gap <= now:
                due += gap
                weight += gap
                gap = self._gap(now)
                if weight > 10.0:
                    weight, due = weight + now - due, now
            following, later = None, now
            earlier: Dict[int, float] = {}
            rates = self._known_rates(seen) if lateness < _LATE_S else {}
            if not rates:
                before = self._clocks()
                if stop.acquire(True, _CLOCK_S):
                    return
                after, later = self._clocks(), time.monotonic()
                # At once, if a native function has kept the lock: what follows gives the lock away.
                following = self._look(own) if due + gap <= later else None
                rates = _rates(before, after, later - now)
                earlier = last_rates if now == last_time else _rates(last, before, now - last_time)
                last, last_time, last_rates = after, later, rates
            is_late = lateness > _LATE_S
            if is_late and not self._waited_for_processor(lateness):
                # A native function has kept the lock: it has worked, whatever its thread does now.
                is_late = False
                rates = {
                    one: 1.0 if len(rates) == 1 else max(rate, earlier.get(one, 0.0)) for one, rate in rates.items()
                }
            self._wakes = 2.0 if later > now else 1.0
            self._add(seen, rates, weight, is_late)
            self._set_switch(lateness, rates)
            seen, now = following, later
            if now - self._window_start >= _of(_WINDOWS, now - self._started) * self._longer:
                new_price = time.thread_time()
                self._limit((new_price - price) / (now - self._window_start))
                price = new_price
                self.flush()
                self._waited_for_processor(0.0)
            if seen is None:
                now = time.monotonic()

    def _waited_for_processor(self, lateness: float) -> bool:
        """Whether this thread was late because other programs used all processors."""
        ran, ready = self._run_time(_thread.get_native_id())
        before, self._waited = self._waited, ready - ran
        return self._waited - before > 0.4 * lateness

    def _gap(self, now: float) -> float:
        """Return the seconds to the next sample: random, so that no period of the script is in step with it."""
        self._random = (self._random * 1664525 + 1013904223) & 0xFFFFFFFF
        period = max(2 * _CLOCK_S, _of(_PERIODS, now - self._started) * self._slower)
        return period * (0.5 + self._random / 0xFFFFFFFF)

    def _set_switch(self, lateness: float, rates: "Dict[int, float]") -> None:
        """Let a thread that runs alone give way soon; not where a native function keeps the lock for long."""
        now = time.monotonic()
        if lateness > _LONG_S or sum(rate > 0.3 for rate in rates.values()) > 1:
            self._slow_until = now + 1.0
        interval = sys.getswitchinterval()
        wanted = _SWITCH_S if now < self._slow_until else _FAST_SWITCH_S
        if abs(interval - wanted) > 1e-6 and min(abs(interval - one) for one in (_SWITCH_S, _FAST_SWITCH_S)) < 1e-6:
            sys.setswitchinterval(wanted)

    def _limit(self, price: float) -> None:
        """Sample less often where a sample is expensive, as with deep stacks."""
        self._slower = min(10.0, max(1.0, self._slower * min(2.0, price / _MAX_PRICE)))

    # ---- one sample

    def _look(self, own: int) -> "List[Tuple[int, int, str]]":
        """Return thread, node and word of each stack."""
        read = self._stacks.read
        frames = sys._current_frames()
        frames.pop(own, None)
        seen = [(ident, *read(frame)) for ident, frame in frames.items()]
        frames.clear()  # before anything that may wait: nobody's variables live longer
        self._idents = [ident for ident, _, _ in seen]
        return seen

    def _clocks(self) -> "Dict[int, float]":
        """Return the processor time of the threads of the last sample, as far as it is known."""
        found: Dict[int, float] = {}
        for ident in self._idents[:_MAX_THREADS]:
            number = self._native(ident)
            if number:
                try:  # the clock of a thread by its number, as the C library makes it; of an ended one an error
                    found[ident] = time.clock_gettime((~number << 3) | 6)
                except (OSError, AttributeError, OverflowError):
                    pass
        return found

    def _known_rates(self, seen: "List[Tuple[int, int, str]]") -> "Dict[int, float]":
        """Return the parts of a processor that the threads used when they were last seen where they are now.

        Empty if that is not known of each, and for every fourth time.
        """
        found: Dict[int, float] = {}
        for one in seen:
            known = self._rates.get(one)
            if known is None or known[1] <= 0:
                return {}
            found[one[0]] = known[0]
        for one in seen:
            self._rates[one][1] -= 1
        return found

    def _native(self, ident: int) -> int:
        """Return the number that the system has for a thread; 0 if it is not known."""
        if ident == self._main:
            return self._pid
        thread = getattr(sys.modules.get("threading"), "_active", {}).get(ident)
        return getattr(thread, "native_id", None) or 0

    def _add(self, seen: "List[Tuple[int, int, str]]", rates: "Dict[int, float]", weight: float, is_late: bool) -> None:
        now = time.monotonic()
        if len(self._rates) > 1000:
            self._rates.clear()
        del self._pending[:-_MAX_WAITING]
        for one in seen:
            ident, node, word = one
            if ident in rates:
                known = self._rates.get(one)
                if known is None or known[1] <= 0:
                    self._rates[one] = [rates[ident], 3]
            if not node and ident != self._main:
                continue
            self._has_lines = self._has_lines or node > 0
            working = min(1.0, max(0.0, 2.0 * rates.get(ident, 0.0)))
            key = (self._thread(ident), node, "" if working > 0.5 else word)
            sums = self._sums.get(key)
            if sums is None:
                sums = self._sums[key] = [0.0] * 7
            sums[0] += weight * working
            sums[6] += self._wakes * working
            sums[2 if is_late else 1] += weight * (1.0 - working)
            self._pending.append((now, key, weight))
            if ident == self._main:
                self._add_memory(sums)
        for thread in self._new_natives:
            native = self._natives[thread]
            self._clock_of[thread] = (*self._run_time(native), *_switches(native))
        self._new_natives.clear()
        self._add_gpus()

    def _run_time(self, native: int) -> "Tuple[float, float]":
        """Return the seconds for which a thread has run, and for which it was ready to run."""
        data = _content("/proc/self/task/%d/schedstat" % native).split()
        return (float(data[0]) / 1e9, (float(data[0]) + float(data[1])) / 1e9) if len(data) > 1 else (0.0, 0.0)

    def _thread(self, ident: int) -> int:
        if ident == self._main:
            if 0 not in self._natives:
                self._natives[0] = self._pid
                self._new_natives.append(0)
            return 0
        thread = getattr(sys.modules.get("threading"), "_active", {}).get(ident)
        name = str(getattr(thread, "_name", "") or "thread")
        key = (ident, name)
        number = self._threads.get(key)
        if number is None:
            number = min(len(self._threads) + 1, _MAX_THREADS)
            self._threads[key] = number
            native = self._native(ident)
            if native and number < _MAX_THREADS:
                self._natives[number] = native
                self._new_natives.append(number)
            if number == len(self._threads):
                name = name[:80] if number < _MAX_THREADS else "other threads"
                self._new_threads.append('["t",%d,%s]' % (number, self._text_of(name)))
        return number

    def _add_memory(self, sums: "List[float]") -> None:
        """Count the growth of the process's memory for the line of its main thread."""
        now = time.monotonic()
        if now < self._memory_due:
            return
        self._memory_due = now + 0.4
        data = _content("/proc/self/statm")
        pages = float(data.split()[1]) if data else 0.0
        if self._memory:
            sums[3] += (pages - self._memory) * 4.0
        self._memory = pages

    def _add_gpus(self) -> None:
        """Give each sample the utilization of the GPUs in whose time it falls, once that is known."""
        now = time.monotonic()
        if now < self._gpu_read:
            return
        self._gpu_read = now + 0.5
        if not self._gpu_file:
            boot = _content("/proc/sys/kernel/random/boot_id")[:8].decode("ascii", "replace")
            self._gpu_file = "%s/gpus%s" % (self._folder, boot and "-" + boot)
        words = _content(self._gpu_file).split()
        if not words:
            self._gpu_read = now + 5.0
            self._pending = []
            return
        stamp, pending = float(words[0]), self._pending
        if stamp > self._gpu_time:
            self._pending = [one for one in pending if one[0] > stamp]
            percent = self._percent(words[1:])
            if self._gpu_time and stamp - self._gpu_time < _MAX_GPU_AGE_S and percent is not None:
                for at, key, weight in pending:
                    if self._gpu_time < at <= stamp:
                        sums = self._sums.setdefault(key, [0.0] * 7)
                        sums[4] += weight
                        sums[5] += weight * percent
            self._gpu_time = stamp
        elif now - stamp > _MAX_GPU_AGE_S:
            self._pending = []

    def _percent(self, words: "List[bytes]") -> "Optional[float]":
        """Return the utilization of the GPU of this rank, else the mean of all."""
        local = next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name, "").isdigit()), "")
        if local and len(words) > int(local) and len(words) > 1:
            words = [words[int(local)]]
        known = [float(word) for word in words if word != b"-"]
        return sum(known) / len(known) if known else None

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
        rows = sorted(self._balanced(sums).items(), key=lambda one: -one[1][0])
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

    def _balanced(self, sums: "Dict[Key, List[float]]") -> "Dict[Key, List[float]]":
        """Return wall and processor time of each key, with the parts of working and waiting as the system counts them.

        Where all processors are busy, this thread tends to run when the others begin to wait: so late samples of
        waiting count only where there are no others.
        """
        found: Dict[Key, List[float]] = {}
        for thread in {key[0] for key in sums}:
            own = {key: values for key, values in sums.items() if key[0] == thread}
            working, timely, late = (sum(values[at] for values in own.values()) for at in range(3))
            waiting = timely + late
            used_late = 0.0 if timely > 0.25 * waiting else 1.0
            whole = working + waiting
            ran, worked, native = 0.0, working, self._natives.get(thread, 0)
            if native and thread in self._clock_of:
                last, self._clock_of[thread] = self._clock_of[thread], (*self._run_time(native), *_switches(native))
                ran, ready, all_waits, breaks = (now - then for now, then in zip(self._clock_of[thread], last))
                if ran > 0.0 and working and waiting:
                    # It waits for a processor after a wait, or in the middle of its work: also where it gave way to us.
                    waits = max(0.0, all_waits - sum(values[6] for values in own.values()))
                    worked = min(whole, ran + (ready - ran) * (1.0 - waits / max(1.0, all_waits + breaks)))
            waited = timely + late * used_late
            for key, values in own.items():
                work = worked * values[0] / working if working else 0.0
                wait = (whole - worked) * (values[1] + values[2] * used_late) / waited if waited else 0.0
                found[key] = [work + wait, work * min(1.0, ran / worked) if ran and worked else work, *values[3:6]]
        return found

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


def _rates(before: "Dict[int, float]", after: "Dict[int, float]", seconds: float) -> "Dict[int, float]":
    """Return the part of a processor that each thread has used."""
    return {one: (after[one] - before[one]) / max(seconds, 1e-6) for one in before if one in after}


def _row(key: "Key", values: "List[float]", text_of: "Callable[[Any], str]") -> str:
    """Return ``[thread, node, word, wall ms, processor ms, growth of memory KiB, ms with GPU readings, percent]``."""
    wall, used, memory, gpu, percent = values
    row = "[%d,%d,%s,%.0f,%.0f,%.0f" % (key[0], key[1], text_of(key[2]), wall * 1e3, used * 1e3, memory)
    return row + (",%.0f,%.1f]" % (gpu * 1e3, percent / gpu) if gpu else "]")


def _switches(native: int) -> "Tuple[float, float]":
    """Return how often a thread has begun to wait, and how often it lost its processor."""
    words = _content("/proc/self/task/%d/status" % native, 4096).split()
    if len(words) < 4 or not words[-3].isdigit() or not words[-1].isdigit():
        return 0.0, 0.0
    return float(words[-3]), float(words[-1])


def _content(path: str, size: int = 256) -> bytes:
    """Return a small file; empty if there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, size)
    except OSError:
        return b""
    finally:
        os.close(handle)


def _thread_count() -> int:
    try:
        return os.stat("/proc/self/task").st_nlink
    except OSError:
        return 0
