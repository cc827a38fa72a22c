# AMD's image: docker build -f docker/rocm.Dockerfile -t rtp-llm:rocm .
# Not run: no Docker engine, no ROCm 7 and no AMD GPU where this was written.
FROM rocm/dev-ubuntu-24.04:7.2 AS build
COPY . /src
WORKDIR /src
RUN ./dev build rocm

FROM rocm/dev-ubuntu-24.04:7.2
COPY --from=build /src/dist/ /wheels/
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv python3-dev gcc libc6-dev
RUN python3 -m venv /opt/rtp-llm
RUN /opt/rtp-llm/bin/pip install --no-cache-dir torch==2.13.0+rocm7.2 --index-url https://download.pytorch.org/whl/rocm7.2
RUN /opt/rtp-llm/bin/pip install --no-cache-dir /wheels/rtp_llm-*+rocm7.2-*.whl
RUN useradd --create-home --groups video,render rtp-llm
USER rtp-llm
EXPOSE 8088
ENTRYPOINT ["/opt/rtp-llm/bin/rtp-llm"]
CMD ["serve", "/model", "--host", "0.0.0.0"]
