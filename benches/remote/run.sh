#!/usr/bin/env bash
# usage: scripts/servers.sh --run benches/remote/run.sh [options] [measurement ...]
#
# Measures siltstone-remote, and SlateDB on the same server. Builds first. Without measurements it makes all of them.
# Run it on a quiet machine. docs/remote-benchmarks.md says what is measured and has the results.
#
#   --dir DIR        where to make the databases                       [benches/remote/results]
#   --delays A,B     milliseconds that each request takes longer       [0,20,100]
#   --rounds N       the tables show medians of so many rounds         [3]
#   --seconds S      time of each loop of writers                      [2]
#   --records N      records of the data sets                          [1000000]
#   --gigabytes G    the database of the takeovers                     [10]
#   --build-only     build and end
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
dir="$here/results"
options=()
measurements=()
builds_only=
while (($# > 0)); do
    case "$1" in
        --dir) dir="$2"; shift ;;
        --build-only) builds_only=yes ;;
        --*) options+=("$1" "$2"); shift ;;
        *) measurements+=("$1") ;;
    esac
    shift
done
cargo build --release --quiet --manifest-path "$here/Cargo.toml"
[[ -z "$builds_only" ]] || exit 0
if ((${#measurements[@]} == 0)); then
    measurements=(fill takeover local synced stored visible gets bounds hits backups versus-puts versus-reads versus-crash versus-million)
fi
mkdir -p "$dir"
for measurement in "${measurements[@]}"; do
    echo "== $measurement"
    # A process each: the peak of its memory is its own.
    "$here/target/release/siltstone-remote-bench" "$measurement" --url "$SILTSTONE_REMOTE_URL" --dir "$dir" ${options[@]+"${options[@]}"}
done
