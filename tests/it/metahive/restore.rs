//! Gaps and the ways in which they end: a replica, which is asked again whenever one is attached,
//! and the decision of the owner.

use lsm_core::fs::FaultFs;
use lsm_core::raw::EntryKind;
use lsm_core::types::Gap;
use metahive::{RepairOptions, Replica};
use siltstone::Compression;

use super::*;
use crate::rot::rot_newest;

/// The entries of another node.
struct Copy(BTreeMap<Vec<u8>, (SeqNo, Option<Vec<u8>>)>);

impl Replica for Copy {
    fn fetch(&self, _: &[u8], _: SeqNo) -> siltstone::Result<Option<OwnedEntry>> {
        Ok(None)
    }

    fn fetch_range(
        &self,
        from: &[u8],
        to: &[u8],
        through: SeqNo,
    ) -> siltstone::Result<Option<Vec<OwnedEntry>>> {
        let within = self.0.range(from.to_vec()..=to.to_vec());
        let entries = within.filter(|(_, (seq, _))| *seq <= through).map(|(key, (seq, value))| {
            let kind = if value.is_some() { EntryKind::Value } else { EntryKind::Tombstone };
            let value = value.clone().unwrap_or_default();
            OwnedEntry { key: key.clone(), seq: *seq, kind, value, verified: true }
        });
        Ok(Some(entries.collect()))
    }
}

const KEYS: u32 = 60;

/// Two generations, the older one at the bottom. Every fifth key of the newer one is deleted. Then
/// the newer table is destroyed and compacted.
struct Lost {
    it: Checked,
    log: Arc<Log>,
    copy: Copy,
    before: Snapshot,
}

fn options() -> PartitionOptions {
    tiny().compression(Compression::None).level0_tables(100).table_bytes(1 << 20)
}

fn hive(replica: Option<Arc<dyn Replica>>) -> MetaHive {
    let repair = RepairOptions { log: false, replica, ..RepairOptions::default() };
    MetaHive::new(MetaHiveOptions::new().repair_options(repair))
}

fn lost() -> Lost {
    let lost = damaged();
    lost.it.p.compact(..).unwrap();
    assert!(!lost.it.p.gaps().is_empty());
    lost
}

/// The same, before the compaction finds it.
fn damaged() -> Lost {
    let fs = MemFs::new();
    let provider = Provider::new(hive(None));
    let options = options().hooks(provider.hooks());
    let log = Arc::new(Log::default());
    let open = builder(Arc::new(fs.clone()), 70).hooks(Arc::new(provider.clone()));
    let db = open.listener(log.clone()).open().unwrap();
    let p = db.partition_with("p", options).unwrap();
    let mut it = Checked { fs, provider, db, p, model: Content::new(), snapshots: Vec::new() };
    for n in 0..KEYS {
        it.p.put(key_of(n), format!("old {n}")).unwrap();
    }
    it.p.compact(..).unwrap();
    let mut copy = Copy(BTreeMap::new());
    for n in 0..KEYS {
        let value = (n % 5 > 0).then(|| format!("new {n}").into_bytes());
        match &value {
            Some(value) => {
                it.model.insert(key_of(n), value.clone());
                it.p.put(key_of(n), value).unwrap();
            }
            None => {
                it.model.remove(&key_of(n));
                it.p.delete(key_of(n)).unwrap();
            }
        }
        copy.0.insert(key_of(n), (it.db.visible_seq(), value));
    }
    it.db.flush().unwrap();
    let before = it.db.snapshot();
    rot_newest(&it.fs, &it.p);
    Lost { it, log, copy, before }
}

/// Everything is as in the model, for every kind of read.
fn check_restored(it: &Checked, before: &Snapshot) {
    assert!(it.p.gaps().is_empty() && it.db.health().is_healthy());
    assert_eq!(pairs(it.p.iter()), it.model);
    for n in 0..KEYS {
        let key = key_of(n);
        let expected = it.model.get(&key).map(|value| &value[..]);
        assert_eq!(it.p.get(&key).unwrap().as_deref(), expected);
        let verified = it.p.verified_get(&key).unwrap().map(|found| found.value);
        assert_eq!(verified.as_deref(), expected);
        // For what this snapshot saw it is unknown which versions were lost.
        assert!(before.get(&it.p, &key).is_err());
    }
    it.p.compact(..).unwrap();
    assert_eq!(pairs(it.p.iter()), it.model);
    assert!(it.p.scrub(ScrubOptions::new()).unwrap().is_sound());
    assert!(it.db.verify(siltstone::VerifyOptions::new()).unwrap().is_sound());
}

