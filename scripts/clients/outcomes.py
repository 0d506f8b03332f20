"""Prints the outcomes of a suite of Rust by kind, from what `cargo test` prints: outcomes.py FILE."""

import collections
import re
import sys

# Commands, forms and arguments that the server refuses with a text that names them.
REFUSED = re.compile(
    r"unknown command '([A-Z._]+)'|((?:CONFIG|CLIENT|COMMAND) [A-Z-]+) is not supported"
    r"|([A-Z.]+) is not supported in a transaction",
    re.IGNORECASE,
)
text = open(sys.argv[1], errors="replace").read()
outcomes = dict(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", text, re.M))
parts = re.split(r"^---- (\S+) stdout ----$", text, flags=re.M)
said = dict(zip(parts[1::2], (part.split("\nfailures:\n")[0] for part in parts[2::2])))
refused, failed = collections.Counter(), []
for name in (name for name, outcome in outcomes.items() if outcome == "FAILED"):
    words = [word for found in REFUSED.findall(said.get(name, "")) for word in found if word]
    if words:
        refused[words[-1].upper()] += 1
    else:
        lines = [line for line in said.get(name, "").splitlines() if line and "panicked at" not in line and "RUST_BACKTRACE" not in line]
        failed.append(f"{name}: {' '.join(lines)[:160]}")
kinds = collections.Counter(outcomes.values())
print(f"outcomes: {kinds['ok']} passed, {sum(refused.values())} refused, {len(failed)} failed, {kinds['ignored']} skipped")
print("refused by name:", ", ".join(f"{word} {count}" for word, count in sorted(refused.items())))
for line in failed:
    print("failed:", line)
