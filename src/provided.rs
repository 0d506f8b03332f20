//! [`ProvidedHooks`]: the source of the code of hooks in the crates that belong to siltstone.
//!
//! It also adds the parts of a partition's MetaHive that are not stored, for example replicas.
//!
//! [`Builder`](crate::Builder) registers one with every database, after the source of the
//! application. It must not return a hook whose parameters it does not understand.

use std::collections::HashMap;
use std::sync::Arc;

use largeval::LargeValues;
use lsm_core::filters::{PrefixDropFilter, TtlFilter};
use lsm_core::hooks::{CompactionFilterFactory, HookProvider, MergeOperator, ValueStoreFactory};
use lsm_core::operators;
use metahive::{MetaHive, MetaHiveOptions};

/// The hooks of siltstone's own crates, by name.
pub(crate) struct ProvidedHooks {
    /// Of each partition that the builder names.
    pub(crate) metahive: HashMap<String, MetaHiveOptions>,
    /// The merge operators that the application supplies.
    pub(crate) operators: Vec<Arc<dyn MergeOperator>>,
}

/// The hooks that need nothing from the application.
fn provided(name: &str, params: &[u8]) -> Option<Arc<dyn CompactionFilterFactory>> {
    match name {
        // `None` for unknown parameters. A hook with other parameters than the stored ones would
        // verify or remove entries by rules that the application has not set.
        MetaHive::NAME => Some(Arc::new(MetaHive::from_params(params)?)),
        PrefixDropFilter::NAME => Some(Arc::new(PrefixDropFilter::from_params(params)?)),
        TtlFilter::NAME => Some(Arc::new(TtlFilter::from_params(params)?)),
        _ => None,
    }
}

impl HookProvider for ProvidedHooks {
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        provided(name, params)
    }

    fn compaction_filter_of(
        &self,
        partition: &str,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        // For a partition that names MetaHive. The options of the builder turn nothing on.
        let options = self.metahive.get(partition).filter(|_| name == MetaHive::NAME);
        // The engine compares the stored parameters with these before it uses the hook, see
        // `check_stored`.
        let given = options.map(|options| Arc::new(MetaHive::new(options.clone())) as Arc<_>);
        given.or_else(|| provided(name, params))
    }

    fn value_store(&self, name: &str, params: &[u8]) -> Option<Arc<dyn ValueStoreFactory>> {
        match name {
            LargeValues::NAME => Some(Arc::new(LargeValues::from_params(params)?)),
            _ => None,
        }
    }

    fn merge_operator(&self, name: &str, params: &[u8]) -> Option<Arc<dyn MergeOperator>> {
        let mut supplied = self.operators.iter();
        let found = supplied.find(|it| it.name() == name && it.params() == params);
        found.cloned().or_else(|| operators::ready_made(name, params))
    }
}
