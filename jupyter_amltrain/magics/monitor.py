"""``%aml_monitor``."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced

from jupyter_amltrain.commands import lexing
from jupyter_amltrain.commands.parsers import HelpWanted, parser_of


@magics_class
class MonitorMagics(Magics):
    """Watches a target without a run."""

    shell: Any  # never None here

    @output_can_be_silenced
    @line_magic
    def aml_monitor(self, line: str) -> Any:
        """Watch the GPUs, processors and memory of a target, without a run."""
        tokens = lexing.split(line)
        lexing.check_expanded(tokens, self.shell.user_ns)
        try:
            asked = parser_of("monitor", "%aml_monitor").parse(tokens)
        except HelpWanted as wanted:
            print(wanted)
            return None
        from jupyter_amltrain import api
        from jupyter_amltrain.magics.frames import view_once

        view = api.monitor(target=asked.target, gpus=asked.gpus, window=asked.window, rate=asked.rate)
        if getattr(self.shell, "kernel", None) is None:  # a terminal has no charts
            from jupyter_amltrain.commands.monitor import snapshot_text

            try:
                print(snapshot_text(view.snapshot()))
            finally:
                view.stop()
            return None
        return view_once(self.shell, view)


# IPython asks `getdoc` first: the help text is made when somebody wants to read it.
vars(MonitorMagics)["aml_monitor"].getdoc = lambda: parser_of("monitor", "%aml_monitor").format_help()
