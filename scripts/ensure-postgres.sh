#!/usr/bin/env bash
# Makes sure that PostgreSQL server binaries, version 14 or newer, are on this
# machine, and installs the distribution's package when they are not. It looks
# where package lab looks (lab/binaries.go). The installation starts no server.
# With CBREPL_PG_MAJOR it looks for that version only, and installs it.
# Tests build the output plugin of plugin/cbrepl_source for PostgreSQL 15: for that
# version the headers, a C compiler and make are ensured, too.
set -euo pipefail

min=14
plugin_version=15 # the one that the plugin's tests build it for
major=${CBREPL_PG_MAJOR:-}
say() { echo "ensure-postgres: $*" >&2; }

# usable DIR: DIR holds the server programs in a version that will do.
usable() {
	local tool version
	for tool in postgres initdb; do
		[[ -x "$1/$tool" ]] || return 1
	done
	version=$("$1/postgres" --version | sed -n 's/^[^)]*) \([0-9]*\).*/\1/p')
	[[ -n "$version" && "$version" -ge "$min" && "${major:-$version}" -eq "$version" ]]
}

find_binaries() {
	local dir
	if [[ -n "${CBREPL_PG_BINDIR:-}" ]]; then
		usable "$CBREPL_PG_BINDIR" && echo "$CBREPL_PG_BINDIR" && return 0
		say "CBREPL_PG_BINDIR is $CBREPL_PG_BINDIR, which holds no PostgreSQL server $min or newer; correct it or unset it"
		exit 1
	fi
	while read -r dir; do
		usable "$dir" && echo "$dir" && return 0
	done < <(
		compgen -G '/usr/lib/postgresql/*/bin' | sort -t/ -k5,5nr
		compgen -G '/usr/pgsql-*/bin' | sort -Vr
		if command -v postgres >/dev/null; then dirname "$(readlink -f "$(command -v postgres)")"; fi
		if command -v pg_config >/dev/null; then pg_config --bindir; fi
	)
	return 1
}

# can_build DIR: extensions can be built for the server in DIR.
can_build() {
	[[ -x "$1/pg_config" && -f "$("$1/pg_config" --includedir-server)/postgres.h" ]] &&
		command -v make >/dev/null && { command -v cc || command -v gcc; } >/dev/null
}

root=()
# need_apt WHAT PACKAGES: ends the script unless packages can be installed.
need_apt() {
	if ! command -v apt-get >/dev/null; then
		say "$1, and this is not a Debian-like system. Install it yourself: on Debian it is $2."
		exit 1
	fi
	[[ "$(id -u)" -eq 0 ]] && return
	if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
		say "$1, and installing it needs root. Run as root: apt-get install $2"
		exit 1
	fi
	root=(sudo)
}

apt() {
	"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300 "$@" >&2
}

# ensure_build DIR: installs what building an extension for the server in DIR needs.
ensure_build() {
	local version packages
	version=$("$1/postgres" --version | sed -n 's/^[^)]*) \([0-9]*\).*/\1/p')
	if [[ "$version" -ne "$plugin_version" ]] || can_build "$1"; then return; fi
	packages="postgresql-server-dev-$version gcc make"
	need_apt "the headers of the PostgreSQL server in $1, a C compiler or make are missing" "$packages"
	say "installing $packages, to build the output plugin"
	apt update
	# shellcheck disable=SC2086 # a list of packages
	apt install --no-install-recommends $packages
	can_build "$1" || {
		say "$packages are installed, but $1/pg_config finds no server headers"
		exit 1
	}
}

if dir=$(find_binaries); then
	ensure_build "$dir"
	[[ "${1:-}" == -v ]] && say "using $dir"
	exit 0
fi

need_apt "no PostgreSQL server binaries (version $min or newer) found (set CBREPL_PG_BINDIR if they are elsewhere)" postgresql
say "no PostgreSQL server binaries (version $min or newer) found; installing them from the distribution"
apt update
package=$(apt-cache search --names-only '^postgresql-[0-9]+$' | sed -n 's/^\(postgresql-\([0-9]*\)\) .*/\2 \1/p' |
	sort -nr | awk -v min="$min" -v major="$major" '$1 >= min && (major == "" || $1 == major) { print $2; exit }')
if [[ -z "$package" ]]; then
	say "the distribution offers no PostgreSQL $min or newer. Add the repository of apt.postgresql.org, or set"
	say "CBREPL_PG_BINDIR to the directory of initdb and postgres of an installation of your own."
	exit 1
fi

# The server package would make and start a cluster of its own. Keep it from
# that, for this installation only.
apt install --no-install-recommends postgresql-common
conf=/etc/postgresql-common/createcluster.conf
saved=$(mktemp)
cat "$conf" >"$saved" 2>/dev/null || true
restore() {
	"${root[@]}" tee "$conf" <"$saved" >/dev/null
	rm -f "$saved"
}
trap restore EXIT
{
	sed '/^ *create_main_cluster/d' "$saved"
	echo "create_main_cluster = false"
} | "${root[@]}" tee "$conf" >/dev/null
apt install --no-install-recommends "$package"

dir=$(find_binaries) || {
	say "$package is installed, but its server binaries are not in /usr/lib/postgresql/*/bin"
	exit 1
}
say "installed $package; using $dir"
ensure_build "$dir"
