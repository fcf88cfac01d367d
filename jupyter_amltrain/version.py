"""Version of this package."""

from __future__ import annotations


def read_version() -> str:
    """Return the version that the build wrote, else that of the installed package."""
    try:
        from jupyter_amltrain._version import __version__

        return str(__version__)
    except ImportError:  # a checkout that was never built
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("jupyter_amltrain")
        except PackageNotFoundError:
            return "0+unknown"
