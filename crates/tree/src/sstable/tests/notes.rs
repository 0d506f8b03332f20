//! The notes of compaction filters in the properties of a table.

use std::sync::Arc;

use super::{IDENTITY, entry, open, options};
use crate::error::ErrorKind;
use crate::hooks;
use crate::options::Compression;
use crate::sstable::SstWriter;
use crate::sstable::test_file::TestFile;
use crate::types::{EntryKind, SeqNo};

#[test]
fn what_filters_note_is_stored_within_bounds() {
    let file = Arc::new(TestFile::default());
    let options = options(4096, Compression::None);
    let base = SeqNo::ZERO;
    let mut writer = SstWriter::new(file.clone(), IDENTITY, base, options);
    let mut user = hooks::Properties::default();
    user.0.insert("sealed".into(), vec![1]);
    user.0.insert("a".into(), vec![]);
    writer.set_user_properties(user.clone()).unwrap();
    let mut long = user.clone();
    long.0.insert("n".repeat(256), vec![]);
    assert_eq!(writer.set_user_properties(long).unwrap_err().kind(), ErrorKind::LimitExceeded);
    let mut large = user.clone();
    large.0.insert("n".into(), vec![0; 1 << 20]);
    assert_eq!(writer.set_user_properties(large).unwrap_err().kind(), ErrorKind::LimitExceeded);
    writer.add(entry(b"k", 1, EntryKind::Value, b"").0.as_ref(), b"").unwrap();
    writer.finish().unwrap();
    let reader = open(&file.0.lock(), None).unwrap();
    assert_eq!(reader.properties().user, user);
    assert!(reader.properties().hidden_suffix.is_empty());
}
