"""Tools for contributors: coverage (``measure_coverage``), mutation samples (``mutate``) and flakiness (``stress``)."""
