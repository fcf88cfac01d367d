"""``%%aml_submit`` and ``%aml_submit``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, output_can_be_silenced

from jupyter_amltrain.commands import lexing
from jupyter_amltrain.commands.parsers import HelpWanted, parser_of

if TYPE_CHECKING:
    from jupyter_amltrain.api import TrackedRun
    from jupyter_amltrain.magics.config import AMLTrain
    from jupyter_amltrain.magics.values_home import ValuesHome


#: A cell is over when its job is its target's, so that a kernel that dies loses nothing;
#: milliseconds as a rule, and this many seconds at most.
ACCEPTED = 5.0


@magics_class
class SubmitMagics(Magics):
    """Submits cells and scripts."""

    shell: Any  # never None here

    def __init__(self, shell: Any, config: AMLTrain, home: ValuesHome) -> None:
        super().__init__(shell)
        self._config = config
        self._home = home

    @output_can_be_silenced
    @line_cell_magic
    def aml_submit(self, line: str, cell: str | None = None) -> TrackedRun | None:
        """Run this cell (or a script) as a supervised, tracked run."""
        prog = "%aml_submit" if cell is None else "%%aml_submit"
        tokens = lexing.split(line)
        lexing.check_expanded(tokens, self.shell.user_ns)
        from jupyter_amltrain.commands import submit

        try:
            submission = submit.understand(tokens, cell, prog=prog, defaults=self._config.defaults())
        except HelpWanted as wanted:
            print(wanted)
            return None
        if submission.dry_run:
            print(submit.plan_text(submission))
            return None
        from jupyter_amltrain.magics.frames import show_once, terminal_line

        run = submit.send(submission)
        if submission.as_name:
            self.shell.user_ns[submission.as_name] = run
        from jupyter_amltrain.commands.runs import going_on, wait

        try:
            with going_on(run):
                show_once(self.shell, run, self._config.refresh_rate)
                with contextlib.suppress(TimeoutError):  # a large folder on its way: the cell need not wait
                    run.accepted(ACCEPTED)
                if submission.wait:
                    wait(run, line=terminal_line(self.shell, self._config.progress))
        finally:
            status = run.run.status
            later = not status.state.terminal or not (submission.wait or status.reason == "launch")
            if run.spec.out and later:
                self._home.expect(run)
        if submission.wait:
            self._home.assign(run)
        return run


# IPython asks `getdoc` first: the help text is made when somebody wants to read it.
vars(SubmitMagics)["aml_submit"].getdoc = lambda: parser_of("submit", "%aml_submit").format_help()
