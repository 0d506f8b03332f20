//! [`ProvidedHooks`]: where the code of hooks comes from, whoever opens the database: from the
//! application first, then from the crates that belong to siltstone.
//!
//! [`Builder`](crate::Builder) registers one with every database. It must never answer for a hook
//! whose parameters it does not understand.

use std::sync::Arc;

use lsm_core::filters::PrefixDropFilter;
use lsm_core::hooks::{CompactionFilterFactory, HookProvider, ValueStoreFactory};
use metahive::MetaHive;

/// See the module.
pub(crate) struct ProvidedHooks {
    /// The application's own provider, asked first.
    pub(crate) application: Option<Arc<dyn HookProvider>>,
}

/// The hooks that need nothing from the application.
fn provided(name: &str, params: &[u8]) -> Option<Arc<dyn CompactionFilterFactory>> {
    match name {
        MetaHive::NAME => Some(Arc::new(MetaHive::from_params(params)?)),
        PrefixDropFilter::NAME => Some(Arc::new(PrefixDropFilter::from_params(params)?)),
        _ => None,
    }
}

impl HookProvider for ProvidedHooks {
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        let own = self.application.as_ref();
        let own = own.and_then(|application| application.compaction_filter(name, params));
        own.or_else(|| provided(name, params))
    }

    fn value_store(&self, name: &str, params: &[u8]) -> Option<Arc<dyn ValueStoreFactory>> {
        self.application.as_ref()?.value_store(name, params)
    }
}
