//! Files of [`EncryptedFs`], against those of the file system below.

use std::path::Path;
use std::sync::Arc;

use storage::fs::{
    AppendMode, CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, File, Fs, MemFs, OpKind,
    OsFs,
};
use storage::{ErrorKind, Result};
use testkit::Rng;

use crate::{EncryptedFs, EncryptionKey, KeyId, KeyRing};

const LOG: &str = "/db/0000000000000001-00000001.wal";
const TABLE: &str = "/db/0000000000000001-00000001.sst";

fn ring() -> KeyRing {
    KeyRing::new(KeyId::new("k").unwrap(), EncryptionKey::new([4; 32]))
}

fn over(mem: &MemFs) -> EncryptedFs {
    EncryptedFs::new(Arc::new(mem.clone()), Arc::new(ring()))
}

fn new() -> (MemFs, EncryptedFs) {
    let mem = MemFs::new();
    mem.create_dir(Path::new("/db")).unwrap();
    let fs = over(&mem);
    (mem, fs)
}

fn create(fs: &EncryptedFs, path: &str) -> Arc<dyn File> {
    fs.open_append(Path::new(path), AppendMode::IfAbsent).unwrap()
}

fn open_existing(fs: &EncryptedFs) -> Arc<dyn File> {
    fs.open_append(Path::new(MANIFEST), AppendMode::Existing).unwrap()
}

fn whole(fs: &EncryptedFs, path: &str) -> Result<Vec<u8>> {
    let file = fs.open_read(Path::new(path))?;
    let mut bytes = vec![0; file.len()? as usize + 10];
    let got = file.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}

/// Bytes without zeros, so that a gap is seen.
fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.next_u64() as u8 | 1).collect()
}

/// Appends of all sizes to both kinds of files, with reads of all sizes by several handles.
#[test]
fn a_file_reads_as_the_plain_one() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let (_, fs) = new();
        let path = if seed % 2 == 0 { LOG } else { TABLE };
        let mut file = create(&fs, path);
        let reader = fs.open_read(Path::new(path)).unwrap();
        let most = *rng.pick(&[40, 300, 5000, 200_000]);
        let mut plain = Vec::new();
        for _ in 0..60 {
            let len = rng.below(most) as usize;
            let added = bytes(&mut rng, len);
            let (one, other) = added.split_at(len / 3);
            file.append_pieces(&[one, b"", other]).unwrap();
            plain.extend_from_slice(&added);
            if rng.chance(1, 20) {
                file.sync().unwrap();
                file = fs.open_append(Path::new(path), AppendMode::Existing).unwrap();
            }
            assert_eq!(file.len().unwrap(), plain.len() as u64);
            assert_eq!(reader.len().unwrap(), plain.len() as u64);
            for handle in [&file, &reader] {
                let from = rng.below(plain.len() as u64 + 20);
                let mut buf = vec![0xee; rng.below(2 * most) as usize];
                let got = handle.read_at(from, &mut buf).unwrap();
                let wanted = plain.get(from as usize..).unwrap_or_default();
                assert!(buf[..got] == wanted[..buf.len().min(wanted.len())], "seed {seed}");
                assert!(buf[got..].iter().all(|byte| *byte == 0xee));
            }
        }
        assert!(whole(&fs, path).unwrap() == plain);
    }
}

/// Each append is a record of its own, so the pages of the file hold ever other amounts.
#[test]
fn a_long_log_is_read_at_any_place_by_a_new_handle() {
    let mut rng = Rng::new(3);
    let (_, fs) = new();
    let file = create(&fs, LOG);
    let mut plain = Vec::new();
    for round in 0..6000 {
        let len = if round % 1000 < 500 { rng.range(1..40) } else { rng.range(1..3000) };
        let added = bytes(&mut rng, len as usize);
        file.append(&added).unwrap();
        plain.extend_from_slice(&added);
    }
    for _ in 0..200 {
        let reader = fs.open_read(Path::new(LOG)).unwrap();
        for _ in 0..3 {
            let from = rng.below(plain.len() as u64) as usize;
            let mut buf = vec![0; (rng.range(1..9000) as usize).min(plain.len() - from)];
            assert_eq!(reader.read_at(from as u64, &mut buf).unwrap(), buf.len());
            assert!(buf == plain[from..from + buf.len()]);
        }
    }
}

