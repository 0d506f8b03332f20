//! Steps that copy the store, or that other processes make on its files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_core::fs::Fs;
use siltstone::backup::BackupEngine;
use siltstone::secondary::{Level, Secondary};
use siltstone::{BackgroundMode, Commit, Db, Durability, ErrorKind, Readable};
use testkit::Rng;
use testkit::model::{Contents, Op, State, Step};

use super::world::{Outcome, World, check, check_state, observe};

const BACKUPS: &str = "/backups";
/// The most backups that are kept.
const KEPT_MAX: usize = 2;

impl World {
    /// A folder that was not used before.
    fn folder(&mut self, what: &str) -> PathBuf {
        self.folders += 1;
        PathBuf::from(format!("/{what}{}", self.folders))
    }

    fn remove(&self, folder: &Path) {
        for path in self.mem.paths().iter().filter(|path| path.starts_with(folder)) {
            self.mem.remove_raw(path).expect("it was listed");
        }
    }

    /// Opens a copy of the store as a database of its own, and compares it.
    fn check_copy(&mut self, folder: &Path, written: &State) -> Outcome {
        let builder = Db::builder(folder).fs(self.files());
        let mut around = self.around.clone();
        around.bucket = None;
        let copy = around.configured(builder, self.rng.next_u64()).open()?;
        let observed = observe(&copy)?;
        check_state("a copy", &observed, written, self.now())?;
        copy.partition("default")?.put("a copy", "is written to")?;
        copy.close()?;
        Ok(())
    }

    pub fn checkpoint(&mut self) -> Outcome {
        let folder = self.folder("checkpoint");
        let written = self.written_state();
        self.db().checkpoint(&folder)?;
        // Earlier writes are in the copy, and so durable.
        self.check_copy(&folder, &written)?;
        self.remove(&folder);
        Ok(())
    }

    fn engine(&self) -> BackupEngine {
        BackupEngine::open(BACKUPS).fs(self.files()).clock(Arc::new(self.around.clock.clone()))
    }

    /// Makes a backup, restores one, and purges old ones.
    pub fn back_up(&mut self, rng: &mut Rng) -> Outcome {
        let written = self.written_state();
        let made = self.engine().create_backup(&self.db())?;
        self.backups.push((made.backup_id, written));
        let chosen = rng.index(self.backups.len());
        let (id, written) = self.backups[chosen].clone();
        let folder = self.folder("restored");
        self.engine().restore(id, &folder)?;
        self.check_copy(&folder, &written)?;
        self.remove(&folder);
        if self.backups.len() > KEPT_MAX {
            self.engine().purge_old(KEPT_MAX)?;
            self.backups.remove(0);
        }
        Ok(())
    }

    /// Exports a partition, and ingests it into another one, or into itself.
    pub fn ingest(&mut self, rng: &mut Rng) -> Outcome {
        let from = self.ordinary(rng);
        let to = self.ordinary(rng);
        let folder = self.folder("exported");
        let exported = self.written(&from);
        self.db().open_partition(&from)?.export(.., &folder)?;
        let partition = self.db().open_partition(&to)?;
        let ops: Vec<_> = exported.iter().map(|(key, value)| Op::put(&to, key, value)).collect();
        let has_other_form = self.settings(&from).escapes_keys != self.settings(&to).escapes_keys;
        if has_other_form && exported.contains_key(&b""[..]) {
            match partition.ingest(&folder).map(drop) {
                Err(error) if error.kind() == ErrorKind::InvalidArgument => {}
                Err(error) => return Err(error.into()),
                Ok(()) => check(false, || "the empty key of another form comes in".to_owned())?,
            }
        } else if !ops.is_empty() {
            self.change(Step::Commit(ops), |_| partition.ingest(&folder).map(drop))?;
        }
        self.remove(&folder);
        Ok(())
    }

    /// A secondary of the folder. After a takeover some tables are in the bucket alone.
    fn secondary(&self) -> siltstone::Result<Secondary> {
        let files = self.primary.as_ref().map_or_else(|| self.files(), remote::Primary::fs);
        Db::secondary_builder(&self.dir).fs(files).clock(Arc::new(self.around.clock.clone())).open()
    }

