//! Each class of faults, in each file.

use lsm_core::codec::checksum64;
use lsm_core::types::FileNo;

use super::*;

fn story() -> Story {
    Story::new(5, 6)
}

/// Every `step`th byte of a file, flipped.
fn flip_each(story: &Story, path: &Path, step: usize) {
    let len = story.fs.read_raw(path).unwrap().len();
    for at in (0..len).step_by(step) {
        let what = format!("byte {at} of {} flipped", path.display());
        story.check(&what, |fs| fs.corrupt(path, at as u64, 1 << (at % 8)).unwrap());
    }
}

#[test]
fn a_sound_database_comes_out_as_it_is() {
    for seed in 0..6 {
        let story = Story::new(seed, 5);
        let report = story.check(&format!("seed {seed}"), |_| {});
        assert!(report.is_complete() && report.damage.is_empty(), "{report:?}");
        let fs = copy_of(&story.fs);
        repair(&fs).unwrap();
        assert!(repaired(&fs) == story.now, "seed {seed}");
        let old = builder(&fs, DIR, 2).open().unwrap();
        let new = builder(&fs, NEW, 3).open().unwrap();
        assert_eq!(old.partition_names(), new.partition_names());
        for name in PARTITIONS {
            let old = old.partition(name).unwrap();
            let new = new.partition(name).unwrap();
            assert_eq!(format!("{:?}", old.options()), format!("{:?}", new.options()));
        }
        assert!(new.visible_seq() >= old.visible_seq(), "numbers go on");
    }
}

#[test]
fn without_a_manifest_no_key_is_lost_and_doubt_is_reported() {
    let story = story();
    let manifests = story.files(FileKind::Manifest);
    let report = story.check("no manifest", |fs| {
        manifests.iter().for_each(|path| fs.remove_raw(path).unwrap());
    });
    assert!(!report.is_complete(), "a deleted key may be back");
    let fs = copy_of(&story.fs);
    manifests.iter().for_each(|path| fs.remove_raw(path).unwrap());
    repair(&fs).unwrap();
    let found = repaired(&fs);
    for name in PARTITIONS {
        for (key, value) in &story.now[name] {
            assert!(found[name].get(key) == Some(value), "{name} {}", key.escape_ascii());
        }
    }
}

#[test]
fn a_manifest_that_is_cut_or_flipped_anywhere_costs_no_value() {
    let story = Story::new(8, 2);
    for path in story.files(FileKind::Manifest) {
        let len = story.fs.read_raw(&path).unwrap().len();
        for at in (0..len).step_by(2) {
            let what = format!("the manifest cut to {at} bytes");
            story.check(&what, |fs| fs.truncate_raw(&path, at as u64).unwrap());
        }
        flip_each(&story, &path, 3);
    }
}

#[test]
fn a_table_that_is_flipped_anywhere_costs_the_keys_of_its_block() {
    let story = story();
    for path in story.files(FileKind::Sst).into_iter().take(12) {
        flip_each(&story, &path, 151);
    }
}

#[test]
fn a_block_beyond_repair_costs_its_keys_and_is_reported() {
    let story = story();
    let mut lost = 0;
    for path in story.files(FileKind::Sst).into_iter().take(12) {
        let len = story.fs.read_raw(&path).unwrap().len();
        for at in (0..len - 2).step_by(173) {
            let what = format!("bytes {at} and after of {} flipped", path.display());
            let report = story.check(&what, |fs| {
                // No search for one bit turns them back.
                fs.corrupt(&path, at as u64, 0x11).unwrap();
                fs.corrupt(&path, at as u64 + 2, 0x22).unwrap();
            });
            lost += usize::from(!report.is_complete());
        }
    }
    assert!(lost > 0);
}

#[test]
fn a_manifest_that_lost_edits_is_not_believed_after_damage_of_the_log() {
    let fs = MemFs::new();
    let db = builder(&fs, DIR, 1).open().unwrap();
    let plain = db.partition_with("plain", partition_options("plain")).unwrap();
    plain.put("a", "1").unwrap();
    db.flush().unwrap();
    let early = copy_of(&fs);
    plain.put("b", "2").unwrap();
    removed::forget_log(&db);
    plain.put("c", "3").unwrap();
    db.close().unwrap();
    // The manifest is whole as it was before the second flush; the log says that there was another edit.
    let manifests = fs.paths().into_iter().filter(|path| kind_of(path) == Some(FileKind::Manifest));
    for path in manifests {
        fs.write_raw(&path, &early.read_raw(&path).unwrap()).unwrap();
    }
    assert!(builder(&fs, DIR, 2).open().unwrap_err().is_corruption());
    let report = repair(&fs).unwrap();
    assert!(!report.is_complete());
    let new = builder(&fs, NEW, 9).open().unwrap();
    let found: Vec<Vec<u8>> = content(&new.partition("plain").unwrap()).into_keys().collect();
    assert_eq!(found, [b"a", b"b", b"c"]);
}

#[test]
fn a_repair_goes_on_although_a_segment_needs_newer_code() {
    let story = story();
    let [.., segment] = &story.files(FileKind::Wal)[..] else { panic!("there is a log") };
    let mut header = story.fs.read_raw(segment).unwrap()[..128].to_vec();
    header[8] = 99;
    let sum = checksum64(&header[..120]);
    header[120..].copy_from_slice(&sum.to_le_bytes());
    let own = FileName::parse(segment.file_name().unwrap().to_str().unwrap()).unwrap();
    let newer = FileName { number: FileNo(999_999), ..own };
    let foreign = segment.with_file_name(newer.to_string());
    let report = story.check("damage, and a segment of newer code", |fs| {
        fs.write_raw(&foreign, &header).unwrap();
        fs.corrupt(segment, 128 + 40, 0x11).unwrap();
    });
    assert!(report.damage.iter().any(|it| it.file == foreign), "{report:?}");
}

#[test]
fn a_table_that_is_missing_or_cut_costs_its_keys() {
    let story = story();
    for path in story.files(FileKind::Sst) {
        let what = format!("{} missing", path.display());
        story.check(&what, |fs| fs.remove_raw(&path).unwrap());
        let len = story.fs.read_raw(&path).unwrap().len() as u64;
        let what = format!("{} cut", path.display());
        story.check(&what, |fs| fs.truncate_raw(&path, len / 2).unwrap());
    }
}

#[test]
fn a_log_that_is_damaged_or_missing_keeps_the_batches_around_the_damage() {
    let story = story();
    for path in story.files(FileKind::Wal) {
        let what = format!("{} missing", path.display());
        story.check(&what, |fs| fs.remove_raw(&path).unwrap());
        flip_each(&story, &path, 67);
    }
}

#[test]
fn a_chunk_file_that_is_damaged_or_missing_costs_its_keys_alone() {
    let story = story();
    let chunks = story.files(FileKind::Chunk);
    assert!(!chunks.is_empty(), "there are large values");
    for path in chunks {
        let what = format!("{} missing", path.display());
        let report = story.check(&what, |fs| fs.remove_raw(&path).unwrap());
        assert!(report.doubtful.iter().all(is_key), "{report:?}");
        flip_each(&story, &path, 397);
    }
}

fn is_key(doubt: &siltstone::DoubtfulKeys) -> bool {
    doubt.keys.as_ref().is_some_and(|(first, last)| first == last)
}