#[test]
fn reserved_space_reads_as_zeros_and_is_filled() {
    let (mem, fs) = new();
    let file = create(&fs, LOG);
    file.preallocate(100_000).unwrap();
    assert_eq!(file.len().unwrap(), 100_000);
    assert!(whole(&fs, LOG).unwrap() == vec![0; 100_000], "nothing is begun");
    let reader = fs.open_read(Path::new(LOG)).unwrap();
    let reserved = mem.open_read(Path::new(LOG)).unwrap().len().unwrap();
    let mut plain = Vec::new();
    while plain.len() < 99_000 {
        file.append(&[7; 1000]).unwrap();
        plain.extend_from_slice(&[7; 1000]);
        let mut buf = vec![1; 3000];
        let from = plain.len() as u64 - 1000;
        assert_eq!(
            reader.read_at(from, &mut buf).unwrap(),
            3000.min(reader.len().unwrap() - from) as usize
        );
        assert!(
            buf[..1000] == plain[..1000] && buf[1000..].iter().all(|byte| *byte == 0 || *byte == 1)
        );
    }
    // The records of many appends take more than was reserved.
    file.append(&vec![8; 1000]).unwrap();
    plain.extend_from_slice(&[8; 1000]);
    assert!(whole(&fs, LOG).unwrap() == plain);
    assert!(mem.open_read(Path::new(LOG)).unwrap().len().unwrap() >= reserved);
    file.append(b"more").unwrap();
    plain.extend_from_slice(b"more");
    assert!(whole(&fs, LOG).unwrap() == plain);
}

/// A value store records the lengths of a list as the ends of its chunk files.
#[test]
fn a_list_has_the_exact_lengths_of_chunk_files() {
    let (_, fs) = new();
    let chunk = create(&fs, "/db/0000000000000001-00000001.chunk");
    let table = create(&fs, TABLE);
    for file in [&chunk, &table] {
        (0..100).for_each(|_| file.append(&[7; 50]).unwrap());
    }
    create(&fs, "/db/0000000000000002-00000001.chunk");
    let entries = fs.list(Path::new("/db"), "").unwrap();
    let lens: Vec<u64> = entries.iter().map(|entry| entry.len).collect();
    assert!(lens[0] == 5000 && lens[1] >= 5000 && lens[2] == 0, "{lens:?}");
    assert_eq!(chunk.len().unwrap(), 5000);
}

#[test]
fn space_after_the_data_is_given_back_and_taken_again() {
    let (_, fs) = new();
    let file = create(&fs, LOG);
    file.preallocate(1 << 20).unwrap();
    file.append(&[7; 5000]).unwrap();
    file.punch(5000, (1 << 20) - 5000).unwrap();
    let refused = file.punch(4000, 100).unwrap_err();
    assert!(
        refused.to_string().contains("whole") && refused.to_string().contains(LOG),
        "{refused}"
    );
    file.append(&[8; 5000]).unwrap();
    let read = whole(&fs, LOG).unwrap();
    assert!(read[..5000] == [7; 5000] && read[5000..10_000] == [8; 5000]);
    assert!(read[10_000..].iter().all(|byte| *byte == 0));
}

/// As a lock makes it, which a secondary appends its lease to.
#[test]
fn an_empty_file_is_begun_by_whoever_appends() {
    let (mem, fs) = new();
    let path = Path::new("/db/reader-0000000000000001");
    drop(mem.try_lock(path).unwrap());
    assert_eq!(whole(&fs, "/db/reader-0000000000000001").unwrap(), b"");
    let file = fs.open_append(path, AppendMode::Existing).unwrap();
    let reader = fs.open_read(path).unwrap();
    assert_eq!(reader.len().unwrap(), 0);
    file.append(b"lease").unwrap();
    assert_eq!(reader.len().unwrap(), 5);
    assert_eq!(whole(&fs, "/db/reader-0000000000000001").unwrap(), b"lease");
}

#[test]
fn a_published_file_is_encrypted_and_appended_to() {
    let (mem, fs) = new();
    let path = Path::new("/db/0000000000000001-00000001.manifest");
    let content = b"a marker that must not be seen".repeat(300);
    assert!(fs.put_if_absent(path, &content).unwrap() && !fs.put_if_absent(path, b"x").unwrap());
    fs.open_append(path, AppendMode::Existing).unwrap().append(b"a marker again").unwrap();
    let text = path.to_str().unwrap();
    assert_eq!(whole(&fs, text).unwrap(), [&content[..], b"a marker again"].concat());
    let raw = mem.read_raw(path).unwrap();
    assert!(
        raw.starts_with(&storage::fs::ENCRYPTED_MAGIC)
            && !raw.windows(8).any(|bytes| bytes == b"a marker")
    );
}

