//! `SCAN` and `DBSIZE`: the walks of clients, and the patterns of keys.
//!
//! Invariant: a walk returns each key that exists from its begin to its end exactly once: it goes in key order, and a cursor
//! is the last key that was looked at.

use bytes::Bytes;
use siltstone::Slice;

use crate::cursors::{Cursors, WalkPlace};
use crate::failure::Failure;
use crate::reply::Reply;
use crate::shards::SlotSet;
use crate::strings::integer;
use crate::view::View;

/// The most entries that one call looks at.
const COUNT_MAX: i64 = 10_000;
/// A walk over so many entries need not wait for another thread.
const COUNT_INLINE_MAX: i64 = 100;

/// The place that a walk has reached.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    partition: String,
    after: Vec<u8>,
}

impl WalkPlace for Reached {
    fn partition(&self) -> &str {
        &self.partition
    }

    fn bytes(&self) -> usize {
        self.after.len() + self.partition.len()
    }
}

/// The arguments of a `SCAN`.
pub(crate) struct Scan {
    cursor: u64,
    pattern: Option<Bytes>,
    count: i64,
}

impl Scan {
    pub(crate) fn parse(arguments: &[Bytes]) -> Result<Scan, Failure> {
        let cursor = std::str::from_utf8(&arguments[0]).ok().and_then(|text| text.parse().ok());
        let cursor = cursor.ok_or(Failure::fixed("ERR invalid cursor"))?;
        let mut scan = Scan { cursor, pattern: None, count: 10 };
        for option in arguments[1..].chunks(2) {
            let [name, value] = option else { return Err(Failure::SYNTAX) };
            match &name.to_ascii_uppercase()[..] {
                b"MATCH" => scan.pattern = Some(value.clone()),
                b"COUNT" => scan.count = integer(value)?,
                b"TYPE" if value.eq_ignore_ascii_case(b"string") => {}
                _ => return Err(Failure::SYNTAX),
            }
        }
        if scan.count < 1 {
            return Err(Failure::SYNTAX);
        }
        scan.count = scan.count.min(COUNT_MAX);
        Ok(scan)
    }

    pub(crate) fn cursor(&self) -> u64 {
        self.cursor
    }

    pub(crate) fn pattern(&self) -> Option<&Bytes> {
        self.pattern.as_ref()
    }

    pub(crate) fn count(&self) -> i64 {
        self.count
    }

    /// Returns whether it is better run where it may wait.
    pub(crate) fn is_long(&self) -> bool {
        self.count > COUNT_INLINE_MAX
    }

    /// Looks at the next entries, until their keys have more than `bytes_max` bytes.
    pub(crate) fn run(
        &self,
        view: &View<'_>,
        partition: &str,
        cursors: &Cursors<Reached>,
        bytes_max: usize,
    ) -> Result<Reply, Failure> {
        let place = cursors.place(self.cursor, partition);
        if place.is_none() && self.cursor > 0 {
            let text = "ERR this cursor is unknown: it is too old, or of another server or partition; begin again with 0";
            return Err(Failure::fixed(text));
        }
        let wish = PageWish {
            after: place.as_ref().map(|place| &place.after[..]),
            pattern: self.pattern.as_deref(),
            count: self.count,
            bytes_max,
        };
        let page = wish.run(view, |key| view.shows(key))?;
        let number = match page.last {
            Some(last) => {
                cursors.keep(Reached { partition: partition.to_owned(), after: last.to_vec() })
            }
            None => 0,
        };
        Ok(Reply::Array(vec![Reply::text(number.to_string()), Reply::Array(page.keys)]))
    }
}

/// The page after the last key that was looked at.
struct PageWish<'a> {
    after: Option<&'a [u8]>,
    pattern: Option<&'a [u8]>,
    /// The most entries to look at, and the bytes of keys from which on it looks at no more.
    count: i64,
    bytes_max: usize,
}

/// The keys of a page, and the last one that was looked at; `None` at the end of the walk.
struct Page {
    keys: Vec<Reply>,
    last: Option<Slice>,
}

