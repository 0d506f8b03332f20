//! [`Builder`]: the engine's builder, with the hooks of this crate always registered.

use std::path::Path;
use std::sync::Arc;

use lsm_core::clock::Clock;
use lsm_core::error::Result;
use lsm_core::fs::Fs;
use lsm_core::hooks::{EventListener, HookProvider, Origin, OwnedEntry};
use lsm_core::options::Options;

use crate::db::Db;
use crate::provided::ProvidedHooks;

/// Options for opening a database, and the world that it lives in.
#[must_use = "a builder does nothing until it opens"]
pub struct Builder {
    engine: lsm_core::Builder,
    /// Where the application's own hooks are.
    application: Option<Arc<dyn HookProvider>>,
}

/// Calls the engine's builder for each method that has its name there.
macro_rules! forwarded {
    ($($(#[$attribute:meta])* $name:ident: $type:ty,)*) => {
        $(
            $(#[$attribute])*
            pub fn $name(mut self, $name: $type) -> Builder {
                self.engine = self.engine.$name($name);
                self
            }
        )*
    };
}

impl Builder {
    forwarded! {
        /// All options at once.
        options: Options,
        /// [`Options::cache_bytes`].
        cache_bytes: u64,
        /// [`Options::write_buffer_bytes`].
        write_buffer_bytes: u64,
        /// [`Options::sync_interval_ms`].
        sync_interval_ms: u64,
        /// Another file system, for tests and exotic media. Default: the operating system's.
        fs: Arc<dyn Fs>,
        /// Another clock. Default: the machine's monotonic one.
        clock: Arc<dyn Clock>,
        /// Who does background work. Default: threads.
        background: crate::BackgroundMode,
        /// Another source of random numbers, which name databases and salt log segments. Default:
        /// the operating system's, through the standard library's hasher keys.
        random: impl FnMut() -> u64 + Send + 'static,
        /// Tells `listener` what happens in the background. May be called for several.
        listener: Arc<dyn EventListener>,
        /// Changes entries between the reading and the writing of flushes and compactions: for
        /// tests of what finds memory faults.
        #[doc(hidden)]
        inject: impl Fn(Origin, &mut OwnedEntry) + Send + Sync + 'static,
    }

    pub(crate) fn new(dir: &Path) -> Builder {
        Builder { engine: lsm_core::Db::builder(dir), application: None }
    }

    /// Where the code of the application's own hooks is that partitions name: filters that are no
    /// part of this crate, and [`MetaHive`](crate::MetaHive) with a provider of metadata of the
    /// application. It is asked before the hooks of this crate. Default: none.
    ///
    /// A partition with a hook whose code is not found opens without it if the hook says so
    /// ([`WhenAbsent`](crate::hooks::WhenAbsent)), as MetaHive and all compaction filters of this
    /// crate do; until [`Db::partition_with`] gives it again, flushes and compactions run without.
    pub fn hooks(mut self, provider: Arc<dyn HookProvider>) -> Builder {
        self.application = Some(provider);
        self
    }

    /// Opens the database.
    ///
    /// # Errors
    /// As [`Db::open`]; also options out of their range.
    pub fn open(self) -> Result<Db> {
        let hooks = ProvidedHooks { application: self.application };
        self.engine.hooks(Arc::new(hooks)).open().map(Db)
    }
}
