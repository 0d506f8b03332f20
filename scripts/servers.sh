#!/usr/bin/env bash
# usage: servers.sh [TEST]                 such as: ROUNDS=200 scripts/servers.sh kills
#        servers.sh --run COMMAND...       any command, with the server's variables
#
# Tests siltstone-remote on a real S3 server on this machine, in a temporary folder: versitygw. `go install` fetches and
# builds it once, in two minutes, and it stays in ~/.cache/siltstone-servers. VERSITYGW names a binary that is there already.
# The script needs go, cargo, python3, curl and a C compiler (for the TLS of the S3 client). The server ends with it.
# Without arguments it also checks that each feature builds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools="${XDG_CACHE_HOME:-$HOME/.cache}/siltstone-servers"
versitygw="${VERSITYGW:-$tools/versitygw}"
if [[ ! -x "$versitygw" ]]; then
    GOBIN="$tools" go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
fi

folder="$(mktemp -d)"
server=
stop() {
    [[ -z "$server" ]] || kill "$server" 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT

# A port that is free now. If another process takes it first, the server ends at once, and the wait below fails.
port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
mkdir -p "$folder/root/bucket"
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testtest AWS_REGION=us-east-1
export AWS_ENDPOINT_URL="http://127.0.0.1:$port" AWS_ALLOW_HTTP=true
ROOT_ACCESS_KEY="$AWS_ACCESS_KEY_ID" ROOT_SECRET_KEY="$AWS_SECRET_ACCESS_KEY" \
    "$versitygw" --port "127.0.0.1:$port" --health /health posix "$folder/root" >"$folder/log" 2>&1 &
server=$!
for _ in $(seq 100); do
    curl -sf "$AWS_ENDPOINT_URL/health" >/dev/null && break
    kill -0 "$server" || { cat "$folder/log"; exit 1; }
    sleep 0.1
done
export SILTSTONE_REMOTE_URL=s3://bucket

if [[ "${1:-}" == --run ]]; then
    shift
    "$@"
    exit
fi
cargo test -p siltstone-remote --features s3 --test servers -- --nocapture "$@"
if (($# == 0)); then
    for feature in s3 gcs azure hdfs; do
        cargo check --quiet -p siltstone-remote --features "$feature"
        echo "feature $feature builds"
    done
fi
