# The image for Intel GPUs: docker build -f docker/xpu.Dockerfile -t rtp-llm:xpu .
# Not run: no Docker engine and no Intel GPU where this was written. ./dev build xpu was, with the
# SYCL toolchain of packages.
FROM python:3.11-slim-bookworm AS build
COPY . /src
WORKDIR /src
RUN ./dev build xpu

FROM intel/deep-learning-essentials:2025.3.1-0-devel-ubuntu24.04
COPY --from=build /src/dist/ /wheels/
RUN apt-get update && apt-get install -y --no-install-recommends software-properties-common \
 && add-apt-repository ppa:deadsnakes/ppa \
 && apt-get install -y --no-install-recommends python3.11-venv python3.11-dev gcc libc6-dev
RUN python3.11 -m venv /opt/rtp-llm
RUN /opt/rtp-llm/bin/pip install --no-cache-dir torch==2.13.0+xpu --index-url https://download.pytorch.org/whl/xpu
RUN /opt/rtp-llm/bin/pip install --no-cache-dir /wheels/rtp_llm-*+xpu-*.whl
RUN useradd --create-home --groups video,render rtp-llm
USER rtp-llm
EXPOSE 8088
ENTRYPOINT ["/opt/rtp-llm/bin/rtp-llm"]
CMD ["serve", "/model", "--host", "0.0.0.0"]
