//! The engines as implementations of one trait, by name.
//!
//! Each is opened with the same [`Settings`], used only through [`testkit::bench::Engine`], and
//! closed.

#[cfg(feature = "berkeley")]
mod berkeley;
mod files;
mod fjall;
mod leveldb;
mod lmdb;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod siltstone;
mod sled;

use std::error::Error;
use std::path::Path;

use testkit::bench::Engine;

use crate::settings::Settings;

#[cfg(feature = "berkeley")]
pub use self::berkeley::Berkeley;
pub use self::files::Files;
pub use self::fjall::Fjall;
pub use self::leveldb::LevelDb;
pub use self::lmdb::Lmdb;
pub use self::redb::Redb;
#[cfg(feature = "rocksdb")]
pub use self::rocksdb::RocksDb;
pub use self::siltstone::Siltstone;
pub use self::sled::Sled;

/// The error of any engine.
pub type Fault = Box<dyn Error + Send + Sync>;

/// An engine from its begin to its end.
pub trait Peer: Engine<Error = Fault> {
    /// Opens the database in `folder`; a new one if it is empty.
    fn open(folder: &Path, settings: &Settings) -> Result<Self, Fault>;

    /// Reads the value of `key` into `buf`, which is long enough. Returns its length.
    fn read_into(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Fault>;

    /// Passes the value of `key` to `visit` without a copy. Returns whether it exists, or `None` if
    /// the engine lends no values.
    fn lend(&self, _key: &[u8], _visit: &mut dyn FnMut(&[u8])) -> Result<Option<bool>, Fault> {
        Ok(None)
    }

    /// Frees the space of deleted values, and returns when that is done.
    fn reclaim(&self) -> Result<(), Fault> {
        self.settle()
    }

    /// Writes what is in memory to tables, and waits for compactions that are due. `None` if the engine has no such call;
    /// so do those below.
    fn flush(&self) -> Result<Option<()>, Fault> {
        Ok(None)
    }

    /// Deletes all keys from `start` on and before `end` by one operation.
    fn delete_range(&self, _start: &[u8], _end: &[u8]) -> Result<Option<()>, Fault> {
        Ok(None)
    }

    /// Adds 1 to the counter `key` by a merge.
    fn merge(&self, _key: &[u8]) -> Result<Option<()>, Fault> {
        Ok(None)
    }

    /// Adds 1 to the counter `key` by a read and a write; as one operation, if the engine can.
    fn update(&self, _key: &[u8]) -> Result<Option<()>, Fault> {
        Ok(None)
    }

    /// The number of entries with `prefix`, whose length is that of the settings.
    fn count_prefix(&self, _prefix: &[u8]) -> Result<Option<u64>, Fault> {
        Ok(None)
    }

    /// Adds a backup to those in `folder`, which share what is the same.
    fn back_up(&self, _folder: &Path) -> Result<Option<()>, Fault> {
        Ok(None)
    }

    /// Passes all puts that are in the log to `visit`, in the order of their commits.
    fn follow(&self, _visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<()>, Fault> {
        Ok(None)
    }

    /// Closes it; this is the last handle.
    fn close(self) -> Result<(), Fault>;

    /// Version of the engine.
    fn version() -> String;
}

/// The name of the engine that the report compares with the others.
pub const OURS: &str = "siltstone";
const OURS_MAPPED: &str = "siltstone-mapped";

/// Returns `true` for the engine that is compared with the others, with any options.
pub fn is_ours(name: &str) -> bool {
    [OURS, OURS_MAPPED].contains(&name)
}

/// Work that is done with one engine; its name chooses the type, see [`with_engine`].
pub trait Task {
    /// Its outcome.
    type Outcome;

    /// Runs it with `P`.
    fn with<P: Peer>(self) -> Self::Outcome;
}

/// Every engine by name, in the order of the report.
pub const NAMES: [&str; 12] = [
    OURS,
    OURS_MAPPED,
    "rocksdb",
    "rocksdb-blob",
    "fjall",
    "leveldb",
    "lmdb",
    "lmdb-map",
    "redb",
    "sled",
    "berkeley",
    "files",
];

/// Does `task` with the engine `name`; `None` for a name that is no engine's, or one that was not
/// compiled in.
pub fn with_engine<T: Task>(name: &str, task: T) -> Option<T::Outcome> {
    Some(match name {
        OURS => task.with::<Siltstone<false>>(),
        OURS_MAPPED => task.with::<Siltstone<true>>(),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => task.with::<RocksDb<false>>(),
        #[cfg(feature = "rocksdb")]
        "rocksdb-blob" => task.with::<RocksDb<true>>(),
        "fjall" => task.with::<Fjall>(),
        "leveldb" => task.with::<LevelDb>(),
        "lmdb" => task.with::<Lmdb<false>>(),
        "lmdb-map" => task.with::<Lmdb<true>>(),
        "redb" => task.with::<Redb>(),
        "sled" => task.with::<Sled>(),
        #[cfg(feature = "berkeley")]
        "berkeley" => task.with::<Berkeley>(),
        "files" => task.with::<Files>(),
        _ => return None,
    })
}

struct Version;

impl Task for Version {
    type Outcome = String;

    fn with<P: Peer>(self) -> String {
        P::version()
    }
}

/// The version of the engine `name`; `None` as [`with_engine`].
pub fn version(name: &str) -> Option<String> {
    with_engine(name, Version)
}

/// The value of a counter after an increment.
fn incremented(old: Option<&[u8]>) -> Result<[u8; 8], Fault> {
    let old = old.map_or(Ok(0), |old| old.try_into().map(i64::from_le_bytes))?;
    Ok((old + 1).to_le_bytes())
}

/// Copies `value` to `buf`. Returns its length.
fn filled(buf: &mut [u8], value: &[u8]) -> Result<usize, Fault> {
    buf.get_mut(..value.len()).ok_or("the buffer is too small")?.copy_from_slice(value);
    Ok(value.len())
}

/// The bytes of hex digits; `None` if they are none, or no pairs.
pub fn bytes_of_hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| {
        // A sign would be read as well.
        let is_hex = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
        let pair = std::str::from_utf8(pair).ok().filter(|_| is_hex)?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect()
}

/// The version of a dependency, as locked.
fn locked_version(package: &str) -> String {
    let lock = include_str!("../../Cargo.lock");
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    let version = lines.nth(1).and_then(|line| line.strip_prefix("version = "));
    version.unwrap_or("unknown").trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests;
