"""The browser's heap while a dashboard of 8 GPUs gets a day of ticks: after 24 hours against after the first.

The frames are handed to the live model in the page as the websocket would hand them
over, some hundreds between two drawings; the heap is read after garbage was collected.
``python -m benchmarks.heap 120`` lets only 120 ticks pass between two drawings, which takes longer.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.browsers import Measured, lab
from benchmarks.timing import verdict

GPUS, HOUR, DAY = 8, 3600, 86_400
MIB = 2.0**20

_SHOW = """
from benchmarks import live_source
live_source.play({gpus}, 90, goes_on=False)
"""
_FEED = """
import json
feed = live_source.feed()
feed.rate = 50.0
columns = feed.columns[0]
node = columns.node
print("FEED" + json.dumps([feed.comm.comm_id, node.node, len(columns.names), node.ticks, node.last_t]) + "END")
"""
_DRIVE = """async ([id, node, columns, first, t0, count, batch]) => {
    const comm = jupyterapp.shell.currentWidget.sessionContext.session.kernel._comms.get(id);
    for (let s = first; s < first + count; s++) {
        // The layout of `jupyter_amltrain.kernel.samples.encode`: node, number of ticks, first tick; times; values.
        const frame = new ArrayBuffer(16 + 4 * columns);
        new Uint16Array(frame, 0, 2).set([node, 1]);
        new Uint32Array(frame, 4, 1)[0] = s;
        new Float64Array(frame, 8, 1)[0] = t0 + s - first + 1;
        const y = new Float32Array(frame, 16);
        for (let c = 0; c < columns; c++) {
            y[c] = 50 + 40 * Math.sin(s / 40 + c) + 10 * Math.random();
        }
        comm.onMsg({
            channel: 'iopub', header: {msg_type: 'comm_msg', msg_id: String(s)}, parent_header: {}, metadata: {},
            content: {comm_id: id, data: {method: 'custom', content: {n: 1}}}, buffers: [new DataView(frame)]
        });
        if (s % batch === 0) {
            // Until it is drawn: the gate draws at the end of a timer.
            await new Promise(done => setTimeout(() => requestAnimationFrame(() => setTimeout(done, 0)), 25));
        }
    }
}"""


class Day:
    """Drives one page."""

    def __init__(self, page: Measured, batch: int) -> None:
        self._page, self._batch = page, batch
        page.notebook.cell(_FEED)
        text = page.notebook.outputs_text()
        found = json.loads(text.partition("FEED")[2].partition("END")[0])
        self._comm, self._node, self._columns, self._next, self._t = found
        self.ticks = 0
        #: Changes of the first line's path: every drawing makes one.
        page.notebook.page.evaluate(
            """() => {
                window.amltrainDraws = 0;
                const path = document.querySelector('.bqplot path.line');
                new MutationObserver(() => { window.amltrainDraws += 1; })
                    .observe(path, {attributes: true, attributeFilter: ['d']});
            }"""
        )

    def pass_(self, until: int) -> None:
        """Let ticks come until so many have."""
        count = until - self.ticks
        arguments: list[Any] = [self._comm, self._node, self._columns, self._next, self._t, count, self._batch]
        self._page.notebook.page.evaluate(_DRIVE, arguments)
        self._next, self._t, self.ticks = self._next + count, self._t + count, until

    @property
    def draws(self) -> int:
        return int(self._page.notebook.page.evaluate("() => window.amltrainDraws"))


def main(batch: int = 400) -> None:
    """Print the table."""
    heaps = {}
    with lab() as show:
        page = show("heap", "%load_ext jupyter_amltrain", _SHOW.format(gpus=GPUS))
        page.notebook.page.locator(".jp-AmlDashboard .bqplot path.line").first.wait_for(state="attached")
        day = Day(page, batch)
        begin, before = time.monotonic(), ""
        print(f"Heap of the page during 24 h of ticks of {GPUS} GPUs (after garbage collection)")
        for hour in (1, 2, 4, 8, 16, 24):
            day.pass_(hour * HOUR)
            drawn = page.drawn()
            assert len(drawn) > 5000 and drawn != before, "it is drawn"
            before = drawn
            heaps[hour] = page.heap()
            print(f"  hour {hour:>2}: {heaps[hour] / MIB:7.2f} MiB, {page.nodes()} DOM nodes, {day.draws} drawings")
        grown = (heaps[24] - heaps[1]) / MIB
        print(f"  {DAY} ticks in {time.monotonic() - begin:.0f} s; {grown:+.2f} MiB from hour 1 to hour 24")
    print(verdict("heap after 24 h / after 1 h", heaps[24] / heaps[1], 1.10))


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
