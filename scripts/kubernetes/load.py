"""Readers as pods follow a load that rises and falls: called by kubernetes.sh --load, which starts the API server.

It plays the agent of a node: each pod becomes a process of this machine with an address of its own, is ready when it says so, and
gets SIGTERM when it is deleted. Meanwhile clients read through a router, and compare each value. It fails if readers do not follow
within the stated time, if a reader had to be killed or lost a connection with requests, or if a read was not answered.

usage: load.py SILTSTONE FOLDER API-URL TOKEN
"""

import json
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request

SILTSTONE, FOLDER, URL, TOKEN = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4]
TEMPLATE = "load-readers"
# Reads a second for which there is one reader, and those of the load at its height.
TARGET, HEIGHT, CLIENTS = 150, 420, 6
# The options of the operator, in seconds.
COOLDOWN, WINDOW, QUIET = 2, 6, 2
CONTEXT = ssl._create_unverified_context()
started = time.monotonic()


def say(text):
    print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)


def api(method, path, body=None, kind="application/json"):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data=data, method=method)
    request.add_header("Authorization", f"Bearer {TOKEN}")
    request.add_header("Content-Type", kind)
    try:
        with urllib.request.urlopen(request, context=CONTEXT, timeout=10) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise SystemExit(f"{method} {path}: {error.code} {error.read()[:500]}") from error


class Agent(threading.Thread):
    """Runs pods as processes."""

    def __init__(self):
        super().__init__(daemon=True)
        self.running, self.count, self.killed, self.statuses, self.most = {}, 0, [], [], 0
        self.ends = False

    def run(self):
        while not self.ends:
            try:
                self.look()
            except OSError as error:
                say(f"the agent: {error}")
            time.sleep(0.2)

    def look(self):
        pods = api("GET", "/api/v1/namespaces/default/pods")["items"]
        for pod in pods:
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                self.end(name, pod["metadata"].get("deletionGracePeriodSeconds", 30))
            elif name not in self.running:
                self.begin(name, pod)
            elif "podIP" not in pod.get("status", {}):
                self.show(name)
        self.most = max(self.most, len(self.running))

    def begin(self, name, pod):
        self.count += 1
        host = f"127.1.0.{self.count}"
        args = [word.replace("0.0.0.0", host) for word in pod["spec"]["containers"][0]["args"]]
        log = open(FOLDER / f"{name}.log", "w")
        process = subprocess.Popen([SILTSTONE, *args], stdout=log, stderr=log)
        self.running[name] = {"process": process, "host": host, "ended": None}

    def show(self, name):
        host = self.running[name]["host"]
        try:
            urllib.request.urlopen(f"http://{host}:9100/readyz", timeout=1).close()
        except OSError:
            return
        status = {"status": {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}]}}
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        api("PATCH", path, status, "application/merge-patch+json")
        say(f"{name} serves at {host}")

    def end(self, name, grace):
        pod = self.running.get(name)
        if pod:
            process = pod["process"]
            if pod["ended"] is None:
                pod["ended"] = time.monotonic()
                process.send_signal(signal.SIGTERM)
                say(f"{name} gets SIGTERM")
            if process.poll() is None:
                if time.monotonic() - pod["ended"] < grace:
                    return
                self.killed.append(name)
                process.kill()
                process.wait()
            self.statuses.append(process.returncode)
            del self.running[name]
        now = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        api("DELETE", f"/api/v1/namespaces/default/pods/{name}", now)


class Client(threading.Thread):
    """Reads at level 5 through the router, and compares the values."""

    def __init__(self, port, number):
        super().__init__(daemon=True)
        self.port, self.number = port, number
        self.rate, self.reads, self.failures, self.ends = 1.0, 0, [], False

    def run(self):
        try:
            self.converse()
        except (OSError, ValueError) as error:
            self.failures.append(f"the connection: {error}")

    def converse(self):
        link = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        replies = link.makefile("rb")
        link.sendall(b"SCID.LEVEL 5\r\n")
        if replies.readline() != b"+OK\r\n":
            raise ValueError("no level")
        turn = time.monotonic()
        while not self.ends:
            key = (self.reads * CLIENTS + self.number) % 100
            link.sendall(f"GET key{key}\r\n".encode())
            header = replies.readline()
            if not header.startswith(b"$") or header == b"$-1\r\n":
                self.failures.append(f"{header!r} for key{key}")
            elif (value := replies.read(int(header[1:]) + 2)) != b"value%d\r\n" % key:
                self.failures.append(f"{value!r} for key{key}")
            self.reads += 1
            turn = max(turn + 1 / self.rate, time.monotonic() - 0.5)
            time.sleep(max(0, turn - time.monotonic()))


