"""CrewAI settings for the tests in this folder, which `make crewai` runs in a separate environment."""

from __future__ import annotations

import os
import warnings
from tempfile import mkdtemp

# CrewAI reads these variables when it is imported. Workers of fleets inherit them.
os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"
os.environ["CREWAI_STORAGE_DIR"] = mkdtemp(prefix="crewai-")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of CrewAI's import
    import crewai  # noqa: F401
