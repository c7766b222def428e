# The duestream bridge as one static binary in an empty image, running as nobody in particular.
#
#   docker build -t duestream .
#   docker run -e DUESTREAM_REDIS_URL=redis://host:6379 duestream
#
# BUILDER_IMAGE is any image with the Go toolchain of go.mod, a shell and CA certificates. Where no registry can be
# reached, `.ci/builder-image` makes one from this machine's own Go installation.
ARG BUILDER_IMAGE=golang:1.26

FROM ${BUILDER_IMAGE} AS build
LABEL duestream.stage=build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /out/duestream ./cmd/duestream

FROM scratch
# For rediss:// to servers with publicly trusted certificates.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/duestream /usr/local/bin/duestream
ENV PATH=/usr/local/bin
USER 65532:65532
# Healthy: this container's own bridge turns, also while it waits for its Redis. /dev/shm can be written where the rest is read-only.
ENV DUESTREAM_HEALTH_FILE=/dev/shm/duestream-health
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["duestream", "health", "--self"]
ENTRYPOINT ["duestream"]
CMD ["serve"]
