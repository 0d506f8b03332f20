//! Clients that read their answers slowly.

use std::io::Read;
use std::net::Shutdown;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::park_timeout;
use std::time::Duration;

use server::{Limits, Place, Role, Server};

use crate::client::{Client, encoded, text, until};
use crate::pages::get;
use crate::streams::{large, long};

const PIECE: usize = 256 << 10;

fn start(folder: &Path, limits: Limits) -> Server {
    let limits = Limits { streamed_bytes: 64 << 20, ..limits };
    Server::start(Place::folder(folder), Role::Primary, large(limits)).unwrap()
}

fn set(client: &mut Client, key: &str, value: &[u8]) {
    client.send(&encoded(&[b"SET", key.as_bytes(), value]));
    assert_eq!(text(&client.receive().unwrap()), "OK");
}

/// Asks for a value, and reads a piece of the reply after each pause. Returns the bytes until the end of the reply, of `len`
/// bytes, or of the connection.
fn read_slowly(client: &mut Client, key: &str, pause: Duration, len: usize) -> usize {
    client.send(&encoded(&["GET", key]));
    let mut stream = client.stream();
    let mut piece = vec![0; PIECE];
    let mut total = 0;
    while total < len {
        park_timeout(pause);
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(read) => total += read,
        }
    }
    total
}

#[test]
fn a_client_below_the_least_rate_is_ended_and_slows_no_one() {
    let folder = tempfile::tempdir().unwrap();
    // Each piece comes well within this time.
    let write = Duration::from_secs(2);
    let server = start(folder.path(), Limits { write, write_rate: 1 << 30, ..Limits::default() });
    let mut other = Client::new(&server);
    let value = long(1, 60 << 20);
    set(&mut other, "a", &value);
    assert_eq!(other.text("SET b 1"), "OK");
    let mut slow = Client::new(&server);
    let has_ended = AtomicBool::new(false);
    let mut answers = 0;
    let read = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let read = read_slowly(&mut slow, "a", Duration::from_millis(30), value.len());
            has_ended.store(true, Ordering::SeqCst);
            read
        });
        while !has_ended.load(Ordering::SeqCst) {
            assert_eq!(other.text("GET b"), "1");
            answers += 1;
        }
        reading.join().unwrap()
    });
    assert!(read < value.len(), "it was ended after {read} bytes");
    assert!(answers > 100, "{answers} answers of the other one");
    until("the end is counted", || {
        let page = get(server.http_address().unwrap(), "/metrics");
        page.lines().any(|line| line == "siltstone_server_slow_connections_total 1")
    });
    server.stop().unwrap();
}

#[test]
fn a_reply_may_take_longer_than_the_time_of_silence() {
    let folder = tempfile::tempdir().unwrap();
    let write = Duration::from_secs(2);
    let server = start(folder.path(), Limits { write, write_rate: 1 << 20, ..Limits::default() });
    let mut client = Client::new(&server);
    assert_eq!(client.text("SELECT other"), "OK");
    // It is in memory as a whole, and sent as one answer.
    let value = long(2, 40 << 20);
    set(&mut client, "a", &value);
    let expected = value.len() + format!("${}\r\n\r\n", value.len()).len();
    let read = read_slowly(&mut client, "a", Duration::from_millis(30), expected);
    assert_eq!(read, expected);
    server.stop().unwrap();
}

#[test]
fn a_client_that_has_closed_its_side_gets_its_answers() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), Limits::default());
    let mut client = Client::new(&server);
    let value = long(3, 5 << 20);
    client.send(&[encoded(&[&b"SET"[..], b"a", &value]), encoded(&["STRLEN", "a"])].concat());
    client.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(text(&client.receive().unwrap()), "OK");
    assert_eq!(text(&client.receive().unwrap()), value.len().to_string());
    assert!(client.receive().is_none());
    // One that has sent a half of a request has no effect.
    let mut half = Client::new(&server);
    let request = encoded(&["SET", "a", "1"]);
    half.send(&request[..request.len() / 2]);
    half.stream().shutdown(Shutdown::Write).unwrap();
    assert!(half.receive().is_none());
    assert_eq!(Client::new(&server).text("STRLEN a"), value.len().to_string());
    server.stop().unwrap();
}
