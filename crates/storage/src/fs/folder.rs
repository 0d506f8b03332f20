//! [`FolderFs`]: a file system that keeps track of the names that are not durable yet.
//!
//! The database makes everything through one of these: tables, segments, chunk files, generations of the
//! manifest, claims, leases, and the files of checkpoints and exports. They share folders, and so the syncs
//! of a folder. The kernel may drop the names of a sync that failed, and report success for the next one. A
//! later caller would take its name for durable. So the outcome of each sync is recorded for each name that
//! was in it, whichever thread called the sync.
//!
//! The callers react, each as after a failed sync of the file: a job writes its tables again, the log takes
//! another segment, the manifest another generation, and a value store condemns the chunk file. Moving the
//! names away and back would not save them: readers, also those of other processes, would miss the files
//! meanwhile.
//!
//! Invariants:
//! 1. [`Fs::sync_names`] succeeds only for names that were in a good sync and in no failed one before that.
//! 2. A name that was in a failed sync is in doubt until it is deleted or the file system is dropped.
//! 3. No call of the wrapped file system is made under the lock.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    AppendMode, Caps, DirEntry, File, FolderLook, FolderState, Fs, HeldDir, LockGuard, MapMode,
    SharedWords, is_out_of_handles,
};
use crate::error::{Error, Result};

/// A file system that knows which names of a folder are durable.
pub struct FolderFs {
    fs: Arc<dyn Fs>,
    names: Mutex<Names>,
}

/// The names that are not known to be durable.
#[derive(Default)]
struct Names {
    states: BTreeMap<PathBuf, NameState>,
    /// The number of names that were made.
    made_count: u64,
}

enum NameState {
    /// The call that makes it runs. A sync that fails meanwhile may concern this name; one that succeeds may
    /// have been too early for it.
    Making,
    /// It was made; the number counts the names made so far.
    Made(u64),
    /// It was in a sync that failed with this error.
    Doubtful(Error),
}

impl FolderFs {
    /// Holds the folder `dir`, and keeps track of its names. Returns the path to use from now on, too.
    ///
    /// # Errors
    /// Those of [`Fs::hold_dir`].
    pub fn hold(fs: Arc<dyn Fs>, dir: &Path) -> Result<(Arc<dyn Fs>, PathBuf)> {
        let held = fs.hold_dir(dir)?;
        Ok((Arc::new(FolderFs::new(held.fs.unwrap_or(fs))), held.path))
    }

    /// Keeps track of the names that are made through the result.
    pub fn new(fs: Arc<dyn Fs>) -> FolderFs {
        FolderFs { fs, names: Mutex::default() }
    }

    /// Makes a name by `make`.
    fn make<T>(&self, path: &Path, make: impl FnOnce() -> Result<T>) -> Result<T> {
        self.names.lock().begin(path);
        let made = make();
        let mut names = self.names.lock();
        match &made {
            Ok(_) => names.note_made(path),
            // It may exist all the same. Its maker does not use it.
            Err(_) => names.forget(path),
        }
        made
    }
}

impl Names {
    fn begin(&mut self, path: &Path) {
        // A name that is taken does not change: the call that should make it fails.
        self.states.entry(path.to_owned()).or_insert(NameState::Making);
    }

    fn note_made(&mut self, path: &Path) {
        self.made_count += 1;
        if let Some(state @ NameState::Making) = self.states.get_mut(path) {
            *state = NameState::Made(self.made_count);
        }
    }

    /// Forgets a name that its maker does not use.
    fn forget(&mut self, path: &Path) {
        if let Some(NameState::Making) = self.states.get(path) {
            self.states.remove(path);
        }
    }

    /// Notes a successful sync of the folder that began when `made_count` names were made.
    fn note_synced(&mut self, dir: &Path, made_count: u64) {
        self.states.retain(|path, state| {
            let is_synced = matches!(state, NameState::Made(number) if *number <= made_count);
            !is_synced || path.parent() != Some(dir)
        });
    }

    /// A sync of the folder failed.
    fn note_failed(&mut self, dir: &Path, error: &Error) {
        if is_out_of_handles(error) {
            // The folder could not be opened, so no sync was begun.
            return;
        }
        for (path, state) in &mut self.states {
            // The first error stays.
            if path.parent() == Some(dir) && !matches!(state, NameState::Doubtful(_)) {
                *state = NameState::Doubtful(error.clone());
            }
        }
    }

    /// Returns `true` if each of these names is durable, as far as it was made here.
    ///
    /// # Errors
    /// One of the names is in doubt.
    fn are_durable(&self, names: &[PathBuf]) -> Result<bool> {
        let mut are_durable = true;
        for name in names {
            match self.states.get(name) {
                None => {}
                Some(NameState::Making | NameState::Made(_)) => are_durable = false,
                Some(NameState::Doubtful(error)) => {
                    let name = name.display();
                    let message = format!("a sync of the folder failed that {name} was in");
                    return Err(Error::because(error.kind(), message, error.clone()));
                }
            }
        }
        Ok(are_durable)
    }
}

