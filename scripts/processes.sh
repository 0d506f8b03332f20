# Servers of a script: sourced. Makes a temporary folder, `folder`; at the end of the script all servers end, and the folder
# goes. `choose_command` sets the command that `start` runs.

folder="$(mktemp -d)"
servers=()
stop() {
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    for server in "${servers[@]}"; do wait "$server" 2>/dev/null || true; done
    rm -rf "$folder"
}
trap stop EXIT

# choose_command PROFILE FEATURES: sets `siltstone` to the command that SILTSTONE names, or to one that cargo builds.
# PROFILE is release or dev.
choose_command() {
    siltstone="${SILTSTONE:-}"
    [[ -z "$siltstone" ]] || return 0
    cargo build --quiet --profile "$1" -p siltstone-cli --features "$2"
    siltstone="${CARGO_TARGET_DIR:-target}/${1/dev/debug}/siltstone"
}

# Starts a server on a free port; waits for its line. Sets `port` and `server`.
start() {
    local log="$folder/log.${#servers[@]}"
    : >"$log"
    "$siltstone" "$@" --listen 127.0.0.1:0 2>"$log" &
    server=$!
    servers+=("$server")
    for _ in $(seq 600); do
        port="$(sed -n 's/^siltstone: .* at .*:\([0-9]*\)$/\1/p' "$log")"
        [[ -z "$port" ]] || return 0
        kill -0 "$server" || break
        sleep 0.1
    done
    cat "$log"
    exit 1
}

# finish PID: ends a server of the script before the end of the script.
finish() {
    kill "$1"
    wait "$1" || true
}

# start_redis FOLDER: starts redis-server with appendonly everysec on a free port, in a new folder. Sets `port` and `server`.
start_redis() {
    mkdir "$1"
    port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
    redis-server --port "$port" --dir "$1" --save "" --appendonly yes --appendfsync everysec >"$1/log" &
    server=$!
    servers+=("$server")
    for _ in $(seq 100); do
        (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return 0
        kill -0 "$server" || break
        sleep 0.1
    done
    cat "$1/log"
    exit 1
}
