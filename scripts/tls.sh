#!/usr/bin/env bash
# usage: tls.sh            starts a server and a router with TLS in a temporary folder, and runs redis-cli, openssl s_client and
#                          curl on them, as far as they are here; then the memory of connections, and 10,000 handshakes
#                          that do not end
#        tls.sh --bench    measures redis-benchmark on a server without TLS and on one with it, in turns
#
# SILTSTONE names a command that was built with the feature `tls`; otherwise cargo builds one, which needs a C compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode="${1:-}"
if [[ -z "${SILTSTONE:-}" ]] && ! command -v "${CC:-cc}" >/dev/null; then
    echo "skipped: there is no C compiler (${CC:-cc})"
    exit 0
fi

source scripts/processes.sh
choose_command release tls
files="$PWD/testdata/tls"
cp "$files"/*.pem "$files"/*.key "$folder"
chmod 600 "$folder"/*.key
port_tls=(--tls-cert "$folder/server.pem" --tls-key "$folder/server.key")
client=(--tls --cacert "$folder/ca.pem" --cert "$folder/client.pem" --key "$folder/client.key")

expect() {
    local expected="$1" found
    shift
    found="$("$@" 2>&1)" || true
    [[ "$found" == $expected ]] || { echo "$*: $found, expected $expected"; exit 1; }
}

# Sends a line over TLS with the arguments of s_client, and prints the reply.
s_client() {
    { printf '%s\r\n' "$1"; sleep 0.5; printf 'QUIT\r\n'; } |
        timeout 10 openssl s_client -connect "127.0.0.1:$port" -CAfile "$folder/ca.pem" -verify_return_error -quiet "${@:2}" 2>&1 | tr -d '\r'
}

real_clients() {
    if command -v redis-cli >/dev/null && [[ "$(redis-cli --help 2>&1)" == *--tls* ]]; then
        expect OK redis-cli "${client[@]}" -p "$1" set alice admin
        expect admin redis-cli "${client[@]}" -p "$1" get alice
        expect admin redis-cli "${client[@]}" -3 -p "$1" get alice
        expect "*rror*" redis-cli --tls --cacert "$folder/ca.pem" -p "$2" get alice
        expect "*ertificate*" redis-cli --tls --cacert "$folder/other-ca.pem" -p "$1" get alice
        expect "*this port speaks TLS*" redis-cli -p "$1" get alice
        echo "redis-cli: requests and refusals are as expected"
    else
        echo "skipped: redis-cli with TLS is not here (apt-get install redis-tools)"
    fi
    if command -v openssl >/dev/null; then
        local own=(-cert "$folder/client.pem" -key "$folder/client.key") version
        port="$1"
        for version in -tls1_2 -tls1_3; do
            expect "*+PONG*+OK*" s_client PING "$version" "${own[@]}"
        done
        expect "*alert*" s_client PING -tls1_1 "${own[@]}"
        echo "openssl s_client: TLS 1.2 and 1.3 are served, 1.1 is refused"
    else
        echo "skipped: openssl is not here"
    fi
}

# The memory of connections; then handshakes that begin and do not end, and the time of an honest client meanwhile. Gets the
# ports and processes of a server with TLS and of one without it.
connections() {
    command -v python3 >/dev/null || { echo "skipped: the connections need python3"; return; }
    ulimit -n "$(ulimit -Hn)"
    python3 - "$folder" "$@" <<'PYTHON'
import resource, socket, ssl, sys, time

folder, port, pid, plain_port, plain_pid = sys.argv[1:]
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100
context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
context.load_cert_chain(f"{folder}/client.pem", f"{folder}/client.key")

def resident(pid=pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])

def connect():
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost")

def ping(client):
    client.sendall(b"PING\r\n")
    reply = b""
    while not reply.endswith(b"\r\n"):
        reply += client.recv(100)
    assert reply == b"+PONG\r\n", reply

def memory(name, pid, connect):
    ping(connect())
    before = resident(pid)
    clients = []
    for _ in range(min(2_000, limit)):
        client = connect()
        ping(client)
        clients.append(client)
    print(f"{len(clients)} connections {name}: {(resident(pid) - before) / len(clients):.1f} KiB of memory each while they are idle")

memory("without TLS", plain_pid, lambda: socket.create_connection(("127.0.0.1", plain_port)))
memory("with TLS", pid, connect)
before = resident()
slowest, silent = 0, []
for number in range(min(10_000, limit)):
    stream = socket.create_connection(("127.0.0.1", port))
    stream.sendall(b"\x16\x03\x01")
    silent.append(stream)
    if number % 500 == 499:
        begun = time.monotonic()
        client = connect()
        ping(client)
        client.close()
        slowest = max(slowest, time.monotonic() - begun)
print(f"{len(silent)} handshakes that do not end: an honest client takes at most {slowest * 1e3:.0f} ms meanwhile, "
      f"and the server {(resident() - before) / 1024:.1f} MiB more")
PYTHON
}

# Seconds of processor time of a process.
processor() { awk '{ print ($14 + $15) / 100 }' "/proc/$1/stat"; }

# One line: requests a second, and microseconds of processor time of the server for each.
measure() {
    local name="$1" at="$2" process="$3" depth="$4" count="$5" bytes="$6" before after rate
    shift 6
    before="$(processor "$process")"
    rate="$(redis-benchmark -p "$at" "$@" -q -n "$count" -r "$((bytes > 1000 ? 100 : 100000))" -d "$bytes" -c 50 -t get -P "$depth" --csv | tr -d '"' |
        awk -F, '/^GET,/ { print $2 }')"
    after="$(processor "$process")"
    echo "$bytes,$depth,$name,$rate,$(awk -v a="$after" -v b="$before" -v n="$count" 'BEGIN { printf "%.2f", (a - b) * 1e6 / n }')"
}

bench() {
    command -v redis-benchmark >/dev/null || { echo "skipped: redis-benchmark is not here"; return; }
    start serve "$folder/plain"
    local plain=$port plain_server=$server
    start serve "$folder/secure" "${port_tls[@]}"
    redis-benchmark -p "$plain" -q -n 200000 -r 100000 -d 100 -t set -P 16 >"$folder/fill"
    redis-benchmark -p "$port" "${client[@]}" -q -n 200000 -r 100000 -d 100 -t set -P 16 >"$folder/fill"
    echo "load average: $(cut -d' ' -f1 /proc/loadavg)"
    echo "bytes of a value,requests of a pipeline,connection,GET a second,microseconds of the server's processor time a request"
    for _ in 1 2 3 4 5; do
        for depth in 1 16; do
            measure plain "$plain" "$plain_server" "$depth" "$((depth == 1 ? 100000 : 500000))" 100
            measure tls "$port" "$server" "$depth" "$((depth == 1 ? 100000 : 500000))" 100 "${client[@]}"
        done
    done | sort
    # The same keys as before, with other values.
    redis-benchmark -p "$plain" -q -n 1000 -r 100 -d 1000000 -t set >"$folder/fill"
    redis-benchmark -p "$port" "${client[@]}" -q -n 1000 -r 100 -d 1000000 -t set >"$folder/fill"
    for _ in 1 2 3 4 5; do
        measure plain "$plain" "$plain_server" 1 2000 1000000
        measure tls "$port" "$server" 1 2000 1000000 "${client[@]}"
    done | sort
}

if [[ "$mode" == --bench ]]; then
    bench
    exit
fi
start serve "$folder/db" "${port_tls[@]}" --tls-ca "$folder/ca.pem" --http 127.0.0.1:0
primary=$port
start route "127.0.0.1:$primary" "${port_tls[@]}" --nodes-tls-ca "$folder/ca.pem" --nodes-tls-cert "$folder/client.pem" \
    --nodes-tls-key "$folder/client.key"
real_clients "$primary" "$primary"
echo "the same through a router:"
real_clients "$port" "$primary"
start serve "$folder/plain"
plain=("$port" "$server")
start serve "$folder/other" "${port_tls[@]}" --tls-ca "$folder/ca.pem"
connections "$port" "$server" "${plain[@]}"