#[test]
fn a_replica_that_comes_later_ends_the_gap() {
    let Lost { it, copy, before, .. } = lost();
    assert!(it.p.get(key_of(3)).unwrap_err().is_corruption());
    let hooks = Hooks::new().filter(Arc::new(hive(Some(Arc::new(copy)))));
    it.db.partition_with("p", options().hooks(hooks)).unwrap();
    check_restored(&it, &before);
}

/// A clear has the effect of a newer deletion of every key: for entries that were lost below it,
/// and for entries that a replica returns.
#[test]
fn a_clear_answers_for_what_is_lost_below_it() {
    let Lost { mut it, copy, before, .. } = lost();
    assert!(it.p.get(key_of(3)).unwrap_err().is_corruption());
    it.p.clear().unwrap();
    it.p.put(key_of(4), "after it").unwrap();
    // The deletion stays, because what is lost may be older versions.
    it.p.delete(key_of(5)).unwrap();
    it.model = Content::from([(key_of(4), b"after it".to_vec())]);
    for round in 0..4 {
        assert_eq!(pairs(it.p.iter()), it.model, "round {round}");
        for n in 0..KEYS {
            let key = key_of(n);
            let expected = it.model.get(&key).map(|value| &value[..]);
            assert_eq!(it.p.get(&key).unwrap().as_deref(), expected, "round {round}");
            let verified = it.p.verified_get(&key).unwrap().map(|found| found.value);
            assert_eq!(verified.as_deref(), expected, "round {round}");
            assert!(before.get(&it.p, &key).is_err(), "round {round}");
        }
        match round {
            0 => it.p.flush().unwrap(),
            1 => it.p.compact(..).unwrap(),
            _ => drop(it.p.export(.., format!("/export {round}")).unwrap()),
        }
    }
    let hooks = Hooks::new().filter(Arc::new(hive(Some(Arc::new(copy)))));
    it.db.partition_with("p", options().hooks(hooks)).unwrap();
    check_restored(&it, &before);
}

#[test]
fn a_gap_is_restored_by_the_compaction_that_finds_it() {
    let Lost { it, copy, before, .. } = damaged();
    let hooks = Hooks::new().filter(Arc::new(hive(Some(Arc::new(copy)))));
    it.db.partition_with("p", options().hooks(hooks)).unwrap();
    it.p.compact(..).unwrap();
    check_restored(&it, &before);
}

/// No snapshot keeps the deletion. If it were dropped, the replica would bring the older value
/// back.
#[test]
fn a_deletion_outlives_the_compaction_that_finds_an_older_loss() {
    let Lost { mut it, copy, before, .. } = damaged();
    drop(before);
    it.p.delete(key_of(8)).unwrap();
    it.model.remove(&key_of(8));
    it.p.compact(..).unwrap();
    assert!(!it.p.gaps().is_empty());
    assert_eq!(it.p.get(key_of(8)).unwrap(), None, "the deletion is newer than what was lost");
    let hooks = Hooks::new().filter(Arc::new(hive(Some(Arc::new(copy)))));
    it.db.partition_with("p", options().hooks(hooks)).unwrap();
    assert!(it.p.gaps().is_empty());
    assert_eq!(pairs(it.p.iter()), it.model);
}

/// There are no tables below the job, so that only the loss itself keeps the deletion.
#[test]
fn a_deletion_outlives_the_job_that_finds_the_loss_below_it() {
    let fs = MemFs::new();
    let options = options().hooks(Provider::new(hive(None)).hooks());
    let db = builder(Arc::new(fs.clone()), 74).open().unwrap();
    let p = db.partition_with("p", options).unwrap();
    for n in 0..KEYS {
        p.put(key_of(n), format!("only {n}")).unwrap();
    }
    db.flush().unwrap();
    rot_newest(&fs, &p);
    p.delete(key_of(8)).unwrap();
    for _ in 0..2 {
        p.compact(..).unwrap();
        assert!(!p.gaps().is_empty() && p.get(key_of(7)).unwrap_err().is_corruption());
        assert_eq!(p.get(key_of(8)).unwrap(), None, "the deletion is newer than what was lost");
    }
}

