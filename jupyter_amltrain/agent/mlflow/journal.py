"""The sink's journal: one JSON line per change, whole lines only, gapless numbers.

``{"seq": n, "t": ms since 1970, "op": "runs/log-batch", "b": {body}, "a": {chosen by the sink}}``
"""

import json
import os
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

#: Bytes held in memory while the disk is full; above it the oldest lines are dropped.
MAX_HELD_BYTES = 64 << 20

Record = Dict[str, Any]


def now_ms() -> int:
    """Return the milliseconds since 1970 (UTC)."""
    return int(time.time() * 1000)


def clean(value: Any) -> Any:
    """Return `value` with lone surrogates in its texts replaced: databases and UTF-8 files reject them."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return value


def has_escapes(text: bytes) -> bool:
    """Return whether a JSON text may have lone surrogates; without any, it need not be cleaned, which is slow."""
    return b"\\u" in text or not text.isascii()


def parse(line: bytes) -> Optional[Record]:
    """Return the record of a line; ``None`` for a damaged one."""
    try:
        record: Record = json.loads(line)
        if has_escapes(line):
            record = clean(record)
        return record if well_formed(record) else None
    except (ValueError, RecursionError):
        return None


def well_formed(record: Any) -> bool:
    """Return whether a value read from a line has the form of a record."""
    return (
        isinstance(record, dict)
        and type(record.get("seq")) is int
        and isinstance(record.get("t", 0), (int, float))
        and isinstance(record.get("op"), str)
        and isinstance(record.get("b"), dict)
        and isinstance(record.get("a", {}), dict)
    )


class SinkJournal:
    """Append-only file of records, opened for one writer.

    Opening reads the file, cuts a torn tail (the writer was killed in the middle of a
    line) and continues with the next number.

    Parameters
    ----------
    path
        The file; created with mode 0600.
    on_note
        Called with one sentence when lines are held back or lost.

    Raises
    ------
    OSError
        The file cannot be opened.
    """

    def __init__(self, path: str, on_note: Callable[[str], None]) -> None:
        self.path = path
        self.seq = 0
        self.dropped = 0
        self._note = on_note
        self._held: List[bytes] = []
        self._held_bytes = 0
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        self._end = 0

    def recover(self, replay: Callable[[Record], None]) -> None:
        """Pass every whole record to `replay`, skip damaged lines, then cut a torn last line."""
        damaged = 0
        for line in self._lines():
            self._end += len(line)
            record = parse(line)
            try:
                if record is None:
                    raise ValueError
                replay(record)
                self.seq = max(self.seq, record["seq"])
            except (ValueError, KeyError, TypeError, AttributeError):
                damaged += 1
        if damaged:
            self.seq += damaged  # their numbers
            self._note("%d damaged lines of the journal were skipped" % damaged)
        if os.fstat(self._fd).st_size > self._end:
            os.ftruncate(self._fd, self._end)
            self._note("the journal had a torn last line, which was removed")

    def append(self, op: str, body: Record, added: Record, t: int) -> None:
        """Write one whole line, or hold it until the disk has space (never fails)."""
        self.seq += 1
        record = {"seq": self.seq, "t": t, "op": op, "b": body}
        if added:
            record["a"] = added
        line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        self._held.append(line)
        self._held_bytes += len(line)
        self.flush()

    def flush(self) -> None:
        """Write held lines if there are any.

        A job must not stop because the disk is full for a while: the lines wait in
        memory, and an incomplete write is cut off again.
        """
        if not self._held:
            return
        data = b"".join(self._held)
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self._end + written)
        except OSError as error:
            try:
                os.ftruncate(self._fd, self._end)
            except OSError:  # a partial line is overwritten by the next write
                pass
            self._note(f"metrics are held in memory: {error.strerror}; they are written once there is space")
            self._bound()
            return
        self._end += len(data)
        self._held = []
        self._held_bytes = 0

    def _bound(self) -> None:
        while self._held_bytes > MAX_HELD_BYTES and len(self._held) > 1:
            self._held_bytes -= len(self._held.pop(0))
            self.dropped += 1
            self._note("the disk stayed full: the oldest waiting metrics were dropped")

    def close(self) -> None:
        """Write held lines, sync and close."""
        self.flush()
        try:
            os.fsync(self._fd)
        except OSError:  # the lines are written; only a crash of the machine could lose them
            pass
        os.close(self._fd)

    def _lines(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield line
        for line in list(self._held):
            yield line

    def history(self, run_id: str, key: str) -> Iterator[Record]:
        """Yield every point of one metric, in logged order.

        The points are read from the file, because a run may have millions of them, too many for the
        memory of the agent. Lines that cannot contain the key are skipped unparsed.

        Yields
        ------
        dict
            ``key``, ``value``, ``timestamp`` (ms), ``step`` as they were sent.
        """
        run_mark, key_mark = json.dumps(run_id).encode(), json.dumps(key).encode()
        for line in self._lines():
            if key_mark not in line or run_mark not in line:
                continue
            record = parse(line)
            if record is None:
                continue
            body: Record = record["b"]
            if (body.get("run_id") or body.get("run_uuid")) != run_id:
                continue
            points: Optional[List[Record]] = None
            if record["op"] == "runs/log-metric":
                points = [body]
            elif record["op"] == "runs/log-batch":
                points = body.get("metrics")
            for point in points or ():
                if point.get("key") == key:
                    yield point
