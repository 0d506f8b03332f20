//! Attaching hooks to partitions: finding their code, checking their rules, turning them on and
//! off.
//!
//! Invariants:
//! 1. The rules of a partition's hooks in the manifest are enforced even if their code is missing.
//! 2. A suffix becomes reserved only after a scan found no version of a key with it, deleted or not, and no write
//!    comes in between: the commit path checks writes again that were checked under older rules.
//! 3. Hooks take effect in [`Installer::install`](super::install::Installer::install) alone, after the edit with their records.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::context::DbContext;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{
    AttachedOperator, AttachedStore, CompactionFilterFactory, HookProvider, Hooks, InputTable,
    MergeOperator, PartitionHooks, Rules, ValueStoreFactory, WhenAbsent, catch, guarded_filter,
};
use crate::iter::{InternalIter, MergeIter};
use crate::partition::{PartitionState, ReadView};
use crate::read::Source;
use crate::sstable::SstReader;
use crate::types::{KeyForm, PartitionId};
use crate::version::{HookKind, HookRecord, PartitionVersion, Table, TableContext};

/// The name of a record that keeps the form of keys if no hook does.
const KEY_FORM: &str = "any key";

/// The most keys that an error names.
const KEYS_NAMED: usize = 5;

/// Opens the value store of a partition.
pub(super) type OpenStore<'a> = dyn Fn(&dyn ValueStoreFactory) -> Result<Arc<AttachedStore>> + 'a;

/// The hooks of each partition.
pub(super) type HooksOf = BTreeMap<PartitionId, PartitionHooks>;

/// The filters of a partition: their records, and those whose code is present, in the order in which they run.
pub(super) struct Filters {
    records: Vec<HookRecord>,
    pub(super) code: Vec<Arc<dyn CompactionFilterFactory>>,
}

impl Filters {
    /// Those of `hooks`, for a partition that has stored its keys in `form` so far.
    pub(super) fn of(partition: &Arc<str>, hooks: &Hooks, form: Option<KeyForm>) -> Filters {
        let records = hooks.filters.iter().map(|filter| HookRecord {
            kind: HookKind::Filter,
            name: filter.name().to_owned(),
            params: filter.params(),
            rules: filter.rules(form),
        });
        let code = hooks.filters.iter().map(|filter| guarded_filter(partition, filter));
        Filters { records: records.collect(), code: code.collect() }
    }

    /// The filters of `partition`, which has these `stored` records, with those of `self`, which `hooks` names: they take
    /// the place of filters of the same name. One that seals stays last, because it seals what the others leave.
    pub(super) fn added_to(
        self,
        partition: &PartitionState,
        stored: &[HookRecord],
        hooks: &Hooks,
    ) -> Filters {
        let own = stored.iter().filter(|it| it.kind == HookKind::Filter && it.name != KEY_FORM);
        let mut records: Vec<_> = own.filter(|it| !hooks.names_filter(&it.name)).cloned().collect();
        let mut code = partition.hooks().filters.clone();
        code.retain(|it| !hooks.names_filter(it.name()));
        records.extend(self.records);
        records.sort_by_key(|record| !record.rules.reserved_suffix.is_empty());
        code.extend(self.code);
        code.sort_by_key(|filter| filter.sealer().is_some());
        Filters { records, code }
    }
}

