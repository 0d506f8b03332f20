#!/usr/bin/env bash
# usage: service.sh [--keep]        runs the first steps of docs/service.md; starts a primary, two readers and a router in a
#                                   temporary folder, then an operator with two readers and a router of its own, and
#                                   ends them all
#        service.sh --steps         runs the first steps alone
#        service.sh --hop           measures redis-benchmark on the primary and through a router, in turns
#        service.sh --large         measures the memory of a primary and a router for a value of 900 MB
#
# Runs redis-cli and redis-benchmark on the servers if they are here (package redis-tools), opens as many connections as the
# limits of the system allow, up to 10,000, and measures the memory of one. --keep leaves the servers running until Ctrl-C.
# SILTSTONE names a command that was built with the feature `server`; otherwise cargo builds one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode="${1:-}"

source scripts/processes.sh
choose_command release server

# The commands of the page, in a folder and at ports of this script.
steps() {
    command -v redis-cli >/dev/null || { echo "skipped: redis-cli is not here (apt-get install redis-tools)"; return; }
    command -v python3 >/dev/null || { echo "skipped: the first steps need python3"; return; }
    local reply
    mkdir "$folder/steps"
    python3 - docs/service.md "$(readlink -f "$siltstone")" "$folder/steps" >"$folder/steps.sh" <<'PYTHON'
import re, socket, sys

page, siltstone, folder = sys.argv[1:]
block = re.search(r"## First steps\n.*?```console\n(.*?)```", open(page).read(), re.S)[1]
install, primary, readers, router, client = block.splitlines()
held = [socket.socket() for _ in range(4)]
for one in held:
    one.bind(("127.0.0.1", 0))
ports = [one.getsockname()[1] for one in held]

def placed(line):
    line = line.replace("siltstone ", f"'{siltstone}' ", 1).replace("/tmp/bucket", f"{folder}/bucket")
    line = line.replace("638$n", "${ports[$n]}").replace("-p 6400", f"-p {ports[3]}")
    for at, port in enumerate(["6379", "6381", "6382"]):
        line = line.replace(f"127.0.0.1:{port}", f"127.0.0.1:{ports[at]}")
    return line

print(f"cd '{folder}'; ports=({' '.join(map(str, ports))})")
print("trap 'kill $(jobs -p); wait' EXIT")
# Without a port of their own these two have those of the page.
print(placed(primary).replace(" serve db ", f" serve db --listen 127.0.0.1:{ports[0]} "))
print(placed(readers))
print(placed(router).replace(" route ", f" route --listen 127.0.0.1:{ports[3]} "))
# A person types no faster.
print(f"for _ in $(seq 300); do redis-cli -p {ports[3]} ping >/dev/null 2>&1 && break; sleep 0.1; done")
print(placed(client))
PYTHON
    # A command of the page that fails shows in the reply.
    reply="$(bash "$folder/steps.sh" 2>"$folder/steps.log" | paste -s -d ' ')" || true
    if [[ "$reply" != "OK admin" ]]; then
        echo "the first steps answer: $reply"
        cat "$folder/steps.sh" "$folder/steps.log"
        exit 1
    fi
    echo "the first steps of docs/service.md: $reply"
}

if [[ "$mode" == --steps ]]; then
    steps
    exit
fi

start serve "$folder/db" --large-values default
primary=$port
primary_pid=$server
start serve "$folder/db" --secondary
first=$port
start serve "$folder/db" --secondary --http 127.0.0.1:0
second=$port
start route "127.0.0.1:$primary" "127.0.0.1:$first" "127.0.0.1:$second" --policy optimal
router=$port
router_pid=$server
echo "a primary at port $primary, readers at $first and $second, a router at $router"

expect() {
    local expected="$1"
    shift
    local found
    found="$(redis-cli "$@" 2>&1)"
    [[ "$found" == $expected ]] || { echo "redis-cli $*: $found, expected $expected"; exit 1; }
}

clients() {
    if ! command -v redis-cli >/dev/null; then
        echo "skipped: redis-cli is not here (apt-get install redis-tools)"
        return
    fi
    expect OK -p "$primary" set alice admin
    expect admin -p "$first" scid.get alice level 1
    expect admin -3 -p "$second" scid.get alice level 1
    expect "*READONLY*" -p "$first" set alice none
    expect "*-*" -p "$first" scid.promote
    expect OK -p "$first" set alice owner
    expect "*READONLY*" -p "$primary" set alice none
    expect owner -p "$primary" get alice
    expect owner -p "$second" scid.get alice level 1
    expect OK -p "$router" set alice boss
    expect boss -p "$first" get alice
    expect boss -p "$router" scid.get alice level 1 route offloaded
    expect "*-*" -p "$primary" scid.promote
    expect OK -p "$router" set alice admin
    expect admin -p "$router" get alice
    echo "redis-cli: levels, refusals and promotions are as expected"
    if command -v redis-benchmark >/dev/null; then
        redis-benchmark -p "$primary" -q -n 20000 -r 10000 -t ping,set,get,incr,mset -P 8 | tr '\r' '\n' |
            grep 'requests per second'
    fi
}

