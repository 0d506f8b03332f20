//! [`LastKeys`]: the key that a job read last, and the user key that it wrote last.
//!
//! As a rule they are one, because most entries survive. Then there is one copy of it, and the next key is
//! compared once.
//!
//! Invariant: `order` is of the key that [`LastKeys::meet`] was called with last.

use std::cmp::Ordering;

use crate::types::{KeyRef, SeqNo, Trailer};

/// The user key that a job read last and the one that it wrote last, for comparison with the next one.
pub(super) struct LastKeys {
    /// The user key of the entry read last, and its trailer if there is one.
    read: Vec<u8>,
    read_trailer: Option<Trailer>,
    /// The user key of the entry written last, unless that is `read`.
    written: Vec<u8>,
    written_trailer: Option<Trailer>,
    is_read_written: bool,
    /// The trailer with which the entry under way was written, if it was.
    written_now: Option<Trailer>,
    /// The user key of the entry under way against that of the entry read last.
    order: Ordering,
}

impl LastKeys {
    pub(super) fn new() -> LastKeys {
        LastKeys {
            read: Vec::new(),
            read_trailer: None,
            written: Vec::new(),
            written_trailer: None,
            is_read_written: false,
            written_now: None,
            order: Ordering::Greater,
        }
    }

    /// Compares the key of the next entry with that of the entry read last; `Greater` if it is the first.
    #[inline]
    pub(super) fn meet(&mut self, key: KeyRef<'_>) -> Ordering {
        self.written_now = None;
        self.order = match self.read_trailer {
            Some(_) => key.user.cmp(&self.read),
            None => Ordering::Greater,
        };
        // Newer versions first.
        self.order.then_with(|| self.read_trailer.cmp(&Some(key.trailer)))
    }

    /// Returns `true` if the entry under way has the user key of the entry read last.
    #[inline]
    pub(super) fn is_version(&self) -> bool {
        self.order.is_eq()
    }

    /// The sequence number of the newer version that was read before the entry under way; the greatest
    /// one if there is none.
    #[inline]
    pub(super) fn newer(&self) -> SeqNo {
        let newer = self.read_trailer.filter(|_| self.is_version());
        newer.map_or(SeqNo::MAX, Trailer::seq)
    }

    /// The entry under way, whose key may have another kind by now, against the entry written last: its
    /// user key, and its whole key. `Greater` if it is the first.
    #[inline]
    pub(super) fn order_of_written(&self, key: KeyRef<'_>) -> (Ordering, Ordering) {
        let user = match self.written_trailer {
            None => Ordering::Greater,
            Some(_) if self.is_read_written => self.order,
            Some(_) => key.user.cmp(&self.written),
        };
        (user, user.then_with(|| self.written_trailer.cmp(&Some(key.trailer))))
    }

    /// Notes that the entry under way is written, with this trailer.
    #[inline]
    pub(super) fn note_written(&mut self, trailer: Trailer) {
        self.written_now = Some(trailer);
    }

    /// Notes that an entry with the key that was read last is written, after the entry under way was met or between two
    /// entries. It was held until then.
    pub(super) fn note_held_written(&mut self) {
        if let Some(trailer) = self.written_now.take() {
            self.written_trailer = Some(trailer);
            self.is_read_written = true;
        }
    }

    /// Notes that the entry under way was read, and takes a copy of its key.
    #[inline]
    pub(super) fn note_read(&mut self, key: KeyRef<'_>) {
        let is_written = self.written_now.is_some();
        self.written_trailer = self.written_now.take().or(self.written_trailer);
        self.read_trailer = Some(key.trailer);
        if self.order.is_eq() {
            self.is_read_written |= is_written;
            return;
        }
        if self.is_read_written && !is_written {
            std::mem::swap(&mut self.read, &mut self.written);
        }
        self.is_read_written = is_written;
        self.read.clear();
        self.read.extend_from_slice(key.user);
    }

    /// The user key that was written last, if there is one. Asked between two entries, or before the entry
    /// under way is written.
    #[inline]
    pub(super) fn written_user(&self) -> Option<&[u8]> {
        self.written().map(|key| key.user)
    }

    /// The same with its trailer.
    #[inline]
    pub(super) fn written(&self) -> Option<KeyRef<'_>> {
        let user = if self.is_read_written { &self.read } else { &self.written };
        self.written_trailer.map(|trailer| KeyRef::new(user, trailer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::EntryKind;

    fn key(user: &[u8], seq: u64) -> KeyRef<'_> {
        let seq = SeqNo::new(seq).expect("test sequences are small");
        KeyRef::new(user, Trailer::new(seq, EntryKind::Value))
    }

    /// The user key and the whole key against those of another entry.
    fn orders(key: KeyRef<'_>, other: Option<KeyRef<'_>>) -> (Ordering, Ordering) {
        other.map_or((Ordering::Greater, Ordering::Greater), |other| {
            (key.user.cmp(other.user), key.cmp(&other))
        })
    }

    #[test]
    fn any_row_of_entries_is_compared_as_with_two_copies() {
        // Each bit of `row`: whether an entry is written. Keys repeat, ascend, and fall once.
        let keys =
            [(&b""[..], 9), (b"a", 9), (b"a", 8), (b"ab", 7), (b"ab", 7), (b"aa", 6), (b"b", 5)];
        for row in 0..1 << keys.len() {
            let mut last = LastKeys::new();
            let mut read: Option<KeyRef<'_>> = None;
            let mut written: Option<KeyRef<'_>> = None;
            for (at, (user, seq)) in keys.into_iter().enumerate() {
                let key = key(user, seq);
                assert_eq!(last.meet(key), orders(key, read).1);
                let newer = read.filter(|read| read.user == key.user);
                assert_eq!(last.newer(), newer.map_or(SeqNo::MAX, |read| read.trailer.seq()));
                assert_eq!(last.is_version(), newer.is_some());
                assert_eq!(last.order_of_written(key), orders(key, written));
                assert_eq!(last.written_user(), written.map(|key| key.user));
                if row >> at & 1 == 1 {
                    last.note_written(key.trailer);
                    written = Some(key);
                }
                last.note_read(key);
                read = Some(key);
                assert_eq!(last.written_user(), written.map(|key| key.user));
            }
        }
    }
}
