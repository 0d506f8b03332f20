//! The picker on levels as a person draws them, the survival rules against an oracle, and both
//! together in a simulated tree with jobs that overlap in time.

mod folds;
mod simulated;

use std::fmt::Write;

use super::drawing::{draw, empty, seq};
use super::split::Measure;
use super::*;
use crate::types::{
    ClearSeqs, DeletedRange, DeletedRanges, EntryKind, InternalKey, KeyRef, SeqNo, Trailer,
};
use crate::version::{Change, DbVersion, PartitionVersion, SstMeta, VersionEdit, apply};

fn files(tables: &[Arc<Table>]) -> String {
    tables.iter().map(|table| table.meta.file.to_string()).collect::<Vec<_>>().join(",")
}

fn print(job: &Compaction) -> String {
    let mut text = String::new();
    for (level, tables) in &job.inputs {
        write!(text, "L{level}[{}] ", files(tables)).unwrap();
    }
    write!(text, "-> L{} {:?} {:?}", job.level_to, job.method, job.trigger).unwrap();
    if job.bottom {
        text += " bottom";
    }
    if !job.grandparents.is_empty() {
        write!(text, " above [{}]", files(&job.grandparents)).unwrap();
    }
    text
}

/// Checks the picks from the drawing, job after job with none of them done.
fn check(drawing: &str, expected: &[&str]) {
    let version = draw(drawing);
    let mut busy = Busy::default();
    let mut pointers = CompactPointers::default();
    let mut jobs = Vec::new();
    while let Some(job) = picker(&version, &busy, &pointers).pick() {
        busy.claim(&job);
        pointers.advance(&job);
        jobs.push(print(&job));
    }
    assert_eq!(jobs, expected, "{drawing}");
}

static NONE: std::collections::BTreeSet<FileNo> = std::collections::BTreeSet::new();

fn picker<'a>(
    version: &'a PartitionVersion,
    busy: &'a Busy,
    pointers: &'a CompactPointers,
) -> Picker<'a> {
    Picker {
        version,
        busy,
        pointers,
        oldest_snapshot: SeqNo::MAX,
        joined: &|_, _| false,
        rewrite_before: None,
        held: &[],
        outdated: &NONE,
        unix_seconds: 0,
    }
}

#[test]
fn a_young_tree_compacts_level_0_into_the_last_level() {
    check("L0: 1:a-c", &[]);
    check("L0: 2:a-c 1:b-d", &["L0[2,1] -> L6 Merge Level0 bottom"]);
    check(
        "L0: 5:a-c 4:b-d
         L6: 1:a-b 2:c-k 3:l-z",
        &["L0[5,4] L6[1,2] -> L6 Merge Level0 bottom"],
    );
}

#[test]
fn level_0_tables_that_overlap_through_others_go_together() {
    check(
        "L0: 9:a-c 8:c-e 7:e-g 6:x-z",
        &["L0[6] -> L6 Move Level0 bottom", "L0[9,8,7] -> L6 Merge Level0 bottom"],
    );
    // Two groups, one table that both go into.
    check("L0: 9:a-b 8:c-d\nL6: 1:a-d", &["L0[9,8] L6[1] -> L6 Merge Level0 bottom"]);
    // Disjoint tables, as sequential loading makes them, move.
    check("L0: 9:m-n 8:k-l\nL6: 1:a-d", &["L0[8] -> L6 Move Level0 bottom"]);
}

#[test]
fn the_base_level_rises_as_the_last_one_grows() {
    let tables = |bytes: u64| draw(&format!("L6: 1:a-z*{bytes}"));
    for (bytes, base, target) in [(0, 6, 0), (1000, 6, 0), (1001, 5, 100), (10_009, 5, 1000)] {
        let shape = Shape::of(&tables(bytes));
        assert_eq!((shape.base, shape.targets[5]), (base, target), "{bytes}");
    }
    assert_eq!(Shape::of(&tables(10_010)).base, 4);
    assert_eq!(Shape::of(&tables(u64::MAX / 2)).base, 1, "there is no level above");
    // Level 0 never passes a table that lies higher than it should.
    let high = "L0: 5:a-z 4:a-z\nL3: 3:b-c*5\nL6: 1:a-z";
    check(high, &["L0[5,4] L3[3] -> L3 Merge Level0"]);
}

