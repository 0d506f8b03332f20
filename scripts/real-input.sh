#!/usr/bin/env bash
# Loads a real tree of files (the Rust toolchain's own folder, or the one given) into a fresh
# database, opens it again and compares every file byte by byte. Prints totals; fails on any
# difference, and if a regular file was skipped or left out. The command may be given in SILTSTONE, else it is
# built in release mode.
set -euo pipefail

source="$(realpath "${1:-$(rustc --print sysroot)}")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z "${SILTSTONE:-}" ]]; then
    cargo build --release --quiet -p siltstone-cli
    SILTSTONE="${CARGO_TARGET_DIR:-target}/release/siltstone"
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# usage: check
# Compares in a process of its own: what it compares came back from the files of the database.
check() {
    local compared
    compared="$("$SILTSTONE" load "$work/db" "$source" --format files --check)"
    echo "$compared"
    [[ "$compared" == "equal $files entries, "*"missing 0, different 0, skipped 0" ]]
}

files="$(find "$source" -type f | wc -l)"
echo "source: $source, $files files"
time "$SILTSTONE" load "$work/db" "$source" --format files
time check
echo "entries: $("$SILTSTONE" count "$work/db")"
time "$SILTSTONE" compact "$work/db"
check
"$SILTSTONE" stats "$work/db"
echo "bytes on disk: $(du -sb "$work/db" | cut -f1)"
