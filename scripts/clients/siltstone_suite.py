"""Runs the suite of redis-py on siltstone, as a plugin of pytest, and prints the outcomes by kind.

The fixtures of the suite need a version in INFO and FLUSHDB, which are made here of commands that siltstone has.
"""
import collections
import re

import redis

DEFAULTS = {"redis_version": "7.0.0", "arch_bits": 64, "cluster_enabled": 0}
# Commands, forms and arguments that the server refuses with a text that names them.
REFUSED = re.compile(
    r"unknown command '([A-Z.]+)'|((?:CONFIG|CLIENT|COMMAND) [A-Z-]+) is not supported"
    r"|([A-Z.]+) is not supported in a transaction",
    re.IGNORECASE,
)

_info = redis.Redis.info
_outcomes = {}


def info(self, *arguments, **options):
    return {**DEFAULTS, **_info(self, *arguments, **options)}


def flushdb(self, *arguments, **options):
    for key in list(self.scan_iter(count=1000)):
        self.execute_command("DEL", key)
    return True


redis.Redis.info = info
redis.Redis.flushdb = flushdb


def outcome_of(report):
    if report.skipped:
        return ("skipped", "")
    if report.passed:
        return ("passed", "")
    found = REFUSED.findall(report.longreprtext)
    word = next((part for part in (found[-1] if found else ()) if part), "")
    # The script asks for tracebacks of one line: file, line, error.
    return ("refused", word.upper()) if word else ("failed", report.longreprtext.split(": ", 1)[-1])


def pytest_runtest_logreport(report):
    """The worst phase of a test counts: its setup, its call, or its end."""
    if report.passed and report.when != "call":
        return
    known = _outcomes.get(report.nodeid)
    if known is None or known[0] in ("passed", "skipped"):
        _outcomes[report.nodeid] = outcome_of(report)


def pytest_terminal_summary(terminalreporter):
    write = terminalreporter.write_line
    kinds = collections.Counter(kind for kind, _ in _outcomes.values())
    words = collections.Counter(word for kind, word in _outcomes.values() if kind == "refused")
    counts = (f"{kinds[kind]} {kind}" for kind in ("passed", "refused", "failed", "skipped"))
    write("outcomes: " + ", ".join(counts))
    write("refused by name: " + ", ".join(f"{word} {count}" for word, count in words.most_common()))
    for test, (kind, why) in sorted(_outcomes.items()):
        if kind == "failed":
            write(f"failed: {test.split('::')[-1]}: {why[:150]}")
