//! The keys of a store that is encrypted, and another database that shares its resources.

use std::sync::Arc;

use encryption::KeyRing;
use lsm_core::fs::MemFs;
use siltstone::{BackgroundMode, Db, Options, ResourceOptions, Resources};
use testkit::rng::Rng;

use super::DIR;
use crate::clock::ManualClock;
use crate::neighbour::Neighbour;
use crate::store;

/// The keys and resources that a store is opened with.
#[derive(Default)]
pub struct Surroundings {
    pub keys: Option<KeyRing>,
    resources: Option<Resources>,
    neighbour: Option<Neighbour>,
}

impl Surroundings {
    /// An encrypted store.
    pub fn encrypted(keys: KeyRing) -> Surroundings {
        Surroundings { keys: Some(keys), ..Surroundings::default() }
    }

    /// A store with another one, which share little of everything.
    pub fn shared() -> Surroundings {
        let options = ResourceOptions::new().cache_bytes(64 << 10).write_buffer_bytes(8 << 10);
        let resources = Resources::new(options.open_files_max(4)).unwrap();
        let neighbour = Some(Neighbour::new(&resources));
        Surroundings { keys: None, resources: Some(resources), neighbour }
    }

    /// Opens the store of `fs`.
    pub fn open(&self, fs: &MemFs, clock: &ManualClock, options: &Options, random: &mut Rng) -> Db {
        let mut random = random.fork();
        let fs = store::over(Arc::new(fs.clone()), self.keys.as_ref());
        let mut builder = Db::builder(DIR).fs(fs).options(options.clone());
        if let Some(resources) = &self.resources {
            builder = builder.resources(resources);
        }
        // Only an operation moves the clock, so a case can be repeated.
        let builder = builder.clock(Arc::new(clock.clone()));
        let builder = builder.background(BackgroundMode::Stepped);
        builder.random(move || random.next_u64()).open().unwrap()
    }

    /// Lets the other database do something.
    pub fn act(&mut self) {
        self.neighbour.iter_mut().for_each(Neighbour::act);
    }
}
