//! A whole tree in memory: flushes, jobs that start and finish in any order, snapshots that come
//! and go. After every step every snapshot reads what the history says.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::types::{KeyRef, PartitionId};

/// A key's entry: user key, sequence, whether it is a value.
type Entry = (u8, u64, bool);

struct Tree {
    /// Bytes of a table for each entry, and those that are counted while it is written.
    entry_bytes: u64,
    estimated_bytes: u64,
    version: DbVersion,
    content: BTreeMap<FileNo, Vec<Entry>>,
    history: BTreeMap<u8, Vec<(u64, bool)>>,
    memtable: Vec<Entry>,
    last: u64,
    snapshots: Vec<u64>,
    busy: Busy,
    pointers: CompactPointers,
    running: Vec<(Compaction, PartitionVersion, Vec<SeqNo>)>,
}

impl Tree {
    fn new((entry_bytes, estimated_bytes): (u64, u64)) -> Tree {
        Tree {
            entry_bytes,
            estimated_bytes,
            version: empty(),
            content: BTreeMap::new(),
            history: BTreeMap::new(),
            memtable: Vec::new(),
            last: 0,
            snapshots: Vec::new(),
            busy: Busy::default(),
            pointers: CompactPointers::default(),
            running: Vec::new(),
        }
    }

    fn partition(&self) -> &PartitionVersion {
        &self.version.partitions[&PartitionId(0)]
    }

    fn write(&mut self, key: u8, value: bool) {
        self.last += 1;
        self.memtable.push((key, self.last, value));
        self.history.entry(key).or_default().push((self.last, value));
    }

    /// The snapshots of a job that starts now.
    fn list(&self) -> Vec<SeqNo> {
        self.snapshots.iter().copied().chain([self.last]).map(seq).collect()
    }

    fn edit(&mut self, changes: Vec<Change>) {
        let number = self.version.edit_number + 1;
        self.version = apply(&self.version, &VersionEdit { number, changes }).unwrap();
    }

    fn table(&mut self, entries: &[Entry]) -> SstMeta {
        let file = self.version.next_file;
        let kind = |value| {
            if value { EntryKind::Value } else { EntryKind::Tombstone }
        };
        let key = |entry: &Entry| InternalKey {
            user: [entry.0].into(),
            trailer: Trailer::new(seq(entry.1), kind(entry.2)),
        };
        self.content.insert(file, entries.to_vec());
        self.version.next_file = FileNo(file.0 + 1);
        let seqs = || entries.iter().map(|entry| seq(entry.1));
        SstMeta {
            file,
            bytes: self.entry_bytes * entries.len() as u64,
            smallest: key(&entries[0]),
            largest: key(&entries[entries.len() - 1]),
            min_seq: seqs().min().unwrap(),
            max_seq: seqs().max().unwrap(),
            entries: entries.len() as u64,
            tombstones: entries.iter().filter(|entry| !entry.2).count() as u64,
            ..crate::compaction::drawing::table("0:a-b")
        }
    }

    fn flush(&mut self) {
        let mut entries = std::mem::take(&mut self.memtable);
        entries.sort_by_key(|(key, n, _)| (*key, std::cmp::Reverse(*n)));
        let mut below = KeyBelow::for_flush(self.partition());
        let kept = survive(&entries, &self.list(), |user| below.may_lie_below(user));
        if !kept.is_empty() {
            let meta = self.table(&kept);
            self.edit(vec![Change::TableAdded { partition: PartitionId(0), level: 0, meta }]);
        }
    }

