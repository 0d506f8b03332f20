//! [`Cursors`]: the places of walks (`SCAN`) that clients have the numbers of.
//!
//! A cursor is a number, because clients read it as one, and the server or the router keeps the place.
//!
//! Invariant: at most [`CURSORS_MAX`] places of [`PLACE_BYTES_MAX`] bytes are kept; the oldest make room.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;

use parking_lot::Mutex;

const CURSORS_MAX: usize = 10_000;
const PLACE_BYTES_MAX: usize = 16 << 20;

/// The place at which a walk goes on.
pub(crate) trait WalkPlace: Clone {
    /// The partition of the walk.
    fn partition(&self) -> &str;

    /// The bytes that it keeps.
    fn bytes(&self) -> usize;
}

/// The places of all walks.
#[derive(Debug)]
pub(crate) struct Cursors<P>(Mutex<Kept<P>>);

#[derive(Debug)]
struct Kept<P> {
    newest: u64,
    places: HashMap<u64, P>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl<P> Default for Cursors<P> {
    /// Begins at a random number of 32 bits: a cursor of a process that was at this address before must be unknown, and not
    /// be that of another walk.
    fn default() -> Cursors<P> {
        let newest = RandomState::new().hash_one(()) >> 32;
        let places = HashMap::new();
        Cursors(Mutex::new(Kept { newest, places, order: VecDeque::new(), bytes: 0 }))
    }
}

impl<P: WalkPlace> Cursors<P> {
    /// Keeps a place, and returns its cursor.
    pub(crate) fn keep(&self, place: P) -> u64 {
        let mut kept = self.0.lock();
        kept.newest += 1;
        kept.bytes += place.bytes();
        let number = kept.newest;
        kept.places.insert(number, place);
        kept.order.push_back(number);
        while kept.order.len() > CURSORS_MAX || kept.bytes > PLACE_BYTES_MAX {
            let Some(oldest) = kept.order.pop_front() else { break };
            if let Some(gone) = kept.places.remove(&oldest) {
                kept.bytes -= gone.bytes();
            }
        }
        number
    }

    /// The place of a cursor of this partition, if it is kept.
    pub(crate) fn place(&self, cursor: u64, partition: &str) -> Option<P> {
        self.0.lock().places.get(&cursor).filter(|place| place.partition() == partition).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place of a partition, with so many bytes.
    type Named = (String, usize);

    impl WalkPlace for Named {
        fn partition(&self) -> &str {
            &self.0
        }

        fn bytes(&self) -> usize {
            self.1
        }
    }

    fn place(bytes: usize) -> Named {
        ("p".to_owned(), bytes)
    }

    #[test]
    fn a_cursor_of_a_server_is_unknown_to_the_next_one() {
        let before = Cursors::default().keep(place(3));
        let next = Cursors::default();
        next.keep(place(3));
        // 0 begins a walk, and a router needs ten bits for the node.
        assert!(before > 0 && before <= 1 << 33 && next.place(before, "p").is_none());
    }

    #[test]
    fn old_cursors_make_room() {
        let cursors = Cursors::default();
        let first = cursors.keep(place(3));
        assert_eq!(cursors.place(first, "p").unwrap(), place(3));
        assert!(cursors.place(first, "q").is_none());
        for _ in 0..300 {
            cursors.keep(place(65_534));
        }
        assert!(cursors.place(first, "p").is_none());
        assert!(cursors.0.lock().bytes <= PLACE_BYTES_MAX);
    }
}
