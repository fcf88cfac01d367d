"""The magics: thin adapters of :mod:`jupyter_amltrain.commands` to IPython.

Loading them imports what IPython has loaded already and nothing else; the first use
of a magic loads the rest.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.magics import completion
from jupyter_amltrain.magics.compute import ComputeMagics
from jupyter_amltrain.magics.config import AMLTrain
from jupyter_amltrain.magics.control_channel import ControlChannel
from jupyter_amltrain.magics.model import ModelMagics
from jupyter_amltrain.magics.monitor import MonitorMagics
from jupyter_amltrain.magics.runs import RunsMagics
from jupyter_amltrain.magics.submit import SubmitMagics
from jupyter_amltrain.magics.values_home import ValuesHome

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_NAMES = ("aml_compute", "aml_model", "aml_monitor", "aml_runs", "aml_submit")
_extensions: weakref.WeakKeyDictionary[InteractiveShell, _Extension] = weakref.WeakKeyDictionary()


def register(ip: InteractiveShell) -> None:
    """Register magics, configuration and events on a shell; twice is harmless."""
    if ip not in _extensions:
        _extensions[ip] = _Extension(ip)


def unregister(ip: InteractiveShell) -> None:
    """Remove what :func:`register` added. Runs go on."""
    extension = _extensions.pop(ip, None)
    if extension is not None:
        extension.remove()


class _Extension:
    """All that we added to one shell."""

    def __init__(self, ip: InteractiveShell) -> None:
        self.shell = weakref.ref(ip)
        self.config = AMLTrain(parent=ip)
        self.home = ValuesHome(ip)
        self.magics = [
            ComputeMagics(ip),
            ModelMagics(ip),
            MonitorMagics(ip),
            RunsMagics(ip, config=self.config),
            SubmitMagics(ip, config=self.config, home=self.home),
        ]
        configurables: list[Any] = ip.configurables
        configurables.append(self.config)
        ip.register_magics(*self.magics)
        ip.events.register("pre_run_cell", self.home.collect)
        completion.install(ip)
        self.control_channel = ControlChannel(ip, self.config.defaults) if hasattr(ip, "kernel") else None
        if self.control_channel is not None:
            self.control_channel.install()

    def remove(self) -> None:
        ip = self.shell()
        if ip is None:
            return
        for kind in ("line", "cell"):
            for name in _NAMES:
                ip.magics_manager.magics[kind].pop(name, None)
        for magics in self.magics:
            ip.magics_manager.registry.pop(type(magics).__name__, None)
        ours = [self.config, *self.magics]
        ip.configurables[:] = [c for c in ip.configurables if not any(c is x for x in ours)]
        ip.events.unregister("pre_run_cell", self.home.collect)
        completion.remove(ip)
        self.config.unobserve_all()
        if self.control_channel is not None:
            self.control_channel.remove()
