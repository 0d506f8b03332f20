#!/usr/bin/env bash
# usage: kubernetes.sh               tests the launcher of pods on an API server of the test itself
#        kubernetes.sh --kubeconfig  tests it on the API server of $KUBECONFIG, in its default namespace
#        kubernetes.sh --apiserver   starts $KUBE_APISERVER and $ETCD (else those of PATH) in a temporary folder, and tests it on them
#        kubernetes.sh --load        starts them, and a load that rises and falls twice, with pods that run as processes (kubernetes/load.py)
#
# It says why it skips what needs a server that is not here.
# It builds the command with the feature `kubernetes`, which compiles the C of ring. A test on a real server plays the agent of
# the node, so that no kubelet is needed: pods get an address and end, but no process runs in them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder="$(mktemp -d)"
servers=()
stop() {
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    for server in "${servers[@]}"; do wait "$server" 2>/dev/null || true; done
    rm -rf "$folder"
}
trap stop EXIT

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start_apiserver() {
    local apiserver="${KUBE_APISERVER:-kube-apiserver}" etcd="${ETCD:-etcd}" tool
    for tool in "$apiserver" "$etcd" openssl python3 curl; do
        command -v "$tool" >/dev/null || { echo "skipped: $tool is not here" >&2; exit 0; }
    done
    local at peer port
    at="$(free_port)"
    peer="$(free_port)"
    port="$(free_port)"
    "$etcd" --data-dir "$folder/etcd" --listen-client-urls "http://127.0.0.1:$at" \
        --advertise-client-urls "http://127.0.0.1:$at" --listen-peer-urls "http://127.0.0.1:$peer" \
        >"$folder/etcd.log" 2>&1 &
    servers+=("$!")
    openssl genrsa -out "$folder/accounts.key" 2048 2>/dev/null
    echo 'secret,admin,admin,system:masters' >"$folder/tokens"
    "$apiserver" --etcd-servers "http://127.0.0.1:$at" --bind-address 127.0.0.1 --secure-port "$port" \
        --cert-dir "$folder/certificates" --service-cluster-ip-range 10.96.0.0/16 --token-auth-file "$folder/tokens" \
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$folder/accounts.key" \
        --service-account-signing-key-file "$folder/accounts.key" --disable-admission-plugins ServiceAccount \
        >"$folder/apiserver.log" 2>&1 &
    servers+=("$!")
    url="https://127.0.0.1:$port"
    for _ in $(seq 300); do
        curl --silent --insecure --header 'Authorization: Bearer secret' --fail "$url/api/v1/namespaces/default" \
            >/dev/null && break
        kill -0 "${servers[1]}" || { tail "$folder/apiserver.log"; exit 1; }
        sleep 0.2
    done
    cat >"$folder/kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "$url", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: secret}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
CONFIG
    export KUBECONFIG="$folder/kubeconfig"
}

case "${1:-}" in
    "") ;;
    --kubeconfig) export SILTSTONE_KUBERNETES=1 ;;
    --apiserver | --load)
        start_apiserver
        export SILTSTONE_KUBERNETES=1
        ;;
    *)
        sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 2
        ;;
esac
if [[ "${1:-}" == --load ]]; then
    cargo build --quiet -p siltstone-cli --features server,kubernetes
    siltstone="$(realpath "${CARGO_TARGET_DIR:-target}/debug/siltstone")"
    python3 scripts/kubernetes/load.py "$siltstone" "$folder" "$url" secret
    exit 0
fi
cargo test -p siltstone-cli --features server,kubernetes --bin siltstone operate::kubernetes
if command -v kubectl >/dev/null && [[ -n "${SILTSTONE_KUBERNETES:-}" ]]; then
    kubectl apply --dry-run=server --filename deploy/kubernetes.yaml
else
    echo "skipped: no kubectl or no API server for deploy/kubernetes.yaml"
fi
