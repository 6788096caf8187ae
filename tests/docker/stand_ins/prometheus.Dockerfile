# Debian's Prometheus, set up like the public image: the command is Prometheus' arguments, and promtool is on the PATH.
FROM python:3.11-slim-bookworm
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus wget && rm -rf /var/lib/apt/lists/* \
 && mkdir /prometheus && chown nobody /prometheus
VOLUME /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
