//! Compaction filters as they are attached to a partition.
//!
//! `db/hook_binding.rs` attaches every filter through here, and every value store as an
//! [`AttachedStore`](super::AttachedStore), so that no job, no sync and no manifest ever
//! sees it unwind: what was claimed is given back as after any other error. `catch.rs` says how.
//!
//! Invariants:
//! 1. The times of a hook, and whether it seals or decides, are asked once, when it is
//!    attached; whether a table has versions, when its repair begins.
//! 2. What a hook holds after its panic is its own affair: the engine makes further calls. A filter
//!    that was started for a job is dropped with the job.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::catch::{HookId, HookPart, catch};
use super::{
    BlockVerifier, CompactionFilter, CompactionFilterFactory, DamagedBlock, DamagedTable, Decision,
    Entry, Expiry, InputBlock, InputTable, Job, NoteForm, OwnedEntry, RepairSources, RepairedBlock,
    Rules, Sealer, TableRepair, TableVerdict, VerifiedBlock, Verifier,
};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{FileNo, Gap, KeyForm};

/// A compaction filter as it is attached to `partition`.
pub fn guarded_filter(
    partition: &Arc<str>,
    filter: &Arc<dyn CompactionFilterFactory>,
) -> Arc<dyn CompactionFilterFactory> {
    let hook = HookId {
        partition: partition.clone(),
        kind: "compaction filter",
        name: filter.name().into(),
    };
    let expiry = filter.expiry().map(|expiry| GuardedExpiry { hook: hook.clone(), expiry });
    let expiry = expiry.map(|expiry| Arc::new(expiry) as Arc<dyn Expiry>);
    let sealer = filter.sealer();
    let note_form = sealer.and_then(Sealer::note_form).map(|form| {
        let payload_bytes = form.payload_bytes();
        Arc::new(GuardedForm { payload_bytes, form: hook.part(form) }) as Arc<_>
    });
    Arc::new(GuardedFilter {
        hook,
        params: filter.params(),
        seals: sealer.is_some(),
        decides: filter.decides(),
        verifies: sealer.is_some_and(Sealer::verifies),
        expiry,
        note_form,
        filter: filter.clone(),
    })
}

/// The factory as its maker knows it, also if it is attached to a partition.
pub fn as_any(factory: &dyn CompactionFilterFactory) -> &dyn Any {
    let any: &dyn Any = factory;
    match any.downcast_ref::<GuardedFilter>() {
        Some(guarded) => &*guarded.filter,
        None => any,
    }
}

struct GuardedFilter {
    hook: HookId,
    params: Vec<u8>,
    seals: bool,
    decides: bool,
    verifies: bool,
    expiry: Option<Arc<dyn Expiry>>,
    note_form: Option<Arc<dyn NoteForm>>,
    filter: Arc<dyn CompactionFilterFactory>,
}

impl CompactionFilterFactory for GuardedFilter {
    fn name(&self) -> &str {
        &self.hook.name
    }

    fn params(&self) -> Vec<u8> {
        self.params.clone()
    }

    fn check_stored(&self, params: &[u8]) -> Result<()> {
        self.hook.call("check_stored", || self.filter.check_stored(params))
    }

    fn rules(&self, form: Option<KeyForm>) -> Rules {
        self.hook.unwind("rules", || self.filter.rules(form))
    }

    fn decides(&self) -> bool {
        self.decides
    }

    fn expiry(&self) -> Option<Arc<dyn Expiry>> {
        self.expiry.clone()
    }

    fn sealer(&self) -> Option<&dyn Sealer> {
        self.seals.then_some(self)
    }

    fn start(&self, job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        self.hook.call("start", || self.filter.start(job))
    }
}

impl GuardedFilter {
    /// The sealer of the filter, which had one when it was attached.
    fn inner(&self) -> Result<&dyn Sealer> {
        self.filter.sealer().ok_or_else(|| {
            let what = format!("{} has none any more", self.hook.named("sealer"));
            Error::new(ErrorKind::InvalidArgument, what)
        })
    }
}

impl Sealer for GuardedFilter {
    fn check_table(&self, table: &InputTable) -> Result<()> {
        self.hook.call("check_table", || self.inner()?.check_table(table))
    }

