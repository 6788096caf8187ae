"""Modules in docs/, which is not a package."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from tests.support import ROOT


def load_docs_module(name: str) -> ModuleType:
    """Return the module docs/<name>.py."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
