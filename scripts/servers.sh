#!/usr/bin/env bash
# usage: servers.sh [--server NAME] [TEST]             such as: ROUNDS=200 scripts/servers.sh kills
#        servers.sh [--server NAME] --run COMMAND...   any command, with the server's variables
#
# Tests siltstone-remote on a real server on this machine, in a temporary folder. Each needs cargo, python3, curl and a C
# compiler (for the TLS of the clients), and is fetched once into ~/.cache/siltstone-servers. The server ends with the script.
#
#   s3      versitygw, by go; VERSITYGW names a binary that is there already. The default
#   hdfs    MiniDFSCluster of Hadoop, one name node and one data node, by mvn and java
#   azure   azurite, by npm
#
# There is none for gcs: fake-gcs-server has no puts of the XML interface, which the client uses.
# A server whose tools are not here is skipped, and the script says so. Without arguments it also checks that each feature builds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=s3
if [[ "${1:-}" == --server ]]; then
    name="$2"
    shift 2
fi

needs() {
    for tool in "$@"; do
        command -v "$tool" >/dev/null || { echo "skipped: the server $name needs $tool, which is not here"; exit 0; }
    done
}
needs cargo python3 curl

tools="${XDG_CACHE_HOME:-$HOME/.cache}/siltstone-servers"
folder="$(mktemp -d)"
server=
stop() {
    [[ -z "$server" ]] || kill "$server" 2>/dev/null || true
    [[ -z "$server" ]] || wait "$server" 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT

# A port that is free now. If another process takes it first, the server ends at once, and the wait below fails.
port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"

# Waits until the command succeeds: the server answers.
await() {
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return
        kill -0 "$server" || break
        sleep 0.1
    done
    cat "$folder/log"
    exit 1
}

start_s3() {
    local versitygw="${VERSITYGW:-$tools/versitygw}"
    if [[ ! -x "$versitygw" ]]; then
        needs go
        GOBIN="$tools" go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
    fi
    mkdir -p "$folder/root/bucket"
    export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testtest AWS_REGION=us-east-1
    export AWS_ENDPOINT_URL="http://127.0.0.1:$port" AWS_ALLOW_HTTP=true
    ROOT_ACCESS_KEY="$AWS_ACCESS_KEY_ID" ROOT_SECRET_KEY="$AWS_SECRET_ACCESS_KEY" \
        "$versitygw" --port "127.0.0.1:$port" --health /health posix "$folder/root" >"$folder/log" 2>&1 &
    server=$!
    await curl -sf "$AWS_ENDPOINT_URL/health"
    export SILTSTONE_REMOTE_URL=s3://bucket
}

start_hdfs() {
    needs java
    local hadoop="$tools/hadoop-3.4.2"
    if [[ ! -d "$hadoop" ]]; then
        needs mvn
        cat >"$folder/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>siltstone</groupId><artifactId>hdfs</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-minicluster</artifactId><version>3.4.2</version></dependency>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-api</artifactId><version>3.4.2</version></dependency>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-runtime</artifactId><version>3.4.2</version></dependency>
  </dependencies>
</project>
POM
        mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DoutputDirectory="$folder/jars"
        mkdir -p "$tools"
        mv "$folder/jars" "$hadoop"
    fi
    java -Xmx512m -cp "$hadoop/*" -Dtest.build.data="$folder/data" org.apache.hadoop.test.MiniDFSClusterManager \
        -format -datanodes 1 -nnport "$port" -httpport 0 -writeDetails "$folder/started" \
        -D dfs.replication=1 -D dfs.permissions.enabled=false >"$folder/log" 2>&1 &
    server=$!
    await test -s "$folder/started"
    export SILTSTONE_REMOTE_URL="hdfs://127.0.0.1:$port/siltstone"
}

start_azure() {
    needs node
    local azurite="$tools/azurite/node_modules/.bin/azurite-blob"
    if [[ ! -x "$azurite" ]]; then
        needs npm
        npm install --silent --no-audit --no-fund --prefix "$tools/azurite" azurite@3.37.0
    fi
    "$azurite" --silent --skipApiVersionCheck --blobHost 127.0.0.1 --blobPort "$port" --location "$folder/root" \
        >"$folder/log" 2>&1 &
    server=$!
    export AZURE_STORAGE_USE_EMULATOR=true AZURITE_BLOB_STORAGE_URL="http://127.0.0.1:$port"
    await curl -s "$AZURITE_BLOB_STORAGE_URL"
    # A container is made by a call that the key of the emulator signs.
    python3 - "$AZURITE_BLOB_STORAGE_URL" <<'PYTHON'
import base64, email.utils, hashlib, hmac, sys, urllib.request

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
date = email.utils.formatdate(usegmt=True)
headers = f"x-ms-date:{date}\nx-ms-version:2023-11-03"
resource = "/devstoreaccount1/devstoreaccount1/container\nrestype:container"
text = "PUT" + "\n" * 12 + f"{headers}\n{resource}"
mac = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
request = urllib.request.Request(f"{sys.argv[1]}/devstoreaccount1/container?restype=container", method="PUT")
request.add_header("x-ms-date", date)
request.add_header("x-ms-version", "2023-11-03")
request.add_header("Authorization", "SharedKey devstoreaccount1:" + base64.b64encode(mac).decode())
urllib.request.urlopen(request)
PYTHON
    export SILTSTONE_REMOTE_URL=az://container
}

case "$name" in
s3 | hdfs | azure) "start_$name" ;;
*) echo "no server is called $name"; exit 2 ;;
esac

if [[ "${1:-}" == --run ]]; then
    shift
    "$@"
    exit
fi
cargo test -p siltstone-remote --features "$name" --test servers -- --nocapture "$@"
if (($# == 0)); then
    for feature in s3 gcs azure hdfs; do
        cargo check --quiet -p siltstone-remote --features "$feature"
        echo "feature $feature builds"
    done
fi
