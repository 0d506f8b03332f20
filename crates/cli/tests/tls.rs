//! `siltstone serve`, `route` and `operate` with TLS, as processes.

#![cfg(all(feature = "tls", unix))]

mod running;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use running::Running;
use server::{NodeTls, TlsClient};
use siltstone::clock::{Clock, SystemClock};

const COMMAND: &str = env!("CARGO_BIN_EXE_siltstone");

fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tls");
    folder.join(name).to_str().expect("the path is text").to_owned()
}

fn call(address: &str, line: &str) -> String {
    let mut tls = NodeTls::new(file("ca.pem"));
    tls.identity = Some((PathBuf::from(file("client.pem")), PathBuf::from(file("client.key"))));
    let stream = TcpStream::connect(address).expect("the server listens");
    let tls = TlsClient::new(tls).expect("the files are right");
    let mut stream = tls.connect(address, stream).expect("the address has a name");
    write!(stream, "{line}\r\nQUIT\r\n").expect("the server reads");
    let mut replies = String::new();
    stream.read_to_string(&mut replies).expect("the replies are text, and their end that of TLS");
    replies.strip_suffix("+OK\r\n").expect("the reply to QUIT comes last").to_owned()
}

#[test]
fn a_primary_a_reader_and_a_router_speak_tls() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = folder.path();
    let [ca, certificate, key] = ["ca.pem", "server.pem", "server.key"].map(file);
    let port = ["--tls-cert", &*certificate, "--tls-key", &key];
    let clients = ["--tls-ca", &ca];
    let primary = Running::start(at, &[&["serve", "db"], &port[..], &clients].concat());
    let reader =
        Running::start(at, &[&["serve", "db", "--secondary"], &port[..], &clients].concat());
    let [own, own_key] = ["client.pem", "client.key"].map(file);
    let nodes = ["--nodes-tls-ca", &ca, "--nodes-tls-cert", &own, "--nodes-tls-key", &own_key];
    let route = ["route", &*primary.address, &reader.address, "--policy", "offloaded"];
    let router = Running::start(at, &[&route, &port[..], &nodes].concat());
    assert_eq!(call(&router.address, "SET alice admin"), "+OK\r\n");
    assert_eq!(call(&router.address, "SCID.GET alice LEVEL 1"), "$5\r\nadmin\r\n");
    assert_eq!(call(&reader.address, "SCID.GET alice LEVEL 1"), "$5\r\nadmin\r\n");
    let mut plain = TcpStream::connect(&router.address).expect("the router listens");
    plain.write_all(b"PING\r\n").expect("the router reads");
    let mut reply = String::new();
    plain.read_to_string(&mut reply).expect("the reply is text");
    assert!(reply.starts_with("-ERR this port speaks TLS"), "{reply}");
    let said = router.end();
    assert!(said.contains("siltstone: TLS: no handshake with 127.0.0.1:"), "{said}");
    reader.end();
    primary.end();
}

#[test]
fn silent_handshakes_leave_file_handles_to_others() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let [certificate, key] = ["server.pem", "server.key"].map(file);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 100 && exec \"$@\"", "sh", COMMAND]);
    let serve = ["serve", "db", "--listen", "127.0.0.1:0"];
    let tls = ["--tls-cert", &*certificate, "--tls-key", &key];
    let primary = Running::start_by(command, folder.path(), &[&serve[..], &tls].concat());
    let silent: Vec<TcpStream> = (0..120)
        .map(|_| TcpStream::connect(&primary.address).expect("the system accepts"))
        .collect();
    assert_eq!(call(&primary.address, "SET alice admin"), "+OK\r\n");
    drop(silent);
    let said = primary.end();
    assert!(said.contains("there are too few file handles"), "{said}");
}

/// File handles of the process.
#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "the folder is the system's")]
fn handles(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).expect("the command runs").count()
}

