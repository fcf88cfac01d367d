"""The compute processes of a GPU or MIG instance, whatever the generation of the driver.

NVML has three lists. The first (before R460) has rows of 16 bytes; the second rows of 24,
in every driver that has it; the third (R510 and newer) rows of 24, and of 32 from
535.43 to 535.86. 535.98 has the second only. So the second is asked first.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

#: A function of the driver's library, or ``None`` where it has none of this name.
Lookup = Callable[[str], Optional[Callable[..., int]]]

_LIST = "nvmlDeviceGetComputeRunningProcesses"
_OK, _TOO_SMALL = 0, 7
#: Codes that speak for one of the functions only: invalid, not supported, no permission, no function, version.
_OF_FUNCTION = frozenset({2, 3, 4, 13, 25})
#: What the driver says where it has no number.
NO_NUMBER_32, NO_NUMBER_64 = (1 << 32) - 1, (1 << 64) - 1
#: Bytes of the longest known row: the buffer has this room for each row that the driver may write.
MAX_ROW = 32
_FIRST_ROOM, _MOST_ROOM = 64, 1 << 16
_TRIES = 4


class Row(NamedTuple):
    """A process on a GPU."""

    pid: int
    memory: Optional[int]  #: bytes; ``None``: not told
    gpu_instance: Optional[int]  #: of MIG; ``None``: not told
    compute_instance: Optional[int]


class ProcessLists:
    """Asks for lists of processes.

    Parameters
    ----------
    lookup
        Gives functions of the driver's library.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._count = ctypes.c_uint(0)
        self._count_at = ctypes.byref(self._count)
        self._make_room(_FIRST_ROOM)
        #: The function that answered last and the bytes of its rows: it is asked first.
        self._last: Optional[Tuple[Callable[..., int], int]] = None

    def of(
        self, device: Any, gpu_instance: Optional[int] = None, compute_instance: Optional[int] = None
    ) -> Optional[List[Row]]:
        """Return the rows of one device, each pid once; ``None`` where the driver does not tell.

        Parameters
        ----------
        device
            NVML's handle of a GPU or MIG instance.
        gpu_instance, compute_instance
            Leave out processes that the driver says to be of another instance.
        """
        for function, row in (self._last,) if self._last is not None else self._functions():
            code, rows = self._ask(function, row, device)
            if code == _OK:
                self._last = function, row
                return once(r for r in rows if _is_of(r, gpu_instance, compute_instance)) if rows else rows
            if code not in _OF_FUNCTION:
                return None
        if self._last is None:
            return None
        self._last = None  # another driver may have come
        return self.of(device, gpu_instance, compute_instance)

    def _functions(self) -> Iterator[Tuple[Callable[..., int], int]]:
        """The library's lists that can be read, in the order in which they are asked, and the bytes of their rows."""
        for name, row in ((_LIST + "_v2", 24), (_LIST + "_v3", self._third_row()), (_LIST, 16)):
            function = self._lookup(name)
            if function is not None:
                yield function, row

    def _make_room(self, rows: int) -> None:
        self._room = rows
        self._buffer = (ctypes.c_ubyte * (MAX_ROW * rows))()
        self._buffer_at = ctypes.byref(self._buffer)

    def _third_row(self) -> int:
        # These drivers have the first name and not yet the second.
        early = self._lookup("nvmlDeviceGetConfComputeMemSizeInfo") is not None
        return 32 if early and self._lookup("nvmlDeviceGetRunningProcessDetailList") is None else 24

    def _ask(self, function: Callable[..., int], row: int, device: Any) -> Tuple[int, List[Row]]:
        code = _TOO_SMALL
        for _ in range(_TRIES):
            self._count.value = self._room
            code = function(device, self._count_at, self._buffer_at)
            told = self._count.value
            if code == _OK:
                # A driver that says more than there is room for has written as much as there is room for.
                return code, _rows(self._buffer, min(told, self._room), row) if told else []
            if code != _TOO_SMALL or self._room >= _MOST_ROOM:
                break
            self._make_room(min(_MOST_ROOM, max(2 * self._room, 2 * told + 8)))
        return code, []


def _rows(data: Any, count: int, row: int) -> List[Row]:
    found = []
    for at in range(count):
        pid, memory = struct.unpack_from("=I4xQ", data, at * row)
        gpu, compute = struct.unpack_from("=II", data, at * row + 16) if row > 16 else (NO_NUMBER_32, NO_NUMBER_32)
        if pid == NO_NUMBER_32:
            continue
        found.append(
            Row(
                pid,
                None if memory == NO_NUMBER_64 else memory,
                None if gpu == NO_NUMBER_32 else gpu,
                None if compute == NO_NUMBER_32 else compute,
            )
        )
    return found


def _is_of(row: Row, gpu_instance: Optional[int], compute_instance: Optional[int]) -> bool:
    pairs = ((row.gpu_instance, gpu_instance), (row.compute_instance, compute_instance))
    return all(told is None or wanted is None or told == wanted for told, wanted in pairs)


def once(rows: Iterable[Row]) -> List[Row]:
    """Return rows in which each pid of an instance is there once: in containers a driver may list one twice."""
    found: Dict[Tuple[int, Optional[int], Optional[int]], Row] = {}
    for row in rows:
        key = (row.pid, row.gpu_instance, row.compute_instance)
        known = found.get(key)
        if known is None or (row.memory or 0) > (known.memory or 0):
            found[key] = row
    return list(found.values())


def by_pid(rows: Iterable[Row]) -> List[Tuple[int, Optional[int]]]:
    """Return pid and bytes of each process, summed over the instances of a split GPU."""
    found: Dict[int, Optional[int]] = {}
    for row in rows:
        before = found.get(row.pid)
        found[row.pid] = row.memory if before is None else before + (row.memory or 0)
    return list(found.items())
