//! `siltstone serve` and `siltstone route` as processes: their lines, and their ends by signals.

#![cfg(feature = "server")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A running command, and the address that it has named.
struct Running {
    child: Child,
    errors: BufReader<ChildStderr>,
    address: String,
}

fn start(at: &Path, args: &[&str]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
    let command = command.current_dir(at).args(args).args(["--listen", "127.0.0.1:0"]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the command can be started");
    let mut errors = BufReader::new(child.stderr.take().expect("it is a pipe"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("the command says where it is");
    let address = line.trim_end().rsplit(' ').next().expect("a line has a word").to_owned();
    Running { child, errors, address }
}

impl Running {
    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("the command runs");
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).expect("it is text");
        assert_eq!(rest, "siltstone: answering what was received\n");
        assert!(self.child.wait().expect("the command ends").success());
    }
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
    let primary = start(at, &["serve", "db"]);
    let reader = start(at, &["serve", "db", "--secondary", "--predict"]);
    let nodes = [&*reader.address, &primary.address];
    let router = start(at, &["route", nodes[0], nodes[1], "--policy", "offloaded", "--predict"]);
    let levels = [&primary, &reader, &router].map(|it| call(&it.address, "SCID.LEVEL"));
    assert_eq!(levels, ["$4\r\nAUTO\r\n", "$9\r\nPREDICTED\r\n", "$9\r\nPREDICTED\r\n"]);
    assert_eq!(call(&router.address, "SET alice admin"), "+OK\r\n");
    assert_eq!(call(&router.address, "SCID.GET alice LEVEL 1"), "$5\r\nadmin\r\n");
    assert!(call(&reader.address, "SCID.PROMOTE").starts_with('$'));
    assert_eq!(call(&router.address, "SET alice owner"), "+OK\r\n");
    assert_eq!(call(&primary.address, "SCID.GET alice LEVEL 1"), "$5\r\nowner\r\n");
    router.end();
    reader.end();
    primary.end();
}
