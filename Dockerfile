# One image for every process: service, workers, jobs and operator.
# Any glibc image with Python >= 3.11 serves as BASE; nothing of the build stage but the environment is kept.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
RUN python3 -m venv /opt/memplane
COPY requirements-image.lock ./
RUN /opt/memplane/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps -r requirements-image.lock
COPY pyproject.toml README.md ./
COPY service service
COPY operator operator
RUN /opt/memplane/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . \
 && /opt/memplane/bin/python -m compileall -q /opt/memplane/lib/python3*/site-packages/memplane /opt/memplane/lib/python3*/site-packages/memplane_operator \
 && /opt/memplane/bin/pip uninstall --yes --quiet hatchling editables pip \
 && cd /opt/memplane/lib/python3*/site-packages \
 # What no process of ours reads: tests, C sources, and the Kubernetes client's second copy for asyncio.
 && find . \( -name tests -o -name test \) -type d -prune -exec rm -rf {} + \
 && find . -type f \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.pyx' -o -name '*.pxd' \) -delete \
 && rm -rf kubernetes/aio

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="memplane" \
      org.opencontainers.image.description="The memory plane for AI agents on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/memplane /opt/memplane
ENV PATH=/opt/memplane/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["memplane"]
CMD ["--help"]