#[test]
fn each_open_for_appending_has_its_own_salt() {
    let (mem, fs) = new();
    let path = Path::new(TABLE);
    assert!(fs.put_if_absent(path, b"0123456789").unwrap());
    for _ in 0..2 {
        fs.open_append(path, AppendMode::Existing).unwrap().append(b"0123456789").unwrap();
    }
    let raw = mem.read_raw(path).unwrap();
    let salts: Vec<&[u8]> = (0..3).map(|number| &raw[264 + 42 * number..][..8]).collect();
    assert!(salts[0] != salts[1] && salts[1] != salts[2] && salts[0] != salts[2], "{salts:?}");
}

/// The end that a cut lost is written again, with other bytes at the same offset of the file.
#[test]
fn the_end_of_a_file_is_written_again_after_a_crash() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let (mem, fs) = new();
        let path = "/db/0000000000000001-00000001.manifest";
        let first = bytes(&mut rng, 5000 + seed as usize * 100);
        fs.put_if_absent(Path::new(path), &first).unwrap();
        let file = fs.open_append(Path::new(path), AppendMode::Existing).unwrap();
        file.append(&bytes(&mut rng, 6000)).unwrap();
        let outcome = *rng.pick(&CrashOutcome::ALL);
        let cut = mem.crash_clone(outcome, &mut || rng.next_u64());
        let fs = over(&cut);
        let file = fs.open_append(Path::new(path), AppendMode::Existing).unwrap();
        let at = file.len().unwrap();
        file.append(b"superseded").unwrap();
        let read = whole(&fs, path).unwrap();
        assert!(read[..first.len()] == first, "{outcome:?}");
        assert_eq!(read[at as usize..], *b"superseded", "{outcome:?} seed {seed}");
    }
}

#[test]
fn a_changed_byte_is_an_error_in_a_table_and_zeros_in_a_log() {
    for path in [TABLE, LOG] {
        let (mem, fs) = new();
        let plain = vec![7; 20_000];
        create(&fs, path).append(&plain).unwrap();
        mem.corrupt(Path::new(path), 9000, 1).unwrap();
        let file = fs.open_read(Path::new(path)).unwrap();
        let mut buf = vec![1; 20_000];
        let read = file.read_at(0, &mut buf);
        if path == TABLE {
            let damage = read.unwrap_err();
            assert!(damage.is_corruption(), "{damage}");
            let said = damage.to_string();
            assert!(said.contains("do not verify") && said.contains(TABLE), "{said}");
        } else {
            assert_eq!(read.unwrap(), 20_000);
            assert!(buf[7872..7872 + 4064].iter().all(|byte| *byte == 0));
            assert!(buf[7872 + 4064..].iter().all(|byte| *byte == 7));
        }
        // What lies in other pages is read.
        assert_eq!(file.read_at(0, &mut buf[..7872]).unwrap(), 7872);
        assert_eq!(buf[..7872], plain[..7872]);
    }
}

#[test]
fn a_wrong_and_a_missing_key_and_a_plain_file_are_errors_of_the_open() {
    let (mem, fs) = new();
    create(&fs, TABLE).append(b"data").unwrap();
    let wrong = KeyRing::new(KeyId::new("k").unwrap(), EncryptionKey::new([5; 32]));
    let other = EncryptedFs::new(Arc::new(mem.clone()), Arc::new(wrong));
    let said = other.open_read(Path::new(TABLE)).err().unwrap();
    assert!(said.to_string().contains("another key than the one given as k"), "{said}");
    let missing = KeyRing::new(KeyId::new("new").unwrap(), EncryptionKey::new([4; 32]));
    let other = EncryptedFs::new(Arc::new(mem.clone()), Arc::new(missing));
    let said = other.open_read(Path::new(TABLE)).err().unwrap();
    assert_eq!(said.kind(), ErrorKind::InvalidArgument);
    assert!(said.to_string().contains("with the key k, which is not given"), "{said}");
    mem.put_if_absent(Path::new("/db/plain"), b"siltchnk and so on").unwrap();
    let said = fs.open_read(Path::new("/db/plain")).err().unwrap().to_string();
    assert!(said.contains("/db/plain is not encrypted"), "{said}");
}

