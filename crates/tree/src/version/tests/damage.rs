//! Manifests that are cut, rotten, torn or in the wrong place, and the chain of generations.

use super::*;

/// An edit that adds this table, encoded and decoded.
fn decode_again(meta: SstMeta) -> Result<VersionEdit, EditFault> {
    let partition = PartitionId(1);
    let changes = vec![Change::TableAdded { partition, level: 0, meta }];
    let mut bytes = Vec::new();
    VersionEdit { number: 1, changes }.encode(&mut bytes);
    VersionEdit::decode(1, &bytes)
}

/// Sums over tables are trusted: two such figures would overflow.
#[test]
fn a_figure_that_no_table_can_have_is_refused() {
    const MOST: u64 = 1 << 44;
    let sound = SstMeta { bytes: MOST, entries: MOST, ..meta(1, "a", "b") };
    decode_again(SstMeta { tombstones: MOST, hidden: MOST, ..sound.clone() }).unwrap();
    for broken in [
        SstMeta { bytes: MOST + 1, ..sound.clone() },
        SstMeta { entries: MOST + 1, ..sound.clone() },
        SstMeta { tombstones: MOST + 1, ..sound.clone() },
        SstMeta { hidden: u64::MAX, ..sound.clone() },
    ] {
        let refused = decode_again(broken).unwrap_err().to_string();
        assert!(refused.contains("more than a table can have"), "{refused}");
    }
}

/// A damaged tail that looks at many offsets like the front of a long frame: opening took 57 s at 1
/// MiB, quadratic in the length.
#[test]
fn a_crafted_tail_of_a_manifest_is_torn_and_costs_a_walk_over_it() {
    let mem = MemFs::new();
    mem.create_dir(dir()).unwrap();
    let version = base();
    let name = generation(20);
    let mut manifest = Manifest::create(&mem, dir(), name, &version).unwrap();
    manifest.append(&next(&version, vec![created(1, "other", 2)])).unwrap();
    let path = name.path(dir());
    let whole = mem.read_raw(&path).unwrap();
    // Lengths of 256 KiB and of 1 KiB, at every second offset.
    let tail = [0, 0, 4, 0].repeat(2 << 20);
    mem.write_raw(&path, &[&whole[..], &tail].concat()).unwrap();
    let found = recover(&mem, dir(), &[name]).unwrap().unwrap();
    assert!(found.torn && found.has_derived_salts);
    assert_eq!(found.end, whole.len() as u64);
    // An edit after the tail makes it damage.
    let mut appended = [&whole[..], &tail].concat();
    let later = with(&version, vec![created(1, "other", 2)]);
    put_frame(&mut appended, name, &next(&later, vec![created(2, "third", 3)]));
    mem.write_raw(&path, &appended).unwrap();
    assert!(recover(&mem, dir(), &[name]).unwrap_err().is_corruption());
}

/// A manifest with three edits after its snapshot, and the version after each of them.
fn small_manifest(fs: &TestFs) -> (Manifest, Vec<DbVersion>) {
    let mut versions = vec![base()];
    let mut manifest = Manifest::create(fs, dir(), generation(100), &versions[0]).unwrap();
    for file in 5..8 {
        let edit = next(&versions[file - 5], vec![added(0, meta(file as u64, "a", "z"))]);
        manifest.append(&edit).unwrap();
        versions.push(apply(&versions[file - 5], &edit).unwrap());
    }
    for version in &mut versions {
        version.next_file = FileNo(101);
    }
    (manifest, versions)
}

fn recover_bytes(bytes: Vec<u8>) -> Result<Recovered> {
    let fs = TestFs::default();
    fs.files.lock().insert(generation(100).path(dir()), bytes);
    recover(&fs, dir(), &[generation(100)]).map(Option::unwrap)
}

fn frame_ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![80];
    while let Some(length) = bytes.get(ends[ends.len() - 1] + 16..).and_then(|b| b.first_chunk()) {
        ends.push(ends[ends.len() - 1] + 28 + u32::from_le_bytes(*length) as usize);
    }
    ends
}

