//! Real bytes against the tables in `block.rs`, `stored.rs`, `footer.rs` and `properties.rs`.
//!
//! A change here is a change of the format: it needs a version, and readers for the old one.

use super::hidden::Table;
use super::{Entries, entry, open, options, write};
use crate::options::Compression;
use crate::sstable::footer::{FOOTER_BYTES, FOOTER_FIELDS};
use crate::sstable::index::INDEX_BYTES_MAX;
use crate::sstable::properties::SstProperties;
use crate::types::EntryKind;

/// Cuts `bytes` into the named lengths and prints each piece as hex and, where it is text, so.
fn annotate(bytes: &[u8], pieces: &[(usize, &str)]) -> String {
    let mut out = String::new();
    let mut at = 0;
    for (len, name) in pieces {
        let piece = &bytes[at..at + len];
        let hex: Vec<String> = piece.iter().map(|byte| format!("{byte:02x}")).collect();
        out.push_str(&format!("{at:3} {:<26} {name}\n", hex.join(" ")));
        at += len;
    }
    assert_eq!(at, bytes.len(), "the pieces are all bytes");
    out
}

fn table() -> Entries {
    vec![
        entry(b"apple", 20, EntryKind::Value, b"red"),
        entry(b"apple", 10, EntryKind::Tombstone, b""),
        entry(b"apply", 300, EntryKind::Handle, b"@"),
    ]
}

/// Compares, and prints what it got in the form in which it is written here.
fn check(got: &str, expected: &str) {
    let expected: Vec<&str> = expected.trim().lines().map(str::trim).collect();
    let lines: Vec<&str> = got.trim().lines().map(str::trim).collect();
    assert_eq!(lines, expected, "got:\n{got}");
}

#[test]
fn a_data_block_looks_like_its_table() {
    let (bytes, _) = write(&table(), options(4096, Compression::None), INDEX_BYTES_MAX);
    let reader = open(&bytes, None).unwrap();
    let data = &bytes[..reader.properties().data_bytes as usize];
    let got = annotate(
        data,
        &[
            (1, "header: value"),
            (1, "shared"),
            (1, "suffix length"),
            (1, "value length"),
            (1, "seq 20 - base"),
            (5, "suffix: apple"),
            (3, "value: red"),
            (1, "header: tombstone"),
            (1, "shared"),
            (1, "suffix length"),
            (1, "value length"),
            (1, "seq 10 - base"),
            (1, "header: handle"),
            (1, "shared"),
            (1, "suffix length"),
            (1, "value length"),
            (2, "seq 300 - base"),
            (1, "suffix: y"),
            (1, "value: @"),
            (4, "restart 0"),
            (8, "base_seq"),
            (4, "common: appl"),
            (4, "count"),
            (1, "compression: none"),
            (8, "checksum"),
        ],
    );
    check(
        &got,
        "
          0 01                         header: value
          1 00                         shared
          2 05                         suffix length
          3 03                         value length
          4 0a                         seq 20 - base
          5 61 70 70 6c 65             suffix: apple
         10 72 65 64                   value: red
         13 00                         header: tombstone
         14 05                         shared
         15 00                         suffix length
         16 00                         value length
         17 00                         seq 10 - base
         18 02                         header: handle
         19 04                         shared
         20 01                         suffix length
         21 01                         value length
         22 a2 02                      seq 300 - base
         24 79                         suffix: y
         25 40                         value: @
         26 00 00 00 00                restart 0
         30 0a 00 00 00 00 00 00 00    base_seq
         38 04 00 00 00                common: appl
         42 03 00 00 00                count
         46 00                         compression: none
         47 76 87 fc 4d 71 88 75 63    checksum
        ",
    );
}

#[test]
fn a_footer_looks_like_its_table() {
    let (bytes, summary) = write(&table(), options(4096, Compression::None), INDEX_BYTES_MAX);
    let footer = &bytes[bytes.len() - FOOTER_BYTES..];
    let got = annotate(footer, &FOOTER_FIELDS);
    check(
        &got,
        "
          0 01 00 00 00 00 00 00 00    compatible features
          8 00 00 00 00 00 00 00 00    read-compatible features
         16 00 00 00 00 00 00 00 00    incompatible features
         24 01                         checksum kind
         25 09                         block trailer bytes
         26 01                         index levels
         27 00 00 00 00 00             reserved
         32 d0 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 db id
         48 9e 51 61 5a 0e 04 17 95 5b c1 02 59 1c e3 9f 85 unique id
         64 37 00 00 00 00 00 00 00    bloom offset
         72 51 00 00 00 00 00 00 00    bloom length
         80 88 00 00 00 00 00 00 00    index offset
         88 29 00 00 00 00 00 00 00    index length
         96 b1 00 00 00 00 00 00 00    properties offset
        104 50 00 00 00 00 00 00 00    properties length
        112 77 42 7b 86 cb b8 8d dd 31 42 94 34 d5 e1 5a 37 file hash
        128 98 00 00 00                footer length
        132 01 00 00 00                version
        136 73 69 6c 74 73 73 74 0a    magic
        144 03 c2 3e 14 7a da b9 8c    checksum
        ",
    );
    assert_eq!(summary.file_hash.to_le_bytes(), footer[112..128]);
}

