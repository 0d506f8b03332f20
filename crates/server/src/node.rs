//! [`Node`]: the role of this process, its partitions, and the changes of the role.
//!
//! Invariants:
//! 1. A command uses one [`Role`] from its begin to its end. A change of the role shows to the commands after it.
//! 2. No connection keeps a handle of the database between two commands: an old role ends with the last command on it.
//! 3. A read of a primary counts only if the primary was not fenced after the read. At the levels 1 and 2 of a bucket it
//!    counts only if no other primary may have acknowledged anything until then (`Primary::confirm`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use siltstone::secondary::{Level, OnUnmet, ReadOptions, Secondary, SecondaryPartition, Target};
use siltstone::{Commit, Db, Durability, Epoch, Error, ErrorKind, LargeValueOptions, Partition};
use siltstone::{PartitionOptions, Readable, Result, SeqNo, Slice};

use crate::expiry::{self, Expiring};
use crate::failure::{Failure, Patience};
use crate::known_primary::{ADDRESS, KnownPrimary, RUN, random_run};
use crate::place::{OpenPrimary, Place};
use crate::shards::owner::{ENTRY, Owner, named};
use crate::shards::record::Record;

/// The partition in which a primary notes its address and its partitions with expiry.
pub(crate) const NOTES: &str = "scid";

/// A primary: it reads and writes.
pub(crate) struct Primary {
    pub(crate) db: Db,
    pub(crate) epoch: Epoch,
    /// The identity of this run, as noted for readers.
    pub(crate) run: String,
    partitions: ArcSwap<HashMap<String, Partition>>,
    /// Those whose values begin with the time of their expiry: their stored rule says so. No other gets it while this
    /// primary lives.
    expiring: BTreeSet<String>,
    /// Its slots, if it is a shard.
    pub(crate) owner: Option<Box<Owner>>,
    /// The newest commit of an earlier epoch that is known to be in this history.
    proven: Mutex<Option<Commit>>,
    /// Dropped after the database, which it ships.
    pub(crate) shipping: Option<remote::Primary>,
}

/// A reader: it follows the primary.
pub(crate) struct Reader {
    pub(crate) secondary: Secondary,
    partitions: ArcSwap<HashMap<String, SecondaryPartition>>,
    shard: Option<String>,
    /// The primary has a record of slots, or the server has the name of a shard.
    pub(crate) is_shard: AtomicBool,
    /// The last record, with its bytes.
    record: Mutex<Option<(Slice, Arc<Record>)>>,
}

/// The role of a server. It changes by a promotion, and when another one takes the database over.
pub(crate) enum Role {
    Primary(Primary),
    Reader(Reader),
}

/// This process, as a part of the service.
pub(crate) struct Node {
    role: ArcSwap<Role>,
    pub(crate) place: Place,
    /// The last primary that a reader has found.
    pub(crate) known_primary: ArcSwapOption<KnownPrimary>,
    options: NodeOptions,
    /// One change of the role at a time.
    turn: Mutex<()>,
    is_promoting: AtomicBool,
}

/// The options of a [`Node`].
#[derive(Default)]
pub(crate) struct NodeOptions {
    /// The address of this server for clients.
    pub(crate) address: Option<String>,
    /// Partitions whose entries may expire.
    pub(crate) expiring: Expiring,
    /// Partitions whose large values are in chunk files.
    pub(crate) large: Vec<String>,
    /// The name of its shard.
    pub(crate) shard: Option<String>,
    /// The bytes a second that flushes and compactions of a primary write; 0 is no limit.
    pub(crate) background_rate: u64,
}

impl NodeOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let expiring = &self.expiring.names;
        let message = if let Some(both) = self.large.iter().find(|it| expiring.contains(*it)) {
            format!("the entries of partition {both:?} cannot both expire and be large")
        } else if self.large.iter().chain(expiring).any(|name| name == NOTES) {
            format!(
                "partition {NOTES:?} is that of the server: its entries neither expire nor are large"
            )
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }
}

impl Node {
    /// Opens `place` in a role.
    pub(crate) fn open(place: Place, is_primary: bool, options: NodeOptions) -> Result<Node> {
        if !is_primary {
            let secondary = place.reader()?;
            return Node::following(place, secondary, options);
        }
        let primary = begin(place.primary()?, &options)?;
        Ok(Node::new(place, Role::Primary(primary), options))
    }

    /// A reader that follows `place` by `secondary`.
    pub(crate) fn following(
        place: Place,
        secondary: Secondary,
        options: NodeOptions,
    ) -> Result<Node> {
        if options.shard.is_some() {
            check_shard(&secondary, options.shard.as_deref())?;
        }
        expiry::check_reader(&secondary, &options.expiring, &options.large, false)?;
        let reader = Reader::new(secondary, options.shard.clone());
        Ok(Node::new(place, Role::Reader(reader), options))
    }

