"""``%aml_compute``."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class

from jupyter_amltrain.commands import values
from jupyter_amltrain.commands.parsers import HelpWanted, parser_of


@magics_class
class ComputeMagics(Magics):
    """Lists, checks, chooses, creates and deletes compute targets."""

    shell: Any  # never None here

    @line_magic
    def aml_compute(self, line: str) -> None:
        """List, check, choose, create and delete the places where runs can run."""
        tokens = values.split(line)
        values.check_expanded(tokens, self.shell.user_ns)
        try:
            asked = parser_of("compute", "%aml_compute").parse(tokens)
        except HelpWanted as wanted:
            print(wanted)
            return
        from jupyter_amltrain.commands import compute
        from jupyter_amltrain.commands.compute_parser import WORKS

        if asked.verb == "list":
            print(compute.listing_text(compute.listing()))
        elif asked.verb == "use":
            print(compute.use(asked.target))
        elif asked.verb == "show":
            print(compute.show_text(compute.show(asked.target)))
        elif asked.verb in WORKS:
            print(compute.carry_out(asked, wait=asked.wait, write=print))
        else:
            print(compute.test_text(compute.show(asked.target)))


# IPython asks `getdoc` first: the help text is made when somebody wants to read it.
vars(ComputeMagics)["aml_compute"].getdoc = lambda: parser_of("compute", "%aml_compute").format_help()
