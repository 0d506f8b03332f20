//! The operations of one batch in one partition: the payload of a WAL section.
//!
//! Built without any lock by `db/write.rs`. The log gets a copy of these bytes, and the memtable its entries from the
//! same bytes. A user's batch of several partitions is `db/batch.rs`. A large operation that is alone in its section is encoded into the memory that the memtable shares.
//!
//! ```text
//! operation := kind (1 byte, types::EntryKind)
//!              key length (varint) | key            0 for a clear; the first key of a deleted range,
//!                                                   which may be empty
//!              value length (varint) | value        0 for a tombstone and a clear; the first key after a
//!                                                   deleted range, 0 if that has no end
//! section   := operation*
//! ```
//!
//! Operations carry no sequence number: the n-th operation of a section has the section's first
//! sequence number plus n.

use std::ops::Range;
use std::sync::Arc;

use crate::codec::{Malformed, Reader, VARINT_BYTES_MAX, put_bytes, put_varint, zeroed};
use crate::limits::{FORMAT_VALUE_BYTES_MAX, INTERNAL_KEY_BYTES_MAX};
use crate::types::{COPIED_VALUE_BYTES_MAX, EntryKind, Operation, OperationChecksum, SectionBytes};

/// The most bytes of an operation in addition to its key and value.
const OPERATION_HEAD_BYTES_MAX: usize = 1 + 2 * VARINT_BYTES_MAX;

/// Encodes operations of one partition.
#[derive(Clone, Debug, Default)]
pub struct SectionBuilder {
    bytes: Vec<u8>,
    /// The only operation, if it is a large one; then there is nothing in `bytes`.
    shared: Option<Arc<[u8]>>,
    /// Made of what [`SectionBuilder::push`] was given, one an operation.
    sums: Vec<OperationChecksum>,
    /// Memory for the places that [`damaged_key`] finds.
    places: Vec<Operation>,
}

impl SectionBuilder {
    /// Empties the section, which keeps its memory up to about `bytes_max` bytes.
    pub fn clear(&mut self, bytes_max: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(bytes_max);
        self.shared = None;
        self.sums.clear();
        self.places.clear();
    }

    /// Appends an operation. The caller has checked every limit.
    pub fn push(&mut self, kind: EntryKind, key: &[u8], value: &[u8]) {
        // Before anything is copied.
        let sum = OperationChecksum::new(kind, key, value);
        // In memory that the memtable shares from the start: a value of 1 GiB has one copy, not two. A
        // shorter one is copied by the memtable, and a buffer that is used again costs less.
        if value.len() > COPIED_VALUE_BYTES_MAX && self.sums.is_empty() {
            self.shared = Some(encode_shared(kind, key, value));
        } else {
            if let Some(shared) = self.shared.take() {
                // A second operation came, so the section is built in the buffer after all.
                self.bytes.extend_from_slice(&shared);
            }
            // Once for all parts: each push could grow the buffer otherwise.
            self.bytes.reserve(OPERATION_HEAD_BYTES_MAX + key.len() + value.len());
            put_head(&mut self.bytes, kind, key, value);
            self.bytes.extend_from_slice(value);
        }
        self.sums.push(sum);
    }

    /// Returns the number of operations.
    pub fn operation_count(&self) -> u32 {
        self.sums.len() as u32
    }

    /// The encoded operations.
    pub fn bytes(&self) -> &[u8] {
        self.shared.as_deref().unwrap_or(&self.bytes)
    }

    /// The encoded operations, their checksums and memory for their places: lent, but for a large operation
    /// that is alone, which the builder gives away.
    pub fn lend(&mut self) -> (SectionBytes<'_>, &[OperationChecksum], &mut Vec<Operation>) {
        let bytes = match self.shared.take() {
            Some(shared) => SectionBytes::Shared(shared),
            None => SectionBytes::Lent(&self.bytes),
        };
        (bytes, &self.sums, &mut self.places)
    }

    /// The checksums of each operation, of the bytes that it was made of.
    #[cfg(any(test, feature = "internals"))]
    pub fn sums(&self) -> &[OperationChecksum] {
        &self.sums
    }
}

/// Appends an operation but its value.
fn put_head(out: &mut Vec<u8>, kind: EntryKind, key: &[u8], value: &[u8]) {
    out.push(kind as u8);
    put_bytes(out, key);
    put_varint(out, value.len() as u64);
}

