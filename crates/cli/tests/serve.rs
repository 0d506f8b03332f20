//! `siltstone serve` and `siltstone route` as processes: their lines, and their ends by signals.

#![cfg(feature = "server")]

mod running;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use running::Running;

/// Ends it: it says so, and nothing else since its start.
fn end(running: Running) {
    assert_eq!(running.end(), "siltstone: answering what was received\n");
}

fn call(address: &str, line: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    write!(stream, "{line}\r\nQUIT\r\n").expect("the server reads");
    let mut replies = String::new();
    stream.read_to_string(&mut replies).expect("the replies are text");
    replies.strip_suffix("+OK\r\n").expect("the reply to QUIT comes last").to_owned()
}

#[test]
fn a_primary_a_reader_and_a_router_serve_until_a_signal() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = folder.path();
    let primary = Running::start(at, &["serve", "db"]);
    let reader = Running::start(at, &["serve", "db", "--secondary", "--predict"]);
    let nodes = [&*reader.address, &primary.address];
    let router =
        Running::start(at, &["route", nodes[0], nodes[1], "--policy", "offloaded", "--predict"]);
    let levels = [&primary, &reader, &router].map(|it| call(&it.address, "SCID.LEVEL"));
    assert_eq!(levels, ["$4\r\nAUTO\r\n", "$9\r\nPREDICTED\r\n", "$9\r\nPREDICTED\r\n"]);
    assert_eq!(call(&router.address, "SET alice admin"), "+OK\r\n");
    assert_eq!(call(&router.address, "SCID.GET alice LEVEL 1"), "$5\r\nadmin\r\n");
    assert!(call(&reader.address, "SCID.PROMOTE").starts_with('$'));
    assert_eq!(call(&router.address, "SET alice owner"), "+OK\r\n");
    assert_eq!(call(&primary.address, "SCID.GET alice LEVEL 1"), "$5\r\nowner\r\n");
    end(router);
    end(reader);
    end(primary);
}

/// The most memory that a process had, in MiB.
#[cfg(target_os = "linux")]
fn peak(running: &Running) -> u64 {
    let path = format!("/proc/{}/status", running.child.id());
    let status = std::fs::read_to_string(path).expect("the command runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).expect("a line says it");
    kib.parse::<u64>().expect("it is a number") >> 10
}

#[cfg(target_os = "linux")]
#[test]
fn a_long_value_takes_little_memory_in_a_server_and_in_a_router() {
    const PIECES: usize = 160;
    let folder = tempfile::tempdir().expect("a folder can be made");
    let primary = Running::start(folder.path(), &["serve", "db", "--large-values", "default"]);
    let router = Running::start(folder.path(), &["route", &primary.address]);
    let before = [&primary, &router].map(peak);
    let mut client = BufReader::new(TcpStream::connect(&router.address).expect("it listens"));
    let mut piece = vec![0; 1 << 20];
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n", PIECES << 20);
    client.get_mut().write_all(head.as_bytes()).expect("the router reads");
    for number in 0..PIECES {
        piece[..8].copy_from_slice(&number.to_le_bytes());
        client.get_mut().write_all(&piece).expect("the router reads");
    }
    client.get_mut().write_all(b"\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n").expect("the router reads");
    let mut line = String::new();
    client.read_line(&mut line).expect("the router answers");
    client.read_line(&mut line).expect("the router answers");
    assert_eq!(line, format!("+OK\r\n${}\r\n", PIECES << 20));
    for number in 0..PIECES {
        client.read_exact(&mut piece).expect("the value goes on");
        assert_eq!(piece[..8], number.to_le_bytes(), "piece {number}");
    }
    let after = [&primary, &router].map(peak);
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < before + 32, "{before} MiB before, and {after} MiB after");
    }
    drop(client);
    end(router);
    end(primary);
}
