#!/usr/bin/env bash
# Measures siltstone beside its rivals and writes tables: builds benches/peers, runs every engine
# on every sequence of workloads in processes of their own, in turn, and reports the medians.
# Run it on a quiet machine. docs/benchmarks.md says what is measured and how.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
packages=(clang libclang-dev libleveldb-dev libdb-dev g++)

usage() {
    cat <<'TEXT'
usage: benches/peers/run.sh [options]

  --records N           records of the data set                      [1000000]
  --ops N               operations of each workload that is not a fill  [the records]
  --rounds N            runs of each engine and sequence             [3]
  --engines A,B         engines                                      [all]
  --workloads "A,B C"   sequences of workloads, separated by blanks; each begins on an empty
                        database, each is a process of its own       [see below]
  --key-size N          bytes of a key                               [16]
  --value-size N        bytes of a value                             [100]
  --sync-interval-ms N  siltstone's own syncs, 0 for none            [0]
  --no-settle           leave flushing and compacting to the engines
  --warm-gib N          memory to touch first                        [two thirds of what is free]
  --dir DIR             where to make the databases       [benches/peers/results]
  --results DIR         folder for runs and tables        [benches/peers/results]
  --machine TEXT        what to say of the machine        [two cores of a nested VM]
  --publish             copy the tables to docs/benchmarks.md and .json
  --report-only         measure nothing; make tables of the runs that are there
  --install-deps        install what the build needs (apt-get) and end
  --without-rocksdb     compile without it, which is most of the time that compiling takes
  --without-berkeley    compile without Berkeley DB, where its library cannot be had
  --jobs N              compile with so many jobs         [cargo's default]

Runs of other records or value sizes stay and are reported, too; those of the same are replaced.
TEXT
}

default_sequences() {
    echo "fillseq fillbatch fillsync"
    echo "fillrandom,readrandom,readmissing,seekrandom,scan,scan-reverse,readwhilewriting"
    echo "overwrite,deleterandom"
    echo "ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f,ycsb-w"
}

records=1000000 ops="" rounds=3 engines="" workloads="" key_size=16 value_size=100
sync_interval_ms=0 settle=() warm_gib="" database="" results="" machine="two cores of a nested VM"
publish=0 report_only=0 jobs=() rocksdb=rocksdb berkeley=berkeley
command="benches/peers/run.sh"
for argument in "$@"; do
    [[ "$argument" != *[[:space:]]* ]] || argument="\"$argument\""
    command+=" $argument"
done

while (($# > 0)); do
    case "$1" in
    --records) records="$2" && shift ;;
    --ops) ops="$2" && shift ;;
    --rounds) rounds="$2" && shift ;;
    --engines) engines="${2//,/ }" && shift ;;
    --workloads) workloads="$2" && shift ;;
    --key-size) key_size="$2" && shift ;;
    --value-size) value_size="$2" && shift ;;
    --sync-interval-ms) sync_interval_ms="$2" && shift ;;
    --no-settle) settle=(--no-settle) ;;
    --warm-gib) warm_gib="$2" && shift ;;
    --dir) database="$(realpath -m "$2")" && shift ;;
    --results) results="$(realpath -m "$2")" && shift ;;
    --machine) machine="$2" && shift ;;
    --publish) publish=1 ;;
    --report-only) report_only=1 ;;
    --without-rocksdb) rocksdb="" ;;
    --without-berkeley) berkeley="" ;;
    --jobs) jobs=(-j "$2") && shift ;;
    --install-deps)
        apt-get update
        exec apt-get install -y --no-install-recommends "${packages[@]}"
        ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done
[[ -n "$workloads" ]] || workloads="$(default_sequences)"
results="${results:-$here/results}"
# A folder of our own in it: it is removed before and after every run.
database="${database:-$here/results}/siltstone-peers-database"

# What the build needs; says what to install.
missing=()
command -v cargo >/dev/null || missing+=("cargo (rustup.rs)")
command -v c++ >/dev/null || missing+=(g++)
compgen -G "/usr/lib/llvm-*/lib/libclang*.so*" >/dev/null || [[ -n "${LIBCLANG_PATH:-}" ]] ||
    missing+=(clang libclang-dev)
