#!/usr/bin/env bash
# Makes the certificates and keys of the tests of TLS in this folder again, by openssl. They are valid from 2020 to 2120,
# `expired.pem` to 2021. Nothing outside of tests may trust them: their keys are public.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
touch "$folder/index"
echo 01 >"$folder/serial"
cat >"$folder/config" <<CONFIG
[ca]
default_ca = own
[own]
database = $folder/index
serial = $folder/serial
new_certs_dir = $folder
default_md = sha256
unique_subject = no
policy = any
[any]
commonName = supplied
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost, DNS:nodes.test, IP:127.0.0.1
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
CONFIG

key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }

# A CA: its certificate, and the key in the temporary folder.
authority() {
    key "$folder/$1.key"
    openssl req -new -key "$folder/$1.key" -subj "/CN=siltstone test $1" -out "$folder/request"
    openssl ca -batch -notext -config "$folder/config" -selfsign -keyfile "$folder/$1.key" -in "$folder/request" \
        -extensions authority -startdate 20200101000000Z -enddate 21200101000000Z -out "$1.pem" 2>/dev/null
}

# A certificate NAME for a server or client KIND, by the CA, valid until a year.
certificate() {
    local name="$1" kind="$2" ca="$3" until="${4:-2120}"
    key "$name.key"
    openssl req -new -key "$name.key" -subj "/CN=siltstone test $name" -out "$folder/request"
    openssl ca -batch -notext -config "$folder/config" -cert "$ca.pem" -keyfile "$folder/$ca.key" -in "$folder/request" \
        -extensions "$kind" -startdate 20200101000000Z -enddate "${until}0101000000Z" -out "$name.pem" 2>/dev/null
}

authority ca
authority other-ca
certificate server server ca
certificate renewed server ca
certificate expired server ca 2021
certificate client client ca
certificate other-server server other-ca
certificate other-client client other-ca