#[test]
fn the_fullest_level_goes_first_and_running_jobs_are_kept_clear_of() {
    let drawing = "
        L4: 11:a-b 12:c-d 13:e-f
        L5: 21:a-d*900 22:e-g*900 23:x-z*900
        L6: 31:a-m*9000 32:n-z*9000";
    check(
        drawing,
        &["L4[11,12] L5[21] -> L5 Merge Size above [31]", "L5[22] L6[31] -> L6 Merge Size bottom"],
    );
    // Table 2 would need table 4 as well: it waits.
    let gap = "L5: 1:a-z*600 2:zz-zzz*600\nL6: 3:a-b*3000 4:z-zzz*3000";
    check(gap, &["L5[1] L6[3,4] -> L6 Merge Size bottom"]);
}

#[test]
fn each_part_of_a_level_has_its_turn() {
    let version = draw(
        "L5: 1:a-b*150 2:c-d*150 3:e-f*150
         L6: 11:a-b*500 12:c-d*500 13:e-f*500",
    );
    let busy = Busy::default();
    let mut pointers = CompactPointers::default();
    for expected in ["L5[1] L6[11]", "L5[2] L6[12]", "L5[3] L6[13]", "L5[1] L6[11]"] {
        let job = picker(&version, &busy, &pointers).pick().unwrap();
        assert_eq!(print(&job), format!("{expected} -> L6 Merge Size bottom"));
        pointers.advance(&job);
    }
}

#[test]
fn tombstone_heavy_tables_go_first_and_vanish_at_the_bottom() {
    check("L6: 1:a-c 2:d-f!24 3:g-i!25", &["L6[3] -> L6 Merge Elision bottom"]);
    check(
        "L5: 4:a-b*40 5:c-d*40!60\nL6: 1:a-z*500",
        &["L5[4,5] L6[1] -> L6 Merge Tombstones bottom"],
    );
    // Nothing below: rewritten where it is, not moved.
    check("L4: 5:c-d*40!60\nL6: 1:x-z", &["L4[5] -> L4 Merge Elision bottom"]);
    // One table of level 0 is due if it has many. A few do not cost a merge.
    check("L0: 5:c-d!16384\nL6: 1:a-z", &["L0[5] L6[1] -> L6 Merge Tombstones bottom"]);
    check("L0: 5:c-d!16384\nL6: 1:x-z", &["L0[5] -> L6 Merge Tombstones bottom"]);
    check("L0: 5:c-d!16383\nL6: 1:a-z", &[]);
}

#[test]
fn an_elision_waits_for_snapshots_and_never_runs_twice() {
    let version = draw("L6: 1:a-c!90");
    let busy = Busy::default();
    let mut pointers = CompactPointers::default();
    let pick = |oldest, pointers: &CompactPointers| {
        Picker { oldest_snapshot: seq(oldest), ..picker(&version, &busy, pointers) }.pick()
    };
    assert!(pick(9, &pointers).is_none(), "a snapshot is older than the tombstones");
    let job = pick(10, &pointers).expect("no one needs them");
    pointers.finished(&job, [FileNo(1)]);
    assert!(pick(10, &pointers).is_none(), "what is left cannot go");
}

#[test]
fn neighbours_that_a_filter_joins_share_a_job() {
    let version = draw("L5: 4:a-b*3000 5:c-d 6:e-f\nL6: 1:a-b*500 2:c-d*600");
    let busy = Busy::default();
    let pointers = CompactPointers::default();
    let joined = |left: &[u8], right: &[u8]| (left, right) == (b"b", b"c");
    let job = Picker { joined: &joined, ..picker(&version, &busy, &pointers) }.pick().unwrap();
    assert_eq!(print(&job), "L5[4,5] L6[1,2] -> L6 Merge Size bottom");
}

#[test]
fn no_one_writes_where_a_running_job_may_put_a_table() {
    let before = draw("L0: 9:a-b 8:a-b\nL6: 1:a-b 2:m-n");
    let mut busy = Busy::default();
    let pointers = CompactPointers::default();
    let joined = |left: &[u8], right: &[u8]| (left, right) == (b"b", b"m");
    let job = Picker { joined: &joined, ..picker(&before, &busy, &pointers) }.pick().unwrap();
    assert_eq!(print(&job), "L0[9,8] L6[1,2] -> L6 Merge Level0 bottom");
    busy.claim(&job);
    // Between the two tables of level 6 there is none, but a new one may span the gap.
    let after = draw("L0: 11:f-g 10:f-g 9:a-b 8:a-b\nL6: 1:a-b 2:m-n");
    assert!(picker(&after, &busy, &pointers).pick().is_none());
    let waits =
        picker(&after, &busy, &pointers).pick_range(UserRange::ALL, SeqNo::MAX, Finish::Clean);
    assert!(matches!(waits, RangePick::Blocked));
    busy.release(&job);
    assert!(picker(&after, &busy, &pointers).pick().is_some() && busy.claims() == 0);
}

