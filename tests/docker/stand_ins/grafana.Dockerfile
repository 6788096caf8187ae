# Stand-in for Grafana, which no package registry has. It waits as Grafana's user, so that a test can check which files
# Grafana would read.
FROM python:3.11-slim-bookworm
USER 472:0
ENTRYPOINT ["sleep", "infinity"]