/// Encodes one operation without a second copy of it.
fn encode_shared(kind: EntryKind, key: &[u8], value: &[u8]) -> Arc<[u8]> {
    let mut head = Vec::with_capacity(OPERATION_HEAD_BYTES_MAX + key.len());
    put_head(&mut head, kind, key, value);
    // Built in its final memory: a large value is copied once, from the caller into the section
    // that the log and the memtable share.
    let mut section = zeroed(head.len() + value.len());
    let bytes = Arc::get_mut(&mut section).expect("no one else has it yet");
    bytes[..head.len()].copy_from_slice(&head);
    bytes[head.len()..].copy_from_slice(value);
    section
}

/// The first key of `section` that is not what it was made of, by what is known of each operation. Puts the
/// operations before it into `places`.
///
/// # Errors
/// The section is not one.
pub fn damaged_key<'s>(
    section: &'s [u8],
    sums: &[OperationChecksum],
    places: &mut Vec<Operation>,
) -> Result<Option<&'s [u8]>, Malformed> {
    places.clear();
    let mut operations = SectionReader::new(section);
    for sum in sums {
        let missing = Malformed { what: "an operation is missing", at: section.len() };
        let operation = operations.next_operation()?.ok_or(missing)?;
        let key = &section[operation.key.clone()];
        // The sum was made of the bytes of the caller, so it covers the time in which they were
        // encoded.
        if OperationChecksum::new(operation.kind, key, &section[operation.value.clone()]) != *sum {
            return Ok(Some(key));
        }
        places.push(operation);
    }
    Ok(None)
}

/// Walks the operations of a section, checking everything.
#[derive(Clone, Debug)]
pub struct SectionReader<'a> {
    reader: Reader<'a>,
}

impl<'a> SectionReader<'a> {
    /// The operations in `section`.
    pub fn new(section: &'a [u8]) -> SectionReader<'a> {
        SectionReader { reader: Reader::new(section) }
    }

    /// The next operation, `None` at the end.
    #[inline]
    pub fn next_operation(&mut self) -> Result<Option<Operation>, Malformed> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let at = self.reader.position();
        let kind = EntryKind::of_operation(self.reader.u8()?)
            .ok_or(Malformed { what: "unknown kind of operation", at })?;
        // The limit of stored keys, which are longer than those of the caller by the suffix of
        // their form.
        let key = self.field(INTERNAL_KEY_BYTES_MAX as u64, "key beyond its limit")?;
        if kind == EntryKind::Clear && !key.is_empty() {
            return Err(Malformed { what: "key of a clear", at });
        }
        let value = self.field(FORMAT_VALUE_BYTES_MAX, "value beyond its limit")?;
        match kind {
            EntryKind::Clear if !value.is_empty() => {
                return Err(Malformed { what: "value of a clear", at });
            }
            EntryKind::DeleteRange => self.check_range(&key, &value, at)?,
            _ => {}
        }
        Ok(Some(Operation { kind, key, value }))
    }

    /// Checks the ends of a deleted range.
    #[cold]
    fn check_range(
        &self,
        key: &Range<usize>,
        value: &Range<usize>,
        at: usize,
    ) -> Result<(), Malformed> {
        if value.len() > INTERNAL_KEY_BYTES_MAX {
            return Err(Malformed { what: "end of a range beyond the limit of keys", at });
        }
        let start = self.reader.passed(key.clone());
        let end = self.reader.passed(value.clone());
        if !end.is_empty() && end <= start {
            return Err(Malformed { what: "a range that ends before it begins", at });
        }
        Ok(())
    }

    /// The keys of the next operations, up to an end or a malformed one. The reader stays where it is.
    pub fn keys_ahead(&self, section: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut ahead = self.clone();
        std::iter::from_fn(move || Some(&section[ahead.next_operation().ok()??.key]))
    }

