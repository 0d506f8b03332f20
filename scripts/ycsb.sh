#!/usr/bin/env bash
# usage: ycsb.sh [ARGUMENTS]     runs the workloads A to F of YCSB over TCP on a primary, and on redis-server with
#                                appendonly everysec if it is here (package redis-server), in turns
#
# ARGUMENTS go to `siltstone bench tcp`, for example `--records 1000000 --threads 50`. ROUNDS is the number of rounds, 3.
# Each round begins with empty databases. Prints the medians of all rounds, and their ratio. SILTSTONE names a command that
# was built with the feature `server`; otherwise cargo builds one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v python3 >/dev/null || { echo "this script needs python3"; exit 1; }

source scripts/processes.sh
choose_command release server

echo "load average: $(cut -d' ' -f1 /proc/loadavg)"
for round in $(seq "${ROUNDS:-3}"); do
    start serve "$folder/db$round"
    "$siltstone" bench tcp "127.0.0.1:$port" "$@" --json >"$folder/siltstone.$round"
    finish "$server"
    rm -rf "$folder/db$round"
    if command -v redis-server >/dev/null; then
        start_redis "$folder/redis$round"
        "$siltstone" bench tcp "127.0.0.1:$port" "$@" --json >"$folder/redis-server.$round"
        finish "$server"
        rm -rf "$folder/redis$round"
    else
        ((round > 1)) || echo "skipped: redis-server is not here (apt-get install redis-server)"
    fi
done
echo "load average: $(cut -d' ' -f1 /proc/loadavg)"
python3 - "$folder" <<'PYTHON'
import glob, json, statistics, sys

def rounds(name):
    found = [json.load(open(path)) for path in sorted(glob.glob(f"{sys.argv[1]}/{name}.[0-9]*"))]
    figures = {}
    for run in found:
        for row in run["workloads"]:
            figures.setdefault(row["workload"], []).append(row)
    return found, figures

found, ours = rounds("siltstone")
_, theirs = rounds("redis-server")
config = found[0]["config"]
print(f"{config['records']} records of {config['key_size']} + {config['value_size']} bytes, "
      f"{config['connections']} connections, medians of {len(found)} rounds")

def median(rows, figure):
    return statistics.median(row[figure] for row in rows)

print("| workload | siltstone ops/s | p99 ms | redis-server ops/s | p99 ms | ratio |")
print("| --- | ---: | ---: | ---: | ---: | ---: |")
for name, rows in ours.items():
    rate = median(rows, "ops_per_second")
    cells = [f"{rate:.0f}", f"{median(rows, 'p99_us') / 1000:.2f}"]
    if name in theirs:
        other = median(theirs[name], "ops_per_second")
        cells += [f"{other:.0f}", f"{median(theirs[name], 'p99_us') / 1000:.2f}", f"{rate / other:.2f}"]
    else:
        cells += ["-", "-", "-"]
    print(f"| {name} | " + " | ".join(cells) + " |")
PYTHON