#[test]
fn writes_into_a_gap_stay_and_a_manual_repair_ends_the_rest() {
    let Lost { mut it, copy, before, .. } = lost();
    assert!(!it.p.repair(..).unwrap().is_empty(), "it is unknown");
    it.p.put(key_of(7), "written meanwhile").unwrap();
    it.model.insert(key_of(7), b"written meanwhile".to_vec());
    it.p.delete(key_of(8)).unwrap();
    it.model.remove(&key_of(8));
    assert_eq!(it.p.get(key_of(7)).unwrap().as_deref(), Some(&b"written meanwhile"[..]));
    // The attachment does not end the gap: the replica reports that it is not recent enough.
    struct Late(Copy, std::sync::atomic::AtomicBool);
    impl Replica for Late {
        fn fetch(&self, key: &[u8], seq: SeqNo) -> siltstone::Result<Option<OwnedEntry>> {
            self.0.fetch(key, seq)
        }

        fn fetch_range(
            &self,
            from: &[u8],
            to: &[u8],
            through: SeqNo,
        ) -> siltstone::Result<Option<Vec<OwnedEntry>>> {
            if !self.1.swap(true, std::sync::atomic::Ordering::Relaxed) {
                return Ok(None);
            }
            self.0.fetch_range(from, to, through)
        }
    }
    let late = Late(copy, std::sync::atomic::AtomicBool::new(false));
    let hooks = Hooks::new().filter(Arc::new(hive(Some(Arc::new(late)))));
    it.db.partition_with("p", options().hooks(hooks)).unwrap();
    assert!(!it.p.gaps().is_empty());
    let left = it.p.repair(..key_of(20)).unwrap();
    assert_eq!(left, []);
    assert!(it.p.get(key_of(30)).is_err() && it.p.get(key_of(19)).is_ok());
    assert_eq!(it.p.repair(..).unwrap(), []);
    check_restored(&it, &before);
}

#[test]
fn a_replica_that_does_not_vouch_ends_no_gap() {
    struct Doubtful(Copy);
    impl Replica for Doubtful {
        fn fetch(&self, _: &[u8], _: SeqNo) -> siltstone::Result<Option<OwnedEntry>> {
            Ok(None)
        }

        fn fetch_range(
            &self,
            from: &[u8],
            to: &[u8],
            through: SeqNo,
        ) -> siltstone::Result<Option<Vec<OwnedEntry>>> {
            let entries = self.0.fetch_range(from, to, through)?.unwrap_or_default();
            Ok(Some(entries.into_iter().map(|it| OwnedEntry { verified: false, ..it }).collect()))
        }
    }
    let Lost { it, copy, .. } = lost();
    let hooks = Hooks::new().filter(Arc::new(hive(Some(Arc::new(Doubtful(copy))))));
    it.db.partition_with("p", options().hooks(hooks)).unwrap();
    assert!(!it.p.repair(..).unwrap().is_empty());
    assert!(it.p.get(key_of(3)).unwrap_err().is_corruption());
}

/// Every key of a gap has the newer deletion or value, also after compactions.
#[test]
fn a_deletion_in_a_gap_outlives_compactions() {
    let Lost { it, before, .. } = lost();
    drop(before);
    it.p.delete(key_of(8)).unwrap();
    it.p.put(key_of(9), "9").unwrap();
    for _ in 0..2 {
        assert_eq!(it.p.get(key_of(8)).unwrap(), None, "the deletion is newer than what was lost");
        assert_eq!(it.p.get(key_of(9)).unwrap().as_deref(), Some(&b"9"[..]));
        assert!(it.p.get(key_of(7)).unwrap_err().is_corruption());
        it.p.compact(..).unwrap();
    }
    assert_eq!(it.p.get(key_of(8)).unwrap(), None);
}

#[test]
fn a_gap_is_tried_again_at_an_open_with_the_builders_replica() {
    let Lost { it, copy, before, .. } = lost();
    drop(before);
    let Checked { fs, provider, db, p, model, .. } = it;
    drop(p);
    db.close().unwrap();
    // An open without a replica does not wait for one, and leaves the gap.
    let db = builder(Arc::new(fs.clone()), 71).open().unwrap();
    let p = db.partition("p").unwrap();
    assert!(!p.gaps().is_empty() && p.get(key_of(3)).unwrap_err().is_corruption());
    drop(p);
    db.close().unwrap();
    let given = MetaHiveOptions::new().replica(Arc::new(copy));
    let db = builder(Arc::new(fs.clone()), 72).metahive("p", given).open().unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!((p.gaps(), pairs(p.iter())), (Vec::new(), model.clone()));
    assert_eq!(p.get(key_of(5)).unwrap(), None, "deleted before it was lost");
    let it = Checked { fs, provider, db, p, model, snapshots: Vec::new() };
    it.p.compact(..).unwrap();
    assert_eq!(pairs(it.p.iter()), it.model);
}

/// A copy with one key that this partition does not store.
#[test]
fn a_key_in_another_form_is_not_taken_from_a_replica() {
    for key in [&b"key 017\x01"[..], b"key 017x\0"] {
        let Lost { it, mut copy, .. } = lost();
        let last = it.db.visible_seq();
        copy.0.insert(key.to_vec(), (SeqNo::new(3).unwrap(), Some(b"nobody's".to_vec())));
        struct Everything(Copy);
        impl Replica for Everything {
            fn fetch(&self, _: &[u8], _: SeqNo) -> siltstone::Result<Option<OwnedEntry>> {
                Ok(None)
            }

            fn fetch_range(
                &self,
                _: &[u8],
                _: &[u8],
                through: SeqNo,
            ) -> siltstone::Result<Option<Vec<OwnedEntry>>> {
                self.0.fetch_range(b"", b"\xff", through)
            }
        }
        let hooks = Hooks::new().filter(Arc::new(hive(Some(Arc::new(Everything(copy))))));
        it.db.partition_with("p", options().hooks(hooks)).unwrap();
        let refused = it.p.repair(..).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains(&key.escape_ascii().to_string()), "{refused}");
        assert!(!it.p.gaps().is_empty() && it.p.get(key_of(3)).unwrap_err().is_corruption());
        assert_eq!(it.db.visible_seq(), last, "nothing was written");
    }
}

