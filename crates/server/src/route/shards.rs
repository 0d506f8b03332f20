//! [`Shards`]: the shards of a service, as a router knows them: the newest map that it has seen, and the nodes of each.
//!
//! Invariant: the map never goes back. A shard serves slots only after the map that names it as their owner, so who reads
//! the map after a refusal finds the owner, or a map that is older than the move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use siltstone::Result;
use tokio::task::{JoinSet, spawn_blocking};

use super::cluster::{Cluster, ClusterOptions, INTERVAL, connector};
use super::dialer::Dialer;
use super::nodes::Nodes;
use super::walks::Walk;
use crate::cursors::Cursors;
use crate::exposition::count;
use crate::reply::Reply;
use crate::shards::{Maps, ShardMap};

/// Times of [`INTERVAL`] between two looks for a newer map that no refusal has asked for.
const MAP_ROUNDS: u64 = 10;

/// The map, and the nodes of each shard, at its place.
pub(crate) struct Known {
    pub(crate) map: Arc<ShardMap>,
    pub(crate) clusters: Vec<Arc<Cluster>>,
}

/// The shards of a service, for routers and programs.
pub struct Shards {
    maps: Maps,
    pub(crate) options: ClusterOptions,
    dialer: Arc<Dialer>,
    known: ArcSwap<Known>,
    /// Looks for a newer map, and the turn of one.
    looks: AtomicU64,
    turn: tokio::sync::Mutex<()>,
    pub(super) walks: Cursors<Walk>,
    /// Requests that a shard refused because their slots were elsewhere.
    pub(crate) moved: AtomicU64,
    /// Looks for a newer map that failed.
    pub(crate) failed_looks: AtomicU64,
}

impl Shards {
    /// Reads the newest map. The nodes of `options` are not used. Blocks.
    ///
    /// # Errors
    /// Those of [`Maps::latest`]; [`ErrorKind::InvalidArgument`](siltstone::ErrorKind::InvalidArgument) without a map, and
    /// for a shard whose list of nodes is empty.
    pub fn open(maps: Maps, options: ClusterOptions) -> Result<Shards> {
        let map = maps.needed()?;
        let dialer = Arc::new(Dialer::new(connector(&options)?));
        let known = ArcSwap::from_pointee(known(map, &options, &dialer, None)?);
        Ok(Shards {
            maps,
            options,
            dialer,
            known,
            looks: AtomicU64::new(0),
            turn: tokio::sync::Mutex::new(()),
            walks: Cursors::default(),
            moved: AtomicU64::new(0),
            failed_looks: AtomicU64::new(0),
        })
    }

    pub(crate) fn known(&self) -> Arc<Known> {
        self.known.load_full()
    }

    pub(crate) fn map(&self) -> Arc<ShardMap> {
        self.known.load().map.clone()
    }

    pub(crate) fn now(&self) -> Duration {
        self.options.clock.now()
    }

    /// Looks for a newer map. A store that does not answer, and a map that is not sound, change nothing, and are counted.
    pub(crate) async fn refresh(self: &Arc<Shards>) {
        let seen = self.looks.load(Ordering::Acquire);
        let _turn = self.turn.lock().await;
        // Another one has begun and ended a look meanwhile.
        if self.looks.load(Ordering::Acquire) > seen + 1 {
            return;
        }
        self.looks.fetch_add(1, Ordering::AcqRel);
        let shards = self.clone();
        let found = spawn_blocking(move || {
            let old = shards.known();
            let map = shards.maps.newest(ShardMap::clone(&old.map))?;
            if map.number == old.map.number {
                return Ok(None);
            }
            known(map, &shards.options, &shards.dialer, Some(&old)).map(Some)
        });
        let found: std::result::Result<Result<Option<Known>>, _> = found.await;
        match found {
            Ok(Ok(Some(known))) => self.known.store(Arc::new(known)),
            Ok(Ok(None)) => {}
            Ok(Err(_)) | Err(_) => count(&self.failed_looks),
        }
        self.looks.fetch_add(1, Ordering::AcqRel);
    }

