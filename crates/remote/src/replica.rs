//! [`BucketReplica`]: the bucket of a primary as the copy from which MetaHive repairs its local tables.
//!
//! The bucket has each table since the sync that made it. A repair asks for single entries while the damaged table is
//! still there, so the newest state has them. Once a gap is found it is shipped as all changes are, and the newest state
//! has the gap, too: then the states before it are asked, from the newest one back through the history.
//!
//! Invariants:
//! 1. Only states that this primary has stored are read. Another writer's values never get in, whatever is put later.
//! 2. An entry is found by its sequence number. A state answers for a gap only if it has come to the last operation of
//!    the gap, and answers as of that operation. So no older value takes the place of a newer one.
//! 3. A state that is damaged, or has the gap, answers nothing.

use std::sync::Arc;
use std::time::Duration;

use lsm_core::hooks::OwnedEntry;
use parking_lot::Mutex;
use siltstone::metahive::Replica;
use siltstone::secondary::{Level, ReadVerified, Reading, Target};
use siltstone::{Error, ErrorKind, Result, SeqNo};

use crate::folder::Folder;
use crate::history::History;
use crate::journal::load_before;
use crate::reader::RemoteReader;
use crate::settings::Settings;
use crate::shipper::Shipper;

/// A call of the store is tried again for so long. A repair has other work, and is made again.
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// The time for which nothing is asked after a failed call.
const AWAY: Duration = Duration::from_secs(60);
/// The time after which a newer state is opened for an entry that is not found.
const REOPEN: Duration = Duration::from_secs(1);
/// Blocks that stay in memory between two repairs.
const CACHE_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of the entries of a gap: they are in memory.
const GAP_BYTES_MAX: u64 = 256 << 20;

/// The bucket of a primary, for one partition.
pub(crate) struct BucketReplica {
    settings: Settings,
    shipper: Arc<Shipper>,
    partition: String,
    /// Held over a call: repairs of other tables wait for its end.
    turn: Mutex<ReplicaTurn>,
}

#[derive(Default)]
struct ReplicaTurn {
    opened: Option<OpenedState>,
    /// Nothing is asked before this time, by the timer.
    away_until: Duration,
}

/// A state that is open for single entries.
struct OpenedState {
    number: u64,
    at: Duration,
    /// `None` if the state has no such partition.
    reading: Option<Reading>,
}

/// A range of keys, and the operations of it that are lost, up to the last one.
struct AskedRange<'a> {
    from: &'a [u8],
    to: &'a [u8],
    through: SeqNo,
}

/// The answer of a state about a gap.
enum StateAnswer {
    Known(Vec<OwnedEntry>),
    /// It has not come to the last operation of the gap.
    Older,
    /// It has the gap, or is damaged.
    Damaged,
}

impl BucketReplica {
    pub(crate) fn new(remote: &Settings, shipper: Arc<Shipper>, partition: &str) -> BucketReplica {
        let mut settings = remote.clone();
        settings.patience = settings.patience.min(PATIENCE_MAX);
        settings.cache_bytes = settings.cache_bytes.min(CACHE_BYTES_MAX);
        BucketReplica { settings, shipper, partition: partition.to_owned(), turn: Mutex::default() }
    }

    /// Makes calls of the store, unless they have failed a moment ago.
    fn ask<T>(&self, call: impl FnOnce(&mut ReplicaTurn) -> Result<T>) -> Result<T> {
        let mut turn = self.turn.lock();
        let timer = &self.settings.timer;
        if timer.now() < turn.away_until {
            return Err(Error::new(ErrorKind::Io, "the bucket has failed a moment ago"));
        }
        let answer = call(&mut turn);
        // A bucket that lacks an object is there.
        if answer.as_ref().is_err_and(|it| it.kind() == ErrorKind::Io && !it.is_missing()) {
            turn.away_until = timer.now().saturating_add(AWAY);
        }
        answer
    }

