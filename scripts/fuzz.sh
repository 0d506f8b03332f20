#!/usr/bin/env bash
# Searches for inputs that break a decoder: runs the targets of crates/cli/tests/fuzz under libFuzzer.
#
#   scripts/fuzz.sh                  # all targets, a minute each
#   scripts/fuzz.sh table segment    # these
#   SECONDS_EACH=600 scripts/fuzz.sh # longer
#   KEEP=1 scripts/fuzz.sh text      # puts the inputs that reach more code into the corpus of the replay
#
# Prints the executions of each. Fails if a target panics, takes 2 GiB or more than 10 seconds; the input is in
# fuzz/artifacts/. Needs a nightly compiler, cargo-fuzz, a C++ compiler and python3.
set -uo pipefail
cd "$(dirname "$0")/.."
corpora="$PWD/crates/cli/tests/fuzz/corpus"
seconds="${SECONDS_EACH:-60}"
targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(basename -s .txt -a "$corpora"/*.txt)

# unpack NAME FOLDER: each line of a corpus as a file.
unpack() {
    mkdir -p "$2"
    python3 - "$corpora/$1.txt" "$2" <<'PYTHON'
import hashlib, sys
for line in open(sys.argv[1]):
    data = bytes.fromhex(line.strip())
    open(f"{sys.argv[2]}/{hashlib.sha1(data).hexdigest()}", "wb").write(data)
PYTHON
}

# pack NAME FOLDER: adds short files to the corpus, up to 40 lines.
pack() {
    python3 - "$corpora/$1.txt" "$2" <<'PYTHON'
import os, sys
lines = open(sys.argv[1]).read().split()
found = sorted((open(f"{sys.argv[2]}/{name}", "rb").read().hex() for name in os.listdir(sys.argv[2])), key=len)
more = [line for line in found if line not in lines and 0 < len(line) <= 1024]
open(sys.argv[1], "w").write("".join(line + "\n" for line in lines + more[: max(0, 40 - len(lines))]))
PYTHON
}

cargo +nightly fuzz build --sanitizer none target || exit 1
failed=0
for name in "${targets[@]}"; do
    unpack "$name" "fuzz/corpus/$name"
    mkdir -p "fuzz/artifacts/$name"
    log="$(TARGET="$name" cargo +nightly fuzz run --sanitizer none target "fuzz/corpus/$name" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="fuzz/artifacts/$name/" 2>&1)"
    status=$?
    runs="$(sed -n 's/^stat::number_of_executed_units: *//p' <<<"$log")"
    echo "$name: ${runs:-?} executions in $seconds s, status $status"
    if ((status != 0)); then
        failed=1
        grep -m3 -E "panicked at|SUMMARY|ERROR" -A1 <<<"$log"
    fi
    if [[ -n "${KEEP:-}" ]]; then
        rm -rf "fuzz/corpus/$name.min"
        mkdir -p "fuzz/corpus/$name.min"
        TARGET="$name" cargo +nightly fuzz run --sanitizer none target "fuzz/corpus/$name.min" "fuzz/corpus/$name" -- \
            -merge=1 >/dev/null 2>&1
        pack "$name" "fuzz/corpus/$name.min"
    fi
done
exit "$failed"
