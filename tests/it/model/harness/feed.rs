//! A follower of the changes: an index that is kept in step, across reopenings and power cuts, and compared with
//! the model after every commit.

use std::collections::BTreeMap;

use siltstone::changes::{ChangedPartition, Changes, CommittedBatch, FeedItem, KeyChange};
use siltstone::hooks::PartitionId;
use siltstone::{ErrorKind, SeqNo};

use super::*;
use crate::store::follow_change;

/// The contents of a partition by its name, and the id that it has there.
#[derive(Default)]
struct Indexed {
    id: Option<PartitionId>,
    contents: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The follower, with what it would store together with its index.
#[derive(Default)]
pub(super) struct Feed {
    token: SeqNo,
    index: BTreeMap<String, Indexed>,
    changes: Option<Changes>,
    /// The contents of the logged partitions after each commit, by incarnation.
    commits: BTreeMap<SeqNo, BTreeMap<u32, Rc<Contents>>>,
    /// The log was kept whole at every open.
    is_whole: bool,
    /// Commits may have been lost in a power cut.
    is_cut: bool,
}

impl Feed {
    pub(super) fn new(options: &Options) -> Feed {
        Feed { is_whole: keeps_all(options), ..Feed::default() }
    }
}

fn keeps_all(options: &Options) -> bool {
    options.log_retained_bytes == u64::MAX
}

impl Harness {
    /// Notes the contents after an operation, if it was a commit of logged partitions.
    pub(super) fn note_commit(&mut self) {
        let Some(seq) = self.oracle.last_commit() else { return };
        if self.feed.commits.contains_key(&seq) || seq <= self.feed.token {
            return;
        }
        let logged = self.parts.iter().filter(|part| part.options.get_logged());
        let contents = logged.map(|part| (part.incarnation, self.written(part))).collect();
        self.feed.commits.insert(seq, contents);
    }

    /// The follower's process ends, and the database is opened again with these options.
    pub(super) fn restart_feed(&mut self, options: &Options, is_cut: bool) {
        self.feed.changes = None;
        self.feed.is_whole &= keeps_all(options);
        self.feed.is_cut = is_cut;
        self.follow_changes();
        self.feed.is_cut = false;
        self.feed.commits.clear();
    }

