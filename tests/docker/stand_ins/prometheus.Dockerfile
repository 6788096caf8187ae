# Debian's Prometheus, as the public image has it: its command are Prometheus' own arguments, promtool is on the PATH.
FROM python:3.11-slim-bookworm
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus wget && rm -rf /var/lib/apt/lists/* \
 && mkdir /prometheus && chown nobody /prometheus
VOLUME /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