impl PageWish<'_> {
    /// Looks at the next entries.
    fn run(&self, view: &View<'_>, shows: impl Fn(&[u8]) -> bool) -> Result<Page, Failure> {
        let mut page = Page { keys: Vec::new(), last: None };
        let Some(mut cursor) = view.cursor()? else { return Ok(page) };
        let prefix = self.pattern.map_or(&b""[..], literal_prefix);
        match self.after {
            Some(after) if after >= prefix => cursor.seek_after(after)?,
            // Also of a walk that had another pattern until now.
            _ => cursor.seek(prefix)?,
        }
        let mut bytes = 0;
        for _ in 0..self.count {
            if !cursor.valid() || !cursor.key().starts_with(prefix) || bytes > self.bytes_max {
                break;
            }
            let is_match = self.pattern.is_none_or(|it| matches(it, cursor.key()));
            if is_match && shows(cursor.key()) {
                bytes += cursor.key().len();
                page.keys.push(Reply::Value(cursor.key_slice()));
            }
            page.last = Some(cursor.key_slice());
            cursor.next()?;
        }
        if !cursor.valid() || !cursor.key().starts_with(prefix) {
            page.last = None;
        }
        Ok(page)
    }
}

/// A page of a walk over slots, whose place its caller keeps.
pub(crate) struct PageOf {
    after: Option<Bytes>,
    pattern: Option<Bytes>,
    count: i64,
}

impl PageOf {
    pub(crate) fn parse(options: &[Bytes]) -> Result<PageOf, Failure> {
        let mut page = PageOf { after: None, pattern: None, count: 10 };
        for option in options.chunks(2) {
            let [name, value] = option else { return Err(Failure::SYNTAX) };
            match &name.to_ascii_uppercase()[..] {
                b"AFTER" => page.after = Some(value.clone()),
                b"MATCH" => page.pattern = Some(value.clone()),
                b"COUNT" => page.count = integer(value)?.clamp(1, COUNT_MAX),
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(page)
    }

    /// Returns whether it is better run where it may wait.
    pub(crate) fn is_long(&self) -> bool {
        self.count > COUNT_INLINE_MAX
    }

    /// Looks at the next entries, until the keys have more than `bytes_max` bytes.
    pub(crate) fn run(
        &self,
        view: &View<'_>,
        slots: &SlotSet,
        bytes_max: usize,
    ) -> Result<Reply, Failure> {
        let wish = PageWish {
            after: self.after.as_deref(),
            pattern: self.pattern.as_deref(),
            count: self.count,
            bytes_max,
        };
        let page = wish.run(view, |key| slots.has(key))?;
        Ok(Reply::Array(vec![Reply::value(page.last), Reply::Array(page.keys)]))
    }
}

/// Counts up to `most` entries; `None` if there are more.
pub(crate) fn count(view: &View<'_>, most: u64) -> Result<Option<u64>, Failure> {
    let Some(mut cursor) = view.cursor()? else { return Ok(Some(0)) };
    cursor.seek_to_first()?;
    let mut count = 0;
    while cursor.valid() {
        count += u64::from(view.shows(cursor.key()));
        if count > most {
            return Ok(None);
        }
        cursor.next()?;
    }
    Ok(Some(count))
}

/// The bytes with which each key that matches begins.
fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    &pattern[..end.unwrap_or(pattern.len())]
}

/// Returns whether `text` matches `pattern`: `*`, `?`, `[a-z]`, `[^a]`, and `\` before a byte that stands for itself.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut p = 0;
    let mut t = 0;
    // The last star, and the end of what it stands for. An earlier one need not be tried again.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if let Some(end) = one(&pattern[p..], text[t]) {
            p += end;
            t += 1;
        } else if let Some((at, end)) = star {
            star = Some((at, end + 1));
            p = at + 1;
            t = end + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// The bytes of `pattern` that match `byte`; `None` if they do not.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', next, ..] => (*next == byte).then_some(2),
        [b'[', class @ ..] => {
            let is_negated = class.first() == Some(&b'^');
            let mut at = usize::from(is_negated);
            let mut is_in = false;
            while at < class.len() && class[at] != b']' {
                match &class[at..] {
                    [b'\\', next, ..] => {
                        is_in |= *next == byte;
                        at += 2;
                    }
                    [low, b'-', high, ..] if *high != b']' => {
                        is_in |= (*low.min(high)..=*low.max(high)).contains(&byte);
                        at += 3;
                    }
                    [same, ..] => {
                        is_in |= *same == byte;
                        at += 1;
                    }
                    [] => break,
                }
            }
            (is_in != is_negated).then_some((at + 2).min(pattern.len()))
        }
        [same, ..] => (*same == byte).then_some(1),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("a\\*c", "a*c", true),
            ("a\\*c", "abc", false),
            ("[\\]]", "]", true),
            ("[a", "a", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        // An exponential matcher would not end.
        assert!(!matches("*a".repeat(2000).as_bytes(), "a".repeat(1999).as_bytes()));
        assert_eq!(literal_prefix(b"user:\\*"), b"user:");
    }
}
