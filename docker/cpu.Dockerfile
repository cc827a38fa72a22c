# The CPU's image: docker build -f docker/cpu.Dockerfile -t rtp-llm:cpu .
# Run: the RUN lines, by //tools/newcomer:soak_tests, on the Debian that the images have. Not run: a
# Docker engine.
FROM python:3.11-slim-bookworm AS build
COPY . /src
WORKDIR /src
RUN ./dev build cpu

FROM python:3.11-slim-bookworm
COPY --from=build /src/dist/ /wheels/
RUN pip install --no-cache-dir torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir /wheels/rtp_llm-*+cpu-*.whl
RUN useradd --create-home rtp-llm
USER rtp-llm
EXPOSE 8088
ENTRYPOINT ["rtp-llm"]
CMD ["serve", "/model", "--host", "0.0.0.0"]
