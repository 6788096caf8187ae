# No Grafana: no registry of packages has it. Waits, as Grafana's user, so that a test sees which files Grafana would get.
FROM python:3.11-slim-bookworm
USER 472:0
ENTRYPOINT ["sleep", "infinity"]
