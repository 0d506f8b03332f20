//! Backups into one folder, and restores of any of them later: after power cuts, reopenings and purges.

use siltstone::backup::BackupEngine;

use super::*;
use crate::model::fifo::FifoLog;

const BACKUPS: &str = "/backups";
const RESTORED: &str = "/restored";
/// The most backups that are kept.
const KEPT_MAX: usize = 3;

/// A backup, and what a database that is restored from it has.
pub struct HeldBackup {
    id: u32,
    seq: SeqNo,
    /// The contents of the partitions, by name, with what has expired; those with a rule of expiry.
    parts: Vec<(&'static str, Rc<Contents>, bool)>,
    /// Of these more may be gone after the restore.
    fifos: BTreeMap<&'static str, FifoLog>,
}

impl Harness {
    /// The file system of the store.
    pub(super) fn files(&self) -> Arc<dyn Fs> {
        store::over(Arc::new(self.fs.clone()), self.around.keys.as_ref())
    }

    fn engine(&self) -> BackupEngine {
        BackupEngine::open(BACKUPS).fs(self.files()).clock(Arc::new(self.clock.clone()))
    }

    /// Makes a backup. `follows`: as another process does it, so that partitions without a log are not flushed.
    pub(super) fn back_up(&mut self, follows: bool) {
        let made = if follows {
            let builder = Db::builder(DIR).fs(self.files());
            self.engine().create_backup_of(builder).unwrap()
        } else {
            let made = self.engine().create_backup(self.db()).unwrap();
            for part in self.parts.iter().filter(|part| !part.options.get_logged()) {
                self.oracle.is_flushed(part.name);
            }
            made
        };
        assert_eq!(made.seq, self.db().visible_seq(), "the commits that had returned");
        let parts = self.parts.iter().filter(|part| !follows || part.options.get_logged());
        let parts = parts
            .map(|part| (part.name, self.written(part), self.expiring.contains(&part.incarnation)));
        let parts: Vec<_> = parts.collect();
        let fifos =
            parts.iter().filter_map(|(name, ..)| Some((*name, self.oracle.fifo(name)?.clone())));
        let fifos = fifos.collect();
        self.backups.push(HeldBackup { id: made.backup_id, seq: made.seq, parts, fifos });
        if self.backups.len() > KEPT_MAX {
            let purged = self.engine().purge_old(KEPT_MAX).unwrap();
            assert_eq!(purged.backups, [self.backups.remove(0).id]);
        }
    }

    /// Restores the n-th backup, opens the database, and compares it.
    pub(super) fn restore(&mut self, n: u8) {
        let Some(n) = chosen(&self.backups, n) else { return };
        let held = &self.backups[n];
        let restored = self.engine().restore(held.id, RESTORED).unwrap();
        assert_eq!(restored.seq, held.seq);
        let builder = Db::builder(RESTORED).fs(self.files());
        let builder = builder.clock(Arc::new(self.clock.clone()));
        let db = builder.background(BackgroundMode::Stepped).open().unwrap();
        let floor = held.parts.iter().all(|(_, contents, _)| contents.is_empty());
        assert!(db.visible_seq() >= held.seq || floor);
        for (name, contents, expires) in &held.parts {
            let now = self.now();
            if let Some(log) = held.fifos.get(name) {
                let found = db.open_partition(name).unwrap().iter().map(pair);
                let found = found.map(|(key, value)| (key, value.into())).collect();
                log.clone().see(&found, &|value| !expires || expiry::is_alive(value, now));
                continue;
            }
            let alive =
                contents.iter().filter(|(_, value)| !expires || expiry::is_alive(value, now));
            let expected: Vec<_> = alive.map(|(k, v)| (k.clone(), v.to_vec())).collect();
            let found: Vec<_> = db.open_partition(name).unwrap().iter().map(pair).collect();
            assert!(found == expected, "{name} of backup {}", held.id);
        }
        check_sound(&db).unwrap();
        db.close().unwrap();
        for path in self.fs.paths().iter().filter(|path| path.starts_with(RESTORED)) {
            self.fs.remove_raw(path).unwrap();
        }
        assert!(self.engine().verify(None).unwrap().is_sound());
        let ids: Vec<_> = self.engine().info().unwrap().iter().map(|it| it.backup_id).collect();
        assert_eq!(ids, self.backups.iter().map(|held| held.id).collect::<Vec<_>>());
    }
}
