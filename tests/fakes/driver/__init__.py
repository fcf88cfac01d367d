"""An NVIDIA driver library whose answers a test switches while the processes that loaded it live.

It is written independently of ``tests/fakes/nvml``: a second opinion. ``driver.c`` has the functions.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import itertools
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tools import compiler

if TYPE_CHECKING:
    import pytest

SOURCE = Path(__file__).with_name("driver.c")
VARIABLE = "AMLTRAIN_SWITCHABLE_NVML"

#: What a driver answers when it has no value: all bits of the type are set.
ALL_ONES_32, ALL_ONES_64 = (1 << 32) - 1, (1 << 64) - 1
NOT_SUPPORTED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 3, 9, 15, 16, 999
XID = 8  #: nvmlEventTypeXidCriticalError
UTILIZATION_SAMPLES = 1  #: NVML_GPU_UTILIZATION_SAMPLES
GIB = 1 << 30

_RECORD = struct.Struct("56sQ")
_COUNTERS = 256
#: The same function for a test: whoever switches one of them means all.
_INITS = frozenset({"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"})


class Fails(NamedTuple):
    """A value in whose place the function returns this code."""

    code: int


class Process(NamedTuple):
    """A process on a GPU; a memory of ``None`` is not told by the driver."""

    pid: int
    memory: int | None = None
    gpu_instance: int = ALL_ONES_32
    compute_instance: int = ALL_ONES_32


class Instance(NamedTuple):
    """A MIG instance: its place in the GPU, ids and bytes of memory (all, used)."""

    number: int
    gpu_instance: int
    compute_instance: int = 0
    uuid: str = ""
    name: str = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    memory: int = 10 * GIB
    used: int = 0


Value = int | float | str | Fails | Sequence[int] | Sequence[Sequence[int]] | None


class Generation(NamedTuple):
    """What a driver of some years is like."""

    driver_version: str
    cuda_version: int
    without: tuple[str, ...]  #: functions that its library does not have; ``*`` stands for anything
    process_row_v3: int = 24  #: bytes of a row of the ``_v3`` lists of processes


_SINCE_R545 = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetProcessesUtilizationInfo")
_SINCE_R510 = (
    "*RunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlGpm*",
    "nvmlDeviceGetRunningProcessDetailList",
    "nvmlDeviceGetConfComputeMemSizeInfo",
    "nvmlDeviceGet*ClocksEventReasons",
)
GENERATIONS = {
    "current": Generation("580.65.06", 13000, ()),
    "r535.98": Generation("535.98", 12020, (*_SINCE_R545, "*RunningProcesses_v3")),
    "r535.54": Generation("535.54.03", 12020, (*_SINCE_R545, "nvmlDeviceGetRunningProcessDetailList"), 32),
    "r470": Generation("470.223.02", 11040, (*_SINCE_R545, *_SINCE_R510)),
}


@functools.cache
def exported() -> frozenset[str]:
    """Names of all functions of the library, from its source."""
    return frozenset(re.findall(r"^(?:int |const char \*|[A-Z_]+\()(nvml\w+)", SOURCE.read_text(), re.MULTILINE))


@functools.cache
def keys() -> frozenset[str]:
    """Beginnings of the keys that the library looks up, from its source."""
    return frozenset(re.findall(r'"([a-z]\w*)(?:\.[%.\w]*)?"', SOURCE.read_text()))


def functions(pattern: str) -> list[str]:
    """Functions of a name or pattern; a name that is not exported stands for its newest version.

    Raises
    ------
    ValueError
        The library has none: a switch would change nothing.
    """
    found = fnmatch.filter(exported(), pattern) or sorted(fnmatch.filter(exported(), pattern + "_v[0-9]"))[-1:]
    if not found:
        raise ValueError(f"the switchable driver has no function {pattern!r}. Add it to {SOURCE.name}.")
    return sorted(_INITS.union(found) if _INITS.intersection(found) else found)


@functools.cache
def build(without: tuple[str, ...] = ()) -> Path:
    """Compile the library, without the functions of these patterns; its path.

    Raises
    ------
    RuntimeError
        There is no C compiler.
    """
    names = {name for pattern in without for name in fnmatch.filter(exported(), pattern)}
    return compiler.driver_library([SOURCE], ["-pthread"], names)


def _text(value: Any) -> str:
    """A value as the state file has it."""
    if isinstance(value, Fails):
        return f"!{value.code}"
    if isinstance(value, (str, int, float)):
        return str(int(value) if isinstance(value, bool) else value)
    rows = (":".join(map(str, part)) if isinstance(part, (tuple, list)) else str(part) for part in value)
    return " ".join(rows)


class SwitchableDriver:
    """A driver under the real pynvml. Every method switches at once, in all processes that use it.

    Values are in NVML's own units. ``None`` takes a value away: the function answers *not supported*.
    ``Fails(code)`` in the place of a value makes the function that reads it return the code.

    Parameters
    ----------
    folder
        Of the test: the state file, the log of calls and the library lie in it.
    gpus
        Number of GPUs (H100 with 80 GiB, idle).
    generation
        One of :data:`GENERATIONS`.
    without
        Further functions that the library lacks; ``*`` stands for anything.
    """

    def __init__(self, folder: Path, gpus: int = 1, generation: str = "current", without: Sequence[str] = ()) -> None:
        self.folder = folder / "switchable-driver"
        self.libraries = self.folder / "lib"
        self.libraries.mkdir(parents=True)
        self.state = self.folder / "state"
        self._calls = self.folder / "state.calls"
        self._calls.write_bytes(bytes(_COUNTERS * _RECORD.size))
        self._values: dict[str, str] = {}
        self._gpus: list[int] = []
        self._uncounted: set[int] = set()
        self._events: list[tuple[int, ...]] = []
        self._event_number = itertools.count(1)
        self._open_changes = 0
        self._written_ns = 0
        with self.changes():
            self.install(generation, without)
            self.set_gpus(gpus)

    # -- the process under test ------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Variables for a process that shall find this driver."""
        others = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path]
        return {"LD_LIBRARY_PATH": os.pathsep.join([str(self.libraries), *others]), VARIABLE: str(self.state)}

    def use(self, monkeypatch: pytest.MonkeyPatch) -> SwitchableDriver:
        """Set the variables in this process, for the agents that it starts."""
        for name, value in self.environment().items():
            monkeypatch.setenv(name, value)
        return self

    def calls(self) -> dict[str, int]:
        """Calls of each function since the driver was made or :meth:`forget_calls`, in all processes."""
        found: dict[str, int] = {}
        for raw, count in _RECORD.iter_unpack(self._calls.read_bytes()):
            name = raw.rstrip(b"\0").decode()
            if name and count:
                found[name] = found.get(name, 0) + count
        return found

    def forget_calls(self) -> None:
        """Count from zero. Calls that are made at this moment may be lost."""
        with self._calls.open("r+b") as file:  # in place: libraries have it mapped
            for k in range(_COUNTERS):
                file.seek(k * _RECORD.size + 56)
                file.write(bytes(8))

    # -- how it is written -----------------------------------------------------------

    @contextlib.contextmanager
    def changes(self) -> Iterator[None]:
        """Several switches that are seen together."""
        self._open_changes += 1
        try:
            yield
        finally:
            self._open_changes -= 1
            self._write()

    def _put(self, scope: str, key: str, value: Value) -> None:
        if key.partition(".")[0] not in keys():
            raise ValueError(f"the switchable driver has no value {key!r}. All keys are in {SOURCE.name}.")
        if value is None:
            self._values.pop(f"{scope}.{key}", None)
        else:
            self._values[f"{scope}.{key}"] = _text(value)
        self._write()

    def _write(self) -> None:
        if self._open_changes:
            return
        draft = self.folder / "state.new"
        draft.write_text("".join(f"{key}\t{value}\n" for key, value in sorted(self._values.items())))
        # Another time each time: the file may get the inode and the size of one that a process has read.
        self._written_ns = max(self._written_ns + 1000, time.time_ns())
        os.utime(draft, ns=(self._written_ns, self._written_ns))
        draft.replace(self.state)

    @staticmethod
    def _scope(gpu: int | None, instance: int | None = None) -> str:
        if gpu is None:
            return "*"
        return str(gpu) if instance is None else f"{gpu}/{instance}"

    # -- the library and the driver as a whole ---------------------------------------

    def install(self, generation: str = "current", without: Sequence[str] = ()) -> None:
        """Put a library of a generation there, for processes that have not loaded one yet."""
        made = GENERATIONS[generation]
        library = build((*made.without, *without))
        draft = self.libraries / "new"
        draft.symlink_to(library)
        draft.replace(self.libraries / library.name)
        with self.changes():
            self.set_system(driver_version=made.driver_version, cuda_version=made.cuda_version)
            self.set_system(nvml_version=f"{made.cuda_version // 1000}.{made.driver_version}")
            self.set_system(process_row_v3=made.process_row_v3)

    def uninstall(self) -> None:
        """Take the library away, for processes that have not loaded it yet."""
        (self.libraries / "libnvidia-ml.so.1").unlink()

    def set_system(self, **values: Value) -> None:
        """Set ``driver_version``, ``cuda_version`` (12020), ``nvml_version``, ``process_row_v3`` (bytes)...

        ``sample_clock`` is ``"boottime"`` or ``"realtime"``: the clock of :meth:`stream`.
        """
        with self.changes():
            for key, value in values.items():
                self._put("sys", key, value)

    def down(self, code: int = DRIVER_NOT_LOADED) -> None:
        """Make every function return this code, as if the driver was unloaded."""
        self._put("sys", "down", code)

    def up(self) -> None:
        """End what :meth:`down` began."""
        self._put("sys", "down", None)

    def answer(self, function: str, code: int, gpu: int | None = None, instance: int | None = None) -> None:
        """Make a function return this code before it does anything; 0: let it work again.

        Parameters
        ----------
        function
            Its exported name, or a pattern such as ``"nvmlDeviceGet*"``. A name that is not exported stands for
            its newest version; one of the three names of ``nvmlInit`` stands for all. pynvml calls functions
            by other names than its own: ``"nvmlDeviceGetComputeRunningProcesses*"`` is what to write.
        gpu, instance
            Only for this GPU or this MIG instance of it; what is set for it counts more than what is set for all.
        """
        with self.changes():
            for name in functions(function):
                self._put(self._scope(gpu, instance), f"answer.{name}", code or None)

    def slow(self, function: str, seconds: float, gpu: int | None = None, instance: int | None = None) -> None:
        """Delay a function; less seconds or 0 also shorten the calls that wait now."""
        with self.changes():
            for name in functions(function):
                self._put(self._scope(gpu, instance), f"slow.{name}", seconds or None)

    # -- GPUs ------------------------------------------------------------------------

    @staticmethod
    def uuid(gpu: int, instance: int | None = None) -> str:
        """The UUID that a GPU or an instance has unless the test sets another one."""
        if instance is None:
            return f"GPU-5d000000-0000-0000-0000-{gpu:012x}"
        return f"MIG-5d000000-0000-0000-{instance:04x}-{gpu:012x}"

    def set_gpus(self, count: int, **values: Value) -> None:
        """Have this number of GPUs, new ones idle, all with these values (see :meth:`set`)."""
        with self.changes():
            for gpu in set(range(count)) - set(self._gpus):
                self.set(gpu, **self._defaults(gpu))
            for gpu in set(self._gpus) - set(range(count)):
                for key in [key for key in self._values if re.match(rf"{gpu}[./]", key)]:
                    del self._values[key]
                self._uncounted.discard(gpu)
            self._gpus = list(range(count))
            self._order()
            for gpu in self._gpus:
                self.set(gpu, **values)

    def _order(self) -> None:
        self._put("sys", "order", [gpu for gpu in self._gpus if gpu not in self._uncounted])

    def _defaults(self, gpu: int) -> dict[str, Value]:
        return {
            "uuid": self.uuid(gpu), "name": "NVIDIA H100 80GB HBM3", "bus_id": f"00000000:{gpu + 1:02X}:00.0",
            "minor": gpu, "memory": (80 * GIB, 512 << 20, 0), "utilization": (0, 0), "power": 70_000,
            "power_limit": 700_000, "energy": 1_000_000, "temperature.0": 30, "clock.0": 345, "clock.1": 345,
            "clock.2": 2619, "clock.3": 765, "max_clock.0": 1980, "max_clock.1": 1980, "max_clock.2": 2619,
            "clock_reasons": 1, "supported_clock_reasons": 0x1FF, "performance_state": 0, "persistence": 1,
            "display_mode": 0, "display_active": 0, "compute_mode": 0, "architecture": 9, "cores": 16896,
            "bus_width": 5120, "compute_capability": (9, 0), "pcie_generation": 5, "pcie_width": 16,
            "pcie_replays": 0, "pcie.0": 0, "pcie.1": 0, "encoder": (0, 167_000), "decoder": (0, 167_000),
            "ecc_mode": (1, 1), "ecc.0.0": 0, "ecc.0.1": 0, "ecc.1.0": 0, "ecc.1.1": 0,
            "remapped_rows": (0, 0, 0, 0), "bar1": (128 * GIB, 128 * GIB, 0), "confidential_memory": (0, 80 << 20),
            "violation.0": (0, 0), "violation.1": (0, 0), "mig": (0, 0), "mig_max": 7, "event_types": 0x1F8F,
            "samples.1": "", "compute": "", "graphics": "", "mps": "", "process_utilization": "", "gpm": 1,
        }  # fmt: skip

    def set(self, gpu: int, instance: int | None = None, **values: Value) -> None:
        """Set values of a GPU or a MIG instance, in NVML's units.

        ``uuid``, ``name``, ``serial``, ``bus_id``; ``memory`` (all, reserved, used: bytes), ``utilization`` (GPU,
        memory), ``power``, ``power_limit`` (mW), ``energy`` (mJ), ``temperature``, ``fan``, ``sm_clock``,
        ``memory_clock``, ``clock_reasons`` (bits), ``performance_state``, ``persistence``, ``display_mode``,
        ``display_active``, ``compute_mode``, ``ecc_mode``, ``remapped_rows`` (corrected, uncorrected, pending,
        failed), ``retired_pending``, ``event_types`` (bits), ``gpm`` (0: not supported)... Numbered ones have a
        method or the number at the end: ``set(0, **{"clock.3": 765})``. All keys are in ``driver.c``.
        """
        short = {"temperature": "temperature.0", "sm_clock": "clock.1", "memory_clock": "clock.2"}
        with self.changes():
            for key, value in values.items():
                self._put(self._scope(gpu, instance), short.get(key, key), value)

    def lose(self, gpu: int, code: int = GPU_IS_LOST, *, handle: bool = True, counted: bool = True) -> None:
        """Make everything of a GPU and its instances return this code (``RESET_REQUIRED``...).

        Parameters
        ----------
        handle
            Whether the driver still gives a handle of it.
        counted
            Whether it is still among those that the driver counts; else later ones move up.
        """
        with self.changes():
            self.set(gpu, lost=code, no_handle=None if handle else code)
            (self._uncounted.discard if counted else self._uncounted.add)(gpu)
            self._order()

    def restore(self, gpu: int) -> None:
        """Bring a lost GPU back."""
        with self.changes():
            self.set(gpu, lost=None, no_handle=None)
            self._uncounted.discard(gpu)
            self._order()

    # -- utilization and counters ----------------------------------------------------

    def samples(
        self, gpu: int, rows: Sequence[tuple[int, int]] | Fails | None, kind: int = UTILIZATION_SAMPLES,
        *, honor_time: bool = True,
    ) -> None:  # fmt: skip
        """Set the driver's samples: time (microseconds) and value, in the order in which it gives them.

        A row with time zero is given always. Without `honor_time` the driver ignores the time that the caller
        has seen last.
        """
        with self.changes():
            self.set(gpu, **{f"stream.{kind}": None, f"samples.{kind}": rows})
            self.set(gpu, **{f"samples_ignore_time.{kind}": None if honor_time else 1})

    def stream(
        self, gpu: int, value: int, kind: int = UTILIZATION_SAMPLES, *, every: float = 0.167, kept: int = 100,
        honor_time: bool = True,
    ) -> None:  # fmt: skip
        """Sample this value all the time, every so many seconds, of which the last `kept` are kept."""
        self.set(gpu, **{
            f"stream.{kind}": (value, int(every * 1e6), kept),
            f"samples_ignore_time.{kind}": None if honor_time else 1,
        })  # fmt: skip

    def fields(self, gpu: int, values: Mapping[int | tuple[int, int], Value]) -> None:
        """Set field values by id, or (id, scope): unsigned 64 bit numbers, or doubles where they are floats."""
        with self.changes():
            for field, value in values.items():
                key = f"field.{field}" if isinstance(field, int) else f"field.{field[0]}.{field[1]}"
                kind = 0 if isinstance(value, float) else 3
                plain = isinstance(value, (int, float))
                self.set(gpu, **{key.removesuffix(".0"): f"{kind} {value}" if plain else value})

    def gpm(self, gpu: int, values: Mapping[int, Value] | None, gpu_instance: int | None = None) -> None:
        """Set GPM metrics of a GPU, or of a GPU instance of it, by id; ``None``: the GPU has no GPM."""
        with self.changes():
            self.set(gpu, gpm=0 if values is None else 1)
            place = "" if gpu_instance is None else f"{gpu_instance}."
            for metric, value in (values or {}).items():
                self.set(gpu, **{f"gpm_metric.{place}{metric}": value})

    def violation(self, gpu: int, policy: int, nanoseconds: int | Fails | None, reference: int = 0) -> None:
        """Set how long a policy (0 power, 1 thermal...) has kept the clocks down."""
        value = (reference, nanoseconds) if isinstance(nanoseconds, int) else nanoseconds
        self.set(gpu, **{f"violation.{policy}": value})

    # -- errors ----------------------------------------------------------------------

    def ecc(self, gpu: int, count: int | Fails | None, *, uncorrected: bool = True, aggregate: bool = False) -> None:
        """Set the number of ECC errors, since the driver was loaded or (`aggregate`) ever."""
        self.set(gpu, **{f"ecc.{int(uncorrected)}.{int(aggregate)}": count})

    def retired_pages(self, gpu: int, count: int | Fails | None, cause: int = 1) -> None:
        """Set the number of retired pages of a cause: 0 single bit errors, 1 a double bit error."""
        self.set(gpu, **{f"retired_pages.{cause}": count})

    def event(
        self, gpu: int, kind: int, data: int = 0, gpu_instance: int = ALL_ONES_32, compute_instance: int = ALL_ONES_32
    ) -> None:
        """Let an event happen, for those who have registered."""
        self._events.append((next(self._event_number), gpu, kind, data, gpu_instance, compute_instance))
        self._put("sys", "events", self._events)

    def xid(self, gpu: int, number: int) -> None:
        """Let a critical Xid error happen."""
        self.event(gpu, XID, number)

    # -- processes -------------------------------------------------------------------

    def processes(
        self, gpu: int, rows: Iterable[Process] | Fails | None, kind: str = "compute", instance: int | None = None
    ) -> None:
        """Set the processes of a GPU: ``compute``, ``graphics`` or ``mps``.

        A MIG instance lists those of its GPU that have its ids, unless it has a list of its own.
        """
        if rows is None or isinstance(rows, Fails):
            self.set(gpu, instance, **{kind: rows})
            return
        full = [(p.pid, ALL_ONES_64 if p.memory is None else p.memory, *p[2:], 0) for p in rows]
        self.set(gpu, instance, **{kind: full})

    def process_utilization(self, gpu: int, rows: Sequence[tuple[int, int, int]] | Fails | None) -> None:
        """Set the utilization of processes: pid, time (microseconds), percent of the SMs."""
        if rows is None or isinstance(rows, Fails):
            self.set(gpu, process_utilization=rows)
            return
        self.set(gpu, process_utilization=[(pid, at, sm, 0, 0, 0) for pid, at, sm in rows])

    # -- MIG -------------------------------------------------------------------------

    def mig(self, gpu: int, instances: Sequence[Instance] | None, *, most: int = 7) -> None:
        """Split a GPU into these instances; ``None``: whole again.

        As with real ones, neither the GPU nor an instance tells its utilization then, and an instance has no
        power, temperature or clocks; :meth:`set` afterwards for another behavior.
        """
        with self.changes():
            for key in [key for key in self._values if key.startswith(f"{gpu}/")]:
                del self._values[key]
            split = instances is not None
            self.set(gpu, mig=(int(split), int(split)), mig_max=most)
            self.set(gpu, instances=[part.number for part in instances or ()])
            kept = {"utilization": (0, 0), "samples.1": ""}
            self.set(gpu, **dict.fromkeys(kept) if split else kept)
            for part in instances or ():
                self.set(
                    gpu, part.number, uuid=part.uuid or self.uuid(gpu, part.number), name=part.name,
                    memory=(part.memory, 0, part.used), gpu_instance=part.gpu_instance,
                    compute_instance=part.compute_instance,
                    attributes=(16, 1, 1, 0, 1, 0, 1, 1, part.memory >> 20),
                )  # fmt: skip


def needed(folder: Path, gpus: int = 1, generation: str = "current", without: Sequence[str] = ()) -> SwitchableDriver:
    """Make a driver for a test, which is skipped where there is no compiler."""
    if compiler.find() is None:
        import pytest

        pytest.skip("no C compiler: install gcc or clang")
    return SwitchableDriver(folder, gpus, generation, without)
