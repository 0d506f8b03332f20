#!/usr/bin/env bash
# usage: beyond-memory.sh [ARGUMENTS]     measures a primary whose data are ten times its memory
#
# The server runs in a control group of MEMORY MiB, 64 or more, by default 256, which counts its page cache too. ARGUMENTS go to `siltstone bench
# tcp`; without them it loads ten times that memory in records of 1,000 bytes, and runs the workloads C, B, A and D of YCSB
# with 16 connections, each for 20 seconds at most. Prints its table, and the most memory that the server had. Needs root
# (control groups of version 1). SILTSTONE names a command that was built with the feature `server`; otherwise cargo builds one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

memory="${MEMORY:-256}"
groups=/sys/fs/cgroup/memory
[[ -w "$groups/cgroup.procs" ]] || { echo "skipped: no control groups of version 1 at $groups, or not root"; exit 0; }
if (($# == 0)); then
    set -- --records "$((memory * 10486))" --ops 1000000 --seconds 20 --workloads ycsb-c,ycsb-b,ycsb-a,ycsb-d
fi

source scripts/processes.sh
choose_command release server

group="$groups/siltstone-$$"
ended() {
    stop
    rmdir "$group" 2>/dev/null || true
}
trap ended EXIT
mkdir "$group"
echo "$((memory << 20))" >"$group/memory.limit_in_bytes"

# As in deploy/Containerfile: otherwise the allocator of glibc keeps 40 MiB that were freed.
export MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=131072
# The server is in the group from its begin on: the sizes of its cache and its write buffer depend on the memory that it may take.
echo "$$" >"$group/cgroup.procs"
start serve "$folder/db"
echo "$$" >"$groups/cgroup.procs"
echo "load average: $(cut -d' ' -f1 /proc/loadavg); memory of the server: $memory MiB"
"$siltstone" bench tcp "127.0.0.1:$port" "$@"
echo "resident at most $(awk '/VmHWM/ { print int($2 / 1024) }' "/proc/$server/status") MiB," \
    "on disk $(du -sm "$folder/db" | cut -f1) MiB," \
    "refusals of memory by the control group: $(cat "$group/memory.failcnt")"
echo "load average: $(cut -d' ' -f1 /proc/loadavg)"
