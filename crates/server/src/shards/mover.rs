//! [`Mover`]: makes maps of shards, and moves slots from one shard to another while both serve.
//!
//! ```text
//! map n: step 1     the move begins. One mover gets this number, which is its attempt
//! EXPECT, CLEAR     the new owner expects the slots, and removes what it has of them from earlier times
//! NOTE, COPY, PUT   the old owner notes which keys change. Its entries are copied, and the changed ones again
//! GIVE              the old owner refuses the slots: no write of them comes any more
//! CHANGED, PUT      the last changes are copied
//! SEAL              all is durable at the new owner, which names a commit that has it
//! map n + 1: step 2 the new owner is in the map. From here on the move is not undone
//! OWN               the new owner serves the slots
//! DONE              the old owner removes its entries in the background
//! map n + 2         no move
//! ```
//!
//! Invariants:
//! 1. At each moment at most one shard owns a slot: `OWN` comes after map n + 1, which no other mover has then put, and
//!    `GIVE` before it. Before map n + 1 the old owner may take the slots back by a later attempt alone.
//! 2. A mover that dies leaves a map that says how far it was, at most. The next one begins this step again.
//! 3. A primary that is taken over during the copy ends the attempt: what it noted, and what its successor may have lost
//!    in a crash, is copied again by the next one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use resp_rs::resp2::Frame;
use siltstone::clock::{Clock, SystemClock};
use siltstone::{Error, ErrorKind, Result};
use tokio::runtime::Runtime;

use super::copy::{Copy, command};
use super::map::{Move, Shard, ShardMap, Step};
use super::maps::Maps;
use super::peer::{Attempt, Peer, Stop, bulk, integer, items, line, strange};
use super::slots::SlotSet;
use crate::front::failed;
use crate::level::Token;
use crate::route::cluster::connector;
use crate::route::dialer::Dialer;
use crate::route::{self, ClusterOptions, Nodes};

/// Attempts of one call: primaries may be taken over meanwhile.
const ATTEMPTS: usize = 5;
/// With fewer changed keys the last part begins: it copies them while the slots are not served.
const CHANGED_LAST: i64 = 100;
/// Rounds after which it begins in any case: the writes are as fast as the copy.
const ROUNDS_MAX: usize = 100;
/// Time between two looks for a primary.
const PAUSE: Duration = Duration::from_millis(50);

/// The next step of a [`Mover`], by its name, as it reports it. An error ends the mover at this place, as a crash would.
pub type OnStep = Arc<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// The options of a [`Mover`].
#[derive(Clone)]
pub struct MoverOptions {
    /// Name and password of a user with `write=*`. Default: none.
    pub login: Option<(String, String)>,
    /// The longest that it waits for the primary of a shard. Default: 10 s.
    pub wait: Duration,
    /// The longest that a primary takes for a reply. Default: 60 s.
    pub reply: Duration,
    /// TLS to the primaries. Default: none.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::tls::NodeTls>,
    /// Is called before each step. Default: nothing.
    pub on_step: OnStep,
}

impl Default for MoverOptions {
    fn default() -> MoverOptions {
        MoverOptions {
            login: None,
            wait: Duration::from_secs(10),
            reply: Duration::from_secs(60),
            #[cfg(feature = "tls")]
            tls: None,
            on_step: Arc::new(|_| Ok(())),
        }
    }
}

impl MoverOptions {
    /// Those of the connections.
    #[cfg_attr(not(feature = "tls"), expect(clippy::unused_self, reason = "it has TLS alone"))]
    fn of_nodes(&self) -> ClusterOptions {
        ClusterOptions {
            #[cfg(feature = "tls")]
            tls: self.tls.clone(),
            ..ClusterOptions::new(Nodes::List(Vec::new()))
        }
    }
}

/// The outcome of a move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Entries that were copied, some of them several times.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time in which neither shard served the slots. Zero if an earlier mover has begun it.
    pub pause: Duration,
}

/// Changes the shards of a service.
pub struct Mover {
    maps: Maps,
    options: MoverOptions,
    clock: SystemClock,
    runtime: Runtime,
    dialer: Dialer,
}