#[test]
fn a_range_goes_to_the_bottom_step_by_step() {
    let version = draw("L0: 9:a-c 8:x-z\nL5: 5:b-d 6:e-f\nL6: 1:a-b 2:c-d!1");
    let mut busy = Busy::default();
    let pointers = CompactPointers::default();
    let mut jobs = Vec::new();
    let range = UserRange::new(b"a", b"d");
    loop {
        match picker(&version, &busy, &pointers).pick_range(range, SeqNo::MAX, Finish::Clean) {
            RangePick::Due(job) => {
                busy.claim(&job);
                jobs.push(print(&job));
            }
            RangePick::Blocked => break,
            RangePick::Done => panic!("jobs are running"),
        }
    }
    assert_eq!(jobs, ["L0[9] L5[5] -> L5 Merge Range above [1,2]"]);
    let version = draw("L0: 8:x-z\nL6: 1:a-b 2:c-d!1");
    let none = Busy::default();
    let RangePick::Due(job) =
        picker(&version, &none, &pointers).pick_range(range, SeqNo::MAX, Finish::Clean)
    else {
        panic!("a tombstone is left")
    };
    assert_eq!(print(&job), "L6[2] -> L6 Merge Elision bottom");
    let outside = UserRange::new(b"a", b"b");
    assert!(matches!(
        picker(&version, &none, &pointers).pick_range(outside, SeqNo::MAX, Finish::Clean),
        RangePick::Done
    ));
}

#[test]
fn a_table_over_many_grandparents_is_merged_not_moved() {
    let wide = "L4: 9:a-z*500\nL6: 1:a-b*600 2:c-d*401 3:e-z*9009";
    check(wide, &["L4[9] -> L5 Merge Size above [1,2,3]"]);
    let narrow = "L4: 9:a-d*500\nL6: 1:a-b*500 2:c-d*500 3:e-z*9010";
    check(narrow, &["L4[9] -> L5 Move Size above [1,2]"]);
}

#[test]
fn debt_is_zero_when_every_level_has_its_size() {
    assert_eq!(compaction_debt(&draw("L0: 9:a-c\nL6: 1:a-z*900")), 0);
    assert_eq!(compaction_debt(&draw("L0: 9:a-c 8:a-c\nL6: 1:a-z*900")), 200 + 400);
    assert_eq!(compaction_debt(&draw("L5: 5:a-c*300\nL6: 1:a-z*3000")), 0);
    assert_eq!(compaction_debt(&draw("L5: 5:a-c*600\nL6: 1:a-z*3000")), 300 + 1500);
}

#[test]
fn an_output_ends_at_its_size_at_a_boundary_or_over_too_many_grandparents() {
    let version = draw("L5: 9:a-z\nL6: 1:b-c*400 2:d-e*400 3:f-g*400 4:h-i*10");
    let busy = Busy::default();
    let pointers = CompactPointers::default();
    let RangePick::Due(job) =
        picker(&version, &busy, &pointers).pick_range(UserRange::ALL, SeqNo::MAX, Finish::Clean)
    else {
        panic!("level 5 is not the last")
    };
    let job = Compaction { grandparents: version.levels[6].tables().to_vec(), ..job };
    let mut split = Split::new(&job, 100);
    assert!(!split.ends_before(b"a", 0) && !split.ends_before(b"b", 99));
    assert!(split.ends_before(b"b", 100), "large enough");
    split.begin();
    assert!(!split.ends_before(b"c", 50) && split.ends_before(b"cc", 50), "at a boundary");
    split.begin();
    assert!(!split.ends_before(b"eh", 1), "400 bytes of grandparents");
    assert!(!split.ends_before(b"gh", 1), "800");
    let mut split = Split::new(&job, 100);
    assert!(!split.ends_before(b"a", 1) && split.ends_before(b"x", 1), "1210");
}

/// The rule of a job over some tables of a level and all of the one below its output.
fn split_of(level_from: usize, tables: std::ops::Range<usize>, level_to: usize) -> Split {
    let version = draw("L0: 9:a-z*10\nL5: 1:a-b*50 2:c-d*50 3:e-f*100\nL6: 4:a-z*9000");
    let inputs = vec![(level_from, version.levels[level_from].tables()[tables].to_vec())];
    let job = Compaction {
        level_from,
        level_to,
        inputs,
        method: Method::Merge,
        bottom: false,
        grandparents: version.levels[level_to + 1].tables().to_vec(),
        trigger: Trigger::Small,
        score: 0.0,
    };
    Split::new(&job, 100)
}

