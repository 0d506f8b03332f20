//! [`FollowOptions`]: from a folder to a [`Follower`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};

use super::attach::open_manifest;
use super::position::FollowPosition;
use super::{Follower, FollowerState, Inner, SyncExtent};
use crate::clock::{CalendarGuard, Clock, SystemClock};
use crate::db::Resources;
use crate::db::open::random_from_hasher_keys;
use crate::db::resources::{block_cache, followed_memory, open_files};
use crate::error::Result;
use crate::fs::{FolderFs, Fs, OsFs};
use crate::hooks::HookProvider;
use crate::memtable::{Memtable, SlabPool};
use crate::options::Options;
use crate::shared::Lease;
use crate::types::{MemtableId, Opened};
use crate::version::{Missing, PrefixCounts, TableContext};

/// Options of a [`Follower`], and what it uses of the machine: file system and clock.
#[must_use = "options do nothing until they open"]
pub struct FollowOptions {
    /// The folder of the database.
    pub dir: PathBuf,
    /// The file system. Default: the operating system's.
    pub fs: Arc<dyn Fs>,
    /// The clock. Default: the machine's monotonic one.
    pub clock: Arc<dyn Clock>,
    /// The code of the hooks that partitions name. Default: none.
    pub hooks: Option<Arc<dyn HookProvider>>,
    /// The options; a follower uses the size of the block cache and the number of open files.
    pub options: Options,
    /// Takes a lease, or none. Default: it takes one. Without one the primary may delete files that
    /// are read here; that is right for a copy that is not written, and for a medium that cannot be
    /// written.
    pub takes_lease: bool,
    /// Follows the flushed tables of the primary, and not its log. Default: `false`.
    pub follows_tables_only: bool,
    /// The maximum memory for unflushed data of the primary, in bytes. Default 1 GiB.
    pub memtable_bytes_max: u64,
    /// Shared with databases of the process: their block cache and bound of open files.
    pub resources: Option<Resources>,
}

impl FollowOptions {
    /// The defaults, for following the database in the folder `path`.
    pub fn new(path: impl AsRef<Path>) -> FollowOptions {
        FollowOptions {
            dir: path.as_ref().to_owned(),
            fs: Arc::new(OsFs),
            clock: Arc::new(SystemClock::new()),
            hooks: None,
            options: Options::default(),
            takes_lease: true,
            follows_tables_only: false,
            memtable_bytes_max: 1 << 30,
            resources: None,
        }
    }

    /// Opens the existing database.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::error::ErrorKind::Io) with [`NotFound`](std::io::ErrorKind::NotFound) if there is none;
    /// corruption; the errors of the file system.
    pub fn open(self) -> Result<Follower> {
        self.options.check()?;
        self.resources.as_ref().map_or(Ok(()), Resources::check_process)?;
        let opened = Opened::note()?;
        let FollowOptions { dir, fs, clock, hooks, options, takes_lease, .. } = self;
        // Held, because the primary's folder may be renamed while it is followed.
        let (fs, dir) = FolderFs::hold(fs, &dir)?;
        // Before the manifest is read, so that no file that it names is deleted meanwhile.
        let lease = match takes_lease {
            true => Lease::take_if_writable(&fs, &dir, Box::new(random_from_hasher_keys))?,
            false => None,
        };
        let manifest = open_manifest(&*fs, &dir, None)?;
        let version = manifest.version().clone();
        let resources = self.resources;
        let cache = block_cache(resources.as_ref(), &options);
        let files = open_files(resources.as_ref(), fs.clone(), &options);
        let tables = Arc::new(TableContext {
            fs: fs.clone(),
            dir: dir.clone(),
            db_id: version.db_id,
            // A lease holds every file that is read here, so a missing one means that the lease was
            // revoked.
            missing: if lease.is_some() { Missing::LeaseLost } else { Missing::Gone },
            cache: cache.blocks(),
            are_mapped: options.tables_mapped,
            files: Some(files.clone()),
            prefix_counts: PrefixCounts::default(),
        });
        let slabs = Arc::new(SlabPool::new(options.write_buffer_bytes));
        let present = FollowerState { cursor: None, epoch: version.epoch, edit: 0 };
        let inner = Arc::new(Inner {
            fs,
            dir,
            calendar: CalendarGuard::new(&*clock),
            clock,
            files,
            tables,
            follows_tables_only: self.follows_tables_only,
            memtable_bytes_max: self.memtable_bytes_max,
            empty: Arc::new(Memtable::new(MemtableId(0), &slabs).without_dead()),
            slabs,
            memory: followed_memory(resources.as_ref()),
            provider: hooks,
            resources,
            pins: Arc::default(),
            partitions: RwLock::default(),
            present: ArcSwap::from_pointee(present),
            cut: ArcSwap::default(),
            position: Mutex::new(FollowPosition::new(manifest, lease)),
            _opened: opened,
        });
        let follower = Follower { inner };
        // Only the list of partitions: their content is read when it is requested.
        follower.sync(SyncExtent::Layout)?;
        Ok(follower)
    }
}
