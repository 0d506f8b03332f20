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

  --suite NAME          what to measure; other options change it:         [core]
                          core     all workloads
                          large    values from 1 KiB to 64 MB, within a budget of bytes
                          threads  core with two threads
                          lz4      core with LZ4, on the engines that have it
                          many     10 million records, fewer workloads, one round
                          memory   values of 4 KiB, four times the memory that is allowed
                          hour     overwrites of 10 million records for an hour, beside an idle loop
                          reopen   fills, closing and opening again behind them
                          features calls beyond puts, gets and scans; the workloads are its parts
  --records N           records of the data set                      [1000000]
  --ops N               operations of each workload that is not a fill  [the records]
  --seconds N           seconds after which a workload that is not a fill ends  [none]
  --idle-loop           run a thread beside that only looks at the clock: its longest pause tells how
                        much of the longest operation is due to the machine
  --rounds N            runs of each engine and sequence             [3]
  --engines A,B         engines                                      [the suite's]
  --workloads "A,B C"   sequences of workloads, separated by blanks; each begins on an empty
                        database, each is a process of its own       [see below]
  --key-size N          bytes of a key                               [16]
  --value-size N        bytes of a value                             [100]
  --threads N           threads that work at once                    [1]
  --write-rate N        writes per second beside the readers of readwhilewriting  [as many as possible]
  --lz4                 compress with LZ4; RocksDB is compiled anew for it
  --cache-mib N         block cache of the engines that have one      [256]
  --memory-mib N        memory of each run, its page cache included, limited by a cgroup
  --mib-per-size N      large: bytes of values of a size, but three values at least  [256]
  --plan FILE           large: sizes, repetitions and mixes       [benches/peers/large.json]
  --sync-interval-ms N  siltstone's own syncs, 0 for none            [0]
  --no-settle           leave flushing and compacting to the engines
  --warm-gib N          memory to touch first                        [two thirds of what is free]
  --wait-seconds N      wait so long for a quiet machine before a round, and before a run is
                        repeated because others worked during it; 0 to do neither  [120]
  --dir DIR             where to make the databases       [benches/peers/results]
  --results DIR         folder for runs and tables        [benches/peers/results]
  --machine TEXT        what to say of the machine        [two cores of a nested VM]
  --publish             copy the tables to docs/benchmarks.md and .json, unless the report calls
                        a run invalid
  --report-only         measure nothing; make tables of the runs that are there
  --install-deps        install what the build needs (apt-get) and end
  --without-rocksdb     compile without it, which is most of the time that compiling takes
  --without-berkeley    compile without Berkeley DB, where its library cannot be had
  --jobs N              compile with so many jobs         [cargo's default]

Runs of another suite, other records, operations or value sizes stay and are reported, too; those of the
same are replaced.
TEXT
}

core_sequences() {
    echo "fillseq fillbatch fillsync"
    echo "fillrandom,readrandom,readmissing,seekrandom,scan,scan-reverse,readwhilewriting"
    echo "overwrite,deleterandom"
    echo "ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f,ycsb-w"
}

# Each value that no option has set, as the suite wants it.
complete_suite() {
    case "$suite" in
    core) ;;
    large) suite_engines="siltstone rocksdb rocksdb-blob lmdb lmdb-map redb files" ;;
    threads) threads="${threads:-2}" ;;
    lz4)
        lz4=lz4
        suite_engines="siltstone rocksdb fjall"
        ;;
    many)
        records="${records:-10000000}" ops="${ops:-1000000}" rounds="${rounds:-1}"
        suite_engines="siltstone siltstone-mapped rocksdb fjall leveldb lmdb lmdb-map berkeley"
        workloads="${workloads:-fillrandom,readrandom,seekrandom,readwhilewriting overwrite}"
        ;;
    memory)
        memory_mib="${memory_mib:-1024}" value_size="${value_size:-4096}" ops="${ops:-100000}"
        value_bytes=$((value_size + ${key_size:-16}))
        records="${records:-$(((memory_mib << 22) / value_bytes))}"
        suite_engines="siltstone rocksdb rocksdb-blob fjall leveldb lmdb redb berkeley"
        workloads="${workloads:-fillrandom,readrandom,seekrandom,readwhilewriting ycsb-a,ycsb-b}"
        ;;
    hour)
        records="${records:-10000000}" ops="${ops:-1000000000000}" rounds="${rounds:-1}"
        seconds="${seconds:-3600}" idle_loop=(--idle-loop) settle=(--no-settle)
        suite_engines="siltstone rocksdb fjall leveldb"
        workloads="${workloads:-overwrite}"
        ;;
    reopen)
        reopen=(--reopen)
        workloads="${workloads:-fillseq fillrandom}"
        ;;
    features)
        suite_engines="siltstone rocksdb fjall"
        workloads="${workloads:-delete-range ranges merge multi-get prefix backup fifo changes}"
        ;;
    *) usage >&2 && exit 2 ;;
    esac
    records="${records:-1000000}" rounds="${rounds:-3}" threads="${threads:-1}"
    key_size="${key_size:-16}" value_size="${value_size:-100}"
    [[ -n "$workloads" ]] || workloads="$(core_sequences)"
    [[ "$suite" != large ]] || workloads=large
}

