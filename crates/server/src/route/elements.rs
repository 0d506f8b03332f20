//! The parts of replies: what a router reads in those that it merges.

use bytes::Bytes;

use super::link::Scan;

/// The items of an array, as they are in its reply; `None` for anything else.
pub(super) fn elements(reply: &Bytes) -> Option<Vec<Bytes>> {
    let end = reply.iter().position(|byte| *byte == b'\n')? + 1;
    let count = reply[..end].strip_prefix(b"*")?.strip_suffix(b"\r\n")?;
    let count: usize = std::str::from_utf8(count).ok()?.parse().ok()?;
    let mut items = Vec::new();
    let mut rest = reply.slice(end..);
    for _ in 0..count {
        let end = Scan::default().find(&rest).ok()??;
        items.push(rest.split_to(end));
    }
    rest.is_empty().then_some(items)
}

/// The first reply of several, and the others.
pub(super) fn first_reply(replies: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = Scan::default().find(replies).ok()??;
    Some(replies.split_at(end))
}

/// The bytes of a bulk string; `None` for nil. An error for anything else.
pub(super) fn bulk(item: &Bytes) -> Result<Option<Bytes>, ()> {
    if matches!(&item[..], b"_\r\n" | b"$-1\r\n") {
        return Ok(None);
    }
    let end = item.iter().position(|byte| *byte == b'\n').ok_or(())? + 1;
    let is_bulk = item.starts_with(b"$") && item.len() >= end + 2;
    if is_bulk { Ok(Some(item.slice(end..item.len() - 2))) } else { Err(()) }
}

/// An integer.
pub(super) fn integer(reply: &[u8]) -> Option<i64> {
    let digits = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_those_of_the_reply() {
        let reply = Bytes::from("*3\r\n$3\r\na\r\n\r\n$-1\r\n*1\r\n:5\r\n");
        let items = elements(&reply).unwrap();
        assert_eq!(bulk(&items[0]), Ok(Some(Bytes::from("a\r\n"))));
        assert_eq!((bulk(&items[1]), bulk(&items[2])), (Ok(None), Err(())));
        assert_eq!(elements(&items[2]).unwrap(), [Bytes::from(":5\r\n")]);
        assert_eq!(integer(b":5\r\n"), Some(5));
        for wrong in ["", "*1\r\n", "*2\r\n:5\r\n", "*1\r\n:5\r\n:6\r\n", "-ERR a\r\n", "*-1\r\n"] {
            assert_eq!(elements(&Bytes::from(wrong)), None, "{wrong:?}");
        }
        let (first, rest) = first_reply(b"+OK\r\n:1\r\n").unwrap();
        assert_eq!((first, rest), (&b"+OK\r\n"[..], &b":1\r\n"[..]));
    }
}
