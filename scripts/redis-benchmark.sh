#!/usr/bin/env bash
# usage: redis-benchmark.sh     runs redis-benchmark on a primary, and on redis-server with appendonly everysec, in turns
#
# 50 connections, 100,000 random keys, values of 100 bytes, without a pipeline and 16 deep. Each round begins with empty
# databases and a SET of both depths; ROUNDS is the number of rounds, 5. Prints the medians of all rounds, their ratio, and
# the lowest and the highest ratio of a round. SILTSTONE names a command that was built with the feature `server`; otherwise
# cargo builds one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for tool in redis-benchmark redis-server python3; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is not here (apt-get install redis-server)"; exit 0; }
done

source scripts/processes.sh
choose_command release server

# One line of figures for each command: requests a second, the median latency and that of 99 % in milliseconds.
measure() {
    for depth in 1 16; do
        redis-benchmark -p "$port" -q -n "$((depth == 1 ? 200000 : 1000000))" -r 100000 -d 100 -t set,get -P "$depth" --csv |
            tr -d '"' | awk -F, -v name="$1" -v depth="$depth" '/^(SET|GET),/ { print name "," $1 "," depth "," $2 "," $5 "," $7 }'
    done
}

echo "load average: $(cut -d' ' -f1 /proc/loadavg)"
for round in $(seq "${ROUNDS:-5}"); do
    start serve "$folder/db$round"
    measure siltstone >>"$folder/figures"
    finish "$server"
    start_redis "$folder/redis$round"
    measure redis >>"$folder/figures"
    finish "$server"
    rm -rf "$folder/db$round" "$folder/redis$round"
done
echo "load average: $(cut -d' ' -f1 /proc/loadavg)"
python3 - "$folder/figures" <<'PYTHON'
import statistics, sys

rounds = {}
for line in open(sys.argv[1]):
    name, command, depth, rate, p50, p99 = line.strip().split(",")
    rounds.setdefault((command, int(depth)), {}).setdefault(name, []).append((float(rate), float(p50), float(p99)))

print("| command | depth | siltstone/s | p50, p99 ms | redis-server/s | p50, p99 ms | ratio | of the rounds |")
print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
for (command, depth), found in sorted(rounds.items(), key=lambda item: (item[0][1], item[0][0])):
    ours, theirs = found["siltstone"], found["redis"]
    rate, other = (statistics.median(row[0] for row in rows) for rows in (ours, theirs))
    ratios = sorted(a[0] / b[0] for a, b in zip(ours, theirs))
    late = [", ".join(f"{statistics.median(row[at] for row in rows):.2f}" for at in (1, 2)) for rows in (ours, theirs)]
    print(f"| `{command}` | {depth} | {rate:,.0f} | {late[0]} | {other:,.0f} | {late[1]} | {rate / other:.2f} "
          f"| {ratios[0]:.2f} to {ratios[-1]:.2f} |")
PYTHON
