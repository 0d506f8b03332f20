//! Objects that a put of the living primary has left in vain: the put failed, and may have taken effect all the same.
//!
//! The journal names no such object, so it would stay until the next primary looks for what this one has left. An object is
//! given to the deletion (`collect.rs`) only once no later put can have its name, because a deletion and a put of one name may take
//! effect in any order.

use std::ops::Range;

use lsm_core::fs::File;
use siltstone::Result;

use super::Shipper;
use crate::folder::ObjectPiece;

/// A failed put of a range of a file.
pub(super) struct VainPut {
    object: String,
    file: String,
    end: u64,
    /// Its file is given up with it. A chunk file goes on, and puts the range again, mostly with more bytes: then under
    /// another name.
    is_table: bool,
}

impl Shipper {
    /// Puts a range of a table that is synced, or of a chunk file. After an error nothing of the table is put any more.
    ///
    /// # Errors
    /// As [`Shipper::put_range`].
    pub(crate) fn put_once(
        &self,
        kind: &str,
        name: &str,
        range: Range<u64>,
        file: &dyn File,
    ) -> Result<ObjectPiece> {
        let put = self.put_range(kind, name, range.clone(), file);
        if put.is_err() {
            let object = self.data_name(kind, name, &range);
            let is_table = kind == "table";
            let vain = VainPut { object, file: name.to_owned(), end: range.end, is_table };
            self.state.lock().vain.push(vain);
        }
        put
    }

    /// Takes the objects of failed puts whose names no later put has, and that the journal does not need.
    pub(crate) fn take_vain(&self) -> Vec<String> {
        let mut state = self.state.lock();
        let mut over = Vec::new();
        for put in std::mem::take(&mut state.vain) {
            let file = state.folder.file(&put.file);
            // What is stored is not put again.
            let is_stored = file.is_some_and(|file| file.read().written >= put.end);
            if put.is_table || is_stored {
                over.push(put.object);
            } else {
                state.vain.push(put);
            }
        }
        drop(state);
        if !over.is_empty() {
            let needed = self.needed();
            over.retain(|object| !needed.contains(object.as_str()));
        }
        over
    }
}
