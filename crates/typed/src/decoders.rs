//! The decoders of stored keys and types, for the fuzz targets of this repository.

use crate::catalog::TableEntry;
use crate::key;

/// Decodes keys, and the stored types of a table. A key that decodes has these bytes alone, so that the order of
/// the bytes is that of the keys.
pub fn key(bytes: &[u8]) {
    if let Some(found) = key::decode::<(String, Vec<u8>, i64)>(bytes) {
        let view = (&*found.0, &*found.1, found.2);
        assert_eq!(key::encode::<(String, Vec<u8>, i64)>(view), bytes, "one form of a key");
    }
    if let Some(found) = key::decode::<(u8, String)>(bytes) {
        assert_eq!(key::encode::<(u8, String)>((found.0, &found.1)), bytes, "one form of a key");
    }
    let _ = key::decode::<Vec<u8>>(bytes);
    let _ = TableEntry::from_text("table", bytes);
}
