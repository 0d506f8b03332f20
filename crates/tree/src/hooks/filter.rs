//! Compaction filters: their calls, their answers, and how they report damage.
//!
//! A flush or compaction calls them through `compaction/survivors.rs` (input, boundary, output) and
//! `compaction/job_hooks.rs` (decide, `finish_table`); an ingest shows entries to the sealing filter in
//! `db/exchange/arrival.rs`.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{EndedBlock, Entry, Expiry, Faults, Origin, Rules, Sealer, VerifiedEntry};
use crate::error::Result;
use crate::types::{FileNo, KeyForm, KeyRef, SeqNo};

/// The kind of work that a filter takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobKind {
    /// Memtables are written to level 0.
    Flush,
    /// Tables are merged. Also an export, for the filter that seals: its outputs go elsewhere.
    Compaction,
}

/// The work that a filter is started for.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Name of the partition.
    pub partition: &'a str,
    /// Flush or compaction.
    pub kind: JobKind,
    /// Uppermost input level; 0 for a flush.
    pub level_from: usize,
    /// Output level.
    pub level_to: usize,
    /// `true` if nothing older lies below the whole key range of the job.
    pub bottom: bool,
    /// Sequence numbers of the registered snapshots, ascending.
    pub snapshots: &'a [SeqNo],
    /// The input tables with their properties; none for a flush.
    pub inputs: &'a [InputTable],
    /// `true` if entries of the inputs are left out, because they are outside of the range that an
    /// export reads.
    pub partial: bool,
    /// Time since the beginning of 1970 when the job began, by the database's clock.
    pub unix_time: Duration,
    /// The form in which the partition stores keys: that of [`Entry::key`].
    pub key_form: KeyForm,
}

impl<'a> Job<'a> {
    /// A job of `kind` over nothing of the partition: what it is about is set by its fields.
    pub fn new(partition: &'a str, kind: JobKind) -> Job<'a> {
        Job {
            partition,
            kind,
            level_from: 0,
            level_to: 0,
            bottom: false,
            snapshots: &[],
            inputs: &[],
            partial: false,
            unix_time: Duration::ZERO,
            key_form: KeyForm::AsGiven,
        }
    }
}

/// An input table of a job.
#[derive(Clone, Debug)]
pub struct InputTable {
    /// Its number, as in [`Origin::file`].
    pub file: FileNo,
    /// Its path, for errors.
    pub path: PathBuf,
    /// The notes of filters in it.
    pub properties: Properties,
}

/// The notes of filters in a table, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties(pub BTreeMap<String, Vec<u8>>);

/// Makes compaction filters, one for each job.
///
/// A panic of a factory or of a filter fails the job like an error. The engine asks for name,
/// parameters, rules, [`sealer`](Self::sealer) and [`decides`](Self::decides) once, when the factory is
/// attached. Code that knows its type can get it back: see [`as_any`](super::as_any).
pub trait CompactionFilterFactory: Any + Send + Sync {
    /// The name under which partitions store it.
    fn name(&self) -> &str;

    /// Parameters to be stored with the partition.
    fn params(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Checks whether this factory can replace a filter with its name and these stored parameters.
    /// Called at open, when a provider returns it.
    ///
    /// # Errors
    /// An error makes the open fail.
    fn check_stored(&self, params: &[u8]) -> Result<()> {
        let _ = params;
        Ok(())
    }

    /// Returns the rules that the engine enforces for a partition that stores its keys in `form`; `None` for a
    /// partition that is about to be made, whose form they decide.
    fn rules(&self, form: Option<KeyForm>) -> Rules {
        let _ = form;
        Rules::default()
    }

    /// Returns `true` if the filter may return a decision other than [`Decision::Keep`].
    fn decides(&self) -> bool {
        self.sealer().is_none()
    }

    /// Returns the times at which entries are to go, for a filter that removes them by their age: it
    /// is asked of every entry that is written, and the tables become due by the answers. At most
    /// one filter of a partition has some. Default: none.
    fn expiry(&self) -> Option<Arc<dyn Expiry>> {
        None
    }

    /// Returns the rest of the contract of a filter that seals: one that adds hidden entries. Then it sees every
    /// input entry. At most one filter of a partition may seal. Whether it seals is asked once, when it is attached.
    /// Default: `None`.
    fn sealer(&self) -> Option<&dyn Sealer> {
        None
    }

    /// A filter for a job.
    fn start(&self, job: &Job<'_>) -> Result<Box<dyn CompactionFilter>>;
}

/// The answer of a filter to an input entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The entry continues to the next step.
    Pass,
    /// The filter takes the entry; it does not continue.
    Take,
}

/// The decision about an entry that no snapshot sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The entry stays.
    Keep,
    /// The entry is deleted. A tombstone replaces it unless no older entry can exist.
    Remove,
    /// The entry gets this value.
    Replace(Vec<u8>),
}

/// The permission to cut the output before the next user key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A block and a table may end here.
    Allowed,
    /// The same, and no hidden entry is to come: the engine may
    /// [note](super::Sealer::note_form) the next entries.
    Idle,
    /// The next entries belong in the same block, and in the same table.
    Forbidden,
}