#[test]
fn properties_look_like_their_table() {
    let (bytes, _) = write(&table(), options(4096, Compression::None), INDEX_BYTES_MAX);
    let reader = open(&bytes, None).unwrap();
    let payload = reader.properties().encode();
    let got = annotate(
        &payload,
        &[
            (7, "2: values, tombstones, handles, poisons, hidden"),
            (4, "4: key bytes, value bytes"),
            (7, "6: smallest: apple"),
            (7, "8: largest: apply"),
            (5, "10: seq 10 to 300"),
            (4, "12: compression none, 10 bits a key"),
            (4, "14: file 7, epoch 3"),
            (5, "16: blocks, bytes, largest"),
            (18, "22: checksums of bloom and index"),
            (10, "24: checksum of all before"),
        ],
    );
    check(
        &got,
        "
          0 02 05 01 01 01 00 00       2: values, tombstones, handles, poisons, hidden
          7 04 02 0f 04                4: key bytes, value bytes
         11 06 05 61 70 70 6c 65       6: smallest: apple
         18 08 05 61 70 70 6c 79       8: largest: apply
         25 0a 03 0a ac 02             10: seq 10 to 300
         30 0c 02 00 0a                12: compression none, 10 bits a key
         34 0e 02 07 03                14: file 7, epoch 3
         38 10 03 01 37 2e             16: blocks, bytes, largest
         43 16 10 1a 3f a2 26 8e 41 78 9e f1 20 c4 75 ff be 56 8d 22: checksums of bloom and index
         61 18 08 68 d5 39 71 66 b8 c4 d5 24: checksum of all before
        ",
    );
}

/// The bytes of a table without compression, and its properties.
fn with_hidden(table: &Table) -> (Vec<u8>, SstProperties) {
    let options = options(4096, Compression::None);
    let (bytes, _, _) = table.write(&[1], options, INDEX_BYTES_MAX, |_| true);
    let properties = open(&bytes, None).unwrap().properties().clone();
    (bytes, properties)
}

/// The incompatible features of a table.
fn incompatible(table: &[u8]) -> u64 {
    let field = &table[table.len() - FOOTER_BYTES + 16..][..8];
    u64::from_le_bytes(field.try_into().unwrap())
}

#[test]
fn hidden_entries_look_like_their_table() {
    let payload = [&20_u64.to_le_bytes()[..], b"ok"].concat();
    let table = Table {
        all: vec![
            entry(b"apple", 20, EntryKind::Value, b"red"),
            entry(b"apple", 10, EntryKind::Tombstone, b""),
            entry(b"apple\x01", 20, EntryKind::Tombstone, &payload),
            entry(b"apple\x01", 10, EntryKind::Tombstone, b"any"),
            entry(b"apples", 20, EntryKind::Value, b"two"),
            entry(b"apples\x01", 20, EntryKind::Tombstone, &payload),
            entry(b"apply\x01", 20, EntryKind::Tombstone, &payload),
        ],
        hidden: vec![false, false, true, true, false, true, true],
    };
    let (bytes, properties) = with_hidden(&table);
    let got = annotate(
        &bytes[..properties.data_bytes as usize],
        &[
            (13, "apple 20: value red"),
            (5, "apple 10: tombstone"),
            (1, "header: hidden, near, without sequence"),
            (1, "back: two visible entries"),
            (1, "payload length"),
            (2, "payload: ok"),
            (1, "header: hidden, near, one back"),
            (1, "payload length"),
            (3, "payload: any"),
            (9, "apples 20: value two"),
            (1, "header: hidden, short, payload of 2 bytes"),
            (2, "payload: ok"),
            (1, "header: hidden, without sequence"),
            (1, "shared"),
            (1, "key length"),
            (1, "payload length"),
            (1, "seq 20 - base"),
            (6, "key: apply 01"),
            (2, "payload: ok"),
            (4, "restart 0"),
            (8, "base_seq"),
            (4, "common: apple"),
            (4, "count: visible ones"),
            (1, "compression: none"),
            (8, "checksum"),
        ],
    );
    check(
        &got,
        "
          0 01 00 05 03 0a 61 70 70 6c 65 72 65 64 apple 20: value red
         13 00 05 00 00 00             apple 10: tombstone
         18 70                         header: hidden, near, without sequence
         19 02                         back: two visible entries
         20 02                         payload length
         21 6f 6b                      payload: ok
         23 b0                         header: hidden, near, one back
         24 03                         payload length
         25 61 6e 79                   payload: any
         28 01 05 01 03 0a 73 74 77 6f apples 20: value two
         37 f2                         header: hidden, short, payload of 2 bytes
         38 6f 6b                      payload: ok
         40 50                         header: hidden, without sequence
         41 00                         shared
         42 06                         key length
         43 02                         payload length
         44 0a                         seq 20 - base
         45 61 70 70 6c 79 01          key: apply 01
         51 6f 6b                      payload: ok
         53 00 00 00 00                restart 0
         57 0a 00 00 00 00 00 00 00    base_seq
         65 05 00 00 00                common: apple
         69 03 00 00 00                count: visible ones
         73 00                         compression: none
         74 cd 34 c7 db 82 4b 36 e8    checksum
        ",
    );
    assert_eq!(incompatible(&bytes), 3);
    check_hidden_suffix(properties);
}