impl Mover {
    /// A mover for the service whose maps are `maps`. It starts nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system has no resources. With TLS those of its files.
    pub fn new(maps: Maps, options: MoverOptions) -> Result<Mover> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed("start a runtime", &error))?;
        let dialer = Dialer::new(connector(&options.of_nodes())?);
        Ok(Mover { maps, options, clock: SystemClock::new(), runtime, dialer })
    }

    /// Makes the first map, in which the shards have equal parts of the slots, and gives each its part. Their primaries
    /// run.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if there is a map. [`ErrorKind::InvalidArgument`] for names that are not sound. A primary that
    /// does not run, or has keys of slots of another shard: then there is no map, or [`Mover::resume`] goes on.
    pub fn create(&self, shards: Vec<Shard>) -> Result<ShardMap> {
        let map = ShardMap::first(shards)?;
        if self.maps.latest()?.is_some() {
            return Err(Error::new(ErrorKind::Conflict, "there is a map of shards here already"));
        }
        // Before there is a map: a name or an address may be wrong.
        for place in 0..map.shards.len() {
            self.primary(&map, place)?.check(&map, place)?;
        }
        self.step("create")?;
        let map = self.maps.publish(map)?;
        self.settle(&map)?;
        Ok(map)
    }

    /// Adds a shard without slots, or replaces the nodes of a shard.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] while a move runs; those of [`Mover::create`].
    pub fn add(&self, shard: Shard) -> Result<ShardMap> {
        let map = self.resting()?;
        let next = map.with_shard(shard.clone())?;
        let place = next.place(&shard.name)?;
        self.primary(&next, place)?.check(&next, place)?;
        let map = self.maps.publish(next)?;
        self.settle(&map)?;
        Ok(map)
    }

    /// Moves slots, all of one shard, to the shard `to`.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] while another move runs, or if another mover has taken this one over.
    /// [`ErrorKind::InvalidArgument`] for slots of several shards or of `to`. Those of the primaries: then the move has begun,
    /// and [`Mover::resume`] ends it.
    ///
    /// # Cost
    /// Each entry of the slots goes through this process once, and once more if it changes meanwhile. The old owner looks
    /// at all of its entries.
    pub fn move_slots(&self, slots: &SlotSet, to: &str) -> Result<Moved> {
        let map = self.resting()?;
        let to = map.place(to)?;
        let from = slots.slots().next().map(|slot| map.owner(slot));
        let from = from.filter(|from| *from != to && map.slots_of(*from).covers(slots));
        let Some(from) = from else {
            let message = format!(
                "slots {slots} are not all of one other shard; see `siltstone shards show`"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        self.step("begin")?;
        let moving = Move { step: Step::Copying, from, to, slots: slots.clone() };
        let map = self.maps.publish(map.with_move(Some(moving))?)?;
        self.run(map)
    }

    /// Goes on with a move whose mover has ended, or takes it over from one that runs; without a move it gives each shard
    /// the slots of the map. `undoes` ends a move without its effect, if it has not come to the new owner yet.
    ///
    /// # Errors
    /// Those of [`Mover::move_slots`]. [`ErrorKind::InvalidArgument`] for an undo that comes too late.
    pub fn resume(&self, undoes: bool) -> Result<Option<Moved>> {
        let map = self.maps.needed()?;
        let Some(moving) = map.moving.clone() else {
            self.settle_all(&map)?;
            return Ok(None);
        };
        self.step("resume")?;
        if undoes {
            if moving.step == Step::Given {
                let message =
                    "the slots are of their new owner already: resume the move, and move them back";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            let map = self.maps.publish(map.with_move(None)?)?;
            self.settle_all(&map)?;
            return Ok(None);
        }
        let map = self.maps.publish(map.with_move(Some(moving))?)?;
        self.run(map).map(Some)
    }

    /// Returns the newest map, and for each shard what its primary says of its slots, or why it says nothing.
    ///
    /// # Errors
    /// Those of [`Maps::latest`]; [`ErrorKind::InvalidArgument`] without a map.
    pub fn show(&self) -> Result<(ShardMap, Vec<String>)> {
        let map = self.maps.needed()?;
        let said = (0..map.shards.len()).map(|place| {
            let asked = self.primary(&map, place).and_then(|mut peer| peer.call(&["SCID.MAP"]));
            asked.map_or_else(|stop| Error::from(stop).to_string(), |frame| line(&frame))
        });
        let said = said.collect();
        Ok((map, said))
    }

    pub(super) fn step(&self, name: &str) -> Result<()> {
        (self.options.on_step)(name)
    }

    /// The newest map, which has no move.
    fn resting(&self) -> Result<ShardMap> {
        let map = self.maps.needed()?;
        let Some(moving) = map.moving_text() else { return Ok(map) };
        let message =
            format!("{moving}; `siltstone shards resume` goes on if their mover has ended");
        Err(Error::new(ErrorKind::Conflict, message))
    }

    /// Gives each shard the slots of a map without a move.
    fn settle(&self, map: &ShardMap) -> Result<()> {
        (0..map.shards.len()).try_for_each(|place| {
            self.step("set")?;
            self.set(map, place)
        })
    }

    /// As [`Mover::settle`], but a shard that does not take its slots does not hold up the others. Returns the first error.
    fn settle_all(&self, map: &ShardMap) -> Result<()> {
        let mut settled = Ok(());
        for place in 0..map.shards.len() {
            self.step("set")?;
            settled = settled.and(self.set(map, place));
        }
        settled
    }

    fn set(&self, map: &ShardMap, place: usize) -> Result<()> {
        let slots = map.slots_of(place).to_string();
        let number = map.number.to_string();
        self.primary(map, place)?.call(&["SCID.SLOTS", "SET", &number, &slots])?;
        Ok(())
    }

    /// Brings the move of a map to its end, by several attempts if need be.
    fn run(&self, mut map: ShardMap) -> Result<Moved> {
        let mut moved = Moved::default();
        let mut given_at = None;
        for _ in 0..ATTEMPTS {
            let done = match &map.moving {
                Some(Move { step: Step::Copying, .. }) => {
                    self.copy(&map, &mut moved, &mut given_at)
                }
                _ => self.hand_over(&map, &mut moved, given_at),
            };
            match done {
                Ok(next) if next.moving.is_none() => return Ok(moved),
                Ok(next) => map = next,
                Err(Stop::Final(error)) => return Err(error),
                Err(Stop::Again(_)) => {
                    std::thread::park_timeout(PAUSE);
                    map = self.maps.publish(map.with_move(map.moving.clone())?)?;
                }
            }
        }
        let message =
            "the primaries of the shards change all the time; `siltstone shards resume` goes on";
        Err(Error::new(ErrorKind::Io, message))
    }

    /// Step 1, up to the map with step 2.
    fn copy(
        &self,
        map: &ShardMap,
        moved: &mut Moved,
        given_at: &mut Option<Duration>,
    ) -> Attempt<ShardMap> {
        let Some(moving) = map.moving.clone() else { return Ok(map.clone()) };
        let attempt = map.number.to_string();
        let slots = moving.slots.to_string();
        let mut to = self.primary(map, moving.to)?;
        let mut from = self.primary(map, moving.from)?;
        self.step("expect")?;
        let expected = to.call(&["SCID.SLOTS", "EXPECT", &attempt, &slots])?;
        let [epoch, partitions @ ..] = items(&expected)? else { return Err(strange(&expected)) };
        let epoch = integer(epoch)?.to_string();
        self.step("note")?;
        let noted = from.call(&["SCID.SLOTS", "NOTE", &attempt, &slots])?;
        for partition in partitions {
            self.clear(&mut to, &attempt, bulk(partition)?)?;
        }
        let mut copy = Copy { mover: self, from, to, attempt, epoch, moved };
        for partition in items(&noted)? {
            copy.partition(bulk(partition)?)?;
        }
        for _ in 0..ROUNDS_MAX {
            if copy.changes()? <= CHANGED_LAST {
                break;
            }
        }
        self.step("give")?;
        *given_at = Some(self.clock.now());
        let shard = &map.shards[moving.to].name;
        copy.from.call(&["SCID.SLOTS", "GIVE", &copy.attempt, shard])?;
        while copy.changes()? > 0 {}
        self.step("seal")?;
        let sealed = copy.to.call(&["SCID.SLOTS", "SEAL", &copy.attempt, &copy.epoch])?;
        let Token(floor) = Token::parse(bulk(&sealed)?).map_err(|_| strange(&sealed))?;
        self.step("publish")?;
        let place = moving.to;
        let next = map.with_move(Some(Move { step: Step::Given, ..moving }))?;
        Ok(self.maps.publish(next.with_floor(place, floor))?)
    }

    fn clear(&self, to: &mut Peer<'_>, attempt: &str, partition: &Bytes) -> Attempt<()> {
        let mut after: Option<Bytes> = None;
        loop {
            self.step("clear")?;
            let mut request = command("CLEAR", attempt, &[partition]);
            request.extend(after);
            after = match to.call(&request)? {
                Frame::BulkString(key) => key,
                other => return Err(strange(&other)),
            };
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Step 2, up to the map without a move.
    fn hand_over(
        &self,
        map: &ShardMap,
        moved: &mut Moved,
        given_at: Option<Duration>,
    ) -> Attempt<ShardMap> {
        let Some(moving) = &map.moving else { return Ok(map.clone()) };
        let attempt = map.number.to_string();
        let slots = moving.slots.to_string();
        self.step("own")?;
        self.primary(map, moving.to)?.call(&["SCID.SLOTS", "OWN", &attempt, &slots])?;
        let now = self.clock.now();
        moved.pause = given_at.map_or(Duration::ZERO, |given| now.saturating_sub(given));
        self.step("done")?;
        self.primary(map, moving.from)?.call(&["SCID.SLOTS", "DONE", &attempt, &slots])?;
        self.step("end")?;
        Ok(self.maps.publish(map.with_move(None)?)?)
    }

    /// Connects to the primary of a shard: that of the latest epoch.
    fn primary(&self, map: &ShardMap, place: usize) -> Attempt<Peer<'_>> {
        let shard = &map.shards[place];
        let until = self.clock.now().saturating_add(self.options.wait);
        loop {
            let nodes = Nodes::of_shard(&shard.nodes).addresses()?;
            let found = self.runtime.block_on(route::primary::primary(
                &self.dialer,
                &nodes,
                self.options.login.as_ref(),
                self.options.reply,
            ));
            if let Some(link) = found {
                return Ok(Peer { runtime: &self.runtime, link, shard: shard.name.clone() });
            }
            if self.clock.now() >= until {
                let nodes = nodes.join(", ");
                let text = format!("no primary of shard {} answers at {nodes}", shard.name);
                return Err(Stop::Final(Error::new(ErrorKind::Io, text)));
            }
            std::thread::park_timeout(PAUSE);
        }
    }
}
