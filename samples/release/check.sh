#!/usr/bin/env bash
# Build the release twice, in this directory and in a copy elsewhere with a build cache of its own, and compare what came out.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
export VERSION=${VERSION:-check} COMMIT=${COMMIT:-none} SOURCE_DATE_EPOCH=1700000000
bash samples/release/release.sh "$work/one"
mkdir "$work/a copy in another place"
git ls-files -z | tar --null -T - -cf - | tar -C "$work/a copy in another place" -xf -
(cd "$work/a copy in another place" && GOCACHE="$work/cache" bash samples/release/release.sh "$work/two")
diff "$work/one/SHA256SUMS" "$work/two/SHA256SUMS"
echo "the same twice: $(wc -l <"$work/one/SHA256SUMS") files"
