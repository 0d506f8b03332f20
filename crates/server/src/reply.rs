//! [`Reply`]: the answer to a request, and its bytes in both versions of the protocol.
//!
//! It is written by this file and not by `resp-rs`, which would copy each value once more; the tests read it back with
//! `resp-rs`. A value goes from the block of its table straight to the buffer of the connection.

use std::borrow::Cow;
use std::fmt::Write;

use bytes::{BufMut, Bytes, BytesMut};
use siltstone::Slice;

use crate::blob::Blob;

/// The digits of the greatest length.
const LEN_DIGITS_MAX: usize = 20;

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// A short text of the server.
    Simple(&'static str),
    Integer(i64),
    Value(Slice),
    /// A long value, whose bytes follow what is written of the reply. It is no part of an array.
    Blob(Box<Blob>),
    /// Bytes of the request.
    Echo(Bytes),
    Text(String),
    Nil,
    /// No array: the answer to an `EXEC` that was refused.
    NilArray,
    Array(Vec<Reply>),
    /// Pairs: a flat array in version 2.
    Map(Vec<(Reply, Reply)>),
    Error(Cow<'static, str>),
    /// A reply with attributes before it, which version 2 leaves out.
    Attributed(Vec<(Reply, Reply)>, Box<Reply>),
}

impl Reply {
    pub(crate) const OK: Reply = Reply::Simple("OK");

    /// The number of something.
    pub(crate) fn count(count: impl TryInto<i64>) -> Reply {
        Reply::Integer(count.try_into().unwrap_or(i64::MAX))
    }

    pub(crate) fn value(found: Option<Slice>) -> Reply {
        found.map_or(Reply::Nil, Reply::Value)
    }

    pub(crate) fn text(text: impl Into<String>) -> Reply {
        Reply::Text(text.into())
    }

    /// The bytes of its values, for the limit of a reply.
    pub(crate) fn len(&self) -> usize {
        match self {
            Reply::Value(value) => value.len(),
            Reply::Array(items) => items.iter().map(Reply::len).sum(),
            Reply::Attributed(_, reply) => reply.len(),
            _ => 0,
        }
    }

    /// The long value whose bytes follow what is written of it.
    pub(crate) fn blob(self) -> Option<Box<Blob>> {
        match self {
            Reply::Blob(blob) => Some(blob),
            Reply::Attributed(_, reply) => reply.blob(),
            _ => None,
        }
    }

    /// Appends its bytes to `out`.
    pub(crate) fn write(&self, out: &mut BytesMut, is_resp3: bool) {
        match self {
            Reply::Simple(text) => {
                out.reserve(text.len() + 3);
                out.put_u8(b'+');
                out.put_slice(text.as_bytes());
                out.put_slice(b"\r\n");
            }
            Reply::Integer(number) => line(out, format_args!(":{number}")),
            Reply::Value(value) => bulk(out, value),
            Reply::Blob(blob) => line(out, format_args!("${}", blob.len())),
            Reply::Echo(bytes) => bulk(out, bytes),
            Reply::Text(text) => bulk(out, text.as_bytes()),
            Reply::Nil if is_resp3 => out.put_slice(b"_\r\n"),
            Reply::Nil => out.put_slice(b"$-1\r\n"),
            Reply::NilArray if is_resp3 => out.put_slice(b"_\r\n"),
            Reply::NilArray => out.put_slice(b"*-1\r\n"),
            Reply::Array(items) => {
                line(out, format_args!("*{}", items.len()));
                items.iter().for_each(|item| item.write(out, is_resp3));
            }
            Reply::Map(pairs) => {
                let sign = if is_resp3 { '%' } else { '*' };
                let count = if is_resp3 { pairs.len() } else { 2 * pairs.len() };
                line(out, format_args!("{sign}{count}"));
                write_pairs(out, pairs, is_resp3);
            }
            // An end of a line in the text would begin another reply.
            Reply::Error(text) => line(out, format_args!("-{}", text.replace(['\r', '\n'], " "))),
            Reply::Attributed(pairs, reply) => {
                if is_resp3 {
                    line(out, format_args!("|{}", pairs.len()));
                    write_pairs(out, pairs, is_resp3);
                }
                reply.write(out, is_resp3);
            }
        }
    }
}

fn write_pairs(out: &mut BytesMut, pairs: &[(Reply, Reply)], is_resp3: bool) {
    for (name, value) in pairs {
        name.write(out, is_resp3);
        value.write(out, is_resp3);
    }
}

fn line(out: &mut BytesMut, text: std::fmt::Arguments<'_>) {
    write!(out, "{text}\r\n").expect("a buffer in memory takes every text");
}

fn bulk(out: &mut BytesMut, bytes: &[u8]) {
    // Without the machinery of texts: this is most of what a get writes.
    let mut digits = [0; LEN_DIGITS_MAX];
    let mut begin = digits.len();
    let mut rest = bytes.len();
    loop {
        begin -= 1;
        digits[begin] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.reserve(bytes.len() + LEN_DIGITS_MAX + 5);
    out.put_u8(b'$');
    out.put_slice(&digits[begin..]);
    out.put_slice(b"\r\n");
    out.put_slice(bytes);
    out.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use resp_rs::{resp2, resp3};

    use super::*;

    fn check(reply: &Reply, two: &str, three: &str) {
        for (is_resp3, expected) in [(false, two), (true, three)] {
            let mut out = BytesMut::new();
            reply.write(&mut out, is_resp3);
            assert_eq!(out, expected.as_bytes(), "{}", out.escape_ascii());
            let mut rest = out.freeze();
            while !rest.is_empty() {
                let parsed = if is_resp3 {
                    resp3::parse_frame(rest).unwrap().1
                } else {
                    resp2::parse_frame(rest).unwrap().1
                };
                rest = parsed;
            }
        }
    }

    #[test]
    fn replies_have_the_bytes_of_their_version() {
        check(&Reply::OK, "+OK\r\n", "+OK\r\n");
        check(&Reply::Integer(-7), ":-7\r\n", ":-7\r\n");
        check(&Reply::Value(Slice::from("a\r\n")), "$3\r\na\r\n\r\n", "$3\r\na\r\n\r\n");
        check(&Reply::Nil, "$-1\r\n", "_\r\n");
        check(&Reply::NilArray, "*-1\r\n", "_\r\n");
        check(&Reply::Error("ERR a\r\n+OK".into()), "-ERR a  +OK\r\n", "-ERR a  +OK\r\n");
        let pairs = vec![(Reply::text("level"), Reply::Integer(1))];
        check(
            &Reply::Map(pairs.clone()),
            "*2\r\n$5\r\nlevel\r\n:1\r\n",
            "%1\r\n$5\r\nlevel\r\n:1\r\n",
        );
        let attributed = Reply::Attributed(pairs, Box::new(Reply::Array(vec![Reply::Nil])));
        check(&attributed, "*1\r\n$-1\r\n", "|1\r\n$5\r\nlevel\r\n:1\r\n*1\r\n_\r\n");
    }
}
