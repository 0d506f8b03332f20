//! [`Maps`]: the maps of a service, in the folder or bucket that its routers and movers share.

use std::path::Path;

use remote::{NumberedObjects, Remote};
use siltstone::fs::{Fs, OsFs};
use siltstone::{Error, ErrorKind, Result};

use super::map::ShardMap;

const FOLDER: &str = "shards";

/// The maps of a service.
#[derive(Clone)]
pub struct Maps(NumberedObjects);

impl Maps {
    /// The maps in a store, which may be that of a database.
    pub fn new(remote: &Remote) -> Maps {
        Maps(remote.numbered(FOLDER))
    }

    /// The maps in a bucket, by its URL, or in a folder.
    ///
    /// # Errors
    /// Those of [`Remote::url`]; a folder that cannot be made.
    pub fn open(place: &str) -> Result<Maps> {
        if place.contains("://") {
            return Ok(Maps::new(&Remote::url(place)?));
        }
        OsFs.create_dir(Path::new(place))?;
        let path = std::path::absolute(place).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot use the folder {place}: {error}"))
        })?;
        Ok(Maps::new(&Remote::url(&format!("file://{}", path.display()))?))
    }

    /// Returns the newest map; `None` before the first one.
    ///
    /// # Errors
    /// Those of the store. Corruption for a map that is not sound or of a newer version, and for one that is missing.
    pub fn latest(&self) -> Result<Option<ShardMap>> {
        let number = self.0.latest()?;
        if number == 0 {
            return Ok(None);
        }
        let Some(map) = self.get(number)? else {
            let what = "the object was listed, and is missing";
            return Err(Error::corruption(self.0.name(number), None, what));
        };
        self.newest(map).map(Some)
    }

    /// As [`Maps::latest`].
    ///
    /// # Errors
    /// As there; [`ErrorKind::InvalidArgument`] before the first map.
    pub(crate) fn needed(&self) -> Result<ShardMap> {
        self.latest()?.ok_or_else(|| {
            let message = "there is no map of shards here: make one by `siltstone shards create`";
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }

    /// Returns the newest map; `map` is one of before.
    ///
    /// # Cost
    /// A get if it is still the newest.
    pub(crate) fn newest(&self, mut map: ShardMap) -> Result<ShardMap> {
        while let Some(next) = self.get(map.number + 1)? {
            map = next;
        }
        Ok(map)
    }

    pub(crate) fn get(&self, number: u64) -> Result<Option<ShardMap>> {
        let bytes = self.0.get(number)?;
        bytes.map(|bytes| ShardMap::decode(&self.0.name(number), number, &bytes)).transpose()
    }

    /// Puts a map under its number.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another one has put a map under this number.
    pub(crate) fn publish(&self, map: ShardMap) -> Result<ShardMap> {
        let map = map.with_put_id(self.0.random());
        if self.0.put(map.number, &map.encode())? {
            return Ok(map);
        }
        let message = format!(
            "another process has put {}, so this one changes nothing more; see `siltstone shards show`",
            self.0.name(map.number)
        );
        Err(Error::new(ErrorKind::Conflict, message))
    }
}
