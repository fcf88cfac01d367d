"""Hook in a job's Python that writes the memory of PyTorch's allocator: figures that the driver does not have.

This file is also written into the run folder as ``hook/sitecustomize.py``, and runs at the start of
every Python of a job on GPUs. It imports only what Python has already imported, until the script itself has
imported torch *and* torch has initialized CUDA: then a thread writes the figures once a second into
a small file, so that the last figures survive any death of the process. A torch without CUDA
changes nothing. No error of the hook may reach the script.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any

#: Variable with the folder for the figures; if unset or 0, nothing is written.
FOLDER = "AMLTRAIN_TORCH_MEMORY"
PERIOD_S = 1.0


def _install() -> None:
    """Wait for the import of torch."""

    class Finder:
        """Sees which module is imported, and removes itself when that is torch."""

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name != "torch":
                return None
            try:
                sys.meta_path.remove(self)
            except ValueError:
                return None
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None else None
                if spec is not None:
                    _wrap(spec)
                    return spec
            return None

    def _wrap(spec: Any) -> None:
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: Any) -> None:
            try:
                del loader.exec_module  # the loader's own again
            except AttributeError:  # the loader has slots, or another hook removed it
                pass
            execute(module)
            try:
                _imported(module)
            except Exception:  # this hook must never fail the user's import of torch
                pass

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader whose attributes cannot be set
            pass

    def _imported(torch: Any) -> None:
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

    sys.meta_path.insert(0, Finder())


def _import_next() -> None:
    """Run the next sitecustomize on the path: Python imports only the first."""
    import os
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != here]
    spec = PathFinder.find_spec(__name__)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules[__name__] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    try:
        _install()
    except Exception:  # the user's interpreter must start without this hook too
        pass
    _import_next()
