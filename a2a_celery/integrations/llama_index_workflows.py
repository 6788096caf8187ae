"""Private API of llama-index-workflows with which the adapter replaces the runtime of an existing workflow."""

from __future__ import annotations

from workflows import Workflow
from workflows.runtime.types.plugin import Runtime

from . import Library

WORKFLOWS = Library("llama-index-workflows>=2.26.1,<3", checked="2.26.1")
WORKFLOWS.require(Workflow, "_switch_runtime")


def switch_runtime(workflow: Workflow, runtime: Runtime) -> None:
    """Make `runtime` execute all runs of a workflow.

    Raises:
        RuntimeError: The workflow has already run.
    """
    workflow._switch_runtime(runtime)
