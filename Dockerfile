# syntax=docker/dockerfile:1
# Two images: --target operator (no torch) and --target trainer (no kopf).
# The trainer's torch is chosen by --build-arg TORCH=cuda (default, from the registry) or TORCH=cpu
# (a wheel that the build finds under /wheels, as for machines without a GPU).
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS wheel
WORKDIR /src
COPY requirements/build.lock requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY trainer trainer
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist .

FROM ${BASE_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONNOUSERSITE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN groupadd --gid 1000 ddp && useradd --uid 1000 --gid 1000 --create-home ddp
WORKDIR /home/ddp

FROM base AS operator
COPY requirements/operator.lock /tmp/requirements/
RUN pip install --require-hashes -r /tmp/requirements/operator.lock
COPY --from=wheel /dist /tmp/dist
RUN pip install --no-deps /tmp/dist/*.whl && rm -rf /tmp/dist /tmp/requirements
USER 1000:1000
ENTRYPOINT ["ddp-operator"]

FROM base AS trainer
ARG TORCH=cuda
# A user's script may import a module beside it. The agent runs its own interpreters with -P.
ENV PYTHONSAFEPATH=""
COPY requirements/trainer.lock requirements/torch-${TORCH}.lock /tmp/requirements/
RUN pip install --require-hashes -r /tmp/requirements/trainer.lock && \
    mkdir -p /wheels && \
    pip install --require-hashes --no-deps --find-links /wheels \
        -r /tmp/requirements/torch-${TORCH}.lock
COPY --from=wheel /dist /tmp/dist
RUN pip install --no-deps /tmp/dist/*.whl && rm -rf /tmp/dist /tmp/requirements
# Bytecode once here rather than by every rank of every start: the root file system is read-only.
RUN python3 -m compileall -q -j 0 "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
USER 1000:1000
ENTRYPOINT ["python3", "-m", "ddp_agent"]