if command -v c++ >/dev/null; then
    echo 'int main() {}' | c++ -x c++ - -lleveldb -o /dev/null 2>/dev/null ||
        missing+=(libleveldb-dev)
    [[ -z "$berkeley" ]] || echo '#include <db.h>' | c++ -x c++ -fsyntax-only - 2>/dev/null ||
        missing+=(libdb-dev)
fi
if ((${#missing[@]} > 0)); then
    echo "missing: ${missing[*]}" >&2
    echo "On Debian: benches/peers/run.sh --install-deps (apt-get install ${packages[*]})" >&2
    exit 1
fi

# Must be run in this folder for its .cargo/config.toml to hold.
cd "$here"
cargo build --release --locked "${jobs[@]}" --no-default-features --features "$rocksdb,$berkeley"
peers="${CARGO_TARGET_DIR:-$here/target}/release/siltstone-peers"
mkdir -p "$results"

measure() {
    local known runs sequence_list=() sequence engine round number done=0 all
    known=" $("$peers" engines | cut -d' ' -f1 | tr '\n' ' ')"
    local engine_list=()
    for engine in ${engines:-$known}; do
        [[ "$known" == *" $engine "* ]] || {
            echo "no engine $engine; there are$known" >&2
            exit 2
        }
        # Small values go to no blob file; then it is RocksDB under another name.
        if [[ "$engine" == rocksdb-blob ]] && ((value_size < 1024)); then continue; fi
        engine_list+=("$engine")
    done
    read -r -d '' -a sequence_list <<<"$workloads" || true

    if [[ -z "$warm_gib" ]]; then
        warm_gib="$(awk '/^MemAvailable/ { print int($2 / 1048576 * 2 / 3) }' /proc/meminfo)"
    fi
    echo "load average: $(cut -d' ' -f1-3 /proc/loadavg); touching $warm_gib GiB of memory"
    "$peers" warm --gib "$warm_gib"
    ulimit -n "$(ulimit -Hn)" || true

    runs="$results/$(printf '%012d-%05d-%09d' "$records" "$key_size" "$value_size")"
    rm -rf "$runs"
    mkdir -p "$runs" "$(dirname "$database")"
    trap 'rm -rf "$database"' EXIT
    echo "$command" >"$runs/command"
    all=$((rounds * ${#sequence_list[@]} * ${#engine_list[@]}))
    for ((round = 1; round <= rounds; round++)); do
        for ((number = 0; number < ${#sequence_list[@]}; number++)); do
            sequence="${sequence_list[number]}"
            for engine in "${engine_list[@]}"; do
                done=$((done + 1))
                # Files have no order: each seek would list and sort all of them.
                if [[ "$engine" == files && "$sequence" =~ seek|scan|ycsb-e ]]; then continue; fi
                echo "$(date +%T) $done/$all: round $round, $engine, $sequence"
                rm -rf "$database"
                sync
                "$peers" run --engine "$engine" --workloads "$sequence" --records "$records" \
                    ${ops:+--ops "$ops"} --key-size "$key_size" --value-size "$value_size" \
                    --sync-interval-ms "$sync_interval_ms" "${settle[@]}" --dir "$database" \
                    --round "$round" \
                    --out "$runs/$(printf '%02d-%02d-%s.json' "$round" "$number" "$engine")"
            done
        done
    done
}

((report_only)) || measure

commit="$(git -C "$root" rev-parse --short=10 HEAD 2>/dev/null || echo unknown)"
git -C "$root" diff --quiet HEAD 2>/dev/null || commit="$commit, changed"
"$peers" report --runs "$results" --markdown "$results/benchmarks.md" \
    --json "$results/benchmarks.json" --machine "$machine" --commit "$commit"
echo "tables: $results/benchmarks.md, figures: $results/benchmarks.json"
if ((publish)); then
    cp "$results/benchmarks.md" "$results/benchmarks.json" "$root/docs/"
    echo "published: docs/benchmarks.md, docs/benchmarks.json"
fi