/// accept(2) takes a file handle before it looks for a client, and fails without one although no client waits.
#[cfg(target_os = "linux")]
#[test]
fn handshakes_keep_their_file_handles_while_no_client_waits() {
    const HANDLES: usize = 100;
    let folder = tempfile::tempdir().expect("a folder can be made");
    let [certificate, key] = ["server.pem", "server.key"].map(file);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n \"$1\" && shift && exec \"$@\"", "sh"]);
    command.args([&HANDLES.to_string(), COMMAND]);
    let reserved = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let pages = reserved.local_addr().expect("it has an address").to_string();
    drop(reserved);
    let serve = ["serve", "db", "--listen", "127.0.0.1:0", "--http", &*pages];
    let tls = ["--tls-cert", &*certificate, "--tls-key", &key];
    let primary = Running::start_by(command, folder.path(), &[&serve[..], &tls].concat());
    let process = primary.child.id();
    let honest = TcpStream::connect(&primary.address).expect("the system accepts");
    let mut silent = Vec::new();
    while handles(process) < HANDLES {
        let before = handles(process);
        silent.push(TcpStream::connect(&primary.address).expect("the system accepts"));
        while handles(process) == before {
            std::thread::yield_now();
        }
    }
    let clock = SystemClock::new();
    while clock.now() < Duration::from_millis(200) {
        std::thread::yield_now();
    }
    let connector = TlsClient::new(NodeTls::new(file("ca.pem"))).expect("the file is right");
    let mut honest = connector.connect(&primary.address, honest).expect("it kept its place");
    honest.write_all(b"PING\r\n").expect("the server reads");
    let mut reply = [0; 7];
    honest.read_exact(&mut reply).expect("the server answers");
    assert_eq!(&reply, b"+PONG\r\n");
    // Clients of the pages wait, and handshakes end for them: for a probe of the health, and for some that say nothing, since
    // the server may have closed a file of its own meanwhile.
    let others = [(); 5].map(|()| TcpStream::connect(&pages).expect("the system accepts"));
    let probe = TcpStream::connect(&pages).expect("the system accepts");
    let mut probe = connector.connect(&pages, probe).expect("it gets a file handle");
    probe.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").expect("the server reads");
    let mut answer = String::new();
    probe.read_to_string(&mut answer).expect("the answer is text");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    drop((silent, others));
    let said = primary.end();
    assert!(said.contains("there are too few file handles"), "{said}");
}

#[test]
fn an_operator_asks_its_readers_over_tls() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = folder.path();
    let [ca, certificate, key] = ["ca.pem", "server.pem", "server.key"].map(file);
    let tls = ["--tls-cert", &*certificate, "--tls-key", &key];
    let primary = Running::start(at, &[&["serve", "db"], &tls[..]].concat());
    assert_eq!(call(&primary.address, "SET alice admin"), "+OK\r\n");
    let operate = ["operate", "db", "--nodes", "nodes", "--operations", "100", "--interval", "50"];
    let nodes = ["--node", &*primary.address, "--nodes-tls-ca", &ca, "--"];
    let operate = [&operate, &nodes[..], &tls].concat();
    let operator = Running::start_by(Command::new(COMMAND), at, &operate);
    let reader = loop {
        let text = std::fs::read_to_string(at.join("nodes")).unwrap_or_default();
        if let Some(line) = text.lines().filter(|line| !line.starts_with('#')).nth(1) {
            break line.to_owned();
        }
        std::thread::yield_now();
    };
    assert_eq!(call(&reader, "SCID.GET alice LEVEL 1"), "$5\r\nadmin\r\n");
    operator.end();
    primary.end();
}

#[test]
fn a_key_that_all_users_can_read_is_named() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = folder.path();
    std::fs::copy(file("server.key"), at.join("key")).expect("a file can be copied");
    for (mode, is_named) in [(0o644, true), (0o640, false)] {
        let permissions = PermissionsExt::from_mode(mode);
        std::fs::set_permissions(at.join("key"), permissions).expect("the file is ours");
        let mut command = Command::new(COMMAND);
        command.current_dir(at).args(["serve", "db", "--tls-key", "key"]);
        // It ends at once: there is no certificate.
        let output = command.args(["--tls-cert", "none"]).output().expect("the command ends");
        let said = String::from_utf8_lossy(&output.stderr);
        let text = "all users can read the private key in key (mode 644)";
        assert_eq!(said.contains(text), is_named, "{said}");
        assert!(said.contains("none"), "{said}");
    }
}

#[test]
fn wrong_files_and_arguments_are_named() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let [certificate, key] = ["server.pem", "renewed.key"].map(file);
    for (args, text) in [
        (vec!["--tls-cert", &*certificate, "--tls-key", &key], "renewed.key is not the key of"),
        (vec!["--tls-cert", &certificate], "--tls-key <FILE>"),
        (vec!["--tls-ca", &certificate], "--tls-cert <FILE>"),
    ] {
        let mut command = Command::new(COMMAND);
        command.current_dir(folder.path()).args(["serve", "db", "--listen", "127.0.0.1:0"]);
        let output = command.args(&args).output().expect("the command ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(text), "{args:?}: {said}");
    }
    let mut command = Command::new(COMMAND);
    command.current_dir(folder.path()).args(["operate", "db", "--nodes", "nodes"]);
    let args = ["--operations", "1", "--nodes-tls-ca", "typo.pem"];
    let output = command.args(args).output().expect("the command ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("typo.pem"), "{said}");
}