impl Fs for FolderFs {
    fn caps(&self) -> Caps {
        self.fs.caps()
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.fs.create_dir(dir).inspect_err(|error| {
            // It may have been the sync of any folder above.
            let mut names = self.names.lock();
            dir.ancestors().skip(1).for_each(|above| names.note_failed(above, error));
        })
    }

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        match mode {
            AppendMode::IfAbsent => self.make(path, || self.fs.open_append(path, mode)),
            AppendMode::Existing => self.fs.open_append(path, mode),
        }
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.fs.open_read(path)
    }

    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        self.names.lock().begin(path);
        let put = self.fs.put_if_absent(path, content);
        // The last step of a publication is a sync of the folder. If the name exists, all steps before that
        // one have succeeded. If it cannot be checked, it counts as existing.
        let is_there = put.is_err() && !self.fs.open_read(path).is_err_and(|e| e.is_missing());
        let mut names = self.names.lock();
        match &put {
            // Without a handle its sync was not begun, and the next one saves it.
            Err(error) if is_there && is_out_of_handles(error) => names.note_made(path),
            Err(error) if is_there => {
                if let Some(dir) = path.parent() {
                    names.note_failed(dir, error);
                }
            }
            // Durability: the sync of another thread may have failed between the link and the sync of this
            // one.
            Ok(true) => {
                names.are_durable(&[path.to_owned()])?;
                names.forget(path);
            }
            Ok(false) | Err(_) => names.forget(path),
        }
        put
    }

    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        self.fs.list(dir, prefix)
    }

    fn list_names(&self, dir: &Path, prefix: &str) -> Result<Vec<String>> {
        self.fs.list_names(dir, prefix)
    }

    fn map_words(&self, path: &Path, mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
        self.fs.map_words(path, mode)
    }

    fn folder_state(&self, dir: &Path, wanted: FolderState) -> Result<FolderLook> {
        self.fs.folder_state(dir, wanted)
    }

    fn failure(&self) -> Option<String> {
        self.fs.failure()
    }

    fn machine_run(&self) -> Option<u64> {
        self.fs.machine_run()
    }

    fn delete(&self, path: &Path) -> Result<()> {
        self.fs.delete(path)?;
        // Before another call makes the name again: no two threads of the database share a name.
        self.names.lock().states.remove(path);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.make(to, || self.fs.link(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let made_count = self.names.lock().made_count;
        let synced = self.fs.sync_dir(dir);
        let mut names = self.names.lock();
        match &synced {
            Ok(()) => names.note_synced(dir, made_count),
            Err(error) => names.note_failed(dir, error),
        }
        synced
    }

    fn sync_names(&self, dir: &Path, names: &[PathBuf]) -> Result<()> {
        debug_assert!(names.iter().all(|name| name.parent() == Some(dir)), "names of one folder");
        if self.names.lock().are_durable(names)? {
            return Ok(());
        }
        self.sync_dir(dir)?;
        // Checked again: another sync may have failed meanwhile.
        let are_durable = self.names.lock().are_durable(names)?;
        assert!(are_durable, "names are made before they are synced");
        Ok(())
    }

    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        self.fs.sync_files(files)
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.fs.try_lock(path)
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.fs.try_lock_shared(path)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.fs.free_bytes(dir)
    }

    fn hold_dir(&self, dir: &Path) -> Result<HeldDir> {
        self.fs.hold_dir(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, FsOp, MemFs, OpKind};

    /// A folder whose syncs can be made to fail.
    struct Folder {
        mem: MemFs,
        faults: FaultFs,
        fs: Arc<FolderFs>,
    }

    fn dir() -> &'static Path {
        Path::new("/d")
    }

    fn name(name: &str) -> PathBuf {
        dir().join(name)
    }

    impl Folder {
        fn new() -> Folder {
            let mem = MemFs::new();
            mem.create_dir(dir()).unwrap();
            let faults = FaultFs::over_mem(mem.clone());
            let fs = Arc::new(FolderFs::new(Arc::new(faults.clone())));
            Folder { mem, faults, fs }
        }

        fn make(&self, file: &str) {
            self.fs.open_append(&name(file), AppendMode::IfAbsent).unwrap();
        }

        /// Breaks the next operation of this kind.
        fn fail(&self, kind: OpKind, action: FaultAction) {
            let at = FaultAt::Nth { kind, suffix: String::new(), nth: 0 };
            self.faults.add_rule(FaultRule::once(at, action));
        }

        fn sync(&self, file: &str) -> Result<()> {
            self.fs.sync_names(dir(), &[name(file)])
        }

        /// The names that certainly survive a power cut.
        fn durable(&self) -> Vec<String> {
            let left = self.mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
            left.list_names(dir(), "").unwrap()
        }
    }

    #[test]
    fn names_of_a_failed_sync_stay_in_doubt_whoever_asked_for_it() {
        let it = Folder::new();
        it.make("synced");
        it.sync("synced").unwrap();
        it.make("table");
        it.fs.link(&name("synced"), &name("linked")).unwrap();
        it.fail(OpKind::SyncDir, FaultAction::SyncLost);
        it.make("of the failed call");
        it.sync("of the failed call").unwrap_err();
        it.make("later");
        // The kernel says that all is well.
        it.fs.sync_dir(dir()).unwrap();
        for doubtful in ["table", "linked", "of the failed call"] {
            let error = it.sync(doubtful).unwrap_err();
            assert!(error.to_string().contains(doubtful), "{error}");
        }
        it.sync("synced").unwrap();
        it.sync("later").unwrap();
        assert_eq!(it.durable(), ["later", "synced"]);
        // A name that is made again is another one.
        it.fs.delete(&name("table")).unwrap();
        it.make("table");
        it.sync("table").unwrap();
        assert_eq!(it.durable(), ["later", "synced", "table"]);
    }

    #[test]
    fn a_publication_whose_last_step_fails_is_a_failed_sync_of_its_folder() {
        for (action, is_doubtful) in [(FaultAction::SyncLost, true), (FaultAction::Enospc, false)] {
            let it = Folder::new();
            it.make("table");
            it.fail(OpKind::PutIfAbsent, action);
            it.fs.put_if_absent(&name("manifest"), b"edits").unwrap_err();
            assert_eq!(it.sync("table").is_err(), is_doubtful);
            assert!(it.fs.put_if_absent(&name("next"), b"edits").unwrap());
            assert!(!it.fs.put_if_absent(&name("next"), b"edits").unwrap());
            assert_eq!(it.durable().contains(&"table".to_owned()), !is_doubtful);
        }
    }

    /// The folder could not be opened for the last step: nothing is in doubt, and the next sync saves the
    /// name.
    #[test]
    fn a_folder_that_cannot_be_opened_is_no_failed_sync() {
        let it = Folder::new();
        it.make("table");
        it.fail(OpKind::SyncDir, FaultAction::Emfile);
        assert!(is_out_of_handles(&it.sync("table").unwrap_err()));
        it.sync("table").unwrap();
        it.fail(OpKind::PutIfAbsent, FaultAction::Emfile);
        it.fs.put_if_absent(&name("not published"), b"edits").unwrap_err();
        it.fail(OpKind::PutIfAbsent, FaultAction::EmfileAtSync);
        it.fs.put_if_absent(&name("published"), b"edits").unwrap_err();
        assert_eq!(it.durable(), ["table"]);
        it.sync("published").unwrap();
        assert_eq!(it.durable(), ["published", "table"]);
    }

    #[test]
    fn a_sync_that_fails_while_a_name_is_made_or_published_or_synced_is_one_of_that_name() {
        for kind in [OpKind::Create, OpKind::PutIfAbsent, OpKind::SyncDir] {
            let it = Folder::new();
            let other = it.fs.clone();
            let faults = it.faults.clone();
            if kind == OpKind::SyncDir {
                it.make("file");
            }
            // Another thread's sync.
            it.faults.set_observer(Arc::new(move |op: &FsOp| {
                if op.kind == kind {
                    faults.clear_observer();
                    let at = FaultAt::Op(faults.op_count());
                    faults.add_rule(FaultRule::once(at, FaultAction::SyncLost));
                    other.sync_dir(dir()).unwrap_err();
                }
            }));
            let relied_on = match kind {
                OpKind::PutIfAbsent => it.fs.put_if_absent(&name("file"), b"").map(drop),
                OpKind::Create => {
                    it.make("file");
                    it.sync("file")
                }
                _ => it.sync("file"),
            };
            relied_on.unwrap_err();
        }
    }

    #[test]
    fn a_sync_that_began_before_a_name_was_made_says_nothing_of_it() {
        let it = Folder::new();
        it.make("before");
        let other = it.fs.clone();
        let faults = it.faults.clone();
        it.faults.set_observer(Arc::new(move |op: &FsOp| {
            if op.kind == OpKind::Create {
                faults.clear_observer();
                other.sync_dir(dir()).unwrap();
            }
        }));
        it.make("file");
        assert_eq!(it.durable(), ["before"]);
        it.faults.start_log();
        it.sync("file").unwrap();
        it.sync("file").unwrap();
        it.sync("before").unwrap();
        assert_eq!(it.faults.take_log().len(), 1, "a durable name needs no other sync");
        assert_eq!(it.durable(), ["before", "file"]);
    }
}