    fn start(&mut self, pick: impl FnOnce(&Picker<'_>) -> Option<Compaction>) {
        let oldest_snapshot = self.list()[0];
        let picker = picker(self.partition(), &self.busy, &self.pointers);
        let Some(job) = pick(&Picker { oldest_snapshot, ..picker }) else { return };
        self.busy.claim(&job);
        self.pointers.advance(&job);
        self.running.push((job, self.partition().clone(), self.list()));
    }

    fn finish(&mut self, which: usize) {
        if self.running.is_empty() {
            return;
        }
        let (job, version, snapshots) = self.running.remove(which % self.running.len());
        let mut changes: Vec<_> = job
            .tables()
            .map(|(level, table)| Change::TableRemoved {
                partition: PartitionId(0),
                level: level as u8,
                file: table.meta.file,
            })
            .collect();
        let outputs = match job.method {
            Method::Move => job.tables().map(|(_, table)| table.meta.clone()).collect(),
            Method::Drop => Vec::new(),
            Method::Merge => self.merge(&job, &version, &snapshots),
        };
        self.busy.release(&job);
        self.pointers.finished(&job, outputs.iter().map(|meta| meta.file));
        changes.extend(outputs.into_iter().map(|meta| Change::TableAdded {
            partition: PartitionId(0),
            level: job.level_to as u8,
            meta,
        }));
        self.edit(changes);
    }

    fn merge(
        &mut self,
        job: &Compaction,
        version: &PartitionVersion,
        list: &[SeqNo],
    ) -> Vec<SstMeta> {
        let tables = job.tables().flat_map(|(_, table)| &self.content[&table.meta.file]);
        let mut entries: Vec<_> = tables.copied().collect();
        entries.sort_by_key(|(key, n, _)| (*key, std::cmp::Reverse(*n)));
        let mut below = KeyBelow::new(version, job.level_to);
        let kept = survive(&entries, list, |user| {
            let answer = below.may_lie_below(user);
            assert!(!(answer && job.bottom), "a bottom job has nothing below");
            answer
        });
        let mut split = Split::new(job, 100);
        let mut outputs: Vec<Vec<Entry>> = Vec::new();
        let mut last = None;
        for entry in kept {
            let entry_bytes = match split.measure() {
                Measure::Written => self.entry_bytes,
                Measure::Estimated => self.estimated_bytes,
            };
            let bytes = outputs.last().map_or(0, |output| entry_bytes * output.len() as u64);
            let new_key = last != Some(entry.0);
            if outputs.is_empty() || (new_key && split.ends_before(&[entry.0], bytes)) {
                outputs.push(Vec::new());
                split.begin();
            }
            last = Some(entry.0);
            outputs.last_mut().unwrap().push(entry);
        }
        outputs.iter().map(|entries| self.table(entries)).collect()
    }

    fn read(&self, key: u8, at: u64) -> bool {
        let partition = self.partition();
        let level0 = partition.levels[0].tables().iter();
        let deeper = partition.levels[1..].iter().filter_map(|level| level.find(&[key]));
        let tables = level0.chain(deeper).map(|table| &self.content[&table.meta.file][..]);
        std::iter::once(&self.memtable[..])
            .chain(tables)
            .find_map(|entries: &[Entry]| {
                let seen = entries.iter().filter(|entry| entry.0 == key && entry.1 <= at);
                seen.max_by_key(|entry| entry.1).map(|entry| entry.2)
            })
            .unwrap_or(false)
    }

    fn check(&self) {
        for (key, versions) in &self.history {
            for &at in self.snapshots.iter().chain([&self.last]) {
                let expected = versions.iter().rev().find(|(n, _)| *n <= at);
                let expected = expected.is_some_and(|(_, value)| *value);
                assert_eq!(self.read(*key, at), expected, "key {key} at {at}");
            }
        }
    }
}

fn pick(picker: &Picker<'_>) -> Option<Compaction> {
    picker.pick()
}

fn pick_range(picker: &Picker<'_>, (start, end): (u8, u8), finish: Finish) -> Option<Compaction> {
    match picker.pick_range(UserRange::new(&[start], &[end]), SeqNo::MAX, finish) {
        RangePick::Due(job) => Some(job),
        RangePick::Blocked | RangePick::Done => None,
    }
}

fn survive(
    entries: &[Entry],
    snapshots: &[SeqNo],
    mut below: impl FnMut(&[u8]) -> bool,
) -> Vec<Entry> {
    let mut rules = DropRules::new(snapshots);
    let mut last = None;
    let kept = entries.iter().filter(|(key, n, value)| {
        let kind = if *value { EntryKind::Value } else { EntryKind::Tombstone };
        let is_version = last.replace(*key) == Some(*key);
        match rules
            .keep(KeyRef::new(&[*key], Trailer::new(seq(*n), kind)), is_version, || below(&[*key]))
        {
            DropDecision::Keep => true,
            DropDecision::Drop => false,
            DropDecision::Fold => panic!("there are no operands"),
            DropDecision::Twin => panic!("sequences are unique"),
            DropDecision::Disordered => panic!("they are in order"),
        }
    });
    kept.copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_snapshot_reads_the_same_through_any_order_of_jobs(
        steps in proptest::collection::vec((0..20u8, any::<u8>(), any::<u8>()), 1..250),
        // In the others, tables are cut that are small when they are finished.
        bytes in prop_oneof![Just((20, 20)), Just((1, 1)), Just((1, 60))],
    ) {
        let mut tree = Tree::new(bytes);
        for (deed, a, b) in steps {
            match deed {
                0..4 => (0..a % 16).for_each(|i| tree.write(b.wrapping_add(i) % 40, i % 3 > 0)),
                4..6 => (0..5).for_each(|i| tree.write(a.wrapping_mul(i) % 40, false)),
                6..9 => tree.flush(),
                9 => tree.snapshots.push(tree.last),
                10 if !tree.snapshots.is_empty() => {
                    tree.snapshots.remove(usize::from(a) % tree.snapshots.len());
                }
                11 => {
                    let range = (a.min(b) % 40, a.max(b) % 40);
                    let before = tree.version.next_file;
                    tree.start(|picker| pick_range(picker, range, Finish::Packed(before)));
                }
                12..16 => tree.start(pick),
                _ => tree.finish(a.into()),
            }
            tree.check();
        }
        // Left alone the tree comes to rest, and every tombstone goes.
        tree.flush();
        tree.snapshots.clear();
        let before = tree.version.next_file;
        for _ in 0..1000 {
            if tree.running.is_empty() {
                tree.start(pick);
            }
            for finish in [Finish::LastLevel, Finish::Packed(before)] {
                if tree.running.is_empty() {
                    tree.start(|picker| pick_range(picker, (0, 255), finish));
                }
            }
            if tree.running.is_empty() {
                break;
            }
            tree.finish(0);
            tree.check();
        }
        prop_assert!(tree.running.is_empty(), "compaction never ends");
        let partition = tree.partition();
        prop_assert!(partition.tables().all(|(level, _)| level == 6));
    }

    #[test]
    fn survivors_are_what_snapshots_see_and_no_more(
        versions in proptest::collection::btree_map(1..30u64, any::<bool>(), 1..12),
        snapshots in proptest::collection::btree_set(0..30u64, 1..5),
        deeper: Option<bool>,
    ) {
        let entries: Vec<Entry> = versions.iter().rev().map(|(n, v)| (7, *n, *v)).collect();
        let list: Vec<_> = snapshots.iter().copied().map(seq).collect();
        let kept = survive(&entries, &list, |_| deeper.is_some());
        let read = |entries: &[Entry], at| {
            let seen = entries.iter().find(|entry| entry.1 <= at).map(|entry| entry.2);
            seen.or(deeper).unwrap_or(false)
        };
        let visible = *snapshots.last().unwrap();
        for at in snapshots.iter().copied().chain(visible..31) {
            prop_assert_eq!(read(&kept, at), read(&entries, at), "at {}", at);
        }
        // At most one for each snapshot, besides those that later snapshots may see.
        let seen = kept.iter().filter(|entry| entry.1 <= visible).count();
        prop_assert!(seen <= snapshots.len());
    }
}
