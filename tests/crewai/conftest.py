"""Settings of CrewAI for its tests, which run in a separate environment: `make crewai`."""

from __future__ import annotations

import os
import warnings
from tempfile import mkdtemp

# Also for the workers of fleets. CrewAI reads them when it is imported.
os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"
os.environ["CREWAI_STORAGE_DIR"] = mkdtemp(prefix="crewai-")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # CrewAI's own, of its import
    import crewai  # noqa: F401
