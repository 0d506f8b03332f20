#!/usr/bin/env bash
# Shows that the tests find deliberate defects: all of tests/seeded/ are built into one copy of the repository, and
# chosen one by one while the tests run that should find them.
#
#   scripts/seeded-bugs.sh               # all of them, about an hour
#   scripts/seeded-bugs.sh 7 12-20       # these numbers
#   MINUTES=5 scripts/seeded-bugs.sh     # after which a run is taken to hang, which finds the defect too (10)
#
# Prints a row for each: its number, what is wrong, and the test that found it. Fails if one was not found, or if a test
# that found one fails without it as well. Needs python3.
set -uo pipefail
cd "$(dirname "$0")/.."
copy="$PWD/target/seeded/copy"
minutes="${MINUTES:-10}"

rm -rf "$copy"
mkdir -p "$copy"
git ls-files -z | grep -zv '^\.' | xargs -0 cp --parents -t "$copy"
SEEDED_INTO="$copy" cargo test -q -p siltstone --test tidy seeded && [[ -f "$copy/seeded-bugs.tsv" ]] || exit 1
export CARGO_TARGET_DIR="$PWD/target/seeded/target" CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0
cd "$copy" || exit 1
# The tests that the defects name, and no others.
named="$(cut -f3 seeded-bugs.tsv | tr ';' '\n')"
mapfile -t packages < <(awk '{ print "--package=" $1 }' <<<"$named" | sort -u)
mapfile -t targets < <(awk '{ print $2 == "lib" ? "--lib" : "--test=" $2 }' <<<"$named" | sort -u)
cargo test "${packages[@]}" "${targets[@]}" --no-run --message-format=json >"$copy/built.json" || exit 1

python3 - "$copy" "$minutes" "$@" <<'PYTHON'
import json, os, re, signal, subprocess, sys, threading

copy, minutes, *chosen = sys.argv[1:]
binaries = {}
for line in open(f"{copy}/built.json"):
    message = json.loads(line)
    if message.get("reason") != "compiler-artifact" or not message.get("executable") or not message["profile"]["test"]:
        continue
    folder = os.path.dirname(message["manifest_path"])
    package = message["package_id"].split("#")[-1].split("@")[0]
    kind = message["target"]["kind"][0]
    target = message["target"]["name"] if kind == "test" else kind
    binaries[package, target] = (message["executable"], folder)

def run(number, tests):
    """The tests that were run and the name of the first that fails, or None."""
    package, target, *rest = tests.split()
    if (package, target) not in binaries:
        sys.exit(f"no test binary {package} {target}: {sorted(binaries)}")
    binary, folder = binaries[package, target]
    environment = dict(os.environ, SEEDED_BUG=str(number), CARGO_MANIFEST_DIR=folder)
    process = subprocess.Popen([binary, *rest], cwd=folder, env=environment, stdin=subprocess.DEVNULL, text=True,
                               errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    is_late = threading.Event()
    alarm = threading.Timer(60 * float(minutes), lambda: (is_late.set(), os.killpg(process.pid, signal.SIGKILL)))
    alarm.start()
    failed, has_tests = None, False
    for line in process.stdout:
        has_tests |= bool(re.match(r"running [1-9]", line))
        if match := re.match(r"test (\S+) .*FAILED$", line):
            # One is enough.
            failed = match[1]
            os.killpg(process.pid, signal.SIGKILL)
            break
    process.stdout.close()
    status = process.wait()
    alarm.cancel()
    if not has_tests:
        sys.exit(f"no test matches: {tests}")
    if status == 0:
        return None
    return tests, failed or f"{tests} ({'hangs' if is_late.is_set() else f'status {status}'})"

def fails_alone(tests, name):
    """Returns whether the test fails without a defect, and so finds none."""
    package, target, *_ = tests.split()
    is_named = " " not in name
    return is_named and run(0, f"{package} {target} --exact {name}") is not None

bugs = [line.rstrip("\n").split("\t") for line in open(f"{copy}/seeded-bugs.tsv")]
wanted = set()
for part in chosen:
    first, _, last = part.partition("-")
    wanted.update(range(int(first), int(last or first) + 1))
missed = 0
print("| no. | defect | found by |\n| --- | --- | --- |", flush=True)
for number, title, runs in bugs:
    if wanted and int(number) not in wanted:
        continue
    found = next((found for tests in runs.split(";") if (found := run(number, tests))), None)
    if found and fails_alone(*found):
        sys.exit(f"{found[1]} fails without a defect, too")
    missed += found is None
    print(f"| {number} | {title} | {'`' + found[1] + '`' if found else '**no test**'} |", flush=True)
print(f"{missed} of {len(wanted) or len(bugs)} not found")
sys.exit(missed > 0)
PYTHON