def server(*words):
    """Starts a server on a free port, and returns it with the port."""
    log = FOLDER / f"{words[0]}.log"
    with open(log, "w") as out:
        process = subprocess.Popen([SILTSTONE, *words], stdout=out, stderr=out)
    for _ in range(300):
        found = re.search(r"^siltstone: .* at .*:(\d+)$", log.read_text(), re.M)
        if found:
            return process, int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"{words}: {log.read_text()}")


def wait_for(what, seconds, is_so):
    begun = time.monotonic()
    while not is_so():
        if time.monotonic() - begun > seconds:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.1)
    say(f"{what}, after {time.monotonic() - begun:.1f} s of at most {seconds}")


def template():
    container = {
        "name": "reader",
        "image": "siltstone",
        "args": ["serve", f"file://{FOLDER}/bucket", "--listen=0.0.0.0:6379", "--http=0.0.0.0:9100", "--level", "default=5"],
        "ports": [{"name": "redis", "containerPort": 6379}, {"name": "metrics", "containerPort": 9100}],
    }
    spec = {"nodeName": "node", "terminationGracePeriodSeconds": 40, "containers": [container]}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": TEMPLATE},
        "template": {"metadata": {"labels": {"app": "siltstone"}}, "spec": spec},
    }


def main():
    primary, port = server("serve", f"{FOLDER}/db", "--remote", f"file://{FOLDER}/bucket", "--listen", "127.0.0.1:0")
    with socket.create_connection(("127.0.0.1", port)) as link:
        for key in range(100):
            link.sendall(f"SET key{key} value{key}\r\n".encode())
            assert link.recv(100) == b"+OK\r\n"
    api("POST", "/api/v1/namespaces/default/podtemplates", template())
    nodes = FOLDER / "nodes"
    agent = Agent()
    agent.start()
    times = ["--interval", "500", "--up-cooldown", COOLDOWN * 1000, "--down-window", WINDOW * 1000, "--quiet", QUIET * 1000]
    words = ["operate", "--pods", TEMPLATE, "--nodes", nodes, "--node", f"127.0.0.1:{port}", "--operations", TARGET, "--max", "4", *times]
    with open(FOLDER / "operate.log", "w") as out:
        operator = subprocess.Popen([SILTSTONE, *map(str, words)], stdout=out, stderr=out)
    listed = lambda: [line for line in nodes.read_text().split() if line.startswith("127.1.")] if nodes.exists() else []
    wait_for("the first reader is listed", 30, lambda: len(listed()) == 1)
    router, at = server("route", "--nodes", str(nodes), "--listen", "127.0.0.1:0", "--http", "127.0.0.2:9100")
    wait_for("the router knows it", 10, lambda: b"127.1." in urllib.request.urlopen("http://127.0.0.2:9100/metrics").read())
    clients = [Client(at, number) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    needed = -(-HEIGHT // TARGET)
    # Two looks, the times between starts, and those of the processes: a rise is followed by as many starts at once as it needs.
    rise, fall = 2 * 0.5 + needed * COOLDOWN + 15, needed * (WINDOW + 2 * 0.5 + QUIET + 10)
    for turn in range(2):
        for client in clients:
            client.rate = HEIGHT / CLIENTS
        say(f"the load rises to {HEIGHT} reads a second")
        wait_for(f"{needed} readers or more", rise, lambda: len(listed()) >= needed)
        time.sleep(3)
        for client in clients:
            client.rate = 5
        say("the load falls")
        wait_for("one reader is left, and no pod but its own", fall, lambda: len(listed()) == 1 and len(agent.running) == 1)
    for client in clients:
        client.ends = True
    for client in clients:
        client.join(30)
    figures = urllib.request.urlopen("http://127.0.0.2:9100/metrics").read().decode()
    lost = sum(int(it) for it in re.findall(r"^siltstone_router_lost_connections_total\{.*\} (\d+)$", figures, re.M))
    operator.terminate()
    wait_for("the operator ends, and so do its pods", 60, lambda: operator.poll() is not None and not agent.running)
    agent.ends = True
    router.terminate()
    primary.terminate()
    reads = sum(client.reads for client in clients)
    failures = [failure for client in clients for failure in client.failures]
    say(f"{reads} reads, {len(failures)} failures, {agent.count} pods, at most {agent.most} at a time, {lost} connections lost")
    problems = failures[:5]
    if agent.killed:
        problems.append(f"killed: {agent.killed}")
    if any(agent.statuses):
        problems.append(f"statuses: {agent.statuses}")
    if lost:
        problems.append(f"{lost} connections ended with requests in flight")
    if operator.returncode:
        problems.append(f"the operator ended with {operator.returncode}")
    if problems:
        print((FOLDER / "operate.log").read_text()[-3000:])
        raise SystemExit("\n".join(map(str, problems)))


main()
