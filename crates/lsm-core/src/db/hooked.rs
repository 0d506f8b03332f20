//! Attaching hooks to partitions: finding their code, checking their rules, turning them on and
//! off.
//!
//! Invariants:
//! 1. What the manifest says of a partition's hooks is enforced whether their code is there or
//!    not.
//! 2. A suffix becomes reserved only after a scan found no key with it, and no write slips in
//!    between: the commit path looks again at writes that were checked under older rules.

use std::sync::Arc;

use super::DbInner;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{
    HookProvider, Hooks, PartitionHooks, Rules, WhenAbsent, guarded_filter, guarded_store,
};
use crate::iter::{MergeIter, VisibleIter};
use crate::partition::{PartitionState, ReadView};
use crate::read::Source;
use crate::types::SeqNo;
use crate::version::{Change, HookKind, HookRecord};

/// How many keys an error names.
const KEYS_NAMED: usize = 5;

/// The records of `hooks`, as the manifest keeps them.
pub(super) fn records_of(hooks: &Hooks) -> Result<Vec<HookRecord>> {
    let filters = hooks.filters.iter().map(|filter| HookRecord {
        kind: HookKind::Filter,
        name: filter.name().to_owned(),
        params: filter.params(),
        rules: filter.rules(),
    });
    let store = hooks.store.iter().map(|store| HookRecord {
        kind: HookKind::ValueStore,
        name: store.name().to_owned(),
        params: store.params(),
        rules: Rules { when_absent: WhenAbsent::Refuse, ..Rules::default() },
    });
    let records: Vec<_> = filters.chain(store).collect();
    let invalid = |message: &str| Err(Error::new(ErrorKind::InvalidArgument, message));
    if hooks.filters.iter().filter(|filter| filter.seals()).count() > 1 {
        return invalid("a partition has at most one filter that seals");
    }
    if records.iter().filter(|record| !record.rules.reserved_suffix.is_empty()).count() > 1 {
        return invalid("a partition has at most one filter that reserves a suffix");
    }
    Ok(records)
}

/// What all records together enforce.
fn rules_of(records: &[HookRecord]) -> Rules {
    let mut rules = Rules::default();
    for record in records {
        if !record.rules.reserved_suffix.is_empty() {
            rules.reserved_suffix.clone_from(&record.rules.reserved_suffix);
        }
        rules.any_key |= record.rules.any_key;
    }
    rules
}

/// Hooks with their code at hand, for the partition `name`.
pub(super) fn attached(name: &Arc<str>, hooks: &Hooks, records: &[HookRecord]) -> PartitionHooks {
    PartitionHooks {
        filters: hooks.filters.iter().map(|filter| guarded_filter(name, filter)).collect(),
        store: hooks.store.as_ref().map(|store| guarded_store(name, store)),
        rules: rules_of(records),
        missing: None,
    }
}

/// The hooks of the partition `partition` by what the manifest says and what code is at hand.
pub(super) fn resolve(
    partition: &Arc<str>,
    records: &[HookRecord],
    provider: Option<&dyn HookProvider>,
) -> PartitionHooks {
    let mut hooks = PartitionHooks { rules: rules_of(records), ..PartitionHooks::default() };
    for HookRecord { kind, name, params, rules } in records {
        let found = match kind {
            HookKind::Filter => {
                let filter = provider.and_then(|p| p.compaction_filter(name, params));
                let found = filter.is_some();
                hooks.filters.extend(filter.map(|filter| guarded_filter(partition, &filter)));
                found
            }
            HookKind::ValueStore => {
                let store = provider.and_then(|p| p.value_store(name, params));
                hooks.store = store.map(|store| guarded_store(partition, &store));
                hooks.store.is_some()
            }
        };
        if !found && rules.when_absent == WhenAbsent::Refuse {
            hooks.missing.get_or_insert_with(|| name.clone());
        }
    }
    hooks
}

/// An error if a hook that the partition cannot do without is missing.
pub(super) fn check_complete(partition: &PartitionState) -> Result<()> {
    match &partition.hooks().missing {
        None => Ok(()),
        Some(hook) => {
            let name = &partition.name;
            let message = format!("partition {name:?} was made with {hook:?}, which is not there");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

impl DbInner {
    /// Gives a partition that exists these hooks. The caller holds the commit path's lock.
    pub(super) fn change_hooks(
        &self,
        partition: &Arc<PartitionState>,
        hooks: &Hooks,
    ) -> Result<()> {
        let records = records_of(hooks)?;
        let view = partition.pin();
        let stored = &view.version.hooks;
        let attached = attached(&partition.name, hooks, &records);
        if **stored == *records {
            partition.set_hooks(attached);
            return Ok(());
        }
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        if attached.rules.any_key != partition.any_key {
            let name = &partition.name;
            return invalid(format!("partition {name:?}: `any_key` is fixed when it is made"));
        }
        let stores = |records: &[HookRecord]| {
            let store = records.iter().find(|record| record.kind == HookKind::ValueStore);
            store.map(|record| record.name.clone())
        };
        if stores(stored) != stores(&records) && !view.is_empty() {
            let name = &partition.name;
            return invalid(format!("partition {name:?} has data: its value store stays"));
        }
        let before = (*partition.hooks()).clone();
        let suffix = &attached.rules.reserved_suffix;
        // From here on writes of such keys are refused; those in flight are looked at again.
        partition.set_hooks(attached.clone());
        let installed = self.check_no_reserved_key(partition, &view, suffix).and_then(|()| {
            let options = (*view.version.options).clone();
            let changed =
                Change::PartitionOptionsChanged { id: partition.id, options, hooks: records };
            self.install_tables(partition, vec![changed], None, Vec::new())
        });
        if let Err(error) = installed {
            partition.set_hooks(before);
            return Err(error);
        }
        Ok(())
    }

    /// Refuses to reserve a suffix that keys of the partition have.
    fn check_no_reserved_key(
        &self,
        partition: &PartitionState,
        view: &ReadView,
        suffix: &[u8],
    ) -> Result<()> {
        if suffix.is_empty() || partition.any_key {
            return Ok(());
        }
        let mut named = Vec::new();
        let mut entries =
            VisibleIter::new(MergeIter::new(Source::all(view, &self.tables)?), SeqNo::MAX);
        entries.seek_to_first()?;
        while entries.valid() && named.len() < KEYS_NAMED {
            let key = entries.key();
            if key.ends_with(suffix) {
                named.push(format!("\"{}\"", key.escape_ascii()));
            }
            entries.next()?;
        }
        if named.is_empty() {
            return Ok(());
        }
        let message = format!(
            "partition {:?} has keys that end in \"{}\": {}",
            partition.name,
            suffix.escape_ascii(),
            named.join(", ")
        );
        Err(Error::new(ErrorKind::ReservedKey, message))
    }
}
