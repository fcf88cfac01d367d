"""Hook in a job's Python that writes the memory of PyTorch's allocator: figures that the driver does not have.

``supervise/job_hooks.py`` puts this file into a job's Python, where ``supervise/import_hook.py`` runs :func:`imported`
when the script itself has imported torch. It acts only when torch has initialized CUDA: then a thread writes the
figures once a second into a small file, so that the last figures survive any death of the process. A torch without CUDA
changes nothing. No error of the hook may reach the script.
"""

from __future__ import annotations

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any

#: Variable with the folder for the figures; if unset or 0, nothing is written.
FOLDER = "AMLTRAIN_TORCH_MEMORY"
PERIOD_S = 1.0


def imported(torch: Any) -> None:
    """Wait until torch initializes CUDA."""
    import os

    if not os.environ.get(FOLDER):  # a job without GPUs
        return
    version = torch.version
    if not getattr(version, "cuda", None) and not getattr(version, "hip", None):
        return
    # Called by torch once CUDA is initialized, in the process that does it; torch queues its own seeds here, too.
    torch.cuda._lazy_call(lambda: _start(torch))


def _start(torch: Any) -> None:
    try:
        import atexit
        import os
        import threading

        folder = os.environ.get(FOLDER)
        if not folder or folder == "0":
            return
        own_pid = os.getpid()
        done = threading.Event()

        def watch() -> None:
            writer = _Writer(torch, folder, own_pid)
            while not done.wait(PERIOD_S):
                writer.write()
            writer.write()

        thread = threading.Thread(target=watch, name="amltrain-torch-memory", daemon=True)

        def close() -> None:
            if os.getpid() == own_pid:  # not in a process that was forked from this one
                done.set()
                thread.join(2.0)

        atexit.register(close)
        thread.start()
    except Exception:  # a torch of another kind: the job runs without these figures
        pass


class _Writer:
    def __init__(self, torch: Any, folder: str, pid: int) -> None:
        import os

        self.torch = torch
        self.peaks: Any = {}
        self.last: Any = None
        self.path = os.path.join(folder, "torch-%d.json" % pid)

    def write(self) -> None:
        try:
            self._write()
        except Exception:  # a full disk, a torch of another kind, a driver that was unloaded
            pass

    def _write(self) -> None:
        import json
        import os

        cuda = self.torch.cuda
        if not cuda.is_initialized():
            return
        rows = []
        for at in range(cuda.device_count()):
            stats = cuda.memory_stats_as_nested_dict(at)
            allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            old = self.peaks.get(at, (0, 0))  # a script may reset torch's own
            peak = self.peaks[at] = max(old[0], allocated["peak"]), max(old[1], reserved["peak"])
            if peak[1]:
                rows.append(
                    {
                        "device": at, "uuid": self._uuid(at), "allocated": allocated["current"],
                        "reserved": reserved["current"], "allocated_peak": peak[0], "reserved_peak": peak[1],
                        "ooms": stats.get("num_ooms", 0),
                    }
                )  # fmt: skip
        if rows == self.last:
            return
        value = {"schema": 1, "devices": rows, "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
        part = "%s.part" % self.path
        with open(part, "w") as file:
            json.dump(value, file)
        os.replace(part, self.path)
        self.last = rows

    def _uuid(self, at: int) -> Any:
        uuid = getattr(self.torch.cuda.get_device_properties(at), "uuid", None)
        return None if uuid is None else str(uuid)
