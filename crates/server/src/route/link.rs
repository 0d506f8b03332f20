//! [`Link`]: a connection to one node, and the ends of its replies.
//!
//! A reply is passed on as it comes; [`Scan`] finds its end, and looks at no byte of a value.
//!
//! Invariant: a link that has failed is dropped, because nothing says how far its replies are.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use siltstone::Commit;
use tokio::time::{Instant, timeout};

use super::dialer::Dialer;
use crate::blob::LONG_BYTES;
use crate::level::Wanted;
use crate::stream::Stream;

/// The state of the session that a node knows from this connection.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says a thing of its own")]
pub(crate) struct Greeted {
    pub(crate) has_login: bool,
    pub(crate) is_resp3: bool,
    pub(crate) partition: Arc<str>,
    pub(crate) level: Option<Wanted>,
    pub(crate) token: Option<Commit>,
    pub(crate) is_token_lost: bool,
    /// The length from which on it announces long values; 0 for never.
    pub(crate) parts_from: u64,
    /// It has refused some of this, so all is to be said again.
    pub(crate) is_unknown: bool,
}

impl Default for Greeted {
    /// The state of a new connection.
    fn default() -> Greeted {
        Greeted {
            has_login: false,
            is_resp3: false,
            partition: Arc::from(crate::users::DEFAULT),
            level: None,
            token: None,
            is_token_lost: false,
            parts_from: 0,
            is_unknown: false,
        }
    }
}

/// A reply that has come.
pub(crate) enum Arrived {
    Whole(Bytes),
    /// The begin of a long one, and the number of bytes that it lacks.
    Begun(Bytes, usize),
}