/// The records of a partition with these filters and the other hooks of `hooks`, as they are in the manifest.
///
/// A partition that stores its keys in `form` keeps that, whatever hooks it has: if none of them
/// requires it, a separate record does, which names no filter.
pub(super) fn records_of(
    filters: &Filters,
    hooks: &Hooks,
    form: Option<KeyForm>,
) -> Result<Vec<HookRecord>> {
    let store = hooks.store.iter().map(|store| HookRecord {
        kind: HookKind::ValueStore,
        name: store.name().to_owned(),
        params: store.params(),
        rules: Rules { when_absent: WhenAbsent::Refuse, ..Rules::default() },
    });
    let operator = hooks.merge_operator.as_ref().map(record_of_operator).transpose()?;
    let of_filters = filters.records.iter().cloned();
    let mut records: Vec<_> = of_filters.chain(store).chain(operator).collect();
    // Tables have one hidden suffix, so the hidden entries of two filters could not be
    // distinguished.
    if filters.code.iter().filter(|filter| filter.sealer().is_some()).count() > 1 {
        return invalid("a partition has at most one filter that seals");
    }
    if records.iter().filter(|record| !record.rules.reserved_suffix.is_empty()).count() > 1 {
        return invalid("a partition has at most one filter that reserves a suffix");
    }
    let mut ageing = filters.code.iter().filter_map(|filter| filter.expiry());
    if ageing.next().is_some() && ageing.next().is_some() {
        return invalid("a partition has at most one filter by the age of entries");
    }
    check_values_are_read(&filters.code, hooks.store.is_some())?;
    let rules = rules_of(&records);
    let forms = records.iter().map(|record| record.rules.key_form);
    if forms.filter(|form| form.takes_any_key()).any(|form| form != rules.key_form) {
        return invalid("two hooks require different forms of keys");
    }
    let suffix = &rules.reserved_suffix;
    if rules.key_form.takes_any_key() && !suffix.is_empty() && !suffix.ends_with(&[1]) {
        return invalid("with `any_key`, a reserved suffix must end in 0x01");
    }
    if let Some(form) = form.filter(|_| !rules.key_form.takes_any_key())
        && form.takes_any_key()
    {
        records.push(HookRecord {
            kind: HookKind::Filter,
            name: KEY_FORM.to_owned(),
            params: Vec::new(),
            rules: Rules { key_form: form, ..Rules::default() },
        });
    }
    Ok(records)
}

/// The names and parameters of the filters in `records`, in the order in which they run.
pub(crate) fn filters_of(records: &[HookRecord]) -> Vec<(String, Vec<u8>)> {
    let filters = records.iter().filter(|it| it.kind == HookKind::Filter && it.name != KEY_FORM);
    filters.map(|record| (record.name.clone(), record.params.clone())).collect()
}

fn record_of_operator(operator: &Arc<dyn MergeOperator>) -> Result<HookRecord> {
    let (name, params) =
        catch("a merge operator", || (operator.name().to_owned(), operator.params()))?;
    // Without its code operands are kept, and reads of their keys fail: all else works.
    let rules = Rules::default();
    Ok(HookRecord { kind: HookKind::MergeOperator, name, params, rules })
}

/// Refuses a value store together with a filter that reads the age of entries from their values.
pub(super) fn check_values_are_read(
    filters: &[Arc<dyn CompactionFilterFactory>],
    has_store: bool,
) -> Result<()> {
    let mut ageing = filters.iter().filter_map(|filter| filter.expiry());
    if has_store && catch("a hook", || ageing.any(|expiry| expiry.reads_values()))? {
        return invalid("the time at which entries expire stands in values: none is stored apart");
    }
    Ok(())
}

/// Refuses the hooks of a partition.
pub(super) fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

/// Returns `true` for the record of a value store.
pub(super) fn is_store(record: &HookRecord) -> bool {
    record.kind == HookKind::ValueStore
}

/// Returns `true` for the record of a merge operator.
pub(super) fn is_operator(record: &HookRecord) -> bool {
    record.kind == HookKind::MergeOperator
}

/// The rules that all records together enforce.
pub(super) fn rules_of(records: &[HookRecord]) -> Rules {
    let mut rules = Rules::default();
    for record in records {
        if !record.rules.reserved_suffix.is_empty() {
            rules.reserved_suffix.clone_from(&record.rules.reserved_suffix);
        }
        if record.rules.key_form.takes_any_key() {
            rules.key_form = record.rules.key_form;
        }
    }
    rules
}

