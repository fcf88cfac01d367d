"""Run notebook cells as supervised, tracked training runs.

::

    %load_ext jupyter_amltrain

    %%aml_submit --param lr=0.1 --out accuracy
    ...

The same without IPython::

    import jupyter_amltrain as aml
    run = aml.submit("train.py", params={"lr": 0.1})
    run.wait()

Importing this package is cheap: its names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_API = ("TrackedRun", "attach", "compute", "current_target", "monitor", "pipeline", "runs",
        "step", "submit", "sweep", "targets", "use")  # fmt: skip

__all__ = [*_API, "errors", "load_ipython_extension", "unload_ipython_extension"]


def __getattr__(name: str) -> Any:
    if name in _API:
        from jupyter_amltrain import api

        return getattr(api, name)
    if name == "errors":
        import jupyter_amltrain.errors as errors

        return errors
    if name == "__version__":
        from jupyter_amltrain.version import read_version

        return read_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def load_ipython_extension(ip: InteractiveShell) -> None:
    """``%load_ext jupyter_amltrain``: register the magics."""
    from jupyter_amltrain.magics import register

    register(ip)


def unload_ipython_extension(ip: InteractiveShell) -> None:
    """``%unload_ext jupyter_amltrain``: unregister the magics; runs continue."""
    from jupyter_amltrain.magics import unregister

    unregister(ip)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "jupyter-amltrain"}]


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "jupyter_amltrain.server_extension"}]