#[test]
fn every_truncation_and_bit_flip_is_corruption_or_costs_the_last_edit_alone() {
    let fs = TestFs::default();
    let (manifest, versions) = small_manifest(&fs);
    let bytes = fs.files.lock()[&generation(100).path(dir())].clone();
    assert_eq!(manifest.bytes(), bytes.len() as u64);
    let ends = frame_ends(&bytes);
    assert_eq!(ends.len(), 5);
    for cut in 0..=bytes.len() {
        let found = recover_bytes(bytes[..cut].to_vec());
        match ends[1..].iter().rposition(|end| *end <= cut) {
            None => assert_eq!(found.unwrap_err().kind(), ErrorKind::Corruption, "{cut}"),
            Some(edits) => {
                let found = found.unwrap();
                assert_eq!(found.version, versions[edits], "cut at {cut}");
                assert_eq!(found.torn, !ends.contains(&cut));
            }
        }
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut rotten = bytes.clone();
            rotten[at] ^= 1 << bit;
            match recover_bytes(rotten) {
                Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption, "{at}.{bit}: {e}"),
                Ok(found) => {
                    assert!(at >= ends[3], "damage at {at}.{bit} went unseen");
                    assert_eq!(found.version, versions[2]);
                    assert!(found.torn);
                }
            }
        }
    }
    let zeros = recover_bytes([&bytes[..], &[0; 4096]].concat()).unwrap();
    assert!(zeros.torn && zeros.version == versions[3], "a zero tail is no edit");
}

#[test]
fn a_frame_in_another_place_or_file_does_not_verify() {
    let fs = TestFs::default();
    small_manifest(&fs);
    let bytes = fs.files.lock()[&generation(100).path(dir())].clone();
    let ends = frame_ends(&bytes);
    let repeated = [&bytes[..], &bytes[ends[3]..]].concat();
    assert!(recover_bytes(repeated).unwrap().torn);
    fs.files.lock().insert(generation(101).path(dir()), bytes);
    let e = recover(&fs, dir(), &[generation(101)]).unwrap_err();
    assert!(e.to_string().contains("another generation than its name says"), "{e}");
}

#[test]
fn recovery_follows_the_chain_and_calls_the_unnamed_garbage() {
    let fs = TestFs::default();
    let (mut old, versions) = small_manifest(&fs);
    let mut version = versions[3].clone();
    version.next_file = FileNo(200);
    Manifest::create(&fs, dir(), generation(110), &version).unwrap();
    let names = [generation(120), generation(100), generation(110)];
    let found = recover(&fs, dir(), &names[1..]).unwrap().unwrap();
    assert_eq!((found.generation, found.garbage), (generation(100), vec![generation(110)]));
    let mut new = Manifest::create(&fs, dir(), generation(120), &version).unwrap();
    old.supersede(generation(120)).unwrap();
    let edit = next(&version, vec![created(1, "late", version.edit_number + 1)]);
    new.append(&edit).unwrap();
    let found = recover(&fs, dir(), &names).unwrap().unwrap();
    assert_eq!(found.version, apply(&version, &edit).unwrap());
    assert_eq!((found.generation, found.end), (generation(120), new.bytes()));
    assert_eq!((found.older.clone(), found.garbage.len()), (vec![names[1], names[2]], 0));
    // A listing may be older than the successor.
    let late = recover(&fs, dir(), &names[1..]).unwrap().unwrap();
    assert_eq!((late.version, late.generation), (found.version.clone(), found.generation));
    let successor = fs.files.lock().remove(&generation(120).path(dir())).unwrap();
    let e = recover(&fs, dir(), &names[1..]).unwrap_err();
    assert!(e.to_string().contains("missing") && e.is_corruption(), "{e}");
    fs.files.lock().insert(generation(120).path(dir()), successor);
    // A generation that has edits counts, whatever the ones before it say: a failed sync of the
    // folder may have brought them back.
    let path = generation(100).path(dir());
    *fs.files.lock().get_mut(&path).unwrap().last_mut().unwrap() ^= 1;
    let again = recover(&fs, dir(), &names).unwrap().unwrap();
    assert_eq!((again.version, again.older), (found.version, found.older.clone()));
    for name in found.garbage.iter().chain(&found.older) {
        fs.delete(&name.path(dir())).unwrap();
    }
    let found = recover(&fs, dir(), &names[..1]).unwrap().unwrap();
    assert_eq!(found.version.edit_number, edit.number);
    assert_eq!(fs.files.lock().len(), 1);
    assert!(recover(&fs, dir(), &[]).unwrap().is_none());
}

#[test]
fn a_successor_named_after_a_torn_tail_is_followed() {
    let fs = TestFs::default();
    let (_, versions) = small_manifest(&fs);
    let path = generation(100).path(dir());
    fs.files.lock().get_mut(&path).unwrap().extend_from_slice(b"torn");
    let found = recover(&fs, dir(), &[generation(100)]).unwrap().unwrap();
    assert!(found.torn);
    Manifest::create(&fs, dir(), generation(110), &found.version).unwrap();
    let mut old = Manifest::reopen(&fs, dir(), generation(100), &found.version).unwrap();
    old.supersede(generation(110)).unwrap();
    let names = [generation(100), generation(110)];
    let found = recover(&fs, dir(), &names).unwrap().unwrap();
    assert_eq!((found.generation, found.torn), (generation(110), false));
    assert_eq!(found.version.partitions, versions[3].partitions);
}

