# The image holds the static binary and the certificates that an https upstream is trusted by, nothing else.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
ARG COMMIT=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}" -o /shadowtape ./cmd/shadowtape

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /shadowtape /shadowtape
USER 65532:65532
ENTRYPOINT ["/shadowtape"]
