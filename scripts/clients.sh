#!/usr/bin/env bash
# usage: clients.sh        runs the own suite of redis-py on `siltstone serve`
#
# Prints how many of its tests pass, how many are refused by the name of a command that the server does not have, and which
# fail for another reason. Says why it skips the suite if its tools are missing. SILTSTONE names a command that was built with the
# feature `server`; otherwise cargo builds one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python_version=5.0.8
siltstone="${SILTSTONE:-}"
if [[ -z "$siltstone" ]]; then
    cargo build --quiet -p siltstone-cli --features server
    siltstone=target/debug/siltstone
fi
siltstone="$(realpath "$siltstone")"
here="$PWD"
source scripts/processes.sh

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
    (cd "$folder/redis-$python_version" && PYTHONPATH="$here/scripts/clients" "$folder/venv/bin/python" -m pytest \
        -p siltstone_suite -q --no-header --tb=short -rN -W ignore --redis-url "redis://127.0.0.1:$port/0" \
        tests/test_commands.py tests/test_pipeline.py tests/test_encoding.py tests/test_connection_pool.py \
        >"$folder/python.out" 2>&1 || true)
    grep -E '^(outcomes|refused by name|failed): ' "$folder/python.out" || tail -n 20 "$folder/python.out"
}

python_suite
