#!/usr/bin/env bash
# usage: readers.sh     measures reads at the levels 2 to 5 through a router, with 1 to 4 readers of a folder
#
# One machine has few cores, so each reader gets a share of one, by a control group: SHARE milliseconds of each 10, 1. Without
# that more readers would only share the same cores. Router, primary and client have no limit. A client writes 100 times a
# second meanwhile. Each measurement reads 100,000 random keys with values of 100 bytes, by 64 connections of redis-benchmark,
# for about 5 seconds; ROUNDS is the number of rounds, 3, whose medians are printed. Needs root (control groups of version 1),
# redis-benchmark and redis-cli. SILTSTONE names a command that was built with the feature `server`; otherwise cargo builds one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for tool in redis-benchmark redis-cli python3; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is not here (apt-get install redis-tools)"; exit 0; }
done
groups=/sys/fs/cgroup/cpu
[[ -w "$groups/cgroup.procs" ]] || { echo "skipped: no control groups of version 1 at $groups, or not root"; exit 0; }

source scripts/processes.sh
choose_command release server

# A control group lives as long as a process is in it, so it goes after the servers.
made=()
ended() {
    stop
    for group in "${made[@]}"; do rmdir "$group" 2>/dev/null || true; done
}
trap ended EXIT

start serve "$folder/db"
primary=$port
redis-benchmark -p "$primary" -q -n 500000 -r 100000 -d 100 -t set -P 16 >"$folder/log.fill"
nodes=("127.0.0.1:$primary")
(while redis-cli -p "$primary" -r 1000 -i 0.01 set of-the-writer "$RANDOM" >/dev/null 2>&1; do :; done) &
servers+=("$!")

echo "load average: $(cut -d' ' -f1 /proc/loadavg)"
for count in 1 2 3 4; do
    start serve "$folder/db" --secondary
    group="$groups/siltstone-$$-$count"
    mkdir "$group"
    made+=("$group")
    echo 10000 >"$group/cpu.cfs_period_us"
    echo "$((${SHARE:-1} * 1000))" >"$group/cpu.cfs_quota_us"
    echo "$server" >"$group/cgroup.procs"
    nodes+=("127.0.0.1:$port")
    start route "${nodes[@]}" --policy offloaded
    sleep 2
    for round in $(seq "${ROUNDS:-3}"); do
        for level in 2 3 4 5; do
            rate="$(redis-benchmark -p "$port" -q -n "$((30000 * count))" -r 100000 -c 64 --csv \
                scid.get key:__rand_int__ level "$level" | tail -1 | tr -d '"' | cut -d, -f2)"
            echo "$count,$level,$rate" >>"$folder/figures"
        done
    done
    finish "$server"
done
echo "load average: $(cut -d' ' -f1 /proc/loadavg)"
python3 - "$folder/figures" <<'PYTHON'
import statistics, sys

rates = {}
for line in open(sys.argv[1]):
    count, level, rate = line.strip().split(",")
    rates.setdefault(int(count), {}).setdefault(int(level), []).append(float(rate))
print("| readers | level 2 | level 3 | level 4 | level 5 |")
print("| ---: | ---: | ---: | ---: | ---: |")
for count, levels in rates.items():
    cells = []
    for level in sorted(levels):
        rate = statistics.median(levels[level])
        cells.append(f"{rate:,.0f} ({rate / statistics.median(rates[1][level]):.2f})")
    print(f"| {count} | " + " | ".join(cells) + " |")
PYTHON