suite=core records="" ops="" seconds="" idle_loop=() rounds="" engines="" workloads=""
# Of most suites. A file per value takes minutes for a million values, and is named if it is wanted.
suite_engines="siltstone rocksdb rocksdb-blob fjall leveldb lmdb lmdb-map redb sled berkeley"
key_size="" value_size="" threads="" write_rate="" lz4="" cache_mib="" memory_mib="" mib_per_size=256 plan="" wait_seconds=120
sync_interval_ms=0 settle=() reopen=() warm_gib="" database="" results="" machine="two cores of a nested VM"
publish=() report_only=0 jobs=() rocksdb=rocksdb berkeley=berkeley
command="benches/peers/run.sh"
for argument in "$@"; do
    [[ "$argument" != *[[:space:]]* ]] || argument="\"$argument\""
    command+=" $argument"
done

while (($# > 0)); do
    case "$1" in
    --suite) suite="$2" && shift ;;
    --records) records="$2" && shift ;;
    --ops) ops="$2" && shift ;;
    --seconds) seconds="$2" && shift ;;
    --idle-loop) idle_loop=(--idle-loop) ;;
    --rounds) rounds="$2" && shift ;;
    --engines) engines="${2//,/ }" && shift ;;
    --workloads) workloads="$2" && shift ;;
    --key-size) key_size="$2" && shift ;;
    --value-size) value_size="$2" && shift ;;
    --threads) threads="$2" && shift ;;
    --write-rate) write_rate="$2" && shift ;;
    --lz4) lz4=lz4 ;;
    --cache-mib) cache_mib="$2" && shift ;;
    --memory-mib) memory_mib="$2" && shift ;;
    --mib-per-size) mib_per_size="$2" && shift ;;
    --plan) plan="$(realpath "$2")" && shift ;;
    --wait-seconds) wait_seconds="$2" && shift ;;
    --sync-interval-ms) sync_interval_ms="$2" && shift ;;
    --no-settle) settle=(--no-settle) ;;
    --warm-gib) warm_gib="$2" && shift ;;
    --dir) database="$(realpath -m "$2")" && shift ;;
    --results) results="$(realpath -m "$2")" && shift ;;
    --machine) machine="$2" && shift ;;
    --publish) publish=(--publish "$root/docs") ;;
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
complete_suite
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
cargo build --release --locked "${jobs[@]}" --no-default-features \
    --features "$rocksdb,$berkeley,$lz4"
peers="${CARGO_TARGET_DIR:-$here/target}/release/siltstone-peers"
mkdir -p "$results"

# Makes the cgroup that limits the memory of the runs; version 2 or 1, whichever is there.
make_cgroup() {
    local base=/sys/fs/cgroup/memory file=memory.limit_in_bytes
    if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
        base=/sys/fs/cgroup file=memory.max
        echo +memory 2>/dev/null >"$base/cgroup.subtree_control" || true
    fi
    cgroup="$base/siltstone-peers-$$"
    if ! mkdir "$cgroup" 2>/dev/null ||
        ! echo "$((memory_mib << 20))" 2>/dev/null >"$cgroup/$file"; then
        rmdir "$cgroup" 2>/dev/null || true
        echo "Memory cannot be limited here: $cgroup/$file cannot be written." >&2
        echo "That needs root, and a cgroup with the memory controller. Nothing was measured." >&2
        exit 1
    fi
}

clean_up() {
    rm -rf "$database"
    [[ -z "$cgroup" ]] || rmdir "$cgroup" 2>/dev/null || true
}

wait_until_quiet() {
    ((wait_seconds == 0)) || "$peers" quiet --wait-seconds "$wait_seconds" ||
        echo "Going on: the report will call figures by the clock invalid if it stays so."
}

# Runs a command in the cgroup, if there is one.
limited() {
    if [[ -z "$cgroup" ]]; then
        "$@"
    else
        (echo "$BASHPID" >"$cgroup/cgroup.procs" && exec "$@")
    fi
}

