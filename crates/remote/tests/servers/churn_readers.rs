//! The readers and the restores of the churn.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, UNIX_EPOCH};

use remote::{RemoteReader, RestoreTarget};
use siltstone::clock::Clock;
use siltstone::secondary::{Level, ReadOptions, Reading, Secondary, Target};
use siltstone::{Db, ErrorKind, Result};
use testkit::Rng;

use crate::churn::{FLEETING, LARGE, NAMES, Shared};
use crate::churn_model::{Seen, scan};

/// Looks through one reader, before it goes.
const LOOKS: u64 = 40;
/// Looks at a view that stays open.
const VIEW_LOOKS: u64 = 12;

/// A view that is kept.
struct View {
    name: &'static str,
    reading: Reading,
    seen: Seen,
    looks: u64,
}

struct Looker<'a> {
    shared: &'a Shared,
    reader: RemoteReader,
    secondary: Secondary,
    has_lease: bool,
    view: Option<View>,
    /// The begin of the last renewal.
    renewed: Duration,
}

impl<'a> Looker<'a> {
    fn new(shared: &'a Shared, has_lease: bool) -> Looker<'a> {
        let remote = shared.remote.clone().cache_bytes(2 << 20);
        let renewed = shared.clock.now();
        let reader = remote.lease(has_lease.then_some(shared.pace.lease)).reader().unwrap();
        let secondary = reader.secondary().open().unwrap();
        Looker { shared, reader, secondary, has_lease, view: None, renewed }
    }

    /// The time for which the bucket surely keeps what the reader needs: all that a run which is stopped, or starved, may
    /// fail after.
    fn is_late(&self, since: Duration) -> bool {
        let pace = &self.shared.pace;
        let now = self.shared.clock.now();
        match self.has_lease {
            // A lease counts for five intervals.
            true => now > self.renewed + 4 * pace.lease,
            false => now > since + pace.retention,
        }
    }

    /// Reads a partition as it is now. `None` if it does not exist.
    fn read(&self, name: &str) -> Result<Option<(Reading, Seen)>> {
        match self.read_existing(name) {
            Err(error) if error.kind() == ErrorKind::PartitionNotFound => Ok(None),
            read => read.map(Some),
        }
    }

    fn read_existing(&self, name: &str) -> Result<(Reading, Seen)> {
        self.secondary.sync(Target::Latest)?;
        let partition = self.secondary.partition(name)?;
        let options = ReadOptions::new(Level::Strong).wait(Duration::from_secs(600));
        let reading = partition.read(&options)?;
        let seen = scan(&reading)?;
        Ok((reading, seen))
    }

    /// Returns `false` if the reader was late, and should begin again.
    fn look(&mut self, name: &'static str) -> bool {
        if self.has_lease {
            let renewed = self.shared.clock.now();
            self.reader.renew_lease().unwrap();
            self.renewed = renewed;
        }
        let begun = self.shared.clock.now();
        if let Some(view) = &mut self.view {
            view.looks += 1;
            match scan(&view.reading) {
                Ok(seen) => assert_eq!(seen, view.seen, "a view of {} changes", view.name),
                Err(error) => {
                    let what = format!("look {} at a view of {}: {error}", view.looks, view.name);
                    // A secondary opens chunk files by their names, when it reads a value.
                    let is_chunk = view.name == LARGE && error.kind() == ErrorKind::FileGone;
                    assert!(is_chunk || self.is_late(begun), "{what}");
                    return false;
                }
            }
        }
        self.view.take_if(|view| view.looks == VIEW_LOOKS);
        let least = self.shared.history.lock().acknowledged(name);
        let read = match self.read(name) {
            Ok(read) => read,
            Err(error) => {
                assert!(self.is_late(begun), "a look at {name}: {error}");
                return false;
            }
        };
        let seen = read.as_ref().map(|(_, seen)| *seen);
        self.shared.history.lock().check(name, seen, least, "a reader");
        if let Some((reading, seen)) = read
            && self.has_lease
            && name != FLEETING
        {
            self.view.get_or_insert(View { name, reading, seen, looks: 0 });
        }
        true
    }
}

/// Looks at the partitions whenever it is asked to, by one reader after the other.
pub fn read_on(shared: &Shared, mut rng: Rng, has_lease: bool, looks: &Receiver<()>) {
    loop {
        let mut looker = Looker::new(shared, has_lease);
        for _ in 0..LOOKS {
            if looks.recv().is_err() {
                return;
            }
            if !looker.look(NAMES[rng.index(NAMES.len())]) {
                break;
            }
        }
    }
}

/// Restores a moment, and returns its last commit.
pub fn restore_and_check(shared: &Shared, folder: &Path, at: RestoreTarget) -> Result<u64> {
    shared.remote.restore(folder, at)?;
    let db = Db::builder(folder).open()?;
    let mut seen = BTreeMap::new();
    for name in NAMES {
        if db.has_partition(name) {
            seen.insert(name.to_owned(), scan(&db.open_partition(name)?)?);
        }
    }
    db.close()?;
    std::fs::remove_dir_all(folder).unwrap();
    Ok(shared.history.lock().check_cut(&seen, &format!("a restore to {at:?}")))
}

/// Restores a moment whenever it is asked to.
pub fn restore_on(shared: &Shared, mut rng: Rng, folder: PathBuf, looks: &Receiver<()>) {
    let half = shared.pace.retention / 2;
    while looks.recv().is_ok() {
        let least = shared.history.lock().acknowledged("0");
        let asked = shared.clock.now();
        if shared.clock.now() < shared.pace.retention || rng.chance(1, 2) {
            let last = restore_and_check(shared, &folder, RestoreTarget::Latest).unwrap();
            assert!(last >= least, "commit {least} was acknowledged before the restore of {last}");
            continue;
        }
        let time = shared.clock.unix_time().saturating_sub(half);
        match restore_and_check(shared, &folder, RestoreTarget::Time(UNIX_EPOCH + time)) {
            Ok(last) => shared.history.lock().check_time(last, time),
            // It was stopped, or starved, before it had its lease.
            Err(error) => assert!(shared.clock.now() > asked + half / 2, "{error}"),
        }
    }
}
