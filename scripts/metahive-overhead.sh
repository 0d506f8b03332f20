#!/usr/bin/env bash
# What MetaHive costs: runs the same workloads on a plain partition, on one with MetaHive, on a
# plain one again, and on one with MetaHive whose reads are verified, in turns, each in a fresh
# process on a fresh database. Prints medians and ratios; "again" by "plain" is what noise alone
# makes of two equal sides. Arguments: rounds (5), records (2000000), operations (2000000). The
# command may be given in SILTSTONE, else it is built in release mode.
set -euo pipefail

rounds="${1:-5}"
records="${2:-2000000}"
ops="${3:-2000000}"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z "${SILTSTONE:-}" ]]; then
    cargo build --release --quiet -p siltstone-cli
    SILTSTONE="${CARGO_TARGET_DIR:-target}/release/siltstone"
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# Touch memory and free it: on a virtual machine the first use of a page is slow. `tail` holds a
# line without an end as a whole.
head -c 4G /dev/zero | tail -n 1 >/dev/null

workloads=fillrandom,overwrite,readrandom,ycsb-c,ycsb-b,ycsb-a,scan
sizes=(--records "$records" --ops "$ops" --key-size 20 --value-size 100 --compact --json)

# Prints "side workload figure value" lines of one run.
run() {
    local side="$1" start end
    shift
    sync
    start="$(date +%s.%N)"
    "$SILTSTONE" bench "$workloads" "${sizes[@]}" "$@" >"$work/report"
    end="$(date +%s.%N)"
    awk -v side="$side" -v seconds="$(awk "BEGIN { print $end - $start }")" '
        function figure(name, found) {
            if (match($0, "\"" name "\":[0-9.eE+-]+") == 0) return
            found = substr($0, RSTART, RLENGTH)
            sub(/.*:/, "", found)
            print side, row, name, found
        }
        BEGIN { RS = "{"; print side, "all", "seconds", seconds }
        /"workload":"/ {
            row = $0
            sub(/.*"workload":"/, "", row)
            sub(/".*/, "", row)
            figure("ops_per_second"); figure("p50_us"); figure("p99_us"); figure("cpu_seconds")
        }
        /"space_amplification":/ {
            row = "all"
            figure("cpu_seconds"); figure("disk_bytes"); figure("bytes_written")
        }
    ' "$work/report" >>"$work/figures"
}

for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds; load $(cut -d' ' -f1-3 /proc/loadavg)" >&2
    run plain
    run metahive --metahive
    run again
    run verified --metahive --verified
done

echo "$records records of 20 + 100 bytes, $ops operations, medians of $rounds rounds"
sort -k2,2 -k3,3 -k1,1 -k4,4g "$work/figures" | awk '
    function median(key, n) {
        n = count[key]
        return n % 2 ? value[key, (n + 1) / 2] : (value[key, n / 2] + value[key, n / 2 + 1]) / 2
    }
    {
        row = $2 " " $3
        if (!(row in seen)) { seen[row] = 1; rows[++total] = row }
        key = $1 " " row
        value[key, ++count[key]] = $4
    }
    END {
        printf "%-12s %-16s %14s %14s %9s %9s %9s\n",
            "workload", "figure", "plain", "metahive", "metahive", "again", "verified"
        for (i = 1; i <= total; i++) {
            base = median("plain " rows[i])
            hive = median("metahive " rows[i])
            split(rows[i], name, " ")
            printf "%-12s %-16s %14.3f %14.3f %9.3f %9.3f %9.3f\n", name[1], name[2], base, hive,
                hive / base, median("again " rows[i]) / base, median("verified " rows[i]) / hive
        }
        print "The last three are ratios: to plain, to plain, to metahive."
    }
'
