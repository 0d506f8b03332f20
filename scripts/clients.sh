#!/usr/bin/env bash
# usage: clients.sh [rust|python]   runs the own suites of redis-rs and redis-py on `siltstone serve`
#
# Prints how many of their tests pass, how many are refused by the name of a command that the server does not have, and which
# fail for another reason. Says why it skips the suite if its tools are missing. SILTSTONE names a command that was built with the
# feature `server`; otherwise cargo builds one. LIMIT is the seconds that a suite may take, 1,200.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python_version=5.0.8
# Seconds for one suite.
limit="${LIMIT:-1200}"
rust_version=1.8.1
here="$PWD"
source scripts/processes.sh
choose_command dev server
siltstone="$(realpath "$siltstone")"

skip() { echo "$1: skipped, $2"; }

python_suite() {
    command -v python3 >/dev/null || { skip redis-py "python3 is not here"; return; }
    python3 -m venv "$folder/venv" 2>/dev/null || { skip redis-py "python3 makes no venv (apt-get install python3-venv)"; return; }
    local pip="$folder/venv/bin/pip"
    # The tests are in the source package alone.
    "$pip" --quiet install "redis==$python_version" pytest "pytest-asyncio<0.24" packaging 2>"$folder/pip.log" &&
        "$pip" --quiet download --no-deps --no-binary :all: --dest "$folder" "redis==$python_version" 2>>"$folder/pip.log" || {
        skip redis-py "pip cannot fetch it: $(tail -n 1 "$folder/pip.log")"
        return
    }
    tar -xzf "$folder/redis-$python_version.tar.gz" -C "$folder"
    start serve "$folder/python" --expire default
    echo "redis-py $python_version: commands, pipelines, encodings, pools"
    # Longer tracebacks take 5 times as long as the tests: most fail, because a command is refused by name.
    (cd "$folder/redis-$python_version" && PYTHONPATH="$here/scripts/clients" timeout "$limit" "$folder/venv/bin/python" -m pytest \
        -p siltstone_suite -q --no-header --tb=line -rN -W ignore --redis-url "redis://127.0.0.1:$port/0" \
        tests/test_commands.py tests/test_pipeline.py tests/test_encoding.py tests/test_connection_pool.py \
        >"$folder/python.out" 2>&1 || true)
    grep -E '^(outcomes|refused by name|failed): ' "$folder/python.out" || tail -n 20 "$folder/python.out"
}

# The own suite of redis-rs: basic commands, pipelines, transactions, iterators; both versions of the protocol; async with tokio.
rust_suite() {
    local work="$folder/redis-rs" source protocol
    mkdir -p "$work/redis" "$work/fetch/src" "$work/bin" "$work/data"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\n[dependencies]\nredis = "=%s"\n[workspace]\n' "$rust_version" >"$work/fetch/Cargo.toml"
    : >"$work/fetch/src/lib.rs"
    # The tests are in its package.
    source="$(cd "$work/fetch" && cargo metadata --format-version 1 2>"$work/fetch.log" |
        python3 -c 'import json, sys; print(next(it["manifest_path"] for it in json.load(sys.stdin)["packages"] if it["name"] == "redis"))')" || {
        skip redis-rs "cargo cannot fetch it: $(tail -n 1 "$work/fetch.log")"
        return
    }
    cp -r "$(dirname "$source")/." "$work/redis"
    chmod -R u+w "$work/redis"
    cp -r scripts/clients/async_test "$work/test_macros"
    cp scripts/clients/redis-server "$work/bin"
    printf '[workspace]\nmembers = ["redis", "test_macros"]\nresolver = "2"\n[patch.crates-io]\nredis = { path = "redis" }\n' >"$work/Cargo.toml"
    # Two crates of its repository that its package does not name.
    printf '\n[dev-dependencies.test_macros]\npath = "../test_macros"\n\n[dev-dependencies.redis-test]\nversion = "1.0"\n' >>"$work/redis/Cargo.toml"
    rm -f "$work/redis/Cargo.lock"
    # Each test has a new server, so there is nothing to flush.
    sed -i 's/match con\.flushdb::<()>() {/match redis::cmd("PING").exec(\&mut con) {/' "$work/redis/tests/support/mod.rs"
    local tests=(-p redis --features tokio-comp,aio)
    (cd "$work" && cargo test --quiet "${tests[@]}" --test test_basic --test test_async --no-run) 2>"$work/build.log" || {
        skip redis-rs "it does not build: $(grep -m 1 '^error' "$work/build.log")"
        return
    }
    for protocol in RESP2 RESP3; do
        echo "redis-rs $rust_version, $protocol: basic commands and async"
        # The tests of async share a flag, which one that fails sets for the others: each is a process.
        (
            cd "$work"
            SECONDS=0
            export PATH="$work/bin:$PATH" SILTSTONE="$siltstone" SUITE_FOLDER="$work/data" PROTOCOL="$protocol"
            timeout "$limit" cargo test "${tests[@]}" --test test_basic -- --test-threads=1 </dev/null || true
            cargo test "${tests[@]}" --test test_async -- --list </dev/null | sed -n 's/: test$//p' >"$folder/rust.names"
            while ((SECONDS < limit)) && read -r name; do
                timeout 120 cargo test "${tests[@]}" --test test_async -- --exact "$name" </dev/null || true
            done <"$folder/rust.names"
        ) >"$folder/rust.out" 2>&1
        python3 scripts/clients/outcomes.py "$folder/rust.out"
    done
}

[[ "${1:-}" == rust ]] || python_suite
[[ "${1:-}" == python ]] || rust_suite
