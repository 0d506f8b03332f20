//! Tests of encrypted objects.

use testkit::Rng;

use super::*;
use crate::keys::KeyRing;

const NAME: &str = "table/1.sst/0-100-a";

fn ring() -> KeyRing {
    KeyRing::new(KeyId::new("k1").unwrap(), EncryptionKey::new([7; 32]))
}

fn cipher() -> ObjectCipher {
    ObjectCipher { key: EncryptionKey::new([9; 32]) }
}

fn data(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn an_object_has_the_bytes_of_its_table() {
    let sealed = cipher().seal(NAME, &data(100)).unwrap();
    assert_eq!(sealed[..8], *b"SILP\x01\0\0\0");
    assert_eq!(sealed.len(), 24 + 100 + 16);
    assert!(!sealed.windows(8).any(|bytes| data(100).windows(8).any(|part| part == bytes)));
    assert_ne!(sealed[8..], cipher().seal(NAME, &data(100)).unwrap()[8..], "the salt is random");
}

#[test]
fn objects_of_each_length_read_back_whole_in_parts_and_by_ranges() {
    let page = OBJECT_PAGE_BYTES;
    let mut rng = Rng::from_env_or(1);
    for len in [0, 1, page - 1, page, page + 1, 2 * page, 5 * page + 77] {
        let whole = data(len);
        let sealed = cipher().seal(NAME, &whole).unwrap();
        assert_eq!(
            (sealed.len() as u64, unsealed_len(sealed_len(len))),
            (sealed_len(len), Some(len))
        );
        assert_eq!(cipher().unseal(NAME, &sealed).unwrap(), whole, "{len}");
        let middle = (len / page).saturating_sub(1) * page;
        let (front, back) = whole.split_at(middle as usize);
        let mut parts = cipher().seal_part(NAME, 0, front, false).unwrap();
        parts.extend(cipher().seal_part(NAME, middle, back, true).unwrap());
        assert_eq!(cipher().unseal(NAME, &parts).unwrap(), whole, "{len}");
        for _ in 0..50 {
            let begin = rng.below(len + 2 * page);
            let end = begin + rng.below(3 * page);
            let asked = sealed_range(begin..end);
            let got =
                &parts[parts.len().min(asked.start as usize)..parts.len().min(asked.end as usize)];
            let expected = &whole[whole.len().min(begin as usize)..whole.len().min(end as usize)];
            assert_eq!(
                cipher().unseal_range(NAME, begin..end, got).unwrap(),
                expected,
                "{begin}..{end}"
            );
        }
    }
}

fn refused(bytes: &[u8], name: &str) -> ErrorKind {
    cipher().unseal(name, bytes).unwrap_err().kind()
}

#[test]
fn a_changed_moved_or_cut_object_does_not_verify() {
    let page = FULL_BYTES as usize;
    let sealed = cipher().seal(NAME, &data(2 * OBJECT_PAGE_BYTES + 100)).unwrap();
    for at in (0..sealed.len()).step_by(211).chain([4, page + 5]) {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        let kind = refused(&changed, NAME);
        let is_version = (4..8).contains(&(at % page));
        assert_eq!(kind, if is_version { ErrorKind::Unsupported } else { ErrorKind::Corruption });
    }
    assert_eq!(refused(&sealed, "table/1.sst/0-100-b"), ErrorKind::Corruption);
    // Cut between two pages, and within one.
    for len in [0, page, 2 * page, 2 * page + 30, sealed.len() - 1] {
        assert_eq!(refused(&sealed[..len], NAME), ErrorKind::Corruption, "{len}");
    }
    let swapped = [&sealed[page..2 * page], &sealed[..page], &sealed[2 * page..]].concat();
    assert_eq!(refused(&swapped, NAME), ErrorKind::Corruption);
    let range = OBJECT_PAGE_BYTES..OBJECT_PAGE_BYTES + 9;
    assert!(cipher().unseal_range(NAME, range.clone(), &sealed[page..2 * page]).is_ok());
    assert!(cipher().unseal_range(NAME, range.clone(), &sealed[..page]).is_err());
    assert!(cipher().unseal_range(NAME, range, &sealed[page..page + 100]).is_err());
}

#[test]
fn a_key_object_needs_its_key_and_is_wrapped_again_by_another_one() {
    let keys = ring();
    let (cipher, object) = ObjectCipher::make(&keys).unwrap();
    let sealed = cipher.seal(NAME, b"data").unwrap();
    assert_eq!(ObjectCipher::key_of(&object).unwrap().as_str(), "k1");
    assert!(ObjectCipher::rewrap(&object, &keys, "encryption/key").unwrap().is_none());
    let other = KeyRing::new(KeyId::new("k1").unwrap(), EncryptionKey::new([8; 32]));
    let refused = ObjectCipher::open(&object, &other, "encryption/key").err().unwrap();
    assert!(
        refused.to_string().contains("encryption/key is encrypted with another key"),
        "{refused}"
    );
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);

    keys.rotate_to(KeyId::new("k2").unwrap(), EncryptionKey::new([6; 32]));
    let again = ObjectCipher::rewrap(&object, &keys, "encryption/key").unwrap().unwrap();
    let new = KeyRing::new(KeyId::new("k2").unwrap(), EncryptionKey::new([6; 32]));
    let reader = ObjectCipher::open(&again, &new, "encryption/key").unwrap();
    assert_eq!(reader.unseal(NAME, &sealed).unwrap(), b"data");
    assert!(ObjectCipher::open(&object, &new, "encryption/key").is_err());
    for len in [0, 1, PLACE_BYTES, HEADER_BYTES - 1] {
        let refused = ObjectCipher::open(&object[..len], &keys, "encryption/key").err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Corruption, "{len}");
    }
}

/// The object of a key, and an object of [`NAME`] and one of no bytes that it opens, as of the first version.
const STORED_KEY: &str = "\
     53494c54435259500200000002000000026b310000000000000000000000000000000000000000000000000000000000\
     1a79678f32f0001ec83a9cfd6e11d04df4c9d05f18fd2a03b5f68033839a1614725c6b39bab3dc1af80abd55eb4e74be\
     788d855a8df3e2c1e431a0a725c7745889a26f8deaf18e1e79931c6358f2c0af53494c54435259500200000002000000\
     026b3100000000000000000000000000000000000000000000000000000000001a79678f32f0001ec83a9cfd6e11d04d\
     f4c9d05f18fd2a03b5f68033839a1614725c6b39bab3dc1af80abd55eb4e74be788d855a8df3e2c1e431a0a725c77458\
     89a26f8deaf18e1e79931c6358f2c0af";
const STORED_ROWS: &str = "\
     53494c5001000000b9411a9cd487a108b7ffdbc9cf2a657952a2f7d419abcddb28549d2ff20ef9ef7e27f246394d0428\
     c86184051eb274";
const STORED_EMPTY: &str = "\
     53494c500100000025328b30c853e4f7743ac3aeeae70187d68c50065000e7bb2fe92f5b26a02edd";

fn stored(digits: &str) -> Vec<u8> {
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn stored_objects_open() {
    let cipher = ObjectCipher::open(&stored(STORED_KEY), &ring(), "encryption/key").unwrap();
    assert_eq!(cipher.unseal(NAME, &stored(STORED_ROWS)).unwrap(), b"rows of a table");
    assert_eq!(cipher.unseal(NAME, &stored(STORED_EMPTY)).unwrap(), b"");
    let mut later = stored(STORED_ROWS);
    later[4] = 2;
    let refused = cipher.unseal(NAME, &later).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("encrypted in version 2"), "{refused}");
}
