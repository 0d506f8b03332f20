//! Runs of small tables as a person draws them, and simulated merges whose outputs are cut in the worst way.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::drawing::draw;
use super::super::{Busy, CompactPointers, Finish, Method, RangePick};
use super::*;
use crate::options::PartitionOptions;
use crate::types::SeqNo;
use crate::version::PartitionVersion;

/// Small is what has less than 100 bytes, for a request less than 400.
const TABLE_BYTES: u64 = 1600;

fn version(drawing: &str, table_bytes: u64) -> PartitionVersion {
    let mut version = draw(drawing);
    let options = PartitionOptions { table_bytes, ..(*version.options).clone() };
    version.options = options.into();
    version
}

fn with_picker<T>(drawing: &str, use_it: impl FnOnce(&Picker<'_>) -> T) -> T {
    with_joined(&version(drawing, TABLE_BYTES), &|_, _| false, use_it)
}

fn with_joined<T>(
    version: &PartitionVersion,
    joined: &dyn Fn(&[u8], &[u8]) -> bool,
    use_it: impl FnOnce(&Picker<'_>) -> T,
) -> T {
    use_it(&Picker {
        version,
        busy: &Busy::default(),
        pointers: &CompactPointers::default(),
        oldest_snapshot: SeqNo::MAX,
        joined,
        rewrite_before: None,
        held: &[],
        outdated: &BTreeSet::new(),
        unix_seconds: 0,
    })
}

fn small_of(picker: &Picker<'_>) -> Option<Compaction> {
    picker.small()
}

/// A table of a level: its number and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Drawn {
    file: u64,
    bytes: u64,
}

/// Tables with these sizes, numbered from 1 on.
fn drawn(sizes: &[u64]) -> Vec<Drawn> {
    (1..).zip(sizes).map(|(file, bytes)| Drawn { file, bytes: *bytes }).collect()
}

/// Tables of one level in the order of their keys.
fn draw_level(level: usize, tables: &[Drawn]) -> String {
    let mut text = format!("L{level}:");
    for (at, Drawn { file, bytes }) in tables.iter().enumerate() {
        text += &format!(" {file}:k{at:05}a-k{at:05}z*{bytes}");
    }
    text
}

fn level(level: usize, sizes: &[u64]) -> String {
    draw_level(level, &drawn(sizes))
}

fn files(job: &Compaction) -> Vec<u64> {
    assert_eq!(job.method, Method::Merge);
    assert_eq!(job.level_from, job.level_to, "where they are");
    assert_eq!(job.inputs.len(), 1);
    job.tables().map(|(_, table)| table.meta.file.0).collect()
}

/// Checks the tables of the job over tables of these sizes.
#[track_caller]
fn check(sizes: &[u64], expected: &[u64]) {
    for at in [LAST, 5] {
        let job = with_picker(&level(at, sizes), small_of);
        let files = job.as_ref().map(files).unwrap_or_default();
        assert_eq!(files, expected, "{sizes:?} on level {at}");
    }
}

#[test]
fn eight_small_neighbours_are_merged_and_seven_are_not() {
    check(&[9; 7], &[]);
    check(&[9; 8], &[1, 2, 3, 4, 5, 6, 7, 8]);
    check(&[99; 8], &[1, 2, 3, 4, 5, 6, 7, 8]);
    check(&[100; 20], &[]);
    // A table that is not small ends the stretch.
    check(&[9, 9, 9, 9, 500, 9, 9, 9, 9], &[]);
    check(&[9, 500, 9, 9, 9, 9, 9, 9, 9, 9], &[3, 4, 5, 6, 7, 8, 9, 10]);
}

#[test]
fn a_table_that_is_most_of_a_run_waits_until_its_neighbours_have_grown() {
    check(&[60, 1, 1, 1, 1, 1, 1, 1], &[]);
    check(&[60, 1, 1, 1, 1, 1, 1, 1, 1], &[2, 3, 4, 5, 6, 7, 8, 9]);
    check(&[1, 1, 1, 1, 60, 1, 1, 1, 1], &[]);
    check(&[60, 20, 20, 10, 6, 2, 1, 1], &[1, 2, 3, 4, 5, 6, 7, 8]);
    check(&[60, 20, 20, 10, 6, 1, 1, 1], &[]);
}

#[test]
fn a_run_is_no_larger_than_a_table() {
    let run: Vec<u64> = (1..=16).collect();
    check(&[99; 40], &run);
    let job = with_picker(&level(LAST, &[1; 300]), small_of).unwrap();
    assert_eq!(job.tables().count(), RUN_TABLES_MAX);
}

/// The tables of the job over eight small ones of level 5 and a table of so many bytes below them.
fn pick_over(under: u64) -> Vec<u64> {
    let drawing = format!("{}\nL6: 90:k00000-k00009*{under}", level(5, &[9; 8]));
    with_picker(&drawing, |picker| picker.small().as_ref().map(files)).unwrap_or_default()
}

#[test]
fn what_lies_over_much_of_the_next_level_is_left_as_it_was_cut() {
    assert_eq!(pick_over(16_000), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(pick_over(16_001), [0; 0]);
}

#[test]
fn a_run_that_a_filter_joins_with_another_table_is_left() {
    for (sizes, expected) in
        [(&[9, 9, 9, 9, 9, 9, 9, 9, 500], vec![]), (&[9; 9], (1..=9).collect())]
    {
        let version = version(&level(LAST, sizes), TABLE_BYTES);
        let job = with_joined(&version, &|_, right| right == b"k00008a", small_of);
        assert_eq!(job.as_ref().map(files).unwrap_or_default(), expected);
    }
}

#[test]
fn a_running_job_keeps_its_tables() {
    let drawing = level(LAST, &[9; 12]);
    let mut busy = Busy::default();
    busy.claim(&with_picker(&drawing, small_of).unwrap());
    let job = with_picker(&drawing, |picker| Picker { busy: &busy, ..*picker }.small());
    assert!(job.is_none());
}

#[track_caller]
fn check_asked(sizes: &[u64], before: u64, expected: &[u64]) {
    let picked = with_picker(&level(LAST, sizes), |picker| {
        picker.pick_range(UserRange::ALL, SeqNo::MAX, Finish::Packed(FileNo(before)))
    });
    let files = match &picked {
        RangePick::Due(job) => files(job),
        RangePick::Done => Vec::new(),
        RangePick::Blocked => panic!("nothing runs"),
    };
    assert_eq!(files, expected);
}

#[test]
fn a_request_merges_two_that_are_less_than_a_quarter() {
    check_asked(&[399, 1], 100, &[1, 2]);
    check_asked(&[400, 1], 100, &[]);
    check_asked(&[1, 400, 1], 100, &[]);
    // Tables that were written since the request are left.
    check_asked(&[1, 1, 1], 3, &[1, 2]);
    check_asked(&[1, 1, 1], 2, &[]);
}

/// The tables of the job of a request, where a table has 64 MiB.
fn pick_of_large(sizes: &[u64]) -> Vec<u64> {
    let version = version(&level(LAST, sizes), 64 << 20);
    let job = with_joined(&version, &|_, _| false, |picker| {
        picker.small_asked(UserRange::ALL, FileNo(100))
    });
    job.as_ref().map(files).unwrap_or_default()
}

#[test]
fn a_request_leaves_a_table_that_is_nearly_all_of_a_large_run() {
    const MIB: u64 = 1 << 20;
    assert_eq!(pick_of_large(&[MIB - 1, 1]), [1, 2]);
    assert_eq!(pick_of_large(&[MIB, 1]), [0; 0]);
    assert_eq!(pick_of_large(&[15 * MIB, MIB]), [1, 2]);
    assert_eq!(pick_of_large(&[15 * MIB, MIB - 1]), [0; 0]);
    assert_eq!(pick_of_large(&[15 * MIB, 1, 1]), [2, 3]);
}

/// A level whose merges are simulated.
struct Level {
    table_bytes: u64,
    tables: Vec<Drawn>,
    next_file: u64,
    written: u64,
}

impl Level {
    fn new(sizes: &[u64]) -> Level {
        let tables = drawn(sizes);
        let next_file = tables.len() as u64 + 1;
        Level { table_bytes: TABLE_BYTES, next_file, tables, written: 0 }
    }

    /// Does what is picked, with outputs of these sizes; `false` if nothing is.
    fn merge(
        &mut self,
        pick: impl FnOnce(&Picker<'_>) -> Option<Compaction>,
        outputs: impl FnOnce(&[Drawn]) -> Vec<u64>,
    ) -> bool {
        let version = version(&draw_level(LAST, &self.tables), self.table_bytes);
        let job = with_joined(&version, &|_, _| false, pick);
        let Some(inputs) = job.as_ref().map(files) else { return false };
        let first = self.tables.iter().position(|table| table.file == inputs[0]).unwrap();
        let run = first..first + inputs.len();
        let outputs = outputs(&self.tables[run.clone()]);
        self.written += outputs.iter().sum::<u64>();
        let files = self.next_file..;
        self.next_file += outputs.len() as u64;
        let made = files.zip(outputs).map(|(file, bytes)| Drawn { file, bytes });
        self.tables.splice(run, made.collect::<Vec<_>>());
        true
    }

    fn small_count(&self) -> usize {
        self.tables.iter().filter(|table| table.bytes < self.table_bytes / SMALL_SHARE).count()
    }
}

/// Bytes of a table in addition to those of its entries.
const OWN_BYTES: u64 = 4;

/// One table of all entries.
fn whole(inputs: &[Drawn]) -> Vec<u64> {
    vec![inputs.iter().map(|table| table.bytes - OWN_BYTES).sum::<u64>() + OWN_BYTES]
}

/// 600 processes with one put each.
#[test]
fn appended_tables_are_rewritten_a_logarithmic_number_of_times() {
    for (count, entry_bytes, table_bytes) in
        [(600, 1, TABLE_BYTES), (600, 5, 1 << 16), (3000, 1, 64 << 20)]
    {
        let mut level = Level { table_bytes, ..Level::new(&[]) };
        let mut most = 0;
        for _ in 0..count {
            let table = Drawn { file: level.next_file, bytes: OWN_BYTES + entry_bytes };
            level.tables.push(table);
            level.next_file += 1;
            while level.merge(small_of, whole) {}
            most = most.max(level.small_count());
        }
        let doublings = u64::from((table_bytes / SMALL_SHARE).ilog2()) + 1;
        let bound = 2 * count * (OWN_BYTES * 8 / 7 + entry_bytes * doublings);
        assert!(level.written < bound, "{} of {bound}", level.written);
        assert!(most <= 7 + doublings as usize, "{most}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The worst that `split.rs` allows: full tables and one that is small, each as large as it likes.
    #[test]
    fn merges_in_the_background_end(
        sizes in proptest::collection::vec(
            prop_oneof![5 => 1..100u64, 2 => 1..10u64, 1 => 100..2000u64], 0..120),
        cuts in proptest::collection::vec((0..3usize, 1..100u64), 1..20),
    ) {
        let mut level = Level::new(&sizes);
        let mut cuts = cuts.iter().cycle();
        loop {
            let before = level.small_count();
            let (full, rest) = cuts.next().unwrap();
            let is_done = !level.merge(small_of, |_| {
                let mut outputs = vec![TABLE_BYTES; *full];
                outputs.push(*rest);
                outputs
            });
            if is_done {
                break;
            }
            prop_assert!(level.small_count() < before);
        }
    }

    /// The worst of all: each output has one entry.
    #[test]
    fn a_request_ends_and_rewrites_each_table_once(
        sizes in proptest::collection::vec(
            prop_oneof![5 => 1..100u64, 2 => 1..10u64, 1 => 100..2000u64], 0..120),
        entry in 1..30u64,
    ) {
        let mut level = Level::new(&sizes);
        let before = FileNo(level.next_file);
        let all: u64 = sizes.iter().sum();
        let mut merges = 0;
        while level.merge(
            |picker| picker.small_asked(UserRange::ALL, before),
            |inputs| {
                let bytes: u64 = inputs.iter().map(|table| table.bytes).sum();
                vec![entry; bytes.div_ceil(entry) as usize]
            },
        ) {
            merges += 1;
            prop_assert!(merges <= sizes.len() / 2);
        }
        prop_assert!(level.written <= all + merges as u64 * entry);
    }
}
