"""Matplotlib backend of a job: ``plt.show()`` saves the figures as PNG files into the run folder. It draws with Agg.

``supervise/job_hooks.py`` puts this file into a job's Python, where ``supervise/import_hook.py`` runs :func:`imported`
when the script itself has imported Matplotlib. A backend that the user has chosen stays: by
``matplotlib.use``, ``MPLBACKEND`` or a ``matplotlibrc``. No error of a figure may end the script.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any

#: Variable with the folder for the pictures; if unset or 0, the backend is not used.
FOLDER = "AMLTRAIN_PICTURES"
#: Variable that is set for a cell: figures that it neither shows nor saves are shown at its end, as in a notebook.
AT_EXIT = "AMLTRAIN_PICTURES_AT_EXIT"
#: Limits of the folder; a figure beyond the first replaces the last file, so that the newest is there.
MAX_FILES, MAX_BYTES = 200, 64 << 20
#: Maximum lines about figures that were not saved, in the job's log.
MAX_REPORTS = 5
#: Seconds between two drawings of one figure that stays open (``plt.pause``).
REDRAW_INTERVAL_S = 1.0
#: Module name of this file in the job; see ``import_hook.IMPORTABLE``.
MODULE = "amltrain_pictures"


def imported(matplotlib: Any) -> None:
    """Use this backend if the user has chosen none."""
    folder = os.environ.get(FOLDER)
    if not folder or folder == "0" or os.environ.get("MPLBACKEND"):
        return
    if tuple(matplotlib.__version_info__) < (3, 6):  # earlier versions look for other names in a backend
        return
    settings = matplotlib.rcParams
    chosen = settings._get("backend") if hasattr(settings, "_get") else dict.__getitem__(settings, "backend")
    if chosen is matplotlib.rcsetup._auto_backend_sentinel:
        settings["backend"] = "module://" + MODULE


def __getattr__(name: str) -> Any:
    """Create the classes at first use: the import of this file must not import a part of Matplotlib."""
    if name not in ("FigureCanvas", "FigureManager"):
        raise AttributeError(name)
    globals()["FigureManager"], globals()["FigureCanvas"] = _classes()
    return globals()[name]


def _classes() -> Any:
    import atexit

    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class FigureManager(FigureManagerBase):
        """Saves its figure when it is shown."""

        def show(self) -> None:
            _saver.show(self)

        def destroy(self) -> None:
            _saver.forget(self)
            super().destroy()

        @classmethod
        def pyplot_show(cls, *args: Any, block: Any = None, **options: Any) -> None:
            from matplotlib import is_interactive
            from matplotlib._pylab_helpers import Gcf

            managers = Gcf.get_all_fig_managers()
            for manager in managers:
                _saver.show(manager)
            if block or (block is None and not is_interactive()):  # a window would have been closed now
                for manager in managers:
                    Gcf.destroy(manager)

    class FigureCanvas(FigureCanvasAgg):
        """Agg, which notes that its figure was saved."""

        manager_class = FigureManager

        def draw_idle(self, *args: Any, **options: Any) -> None:
            """Do nothing: a figure that was drawn for no screen would not be stale when it is shown."""

        def print_figure(self, *args: Any, **options: Any) -> Any:
            self.figure._amltrain_saved = True  # type: ignore[attr-defined]
            return super().print_figure(*args, **options)

    atexit.register(_saver.close, os.getpid())
    return FigureManager, FigureCanvas


class _Saver:
    """Saves figures into the folder of the run's pictures."""

    def __init__(self) -> None:
        self._names: Any = {}  # file by manager; a figure that stays open keeps its file
        self._drawn: Any = {}  # monotonic seconds by manager
        self._count = 0
        self._reported: Any = set()

    def show(self, manager: Any, now: bool = False) -> None:
        """Save the figure of a manager, unless it is empty or unchanged."""
        import time

        figure = manager.canvas.figure
        if len(figure.get_children()) < 2:  # only its background, as an inline figure that is not shown either
            return
        age = time.monotonic() - self._drawn.get(manager, -REDRAW_INTERVAL_S)
        if manager in self._names and (not figure.stale or (age < REDRAW_INTERVAL_S and not now)):
            return
        try:
            data = png_of(figure)
            figure.stale = False
            self._drawn[manager] = time.monotonic()
            path = self._write(manager, data, figure.get_label() or "figure")
            if path:
                self._show_in_log(path, data, title_of(figure))
        except Exception as error:  # an error of a figure must not end a training
            self._report("a figure was not saved (%s: %s)" % (type(error).__name__, error))

    def forget(self, manager: Any) -> None:
        """Save the last state of a figure that stayed open, which is closed now."""
        if manager in self._names:
            self.show(manager, now=True)
            self._names.pop(manager, None)
            self._drawn.pop(manager, None)

    def close(self, pid: int) -> None:
        """Save what changed since it was shown last and, for a cell, what was neither shown nor saved."""
        from matplotlib._pylab_helpers import Gcf

        if os.getpid() != pid:  # a process that was forked from this one
            return
        is_cell = os.environ.get(AT_EXIT) == "1"
        for manager in Gcf.get_all_fig_managers():
            saved = getattr(manager.canvas.figure, "_amltrain_saved", False)
            if manager in self._names or (is_cell and not saved):
                self.show(manager, now=True)

    def _show_in_log(self, path: str, data: bytes, title: str) -> None:
        """Let the figure stand where it was shown; without the hook for this, it is among the run's pictures only."""
        try:
            displays = __import__("amltrain_display")
        except ImportError:
            return
        displays.show_picture(path, data, title)

    def _write(self, manager: Any, data: bytes, label: str) -> str:
        """Return the path of the file, empty if there is no room for it."""
        folder = os.environ.get(FOLDER) or ""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder)}
        name = self._names.get(manager)
        if sum(sizes.values()) - sizes.get(name or "", 0) + len(data) > MAX_BYTES:
            self._report("the pictures of this run are over %d MiB; later figures are left out" % (MAX_BYTES >> 20))
            return ""
        if name is None:
            name = self._names[manager] = self._new_name(folder, label, len(sizes))
        part = os.path.join(folder, ".%s.%d.part" % (name, os.getpid()))
        with open(part, "wb") as file:
            file.write(data)
        path = os.path.join(folder, name)
        os.replace(part, path)
        return path

    def _new_name(self, folder: str, label: str, count: int) -> str:
        """Return a file name that no other process of the run has."""
        import re

        base = re.sub(r"[^\w.-]+", "-", label).strip(".-")[:60] or "figure"
        if count >= MAX_FILES:
            self._report("this run has %d pictures; each further figure replaces figure-last.png" % MAX_FILES)
            return "figure-last.png"
        number = self._count if base == "figure" else 0
        while True:
            number += 1
            name = "%s.png" % base if base != "figure" and number == 1 else "%s-%d.png" % (base, number)
            try:
                os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                continue
            self._count = number if base == "figure" else self._count
            return name

    def _report(self, text: str) -> None:
        import sys

        text = " ".join(text.split())[:300]
        if text not in self._reported and len(self._reported) < MAX_REPORTS:
            self._reported.add(text)
            sys.stderr.write("amltrain: %s.\n" % text)


_saver = _Saver()


def png_of(figure: Any) -> bytes:
    """Draw a figure as a notebook shows it: its own resolution, without the empty margin; with its title."""
    import io

    title = title_of(figure)
    data = io.BytesIO()
    figure.savefig(data, format="png", bbox_inches="tight", metadata={"Title": title} if title else None)
    return data.getvalue()


def title_of(figure: Any) -> str:
    """Return the title of a figure, else those of its axes, in one line."""
    own = getattr(figure, "_suptitle", None)
    text = str(own.get_text()) if own is not None else ""
    text = text or ", ".join(filter(None, (str(axes.get_title()) for axes in figure.axes[:6])))
    return " ".join(text.split())[:200]