    fn new(place: Place, role: Role, options: NodeOptions) -> Node {
        Node {
            role: ArcSwap::from_pointee(role),
            place,
            known_primary: ArcSwapOption::empty(),
            options,
            turn: Mutex::new(()),
            is_promoting: AtomicBool::new(false),
        }
    }

    pub(crate) fn role(&self) -> Arc<Role> {
        self.role.load_full()
    }

    pub(crate) fn is_primary(&self) -> bool {
        matches!(**self.role.load(), Role::Primary(_))
    }

    /// Returns whether a read at level 1 or 2 needs no call of a bucket here.
    pub(crate) fn serves_strong(&self) -> bool {
        match &**self.role.load() {
            Role::Primary(primary) => primary.serves_strong(),
            Role::Reader(_) => !self.place.is_bucket(),
        }
    }

    /// Makes a reader the primary. Blocks.
    pub(crate) fn promote(&self) -> Result<Commit> {
        let _turn = self.turn.lock();
        // A primary that was taken over, and has had no command since, is a reader.
        if matches!(&*self.role(), Role::Primary(primary) if primary.is_fenced()) {
            self.become_reader()?;
        }
        let role = self.role();
        let Role::Reader(reader) = &*role else { return Ok(self.latest()) };
        // What the begin of a primary refuses is refused here: after the takeover there would be no primary.
        let options = &self.options;
        check_shard(&reader.secondary, options.shard.as_deref())?;
        expiry::check_reader(&reader.secondary, &options.expiring, &options.large, true)?;
        self.is_promoting.store(true, Ordering::Relaxed);
        let opened = self.place.promote(&reader.secondary);
        let begun = opened.and_then(|open| begin(open, options));
        self.is_promoting.store(false, Ordering::Relaxed);
        self.role.store(Arc::new(Role::Primary(begun?)));
        Ok(self.latest())
    }

    /// Makes a primary that was taken over a reader of its successor. Blocks.
    pub(crate) fn demote(&self) -> Result<()> {
        let _turn = self.turn.lock();
        match &*self.role() {
            // It may have been promoted again since the caller found the fence.
            Role::Primary(primary) if primary.is_fenced() => self.become_reader(),
            Role::Primary(_) | Role::Reader(_) => Ok(()),
        }
    }

    /// The caller has the turn.
    fn become_reader(&self) -> Result<()> {
        let reader = Reader::new(self.place.reader()?, self.options.shard.clone());
        self.known_primary.store(None);
        self.role.store(Arc::new(Role::Reader(reader)));
        Ok(())
    }

    /// The newest commit that this node knows.
    pub(crate) fn latest(&self) -> Commit {
        match &*self.role() {
            Role::Primary(primary) => primary.latest(),
            Role::Reader(reader) => {
                let nothing = Commit { seq: SeqNo::ZERO, epoch: Epoch(0) };
                reader.secondary.cut().as_of().unwrap_or(nothing)
            }
        }
    }

    /// The slots of its shard, as this node knows them; `None` if it is no shard.
    pub(crate) fn record(&self) -> Option<Arc<Record>> {
        match &*self.role() {
            Role::Primary(primary) => primary.owner.as_deref().map(Owner::record),
            Role::Reader(reader) => reader.record(Level::Eventual, Duration::ZERO).ok().flatten(),
        }
    }

    /// Follows the primary once, for all partitions, and looks up its address. Blocks.
    pub(crate) fn follow(&self) -> Result<()> {
        match &*self.role() {
            Role::Primary(_) => Ok(()),
            Role::Reader(reader) => {
                reader.secondary.sync(Target::Latest)?;
                reader.learn()?;
                let notes = reader.secondary.partition(NOTES).ok();
                let known = notes.and_then(|notes| KnownPrimary::noted(&notes));
                self.known_primary.store(known.map(Arc::new));
                Ok(())
            }
        }
    }

    /// The refusal of a write by a reader.
    pub(crate) fn read_only(&self) -> Failure {
        let text = match self.known_primary.load().as_ref().map(|known| &known.address) {
            _ if self.is_promoting.load(Ordering::Relaxed) => {
                "READONLY this server is becoming the primary; try again".to_owned()
            }
            Some(address) => {
                format!("READONLY this server is a reader; the primary is at {address}")
            }
            None => "READONLY this server is a reader; it does not know the address of the primary"
                .to_owned(),
        };
        Failure::Refused(text.into())
    }

    /// Closes the database. Blocks. Commands that still run on it fail as closed.
    pub(crate) fn close(&self) -> Result<()> {
        let _turn = self.turn.lock();
        match &*self.role() {
            Role::Primary(primary) if primary.is_fenced() => Ok(()),
            Role::Primary(primary) => primary.db.clone().close(),
            Role::Reader(_) => Ok(()),
        }
    }
}