# Readers that an operator starts and lists.
elastic() {
    command -v redis-cli >/dev/null || return 0
    local log="$folder/log.operator" nodes="$folder/nodes"
    "$siltstone" operate "$folder/db" --nodes "$nodes" --node "127.0.0.1:$primary" --operations 20000 --min 2 2>"$log" &
    servers+=("$!")
    for _ in $(seq 600); do
        [[ "$(grep -c '^127' "$nodes" 2>/dev/null || true)" == 3 ]] && break
        kill -0 "$!" || { cat "$log"; exit 1; }
        sleep 0.1
    done
    start route --nodes "$nodes" --policy offloaded
    expect OK -p "$port" set alice admin
    expect admin -p "$port" get alice
    expect "*reader*" -p "$port" scid.nodes
    echo "an operator: $(sed 's/^siltstone: //' "$log" | paste -s -d ';')"
}

connections() {
    command -v python3 >/dev/null || { echo "skipped: the connections need python3"; return; }
    ulimit -n "$(ulimit -Hn)"
    python3 - "$primary" "$primary_pid" <<'PYTHON'
import resource, socket, sys

port, pid = int(sys.argv[1]), sys.argv[2]
most = min(10_000 - 10, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100)

def resident():
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])

def ping(client):
    client.sendall(b"*1\r\n$4\r\nPING\r\n")
    reply = b""
    while not reply.endswith(b"\r\n"):
        reply += client.recv(100)
    assert reply == b"+PONG\r\n", reply

before = resident()
clients = []
for _ in range(most):
    client = socket.create_connection(("127.0.0.1", port))
    ping(client)
    clients.append(client)
idle = resident()
for client in clients:
    ping(client)
print(f"{most} connections: {(idle - before) / most:.2f} KiB of memory each while they are idle")
PYTHON
}

# One line of figures: requests a second, and the median latency in milliseconds.
measure() {
    local name="$1" at="$2"
    for pipeline in 1 16; do
        redis-benchmark -p "$at" -q -n "$((100000 * (pipeline == 1 ? 1 : 5)))" -r 100000 -d 100 -t set,get -P "$pipeline" --csv |
            tr -d '"' | awk -F, -v name="$name" -v pipeline="$pipeline" '/^(SET|GET),/ { print name "," $1 "," pipeline "," $2 "," $5 }'
    done
}

hop() {
    command -v redis-benchmark >/dev/null || { echo "skipped: redis-benchmark is not here"; return; }
    echo "load average: $(cut -d' ' -f1 /proc/loadavg)"
    for _ in 1 2 3; do
        measure direct "$primary"
        measure router "$router"
    done | sort
}

large() {
    python3 - "$primary" "$primary_pid" "$router" "$router_pid" <<'PYTHON'
import os, socket, sys, time

primary, primary_pid, router, router_pid = sys.argv[1:]
PIECE = os.urandom(1 << 20)
PIECES = 900_000_000 // len(PIECE)
SIZE = PIECES * len(PIECE)

def peaks():
    for pid in (primary_pid, router_pid):
        lines = open(f"/proc/{pid}/status").read().splitlines()
        yield next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

def line(file, expected):
    found = file.readline()
    assert found == expected, found

before = list(peaks())
for name, port in (("primary", primary), ("router", router)):
    client = socket.create_connection(("127.0.0.1", port))
    replies = client.makefile("rb")
    begun = time.monotonic()
    client.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nv\r\n$%d\r\n" % SIZE)
    for _ in range(PIECES):
        client.sendall(PIECE)
    client.sendall(b"\r\n")
    line(replies, b"+OK\r\n")
    put = time.monotonic() - begun
    begun = time.monotonic()
    client.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nv\r\n")
    line(replies, b"$%d\r\n" % SIZE)
    for _ in range(PIECES):
        assert replies.read(len(PIECE)) == PIECE
    line(replies, b"\r\n")
    got = time.monotonic() - begun
    more = [after - first for first, after in zip(before, peaks())]
    print(f"{SIZE} bytes at the {name}: SET {SIZE / put / 1e6:.0f} MB/s, GET {SIZE / got / 1e6:.0f} MB/s; "
          f"the most memory is {more[0]:.1f} MiB more in the primary, {more[1]:.1f} MiB more in the router")
PYTHON
}

if [[ "$mode" == --large ]]; then
    large
    exit
fi
if [[ "$mode" == --hop ]]; then
    hop
    exit
fi
steps
clients
elastic
connections
if [[ "$mode" == --keep ]]; then
    echo "the servers run until Ctrl-C"
    wait
fi