    fn joined(&self, left_largest: &[u8], right_smallest: &[u8]) -> bool {
        self.hook.unwind("joined", || {
            self.inner().is_ok_and(|sealer| sealer.joined(left_largest, right_smallest))
        })
    }

    fn verifies(&self) -> bool {
        self.verifies
    }

    fn note_form(&self) -> Option<Arc<dyn NoteForm>> {
        self.note_form.clone()
    }

    fn verifier(&self, inputs: &[InputTable], compares: bool) -> Result<Option<Verifier>> {
        let verifier = self.hook.call("verifier", || self.inner()?.verifier(inputs, compares))?;
        Ok(verifier.map(|Verifier { blocks, walks_all }| {
            let blocks = Arc::new(self.hook.part(blocks));
            Verifier { blocks, walks_all }
        }))
    }

    fn repair(
        &self,
        input: &InputTable,
        table: &DamagedTable,
        sources: &Arc<dyn RepairSources>,
    ) -> Result<Option<Box<dyn TableRepair>>> {
        let repair = self.hook.call("repair", || self.inner()?.repair(input, table, sources))?;
        let Some(repair) = repair else { return Ok(None) };
        let repair = self.hook.part(repair);
        let has_versions = self.hook.call("has_versions", || Ok(repair.get().has_versions()))?;
        Ok(Some(Box::new(GuardedRepair { has_versions, repair })))
    }

    fn restores(&self) -> bool {
        // A filter that panics here is asked to restore: that call has an error to return.
        catch("a compaction filter", || self.inner().is_ok_and(Sealer::restores)).unwrap_or(true)
    }

    fn restore(&self, gap: &Gap) -> Result<Option<Vec<OwnedEntry>>> {
        self.hook.call("restore", || self.inner()?.restore(gap))
    }
}

struct GuardedExpiry {
    hook: HookId,
    expiry: Arc<dyn Expiry>,
}

impl Expiry for GuardedExpiry {
    fn expires_at(&self, key: &[u8], value: Option<&[u8]>) -> Option<u64> {
        self.hook.unwind("expires_at", || self.expiry.expires_at(key, value))
    }

    fn now(&self, unix_time: Duration) -> u64 {
        self.hook.unwind("now", || self.expiry.now(unix_time))
    }

    fn stays_for(&self) -> Option<u64> {
        self.hook.unwind("stays_for", || self.expiry.stays_for())
    }

    fn reads_values(&self) -> bool {
        self.hook.unwind("reads_values", || self.expiry.reads_values())
    }

    fn hides(&self) -> bool {
        self.hook.unwind("hides", || self.expiry.hides())
    }

    fn unix_time(&self, moment: u64) -> Option<Duration> {
        self.hook.unwind("unix_time", || self.expiry.unix_time(moment))
    }
}

impl BlockVerifier for HookPart<Arc<dyn BlockVerifier>> {
    fn verify(&self, block: &dyn InputBlock, verified: &mut VerifiedBlock) -> Result<()> {
        self.hook.call("verify", || self.get().verify(block, verified))
    }

    fn end(&self, table: FileNo) -> Option<String> {
        self.hook.unwind("end", || self.get().end(table))
    }
}

struct GuardedRepair {
    has_versions: bool,
    repair: HookPart<Box<dyn TableRepair>>,
}

impl TableRepair for GuardedRepair {
    fn block(&mut self, block: &mut dyn DamagedBlock) -> RepairedBlock {
        let (hook, repair) = self.repair.get_mut();
        hook.unwind("block", || repair.block(block))
    }

    fn end(&mut self) -> TableVerdict {
        let (hook, repair) = self.repair.get_mut();
        hook.unwind("end", || repair.end())
    }

    fn has_versions(&self) -> bool {
        self.has_versions
    }
}

/// A filter of a job, which names it where it panics or refuses an entry.
pub struct JobFilter {
    filter: HookPart<Box<dyn CompactionFilter>>,
    key_form: KeyForm,
}

impl JobFilter {
    /// Starts a filter for a job.
    ///
    /// # Errors
    /// Those of the factory.
    pub fn start(factory: &dyn CompactionFilterFactory, job: &Job<'_>) -> Result<JobFilter> {
        let partition = job.partition.into();
        let hook = HookId { partition, kind: "compaction filter", name: factory.name().into() };
        Ok(JobFilter { filter: hook.part(factory.start(job)?), key_form: job.key_form })
    }

