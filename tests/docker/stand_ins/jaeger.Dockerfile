# Rotel, an OpenTelemetry collector that the package index has. It writes what it collects to /tmp/traces.
FROM python:3.11-slim-bookworm
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends libpython3.11 && rm -rf /var/lib/apt/lists/* \
 && pip install -q --root-user-action=ignore 'rotel>=0.0.1a15' \
 && ln -s "$(python -c 'import rotel; print(rotel.__path__[0])')/rotel-agent" /usr/local/bin/rotel-agent
USER 10001:10001
ENTRYPOINT ["sh", "-c", "exec rotel-agent start --otlp-http-endpoint $JAEGER_LISTEN_HOST:4318 --otlp-grpc-endpoint $JAEGER_LISTEN_HOST:4317 --exporter blackhole --debug-log traces --debug-log-verbosity detailed > /tmp/traces 2>&1"]
