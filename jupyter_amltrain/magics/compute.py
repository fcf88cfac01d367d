"""``%aml_compute``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class

from jupyter_amltrain.commands import lexing
from jupyter_amltrain.commands.parsers import HelpWanted, parser_of
from jupyter_amltrain.errors import AmlTrainError, ConfirmationNeeded


@magics_class
class ComputeMagics(Magics):
    """Lists, checks, chooses, creates and deletes compute targets."""

    shell: Any  # never None here

    @line_magic
    def aml_compute(self, line: str) -> None:
        """List, check, choose, create and delete the places where runs can run."""
        tokens = lexing.split(line)
        lexing.check_expanded(tokens, self.shell.user_ns)
        try:
            asked = parser_of("compute", "%aml_compute").parse(tokens)
        except HelpWanted as wanted:
            print(wanted)
            return
        from jupyter_amltrain.commands import azure_sizes, compute, connect
        from jupyter_amltrain.commands.compute_parser import WORKS

        if asked.verb in connect.VERBS:
            try:
                print(connect.carry_out(asked, _shower())[0])
            except KeyboardInterrupt:
                raise AmlTrainError("Connecting was given up; nothing has changed.") from None
        elif asked.verb in azure_sizes.VERBS:
            print(azure_sizes.carry_out(asked)[0])
        elif asked.verb == "list":
            print(compute.listing_text(compute.listing()))
        elif asked.verb == "use":
            print(compute.use(asked.target))
        elif asked.verb == "edit":
            print(compute.edit(asked.target, asked.share_gpus))
        elif asked.verb == "show":
            print(compute.show_text(compute.show(asked.target)))
        elif asked.verb in WORKS:
            try:
                print(compute.carry_out(asked, wait=asked.wait, write=print))
            except ConfirmationNeeded as question:  # nothing is wrong: a person is asked
                print(question)
            except KeyboardInterrupt:
                raise AmlTrainError(
                    f"Stopped waiting. The {asked.verb} continues in the background.",
                    hint="%aml_compute list shows how far it is.",
                ) from None
        else:
            print(compute.test_text(compute.show(asked.target)))


def _shower() -> Callable[[dict[str, Any]], None]:
    """Shows a sign-in as a link and a code, and takes both away when it is over."""
    from IPython import display

    from jupyter_amltrain.commands.connect import sign_in_html

    # IPython's own is not typed
    first: Any = display.display
    handle: Any = None

    def show(event: dict[str, Any]) -> None:
        nonlocal handle
        if event.get("kind") != "sign-in":
            return  # the line at the end tells it all; connecting takes a second
        over = not event.get("text")
        data = {"text/plain": "The sign-in is over." if over else event["text"]}
        if not over:
            data["text/html"] = sign_in_html(event)
        if handle is not None:
            handle.update(data, raw=True)
        elif not over:
            handle = first(data, raw=True, display_id=True)

    return show


# IPython asks `getdoc` first: the help text is made when somebody wants to read it.
vars(ComputeMagics)["aml_compute"].getdoc = lambda: parser_of("compute", "%aml_compute").format_help()
