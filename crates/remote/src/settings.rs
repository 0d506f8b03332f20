//! [`Settings`]: the options of a remote, for the files that use them; [`Ack`].

use std::sync::Arc;
use std::time::Duration;

use lsm_core::fs::Fs;

use crate::bucket::Bucket;
use crate::disk_cache::CacheFolder;
use crate::sealed::ObjectSeal;
use crate::store::{Store, Timer};

/// The meaning of an acknowledgement at [`Durability::Sync`](siltstone::Durability::Sync).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ack {
    /// The bucket has the commit. It survives the loss of the machine, and each takeover keeps it. The default.
    #[default]
    Stored,
    /// The local disk has the commit. The bucket gets it within [`Remote::interval`](crate::Remote::interval); a takeover while the machine
    /// is lost or cut off loses what was not stored yet.
    Local,
}

impl Ack {
    pub(crate) fn number(self) -> u32 {
        match self {
            Ack::Stored => 0,
            Ack::Local => 1,
        }
    }

    pub(crate) fn of_number(number: u32) -> Option<Ack> {
        match number {
            0 => Some(Ack::Stored),
            1 => Some(Ack::Local),
            _ => None,
        }
    }
}

/// The options of a remote, which [`Remote`](crate::Remote) documents.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) store: Arc<dyn Store>,
    /// Encrypts what goes into the store.
    pub(crate) seal: Option<Arc<dyn ObjectSeal>>,
    /// The URL that names it.
    pub(crate) url: Option<String>,
    pub(crate) timer: Arc<dyn Timer>,
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) ack: Ack,
    pub(crate) interval: Duration,
    pub(crate) patience: Duration,
    /// Changes that are not stored.
    pub(crate) backlog_bytes: u64,
    pub(crate) cache_bytes: u64,
    /// Of readers; shared by the copies of a remote.
    pub(crate) disk: Option<Arc<CacheFolder>>,
    pub(crate) is_stepped: bool,
    /// In bytes a second; 0 for none.
    pub(crate) restore_rate: u64,
    pub(crate) retention: Duration,
    pub(crate) grace: Duration,
    /// `None` if readers take no lease.
    pub(crate) lease: Option<Duration>,
    /// Of primaries; zero for none.
    pub(crate) read_lease: Duration,
}

impl Settings {
    pub(crate) fn bucket(&self) -> Bucket {
        let mut bucket = Bucket::new(self.store.clone(), self.timer.clone(), self.patience);
        bucket.seal.clone_from(&self.seal);
        bucket.is_stepped = self.is_stepped;
        bucket
    }
}
