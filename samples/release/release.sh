#!/usr/bin/env bash
# Build a release into the directory DIR: one archive a platform, each with the program, man pages, completions, licences and its components
# (CycloneDX), and SHA256SUMS. What comes out depends on the commit, the Go version and VERSION alone. PLATFORMS="linux/amd64" builds some.
set -euo pipefail
cd "$(dirname "$0")/../.."
dist=${1:?usage: release.sh DIR} go=${GO:-go} version=${VERSION:-} commit=${COMMIT:-}
platforms=${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
mkdir -p "$dist"
dist=$(cd "$dist" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' LC_ALL=C
ldflags="-s -w -buildid= -X main.version=$version -X main.commit=$commit"

"$go" build -ldflags "$ldflags" -o "$work/self" ./cmd/shadowtape
"$go" list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/shadowtape | sort -u >"$work/modules"
while read -r path ver dir; do
	printf '==== %s %s\n\n' "$path" "$ver"
	find "$dir" -maxdepth 1 -type f \( -iname 'licen[sc]e*' -o -iname 'notice*' -o -iname 'copying*' \) | sort | while read -r f; do cat "$f"; echo; done
done <"$work/modules" >"$work/LICENSES-third-party.txt"

for p in $platforms; do
	os=${p%/*} arch=${p#*/} name=shadowtape-${version:-devel}-${p/\//-}
	mkdir -p "$work/$name"
	GOOS=$os GOARCH=$arch "$go" build -ldflags "$ldflags" -o "$work/$name/shadowtape" ./cmd/shadowtape
	"$work/self" package "$work/$name/shadowtape" -o "$work/$name"
	cp LICENSE README.md CHANGELOG.md SECURITY.md "$work/LICENSES-third-party.txt" "$work/$name/"
	tar -C "$work" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w -cf - "$name" | gzip -9n >"$dist/$name.tar.gz"
	cp "$work/$name/shadowtape.cdx.json" "$dist/$name.cdx.json"
	echo "$dist/$name.tar.gz"
done
(cd "$dist" && sha256sum -- *.tar.gz *.cdx.json >SHA256SUMS)
