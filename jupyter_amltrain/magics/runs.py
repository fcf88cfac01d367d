"""``%aml_runs``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced

from jupyter_amltrain.commands import lexing
from jupyter_amltrain.commands.parsers import HelpWanted, parser_of

if TYPE_CHECKING:
    from jupyter_amltrain.api import TrackedRun
    from jupyter_amltrain.magics.config import AMLTrain


@magics_class
class RunsMagics(Magics):
    """Lists, follows, attaches and cancels runs."""

    shell: Any  # never None here

    def __init__(self, shell: Any, config: AMLTrain) -> None:
        super().__init__(shell)
        self._config = config

    @output_can_be_silenced
    @line_magic
    def aml_runs(self, line: str) -> Any:
        """List, follow, attach and cancel runs, from any notebook."""
        tokens = lexing.split(line)
        lexing.check_expanded(tokens, self.shell.user_ns)
        try:
            asked = parser_of("runs", "%aml_runs").parse(tokens)
        except HelpWanted as wanted:
            print(wanted)
            return None
        from jupyter_amltrain import api
        from jupyter_amltrain.commands import runs

        if asked.verb == "list":
            print(runs.listing_text(runs.listing(asked.target, asked.limit)))
        elif asked.verb in ("cancel", "delete"):
            if asked.verb == "cancel":
                said = runs.cancel(asked.run)
            else:
                said = runs.delete(asked.run, asked.force, asked.without_mlflow)
            print("\n".join(said))
        elif asked.verb == "export":
            from jupyter_amltrain.commands import export

            path = export.checked(asked.file)
            print(export.export(api.attach(asked.run), path))
        elif asked.verb == "ui":
            _show_page(*runs.mlflow_page())
        else:
            return self._one(asked, api.attach("last" if asked.verb == "last" else asked.run))
        return None

    def _one(self, asked: Any, run: TrackedRun) -> Any:
        from jupyter_amltrain.commands import runs
        from jupyter_amltrain.magics.frames import show_once, terminal_line, view_once

        if asked.verb == "show":
            print(runs.show_text(run))
            return None
        if asked.verb == "logs":
            tail = asked.tail if asked.tail is not None else (self._config.log_lines or None)
            if asked.step and not asked.follow:
                print(runs.child_log_text(run, asked.step, tail).rstrip("\n") or runs.no_log(run))
            elif asked.follow:
                try:
                    if asked.step:
                        runs.follow_child(run, asked.step, sys.stdout.write, tail)
                    else:
                        runs.follow(run, sys.stdout.write, tail)
                except KeyboardInterrupt:
                    print(f"\n{run.handle} goes on. {runs.still(run)}")
            else:
                print(runs.log_text(run, tail).rstrip("\n") or runs.no_log(run))
            return None
        if asked.verb == "dashboard":
            return view_once(self.shell, run.dashboard(window=asked.window))
        if asked.verb == "wait":
            runs.wait(run, asked.timeout, line=terminal_line(self.shell, self._config.progress))
        return show_once(self.shell, run, self._config.refresh_rate)


def _show_page(url: str, path: str) -> None:
    from html import escape

    from IPython.display import display

    from jupyter_amltrain.commands.runs import ui_text

    link = f'MLflow: <a href="{escape(path or url)}" target="_blank" rel="noopener">{escape(url)}</a>'
    display({"text/plain": ui_text(url), "text/html": link}, raw=True)  # type: ignore[no-untyped-call]


# IPython asks `getdoc` first: the help text is made when somebody wants to read it.
vars(RunsMagics)["aml_runs"].getdoc = lambda: parser_of("runs", "%aml_runs").format_help()
