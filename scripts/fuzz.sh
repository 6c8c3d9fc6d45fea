#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME each (default 20s). go test
# takes one target at a time.
set -euo pipefail
cd "$(dirname "$0")/.."

found=0
while IFS=: read -r file target; do
	found=1
	echo "== $(dirname "$file") $target"
	go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-20s}"
done < <(grep -rho --include='*_test.go' -H '^func Fuzz[A-Za-z0-9_]*' . | sed 's|^\./||; s|:func |:|' | sort)
((found)) || {
	echo "no fuzz target found" >&2
	exit 1
}
