//! Bytes that are no requests: the server answers with an error or ends the connection, and serves the others.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use testkit::Rng;

use crate::client::{Client, encoded, primary};

#[test]
fn hostile_bytes_end_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut rng = Rng::from_env_or(21);
    let mut other = Client::new(&server);
    let commands = [
        "SET a b NX GET",
        "GET a",
        "MSET a b c d",
        "SCAN 0 MATCH [a-",
        "MULTI",
        "EXEC",
        "WATCH a",
        "INCRBY a 1",
        "SCID.GET a LEVEL 2 MAXAGE 1",
        "HELLO 3 SETNAME x",
        "GETRANGE a 0 -1",
        "COMMAND INFO get",
        "CONFIG GET *",
        "SCID.LAG",
        "SCID.TOKEN 1-1",
        "AUTH a b",
        "SELECT x",
        "CLIENT SETINFO a b",
    ];
    for round in 0..150 {
        let mut bytes = Vec::new();
        for _ in 0..rng.range(1..6) {
            let line = *rng.pick(&commands);
            let mut words: Vec<Vec<u8>> =
                line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            let at = rng.index(words.len());
            match rng.below(4) {
                0 => words[at] = rng.bytes(9),
                1 => drop(words.remove(at)),
                2 => words.push(Vec::new()),
                _ => {}
            }
            bytes.extend_from_slice(&encoded(&words));
        }
        for _ in 0..rng.below(4) {
            let at = rng.index(bytes.len());
            bytes[at] = *rng.pick(b"*$\r\n019-:+\0\xff");
        }
        let mut stream = TcpStream::connect(server.address()).unwrap();
        // The server may have ended the connection before all is sent.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut replies = Vec::new();
        let _ = stream.read_to_end(&mut replies);
        assert_eq!(other.text("PING"), "PONG", "round {round}");
        let panicked = replies.windows(8).any(|window| window == b"panicked");
        assert!(!panicked, "round {round}: {}", replies.escape_ascii());
    }
    server.stop().unwrap();
}

#[test]
fn a_request_that_announces_much_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    client.send(b"*2147483647\r\n$3\r\nGET\r\n");
    let mut second = Client::new(&server);
    second.send(b"*2\r\n$3\r\nGET\r\n$2147483647\r\nabc");
    assert_eq!(Client::new(&server).text("PING"), "PONG");
    let mut third = Client::new(&server);
    third.send(b"*1\r\n$-7\r\n");
    assert_eq!(
        crate::client::text(&third.receive().unwrap()),
        "-ERR Protocol error: invalid bulk length"
    );
    assert_eq!(third.receive(), None);
    server.stop().unwrap();
}