#[test]
fn older_files_are_read_after_the_key_has_changed() {
    let (mem, _) = new();
    let keys = ring();
    let fs = EncryptedFs::new(Arc::new(mem.clone()), Arc::new(keys.clone()));
    create(&fs, TABLE).append(b"old").unwrap();
    keys.rotate_to(KeyId::new("k2").unwrap(), EncryptionKey::random().unwrap());
    create(&fs, LOG).append(b"new").unwrap();
    assert_eq!(
        (whole(&fs, TABLE).unwrap(), whole(&fs, LOG).unwrap()),
        (b"old".to_vec(), b"new".to_vec())
    );
    assert!(keys.remove(&KeyId::new("k").unwrap()));
    assert!(whole(&fs, TABLE).is_err() && whole(&fs, LOG).is_ok());
}

#[test]
fn files_of_the_system_are_encrypted_in_a_folder_that_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let fs = EncryptedFs::new(Arc::new(OsFs), Arc::new(ring()));
    let held = fs.hold_dir(dir.path()).unwrap();
    let held_fs = held.fs.unwrap();
    let path = held.path.join("0000000000000001-00000001.wal");
    let file = held_fs.open_append(&path, AppendMode::IfAbsent).unwrap();
    file.preallocate(1 << 20).unwrap();
    file.map_appends();
    for _ in 0..2000 {
        file.append(b"marker of the log").unwrap();
    }
    file.sync().unwrap();
    let mut buf = vec![0; 17 * 2000];
    assert_eq!(fs.open_read(&path).unwrap().read_at(0, &mut buf).unwrap(), buf.len());
    assert!(buf == b"marker of the log".repeat(2000));
    let raw = OsFs.open_read(&path).unwrap();
    let mut bytes = vec![0; 200_000];
    let got = raw.read_at(0, &mut bytes).unwrap();
    assert!(got > buf.len() && !bytes.windows(6).any(|bytes| bytes == b"marker"));
}

#[test]
fn nothing_is_reserved_or_appended_after_a_failed_append() {
    let (mem, _) = new();
    let faults = FaultFs::over_mem(mem);
    let fs = EncryptedFs::new(Arc::new(faults.clone()), Arc::new(ring()));
    let file = create(&fs, LOG);
    let at = FaultAt::Nth { kind: OpKind::Append, suffix: String::new(), nth: 0 };
    faults.add_rule(FaultRule::once(at, FaultAction::Eio));
    assert!(file.append(b"first").is_err());
    // What was written is unknown: an append here may use a nonce again.
    assert!(file.preallocate(1 << 16).is_err());
    assert!(file.append(b"other").is_err());
}

const MANIFEST: &str = "/db/0000000000000001-00000001.manifest";

/// The header of a file, whose record a crash has lost.
fn header(mem: &MemFs, fs: &EncryptedFs) -> Vec<u8> {
    create(fs, MANIFEST).append(b"lost in the crash").unwrap();
    mem.read_raw(Path::new(MANIFEST)).unwrap()[..256].to_vec()
}

#[test]
fn a_header_that_a_crash_has_cut_is_completed_before_the_next_append() {
    let (mem, fs) = new();
    let path = Path::new(MANIFEST);
    let bytes = header(&mem, &fs);
    for len in [128, 129, 165, 255] {
        mem.write_raw(path, &bytes[..len]).unwrap();
        let file = fs.open_append(path, AppendMode::Existing).unwrap();
        assert_eq!(file.len().unwrap(), 0, "{len}");
        file.append(b"after it").unwrap();
        drop(file);
        assert_eq!(whole(&fs, MANIFEST).unwrap(), b"after it", "{len}");
        // Both places are whole: one may be damaged.
        let mut damaged = mem.read_raw(path).unwrap();
        damaged[60] ^= 1;
        mem.write_raw(path, &damaged).unwrap();
        assert_eq!(whole(&fs, MANIFEST).unwrap(), b"after it", "{len}");
    }
}

