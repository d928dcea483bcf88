# Images of the operator (without torch) and of the trainer (without kopf).
# --target: operator, trainer, or trainer-compiler, which has the compilers for `compile: true`.
# --build-arg:
#   BASE_IMAGE=python:3.11-slim@sha256:...  Needed. The digest keeps a later build the same.
#   TORCH=cuda|cpu                          torch of the trainer: from the registry (default), or
#                                           a wheel in /wheels, for machines without a GPU.
#   VERSION, REVISION, SOURCE               Labels.
ARG BASE_IMAGE

FROM ${BASE_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_PYTHON=/opt/ddp-trainer/bin/python3 \
    PIP_REQUIRE_VIRTUALENV=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
RUN python3 -m venv --without-pip /opt/ddp-trainer
ENV PATH=/opt/ddp-trainer/bin:$PATH
COPY images/*.py images/

# The files of this project, apart from the packages: a new version changes a small layer only.
FROM build AS own
COPY requirements/build.lock requirements/
RUN pip install --require-hashes -r requirements/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY trainer trainer
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist . && \
    pip install --no-compile --no-deps --root /own dist/*.whl && \
    python3 images/bytecode.py /own /

FROM build AS operator-packages
COPY requirements/operator.lock requirements/
RUN pip install --no-compile --require-hashes -r requirements/operator.lock && \
    python3 images/prune.py && \
    python3 images/bytecode.py /opt/ddp-trainer /opt/ddp-trainer

FROM build AS trainer-packages
ARG TORCH=cuda
COPY requirements/trainer.lock requirements/torch-${TORCH}.lock requirements/
RUN mkdir -p /wheels && \
    pip install --no-compile --require-hashes -r requirements/trainer.lock && \
    pip install --no-compile --require-hashes --no-deps --find-links /wheels \
        -r requirements/torch-${TORCH}.lock && \
    python3 images/prune.py && \
    python3 images/bytecode.py /opt/ddp-trainer /opt/ddp-trainer

FROM ${BASE_IMAGE} AS user
RUN echo 'ddp:x:1000:1000:ddp-trainer:/home/ddp:/usr/sbin/nologin' >> /etc/passwd && \
    echo 'ddp:x:1000:' >> /etc/group && \
    mkdir -m 775 /home/ddp

# Any user may run it, also one without an entry in /etc/passwd and with group 0, as in OpenShift.
# The root file system may be read-only: then only /tmp must be writable. No stage from here on
# runs a command, so that nothing but these files enters the images.
FROM ${BASE_IMAGE} AS base
COPY --from=user /etc/passwd /etc/group /etc/
COPY --from=user --chown=1000:0 /home /home
ENV PATH=/opt/ddp-trainer/bin:$PATH \
    HOME=/tmp \
    USER=ddp \
    XDG_CACHE_HOME=/tmp/.cache \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONNOUSERSITE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_PYTHON=/opt/ddp-trainer/bin/python3 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /home/ddp

FROM base AS operator
# Python's own allocator returns no memory around a small object that remains. The C library raises its thresholds with
# each large text that is freed, and then keeps such texts and the end of each heap, unless they are set.
ENV PYTHONSAFEPATH=1 \
    PYTHONMALLOC=malloc \
    GLIBC_TUNABLES=glibc.malloc.mmap_threshold=1048576:glibc.malloc.trim_threshold=1048576
COPY --from=operator-packages /opt/ddp-trainer /opt/ddp-trainer
COPY --from=own /own /
USER 1000:1000
ENTRYPOINT ["ddp-operator"]
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="ddp-trainer operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# No PYTHONSAFEPATH: a user's script may import a module beside it. The agent's own interpreters
# have the option -P.
FROM base AS trainer
ENV TORCHINDUCTOR_CACHE_DIR=/tmp/.cache/torchinductor \
    TRITON_CACHE_DIR=/tmp/.cache/triton
COPY --from=trainer-packages /opt/ddp-trainer /opt/ddp-trainer
COPY --from=own /own /
USER 1000:1000
ENTRYPOINT ["python3", "-m", "ddp_agent"]
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="ddp-trainer trainer" \
      org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause AND CC-BY-4.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# torch.compile writes C++ for the CPU and, through Triton, C for the GPU. Debian's Python has its
# headers in a package; the Python of python:3.11-slim has them already.
FROM trainer AS trainer-compiler
USER 0:0
# The versions are those of the Debian release of the base image, which its digest does not fix.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install -y --no-install-recommends g++ && \
    if [ -e /usr/bin/python3 ]; then \
        apt-get install -y --no-install-recommends python3-dev; \
    fi && \
    rm -rf /var/lib/apt/lists/*
USER 1000:1000
