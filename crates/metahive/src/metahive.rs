//! [`MetaHive`]: the factory that a partition names.
//!
//! The facade makes one for each partition that asks for it; the engine stores its name,
//! parameters and rules, and starts a filter and a verifier from it for each job, and a repair for each damaged table.

use std::sync::Arc;

use lsm_core::codec::{Reader, put_bytes};
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::{
    CompactionFilter, CompactionFilterFactory, DamagedTable, InputTable, Job, NoteForm, OwnedEntry,
    RepairSources, Rules, Sealer, TableRepair, Verifier, WhenAbsent,
};
use lsm_core::types::{Gap, KeyForm};

use crate::checksum;
use crate::counts::Counts;
use crate::filter::HiveFilter;
use crate::options::MetaHiveOptions;
use crate::payload::{Metadata, SUFFIX};
use crate::provider::Integrity;
use crate::repair::RepairOptions;
use crate::shared::Shared;
use crate::table_repair::HiveRepair;
use crate::table_seal::TableSeal;
use crate::verifier;

/// Metadata for every entry of a partition. See the crate.
pub struct MetaHive {
    shared: Arc<Shared>,
    any_key: Option<bool>,
    repair: RepairOptions,
}

impl Default for MetaHive {
    fn default() -> MetaHive {
        MetaHive::new(MetaHiveOptions::default())
    }
}

impl MetaHive {
    /// The name under which partitions store it.
    pub const NAME: &str = "metahive";

    /// The factory for one partition. Two partitions want two: it remembers what it repaired by
    /// file numbers, and counts.
    pub fn new(options: MetaHiveOptions) -> MetaHive {
        let MetaHiveOptions { any_key, provider, repair } = options;
        let shared = match provider {
            None => Shared::new(Arc::new(Integrity), true),
            Some(provider) => Shared::new(provider, false),
        };
        MetaHive { shared, any_key, repair }
    }

    /// The factory of a partition that stored these parameters, if it is one that needs nothing
    /// from the application: integrity, in a version of the checksum that is known.
    pub fn from_params(params: &[u8]) -> Option<MetaHive> {
        let mut reader = Reader::new(params);
        let any_key = reader.u8().ok()? != 0;
        let is_integrity = reader.bytes().ok()? == Integrity::NAME.as_bytes();
        // An algorithm of a later version: with ours every entry would seem damaged.
        let is_known = reader.bytes().ok()? == [checksum::ALGORITHM];
        reader.finish().ok()?;
        let mut options = MetaHiveOptions::new();
        options.any_key = any_key.then_some(true);
        (is_integrity && is_known).then(|| MetaHive::new(options))
    }

    /// The same provider with nothing counted and nothing repaired: to verify what is stored.
    pub(crate) fn apart(&self) -> Arc<Shared> {
        Shared::new(self.shared.provider.clone(), self.shared.is_integrity)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The number of times that a verified read reads the device again.
    pub(crate) fn retries_max(&self) -> u32 {
        self.repair.retries_max
    }

    /// The counts of the filters so far.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }
}

impl CompactionFilterFactory for MetaHive {
    fn name(&self) -> &str {
        MetaHive::NAME
    }

    fn check_stored(&self, params: &[u8]) -> Result<()> {
        let mut reader = Reader::new(params);
        let stored = reader.u8().and_then(|_| Ok((reader.bytes()?, reader.bytes()?)));
        let name = self.shared.provider.name();
        let own = self.shared.provider.params();
        match stored {
            // The parameters as well as the name: those of integrity are the version of its
            // checksum.
            Ok(stored) if stored == (name.as_bytes(), &own[..]) => Ok(()),
            Ok((stored, _)) => Err(other_provider(&stored.escape_ascii().to_string(), name)),
            Err(_) => Err(other_provider("a newer version", name)),
        }
    }

    /// The wish for any key (1 byte), the provider's name and its parameters (length, bytes each).
    fn params(&self) -> Vec<u8> {
        // `Some(false)` is stored as `None` is. To a partition that exists, and has its form, both
        // mean the same: see `rules`.
        let mut params = vec![u8::from(self.any_key == Some(true))];
        put_bytes(&mut params, self.shared.provider.name().as_bytes());
        put_bytes(&mut params, &self.shared.provider.params());
        params
    }

    /// A partition that is made takes any key unless that is not wanted. One that exists stays as it
    /// is, and refuses to become one that takes any key.
    fn rules(&self, form: Option<KeyForm>) -> Rules {
        let key_form = match (form, self.any_key) {
            (None, Some(false)) => KeyForm::AsGiven,
            // A partition cannot change its form. The engine refuses what this asks of an existing
            // one, so that the caller hears of it. To keep the form here would ignore the wish in
            // silence.
            (None, _) | (Some(KeyForm::AsGiven), Some(true)) => KeyForm::Escaped,
            (Some(form), _) => form,
        };
        let reserved_suffix = vec![SUFFIX];
        // A node without this code reads all data: to it, metadata is a deletion of a key that
        // no one has.
        Rules { reserved_suffix, key_form, when_absent: WhenAbsent::OpenPlainly }
    }

