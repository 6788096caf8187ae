"""Tools of contributors: coverage (``measure_coverage``), mutation samples (``mutate``) and flakiness (``stress``)."""
