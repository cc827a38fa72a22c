# NVIDIA's image: docker build -f docker/cuda.Dockerfile -t rtp-llm:cuda .
# Not run: no Docker engine and no CUDA image where this was written. ./dev build cuda was, with the
# toolkit of CUDA 13.0 on Debian 12.
FROM nvidia/cuda:13.0.0-devel-ubuntu24.04 AS build
COPY . /src
WORKDIR /src
RUN ./dev build cuda

FROM nvidia/cuda:13.0.0-base-ubuntu24.04
COPY --from=build /src/dist/ /wheels/
# Triton compiles a launcher on first use: gcc and Python's headers.
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv python3-dev gcc libc6-dev
RUN python3 -m venv /opt/rtp-llm
RUN /opt/rtp-llm/bin/pip install --no-cache-dir torch==2.13.0
RUN /opt/rtp-llm/bin/pip install --no-cache-dir /wheels/rtp_llm-*+cu130-*.whl
RUN useradd --create-home rtp-llm
USER rtp-llm
EXPOSE 8088
ENTRYPOINT ["/opt/rtp-llm/bin/rtp-llm"]
CMD ["serve", "/model", "--host", "0.0.0.0"]
