//! Raw and verified point reads of a [`Partition`], now and at a snapshot.
//!
//! What they do is in `raw/reading.rs`; here is what they read, taken in the same order as for
//! [`Partition::get`].

use std::sync::Arc;

use super::{Partition, Snapshot};
use crate::error::Result;
use crate::hooks::PartitionHooks;
use crate::partition::ReadView;
use crate::raw::{Moment, Readable};
use crate::read::{GetContext, ReadPoint};
use crate::types::SeqNo;

impl Partition {
    #[inline]
    fn look<T>(
        &self,
        view: &ReadView,
        seq: SeqNo,
        key: &[u8],
        look: impl FnOnce(&Moment<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let state = self.state();
        let context = GetContext { view, tables: &self.db().tables, store: state.store(), seq };
        let hooks = state.load_hooks();
        let moment = Moment { context, hooks: &hooks, partition: &state.name };
        let looked = match state.any_key {
            false => look(&moment, key),
            true => look(&moment, &[key, &[0]].concat()),
        };
        looked.map_err(|error| error.in_partition(&state.name))
    }
}

impl Readable for Partition {
    #[inline]
    fn with_moment<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(&Moment<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        self.db().check_not_closed()?;
        self.state().check_live()?;
        // The view first: what it holds is complete up to any sequence loaded later.
        let view = self.state().view();
        let seq = self.db().visible_seq();
        self.look(&view, seq, key, look)
    }

    fn read_point(&self) -> Result<(ReadPoint, Arc<PartitionHooks>)> {
        Ok((self.reader(None)?, self.state().hooks()))
    }
}

/// A partition as the snapshot sees it.
impl Readable for (&Snapshot, &Partition) {
    #[inline]
    fn with_moment<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(&Moment<'_>, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let (snapshot, partition) = *self;
        partition.check_snapshot(snapshot)?;
        let state = partition.state();
        match snapshot.registered.pinned_view(state.id) {
            Some(view) => partition.look(&view, snapshot.seq(), key, look),
            None => partition.look(&state.view(), snapshot.seq(), key, look),
        }
    }

    fn read_point(&self) -> Result<(ReadPoint, Arc<PartitionHooks>)> {
        let (snapshot, partition) = *self;
        Ok((partition.reader(Some(snapshot))?, partition.state().hooks()))
    }
}