    fn sealer(&self) -> Option<&dyn Sealer> {
        Some(self)
    }

    fn start(&self, job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(HiveFilter::start(self.shared.clone(), job)?))
    }
}

impl Sealer for MetaHive {
    fn check_table(&self, table: &InputTable) -> Result<()> {
        TableSeal::of(&table.properties, self.shared.provider.name()).map(drop)
    }

    /// Returns `true` if the tables' border certainly comes between a key and its metadata. Our own
    /// tables can be verified one by one; those of other nodes were cut anywhere.
    fn joined(&self, left_largest: &[u8], right_smallest: &[u8]) -> bool {
        let same = left_largest.iter().zip(right_smallest).take_while(|(l, r)| l == r).count();
        if same == 0 {
            return false;
        }
        match (&left_largest[same..], &right_smallest[same..]) {
            // The left table ends with the key, the right one begins with its metadata, or with
            // a key that sorts between the two.
            ([], [SUFFIX] | [0, ..]) => true,
            // The left table ends with a key that sorts between.
            ([0, ..], [SUFFIX]) => true,
            _ => false,
        }
    }

    fn note_form(&self) -> Option<Arc<dyn NoteForm>> {
        self.shared.is_integrity.then(|| Arc::new(Metadata) as Arc<dyn NoteForm>)
    }

    fn verifies(&self) -> bool {
        true
    }

    fn verifier(&self, inputs: &[InputTable], compares: bool) -> Result<Option<Verifier>> {
        verifier::start(&self.shared, inputs, compares).map(Some)
    }

    fn repair(
        &self,
        input: &InputTable,
        table: &DamagedTable,
        sources: &Arc<dyn RepairSources>,
    ) -> Result<Option<Box<dyn TableRepair>>> {
        let mut seal = TableSeal::of(&input.properties, self.shared.provider.name())?;
        if seal.is_none() && table.hidden > 0 {
            // Its properties are lost. The manifest knows that there is metadata.
            seal = Some(TableSeal::default());
        }
        let options = self.repair.clone();
        let sources = sources.clone();
        let repair = HiveRepair::new(self.shared.clone(), seal, table.clone(), options, sources);
        Ok(Some(Box::new(repair)))
    }

    fn restores(&self) -> bool {
        self.repair.replica.is_some()
    }

    fn restore(&self, gap: &Gap) -> Result<Option<Vec<OwnedEntry>>> {
        match &self.repair.replica {
            Some(replica) => replica.fetch_range(&gap.from, &gap.to, gap.through),
            None => Ok(None),
        }
    }
}

fn other_provider(stored: &str, own: &str) -> Error {
    let what = format!(
        "its metadata was made by the provider {stored:?}, and this is {own:?}: open it without, \
         turn MetaHive off, compact, and turn it on with the other provider"
    );
    Error::new(ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_find_the_factory_again() {
        for any_key in [None, Some(false), Some(true)] {
            let options = MetaHiveOptions { any_key, ..MetaHiveOptions::new() };
            let params = MetaHive::new(options).params();
            let found = MetaHive::from_params(&params).unwrap();
            assert_eq!(found.params(), params);
            assert!(MetaHive::from_params(&params[..params.len() - 1]).is_none());
        }
        let options = MetaHiveOptions::new().provider(Arc::new(crate::Statistics::default()));
        assert!(MetaHive::from_params(&MetaHive::new(options).params()).is_none());
    }

    #[track_caller]
    fn check(any_key: Option<bool>, form: Option<KeyForm>, expected: KeyForm) {
        let options = MetaHiveOptions { any_key, ..MetaHiveOptions::new() };
        let found = MetaHive::new(options).rules(form).key_form;
        assert_eq!(found, expected, "{any_key:?} {form:?}");
    }

    #[test]
    fn a_partition_keeps_its_form_and_a_new_one_takes_any_key() {
        for any_key in [None, Some(true), Some(false)] {
            for form in [KeyForm::Terminated, KeyForm::Escaped] {
                check(any_key, Some(form), form);
            }
        }
        check(None, None, KeyForm::Escaped);
        check(Some(true), None, KeyForm::Escaped);
        check(Some(false), None, KeyForm::AsGiven);
        check(None, Some(KeyForm::AsGiven), KeyForm::AsGiven);
        check(Some(false), Some(KeyForm::AsGiven), KeyForm::AsGiven);
        // Which the engine refuses.
        check(Some(true), Some(KeyForm::AsGiven), KeyForm::Escaped);
    }

    #[test]
    fn tables_are_joined_where_a_pair_is_cut() {
        let check = |left: &[u8], right: &[u8], expected| {
            assert_eq!(MetaHive::default().joined(left, right), expected, "{left:?} {right:?}");
        };
        check(b"k", b"k\x01", true);
        check(b"k", b"k\0a", true);
        check(b"k\0a", b"k\x01", true);
        check(b"k", b"k\x02", false);
        check(b"k", b"k\x01a", false);
        check(b"ka", b"kb", false);
        check(b"a", b"b", false);
        // Integers in byte order have zeros everywhere and are no reason to join.
        check(&1u64.to_be_bytes(), &2u64.to_be_bytes(), false);
    }
}
