"""A notebook that somebody else wrote: its outputs name runs of this machine."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, expect

from tests.ui.lab import MS, NotebookPage, code_cell, run_output

HTML = "<img src=x onerror='window.amlPwned = true'><script>window.amlPwned = true</script>"

#: Keeps what the page asks of the notebook's kernel about runs; read with ``page.evaluate("amlAsked")``.
ASKED = """() => {
    window.amlAsked = [];
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    kernel.anyMessage.connect((_, { msg, direction }) => {
        const { op, handle, handles, feed, looks, gpus, details } = msg.content ?? {};
        if (direction === 'send' && msg.header.msg_type === 'amltrain_request') {
            const about = [handle, handles, feed, looks?.length, gpus, details?.length].some(Boolean);
            about && window.amlAsked.push(`${op} ${handle}`);
        }
    });
}"""


def record(handle: str, **more: Any) -> dict[str, Any]:
    """A record that claims to be of a live run."""
    return {
        "schema": 1,
        "handle": handle,
        "name": HTML,
        "detail": HTML,
        "target": HTML,
        "state": "running",
        "done": False,
        "seen_at": 9e9,
        "phases": [{"name": HTML, "start": 1.0, "end": 2.0, "seconds": 1.0}],
        "params": {HTML: HTML},
        "notes": [HTML],
        "doors": [{"kind": "studio", "title": HTML, "url": "javascript:window.amlPwned=true", "hint": HTML}],
        "log": {"tail": HTML, "bytes": 1, "path": HTML},
        **more,
    }


def cells(handle: str) -> list[dict[str, Any]]:
    """Outputs that try to get at the run `handle`: by ``last``, its whole handle, beginnings, as charts, ended."""
    run_id = handle.split("/")[1]
    records = [
        record(handle),
        record("last"),
        record(run_id),
        record(handle[:-1]),
        record(handle, view="dashboard"),
        record(handle, state="completed", done=True, tracking={"state": "pending"}),
        record(handle, kind="monitor"),
    ]
    found = [code_cell(f"# {i}", [run_output(each)]) for i, each in enumerate(records)]
    found[0]["metadata"]["trusted"] = True  # not theirs to say
    return found


def show(notebook: NotebookPage, cell: int) -> Locator:
    """Bring a cell's output into view: JupyterLab takes what is far off out of the page."""
    notebook.page.evaluate("i => jupyterapp.shell.currentWidget.content.scrollToItem(i, 'start')", cell)
    output = notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").nth(cell).locator(".jp-AmlRun")
    expect(output).to_be_visible(timeout=MS)
    return output


def show_all(notebook: NotebookPage, handle: str) -> None:
    """Bring every hostile output into view once: what nobody sees asks for nothing."""
    for cell in range(len(cells(handle))):
        show(notebook, cell)
