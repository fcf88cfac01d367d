"""IPython magics: one for every noun of :mod:`jupyter_amltrain.commands.registry`.

Loading them imports only modules that IPython has loaded already; the first use of a magic imports the rest.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.magic import no_var_expand, output_can_be_silenced

from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.commands.parser import HelpRequested
from jupyter_amltrain.commands.registry import NOUNS, Context, Noun, Result, parser_of, run
from jupyter_amltrain.errors import ConfirmationNeeded
from jupyter_amltrain.magics import display, tab_completion
from jupyter_amltrain.magics.config import AMLTrain
from jupyter_amltrain.magics.control_channel import ControlChannel
from jupyter_amltrain.magics.notebook_mlflow import NotebookMlflow
from jupyter_amltrain.magics.out_variables import OutVariables

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_amltrain.commands.submit import SubmitRequest
    from jupyter_amltrain.output.scaling_runs import ScalingRuns
    from jupyter_amltrain.run import TrackedRun

_extensions: weakref.WeakKeyDictionary[InteractiveShell, _Extension] = weakref.WeakKeyDictionary()


def register(ip: InteractiveShell) -> None:
    """Register magics, configuration and events on a shell; calling it again has no effect."""
    if ip not in _extensions:
        _extensions[ip] = _Extension(ip)


def unregister(ip: InteractiveShell) -> None:
    """Remove everything that :func:`register` added. Runs continue."""
    extension = _extensions.pop(ip, None)
    if extension is not None:
        extension.remove()


def _help_of_empty_cell(lines: list[str]) -> list[str]:
    """Make ``%%aml_submit --help`` without a cell below it a line; IPython refuses a cell magic without a cell."""
    if lines and lines[0].startswith("%%aml_") and not "".join(lines[1:]).strip():
        words = lines[0].split()
        if {"-h", "--help"} & set(words):
            return [lines[0][1:], *lines[1:]]
    return lines


class _Extension:
    """Everything that the extension added to one shell."""

    def __init__(self, ip: InteractiveShell) -> None:
        self.shell = weakref.ref(ip)
        self.config = AMLTrain(parent=ip)
        self.variables = OutVariables(ip)
        configurables: list[Any] = ip.configurables
        configurables.append(self.config)
        for noun in NOUNS.values():
            kind = "line_cell" if noun.takes_cell else "line"
            ip.magics_manager.register_function(self._magic(noun), kind, f"aml_{noun.name}")
        ip.events.register("pre_run_cell", self.variables.collect)
        self.mlflow = NotebookMlflow(ip, lambda: self.config.tracking_uri)
        self.mlflow.install()
        ip.input_transformers_cleanup.insert(0, _help_of_empty_cell)
        tab_completion.install(ip)
        self.control_channel = ControlChannel(ip, self.config.defaults) if hasattr(ip, "kernel") else None
        if self.control_channel is not None:
            self.control_channel.install()

    def remove(self) -> None:
        ip = self.shell()
        if ip is None:
            return
        for name in NOUNS:
            for kind in ("line", "cell"):
                ip.magics_manager.magics[kind].pop(f"aml_{name}", None)
            vars(ip.magics_manager.user_magics).pop(f"aml_{name}", None)
        configurables: list[Any] = ip.configurables
        configurables.remove(self.config)
        ip.events.unregister("pre_run_cell", self.variables.collect)
        ip.input_transformers_cleanup.remove(_help_of_empty_cell)
        tab_completion.remove(ip)
        self.mlflow.remove()
        self.config.unobserve_all()
        if self.control_channel is not None:
            self.control_channel.remove()

    def _magic(self, noun: Noun) -> Callable[..., Any]:
        """Return the magic of a noun, as IPython calls it."""

        def magic(line: str, cell: str | None = None) -> Any:
            shell: Any = self.shell()
            # As IPython does: with the variables of the frame that called its function, which called this one.
            return self._run(noun, magic_line.expanded(line, lambda text: shell.var_expand(text, depth=4)), cell)

        magic.__doc__ = noun.summary
        # IPython prefers `getdoc`, so that the help text is created only when it is shown.
        magic.getdoc = lambda: parser_of(noun.name, f"%aml_{noun.name}").format_help()  # type: ignore[attr-defined]
        silenced: Callable[..., Any] = output_can_be_silenced(magic)
        return no_var_expand(silenced)

    def _run(self, noun: Noun, line: str, cell: str | None) -> Any:
        shell: Any = self.shell()
        tokens = magic_line.split(line)
        magic_line.check_expanded(tokens, shell.user_ns)
        context = Context(
            prog=f"{'%' if cell is None else '%%'}aml_{noun.name}",
            cell=cell,
            defaults=self.config.defaults(),
            write=lambda text: sys.stdout.write(text),
            notify=print,
            rewrite_line=display.terminal_line(shell, self.config.progress),
            sign_in=display.sign_in_shower(),
            submitted=self._submitted,
            measured=self._measured,
            insert_cell=shell.set_next_input if getattr(shell, "kernel", None) is not None else None,
            charts=getattr(shell, "kernel", None) is not None,
            log_lines=self.config.log_lines,
            namespace=shell.user_ns,
            history=lambda: list(shell.history_manager.input_hist_parsed) if shell.history_manager else [],
            run_cell=lambda text: bool(shell.run_cell(text, store_history=False).success),
        )
        try:
            result = run(noun.name, tokens, context)
        except (HelpRequested, ConfirmationNeeded) as text:  # neither is an error
            print(text)
            return None
        return display.show_result(shell, result, self.config.refresh_rate)

    def _submitted(self, run: TrackedRun, submission: SubmitRequest) -> Result:
        """Show a run, wait for it with ``--wait``, and assign its values to variables."""
        shell = self.shell()
        if submission.as_name and shell is not None:
            shell.user_ns[submission.as_name] = run
        line = display.terminal_line(shell, self.config.progress)
        try:
            display.show_submitted(shell, run, self.config.refresh_rate, wait=submission.wait, line=line)
        finally:
            status = run.run.status
            later = not status.state.terminal or not (submission.wait or status.reason == "launch")
            if run.spec.out and later:
                self.variables.expect(run)
        if submission.wait:
            self.variables.assign(run)
            if kept := run.kept_text(submission.as_name or "_"):
                print(kept)
        return Result(value=run, shown=True)

    def _measured(self, runs: ScalingRuns, submission: SubmitRequest) -> Result:
        """Show the runs of a measurement as one table, and wait for them with ``--wait``."""
        shell = self.shell()
        if submission.as_name and shell is not None:
            shell.user_ns[submission.as_name] = runs
        display.show_measured(shell, runs, self.config.refresh_rate, wait=submission.wait)
        return Result(value=runs, shown=True)