/// The gaps of `p` in the manifest, closed ones included.
fn kept(fs: &MemFs) -> usize {
    let dir = Path::new(DIR);
    let listed = fs.list(dir, "").unwrap();
    let names: Vec<_> = listed.iter().filter_map(|entry| FileName::parse(&entry.name)).collect();
    let version = recover(fs, dir, &names).unwrap().unwrap().version;
    version.partition_named("p").unwrap().gaps.iter().count()
}

fn check_given_up(it: &Checked) {
    for n in 0..KEYS {
        assert_eq!(it.p.get(key_of(n)).unwrap(), None, "an older value of {n} came up");
    }
    assert_eq!(it.p.keys().count(), 1);
}

#[test]
fn a_gap_that_was_given_up_is_forgotten_when_nothing_is_left_that_it_hides() {
    let Lost { it, before, .. } = lost();
    it.p.accept_loss(..).unwrap();
    it.p.put("zzz", "next to it").unwrap();
    // The older values are still there, and so is a reader that the gap refuses.
    it.db.flush().unwrap();
    check_given_up(&it);
    assert!(kept(&it.fs) > 0);
    it.p.compact(..).unwrap();
    check_given_up(&it);
    assert!(before.get(&it.p, key_of(3)).unwrap_err().is_corruption());
    assert!(kept(&it.fs) > 0, "a snapshot from before sees it");
    drop(before);
    it.p.compact(..).unwrap();
    assert_eq!(kept(&it.fs), 0);
    check_given_up(&it);
    let it = it.reopen();
    check_given_up(&it);
}

/// For tables of an earlier run it is unknown which entries they lack: a table that was not
/// rewritten keeps the gap.
#[test]
fn a_gap_that_was_given_up_outlives_a_reopening_until_all_is_written_again() {
    let Lost { it, before, .. } = lost();
    drop(before);
    it.p.put("zzz", "next to it").unwrap();
    it.p.accept_loss(..).unwrap();
    let it = it.reopen();
    it.p.put("zzzz", "flushed").unwrap();
    it.p.delete("zzzz").unwrap();
    it.db.flush().unwrap();
    check_given_up(&it);
    assert!(kept(&it.fs) > 0);
    it.p.compact(..).unwrap();
    check_given_up(&it);
    assert_eq!(kept(&it.fs), 0);
}

/// Every report names the gap, also after a reopening.
#[test]
fn every_read_and_report_names_a_gap() {
    let Lost { it, log, before, .. } = lost();
    drop(before);
    let it = it.reopen();
    let gaps: Vec<Gap> = it.p.gaps();
    let text = gaps[0].to_string();
    let events = log.0.lock().unwrap();
    let heard = events.iter().any(|event| match event {
        Event::Corruption(damage) => damage.what.contains(&text),
        _ => false,
    });
    assert!(heard, "{events:#?}");
    let reports = [
        it.db.health().to_string(),
        it.p.scrub(ScrubOptions::new()).unwrap().to_string(),
        it.db.verify(siltstone::VerifyOptions::new()).unwrap().damage()[0].to_string(),
        it.p.explain(key_of(3)).unwrap().to_string(),
        it.p.get(key_of(3)).unwrap_err().to_string(),
        it.p.iter().find_map(Result::err).unwrap().to_string(),
    ];
    assert!(reports.iter().all(|what| what.contains(&text)), "{reports:#?}");
    let given_up = it.p.accept_loss(key_of(2)..key_of(10)).unwrap();
    assert!(!given_up.is_empty());
    assert_eq!(it.p.get(key_of(3)).unwrap(), None, "the older value does not come up");
    assert!(it.p.get(key_of(30)).is_err());
}

/// Without a gap in the range, a call used to sync the log twice, once while writers waited for it.
#[test]
fn accepting_a_loss_where_nothing_is_lost_syncs_nothing() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = builder(Arc::new(fs.clone()), 71).open().unwrap();
    let p = db.partition("p").unwrap();
    p.put("key", "unsynced").unwrap();
    fs.start_log();
    assert_eq!(p.accept_loss(..).unwrap(), []);
    assert_eq!(fs.take_log(), []);
}