#[test]
fn what_fits_into_one_table_is_not_cut_by_an_estimate_on_its_level() {
    let mut split = split_of(5, 0..2, 5);
    assert_eq!(split.measure(), Measure::Written);
    // The next level plays no part.
    assert!(!split.ends_before(b"zz", 99) && split.ends_before(b"zzz", 100));
    assert_eq!(split_of(5, 2..3, 5).measure(), Measure::Written);
    assert_eq!(split_of(5, 0..3, 5).measure(), Measure::Estimated, "more than a table");
    assert_eq!(split_of(0, 0..1, 5).measure(), Measure::Estimated, "to another level");
}

#[test]
fn a_clear_shadows_every_key_for_readers_that_see_it() {
    fn check(snapshots: &[u64], clear_seqs: &[u64], entries: &[u64], kept: &[u64]) {
        let snapshots: Vec<_> = snapshots.iter().map(|n| seq(*n)).collect();
        let clear_seqs = ClearSeqs::of(clear_seqs.iter().map(|n| seq(*n)).collect());
        let mut rules = DropRules::new(&snapshots);
        rules.clear_seqs = clear_seqs;
        let mut survivors = Vec::new();
        for n in entries {
            let trailer = Trailer::new(seq(*n), EntryKind::Value);
            let key = KeyRef::new(b"key", trailer);
            if rules.keep(key, n != &entries[0], || true) == DropDecision::Keep {
                survivors.push(*n);
            }
        }
        assert_eq!(survivors, kept, "snapshots {snapshots:?}, entries {entries:?}");
    }
    check(&[90], &[50], &[60, 40, 30], &[60]);
    check(&[90], &[50], &[40, 30], &[]);
    check(&[45, 90], &[50], &[60, 40, 30], &[60, 40]);
    check(&[35, 90], &[50], &[60, 40, 30], &[60, 30]);
    // A snapshot on the clear sequence sees nothing below.
    check(&[50, 90], &[50], &[60, 40], &[60]);
    check(&[20, 55, 90], &[10, 50], &[60, 52, 15, 5], &[60, 52, 15]);
    // A clear sequence that is not visible yet hides nothing.
    check(&[45], &[50], &[46, 40], &[46, 40]);
    check(&[45], &[50], &[44, 40], &[44]);
}

/// The tables that are deleted unread.
fn dropped_whole(version: &PartitionVersion, held: &[u64]) -> Vec<u64> {
    let held: Vec<_> = held.iter().map(|n| seq(*n)).collect();
    let pointers = CompactPointers::default();
    let busy = Busy::default();
    let job = Picker { held: &held, ..picker(version, &busy, &pointers) }.pick();
    let job = job.filter(|job| job.method == Method::Drop);
    job.iter().flat_map(|job| job.tables().map(|(_, table)| table.meta.file.0)).collect()
}

#[test]
fn tables_below_a_clear_are_dropped_whole_unless_a_snapshot_sees_them() {
    fn check(held: &[u64], dropped: &[u64]) {
        // The number of a table is a tenth of the sequence of all of its entries.
        let mut version = draw("L0: 9:a-c 4:b-d\nL5: 3:a-c\nL6: 2:a-m 1:n-z");
        version.clear_seqs = ClearSeqs::of(vec![seq(25), seq(50)]);
        assert_eq!(dropped_whole(&version, held), dropped, "held {held:?}");
    }
    check(&[], &[4, 3, 2, 1]);
    check(&[5, 50, 95], &[4, 3, 2, 1]);
    check(&[30], &[4, 2, 1]);
    check(&[24, 49], &[]);
    check(&[12], &[4, 3, 2]);
}

#[test]
fn a_deleted_range_shadows_its_keys_for_readers_that_see_it() {
    fn check(snapshots: &[u64], entries: &[(&str, u64)], kept: &[(&str, u64)]) {
        let snapshots: Vec<_> = snapshots.iter().map(|n| seq(*n)).collect();
        let span = DeletedRange { start: (*b"b").into(), end: Some((*b"d").into()), seq: seq(50) };
        let spans = DeletedRanges::of(&[span]);
        let mut rules = DropRules::new(&snapshots);
        rules.spans = spans;
        let mut survivors = Vec::new();
        let mut before = "";
        for (user, n) in entries {
            let key = KeyRef::new(user.as_bytes(), Trailer::new(seq(*n), EntryKind::Value));
            if rules.keep(key, before == *user, || true) == DropDecision::Keep {
                survivors.push((*user, *n));
            }
            before = user;
        }
        assert_eq!(survivors, kept, "snapshots {snapshots:?}, entries {entries:?}");
    }
    let all = [("a", 40), ("b", 60), ("b", 40), ("c", 49), ("d", 40)];
    check(&[90], &all, &[all[0], all[1], all[4]]);
    check(&[50, 90], &all, &[all[0], all[1], all[4]]);
    check(&[45, 90], &all, &[all[0], all[1], all[2], all[4]]);
    check(&[49, 90], &all, &all);
    // A span that is not visible yet hides nothing.
    check(&[45], &[("c", 46), ("c", 40)], &[("c", 46), ("c", 40)]);
}