/// The hooks of a partition, by the records in the manifest and the available code. `open` is
/// called to open its value store; without it the partition gets none, and misses none.
///
/// # Errors
/// Those of a hook that is available and cannot work with the stored data.
pub(crate) fn resolve(
    partition: &Arc<str>,
    records: &[HookRecord],
    provider: Option<&dyn HookProvider>,
    open: Option<&OpenStore<'_>>,
) -> Result<PartitionHooks> {
    let mut hooks = PartitionHooks { rules: rules_of(records), ..PartitionHooks::default() };
    for HookRecord { kind, name, params, rules } in records {
        let found = match kind {
            HookKind::Filter => {
                let filter = provider.and_then(|p| p.compaction_filter_of(partition, name, params));
                let filter = filter.map(|filter| guarded_filter(partition, &filter));
                if let Some(filter) = &filter {
                    filter.check_stored(params).map_err(|error| unfit(partition, &error))?;
                }
                let found = filter.is_some();
                hooks.filters.extend(filter);
                found
            }
            HookKind::ValueStore => {
                let Some(open) = open else { continue };
                let factory = provider.and_then(|p| p.value_store(name, params));
                hooks.store = factory.map(|factory| open(&*factory)).transpose()?;
                hooks.store.is_some()
            }
            HookKind::MergeOperator => {
                if let Some(operator) = provider.and_then(|p| p.merge_operator(name, params)) {
                    let form = hooks.rules.key_form;
                    hooks.operator = Some(AttachedOperator::new(partition, &operator, form)?);
                }
                hooks.operator.is_some()
            }
        };
        if found || name == KEY_FORM {
            continue;
        }
        match rules.when_absent {
            WhenAbsent::Refuse => drop(hooks.missing.get_or_insert_with(|| name.clone())),
            WhenAbsent::OpenPlainly => hooks.absent.push(name.clone()),
        }
    }
    Ok(hooks)
}

/// The error of a filter that cannot work with the data of a partition.
fn unfit(partition: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("partition {partition:?}: {error}"))
}