/// An entry that a job is about to write, in its final form.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// The entry.
    pub entry: Entry<'a>,
    /// Its stored sequence number, if key, kind and value are unchanged bytes of the input.
    pub untouched_from: Option<SeqNo>,
    /// The XXH3-64 of the value under [`VALUE_SEED`](crate::types::VALUE_SEED), which agrees with what came
    /// into the memtable; `None` where nothing has confirmed it.
    pub value_sum: Option<u64>,
    /// `true` if it is not the entry that came in last: the job has held operands of a merge back, or made one entry of
    /// several.
    pub is_held: bool,
    /// The checksum that the verifier returned with an entry that was held back, and is written as it came in.
    pub note: Option<u64>,
    /// `true` if its hidden entry is made of the note on it: see
    /// [`note_form`](super::Sealer::note_form). If not, the filter emits one at a boundary.
    pub is_noted: bool,
}

/// Takes part in one flush or compaction. Entries come in internal order.
pub trait CompactionFilter: Send {
    /// Receives an entry of an input table of a compaction. Only for a filter that
    /// [seals](CompactionFilterFactory::sealer). Of a table whose blocks are verified, these are the visible
    /// entries, each with its checksum; of others all entries, hidden ones included. A fault fails the job.
    fn input(
        &mut self,
        entry: &Entry<'_>,
        at: &Origin,
        verified: Option<&VerifiedEntry<'_>>,
        faults: &mut Faults,
    ) -> Result<Input> {
        let _ = (entry, at, verified, faults);
        Ok(Input::Pass)
    }

    /// An entry that the engine would keep and that no registered snapshot sees: none lies in
    /// [its sequence, that of the next newer version). Tombstones are not offered.
    fn decide(&mut self, entry: Entry<'_>) -> Result<Decision> {
        let _ = entry;
        Ok(Decision::Keep)
    }

    /// Receives a surviving entry, and returns the note on it if it [is noted](Output::is_noted). Of a noted
    /// entry that is written as it came in, the note is its checksum ([`VerifiedEntry::note`]), and this is not called.
    fn output(&mut self, output: &Output<'_>) -> Result<u64> {
        let _ = output;
        Ok(0)
    }

    /// The noted entry that was written last has no hidden entry after all: the filter emits it at a boundary,
    /// as if it had not been noted. `bytes` is the length of its key and value.
    fn take_back(&mut self, key: KeyRef<'_>, bytes: u64, note: u64) -> Result<()> {
        let _ = (key, bytes, note);
        Ok(())
    }

    /// Emits the hidden entries that sort before `next`, and returns whether a block and a table may end
    /// here. Called before each new user key of the output, and with `None` at the end; see
    /// [`note_form`](super::Sealer::note_form).
    fn boundary(
        &mut self,
        next: Option<&[u8]>,
        out: &mut Emitter<'_>,
        faults: &mut Faults,
    ) -> Result<Cut> {
        let _ = (next, out, faults);
        Ok(Cut::Allowed)
    }

    /// Adds properties to a table of the output when the table ends. `blocks` are those that have ended since
    /// the last boundary; all of the table have ended.
    fn finish_table(&mut self, blocks: &[EndedBlock], properties: &mut Properties) -> Result<()> {
        let _ = (blocks, properties);
        Ok(())
    }
}

/// Takes the hidden entries of a filter: key, sequence number and payload. A closure over these three
/// is one.
pub trait HiddenSink {
    /// Takes a hidden entry.
    fn add(&mut self, key: &[u8], seq: SeqNo, payload: &[u8]) -> Result<()>;

    /// The blocks of the table under way that have ended and were not taken out. Default: none.
    fn ended_blocks(&mut self) -> Option<&mut Vec<EndedBlock>> {
        None
    }
}

impl<F: FnMut(&[u8], SeqNo, &[u8]) -> Result<()>> HiddenSink for F {
    fn add(&mut self, key: &[u8], seq: SeqNo, payload: &[u8]) -> Result<()> {
        self(key, seq, payload)
    }
}

/// The way of a filter's hidden entries into the output.
pub struct Emitter<'a> {
    sink: &'a mut dyn HiddenSink,
}

impl<'a> Emitter<'a> {
    /// An emitter into `sink`.
    pub fn new(sink: &'a mut dyn HiddenSink) -> Emitter<'a> {
        Emitter { sink }
    }

    /// Writes a hidden tombstone with a payload. Its key is that of an entry before it with the
    /// reserved suffix, and `seq` is that entry's.
    pub fn emit(&mut self, key: &[u8], seq: SeqNo, payload: &[u8]) -> Result<()> {
        self.sink.add(key, seq, payload)
    }

    /// The blocks of the table under way that have ended since the last call took them out, including those
    /// that hidden entries ended. A block that was not forced ended before the first entry after a boundary.
    pub fn ended_blocks(&mut self) -> Option<&mut Vec<EndedBlock>> {
        self.sink.ended_blocks().filter(|ended| !ended.is_empty())
    }
}
