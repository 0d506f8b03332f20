//! Records against their table, with damage of each byte.

use aes_gcm::Aes256Gcm;
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};

use super::*;
use crate::EncryptionKey;
use crate::cipher::{DataKey, RecordCipher};

const KEY: [u8; 32] = [3; 32];

fn cipher_of(cipher: RecordCipher) -> DataCipher {
    DataCipher::new(&DataKey { key: EncryptionKey::new(KEY), cipher })
}

/// The one of new files.
fn cipher() -> DataCipher {
    cipher_of(RecordCipher::Aes256Gcm)
}

/// The whole file after appends of these lengths, and the plain bytes.
fn written(appends: &[usize]) -> (Vec<u8>, Vec<u8>, DataEnd) {
    let mut file = vec![0; HEADER_BYTES];
    let mut plain = Vec::new();
    let mut end = DataEnd { offset: HEADER_BYTES as u64, place: 0 };
    for (number, len) in appends.iter().enumerate() {
        let data: Vec<u8> = (0..*len).map(|at| (at + number) as u8 | 1).collect();
        end = cipher().seal([9; 8], end, &data, &mut file);
        plain.extend(data);
    }
    (file, plain, end)
}

/// Everything that verifies, with zeros in the gaps.
fn read(file: &[u8]) -> (Vec<u8>, Option<u64>) {
    let mut plain = Vec::new();
    let mut junk = None;
    let mut file = file.to_vec();
    for (page, bytes) in file.chunks_mut(PAGE_BYTES as usize).enumerate() {
        let cipher = cipher();
        let mut reader = PageReader::new(&cipher, bytes, page as u64 * PAGE_BYTES);
        while let Some(opened) = reader.next(&(0..u64::MAX)) {
            plain.resize(opened.place as usize, 0);
            plain.extend_from_slice(opened.data);
        }
        junk = junk.or(reader.junk());
    }
    (plain, junk)
}

#[test]
fn records_read_back_whatever_the_appends() {
    let page = PAGE_DATA_BYTES as usize;
    for appends in [
        vec![1],
        vec![page - 256, 1, 1],
        vec![page - 257, 1, page, page + 1],
        vec![page - 256 - 31, 5],
        vec![100_000, 3, 100_000],
        vec![17; 2000],
    ] {
        let (file, plain, end) = written(&appends);
        assert_eq!(file.len() as u64, end.offset);
        assert_eq!(plain.len() as u64, end.place);
        assert!(read(&file) == (plain, None), "{appends:?}");
    }
}

/// The second record of an append of 5 bytes and one of 3, and its offset.
fn second_record(cipher: &DataCipher) -> (Vec<u8>, usize) {
    let mut file = vec![0; HEADER_BYTES];
    let end = DataEnd { offset: HEADER_BYTES as u64, place: 0 };
    let end = cipher.seal([9; 8], end, &[1; 5], &mut file);
    assert_eq!(
        file[HEADER_BYTES..HEADER_BYTES + 16],
        *b"\x05\0\0\0\0\0\0\0\x09\x09\x09\x09\x09\x09\x09\x09"
    );
    cipher.seal([9; 8], end, &[7; 3], &mut file);
    let second = HEADER_BYTES + 5 + OVERHEAD as usize;
    assert_eq!(file[second..second + 8], *b"\x03\0\x05\0\0\0\0\0");
    (file.split_off(second), second)
}

#[test]
fn a_record_has_the_bytes_of_its_table() {
    let (record, offset) = second_record(&cipher());
    // From the ciphers themselves, by the tables alone.
    let salt = [9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0];
    let derived = chacha20::hchacha::<chacha20::R20>((&KEY).into(), &salt.into());
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&(offset as u64).to_le_bytes());
    let mut data = [7; 3];
    let other = Aes256Gcm::new(&derived);
    let tag = other.encrypt_inout_detached(&nonce.into(), &record[..16], (&mut data[..]).into());
    assert_eq!((&record[16..19], &record[19..]), (&data[..], &tag.unwrap()[..]));
}

#[test]
fn a_record_of_the_first_version_has_the_bytes_of_its_table() {
    let (record, offset) = second_record(&cipher_of(RecordCipher::XChaCha20Poly1305));
    let mut nonce = [0; 24];
    nonce[..8].fill(9);
    nonce[8..16].copy_from_slice(&(offset as u64).to_le_bytes());
    let mut data = [7; 3];
    let other = XChaCha20Poly1305::new((&KEY).into());
    let tag = other.encrypt_inout_detached(&nonce.into(), &record[..16], (&mut data[..]).into());
    assert_eq!((&record[16..19], &record[19..]), (&data[..], &tag.unwrap()[..]));
}

#[test]
fn lengths_of_file_and_data_are_the_inverse_of_each_other() {
    for from in
        (256..3 * PAGE_BYTES).step_by(7).chain([4096 - 33, 4096 - 32, 4096 - 31, 4095, 4096])
    {
        for data in [1, 2, 100, 3807, 3808, 3809, 4064, 4065, 8128, 8129, 100_000] {
            let after = offset_after(from, data);
            assert_eq!(data_between(from, after), data, "{from} {data}");
            assert!(data_between(from, after - 1) < data, "{from} {data}");
            let mut file = Vec::new();
            let end = cipher().seal(
                [1; 8],
                DataEnd { offset: from, place: 5 },
                &vec![1; data as usize],
                &mut file,
            );
            assert_eq!(end, DataEnd { offset: after, place: 5 + data }, "{from} {data}");
            assert_eq!(file.len() as u64, after - from);
        }
    }
    assert_eq!((data_between(0, 256), data_between(0, 289), offset_after(0, 1)), (0, 1, 289));
}

#[test]
fn a_flipped_bit_loses_its_record_and_no_other() {
    let lens = [40, 60, 3600, 50, 1, 700, 10];
    let (file, plain, _) = written(&lens);
    for at in HEADER_BYTES..file.len() {
        for bit in [0, 7] {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << bit;
            let (read, junk) = read(&damaged);
            let is_unused = file[at] == 0 && junk.is_none() && read == plain;
            let wrong = read.iter().zip(&plain).filter(|(read, plain)| read != plain);
            let lost = plain.len() - read.len() + wrong.clone().count();
            assert!(wrong.clone().all(|(read, _)| *read == 0), "{at}: other bytes were read");
            assert!(is_unused || lost > 0 && lost <= 4064, "{at}: {lost}");
            // The last record of a page has no other after it.
            assert!(is_unused || junk.is_some(), "{at}");
        }
    }
}

#[test]
fn a_record_elsewhere_does_not_verify() {
    let (file, _, _) = written(&[4064 - 256, 4064, 4064]);
    let mut swapped = file.clone();
    swapped[4096..8192].copy_from_slice(&file[8192..12288]);
    let (plain, junk) = read(&swapped);
    assert_eq!(junk, Some(4096));
    assert!(plain[3808..3808 + 4064].iter().all(|byte| *byte == 0));
}

#[test]
fn the_same_data_at_the_same_place_is_encrypted_otherwise_after_a_reopen() {
    let end = DataEnd { offset: 4096, place: 100 };
    // One handle: it keeps what it has made of the first salt.
    let cipher = cipher();
    let mut first = Vec::new();
    cipher.seal([1; 8], end, &[5; 64], &mut first);
    let mut second = Vec::new();
    cipher.seal([2; 8], end, &[6; 64], &mut second);
    let difference: Vec<u8> =
        first[16..80].iter().zip(&second[16..80]).map(|(a, b)| a ^ b).collect();
    assert_ne!(difference, [3; 64], "the key stream was used twice");
}
