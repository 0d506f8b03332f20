//! A power cut leaves all synced data, and of the rest only what its outcome allows.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;

const A: &str = "/d/a";

/// A generator for the tests: splitmix64.
fn dice(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn new_fs() -> MemFs {
    let fs = MemFs::new();
    fs.create_dir(Path::new("/d")).unwrap();
    fs
}

fn create(fs: &MemFs, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = fs.open_append(Path::new(path), AppendMode::IfAbsent).unwrap();
    file.append(bytes).unwrap();
    file
}

/// A file that is durable, name and all.
fn create_durable(fs: &MemFs, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = create(fs, path, bytes);
    file.sync().unwrap();
    fs.sync_dir(Path::new("/d")).unwrap();
    file
}

fn content(fs: &MemFs, path: &str) -> Option<Vec<u8>> {
    fs.read_raw(Path::new(path)).ok()
}

fn crash(fs: &MemFs, outcome: CrashOutcome, seed: u64) -> MemFs {
    fs.crash_clone(outcome, &mut dice(seed))
}

/// Every content of `A` that many crashes leave.
fn all_contents(fs: &MemFs, outcome: CrashOutcome) -> BTreeSet<Option<Vec<u8>>> {
    (0..400).map(|seed| content(&crash(fs, outcome, seed), A)).collect()
}

#[test]
fn a_sync_saves_bytes_and_a_folder_sync_saves_names() {
    use CrashOutcome::*;
    // (bytes synced, name synced) and what each outcome leaves.
    for (bytes, name) in [(false, false), (true, false), (false, true), (true, true)] {
        let fs = new_fs();
        let file = create(&fs, A, b"bytes");
        if bytes {
            file.sync().unwrap();
        }
        if name {
            fs.sync_dir(Path::new("/d")).unwrap();
        }
        let saved = if bytes { &b"bytes"[..] } else { b"" };
        assert_eq!(content(&crash(&fs, Nothing, 0), A), name.then(|| saved.to_vec()));
        assert_eq!(content(&crash(&fs, DataWithoutNames, 0), A), name.then(|| b"bytes".to_vec()));
        assert_eq!(content(&crash(&fs, Everything, 0), A), Some(b"bytes".to_vec()));
        for left in all_contents(&fs, NamesWithoutData) {
            let left = left.expect("names survive");
            assert!(left.starts_with(saved) && left[saved.len()..].iter().all(|byte| *byte == 0));
        }
        if bytes && name {
            for outcome in CrashOutcome::ALL {
                assert_eq!(all_contents(&fs, outcome).len(), 1, "{outcome:?}");
            }
        }
    }
}

#[test]
fn a_prefix_tears_the_last_append_anywhere_and_keeps_the_order() {
    let fs = new_fs();
    let a = create_durable(&fs, A, b"");
    let b = create_durable(&fs, "/d/b", b"");
    a.append(b"123").unwrap();
    b.append(b"456").unwrap();
    a.append(b"78").unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..2000 {
        let left = crash(&fs, CrashOutcome::Prefix, seed);
        let a = content(&left, A).unwrap();
        let b = content(&left, "/d/b").unwrap();
        let whole = [&a[..a.len().min(3)], &b, &a[a.len().min(3)..]].concat();
        assert!(b"12345678".starts_with(&whole), "{a:?} {b:?}");
        seen.insert(whole);
    }
    assert_eq!(seen.len(), 9, "every length occurs");
}

#[test]
fn a_prefix_leaves_any_parts_of_an_append_through_a_mapping() {
    let fs = new_fs();
    let a = create_durable(&fs, A, b"");
    a.preallocate(200).unwrap();
    a.sync().unwrap();
    assert!(a.map_appends());
    a.append(&[1; 100]).unwrap();
    let mut has_hole = false;
    for seed in 0..200 {
        let left = content(&crash(&fs, CrashOutcome::Prefix, seed), A).unwrap();
        assert_eq!((left.len(), &left[100..]), (200, &[0; 100][..]));
        let first_lost = left.iter().position(|byte| *byte == 0).unwrap();
        has_hole |= left[first_lost..].contains(&1);
    }
    assert!(has_hole, "the end is never there without what comes before it");
}

#[test]
fn a_prefix_orders_names_and_bytes_together() {
    let fs = new_fs();
    create(&fs, A, b"x");
    create(&fs, "/d/b", b"y");
    for seed in 0..500 {
        let left = crash(&fs, CrashOutcome::Prefix, seed);
        if content(&left, "/d/b").is_some() {
            assert_eq!(content(&left, A), Some(b"x".to_vec()), "a was written before b existed");
        }
    }
}

/// The byte that fills `left` from `start` to `end`, or to the end of the file.
fn sector(left: &[u8], start: usize, end: usize) -> Option<u8> {
    let part = left.get(start..end.min(left.len())).unwrap_or_default();
    assert!(part.iter().all(|byte| *byte == part[0]), "a sector is whole or lost");
    part.first().copied()
}

#[test]
fn a_subset_loses_sectors_and_grows_with_zeros() {
    let fs = new_fs();
    let file = create_durable(&fs, A, &[1; 700]);
    file.append(&[2; 1348]).unwrap();
    let mut patterns = BTreeSet::new();
    for left in all_contents(&fs, CrashOutcome::Subset) {
        let left = left.expect("the name was durable");
        assert_eq!(left[..700], [1; 700]);
        let tail: Vec<u8> = left[700..].to_vec();
        assert!(tail.iter().all(|byte| matches!(byte, 0 | 2)));
        // Sectors of 512 bytes from the start of the file: 700-1023, 1024-1535, 1536-2047.
        let first = sector(&left, 700, 1024);
        patterns.insert((first, sector(&left, 1024, 1536), sector(&left, 1536, 2048)));
    }
    assert!(patterns.contains(&(None, None, None)));
    assert!(patterns.contains(&(Some(2), Some(2), Some(2))));
    assert!(patterns.contains(&(Some(0), Some(0), Some(0))), "the length alone");
    assert!(patterns.contains(&(Some(0), Some(0), Some(2))), "later without earlier");
    assert!(patterns.contains(&(Some(2), Some(0), Some(2))));
}

#[test]
fn garbage_lies_only_where_the_file_grew() {
    let fs = new_fs();
    let file = create_durable(&fs, A, b"synced");
    file.preallocate(100).unwrap();
    file.sync().unwrap();
    file.append(&[2; 200]).unwrap();
    let lefts = all_contents(&fs, CrashOutcome::Garbage);
    for left in &lefts {
        let left = left.as_ref().unwrap();
        assert_eq!((left.len(), &left[..6]), (206, &b"synced"[..]));
        assert!(left[6..100].iter().all(|byte| matches!(byte, 0 | 2)), "space that was zeros");
    }
    assert!(lefts.iter().flatten().any(|left| left[100..].iter().any(|b| !matches!(b, 0 | 2))));
}

#[test]
fn names_survive_one_by_one() {
    let fs = new_fs();
    create_durable(&fs, A, b"a");
    fs.link(Path::new(A), Path::new("/d/b")).unwrap();
    fs.delete(Path::new(A)).unwrap();
    let lefts: BTreeSet<_> = (0..200)
        .map(|seed| {
            let left = crash(&fs, CrashOutcome::Subset, seed);
            (content(&left, A).is_some(), content(&left, "/d/b").is_some())
        })
        .collect();
    assert_eq!(lefts.len(), 4, "{lefts:?}");
    assert_eq!(crash(&fs, CrashOutcome::Nothing, 0).paths(), [Path::new(A)]);
    assert_eq!(crash(&fs, CrashOutcome::Everything, 0).paths(), [Path::new("/d/b")]);
}

#[test]
fn what_is_published_survives_alone() {
    let fs = new_fs();
    create(&fs, "/d/b", b"b");
    assert!(fs.put_if_absent(Path::new(A), b"whole").unwrap());
    let left = crash(&fs, CrashOutcome::Nothing, 0);
    assert_eq!(left.paths(), [Path::new(A)]);
    assert_eq!(content(&left, A), Some(b"whole".to_vec()));
    fs.delete(Path::new(A)).unwrap();
    assert!(fs.put_if_absent(Path::new(A), b"again").unwrap());
    for outcome in CrashOutcome::ALL {
        assert_eq!(all_contents(&fs, outcome), [Some(b"again".to_vec())].into(), "{outcome:?}");
    }
}

#[test]
fn hard_links_stay_one_file_after_a_crash() {
    let fs = new_fs();
    create_durable(&fs, A, b"a");
    fs.link(Path::new(A), Path::new("/d/b")).unwrap();
    let left = crash(&fs, CrashOutcome::Everything, 0);
    left.open_append(Path::new(A), AppendMode::Existing).unwrap().append(b"!").unwrap();
    assert_eq!(content(&left, "/d/b"), Some(b"a!".to_vec()));
    assert_eq!(content(&fs, A), Some(b"a".to_vec()), "the original is not touched");
}

/// The address of the inode that `A` names.
fn inode(fs: &MemFs) -> *const Inode {
    let state = fs.shared.state.read();
    let inode = Arc::clone(&state.find(Path::new(A)).unwrap().inode.read());
    Arc::as_ptr(&inode)
}

#[test]
fn a_crash_clone_shares_clean_files_and_holds_no_lock() {
    let fs = new_fs();
    create_durable(&fs, A, &vec![1; 100_000]);
    let _guard = fs.try_lock(Path::new("/d/LOCK")).unwrap().unwrap();
    let left = crash(&fs, CrashOutcome::Subset, 1);
    assert!(left.try_lock(Path::new("/d/LOCK")).unwrap().is_some());
    assert!(fs.try_lock(Path::new("/d/LOCK")).unwrap().is_none());
    assert_eq!(inode(&fs), inode(&left));
    left.corrupt(Path::new(A), 5, 0xff).unwrap();
    assert_ne!(inode(&fs), inode(&left));
    assert_eq!(content(&fs, A), Some(vec![1; 100_000]));
}

#[test]
fn a_lost_sync_keeps_bytes_readable_and_saves_only_later_ones() {
    let fs = new_fs();
    let file = create_durable(&fs, A, b"one");
    file.append(b"two").unwrap();
    fs.lose_unsynced(Path::new(A), SyncLoss::Kept).unwrap();
    assert_eq!(content(&fs, A), Some(b"onetwo".to_vec()));
    file.sync().unwrap();
    for outcome in CrashOutcome::ALL {
        assert_eq!(all_contents(&fs, outcome), [Some(b"one".to_vec())].into(), "{outcome:?}");
    }
    file.append(b"three").unwrap();
    file.sync().unwrap();
    let left = crash(&fs, CrashOutcome::Everything, 0);
    assert_eq!(content(&left, A), Some(b"one\0\0\0three".to_vec()));
}

#[test]
fn a_reverted_sync_takes_bytes_back() {
    let fs = new_fs();
    let file = create_durable(&fs, A, b"one");
    file.append(b"two").unwrap();
    fs.lose_unsynced(Path::new(A), SyncLoss::Reverted).unwrap();
    assert_eq!(content(&fs, A), Some(b"one".to_vec()));
}

#[test]
fn lost_names_stay_visible_until_the_crash() {
    let fs = new_fs();
    create(&fs, A, b"x");
    fs.lose_unsynced_names(Path::new("/d")).unwrap();
    fs.sync_dir(Path::new("/d")).unwrap();
    assert!(content(&fs, A).is_some());
    assert_eq!(content(&crash(&fs, CrashOutcome::Everything, 0), A), None);
}

fn kind_of_refusal(result: Result<()>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn a_full_medium_takes_what_fits() {
    let fs = new_fs();
    let file = create_durable(&fs, A, b"0123");
    fs.set_capacity(Some(10));
    fs.link(Path::new(A), Path::new("/d/l")).unwrap();
    assert_eq!(fs.free_bytes(Path::new("/d")).unwrap(), 6, "a second name takes nothing");
    fs.delete(Path::new("/d/l")).unwrap();
    file.preallocate(6).unwrap();
    file.append(b"45").unwrap();
    assert_eq!(fs.free_bytes(Path::new("/d")).unwrap(), 4, "reserved space was used");
    assert_eq!(kind_of_refusal(file.preallocate(11)), ErrorKind::NoSpace);
    let put = fs.put_if_absent(Path::new("/d/m"), b"12345");
    assert_eq!(kind_of_refusal(put.map(drop)), ErrorKind::NoSpace);
    assert_eq!(kind_of_refusal(file.append(b"6789ab")), ErrorKind::NoSpace);
    assert_eq!(content(&fs, A), Some(b"0123456789".to_vec()));
    assert_eq!(fs.free_bytes(Path::new("/d")).unwrap(), 0);
    file.preallocate(10).unwrap();
    let created = fs.open_append(Path::new("/d/b"), AppendMode::IfAbsent);
    assert_eq!(kind_of_refusal(created.map(drop)), ErrorKind::NoSpace);
    assert_eq!(fs.paths(), [Path::new(A)]);
    fs.delete(Path::new(A)).unwrap();
    assert_eq!(fs.free_bytes(Path::new("/d")).unwrap(), 10);
    create(&fs, "/d/b", b"0123456789");
    fs.set_capacity(None);
    file.append(b"!").unwrap();
}

#[test]
fn punching_gives_space_back() {
    let fs = new_fs();
    fs.set_capacity(Some(100_000));
    let file = create(&fs, A, &vec![1; 20_000]);
    file.punch(1, 12_287).unwrap();
    assert_eq!(fs.free_bytes(Path::new("/d")).unwrap(), 80_000 + 2 * 4096);
}

#[test]
fn the_back_door_is_durable_at_once() {
    let fs = new_fs();
    fs.write_raw(Path::new(A), b"12345").unwrap();
    fs.corrupt(Path::new(A), 1, 1).unwrap();
    fs.corrupt(Path::new(A), 5, 1).unwrap();
    fs.truncate_raw(Path::new(A), 3).unwrap();
    assert_eq!(content(&crash(&fs, CrashOutcome::Nothing, 0), A), Some(b"133".to_vec()));
    fs.truncate_raw(Path::new(A), 5).unwrap();
    assert_eq!(content(&crash(&fs, CrashOutcome::Nothing, 0), A), Some(b"133\0\0".to_vec()));
    fs.write_raw(Path::new(A), b"new").unwrap();
    assert_eq!(content(&crash(&fs, CrashOutcome::Nothing, 0), A), Some(b"new".to_vec()));
    fs.remove_raw(Path::new(A)).unwrap();
    assert_eq!(crash(&fs, CrashOutcome::Nothing, 0).paths(), Vec::<PathBuf>::new());
    assert!(
        fs.corrupt(Path::new(A), 0, 1).is_err() && fs.write_raw(Path::new("/x/a"), b"").is_err()
    );
}

#[test]
fn an_idle_log_segment_costs_nothing() {
    let fs = new_fs();
    let file = create(&fs, A, b"");
    file.preallocate(1 << 40).unwrap();
    file.append(b"x").unwrap();
    let left = crash(&fs, CrashOutcome::Everything, 0);
    let file = left.open_read(Path::new(A)).unwrap();
    let mut buf = [1; 2];
    assert_eq!((file.len().unwrap(), file.read_at(0, &mut buf).unwrap()), (1 << 40, 2));
    assert_eq!(buf, *b"x\0");
}

/// A step of the random test: on file 0, 1 or 2.
#[derive(Clone, Debug)]
enum Step {
    Append(usize, usize),
    Sync(usize),
    SyncDir,
    Delete(usize),
    Put(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3usize, 1..3000usize).prop_map(|(file, len)| Step::Append(file, len)),
        2 => (0..3usize).prop_map(Step::Sync),
        2 => Just(Step::SyncDir),
        1 => (0..3usize).prop_map(Step::Delete),
        1 => (0..3usize).prop_map(Step::Put),
    ];
    prop::collection::vec(step, 1..30)
}

/// The test's knowledge of a name: its appended bytes, how many of them are synced, and whether the
/// name certainly exists (or not) after a crash.
#[derive(Clone, Default)]
struct Known {
    file: Option<Arc<dyn File>>,
    written: Vec<u8>,
    synced: usize,
    is_name_settled: bool,
}

/// The path of the random test's file with this number.
fn numbered(file: usize) -> PathBuf {
    PathBuf::from(format!("/d/{file}"))
}

proptest! {
    /// For every outcome and after any history: where the name is settled, the file is there with
    /// what was synced in front, or it is not there.
    #[test]
    fn whatever_happens_what_was_synced_survives(steps in steps(), seed: u64) {
        let fs = new_fs();
        let mut known: [Known; 3] = Default::default();
        known.iter_mut().for_each(|known| known.is_name_settled = true);
        for (number, step) in steps.into_iter().enumerate() {
            let byte = number as u8 + 1;
            match step {
                Step::Append(i, len) => {
                    let k = &mut known[i];
                    if k.file.is_none() {
                        let file = fs.open_append(&numbered(i), AppendMode::IfAbsent).unwrap();
                        *k = Known { file: Some(file), ..Known::default() };
                    }
                    k.written.resize(k.written.len() + len, byte);
                    k.file.as_ref().unwrap().append(&vec![byte; len]).unwrap();
                }
                Step::Sync(i) => {
                    if let Some(file) = &known[i].file {
                        file.sync().unwrap();
                        known[i].synced = known[i].written.len();
                    }
                }
                Step::SyncDir => {
                    fs.sync_dir(Path::new("/d")).unwrap();
                    known.iter_mut().for_each(|known| known.is_name_settled = true);
                }
                Step::Delete(i) => {
                    if known[i].file.is_some() {
                        fs.delete(&numbered(i)).unwrap();
                        known[i] = Known::default();
                    }
                }
                Step::Put(i) => {
                    let written = vec![byte; 600];
                    if fs.put_if_absent(&numbered(i), &written).unwrap() {
                        let file = fs.open_append(&numbered(i), AppendMode::Existing);
                        let file = Some(file.unwrap());
                        known[i] = Known { file, written, synced: 600, is_name_settled: true };
                    }
                }
            }
            for outcome in CrashOutcome::ALL {
                let left = crash(&fs, outcome, seed ^ number as u64);
                for (i, known) in known.iter().enumerate() {
                    let content = left.read_raw(&numbered(i)).ok();
                    if known.is_name_settled {
                        prop_assert_eq!(content.is_some(), known.file.is_some());
                        let content = content.unwrap_or_default();
                        let sure = &known.written[..known.synced];
                        prop_assert!(content.starts_with(sure), "{:?}", outcome);
                        prop_assert!(content.len() <= known.written.len());
                    }
                }
                let again = crash(&left, CrashOutcome::Subset, seed);
                prop_assert_eq!(again.paths(), left.paths(), "what a crash left is durable");
                for path in left.paths() {
                    prop_assert_eq!(again.read_raw(&path).unwrap(), left.read_raw(&path).unwrap());
                }
            }
        }
        for (i, known) in known.iter().enumerate() {
            if known.file.is_some() {
                prop_assert_eq!(fs.read_raw(&numbered(i)).ok(), Some(known.written.clone()));
            }
        }
    }
}