/// A connection to one node.
pub(crate) struct Link {
    /// That of its node.
    pub(crate) address: String,
    stream: Stream,
    incoming: BytesMut,
    scan: Scan,
    pub(super) limit: Duration,
    pub(crate) greeted: Greeted,
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Link {
    /// Connects to a node. `limit` is the longest time for it, and for each reply.
    pub(crate) async fn connect(
        dialer: &Dialer,
        address: &str,
        limit: Duration,
    ) -> io::Result<Link> {
        let stream = dialer.dial(address, Instant::now() + limit).await?;
        let greeted = Greeted::default();
        let address = address.to_owned();
        let incoming = BytesMut::new();
        Ok(Link { address, stream, incoming, scan: Scan::default(), limit, greeted })
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        within(self.limit, self.stream.send(bytes)).await
    }

    /// Reads what is there, with room for so many bytes. At the end of the connection it is an error.
    async fn more(&mut self, room: usize) -> io::Result<()> {
        self.incoming.reserve(room);
        match within(self.limit, self.stream.read(&mut self.incoming)).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// The bytes of the next reply.
    pub(crate) async fn reply(&mut self) -> io::Result<Bytes> {
        loop {
            match self.scan.find(&self.incoming) {
                Ok(Some(end)) => return Ok(self.incoming.split_to(end).freeze()),
                Ok(None) => {}
                Err(()) => return Err(io::Error::other("the reply is not of the protocol")),
            }
            self.more(self.scan.lacking(self.incoming.len())).await?;
        }
    }

    /// Reads the replies to `count` greetings. What a node has refused, it does not know.
    pub(crate) async fn take_greetings(&mut self, count: usize) -> io::Result<()> {
        let mut is_refused = false;
        for _ in 0..count {
            is_refused |= self.reply().await?.starts_with(b"-");
        }
        if is_refused {
            // No length is this one, so that it is said again, too.
            let parts_from = u64::MAX;
            self.greeted = Greeted { is_unknown: true, parts_from, ..Greeted::default() };
        }
        Ok(())
    }

    /// The next reply, or the begin of one that is long and not all there.
    pub(crate) async fn next(&mut self) -> io::Result<Arrived> {
        loop {
            match self.scan.find(&self.incoming) {
                Ok(Some(end)) => return Ok(Arrived::Whole(self.incoming.split_to(end).freeze())),
                Ok(None) => {}
                Err(()) => return Err(io::Error::other("the reply is not of the protocol")),
            }
            if let Some(left) = self.scan.left_of_long(self.incoming.len()) {
                self.scan = Scan::default();
                return Ok(Arrived::Begun(self.incoming.split().freeze(), left));
            }
            self.more(self.scan.lacking(self.incoming.len())).await?;
        }
    }

    /// The next bytes of a long reply that has begun, up to `left`, from which their number is taken.
    pub(crate) async fn piece(&mut self, left: &mut usize) -> io::Result<Bytes> {
        if self.incoming.is_empty() {
            self.more(PIECE_BYTES.min(*left)).await?;
        }
        let len = self.incoming.len().min(*left);
        *left -= len;
        Ok(self.incoming.split_to(len).freeze())
    }

    /// Sends a request, and returns its reply.
    pub(crate) async fn call<A: AsRef<[u8]>>(&mut self, request: &[A]) -> io::Result<Bytes> {
        let mut bytes = BytesMut::new();
        encode(request, &mut bytes);
        self.send(&bytes).await?;
        self.reply().await
    }
}

/// Appends a request.
pub(crate) fn encode<A: AsRef<[u8]>>(request: &[A], out: &mut BytesMut) {
    out.extend_from_slice(format!("*{}\r\n", request.len()).as_bytes());
    for argument in request {
        let argument = argument.as_ref();
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// The text of a bulk string or of a line, without its sign.
pub(crate) fn text_of(reply: &[u8]) -> &[u8] {
    let mut lines = reply.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let line = if first.starts_with(b"$") { lines.next().unwrap_or_default() } else { &first[1..] };
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Bytes of a long reply that are read at a time.
const PIECE_BYTES: usize = 256 << 10;
/// The most that a read reserves.
const READ_BYTES_MAX: usize = 1 << 20;
const READ_BYTES: usize = 8 << 10;
/// A line has a number, or the text of an error.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The search for the end of a reply.
#[derive(Debug)]
pub(super) struct Scan {
    at: usize,
    /// Parts that are not complete: one, and the items of arrays that began.
    left: u64,
}

impl Default for Scan {
    fn default() -> Scan {
        Scan { at: 0, left: 1 }
    }
}

impl Scan {
    /// Returns the end of the reply that begins `bytes`; `None` if it is not there yet.
    pub(super) fn find(&mut self, bytes: &[u8]) -> Result<Option<usize>, ()> {
        while self.left > 0 {
            let Some(rest) = bytes.get(self.at..).filter(|rest| !rest.is_empty()) else {
                return Ok(None);
            };
            let Some(end) = rest.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n') else {
                return if rest.len() < LINE_BYTES_MAX { Ok(None) } else { Err(()) };
            };
            let line = rest[1..end.max(1)].strip_suffix(b"\r").ok_or(())?;
            self.at += end + 1;
            self.left -= 1;
            match rest[0] {
                b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
                b'$' | b'=' | b'!' => {
                    let len = usize::try_from(number(line)?);
                    self.at = len.map_or(Ok(self.at), |len| {
                        self.at.checked_add(len).and_then(|end| end.checked_add(2)).ok_or(())
                    })?;
                }
                sign @ (b'*' | b'~' | b'>' | b'%' | b'|') => {
                    let count = u64::try_from(number(line)?).unwrap_or(0);
                    // Attributes come before the reply that they are of.
                    let (each, more) = match sign {
                        b'%' => (2, 0),
                        b'|' => (2, 1),
                        _ => (1, 0),
                    };
                    let items = count.checked_mul(each).and_then(|it| it.checked_add(more));
                    self.left = items.and_then(|it| it.checked_add(self.left)).ok_or(())?;
                }
                _ => return Err(()),
            }
        }
        if bytes.len() < self.at {
            return Ok(None);
        }
        let end = self.at;
        *self = Scan::default();
        Ok(Some(end))
    }

    /// The bytes that a long reply lacks, with `len` there and all of its headers among them.
    pub(super) fn left_of_long(&self, len: usize) -> Option<usize> {
        (self.left == 0 && self.at as u64 >= LONG_BYTES).then(|| self.at - len)
    }

    /// Bytes to read, with `len` there.
    fn lacking(&self, len: usize) -> usize {
        self.at.saturating_sub(len).clamp(READ_BYTES, READ_BYTES_MAX)
    }
}

/// Finds the ends of the replies in `bytes`, whole and in pieces: they are the same.
#[cfg(feature = "internals")]
pub(crate) fn check_replies(mut bytes: &[u8]) -> usize {
    while let Ok(Some(end)) = Scan::default().find(bytes) {
        assert!(end <= bytes.len(), "a reply that is not there yet");
        let mut scan = Scan::default();
        let mut ends = (0..end).map(|len| scan.find(&bytes[..len]));
        assert!(ends.all(|found| found == Ok(None)), "a reply that ends early");
        assert_eq!(scan.find(bytes), Ok(Some(end)), "the pieces decide nothing");
        let _ = text_of(&bytes[..end]);
        bytes = &bytes[end..];
    }
    bytes.len()
}

fn number(line: &[u8]) -> Result<i64, ()> {
    let number = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
    number.ok_or(())
}

#[cfg(test)]
mod tests {
    use testkit::Rng;

    use super::*;
    use crate::reply::Reply;

    fn reply(rng: &mut Rng, depth: u32) -> Reply {
        let count = rng.index(4);
        match rng.below(if depth == 0 { 6 } else { 9 }) {
            0 => Reply::OK,
            1 => Reply::Integer(-7),
            2 => Reply::Nil,
            3 => Reply::NilArray,
            4 => Reply::Error("ERR a".into()),
            5 => {
                let len = rng.index(30);
                Reply::Echo(rng.bytes(len).into())
            }
            6 => Reply::Array((0..count).map(|_| reply(rng, depth - 1)).collect()),
            7 => Reply::Map((0..count).map(|_| (reply(rng, 0), reply(rng, depth - 1))).collect()),
            _ => {
                let pairs = vec![(Reply::text("a"), reply(rng, 0))];
                Reply::Attributed(pairs, Box::new(reply(rng, depth - 1)))
            }
        }
    }

    #[test]
    fn the_end_of_a_reply_is_found_whatever_the_pieces_are() {
        let mut rng = Rng::from_env_or(11);
        for _ in 0..2000 {
            let is_resp3 = rng.chance(1, 2);
            let replies: Vec<Reply> = (0..3).map(|_| reply(&mut rng, 3)).collect();
            let mut bytes = BytesMut::new();
            let mut ends = Vec::new();
            for reply in &replies {
                reply.write(&mut bytes, is_resp3);
                ends.push(bytes.len());
            }
            let mut found = Vec::new();
            let mut begin = 0;
            let mut seen = 0;
            let mut scan = Scan::default();
            while seen < bytes.len() {
                seen = bytes.len().min(seen + 1 + rng.index(9));
                while let Some(end) = scan.find(&bytes[begin..seen]).unwrap() {
                    begin += end;
                    found.push(begin);
                    if begin == seen {
                        break;
                    }
                }
            }
            assert_eq!(found, ends, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn bytes_that_are_no_reply_are_refused() {
        for wrong in [
            "?\r\n",
            "$x\r\n",
            "*1\n",
            "\r\n",
            "$9223372036854775807\r\n$1\r\n",
            "%9223372036854775807\r\n",
        ] {
            let mut scan = Scan::default();
            // A length that never comes takes no memory.
            assert!(
                scan.find(wrong.as_bytes()).is_err() || scan.lacking(wrong.len()) <= READ_BYTES_MAX,
                "{wrong:?}"
            );
        }
        assert!(Scan::default().find(&vec![b'+'; LINE_BYTES_MAX]).is_err());
        assert_eq!(text_of(b"$3\r\n1-7\r\n"), b"1-7");
        assert_eq!(text_of(b"-ERR a\r\n"), b"ERR a");
    }
}