/// Refuses a database whose record is damaged, or that of another shard, as far as a reader knows. A look may ask a bucket.
fn check_shard(secondary: &Secondary, name: Option<&str>) -> Result<()> {
    let stored = expiry::newest(secondary, NOTES, |notes| notes.get(ENTRY))?.flatten();
    let record = stored.map(|bytes| Record::decode(&bytes)).transpose()?;
    named(record, name).map(drop)
}

/// Begins to serve an open database as its primary.
fn begin(open: OpenPrimary, options: &NodeOptions) -> Result<Primary> {
    let OpenPrimary { db, shipping } = open;
    db.set_background_bytes_per_second(options.background_rate)?;
    let notes = db.partition(NOTES)?;
    let owner = Owner::open(notes.clone(), options.shard.as_deref())?.map(Box::new);
    let expiring = expiry::attach(&db, &notes, &options.expiring, &options.large)?;
    options.large.iter().try_for_each(|name| set_up_large(&db, name))?;
    let run = random_run();
    let noted = notes.get(ADDRESS)?;
    // Readers of a folder do not ask.
    let is_asked = shipping.is_some();
    let address = options.address.as_deref();
    if let Some(address) = address.filter(|it| is_asked || noted.as_deref() != Some(it.as_bytes()))
    {
        let mut batch = db.batch();
        batch.of(&notes).put(ADDRESS, address).put(RUN, &run);
        batch.commit(Durability::Sync)?;
    }
    let epoch = db.transaction().commit(Durability::Os)?.epoch;
    let partitions = ArcSwap::default();
    let proven = Mutex::new(None);
    Ok(Primary { db, epoch, run, partitions, expiring, owner, proven, shipping })
}

/// Gives a partition large values. One that has them, by a program or an earlier start, keeps its options.
fn set_up_large(db: &Db, name: &str) -> Result<()> {
    let options = match db.open_partition(name) {
        Err(error) if error.kind() == ErrorKind::PartitionNotFound => PartitionOptions::new(),
        opened => {
            let opened = opened?;
            if opened.large_value_options().is_some_and(|options| options.is_on()) {
                return Ok(());
            }
            opened.options()
        }
    };
    db.partition_with(name, options.large_values(LargeValueOptions::default())).map(drop)
}

impl Primary {
    /// The newest commit that reads of now may have seen.
    pub(crate) fn latest(&self) -> Commit {
        Commit { seq: self.db.visible_seq(), epoch: self.epoch }
    }

    /// Returns the partition; `None` if there is none and `creates` is off.
    pub(crate) fn partition(&self, name: &str, creates: bool) -> Result<Option<Partition>> {
        if let Some(found) = self.partitions.load().get(name) {
            return Ok(Some(found.clone()));
        }
        let opened = if creates { self.db.partition(name) } else { self.db.open_partition(name) };
        found(opened, name, &self.partitions)
    }

    /// Returns whether the values of the partition begin with the time of their expiry.
    pub(crate) fn expires(&self, name: &str) -> bool {
        self.expiring.contains(name)
    }

    /// Makes the partition `name`.
    pub(crate) fn created(&self, name: &str) -> Result<Partition, Failure> {
        let created = self.partition(name, true)?;
        created.ok_or_else(|| Failure::error(format!("partition {name:?} was dropped")))
    }

    /// Returns whether another one is known to have taken the database over.
    pub(crate) fn is_fenced(&self) -> bool {
        self.db.is_fenced() || self.shipping.as_ref().is_some_and(remote::Primary::is_fenced)
    }

    /// Returns whether this primary serves the levels 1 and 2 without a call of a bucket for each read.
    pub(crate) fn serves_strong(&self) -> bool {
        self.shipping.as_ref().is_none_or(remote::Primary::has_read_lease)
    }

    /// Makes sure that reads see all that readers of the bucket may have seen, and returns the newest commit. Called
    /// before a read at level 1 or 2. A commit that is being written may wait for the bucket.
    pub(crate) fn begin_strong(&self, patience: Patience) -> Result<SeqNo, Failure> {
        match patience {
            _ if self.shipping.is_none() => Ok(self.db.visible_seq()),
            Patience::MayWait => Ok(self.db.newest_seq()),
            Patience::MustNotWait => self.db.try_newest_seq().ok_or(Failure::MayWait),
        }
    }