#[test]
fn a_column_of_hidden_entries_looks_like_its_table() {
    let payloads = [(20_u64, b"ok"), (10, b"no")]
        .map(|(seq, payload)| [&seq.to_le_bytes()[..], payload].concat());
    let table = Table {
        all: vec![
            entry(b"apple", 20, EntryKind::Value, b"red"),
            entry(b"apple\x01", 20, EntryKind::Tombstone, &payloads[0]),
            entry(b"apply", 10, EntryKind::Value, b"two"),
            entry(b"apply\x01", 10, EntryKind::Tombstone, &payloads[1]),
        ],
        hidden: vec![false, true, false, true],
    };
    let (bytes, properties) = with_hidden(&table);
    let got = annotate(
        &bytes[..properties.data_bytes as usize],
        &[
            (13, "apple 20: value red"),
            (9, "apply 10: value two"),
            (2, "payload of apple: ok"),
            (2, "payload of apply: no"),
            (4, "restart 0"),
            (8, "base_seq"),
            (3, "common: appl"),
            (1, "width of the column"),
            (4, "count: visible ones"),
            (1, "compression: none"),
            (8, "checksum"),
        ],
    );
    check(
        &got,
        "
          0 01 00 05 03 0a 61 70 70 6c 65 72 65 64 apple 20: value red
         13 01 04 01 03 00 79 74 77 6f apply 10: value two
         22 6f 6b                      payload of apple: ok
         24 6e 6f                      payload of apply: no
         26 00 00 00 00                restart 0
         30 0a 00 00 00 00 00 00 00    base_seq
         38 04 00 00                   common: appl
         41 02                         width of the column
         42 02 00 00 00                count: visible ones
         46 00                         compression: none
         47 ce 33 55 9d 6d 5f 33 0f    checksum
        ",
    );
    assert_eq!(incompatible(&bytes), 7);
}

fn check_hidden_suffix(mut properties: SstProperties) {
    properties.user.0.insert("sealed".into(), vec![1]);
    let payload = properties.encode();
    let fields = &payload[payload.len() - 43..payload.len() - 28];
    let got = annotate(
        fields,
        &[
            (3, "18: hidden suffix"),
            (2, "20: user properties"),
            (1, "count"),
            (7, "name: sealed"),
            (2, "value"),
        ],
    );
    check(
        &got,
        "
          0 12 01 01                   18: hidden suffix
          3 14 0a                      20: user properties
          5 01                         count
          6 06 73 65 61 6c 65 64       name: sealed
         13 01 01                      value
        ",
    );
}

#[test]
fn a_hidden_entry_costs_little() {
    // 20 bytes of key, 19 of payload, the first 8 of which are the sequence number.
    let sizes = [0, 1].map(|hidden| {
        let mut table = Table::default();
        for n in 0..100_u64 {
            let user = format!("user{n:016}");
            let payload = [&n.to_le_bytes()[..], &[9; 11]].concat();
            table.all.push(entry(user.as_bytes(), n, EntryKind::Value, &[7; 100]));
            table.hidden.push(false);
            if hidden == 1 {
                let user = [user.as_bytes(), &[1]].concat();
                table.all.push(entry(&user, n, EntryKind::Tombstone, &payload));
                table.hidden.push(true);
            }
        }
        let options = options(1 << 20, Compression::None);
        let (bytes, _, _) = table.write(&[1], options, INDEX_BYTES_MAX, |_| true);
        open(&bytes, None).unwrap().properties().data_bytes
    });
    assert_eq!(sizes[1] - sizes[0], 100 * 11);
}