    /// Opens the newest stored state, for single entries: they are in tables.
    fn open_newest(&self) -> Result<OpenedState> {
        let number = self.shipper.number();
        let (folder, _) = load_before(&self.settings.bucket(), number + 1)?;
        let at = self.settings.timer.now();
        if !has_manifest(&folder) {
            return Ok(OpenedState { number, at, reading: None });
        }
        let reader = RemoteReader::of_state(&self.settings, folder);
        let secondary = reader.secondary().tables_only(true).open()?;
        let reading = match secondary.partition(&self.partition) {
            Ok(partition) => {
                partition.sync(Target::Latest)?;
                Some(partition.at(Level::Eventual)?)
            }
            Err(error) if error.kind() == ErrorKind::PartitionNotFound => None,
            Err(error) => return Err(error),
        };
        Ok(OpenedState { number, at, reading })
    }

    fn find(&self, turn: &mut ReplicaTurn, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        if let Some(opened) = &turn.opened {
            let found = opened.find(key, seq);
            let now = self.settings.timer.now();
            let is_newest = opened.number == self.shipper.number();
            if matches!(found, Ok(Some(_))) || is_newest || now < opened.at + REOPEN {
                return found;
            }
        }
        turn.opened = None;
        turn.opened.insert(self.open_newest()?).find(key, seq)
    }

    /// Asks the state after the journal object `number` for the entries of a gap.
    ///
    /// # Errors
    /// Those of the store; a metadata provider that is not known here; too many bytes.
    fn answer_of(
        &self,
        history: &mut History,
        number: u64,
        asked: &AskedRange<'_>,
    ) -> Result<StateAnswer> {
        // A damaged object of the journal ends the states after it, and not the search.
        match history.state(number).and_then(|folder| self.read_gap(folder, asked)) {
            Ok(Some(entries)) => Ok(StateAnswer::Known(entries)),
            Ok(None) => Ok(StateAnswer::Older),
            // An object that is gone is that of a state that is deleted at this moment.
            Err(error) if error.is_corruption() || error.is_missing() => Ok(StateAnswer::Damaged),
            Err(error) => match error.kind() {
                ErrorKind::FileGone => Ok(StateAnswer::Damaged),
                ErrorKind::PartitionNotFound => Ok(StateAnswer::Older),
                _ => Err(error),
            },
        }
    }

    fn read_gap(&self, folder: Folder, asked: &AskedRange<'_>) -> Result<Option<Vec<OwnedEntry>>> {
        if !has_manifest(&folder) {
            return Ok(None);
        }
        let secondary = RemoteReader::of_state(&self.settings, folder).secondary().open()?;
        let partition = secondary.partition(&self.partition)?;
        if partition.sync(Target::Latest)?.seq < asked.through {
            return Ok(None);
        }
        let reading = partition.at(Level::Eventual)?;
        let AskedRange { from, to, through } = *asked;
        reading.fetch_range(from, to, through, GAP_BYTES_MAX)
    }

    /// Goes back through the history, in steps that double, to a state before the gap. If it is one before the last
    /// operation of the gap, the states in between are halved.
    fn search(&self, asked: &AskedRange<'_>) -> Result<Option<Vec<OwnedEntry>>> {
        let mut history = History::hold(&self.settings)?;
        let oldest = history.bases.first().map_or(0, |(number, _)| *number);
        let mut damaged_from = self.shipper.number() + 1;
        let mut older = None;
        let mut step: u64 = 1;
        loop {
            let number = match older {
                Some(older) if damaged_from - older <= 1 => return Ok(None),
                Some(older) => damaged_from.midpoint(older),
                None if damaged_from <= oldest => return Ok(None),
                None => damaged_from.saturating_sub(step).max(oldest),
            };
            step = step.saturating_mul(2);
            match self.answer_of(&mut history, number, asked)? {
                StateAnswer::Known(entries) => return Ok(Some(entries)),
                StateAnswer::Damaged => damaged_from = number,
                StateAnswer::Older => older = Some(number),
            }
        }
    }
}

impl OpenedState {
    fn find(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        self.reading.as_ref().map_or(Ok(None), |reading| reading.fetch(key, seq))
    }
}

fn has_manifest(folder: &Folder) -> bool {
    folder.files.keys().any(|name| name.ends_with(".manifest"))
}

impl Replica for BucketReplica {
    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        self.ask(|turn| self.find(turn, key, seq))
    }

    fn fetch_range(
        &self,
        from: &[u8],
        to: &[u8],
        through: SeqNo,
    ) -> Result<Option<Vec<OwnedEntry>>> {
        self.ask(|turn| {
            // The repair has ended. The next one is of another state.
            turn.opened = None;
            self.search(&AskedRange { from, to, through })
        })
    }
}
