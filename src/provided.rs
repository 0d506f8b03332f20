//! [`ProvidedHooks`]: the code of the hooks that come with this crate, for `Builder::hooks`.
//!
//! It must never answer for a hook whose parameters it does not understand.

use std::sync::Arc;

use lsm_core::filters::PrefixDropFilter;
use lsm_core::hooks::{CompactionFilterFactory, HookProvider};
use metahive::MetaHive;

/// Finds the hooks of this crate that need nothing from the application.
///
/// ```
/// use std::sync::Arc;
///
/// use siltstone::{Db, Hooks, MetaHive, PartitionOptions, ProvidedHooks};
///
/// # fn main() -> siltstone::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary folder");
/// let db = Db::builder(dir.path()).hooks(Arc::new(ProvidedHooks)).open()?;
/// let hooks = Hooks::new().filter(Arc::new(MetaHive::default()));
/// let ledger = db.partition_with_hooks("ledger", PartitionOptions::new(), hooks)?;
/// ledger.put("alice", "12")?;
/// # db.close()
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ProvidedHooks;

impl HookProvider for ProvidedHooks {
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        match name {
            MetaHive::NAME => Some(Arc::new(MetaHive::from_params(params)?)),
            PrefixDropFilter::NAME => Some(Arc::new(PrefixDropFilter::from_params(params)?)),
            _ => None,
        }
    }
}