    /// The decision on an entry.
    ///
    /// # Errors
    /// Those of the filter, which name partition, key and filter.
    #[inline]
    pub fn decide(&mut self, entry: Entry<'_>) -> Result<Decision> {
        let decided = self.call("decide", |filter| filter.decide(entry));
        decided.map_err(|error| self.blamed(entry.key, error))
    }

    #[cold]
    fn blamed(&self, key: &[u8], error: Error) -> Error {
        let HookId { partition, kind, name } = &self.filter.hook;
        let key = self.key_form.user(key).escape_ascii();
        let message = format!("partition {partition:?}, key \"{key}\", {kind} {name:?}");
        Error::because(error.kind(), message, error)
    }

    /// Makes the call that is named `what`, in code that runs in `catch_blamed`.
    #[inline]
    pub fn call<T>(
        &mut self,
        what: &'static str,
        code: impl FnOnce(&mut dyn CompactionFilter) -> T,
    ) -> T {
        let (hook, filter) = self.filter.get_mut();
        hook.blamed(what, || code(&mut **filter))
    }
}

struct GuardedForm {
    payload_bytes: usize,
    form: HookPart<Arc<dyn NoteForm>>,
}

impl NoteForm for GuardedForm {
    fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    fn put_payloads(&self, notes: &[u64], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        let hook = &self.form.hook;
        hook.call("put_payloads", || self.form.get().put_payloads(notes, out))?;
        // The engine finds the payload of an entry by this length.
        if out.len() == start + notes.len() * self.payload_bytes {
            return Ok(());
        }
        let call = hook.named("put_payloads");
        let what = format!("{call} made payloads of another length than it said");
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter that panics when it is asked about itself.
    struct Panicking;

    impl Expiry for Panicking {
        fn expires_at(&self, _key: &[u8], _value: Option<&[u8]>) -> Option<u64> {
            None
        }

        fn now(&self, _unix_time: Duration) -> u64 {
            0
        }

        fn stays_for(&self) -> Option<u64> {
            panic!("a bug")
        }

        fn reads_values(&self) -> bool {
            panic!("a bug")
        }
    }

    impl CompactionFilterFactory for Panicking {
        fn name(&self) -> &'static str {
            "panicking"
        }

        fn expiry(&self) -> Option<Arc<dyn Expiry>> {
            Some(Arc::new(Panicking))
        }

        fn sealer(&self) -> Option<&dyn Sealer> {
            Some(self)
        }

        fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
            unreachable!("no job starts")
        }
    }

    impl Sealer for Panicking {
        fn restores(&self) -> bool {
            panic!("a bug")
        }
    }

    /// Payloads of one byte, that it says to have two.
    struct Short;

    impl NoteForm for Short {
        fn payload_bytes(&self) -> usize {
            2
        }

        fn put_payloads(&self, notes: &[u64], out: &mut Vec<u8>) -> Result<()> {
            out.extend(notes.iter().map(|note| *note as u8));
            Ok(())
        }
    }

    #[test]
    fn payloads_of_another_length_than_a_form_says_are_refused() {
        let hook =
            HookId { partition: "p".into(), kind: "compaction filter", name: "short".into() };
        let form = GuardedForm { payload_bytes: 2, form: hook.part(Arc::new(Short)) };
        let mut out = vec![9];
        form.put_payloads(&[], &mut out).unwrap();
        let error = form.put_payloads(&[1, 2], &mut out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let named =
            "put_payloads of the compaction filter \"short\" made payloads of another length";
        assert!(error.to_string().contains(named), "{error}");
    }

    #[test]
    fn a_panic_about_the_filter_itself_names_it() {
        let filter: Arc<dyn CompactionFilterFactory> = Arc::new(Panicking);
        let guarded = guarded_filter(&"p".into(), &filter);
        let sealer = guarded.sealer().expect("it seals");
        assert!(sealer.restores(), "its `restore` can say what is wrong");
        let expiry = guarded.expiry().expect("it has times");
        let calls =
            [catch("it", || expiry.stays_for().is_some()), catch("it", || expiry.reads_values())];
        for (call, name) in calls.into_iter().zip(["stays_for", "reads_values"]) {
            let error = call.unwrap_err().to_string();
            let named = format!("{name} of the compaction filter \"panicking\" panicked: a bug");
            assert!(error.contains(&named), "{error}");
        }
    }
}