/// A primary that was fenced goes on for a moment: its generations may have larger numbers.
#[test]
fn a_used_generation_of_a_later_epoch_counts_whatever_its_number_is() {
    let fs = TestFs::default();
    let (_, versions) = small_manifest(&fs);
    let mut version = versions[3].clone();
    version.next_file = FileNo(200);
    let old = generation(150);
    let new = FileName { epoch: Epoch(old.epoch.0 + 1), ..generation(110) };
    let mut manifest = Manifest::create(&fs, dir(), old, &version).unwrap();
    let number = version.edit_number + 1;
    manifest.append(&next(&version, vec![created(1, "refused", number)])).unwrap();
    let mut manifest = Manifest::create(&fs, dir(), new, &version).unwrap();
    let names = [old, generation(100), new];
    assert!(!has_begun(&fs, dir(), &names, new.epoch).unwrap(), "it has no edit");
    let found = recover(&fs, dir(), &names).unwrap().unwrap();
    assert_eq!((found.generation, found.garbage), (old, vec![new]));
    let edit = next(&version, vec![created(1, "kept", number)]);
    manifest.append(&edit).unwrap();
    assert!(has_begun(&fs, dir(), &names, new.epoch).unwrap());
    let found = recover(&fs, dir(), &names).unwrap().unwrap();
    assert_eq!((found.generation, found.version), (new, apply(&version, &edit).unwrap()));
    assert_eq!(found.older, [generation(100), old]);
}

/// Nothing but the generation itself says that a promotion has ended.
#[test]
fn a_damaged_generation_after_a_fork_does_not_pass_for_an_unused_one() {
    let fs = TestFs::default();
    let (_, versions) = small_manifest(&fs);
    let version = versions[3].clone();
    let new = FileName { epoch: Epoch(generation(100).epoch.0 + 1), ..generation(110) };
    let mut manifest = Manifest::create(&fs, dir(), new, &version).unwrap();
    let snapshot_end = manifest.bytes() as usize;
    let edit = next(&version, vec![created(1, "kept", version.edit_number + 1)]);
    manifest.append(&edit).unwrap();
    let edit_end = manifest.bytes() as usize;
    manifest.append(&next(&apply(&version, &edit).unwrap(), Vec::new())).unwrap();
    let names = [generation(100), new];
    for place in 0..edit_end {
        flip(&fs, new, place);
        match has_begun(&fs, dir(), &names, new.epoch) {
            Ok(begun) => assert!(begun && place >= snapshot_end, "byte {place}"),
            Err(error) => assert!(error.is_corruption() && place < snapshot_end, "{error}"),
        }
        // Nor do older generations count in its place, where its first edit is the damaged one.
        if place >= snapshot_end {
            assert!(recover(&fs, dir(), &names).unwrap_err().is_corruption(), "byte {place}");
        }
        flip(&fs, new, place);
    }
}

#[test]
fn edits_that_were_not_settled_are_left_out_and_snapshots_are_not() {
    let fs = TestFs::default();
    let (_, versions) = small_manifest(&fs);
    let first = versions[0].edit_number;
    for (version, through) in versions.iter().zip(first..) {
        let names = [generation(100)];
        let found = recover_through(&fs, dir(), &names, Some(through)).unwrap().unwrap();
        assert_eq!(found.version.edit_number, through);
        assert_eq!(found.version.partitions, version.partitions, "through {through}");
    }
    // The snapshot of a generation that was begun after an edit in doubt has used up its number.
    let found = recover_through(&fs, dir(), &[generation(100)], Some(0)).unwrap().unwrap();
    assert_eq!(found.version.partitions, versions[0].partitions);
}

fn length(fs: &TestFs) -> usize {
    fs.files.lock()[&generation(100).path(dir())].len()
}

#[test]
fn a_failed_sync_fails_the_generation_for_good() {
    let fs = TestFs::default();
    let (mut manifest, versions) = small_manifest(&fs);
    let edit = next(&versions[3], vec![]);
    *fs.fail_sync.lock() = true;
    assert_eq!(manifest.append(&edit).unwrap_err().kind(), ErrorKind::Io);
    *fs.fail_sync.lock() = false;
    let before = length(&fs);
    assert_eq!(manifest.append(&edit).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(manifest.supersede(generation(110)).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(manifest.is_failed() && length(&fs) == before, "nothing was appended");
}

fn flip(fs: &TestFs, name: FileName, place: usize) {
    fs.files.lock().get_mut(&name.path(dir())).unwrap()[place] ^= 1;
}
