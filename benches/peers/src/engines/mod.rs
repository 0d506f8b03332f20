//! The engines behind one face, by name.
//!
//! Each is opened on an empty folder with the same [`Settings`], asked only through
//! [`testkit::bench::Engine`], and closed.

mod fjall;
mod leveldb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod siltstone;

use std::error::Error;
use std::path::Path;

use testkit::bench::Engine;

use crate::settings::Settings;

pub use self::fjall::Fjall;
pub use self::leveldb::LevelDb;
#[cfg(feature = "rocksdb")]
pub use self::rocksdb::RocksDb;
pub use self::siltstone::Siltstone;

/// Why a call of any engine failed.
pub type Fault = Box<dyn Error + Send + Sync>;

/// An engine from its begin to its end.
pub trait Peer: Engine<Error = Fault> {
    /// Opens a new database in `folder`, which is empty.
    fn open(folder: &Path, settings: &Settings) -> Result<Self, Fault>;

    /// Closes it; this is the last handle.
    fn close(self) -> Result<(), Fault>;

    /// Version of the engine.
    fn version() -> String;
}

/// The name by which the report knows the engine that is compared with the others.
pub const OURS: &str = "siltstone";

/// Every engine by name, in the order of the report.
pub const NAMES: [&str; 5] = [OURS, "rocksdb", "rocksdb-blob", "fjall", "leveldb"];

/// The version of the engine `name`; `None` for a name that is no engine's, or one that was
/// not compiled in.
pub fn version(name: &str) -> Option<String> {
    Some(match name {
        OURS => Siltstone::version(),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => RocksDb::<false>::version(),
        #[cfg(feature = "rocksdb")]
        "rocksdb-blob" => RocksDb::<true>::version(),
        "fjall" => Fjall::version(),
        "leveldb" => LevelDb::version(),
        _ => return None,
    })
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
