"""Tab as a page asks for it: ``complete_request`` of a real kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import DEADLINE, Kernel, kernel


def tab(live: Kernel, code: str) -> list[str]:
    """What Tab offers at ``|``, each as the whole text up to the cursor."""
    before, _, after = code.partition("|")
    content = live.client.complete(before + after, len(before), reply=True, timeout=DEADLINE)["content"]
    assert content["status"] == "ok" and content["cursor_end"] == len(before)
    return [before[: content["cursor_start"]] + text for text in content["matches"]]


@pytest.mark.thorough
@pytest.mark.parametrize("jedi", [True, False])
def test_kernel_tab_before_and_after_first_use_offers_matches(
    environ: dict[str, str], tmp_path: Path, jedi: bool
) -> None:
    with kernel(environ, tmp_path / "work") as live:
        live.run(f"%load_ext jupyter_amltrain\n%config IPCompleter.use_jedi = {jedi}")
        assert tab(live, "%%aml_submit --require-gpu |\nimport os\nacc = 3") == [
            "%%aml_submit --require-gpu stop",
            "%%aml_submit --require-gpu warn",
        ]
        assert tab(live, "x = 1\nrun = %aml_runs wait l|") == ["x = 1\nrun = %aml_runs wait last"]
        assert tab(live, "%aml_compute use |") == ["%aml_compute use local"]
        quiet = live.run(
            "import sys; print('jupyter_amltrain.kernel.controller' in sys.modules, 'numpy' in sys.modules)"
        )
        assert quiet.stdout == "False False\n"  # Tab starts nothing
        live.run("%%aml_submit --name digits --as run --wait\npass")
        handle = live.run("print(run.handle)").stdout.strip()
        assert tab(live, "%aml_runs logs loc|") == [f"%aml_runs logs {handle}"]
        assert f"%aml_runs cancel {handle}" not in tab(live, "%aml_runs cancel l|")  # it has ended
        assert "%%aml_submit\nsys.path" in tab(live, "%%aml_submit\nsys.pa|")  # Python below
        live.run("%unload_ext jupyter_amltrain")
        assert f"%aml_runs logs {handle}" not in tab(live, "%aml_runs logs loc|")