    fn field(&mut self, limit: u64, what: &'static str) -> Result<Range<usize>, Malformed> {
        let len = self.reader.length()?;
        if len as u64 > limit {
            return Err(self.reader.malformed(what));
        }
        let start = self.reader.position();
        self.reader.take(len)?;
        Ok(start..start + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Decoded = Vec<(EntryKind, Vec<u8>, Vec<u8>)>;

    fn decode(bytes: &[u8]) -> Result<Decoded, Malformed> {
        let mut reader = SectionReader::new(bytes);
        let mut all = Vec::new();
        while let Some(op) = reader.next_operation()? {
            all.push((op.kind, bytes[op.key].to_vec(), bytes[op.value].to_vec()));
        }
        Ok(all)
    }

    #[test]
    fn the_bytes_of_a_section_are_as_described() {
        let mut section = SectionBuilder::default();
        section.push(EntryKind::Value, b"key", b"value");
        section.push(EntryKind::Tombstone, b"k", b"");
        section.push(EntryKind::Clear, b"", b"");
        section.push(EntryKind::DeleteRange, b"a", b"bc");
        section.push(EntryKind::DeleteRange, b"", b"d");
        section.push(EntryKind::DeleteRange, b"e", b"");
        section.push(EntryKind::Operand, b"k", b"op");
        let ranges = b"\x04\x01a\x02bc\x04\x00\x01d\x04\x01e\x00\x03\x01k\x02op";
        let others = b"\x01\x03key\x05value\x00\x01k\x00\x06\x00\x00";
        assert_eq!(section.bytes(), [&others[..], ranges].concat());
        assert_eq!(section.operation_count(), 7);
        assert_eq!(decode(section.bytes()).unwrap().len(), 7);
    }

    #[test]
    fn a_large_operation_has_the_bytes_that_it_has_among_others() {
        let large = vec![7; COPIED_VALUE_BYTES_MAX + 1];
        for count in 1..4 {
            let mut section = SectionBuilder::default();
            let mut expected = Vec::new();
            for n in 0..count {
                section.push(EntryKind::Value, &[n], &large);
                section.push(EntryKind::Tombstone, b"k", b"");
                expected.extend_from_slice(&[1, 1, n, 0x81, 0x80, 0x10]);
                expected.extend_from_slice(&large);
                expected.extend_from_slice(b"\x00\x01k\x00");
            }
            assert_eq!(section.bytes(), expected);
            assert_eq!(&*section.lend().0, expected);
        }
        let mut section = SectionBuilder::default();
        section.push(EntryKind::Value, b"k", &large);
        let memory = section.bytes().as_ptr();
        let taken = section.lend().0.shared().cloned().expect("others can hold it");
        assert_eq!(taken.as_ptr(), memory, "it is the same memory");
        assert_eq!(taken[..6], [1, 1, b'k', 0x81, 0x80, 0x10]);
        assert_eq!(taken[6..], large);
        assert_eq!(Arc::strong_count(&taken), 1, "the builder keeps no large value");
        section.clear(0);
        section.push(EntryKind::Tombstone, b"k", b"");
        assert_eq!(section.bytes(), b"\x00\x01k\x00");
        assert!(section.lend().0.shared().is_none(), "its buffer is used again");
    }

    #[test]
    fn a_clear_has_neither_key_nor_value_and_any_other_key_may_be_empty() {
        decode(b"\x06\x00\x00").unwrap();
        for bad in [&b"\x06\x01k\x00"[..], b"\x06\x00\x01v"] {
            decode(bad).unwrap_err();
        }
        for good in [&b"\x00\x00\x00"[..], b"\x01\x00\x01v"] {
            assert!(decode(good).unwrap()[0].1.is_empty());
        }
        // Ranges that end where they begin, or before.
        for bad in [&b"\x04\x01k\x01k"[..], b"\x04\x02kk\x01k", b"\x04\x01k\x01a"] {
            decode(bad).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn operations_read_back_and_every_truncation_is_seen(
            ops in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40),
                prop::collection::vec(any::<u8>(), 0..200)), 1..20)
        ) {
            let mut section = SectionBuilder::default();
            let mut ends = vec![0];
            for (put, key, value) in &ops {
                let (kind, value) =
                    if *put { (EntryKind::Value, &value[..]) } else { (EntryKind::Tombstone, &[][..]) };
                section.push(kind, key, value);
                ends.push(section.bytes().len());
            }
            let all = decode(section.bytes()).unwrap();
            prop_assert_eq!(all.len(), ops.len());
            for ((kind, key, value), op) in all.iter().zip(&ops) {
                prop_assert_eq!(key, &op.1);
                prop_assert_eq!(*kind == EntryKind::Value, op.0);
                prop_assert_eq!(value.is_empty(), !op.0 || op.2.is_empty());
            }
            for cut in 0..section.bytes().len() {
                prop_assert_eq!(decode(&section.bytes()[..cut]).is_ok(), ends.contains(&cut));
            }
        }
    }
}
