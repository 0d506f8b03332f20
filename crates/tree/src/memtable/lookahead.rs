//! Gets of several keys, which wait for memory together.

use super::Memtable;
use super::skiplist::PREFETCH_MAX;
use crate::types::{SeqNo, Slice, Trailer};

impl Memtable {
    /// Has the processor fetch what a get of a missing key with this hash looks at.
    #[inline]
    pub fn prefetch_bloom(&self, hash: u64) {
        self.bloom.prefetch(hash);
    }

    /// As [`Memtable::get`] for each key with its hash; `found` gets its number with its entry, if it is here.
    pub fn get_all<'k>(
        &self,
        keys: impl Iterator<Item = (usize, &'k [u8], u64)>,
        seq: SeqNo,
        mut found: impl FnMut(usize, (Trailer, Slice)),
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
                    found(number, (version.trailer(), version.value_slice()));
                }
            }
            if count < PREFETCH_MAX {
                return;
            }
        }
    }
}
