# Images that serve the models in /models, without root, from the lock files:
#
#   docker build --target embedded -t emberline .             one HTTP and gRPC process, on CPU
#   docker build --target triton -t emberline-triton .        NVIDIA's Triton Inference Server
#   docker build --build-arg LOCK=cuda ...                    either, with CUDA
#
# Their check asks over HTTP or TLS, as the server speaks; one that wants certificates of its callers needs a check of your own (--health-cmd).
# deploy/helm/emberline runs them on Kubernetes.
#
#   docker run --rm -p 8000:8000 -p 8001:8001 -v "$PWD/models:/models:ro" emberline

ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:25.06-py3

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY requirements requirements
# setuptools comes from the lock too: the build then asks for nothing else.
RUN grep '^setuptools==' requirements/serve.txt > build.txt && pip install --no-cache-dir --no-deps -r build.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY train train
COPY export export
COPY serving serving
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS embedded-environment
ARG LOCK=serve
COPY requirements /requirements
RUN python -m venv /opt/emberline \
    && /opt/emberline/bin/pip install --no-cache-dir --no-deps --extra-index-url https://download.pytorch.org/whl/cpu -r "/requirements/${LOCK}.txt"
COPY --from=wheel /wheels /wheels
# The kernels of the id index, of lookups and of requests are compiled here and copied with the environment: the image itself has no compiler.
# hadolint ignore=DL3008
RUN /opt/emberline/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
    && apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && /opt/emberline/bin/python -m emberline.serving.remap.native \
    && /opt/emberline/bin/python -m emberline.serving.lookup.native \
    && /opt/emberline/bin/python -m emberline.serving.lookup.direct

FROM ${PYTHON_IMAGE} AS embedded
RUN useradd --system --uid 10001 --create-home emberline
COPY --from=embedded-environment /opt/emberline /opt/emberline
COPY deploy/docker/health.py /opt/health.py
ENV PATH=/opt/emberline/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
VOLUME /models
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python3", "/opt/health.py"]
ENTRYPOINT ["emberline"]
CMD ["serve", "/models", "--backend", "embedded", "--host", "0.0.0.0"]

FROM ${TRITON_IMAGE} AS triton
ARG LOCK=serve
COPY requirements /requirements
# Triton's Python backend finds packages by PATH's python3. The environment is made by this image's own Python, for which its stub was built.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/emberline \
    && /opt/emberline/bin/pip install --no-cache-dir --no-deps --extra-index-url https://download.pytorch.org/whl/cpu -r "/requirements/${LOCK}.txt"
COPY --from=wheel /wheels /wheels
RUN /opt/emberline/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/emberline/bin/python -m emberline.serving.remap.native \
    && /opt/emberline/bin/python -m emberline.serving.lookup.native \
    && /opt/emberline/bin/python -m emberline.serving.lookup.direct \
    && useradd --system --uid 10001 --create-home emberline
COPY deploy/docker/health.py /opt/health.py
ENV PATH=/opt/emberline/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
VOLUME /models
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python3", "/opt/health.py"]
ENTRYPOINT ["emberline"]
CMD ["serve", "/models", "--backend", "triton", "--host", "0.0.0.0"]
