#!/usr/bin/env bash
# usage: histories.sh [HOURS]   runs the one history with everything at once for so many hours (1), and lets two checkers judge it
#
# Two shards with readers in buckets, two routers and clients over TCP, while the network is divided, nodes are killed, stopped and
# taken over, readers start and stop, and slots move. Level 1 is checked by `testkit::linear`, the levels 2 to 4 by their bounds. The
# histories of level 1, and copies of them in which reads have other values, are then judged by porcupine, which shares no code
# with it: the verdicts must be the same. That needs Go; the script says why it skips it. SEED sets the first seed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

hours="${1:-1}"
seconds="$(awk -v hours="$hours" 'BEGIN { printf "%d", hours * 3600 }')"
files="$(mktemp -d)"
trap 'rm -rf "$files"' EXIT

HISTORY_SECONDS="$seconds" HISTORY_FILES="$files" SEED="${SEED:-$RANDOM$RANDOM}" \
    cargo test -p siltstone-server --test it together -- --nocapture </dev/null
# Other ways to the same nodes, without shards.
PARTITION_SECONDS="$((seconds < 60 ? seconds : 60))" HISTORY_FILES="$files" SEED="${SEED:-$RANDOM$RANDOM}" \
    cargo test -p siltstone-server --test it partitions::the_levels -- --nocapture </dev/null

# Real processes that are stopped (SIGSTOP) while others take over, and wake later.
STOP_SECONDS="$((seconds < 60 ? seconds : 60))" SEED="${SEED:-$RANDOM$RANDOM}" \
    cargo test -p siltstone-cli --features server --test stopped -- --nocapture </dev/null

command -v go >/dev/null || { echo "porcupine: skipped, go is not here"; exit 0; }
(cd scripts/porcupine && go build -o "$files/porcupine" . 2>"$files/build.log") || {
    echo "porcupine: skipped, go cannot build it: $(tail -n 1 "$files/build.log")"
    exit 0
}
"$files/porcupine" "$files"