    /// Reads everything on a secondary, at each level.
    pub fn read_on_a_secondary(&mut self, rng: &mut Rng) -> Outcome {
        if rng.chance(1, 2) {
            self.read_in_the_bucket()?;
        }
        let secondary = self.secondary()?;
        let token = self.record().seqs.last().map(|(seq, _)| *seq);
        let written = self.written_state();
        let epoch = self.db().batch().commit(Durability::Os).map(|commit| commit.epoch)?;
        let mut levels = vec![
            Level::Strong,
            Level::Bounded { operations: Some(0), age: None },
            Level::Prefix,
            Level::Eventual,
        ];
        levels.extend(token.map(|seq| Level::Session(Commit { seq, epoch })));
        let level = *rng.pick(&levels);
        for name in written.keys() {
            let partition = secondary.partition(name)?;
            let strong = read(&partition.at(Level::Strong)?)?;
            let seen = [(name.clone(), strong)].into();
            let expected = [(name.clone(), written[name].clone())].into();
            check_state("a secondary", &seen, &expected, self.now())?;
            // No one writes, and it has caught up: every level sees the same.
            let seen = [(name.clone(), read(&partition.at(level)?)?)].into();
            check_state(&format!("a secondary at {level:?}"), &seen, &expected, self.now())?;
        }
        Ok(())
    }

    /// Another process, or another machine, takes the database over; the old one is refused from then on.
    pub fn promote(&mut self, rng: &mut Rng) -> Outcome {
        self.held.clear();
        self.feed.close();
        let old = self.db();
        if self.around.bucket.is_some() && rng.chance(1, 2) {
            old.wait_durable(old.visible_seq())?;
            self.record().all_durable();
            let primary = self.primary.take();
            primary.as_ref().map_or(Ok(()), remote::Primary::ship)?;
            self.dir = self.folder("db");
            self.db = None;
            // The old machine lives on until the new one has written.
            self.takes_over = true;
            let opened = self.open();
            // After a failed takeover the old machine may still be the primary.
            opened?;
            self.check_refused(&old)?;
            drop(old);
            drop(primary);
        } else {
            let secondary = self.secondary()?;
            let promotion = Db::promotion(&secondary);
            let promoted = self
                .around
                .configured(promotion, self.rng.next_u64())
                .background(BackgroundMode::Stepped);
            let new = promoted.open()?;
            self.check_refused(&old)?;
            drop(old);
            self.db = Some(new);
            self.note_epoch();
        }
        self.record().seqs.clear();
        self.check_now()
    }

    fn check_refused(&self, old: &Db) -> Outcome {
        let refused =
            old.partition("default").and_then(|it| it.put_with("x", "y", Durability::Sync));
        let kind = refused.err().map(|error| error.kind());
        // A fault may have come first.
        let is_refused = kind == Some(ErrorKind::Fenced) || self.is_struck();
        check(is_refused, || format!("the old primary writes: {kind:?}"))
    }

    /// The objects of the bucket are those that readers on other machines read.
    fn read_in_the_bucket(&mut self) -> Outcome {
        let fs: Arc<dyn Fs> = Arc::new(self.fs.clone());
        let (Some(primary), Some(remote)) = (&self.primary, self.around.remote(fs, self.values))
        else {
            return Ok(());
        };
        let db = self.db();
        db.wait_durable(db.visible_seq())?;
        primary.ship()?;
        self.record().all_durable();
        let reader = remote.reader()?;
        let clock = Arc::new(self.around.clock.clone());
        let secondary = reader.secondary().clock(clock).open()?;
        for (name, written) in self.written_state() {
            let seen =
                [(name.clone(), read(&secondary.partition(&name)?.at(Level::Prefix)?)?)].into();
            check_state("a reader of the bucket", &seen, &[(name, written)].into(), self.now())?;
        }
        Ok(())
    }
}

fn read(view: &impl Readable) -> siltstone::Result<Contents> {
    let mut contents = Contents::new();
    for entry in view.range(..) {
        let (key, value) = entry?;
        contents.insert(key.to_vec(), (*value).into());
    }
    Ok(contents)
}
