//! Generations whose frames and headers verify, and that do not continue each other.

use super::*;

/// The last edit of the first generation.
const LAST: u64 = 2;

fn path(number: u64) -> PathBuf {
    generation(number).path(dir())
}

/// A generation with one edit after its snapshot, and its version.
fn begun() -> (TestFs, DbVersion) {
    let fs = TestFs::default();
    let mut version = base();
    let mut manifest = Manifest::create(&fs, dir(), generation(100), &version).unwrap();
    manifest.append(&next(&version, vec![created(1, "other", LAST)])).unwrap();
    version = with(&version, vec![created(1, "other", LAST)]);
    assert_eq!(version.edit_number, LAST);
    (fs, version)
}

/// Appends a frame that verifies.
fn append(fs: &TestFs, number: u64, changes: Vec<Change>) {
    let mut files = fs.files.lock();
    put_frame(
        files.get_mut(&path(100)).unwrap(),
        generation(100),
        &VersionEdit { number, changes },
    );
}

fn superseded(by: u64) -> Vec<Change> {
    vec![Change::Superseded { by: FileNo(by), epoch: Epoch(1) }]
}

/// Checks that recovery refuses the generations for this reason.
fn check(fs: &TestFs, expected: &str) {
    let names = [generation(100), generation(110)].into_iter();
    let names: Vec<_> = names.filter(|it| fs.files.lock().contains_key(&it.path(dir()))).collect();
    let error = recover(fs, dir(), &names).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains(expected), "{error}");
}

#[test]
fn a_successor_lacks_no_edit_of_its_predecessor() {
    for (snapshot, is_whole) in [(base(), false), (begun().1, true)] {
        let (fs, _) = begun();
        Manifest::create(&fs, dir(), generation(110), &snapshot).unwrap();
        append(&fs, LAST, superseded(110));
        match is_whole {
            true => drop(recover(&fs, dir(), &[generation(100), generation(110)]).unwrap()),
            false => check(&fs, "begins before its predecessor ends"),
        }
    }
}

#[test]
fn the_end_of_a_generation_is_after_its_last_edit_and_nothing_follows_it() {
    let (fs, version) = begun();
    Manifest::create(&fs, dir(), generation(110), &version).unwrap();
    append(&fs, LAST - 1, superseded(110));
    check(&fs, "names an edit before the last one");
    let (fs, version) = begun();
    Manifest::create(&fs, dir(), generation(110), &version).unwrap();
    append(&fs, LAST, superseded(110));
    append(&fs, LAST + 1, Vec::new());
    check(&fs, "edits follow the end");
}

/// The same file in level 0 of a partition.
fn table(id: u32) -> Change {
    Change::TableAdded { partition: PartitionId(id), level: 0, meta: meta(7, "a", "b") }
}

#[test]
fn a_file_of_two_partitions_is_refused() {
    let (fs, _) = begun();
    append(&fs, LAST + 1, vec![table(0)]);
    append(&fs, LAST + 2, vec![table(1)]);
    check(&fs, "file 7 is live twice");
}

/// A feature that an older generation names may still be in use.
#[test]
fn a_feature_that_forbids_writes_counts_in_every_generation_of_the_chain() {
    for forbidding in [None, Some(100), Some(110)] {
        let (fs, version) = begun();
        Manifest::create(&fs, dir(), generation(110), &version).unwrap();
        append(&fs, LAST, superseded(110));
        if let Some(number) = forbidding {
            let mut files = fs.files.lock();
            let bytes = files.get_mut(&path(number)).unwrap();
            bytes[24] = 1;
            let sum = crate::codec::checksum64(&bytes[..72]);
            bytes[72..80].copy_from_slice(&sum.to_le_bytes());
        }
        let found = recover(&fs, dir(), &[generation(100), generation(110)]).unwrap().unwrap();
        assert_eq!(found.writable, forbidding.is_none(), "{forbidding:?}");
    }
}
