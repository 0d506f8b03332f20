//! Encrypted files and objects, and files of keys.

use std::path::Path;
use std::sync::Arc;

use encryption::{
    EncryptedFs, EncryptionKey, KeyId, KeyRing, OBJECT_PAGE_BYTES, ObjectCipher, sealed_range,
};
use lsm_core::fs::{AppendMode, Fs, MemFs};

/// The key of the corpus.
fn keys() -> KeyRing {
    KeyRing::new(KeyId::new("k1").expect("it is an identifier"), EncryptionKey::new([7; 32]))
}

/// The object with the data key of the corpus: that of `crates/encryption/src/object/tests.rs`.
const KEY_OBJECT: &str = "\
    53494c54435259500200000002000000026b310000000000000000000000000000000000000000000000000000000000\
    1a79678f32f0001ec83a9cfd6e11d04df4c9d05f18fd2a03b5f68033839a1614725c6b39bab3dc1af80abd55eb4e74be\
    788d855a8df3e2c1e431a0a725c7745889a26f8deaf18e1e79931c6358f2c0af53494c54435259500200000002000000\
    026b3100000000000000000000000000000000000000000000000000000000001a79678f32f0001ec83a9cfd6e11d04d\
    f4c9d05f18fd2a03b5f68033839a1614725c6b39bab3dc1af80abd55eb4e74be788d855a8df3e2c1e431a0a725c77458\
    89a26f8deaf18e1e79931c6358f2c0af";

/// The name of the objects in the corpus.
const NAME: &str = "table/1.sst/0-100-a";

/// The first byte says what the others are.
pub fn encrypted(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => file(body, "0000000000000001-00000001.wal"),
        1 => file(body, "0000000000000002-00000001.sst"),
        2 => object(body),
        _ => drop(std::str::from_utf8(body).map(KeyRing::parse)),
    }
}

/// A file is read to its end, gets another append, and another key.
fn file(bytes: &[u8], name: &str) {
    let mem = MemFs::new();
    let path = Path::new("/").join(name);
    mem.write_raw(&path, bytes).expect("memory takes a file");
    let keys = keys();
    let fs = EncryptedFs::new(Arc::new(mem), Arc::new(keys.clone()));
    let _ = (fs.keys_of(&path), fs.list(Path::new("/"), ""));
    if let Ok(file) = fs.open_read(&path) {
        let mut buf = vec![0; bytes.len() + 1];
        if let Ok(count) = file.read_at(0, &mut buf) {
            assert!(count <= bytes.len(), "no more data than bytes");
        }
        let _ = (file.len(), file.read_at(bytes.len() as u64 / 2, &mut buf[..1]));
    }
    if let Ok(file) = fs.open_append(&path, AppendMode::Existing)
        && let Ok(len) = file.len()
        && file.append(b"more").is_ok()
    {
        let mut buf = [0; 8];
        let read = file.read_at(len, &mut buf);
        assert_eq!(read.expect("what was just appended is read"), 4, "the end of the file");
        assert_eq!(&buf[..4], b"more", "the bytes that were appended");
    }
    keys.rotate_to(KeyId::new("k2").expect("it is one"), EncryptionKey::new([8; 32]));
    let _ = fs.rewrap(&path);
}

/// An object, a range of one, and the object of a key.
fn object(bytes: &[u8]) {
    let digits = KEY_OBJECT.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair));
    let key_object: Vec<u8> = digits
        .map(|pair| u8::from_str_radix(pair.expect("it is ASCII"), 16).expect("it is hex"))
        .collect();
    let cipher = ObjectCipher::open(&key_object, &keys(), "encryption/key").expect("it opens");
    if let Ok(data) = cipher.unseal(NAME, bytes) {
        let again = cipher.seal(NAME, &data).expect("there are random bytes");
        assert_eq!(cipher.unseal(NAME, &again).expect("it reads back"), data, "the data");
    }
    for range in [0..9, 5..OBJECT_PAGE_BYTES + 5, OBJECT_PAGE_BYTES..2 * OBJECT_PAGE_BYTES] {
        let stored = sealed_range(range.clone());
        let len = bytes.len().min((stored.end - stored.start) as usize);
        if let Ok(data) = cipher.unseal_range(NAME, range.clone(), &bytes[..len]) {
            assert!(data.len() as u64 <= range.end - range.start, "no more than the range");
        }
    }
    let _ = ObjectCipher::key_of(bytes);
    if let Ok(opened) = ObjectCipher::open(bytes, &keys(), "encryption/key") {
        let _ = opened.seal(NAME, b"data");
    }
    let _ = ObjectCipher::rewrap(bytes, &keys(), "encryption/key");
}
