//! [`remove_leftover`]: the removal of entries whose slots were given away, in the background.

use std::sync::Arc;

use super::owner::remove_page;
use super::record::Record;
use crate::failure::{Failure, Patience};
use crate::node::{NOTES, Role};
use crate::shared::Shared;

/// Removes entries of slots that were given away, a page at a time, and returns whether there may be more. Blocks.
pub(crate) fn remove_leftover(shared: &Shared, place: &mut Leftover) -> Result<bool, Failure> {
    let role = shared.node.role();
    let Role::Primary(primary) = &*role else { return Ok(false) };
    let Some(owner) = &primary.owner else { return Ok(false) };
    let turn = owner.turn(Patience::MayWait)?;
    let record = turn.record();
    if record.leftover.is_empty() {
        return Ok(false);
    }
    if place.record.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &record)) {
        let names = primary.db.partition_names().into_iter().filter(|name| name != NOTES);
        *place = Leftover { record: Some(record.clone()), names: names.collect(), after: None };
    }
    let Some(name) = place.names.last() else {
        drop(turn);
        owner.change(record.attempt, |now| {
            now.leftover = now.leftover.without(&record.leftover);
            Ok(())
        })?;
        return Ok(true);
    };
    let partition = primary.partition(name, false)?;
    place.after = match partition {
        Some(it) => remove_page(&primary.db, &it, &record.leftover, place.after.as_deref())?,
        None => None,
    };
    if place.after.is_none() {
        place.names.pop();
    }
    Ok(true)
}

/// The place of a removal in the background.
#[derive(Default)]
pub(crate) struct Leftover {
    record: Option<Arc<Record>>,
    names: Vec<String>,
    after: Option<Vec<u8>>,
}
