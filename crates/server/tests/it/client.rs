//! A client, and the servers of a test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use resp_rs::resp2;
use resp_rs::resp3::{Frame, Parser};
use server::{Options, Place, Role, Server};
use siltstone::clock::{Clock, SystemClock};

pub(crate) struct Client {
    stream: TcpStream,
    parser: Parser,
}

/// Waits until something is so, for a minute at most.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    while !is_so() {
        assert!(clock.now() < Duration::from_secs(60), "in vain: {what}");
        std::thread::yield_now();
    }
}

/// Options with a free port, without background work.
pub(crate) fn options() -> Options {
    Options {
        listen: "127.0.0.1:0".to_owned(),
        follow: None,
        threads: Some(2),
        ..Options::default()
    }
}

pub(crate) fn primary(folder: &Path) -> Server {
    Server::start(Place::folder(folder), Role::Primary, options()).unwrap()
}

pub(crate) fn reader(folder: &Path) -> Server {
    Server::start(Place::folder(folder), Role::Reader, options()).unwrap()
}

pub(crate) fn encoded<A: AsRef<[u8]>>(arguments: &[A]) -> Bytes {
    let items = arguments
        .iter()
        .map(|it| resp2::Frame::BulkString(Some(Bytes::copy_from_slice(it.as_ref()))));
    resp2::frame_to_bytes(&resp2::Frame::Array(Some(items.collect())))
}

impl Client {
    pub(crate) fn new(server: &Server) -> Client {
        Client::at(server.address())
    }

    pub(crate) fn at(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, parser: Parser::new() }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next reply; `None` at the end of the connection.
    pub(crate) fn receive(&mut self) -> Option<Frame> {
        let mut bytes = [0; 16 << 10];
        loop {
            if let Some(frame) = self.parser.next_frame().unwrap() {
                return Some(frame);
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(len) => self.parser.feed(Bytes::copy_from_slice(&bytes[..len])),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Frame {
        self.send(&encoded(arguments));
        self.receive().expect("the server answers")
    }

    /// A command of words.
    pub(crate) fn run(&mut self, line: &str) -> Frame {
        let words: Vec<&str> = line.split(' ').collect();
        self.call(&words)
    }

    /// The replies to lines that are sent together, as text.
    pub(crate) fn pipeline(&mut self, lines: &[&str]) -> Vec<String> {
        let words = lines.iter().map(|line| line.split(' ').collect::<Vec<_>>());
        let requests: Vec<Bytes> = words.map(|words| encoded(&words)).collect();
        self.send(&requests.concat());
        lines.iter().map(|_| text(&self.receive().unwrap())).collect()
    }

    /// The reply as text, in short.
    pub(crate) fn text(&mut self, line: &str) -> String {
        text(&self.run(line))
    }
}

fn lossy(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn text(frame: &Frame) -> String {
    match frame {
        Frame::SimpleString(bytes) | Frame::BulkString(Some(bytes)) => lossy(bytes),
        Frame::Error(bytes) => format!("-{}", lossy(bytes)),
        Frame::Integer(number) => number.to_string(),
        Frame::BulkString(None) | Frame::Null | Frame::Array(None) => "nil".to_owned(),
        Frame::Array(Some(items)) => {
            let items: Vec<String> = items.iter().map(text).collect();
            format!("[{}]", items.join(" "))
        }
        Frame::Map(pairs) | Frame::Attribute(pairs) => {
            let pairs: Vec<String> = pairs
                .iter()
                .map(|(name, value)| format!("{}={}", text(name), text(value)))
                .collect();
            format!("{{{}}}", pairs.join(" "))
        }
        other => format!("{other:?}"),
    }
}