/// Returns an error if a hook that the partition requires is missing.
pub(super) fn check_complete(partition: &PartitionState) -> Result<()> {
    match &partition.hooks().missing {
        None => Ok(()),
        Some(hook) => {
            let name = &partition.name;
            let message = format!("the code of hook {hook:?} of partition {name:?} is missing");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

/// Hooks whose code is available. An existing store of the partition stays, with the parameters in
/// the new hooks.
pub(super) fn attached(
    context: &DbContext,
    id: PartitionId,
    name: &Arc<str>,
    filters: Filters,
    hooks: &Hooks,
    records: &[HookRecord],
    present: Option<&Arc<AttachedStore>>,
) -> Result<PartitionHooks> {
    let store = match (&hooks.store, present) {
        (None, _) => None,
        (Some(_), Some(present)) => Some(present.clone()),
        (Some(factory), None) => {
            Some(AttachedStore::open(&**factory, context.store_context(id, name), &[])?)
        }
    };
    let rules = rules_of(records);
    let operator = hooks.merge_operator.as_ref();
    let operator = operator
        .map(|operator| AttachedOperator::new(name, operator, rules.key_form))
        .transpose()?;
    Ok(PartitionHooks {
        filters: filters.code,
        store,
        operator,
        rules,
        ..PartitionHooks::default()
    })
}

/// Adds the value store of a partition (`stored`) to the records of its new hooks.
///
/// # Errors
/// They name another one.
pub(super) fn keep_store(
    partition: &PartitionState,
    hooks: &Hooks,
    stored: &[HookRecord],
    records: &mut Vec<HookRecord>,
) -> Result<()> {
    let Some(own) = stored.iter().find(|record| is_store(record)) else { return Ok(()) };
    match records.iter_mut().find(|record| is_store(record)) {
        None => records.push(own.clone()),
        Some(named) if named.name == own.name => {
            if let Some(factory) = &hooks.store {
                named.params = factory.params_over(&own.params);
            }
        }
        Some(_) => {
            let name = &partition.name;
            return invalid(format!("partition {name:?} has another value store"));
        }
    }
    Ok(())
}

/// Adds the merge operator of a partition (`stored`) to the records of its new hooks: stored operands need it.
///
/// # Errors
/// They name another one.
pub(super) fn keep_operator(
    partition: &PartitionState,
    stored: &[HookRecord],
    records: &mut Vec<HookRecord>,
) -> Result<()> {
    let Some(own) = stored.iter().find(|record| is_operator(record)) else { return Ok(()) };
    match records.iter().find(|record| is_operator(record)) {
        None => records.push(own.clone()),
        Some(named) if named == own => {}
        Some(_) => {
            let name = &partition.name;
            return invalid(format!("partition {name:?} has another merge operator"));
        }
    }
    Ok(())
}

pub(super) fn has_same_tables(left: &PartitionVersion, right: &PartitionVersion) -> bool {
    let of_left = left.tables().map(|(_, table)| table.meta.file);
    of_left.eq(right.tables().map(|(_, table)| table.meta.file))
}

/// Asks the filters of `hooks` whether they can work with the tables of a version: one that cannot
/// would fail every later compaction.
pub(super) fn check_tables(
    context: &TableContext,
    partition: &str,
    hooks: &PartitionHooks,
    version: &PartitionVersion,
) -> Result<()> {
    for (_, table) in version.tables() {
        // The compaction that reads a table reports that it cannot be opened.
        let Ok(reader) = table.reader(context) else { continue };
        check_table(context, partition, hooks, table, reader)?;
    }
    Ok(())
}

/// Asks the filters of `hooks` whether they can work with a table.
pub(super) fn check_table(
    context: &TableContext,
    partition: &str,
    hooks: &PartitionHooks,
    table: &Table,
    reader: &SstReader,
) -> Result<()> {
    let input = InputTable {
        file: table.meta.file,
        path: table.path(context),
        properties: reader.properties().user.clone(),
    };
    let checked = hooks.sealer().map_or(Ok(()), |sealer| sealer.check_table(&input));
    checked.map_err(|error| unfit(partition, &error))
}

/// The hooks that a partition has after it has adopted the rules of `foreign` hooks for its keys,
/// with their records; `None` if it has those rules.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if its own rules contradict them.
pub(super) fn with_rules_of(
    provider: Option<&dyn HookProvider>,
    partition: &PartitionState,
    foreign: &[HookRecord],
) -> Result<Option<(PartitionHooks, Vec<HookRecord>)>> {
    let theirs = rules_of(foreign);
    let name = &partition.name;
    // The form of keys is fixed when a partition is created. A key is accepted if both store it
    // alike; other keys are refused one by one.
    let forms = [theirs.key_form, partition.key_form];
    if forms[0] != forms[1] && forms.contains(&KeyForm::Terminated) {
        return invalid(format!("partition {name:?} has another `any_key` than the export"));
    }
    let own = &partition.hooks().rules.reserved_suffix;
    if theirs.reserved_suffix.is_empty() || theirs.reserved_suffix == *own {
        return Ok(None);
    }
    if !own.is_empty() {
        return invalid(format!("partition {name:?} reserves a different ending of keys"));
    }
    let mut taken: Vec<_> = foreign
        .iter()
        .filter(|record: &&HookRecord| !record.rules.reserved_suffix.is_empty())
        .cloned()
        .collect();
    for record in &mut taken {
        record.rules.key_form = partition.key_form;
    }
    let mut hooks = (*partition.hooks()).clone();
    let found = resolve(name, &taken, provider, None)?;
    if hooks.seals() && found.seals() {
        return invalid(format!("partition {name:?} has another filter that seals"));
    }
    hooks.filters.extend(found.filters);
    let mut records = partition.view().version.hooks.to_vec();
    records.extend(taken);
    hooks.rules = rules_of(&records);
    Ok(Some((hooks, records)))
}

/// Refuses to reserve a suffix that keys of the partition have. Every version counts: a tombstone,
/// or a value that a snapshot sees, would go to tables in which the hook takes such keys for its
/// own.
pub(super) fn check_no_reserved_key(
    tables: &Arc<TableContext>,
    partition: &PartitionState,
    view: &ReadView,
    suffix: &[u8],
) -> Result<()> {
    if suffix.is_empty() || partition.key_form.takes_any_key() {
        return Ok(());
    }
    let mut named = Vec::new();
    let mut entries = MergeIter::new(Source::all(view, tables)?);
    entries.seek(None)?;
    while entries.valid() && named.len() < KEYS_NAMED {
        let key = entries.key().user;
        if key.ends_with(suffix) {
            named.push(format!("\"{}\"", key.escape_ascii()));
            named.dedup();
        }
        entries.next()?;
    }
    if named.is_empty() {
        return Ok(());
    }
    let message = format!(
        "partition {:?} has keys that end in \"{}\" (delete them and compact it): {}",
        partition.name,
        suffix.escape_ascii(),
        named.join(", ")
    );
    Err(Error::new(ErrorKind::ReservedKey, message))
}

#[cfg(test)]
mod tests;
