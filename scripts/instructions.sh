#!/usr/bin/env bash
# Counts the instructions and the cache misses of the main paths under callgrind, and compares the instructions with
# benches/instructions/bounds.txt. A count does not depend on what else the machine does.
#
#   scripts/instructions.sh           checks; the exit status is 1 if a path costs more or less than its bound allows
#   scripts/instructions.sh --bless   writes the file of bounds
#
# The counts hold for one compiler and one kind of processor, which the file names. With others nothing is compared.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bounds=benches/instructions/bounds.txt
# In percent. Two runs differ by less than a thousandth: hash maps have random seeds.
tolerance=3

if ! command -v valgrind callgrind_annotate >/dev/null; then
    echo "SKIPPED: valgrind is not installed"
    exit 0
fi
# Copies and hashes choose their code by the processor.
vectors="$(grep -o -w -m1 -E 'avx512f|avx2' /proc/cpuinfo | sort -u | tr '\n' ' ' || true)"
made_with="$(rustc --version | cut -d' ' -f1,2), $(uname -m), ${vectors:-no avx2 }$(valgrind --version)"
if [[ "${1:-}" != --bless ]] && ! grep -qxF "# $made_with" "$bounds"; then
    echo "SKIPPED: this is $made_with; the bounds are of $(sed -n '2s/^# //p' "$bounds")"
    exit 0
fi

target="${CARGO_TARGET_DIR:-$PWD/target}"
cargo build --quiet --release --locked --manifest-path benches/instructions/Cargo.toml --target-dir "$target"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
# The caches of the simulation are fixed: without these options they are those of the machine.
valgrind --quiet --tool=callgrind --callgrind-out-file="$folder/out" --cache-sim=yes \
    --I1=32768,8,64 --D1=32768,8,64 --LL=8388608,16,64 \
    "$target/release/siltstone-instructions" "$folder" >"$folder/operations" 2>"$folder/errors" ||
    { cat "$folder/errors"; exit 1; }
callgrind_annotate --inclusive=yes --threshold=100 --auto=no --show=Ir,D1mr,D1mw,DLmr,DLmw \
    "$folder/out" >"$folder/costs"

# For each path: its name, instructions and misses of the first and of the last cache, for each operation.
awk '
    NR == FNR { operations[$1] = $2; order[++count] = $1; next }
    {
        line = $0
        gsub(/\([^)]*\)|,/, "", line)
        if (match(line, /instructions::measure_[a-z_]+/)) {
            name = substr(line, RSTART + 14, RLENGTH - 14)
            split(line, number, " ")
            if (number[1] > most[name]) {
                most[name] = number[1]
                first[name] = number[2] + number[3]
                last[name] = number[4] + number[5]
            }
        }
    }
    END {
        for (i = 1; i <= count; i++) {
            name = order[i]
            if (!most[name]) { print "no cost of " name > "/dev/stderr"; exit 1 }
            printf "%s %.1f %.2f %.2f\n", substr(name, 9), most[name] / operations[name], \
                first[name] / operations[name], last[name] / operations[name]
        }
    }
' "$folder/operations" "$folder/costs" >"$folder/counts"

if [[ "${1:-}" == --bless ]]; then
    {
        echo "# path, instructions, misses of a first cache of 32 KiB and of a last one of 8 MiB, for each operation"
        echo "# $made_with"
        cat "$folder/counts"
    } >"$bounds"
    cat "$bounds"
    exit 0
fi
awk -v tolerance="$tolerance" '
    NR == FNR { if ($1 != "#") bound[$1] = $2; next }
    {
        if (!($1 in bound)) { print $1 ": no bound; bless it"; failed = 1; next }
        change = 100 * ($2 / bound[$1] - 1)
        verdict = ""
        if (change > tolerance) { verdict = "  MORE than the bound allows"; failed = 1 }
        if (change < -tolerance) { verdict = "  LESS: bless it, so that it stays"; failed = 1 }
        printf "%-14s %12.1f instructions (%+.2f %%) %8.2f %8.2f misses%s\n", $1, $2, change, $3, $4, verdict
        delete bound[$1]
    }
    END {
        for (name in bound) { print name ": has a bound and was not measured"; failed = 1 }
        exit failed
    }
' "$bounds" "$folder/counts"
