//! The decoders of metadata, for the fuzz targets of this repository.

use lsm_core::codec::{checksum64, put_u64};
use lsm_core::hooks::Properties;

use crate::payload::{Payload, SumOfSum, entry_key};
use crate::table_seal::{PROPERTY, TableSeal};

/// Decodes the metadata of an entry. What decodes reads back, but for bits that no sequence number has.
pub fn payload(bytes: &[u8]) {
    let _ = entry_key(bytes);
    let Ok(payload) = Payload::decode(bytes) else { return };
    assert_eq!(Payload::decode(&payload.encode()).ok(), Some(payload), "metadata reads back");
    let _ = matches!(payload.sum_of_sum, SumOfSum::Short(_));
}

/// Decodes the seal of a table, with a right checksum.
pub fn table_seal(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    put_u64(&mut sealed, checksum64(bytes));
    let properties = Properties([(PROPERTY.to_owned(), sealed)].into());
    let Ok(Some(seal)) = TableSeal::of(&properties, "integrity") else { return };
    for number in 0..200 {
        let _ = (seal.span_of(number), seal.digest_of(number));
    }
    let _ = (seal.span_of(u64::MAX), seal.open_payload(b"key", 1), seal.has_versions());
    let again = Properties([(PROPERTY.to_owned(), seal.encode())].into());
    assert!(TableSeal::of(&again, "integrity").is_ok(), "a seal reads back");
}