/// An operand is merged into nothing if a clear or a deleted range lies between it and a value.
#[test]
fn a_deletion_between_an_operand_and_a_value_ends_its_chain() {
    let span = DeletedRange { start: (*b"a").into(), end: None, seq: seq(7) };
    let clear = ClearSeqs::of(vec![seq(7)]);
    for (spans, clear_seqs) in
        [(DeletedRanges::of(&[span]), ClearSeqs::default()), (DeletedRanges::default(), clear)]
    {
        for (value, expected) in [(8, DropDecision::Fold), (6, DropDecision::Drop)] {
            let snapshots = [seq(20)];
            let spans = spans.clone();
            let clear_seqs = clear_seqs.clone();
            let mut rules = DropRules::new(&snapshots);
            rules.spans = spans;
            rules.clear_seqs = clear_seqs;
            let operand = KeyRef::new(b"k", Trailer::new(seq(10), EntryKind::Operand));
            assert_eq!(rules.keep(operand, false, || true), DropDecision::Keep);
            let value = KeyRef::new(b"k", Trailer::new(seq(value), EntryKind::Value));
            assert_eq!(rules.keep(value, true, || true), expected, "{value:?}");
        }
    }
}

/// A snapshot between the two sees the older deletion alone, which is enough.
#[test]
fn the_older_of_a_clear_and_a_range_hides_an_entry_first() {
    for (clear, range) in [(10, 30), (30, 10)] {
        let span = DeletedRange { start: (*b"a").into(), end: None, seq: seq(range) };
        let snapshots = [seq(20), seq(40)];
        let spans = DeletedRanges::of(&[span]);
        let clear_seqs = ClearSeqs::of(vec![seq(clear)]);
        let mut rules = DropRules::new(&snapshots);
        rules.spans = spans;
        rules.clear_seqs = clear_seqs;
        let key = KeyRef::new(b"k", Trailer::new(seq(5), EntryKind::Value));
        assert_eq!(rules.keep(key, false, || true), DropDecision::Drop, "{clear} {range}");
    }
}

#[test]
fn tables_below_deleted_ranges_are_dropped_whole() {
    fn check(held: &[u64], spans: &[(&str, &str, u64)], dropped: &[u64]) {
        // The number of a table is a tenth of the sequence of all of its entries.
        let mut version = draw("L0: 9:a-c 4:b-d\nL5: 3:a-c\nL6: 2:a-m 1:n-z");
        let spans = spans.iter().map(|(start, end, n)| DeletedRange {
            start: start.as_bytes().into(),
            end: Some(end.as_bytes().into()),
            seq: seq(*n),
        });
        version.spans = DeletedRanges::of(&spans.collect::<Vec<_>>());
        assert_eq!(dropped_whole(&version, held), dropped, "held {held:?}");
    }
    check(&[], &[("a", "e", 50)], &[4, 3]);
    // The end is no key of the range.
    check(&[], &[("a", "m", 50)], &[4, 3]);
    check(&[], &[("a", "m\0", 50)], &[4, 3, 2]);
    // Two that meet, one that is newer than the other.
    check(&[], &[("a", "b", 35), ("b", "d", 50)], &[3]);
    check(&[40], &[("a", "b", 35), ("b", "d", 50)], &[]);
    check(&[35], &[("a", "b", 35), ("b", "d", 32)], &[3]);
    // A key between them is in neither.
    check(&[], &[("a", "b", 50), ("b\0", "e", 50)], &[]);
}

#[test]
fn equal_internal_keys_are_distinguished_from_versions() {
    let snapshots = [seq(9)];
    let mut rules = DropRules::new(&snapshots);
    let mut keep = |n, is_version| {
        let key = KeyRef::new(b"key", Trailer::new(seq(n), EntryKind::Value));
        rules.keep(key, is_version, || true)
    };
    assert_eq!(keep(5, false), DropDecision::Keep);
    assert_eq!(keep(5, true), DropDecision::Twin);
    assert_eq!(keep(4, true), DropDecision::Drop);
    assert_eq!(keep(4, false), DropDecision::Keep);
    assert_eq!(keep(5, true), DropDecision::Disordered);
}