#[test]
fn nothing_is_appended_after_a_header_that_was_completed_in_part() {
    let (mem, fs) = new();
    let bytes = header(&mem, &fs);
    mem.write_raw(Path::new(MANIFEST), &bytes[..130]).unwrap();
    let faults = FaultFs::over_mem(mem);
    let fs = EncryptedFs::new(Arc::new(faults.clone()), Arc::new(ring()));
    let at = FaultAt::Nth { kind: OpKind::Append, suffix: String::new(), nth: 0 };
    faults.add_rule(FaultRule::once(at, FaultAction::ShortWrite(50)));
    let file = open_existing(&fs);
    file.append(b"one").unwrap_err();
    file.append(b"two").unwrap_err();
    open_existing(&fs).append(b"three").unwrap();
    assert_eq!(whole(&fs, MANIFEST).unwrap(), b"three");
}

/// The name of a file that is made is there before its bytes.
#[test]
fn a_file_with_the_beginning_of_a_header_is_damaged_and_not_unencrypted() {
    let (mem, fs) = new();
    let bytes = header(&mem, &fs);
    for len in 1..128 {
        mem.write_raw(Path::new(MANIFEST), &bytes[..len]).unwrap();
        let file = fs.open_read(Path::new(MANIFEST)).unwrap();
        assert_eq!(file.len().unwrap(), 0, "{len}");
        let append = open_existing(&fs);
        assert!(append.append(b"more").unwrap_err().is_corruption(), "{len}");
    }
}

#[test]
fn a_key_changes_in_a_file_whose_header_a_crash_has_cut() {
    for len in [128, 129, 200, 255] {
        let (mem, fs) = new();
        let bytes = header(&mem, &fs);
        mem.write_raw(Path::new(MANIFEST), &bytes[..len]).unwrap();
        let keys = ring();
        keys.rotate_to(KeyId::new("new").unwrap(), EncryptionKey::new([5; 32]));
        let fs = EncryptedFs::new(Arc::new(mem.clone()), Arc::new(keys.clone()));
        assert!(fs.rewrap(Path::new(MANIFEST)).unwrap(), "{len}");
        assert!(!fs.rewrap(Path::new(MANIFEST)).unwrap(), "{len}");
        fs.open_append(Path::new(MANIFEST), AppendMode::Existing).unwrap().append(b"one").unwrap();
        assert_eq!(whole(&fs, MANIFEST).unwrap(), b"one", "{len}");
    }
}

/// The place of the first byte of a page in a file that was appended at once.
fn first_place(page: usize) -> u64 {
    (page * 4064).saturating_sub(256) as u64
}

/// Records of whole pages. Single ones are lost, and more than a search passes.
#[test]
fn the_readable_parts_of_a_torn_file_are_those_of_its_whole_records() {
    let plain = bytes(&mut Rng::new(3), 3808 + 400 * 4064 - 100);
    let cases: [&[(usize, usize)]; 5] =
        [&[], &[(0, 1)], &[(2, 3), (5, 6)], &[(7, 100), (150, 300)], &[(390, 401)]];
    for lost in cases {
        let (mem, fs) = new();
        create(&fs, TABLE).append(&plain).unwrap();
        let mut raw = vec![0; mem.open_read(Path::new(TABLE)).unwrap().len().unwrap() as usize];
        mem.open_read(Path::new(TABLE)).unwrap().read_at(0, &mut raw).unwrap();
        let mut expected: Vec<_> = std::iter::once(0..plain.len() as u64).collect();
        for (n, (begin, end)) in lost.iter().copied().enumerate() {
            let stop = raw.len().min(end * 4096);
            // After the header, in the first page.
            let part = &mut raw[(begin * 4096).max(256)..stop];
            // Zeros, or what was never written.
            part.iter_mut().for_each(|byte| *byte = if n % 2 == 0 { 0 } else { !*byte });
            let last = expected.pop().unwrap();
            expected.extend([last.start..first_place(begin), first_place(end)..last.end]);
        }
        expected.retain(|part| !part.is_empty());
        mem.write_raw(Path::new(TABLE), &raw).unwrap();
        let file = fs.open_read(Path::new(TABLE)).unwrap();
        let parts = file.readable(0..plain.len() as u64).unwrap();
        assert_eq!(parts, expected);
        for part in parts {
            let mut read = vec![0; (part.end - part.start) as usize];
            assert_eq!(file.read_at(part.start, &mut read).unwrap(), read.len());
            assert!(read == plain[part.start as usize..part.end as usize], "{part:?} of {lost:?}");
            let middle = u64::midpoint(part.start, part.end);
            let parts = file.readable(middle..part.end).unwrap();
            assert_eq!(parts.first(), Some(&(middle..part.end)));
        }
    }
}
