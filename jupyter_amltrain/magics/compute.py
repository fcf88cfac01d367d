"""``%aml_compute``."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class

from jupyter_amltrain.commands import values
from jupyter_amltrain.commands.parsers import HelpWanted, parser_of


@magics_class
class ComputeMagics(Magics):
    """Lists, checks and chooses compute targets."""

    shell: Any  # never None here

    @line_magic
    def aml_compute(self, line: str) -> None:
        """List, check and choose the places where runs can run."""
        tokens = values.split(line)
        values.check_expanded(tokens, self.shell.user_ns)
        try:
            asked = parser_of("compute", "%aml_compute").parse(tokens)
        except HelpWanted as wanted:
            print(wanted)
            return
        from jupyter_amltrain.commands import compute

        if asked.verb == "list":
            print(compute.listing_text(compute.listing()))
        elif asked.verb == "use":
            print(compute.use(asked.target))
        elif asked.verb == "show":
            print(compute.show_text(compute.show(asked.target)))
        else:
            print(compute.test_text(compute.show(asked.target)))


# IPython asks `getdoc` first: the help text is made when somebody wants to read it.
vars(ComputeMagics)["aml_compute"].getdoc = lambda: parser_of("compute", "%aml_compute").format_help()
