//! A follower of the changes, from its first token on, over reopenings.

use std::collections::{BTreeMap, BTreeSet};

use siltstone::changes::{Changes, FeedItem, KeyChange};
use siltstone::hooks::PartitionId;
use siltstone::{ErrorKind, SeqNo};
use testkit::model::{Contents, State};

use super::world::{Outcome, World, check};
use crate::store::{Content, follow_change};

/// The follower, with the index that it keeps.
#[derive(Default)]
pub struct Feed {
    token: SeqNo,
    changes: Option<Changes>,
    /// Numbers were used that are not in the log: the feed says so when the next commit comes.
    pub has_hole: bool,
    index: BTreeMap<PartitionId, Content>,
}

impl Feed {
    pub fn close(&mut self) {
        self.changes = None;
    }

    /// The process of the follower ends without a word, and its index is lost.
    pub fn forget(&mut self) {
        *self = Feed::default();
    }
}

impl World {
    /// The first runs of the writer have used numbers and logged nothing: the log begins after them.
    fn is_before_the_log(&self, error: &siltstone::Error) -> bool {
        let is_first = self.feed.token == SeqNo::ZERO;
        error.kind() == ErrorKind::TooOld && is_first && self.beginning.is_late
    }

    /// The follower reads everything, and goes on after it.
    fn begin_anew(&mut self, written: &State) -> Outcome<Changes> {
        let db = self.db();
        let mut changes = db.changes(db.visible_seq())?;
        check(changes.try_next()?.is_none(), || "there is no later commit".to_owned())?;
        self.feed.index = indexed(&changes, written);
        Ok(changes)
    }

    /// Takes in everything that the feed has, and compares the index with what was written.
    pub fn follow(&mut self) -> Outcome {
        let db = self.db();
        // The feed has what is durable.
        db.wait_durable(db.visible_seq())?;
        self.record().all_durable();
        let written = self.written_state();
        let mut changes = match self.feed.changes.take() {
            Some(changes) => changes,
            None => match db.changes(self.feed.token) {
                Err(error) if self.is_before_the_log(&error) => self.begin_anew(&written)?,
                changes => changes?,
            },
        };
        // A large value that is gone was overwritten since: its key has the value of now, whatever follows.
        let mut looked_up = BTreeSet::new();
        loop {
            match changes.try_next() {
                Ok(Some(FeedItem::Commit(batch))) => {
                    for (partition, change) in &batch.changes {
                        let name = partition.name.to_string();
                        let index = self.feed.index.entry(partition.id).or_default();
                        take(index, change, &name, &written, &mut looked_up)?;
                    }
                }
                Ok(Some(FeedItem::Dropped(partition))) => {
                    self.feed.index.remove(&partition.id);
                }
                // An ingest, a bulk load, or what a fault took: the follower reads everything.
                Ok(Some(_)) => changes = self.begin_anew(&written)?,
                Err(error) if self.is_before_the_log(&error) => {
                    changes = self.begin_anew(&written)?;
                }
                Ok(None) => break,
                // A failed sync may take a part of the log.
                Err(error) if error.kind() == ErrorKind::TooOld && self.fs.fault_count() > 0 => {
                    self.feed.forget();
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        if std::mem::take(&mut self.feed.has_hole) {
            self.feed.index = indexed(&changes, &written);
        }
        self.feed.token = changes.position().seq;
        self.feed.changes = Some(changes);
        let changes = self.feed.changes.as_ref().expect("it was put there");
        let expected = indexed(changes, &written);
        self.feed.index.retain(|id, _| expected.contains_key(id));
        for (id, contents) in expected {
            let index = self.feed.index.entry(id).or_default();
            check(*index == contents, || format!("the changes make something else of {id:?}"))?;
        }
        Ok(())
    }
}

/// The entries that the index must have, of the partitions that the feed knows.
fn indexed(changes: &Changes, written: &State) -> BTreeMap<PartitionId, Content> {
    let known = changes.partitions().filter_map(|it| Some((it.id, written.get(&*it.name)?)));
    let entries = known.map(|(id, contents)| {
        (id, contents.iter().map(|(key, value)| (key.clone(), value.to_vec())).collect())
    });
    entries.collect()
}

fn take(
    index: &mut Content,
    change: &KeyChange,
    name: &str,
    written: &State,
    looked_up: &mut BTreeSet<(String, Vec<u8>)>,
) -> Outcome {
    let now = written.get(name).cloned().unwrap_or_default();
    match change {
        KeyChange::PutLarge { key, value } => match value.read()? {
            Some(value) => {
                index.insert(key.to_vec(), value.to_vec());
            }
            None => {
                looked_up.insert((name.to_owned(), key.to_vec()));
            }
        },
        change => follow_change(index, change),
    }
    for (_, key) in looked_up.iter().filter(|(of, _)| of == name) {
        set(index, key, &now);
    }
    Ok(())
}

fn set(index: &mut Content, key: &[u8], now: &Contents) {
    match now.get(key) {
        Some(value) => index.insert(key.to_vec(), value.to_vec()),
        None => index.remove(key),
    };
}
