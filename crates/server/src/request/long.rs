//! The long value of a `SET` or of a mover's `PUT`, which is taken out of its request while it comes.

use bytes::{Buf, Bytes, BytesMut};

use super::{Incoming, header};

/// A long value that comes, and what its request has besides.
#[derive(Debug)]
pub(super) struct Value {
    /// The arguments before it, with the name of the command.
    head: Vec<Bytes>,
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
        let head = head_of_value(&self.buffer, partial.count - partial.left).unwrap_or_default();
        self.value = Some(Value { head, left: len.unsigned_abs(), arguments: partial.left - 1 });
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
        let Value { head, arguments, .. } = value;
        let count = head.len() as u64 + 1 + arguments;
        let mut request = BytesMut::from(format!("*{count}\r\n").as_bytes());
        for argument in head.iter().chain([&Bytes::new()]) {
            request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            request.extend_from_slice(argument);
            request.extend_from_slice(b"\r\n");
        }
        self.buffer.advance(2);
        request.extend_from_slice(&self.buffer);
        self.buffer = request;
        Ok(true)
    }
}

/// The arguments before the value of a request whose value is at `place`: `SET key`, or
/// `SCID.SLOTS PUT attempt epoch partition expires key`.
pub(super) fn head_of_value(bytes: &[u8], place: u64) -> Option<Vec<Bytes>> {
    if !matches!(place, 2 | 7) {
        return None;
    }
    let (_, mut end) = header(bytes, 0, b'*', "").ok()?;
    let mut head = Vec::with_capacity(place as usize);
    for _ in 0..place {
        let (len, begin) = header(bytes, end, b'$', "").ok()?;
        let argument = bytes.get(begin..begin + usize::try_from(len).ok()?)?;
        head.push(Bytes::copy_from_slice(argument));
        end = begin + argument.len() + 2;
    }
    let is_known = match place {
        2 => head[0].eq_ignore_ascii_case(b"SET"),
        _ => head[0].eq_ignore_ascii_case(b"SCID.SLOTS") && head[1].eq_ignore_ascii_case(b"PUT"),
    };
    is_known.then_some(head)
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
                        Next::Long { head, len } => {
                            assert!(*is_long && head[1] == "k" && len == words[2].len() as u64);
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
                            assert!(request[..2] == words[..2] && request[3..] == words[3..]);
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
