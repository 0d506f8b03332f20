//! [`Peer`]: the primary of a shard, for a mover, and the parts of its replies.

use std::io;

use bytes::{Bytes, BytesMut};
use resp_rs::resp2::{Frame, parse_frame};
use siltstone::{Error, ErrorKind};
use tokio::runtime::Runtime;

use super::map::ShardMap;
use crate::route::link::{Arrived, Link, encode};

/// The outcome of a step of an attempt.
pub(super) type Attempt<T> = Result<T, Stop>;

/// The reason why an attempt ended.
pub(super) enum Stop {
    /// Another attempt may succeed.
    Again(String),
    Final(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Final(error)
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Error {
        match stop {
            Stop::Again(text) => Error::new(ErrorKind::Io, text),
            Stop::Final(error) => error,
        }
    }
}

pub(super) fn strange(frame: &Frame) -> Stop {
    let text = format!("{frame:?}");
    let text: String = text.chars().take(200).collect();
    Stop::Final(Error::new(ErrorKind::Io, format!("a reply that no shard gives: {text}")))
}

pub(super) fn items(frame: &Frame) -> Attempt<&[Frame]> {
    match frame {
        Frame::Array(Some(items)) => Ok(items),
        other => Err(strange(other)),
    }
}

pub(super) fn bulk(frame: &Frame) -> Attempt<&Bytes> {
    match frame {
        Frame::BulkString(Some(bytes)) => Ok(bytes),
        other => Err(strange(other)),
    }
}

pub(super) fn integer(frame: &Frame) -> Attempt<i64> {
    match frame {
        Frame::Integer(number) => Ok(*number),
        other => Err(strange(other)),
    }
}

/// A reply in one line: `name=value` for each pair.
pub(super) fn line(frame: &Frame) -> String {
    match frame {
        Frame::BulkString(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Frame::Integer(number) => number.to_string(),
        Frame::Array(Some(items)) => {
            let pairs =
                items.chunks(2).map(|pair| pair.iter().map(line).collect::<Vec<_>>().join("="));
            pairs.collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}

/// A value that was asked for.
pub(super) enum Passed {
    /// It was long, and is at its place. Its bytes.
    Long(u64),
    /// It was not long, or is not there.
    Whole(Frame),
}

/// The primary of a shard.
pub(super) struct Peer<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) link: Link,
    pub(super) shard: String,
}

impl Peer<'_> {
    pub(super) fn call<A: AsRef<[u8]>>(&mut self, request: &[A]) -> Attempt<Frame> {
        let called = self.runtime.block_on(self.link.call(request));
        self.frame(called)
    }

    /// Asks for a value. A long one goes to `to` while it comes, as the last argument of a request that begins with `head`.
    pub(super) fn pass_value(
        &mut self,
        request: &[Bytes],
        to: &mut Peer<'_>,
        head: &[Bytes],
    ) -> Attempt<Passed> {
        let runtime = self.runtime;
        let arrived = runtime.block_on(async {
            let mut bytes = BytesMut::new();
            encode(request, &mut bytes);
            self.link.send(&bytes).await?;
            self.link.next().await
        });
        let (mut piece, mut left) = match arrived {
            Ok(Arrived::Begun(begin, left)) => (begin, left),
            Ok(Arrived::Whole(reply)) => return self.frame(Ok(reply)).map(Passed::Whole),
            Err(error) => return self.frame(Err(error)).map(Passed::Whole),
        };
        let mut bytes = BytesMut::new();
        encode(head, &mut bytes);
        // One argument more: the reply is it, with its length before it.
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let count = format!("*{}\r\n", head.len() + 1);
        let begin = BytesMut::from(count.as_bytes());
        let mut sent = 0;
        to.send(&[&begin[..], &bytes[end..]].concat())?;
        loop {
            sent += piece.len() as u64;
            to.send(&piece)?;
            if left == 0 {
                break;
            }
            let arrived = runtime.block_on(self.link.piece(&mut left));
            piece = self.again(arrived)?;
        }
        let done = runtime.block_on(to.link.reply());
        to.frame(done)?;
        Ok(Passed::Long(sent))
    }

    fn send(&mut self, bytes: &[u8]) -> Attempt<()> {
        let sent = self.runtime.block_on(self.link.send(bytes));
        self.again(sent)
    }

    /// A lost connection ends the attempt.
    fn again<T>(&self, done: io::Result<T>) -> Attempt<T> {
        done.map_err(|error| Stop::Again(format!("shard {}: {error}", self.shard)))
    }

    fn frame(&self, called: io::Result<Bytes>) -> Attempt<Frame> {
        let shard = &self.shard;
        let reply = self.again(called)?;
        let parsed = parse_frame(reply);
        let (frame, _) = parsed.map_err(|error| Stop::Again(format!("shard {shard}: {error}")))?;
        let Frame::Error(text) = &frame else { return Ok(frame) };
        let text = String::from_utf8_lossy(text).into_owned();
        if text.starts_with("READONLY")
            || text.starts_with("CLOSED")
            || text.contains("try it again")
        {
            return Err(Stop::Again(format!("shard {shard}: {text}")));
        }
        Err(Stop::Final(Error::new(ErrorKind::InvalidArgument, format!("shard {shard}: {text}"))))
    }

    /// Refuses a node of another shard, and one that knows of `map` or a later one already, which would refuse its slots.
    pub(super) fn check(&mut self, map: &ShardMap, place: usize) -> Attempt<()> {
        let said = self.call(&["SCID.MAP"])?;
        let name = &map.shards[place].name;
        if let Frame::Array(Some(pairs)) = &said
            && let [_, Frame::BulkString(Some(found)), .., Frame::Integer(attempt)] = &pairs[..]
            && found == name.as_bytes()
        {
            let number = map.number;
            if u64::try_from(*attempt).is_ok_and(|attempt| attempt < number) {
                return Ok(());
            }
            let text = format!(
                "shard {name} knows of map {attempt}, and this would be map {number}: use the maps that it comes from"
            );
            return Err(Stop::Final(Error::new(ErrorKind::InvalidArgument, text)));
        }
        let text = format!(
            "{} is no node of shard {name}: start it with --shard {name}",
            self.link.address
        );
        Err(Stop::Final(Error::new(ErrorKind::InvalidArgument, text)))
    }
}