# usage: run_once FILE ENGINE SEQUENCE ROUND
run_once() {
    local arguments=(--engine "$2" --dir "$database" --round "$4" --out "$1"
        ${memory_mib:+--memory-mib "$memory_mib"})
    rm -rf "$database"
    sync
    if [[ "$3" == large ]]; then
        limited "$peers" large "${arguments[@]}" --mib-per-size "$mib_per_size" \
            ${plan:+--plan "$plan"}
        return
    fi
    if [[ "$suite" == features ]]; then
        limited "$peers" features "${arguments[@]}" --part "$3"
        return
    fi
    arguments+=(--workloads "$3" --records "$records" ${ops:+--ops "$ops"} --threads "$threads"
        --key-size "$key_size" --value-size "$value_size" ${lz4:+--lz4}
        --sync-interval-ms "$sync_interval_ms" "${settle[@]}" "${reopen[@]}" ${seconds:+--seconds "$seconds"}
        "${idle_loop[@]}" ${write_rate:+--write-rate "$write_rate"} ${cache_mib:+--cache-mib "$cache_mib"})
    limited "$peers" run "${arguments[@]}"
}

# As run_once; repeats a run during which others worked, twice at most.
run_quietly() {
    local repeats=2
    run_once "$@"
    until ((wait_seconds == 0 || repeats == 0)) || "$peers" check "$1"; do
        repeats=$((repeats - 1))
        wait_until_quiet
        run_once "$@"
    done
}

folder_of_runs() {
    if [[ "$suite" == large ]]; then
        echo "$results/large${plan:+-$(basename "$plan" .json)}${memory_mib:+-${memory_mib}mib}"
    elif [[ "$suite" == features ]]; then
        echo "$results/features"
    else
        printf '%s/%012d-%05d-%09d%s' "$results" "$records" "$key_size" "$value_size" \
            "-${threads}threads${ops:+-${ops}ops}${lz4:+-lz4}${cache_mib:+-${cache_mib}cache}${memory_mib:+-${memory_mib}mib}${seconds:+-${seconds}s}${write_rate:+-${write_rate}writes}${reopen:+-reopen}"
    fi
}

measure() {
    local known runs sequence_list=() sequence engine round number done=0 all
    known=" $("$peers" engines | cut -d' ' -f1 | tr '\n' ' ')"
    local engine_list=()
    for engine in ${engines:-$suite_engines}; do
        if [[ "$known" != *" $engine "* ]]; then
            echo "no engine $engine; there are$known" >&2
            [[ -z "$engines" ]] || exit 2
            continue
        fi
        # Small values go to no blob file; then it is RocksDB under another name.
        if [[ "$engine" == rocksdb-blob && "$suite" != large ]] && ((value_size < 1024)); then
            continue
        fi
        engine_list+=("$engine")
    done
    read -r -d '' -a sequence_list <<<"$workloads" || true

    [[ -z "$memory_mib" ]] || make_cgroup
    if [[ -z "$warm_gib" ]]; then
        warm_gib="$(awk '/^MemAvailable/ { print int($2 / 1048576 * 2 / 3) }' /proc/meminfo)"
    fi
    echo "load average: $(cut -d' ' -f1-3 /proc/loadavg); touching $warm_gib GiB of memory"
    "$peers" warm --gib "$warm_gib"
    ulimit -n "$(ulimit -Hn)" || true

    runs="$(folder_of_runs)"
    rm -rf "$runs"
    mkdir -p "$runs" "$(dirname "$database")"
    echo "$command" >"$runs/command"
    all=$((rounds * ${#sequence_list[@]} * ${#engine_list[@]}))
    for ((round = 1; round <= rounds; round++)); do
        wait_until_quiet
        for ((number = 0; number < ${#sequence_list[@]}; number++)); do
            sequence="${sequence_list[number]}"
            for engine in "${engine_list[@]}"; do
                done=$((done + 1))
                # Of the features, fjall has no other.
                if [[ "$suite" == features && "$engine" == fjall && "$sequence" != fifo ]]; then continue; fi
                # Files have no order: each seek would list and sort all of them.
                if [[ "$engine" == files && "$sequence" =~ seek|scan|ycsb-e ]]; then continue; fi
                echo "$(date +%T) $done/$all: round $round, $engine, $sequence"
                run_quietly "$runs/$(printf '%02d-%02d-%s.json' "$round" "$number" "$engine")" \
                    "$engine" "$sequence" "$round"
            done
        done
    done
}

cgroup=""
trap clean_up EXIT
((report_only)) || measure

commit="$(git -C "$root" rev-parse --short=10 HEAD 2>/dev/null || echo unknown)"
git -C "$root" diff --quiet HEAD 2>/dev/null || commit="$commit, changed"
echo "tables: $results/benchmarks.md, figures: $results/benchmarks.json"
"$peers" report --runs "$results" --markdown "$results/benchmarks.md" \
    --json "$results/benchmarks.json" --machine "$machine" --commit "$commit" "${publish[@]}"
((${#publish[@]} == 0)) || echo "published: docs/benchmarks.md, docs/benchmarks.json"
