//! The long value of a `SET`, which is taken out of its request while it comes.

use bytes::{Buf, Bytes, BytesMut};

use super::{Incoming, header};

/// A long value that comes, and what its request has besides.
#[derive(Debug)]
pub(super) struct Value {
    key: Bytes,
    /// Bytes that are not taken yet.
    left: u64,
    /// Arguments after it.
    arguments: u64,
}

impl Incoming {
    /// Returns whether a long value comes, which is not ended yet.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn is_receiving(&self) -> bool {
        self.value.is_some()
    }

    /// Holds the long value that begins in memory, within the limits.
    pub(crate) fn hold(&mut self) {
        if let Some(partial) = &mut self.partial {
            partial.is_held = true;
        }
    }

    /// Takes the long value that begins out of its request: [`Incoming::piece`] returns its bytes. The request comes after it,
    /// with an empty value. Returns the bytes of the request up to the value.
    pub(crate) fn take(&mut self) -> Bytes {
        let Some(partial) = self.partial.take() else { return Bytes::new() };
        let Ok((len, end)) = header(&self.buffer, partial.at, b'$', "") else {
            return Bytes::new();
        };
        let key = key_of_set(&self.buffer).unwrap_or_default();
        self.value = Some(Value { key, left: len.unsigned_abs(), arguments: partial.left - 1 });
        self.buffer.split_to(end).freeze()
    }

    /// The bytes of the long value that are there.
    pub(crate) fn piece(&mut self) -> Option<Bytes> {
        let value = self.value.as_mut().filter(|value| value.left > 0)?;
        let len = self.buffer.len().min(usize::try_from(value.left).unwrap_or(usize::MAX));
        value.left -= len as u64;
        self.lacking = usize::try_from(value.left).unwrap_or(usize::MAX);
        (len > 0).then(|| self.buffer.split_to(len).freeze())
    }

    /// Ends the long value once it is complete. Returns whether it is.
    pub(crate) fn end_value(&mut self) -> Result<bool, &'static str> {
        let Some(value) = self.value.take_if(|value| value.left == 0 && self.buffer.len() >= 2)
        else {
            return Ok(false);
        };
        if !self.buffer.starts_with(b"\r\n") {
            return Err("expected the end of a value");
        }
        // The rest of the request, as if its value were empty.
        let Value { key, arguments, .. } = value;
        let mut request = BytesMut::new();
        let head = format!("*{}\r\n$3\r\nSET\r\n${}\r\n", arguments + 3, key.len());
        request.extend_from_slice(head.as_bytes());
        request.extend_from_slice(&key);
        request.extend_from_slice(b"\r\n$0\r\n\r\n");
        self.buffer.advance(2);
        request.extend_from_slice(&self.buffer);
        self.buffer = request;
        Ok(true)
    }
}

/// The key of a request that begins with `SET` and a key.
pub(super) fn key_of_set(bytes: &[u8]) -> Option<Bytes> {
    let (_, end) = header(bytes, 0, b'*', "").ok()?;
    let (len, begin) = header(bytes, end, b'$', "").ok()?;
    let end = begin + usize::try_from(len).ok()?;
    let is_set = bytes.get(begin..end)?.eq_ignore_ascii_case(b"SET");
    let (len, begin) = header(bytes, end + 2, b'$', "").ok().filter(|_| is_set)?;
    bytes.get(begin..begin + usize::try_from(len).ok()?).map(Bytes::copy_from_slice)
}

#[cfg(test)]
mod tests {
    use testkit::Rng;

    use super::super::tests::{LIMITS, encoded};
    use super::super::{Next, RequestLimits};
    use super::*;

    #[test]
    fn a_long_value_is_taken_out_of_its_request_whatever_the_pieces_are() {
        let limits = RequestLimits { long_bytes: 50, ..LIMITS };
        let mut rng = Rng::from_env_or(6);
        for _ in 0..500 {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for _ in 0..rng.range(1..5) {
                let name = *rng.pick(&["SET", "set", "GETSET"]);
                let len = rng.index(400);
                let mut words = vec![name.into(), b"k".to_vec(), rng.bytes(len)];
                words.extend((0..rng.index(3)).map(|_| b"NX".to_vec()));
                bytes.extend_from_slice(&encoded(&words));
                let is_long = name != "GETSET" && len >= 50;
                let is_taken = rng.chance(1, 2);
                expected.push((words, is_long, is_taken));
            }
            let mut incoming = Incoming::default();
            let mut found = expected.iter();
            let mut value = Vec::new();
            for piece in bytes.chunks(1 + rng.index(60)) {
                incoming.room().extend_from_slice(piece);
                loop {
                    while let Some(piece) = incoming.piece() {
                        value.extend_from_slice(&piece);
                    }
                    if incoming.is_receiving() && !incoming.end_value().unwrap() {
                        break;
                    }
                    let Some((words, is_long, is_taken)) = found.clone().next() else { break };
                    match incoming.next(&limits) {
                        Next::More => break,
                        Next::Long { key, len } => {
                            assert!(*is_long && key == "k" && len == words[2].len() as u64);
                            match is_taken {
                                true => drop(incoming.take()),
                                false => incoming.hold(),
                            }
                        }
                        Next::TooLarge(_) => {
                            assert!(words[2].len() > 100 && !(*is_long && *is_taken));
                            found.next();
                        }
                        Next::Request(request) if *is_long && *is_taken => {
                            assert!(value == words[2] && request[2].is_empty());
                            assert!(request[..2] == ["SET", "k"] && request[3..] == words[3..]);
                            value.clear();
                            found.next();
                        }
                        Next::Request(request) => {
                            assert!(request == *words);
                            found.next();
                        }
                        Next::Broken(what) => panic!("{what}"),
                    }
                }
            }
            assert_eq!(found.len(), 0);
        }
    }
}
