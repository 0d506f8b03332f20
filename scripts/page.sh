#!/usr/bin/env bash
# usage: page.sh [FOLDER]           writes screenshots of the pages of a primary, a reader and a router into FOLDER
#
# Starts a primary, a reader and a router in a temporary folder, and loads their pages in a real browser without a window:
# chromium (package chromium), or what CHROMIUM names. Compares the text that the browser shows, and the hash of the
# style sheet with that of the header, without which the browser drops it.
# SILTSTONE names a command that was built with the feature `server`; otherwise cargo builds one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

browser="${CHROMIUM:-chromium}"
for tool in "$browser" redis-cli curl openssl; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is not here (apt-get install chromium redis-tools curl openssl)"; exit 0; }
done
siltstone="${SILTSTONE:-}"
if [[ -z "$siltstone" ]]; then
    cargo build --quiet -p siltstone-cli --features server
    siltstone="${CARGO_TARGET_DIR:-target}/debug/siltstone"
fi
folder="$(mktemp -d)"
shots="${1:-$folder}"
mkdir -p "$shots"
servers=()
stop() {
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    for server in "${servers[@]}"; do wait "$server" 2>/dev/null || true; done
    rm -rf "$folder"
}
trap stop EXIT

free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Starts a server; waits until its page answers. Sets `port` and `http`.
start() {
    port="$(free)"
    http="$(free)"
    "$siltstone" "$@" --listen "127.0.0.1:$port" --http "127.0.0.1:$http" 2>"$folder/log.${#servers[@]}" &
    servers+=("$!")
    for _ in $(seq 300); do
        curl -fs "http://127.0.0.1:$http/healthz" >/dev/null && return 0
        sleep 0.1
    done
    cat "$folder"/log.*
    exit 1
}

start serve "$folder/db"
primary=$port
primary_http=$http
start serve "$folder/db" --secondary
reader=$port
reader_http=$http
start route "127.0.0.1:$primary" "127.0.0.1:$reader"
router=$port
router_http=$http

# A name that would be a script, if a page did not escape it.
redis-cli -p "$primary" >/dev/null <<'COMMANDS'
SET alice admin
SELECT "<script>document.title='broken'</script>"
SET bob author
COMMANDS
for level in 1 3 4 5 5; do redis-cli -p "$router" scid.get alice level "$level" >/dev/null; done
redis-cli -p "$router" set alice owner >/dev/null
redis-cli -p "$primary" get alice >/dev/null
redis-cli -p "$reader" scid.get alice level 1 >/dev/null
sleep 1.5

# usage: look NAME PORT TEXT...     loads a page; the browser has to show each text
look() {
    local name="$1" at="$2"
    shift 2
    local head style said found
    curl -fs -D "$folder/head" "http://127.0.0.1:$at/" -o "$folder/$name.html"
    head="$(tr -d '\r' <"$folder/head")"
    style="$(sed -n 's:^<style>\(.*\)</style>$:\1:p' "$folder/$name.html")"
    said="$(sed -n "s/^[Cc]ontent-[Ss]ecurity-[Pp]olicy: .*'sha256-\([^']*\)'.*/\1/p" <<<"$head")"
    found="$(printf %s "$style" | openssl dgst -sha256 -binary | base64)"
    [[ "$said" == "$found" ]] || { echo "$name: the header allows the style $said, and the page has $found"; exit 1; }
    "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1100,1000 --virtual-time-budget=1000 \
        --user-data-dir="$folder/profile" --screenshot="$shots/$name.png" "http://127.0.0.1:$at/" 2>"$folder/browser" ||
        { cat "$folder/browser"; exit 1; }
    "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=1000 --user-data-dir="$folder/profile" \
        --dump-dom "http://127.0.0.1:$at/" >"$folder/$name.dom" 2>>"$folder/browser"
    for text in "$@"; do
        grep -qF -- "$text" "$folder/$name.dom" || { echo "$name: no \"$text\" in"; cat "$folder/$name.dom"; exit 1; }
    done
    if grep -qF "<script" "$folder/$name.dom" || grep -qF "<title>broken" "$folder/$name.dom"; then
        echo "$name: a name became a script"
        exit 1
    fi
    echo "$name: the browser shows the texts; $(wc -c <"$shots/$name.png") bytes of screenshot"
}

look primary "$primary_http" "siltstone primary at" "healthy" "Reads by level" "<td>GET</td>" "<td>SET</td>" \
    "&lt;script&gt;document.title='broken'"
look reader "$reader_http" "siltstone reader at" "healthy" "lag in operations" "<td>default</td><td>0</td>"
look router "$router_http" "siltstone router" "ready" "<td>primary</td>" "<td>reader</td>" "<td>ok</td>" "Requests by node and level"
