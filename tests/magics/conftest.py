from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from jupyter_amltrain import magics
from jupyter_amltrain.errors import AmlTrainError


@pytest.fixture
def ip(api: Any) -> Iterator[InteractiveShell]:
    """A shell of this test with the extension loaded, over the real local target."""
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "jupyter_amltrain")
    yield shell
    magics.unregister(shell)
    AmlTrainError.short = True


Cell = Callable[..., ExecutionResult]


@pytest.fixture
def cell(ip: InteractiveShell) -> Cell:
    """Run a cell that must succeed."""

    def run(source: str) -> ExecutionResult:
        result = ip.run_cell(source)
        assert result.error_before_exec is None
        assert result.error_in_exec is None, result.error_in_exec
        return result

    return run


@pytest.fixture
def fails(ip: InteractiveShell) -> Callable[[str], AmlTrainError]:
    """Run a cell that must fail with an error of this package, shown as one sentence."""

    def run(source: str) -> AmlTrainError:
        result = ip.run_cell(source)
        assert isinstance(result.error_in_exec, AmlTrainError), result
        return result.error_in_exec

    return run