    /// As [`Shards::refresh`]. Returns whether the map is the newest one of a moment after the call.
    pub(super) async fn looked(self: &Arc<Shards>) -> bool {
        let failed = self.failed_looks.load(Ordering::Acquire);
        self.refresh().await;
        // A look of others that has failed meanwhile may be the one that counts for this.
        self.failed_looks.load(Ordering::Acquire) == failed
    }

    /// Asks the nodes in turns, and looks for newer maps, until the task is aborted.
    pub async fn watch(self: Arc<Shards>) {
        for round in 1_u64.. {
            let mut asked = JoinSet::new();
            for cluster in &self.known().clusters {
                let cluster = cluster.clone();
                asked.spawn(async move { cluster.look().await });
            }
            asked.join_all().await;
            if round.is_multiple_of(MAP_ROUNDS) {
                self.refresh().await;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// `SCID.MAP`: the number of the map, the slots and nodes of each shard, and the move.
    pub(crate) fn described(&self) -> Reply {
        let map = self.map();
        let shards = map.shards.iter().enumerate().map(|(place, shard)| {
            Reply::Map(vec![
                (Reply::text("shard"), Reply::text(&shard.name)),
                (Reply::text("slots"), Reply::text(map.slots_of(place).to_string())),
                (Reply::text("nodes"), Reply::Array(shard.nodes.iter().map(Reply::text).collect())),
            ])
        });
        let shards = shards.collect();
        let moving = map.moving.as_ref().map_or(Reply::Nil, |moving| {
            Reply::Map(vec![
                (Reply::text("slots"), Reply::text(moving.slots.to_string())),
                (Reply::text("from"), Reply::text(&map.shards[moving.from].name)),
                (Reply::text("to"), Reply::text(&map.shards[moving.to].name)),
                (Reply::text("step"), Reply::text(moving.step.name())),
            ])
        });
        Reply::Map(vec![
            (Reply::text("number"), Reply::count(map.number)),
            (Reply::text("shards"), Reply::Array(shards)),
            (Reply::text("moving"), moving),
        ])
    }

    /// `SCID.NODES`: the nodes of all shards.
    pub(crate) fn nodes(&self) -> Reply {
        let known = self.known();
        let mut nodes = Vec::new();
        for (shard, cluster) in known.map.shards.iter().zip(&known.clusters) {
            let Reply::Array(of_shard) = cluster.reply() else { continue };
            for node in of_shard {
                let Reply::Map(pairs) = node else { continue };
                let name = (Reply::text("shard"), Reply::text(&shard.name));
                nodes.push(Reply::Map([name].into_iter().chain(pairs).collect()));
            }
        }
        Reply::Array(nodes)
    }
}

/// The nodes of the shards of a map. A shard with the nodes of before keeps what is known of them.
fn known(
    map: ShardMap,
    options: &ClusterOptions,
    dialer: &Arc<Dialer>,
    old: Option<&Known>,
) -> Result<Known> {
    let mut clusters = Vec::with_capacity(map.shards.len());
    for (place, shard) in map.shards.iter().enumerate() {
        let same = old.and_then(|old| {
            let is_same = old.map.shards.get(place) == Some(shard);
            old.clusters.get(place).filter(|_| is_same)
        });
        clusters.push(match same {
            Some(cluster) => cluster.clone(),
            None => {
                let nodes = Nodes::of_shard(&shard.nodes);
                let options = ClusterOptions { nodes, ..options.clone() };
                let listed = Cluster::with_dialer(options.clone(), dialer.clone());
                // While a router runs, a list that cannot be read holds up its own shard alone.
                Arc::new(match old {
                    None => listed?,
                    Some(_) => {
                        listed.unwrap_or_else(|_| Cluster::unlisted(options, dialer.clone()))
                    }
                })
            }
        });
    }
    Ok(Known { map: Arc::new(map), clusters })
}