    /// Takes in everything that the feed has.
    pub(super) fn follow_changes(&mut self) {
        let db = self.db().clone();
        let token = self.feed.token;
        let mut changes = match self.feed.changes.take() {
            Some(changes) => changes,
            None => db.changes(token).unwrap(),
        };
        loop {
            match changes.try_next() {
                Ok(Some(FeedItem::Commit(batch))) => self.take_batch(&batch),
                Ok(Some(FeedItem::Unlogged { first_seq, seq })) => self.take_hole(first_seq, seq),
                Ok(Some(FeedItem::Dropped(partition))) => self.take_drop(&partition),
                Ok(Some(other)) => panic!("{other:?}"),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::TooOld, "{error}");
                    assert!(!self.feed.is_whole, "nothing of the log was removed: {error}");
                    changes = self.begin_again();
                }
            }
            assert!(changes.position().seq >= self.feed.token);
            self.feed.token = changes.position().seq;
        }
        // Also of commits that were passed over, because their partitions are dropped.
        self.feed.token = changes.position().seq;
        self.check_passed_over(changes.position().seq.plus(1));
        let living: Vec<_> = changes.partitions().collect();
        self.feed.index.retain(|name, indexed| {
            living.iter().any(|it| *it.name == **name && Some(it.id) == indexed.id)
        });
        let last = self.feed.commits.keys().copied().rfind(|seq| *seq <= db.durable_seq());
        assert!(last.is_none_or(|last| last <= self.feed.token), "a durable commit is missing");
        self.feed.changes = Some(changes);
    }

    /// Reads everything, as the error says.
    fn begin_again(&mut self) -> Changes {
        let db = self.db().clone();
        db.wait_durable(db.visible_seq()).unwrap();
        self.oracle.log_is_synced();
        let seen = db.snapshot().seq();
        let mut changes = db.changes(seen).unwrap();
        assert!(changes.try_next().unwrap().is_none());
        assert!(changes.position().seq <= seen);
        self.feed.index = changes
            .partitions()
            .map(|it| {
                let entries = db.partition(&it.name).unwrap();
                let contents = entries.iter().map(pair).collect();
                (it.name.to_string(), Indexed { id: Some(it.id), contents })
            })
            .collect();
        // Unlogged partitions are not followed.
        let parts = &self.parts;
        self.feed.index.retain(|name, _| {
            parts.iter().any(|part| part.name == name && part.options.get_logged())
        });
        self.feed.commits.retain(|seq, _| *seq > seen);
        self.feed.token = changes.position().seq;
        changes
    }

    fn take_drop(&mut self, partition: &ChangedPartition) {
        let name: &str = &partition.name;
        let is_same = self.feed.index.get(name).is_some_and(|it| it.id == Some(partition.id));
        if is_same {
            self.feed.index.remove(name);
        }
    }

    fn take_hole(&mut self, first_seq: SeqNo, seq: SeqNo) {
        assert!(first_seq > self.feed.token);
        self.check_passed_over(first_seq);
        let lost = self.feed.commits.range(first_seq..=seq).next().is_some();
        assert!(!lost || self.feed.is_cut, "a logged commit is not in the log");
        if lost {
            // Everything after it is lost, too.
            self.feed.commits.retain(|number, _| *number < first_seq);
        }
    }

    fn take_batch(&mut self, batch: &CommittedBatch) {
        assert!(batch.first_seq > self.feed.token, "each commit comes once");
        self.check_passed_over(batch.first_seq);
        let before = self.indexed();
        let expected = self.feed.commits.remove(&batch.seq);
        for (partition, change) in &batch.changes {
            let name = partition.name.to_string();
            let indexed = self.feed.index.entry(name).or_default();
            if indexed.id != Some(partition.id) {
                *indexed = Indexed { id: Some(partition.id), ..Indexed::default() };
            }
            let part = self.parts.iter().find(|part| part.name == &*partition.name);
            let part = part.expect("operations of dropped partitions are left out");
            let at_end = expected.as_ref().and_then(|it| it.get(&part.incarnation));
            take_change(&mut indexed.contents, change, at_end);
        }
        let now = self.indexed();
        match expected {
            Some(expected) => self.check_index(batch.seq, &expected),
            // A batch that deletes nothing.
            None => assert!(now == before, "commit {} is unknown", batch.seq),
        }
    }

    /// The partitions whose index has the same entries: what goes from a FIFO is no change.
    fn followed(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.options.get_logged() && !part.is_fifo())
    }

    /// Checks the commits before `seq` that the feed has passed over: they changed nothing but partitions that are
    /// dropped by now.
    fn check_passed_over(&mut self, seq: SeqNo) {
        let later = self.feed.commits.split_off(&seq);
        let passed_over = std::mem::replace(&mut self.feed.commits, later);
        passed_over.iter().for_each(|(seq, expected)| self.check_index(*seq, expected));
    }

    /// Compares the index with the contents after a commit, of the partitions that exist.
    fn check_index(&self, seq: SeqNo, expected: &BTreeMap<u32, Rc<Contents>>) {
        let now = self.indexed();
        for part in self.followed() {
            let contents = expected.get(&part.incarnation);
            let contents = contents.iter().flat_map(|it| it.iter());
            let contents = contents.map(|(key, value)| (key.clone(), value.to_vec()));
            let contents = self.unexpired(part, contents.collect());
            let got = now.get(part.name).cloned().unwrap_or_default();
            assert!(got == contents, "{} at commit {seq}", part.name);
        }
    }

    /// Compares the index with the database, all of whose commits are durable.
    pub(super) fn check_feed(&self) {
        let now = self.indexed();
        for part in self.followed() {
            let contents: BTreeMap<_, _> = part.handle.iter().map(pair).collect();
            let got = now.get(part.name).cloned().unwrap_or_default();
            assert!(got == contents, "{} after a power cut", part.name);
        }
    }

    /// The entries without those that have expired: the feed has them, and a database without them may not.
    fn unexpired(
        &self,
        part: &Part,
        mut entries: BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> BTreeMap<Vec<u8>, Vec<u8>> {
        if self.expiring.contains(&part.incarnation) {
            entries.retain(|_, value| expiry::is_alive(value, self.now()));
        }
        entries
    }

    /// The index without what has expired, of partitions that have other entries and are no FIFO: a commit may delete
    /// what is gone from one already, and that is a change of the index alone.
    fn indexed(&self) -> BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut index = BTreeMap::new();
        for (name, indexed) in &self.feed.index {
            let part = self.parts.iter().find(|part| part.name == name);
            if part.is_some_and(Part::is_fifo) {
                continue;
            }
            let contents = indexed.contents.clone();
            let contents = match part {
                Some(part) => self.unexpired(part, contents),
                None => contents,
            };
            if !contents.is_empty() {
                index.insert(name.clone(), contents);
            }
        }
        index
    }
}

/// Applies a change. A large value that was moved or overwritten meanwhile is looked up: here, in the contents
/// `at_end` of the commit.
fn take_change(
    index: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    change: &KeyChange,
    at_end: Option<&Rc<Contents>>,
) {
    match change {
        KeyChange::PutLarge { key, value } => {
            let read = value.read().unwrap().map(|value| value.to_vec());
            let found = read.or_else(|| Some(at_end?.get(&key[..])?.to_vec()));
            index.insert(key.to_vec(), found.unwrap_or_default());
        }
        // A large value that was looked up has the later operands of the commit in it.
        KeyChange::Merge { key, .. }
            if at_end
                .and_then(|it| it.get(&key[..]))
                .is_some_and(|it| index.get(&key[..]).is_some_and(|value| **it == value[..])) => {}
        change => follow_change(index, change),
    }
}