    /// Returns once it is certain that what was read before is the newest state, and stays: no other primary had
    /// acknowledged anything, and a bucket has what was read. `wait` bounds it; without one nothing is asked of the bucket.
    pub(crate) fn confirm(&self, wait: Option<Duration>) -> Result<(), Failure> {
        if self.is_fenced() {
            return Err(Failure::Fenced);
        }
        let Some(shipping) = &self.shipping else { return Ok(()) };
        let seq = self.db.visible_seq();
        if self.db.durable_seq() >= seq && shipping.holds_read_lease() {
            return Ok(());
        }
        let Some(wait) = wait else { return Err(Failure::MayWait) };
        let (sender, receiver) = sync_channel(1);
        self.db.on_durable(seq, move |durable| {
            // The receiver may have given up.
            let _ = sender.send(durable);
        })?;
        let text = "NOTYET the bucket has not stored in time what this read has seen";
        receiver.recv_timeout(wait).map_err(|_| Failure::fixed(text))??;
        Ok(shipping.confirm(wait)?)
    }

    /// Returns whether all of `token` is in this history. `may_wait` allows to read files for it.
    pub(crate) fn has(&self, place: &Place, token: Commit, may_wait: bool) -> Result<(), Failure> {
        if token.epoch == self.epoch && token.seq <= self.db.visible_seq() {
            return Ok(());
        }
        if token.epoch >= self.epoch {
            let text = "NOTYET this server does not have the commit of the token";
            return Err(Failure::fixed(text));
        }
        let proven = *self.proven.lock();
        if proven.is_some_and(|it| it.epoch == token.epoch && it.seq >= token.seq) {
            return Ok(());
        }
        if !may_wait {
            return Err(Failure::MayWait);
        }
        // An earlier epoch: a crash may have lost its last commits, and only the files say which.
        place.reader()?.sync(Target::Token(token))?;
        *self.proven.lock() = Some(token);
        Ok(())
    }
}

impl Reader {
    fn new(secondary: Secondary, shard: Option<String>) -> Reader {
        Reader {
            secondary,
            partitions: ArcSwap::default(),
            is_shard: AtomicBool::new(shard.is_some()),
            shard,
            record: Mutex::new(None),
        }
    }

    /// The partition, if a command has used it before.
    pub(crate) fn known(&self, name: &str) -> Option<SecondaryPartition> {
        self.partitions.load().get(name).cloned()
    }

    /// Returns the slots of the primary at this level; `None` if it is no shard.
    pub(crate) fn record(&self, level: Level, wait: Duration) -> Result<Option<Arc<Record>>> {
        if !self.is_shard.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let stored = match self.secondary.partition(NOTES) {
            Err(error) if error.kind() == ErrorKind::PartitionNotFound => None,
            notes => notes?.get_with(ENTRY, &ReadOptions::new(level).wait(wait))?,
        };
        self.decoded(stored)
    }

    fn decoded(&self, stored: Option<Slice>) -> Result<Option<Arc<Record>>> {
        let mut known = self.record.lock();
        if let (Some((bytes, record)), Some(stored)) = (&*known, &stored)
            && bytes[..] == stored[..]
        {
            return Ok(Some(record.clone()));
        }
        let decoded = stored.as_ref().map(|bytes| Record::decode(bytes)).transpose()?;
        let record = named(decoded, self.shard.as_deref())?.map(Arc::new);
        *known = stored.zip(record.clone());
        Ok(record)
    }

    /// Learns whether the primary is a shard.
    fn learn(&self) -> Result<()> {
        let notes = match self.secondary.partition(NOTES) {
            Err(error) if error.kind() == ErrorKind::PartitionNotFound => return Ok(()),
            notes => notes?,
        };
        // The newest that is there. A partition that is known may be older than the record of slots.
        let newest = ReadOptions::new(Level::Strong).wait(Duration::ZERO).on_unmet(OnUnmet::Weaker);
        let notes = notes.read(&newest)?;
        if notes.contains(ENTRY)? {
            self.is_shard.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the partition; `None` if the primary has made none.
    pub(crate) fn partition(&self, name: &str) -> Result<Option<SecondaryPartition>> {
        if let Some(found) = self.known(name) {
            return Ok(Some(found));
        }
        let opened = self.secondary.partition(name);
        if opened.is_ok() {
            self.learn()?;
        }
        found(opened, name, &self.partitions)
    }
}

/// Keeps what was opened for the next command.
fn found<T: Clone>(
    opened: Result<T>,
    name: &str,
    partitions: &ArcSwap<HashMap<String, T>>,
) -> Result<Option<T>> {
    match opened {
        Ok(opened) => {
            partitions.rcu(|old| {
                let mut new = HashMap::clone(old);
                new.insert(name.to_owned(), opened.clone());
                new
            });
            Ok(Some(opened))
        }
        Err(error) if error.kind() == ErrorKind::PartitionNotFound => Ok(None),
        Err(error) => Err(error),
    }
}
