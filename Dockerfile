# The service in a container; docs/how-to/containers.md has the lines to build and run it.
# For a GPU: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126
ARG PYTHON=3.12.11-slim-bookworm

FROM python:${PYTHON} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=dicom,onnx,openvino,pacs,registry,server,slides,tables,volumes
RUN python -m venv /opt/recap
ENV PATH=/opt/recap/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
# First and by itself: the largest layer, which changes least. The range is that of pyproject.toml.
RUN pip install --index-url "${TORCH_INDEX}" "torch>=2.6,<2.14"
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# It is this folder, not a package without a version.
# hadolint ignore=DL3013
RUN pip install ".[${EXTRAS}]"

FROM python:${PYTHON}
RUN useradd --uid 10001 --create-home recap \
    && install --directory --owner=recap --group=recap --mode=0700 /data \
    && install --directory --owner=recap --group=recap /bundles /cache
COPY --from=build /opt/recap /opt/recap
ENV PATH=/opt/recap/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RECAP_CACHE=/cache
USER 10001:10001
WORKDIR /home/recap
# Detectors (read only will do), the encoder's weights, and jobs with their uploads and results.
VOLUME ["/bundles", "/cache", "/data"]
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=8)"]
# A shell for the pattern alone; exec, so that stopping the container reaches the service.
CMD ["sh", "-c", "exec recap serve /bundles/*.recap --host 0.0.0.0 --port 8000 --data /data --token-file /run/secrets/recap-token"]
