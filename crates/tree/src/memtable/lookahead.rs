//! Gets of several keys, which wait for memory together.

use super::Memtable;
use super::skiplist::{PREFETCH_MAX, VersionRef};
use crate::types::{SeqNo, Slice, Trailer};

/// An entry that a get has found, whose value is not copied yet.
#[derive(Clone, Copy)]
pub struct FoundEntry<'m>(VersionRef<'m>);

impl FoundEntry<'_> {
    /// Its trailer and its value.
    pub fn read(self) -> (Trailer, Slice) {
        (self.0.trailer(), self.0.value_slice())
    }
}

impl Memtable {
    /// Has the processor fetch what a get of a missing key with this hash looks at.
    #[inline]
    pub fn prefetch_bloom(&self, hash: u64) {
        self.bloom.prefetch(hash);
    }

    /// As [`Memtable::get`] for each key with its hash; `found` gets its number with its entry, if it is here. No value is
    /// copied.
    pub fn find_all<'m, 'k>(
        &'m self,
        keys: impl Iterator<Item = (usize, &'k [u8], u64)>,
        seq: SeqNo,
        mut found: impl FnMut(usize, FoundEntry<'m>),
    ) {
        let list = self.list();
        let mut keys = keys.filter(|(.., hash)| self.bloom.may_contain(*hash));
        loop {
            let mut some = [&[][..]; PREFETCH_MAX];
            let mut numbers = [0; PREFETCH_MAX];
            let mut count = 0;
            for (at, (number, key, _)) in keys.by_ref().take(PREFETCH_MAX).enumerate() {
                some[at] = key;
                numbers[at] = number;
                count += 1;
            }
            for (node, number) in list.find_all(&some[..count]).into_iter().zip(numbers) {
                let version = node.and_then(|node| node.newest().at_most(Trailer::seek(seq)));
                if let Some(version) = version {
                    found(number, FoundEntry(version));
                }
            }
            if count < PREFETCH_MAX {
                return;
            }
        }
    }
}
