//! [`Arrival`]: the long value of a `SET` or of a mover's `PUT`, which goes to a chunk file while it comes.
//!
//! Invariants:
//! 1. Nothing of it shows before its commit, and nothing is left of one whose client ends before that.
//! 2. No more of it is in memory than one read of the connection.

use std::io::Write;

use bytes::Bytes;
use siltstone::large_values::BlobWriter;
use siltstone::{Epoch, Partition};
use tokio::task::spawn_blocking;

use crate::blob::{Stored, stores_apart};
use crate::commands::{COMMANDS, find};
use crate::execute::{admit, may_write};
use crate::failure::Failure;
use crate::node::Role;
use crate::session::Session;
use crate::shards::commands::importing;
use crate::shards::keys::Keys;
use crate::shared::Shared;

/// A long value that comes. After a failure its bytes are skipped.
pub(crate) struct Arrival {
    writer: Result<BlobWriter, Failure>,
    epoch: Epoch,
}

/// The way of a long value.
pub(crate) enum Admission {
    Stream(Partition, Epoch),
    /// Into memory, as others: within the limit of a request.
    Hold,
    /// It is skipped as it comes.
    Refuse(Failure),
}

/// Decides on the way of a value of `len` bytes, which comes after the arguments `head`.
pub(crate) fn admission(shared: &Shared, session: &Session, head: &[Bytes], len: u64) -> Admission {
    let is_short = len <= shared.options.limits.argument_bytes as u64;
    let way = match head {
        [_, key] => streamed(shared, session, key, len),
        _ => moved(shared, session, head),
    };
    match way {
        Ok(Some((partition, epoch))) => Admission::Stream(partition, epoch),
        Ok(None) => Admission::Hold,
        // The command says it once it is complete, with what is wrong with its options.
        Err(_) if is_short => Admission::Hold,
        Err(failure) => Admission::Refuse(failure),
    }
}

/// The partition that takes the value; `None` if it has no large values.
fn streamed(
    shared: &Shared,
    session: &Session,
    key: &Bytes,
    len: u64,
) -> Result<Option<(Partition, Epoch)>, Failure> {
    let Some(spec) = find(b"SET").map(|at| &COMMANDS[at]) else { return Ok(None) };
    let request = [Bytes::from_static(b"SET"), key.clone(), Bytes::new()];
    admit(shared, session, spec, &request)?;
    let role = shared.node.role();
    let Role::Primary(primary) = &*role else { return Err(shared.node.read_only()) };
    may_write(session)?;
    if let Some(owner) = &primary.owner {
        Keys::Of(spec, &request[1..]).check(&owner.record())?;
    }
    let partition = primary.partition(&session.partition, false)?;
    let partition = partition.filter(stores_apart);
    let expires = primary.expires(&session.partition);
    let Some(partition) = partition.filter(|_| session.queue.is_none() && !expires) else {
        return Ok(None);
    };
    let most = shared.options.limits.streamed_bytes;
    if len > most {
        let text = format!("LIMIT the value has {len} bytes, the limit is {most}");
        return Err(Failure::Refused(text.into()));
    }
    Ok(Some((partition, primary.epoch)))
}

/// As [`streamed`], for a value that a mover brings. Its partition gets large values, as it has at the old owner.
fn moved(
    shared: &Shared,
    session: &Session,
    head: &[Bytes],
) -> Result<Option<(Partition, Epoch)>, Failure> {
    let Some(spec) = find(b"SCID.SLOTS").map(|at| &COMMANDS[at]) else { return Ok(None) };
    admit(shared, session, spec, head)?;
    let role = shared.node.role();
    let Role::Primary(primary) = &*role else { return Err(shared.node.read_only()) };
    let partition = importing(primary, &head[2..])?;
    Ok(partition.map(|partition| (partition, primary.epoch)))
}

/// The failure of a thread that panicked, which is a bug.
fn lost() -> Failure {
    Failure::fixed("ERR the write of the value panicked; this is a bug of the server")
}

impl Arrival {
    /// Begins a value of `len` bytes.
    pub(crate) async fn begin(partition: Partition, epoch: Epoch, key: Bytes, len: u64) -> Arrival {
        let begun = spawn_blocking(move || partition.put_stream(&key, Some(len)));
        let writer = begun.await.map_or_else(|_| Err(lost()), |begun| begun.map_err(Failure::from));
        Arrival { writer, epoch }
    }

    /// A value that is skipped.
    pub(crate) fn refused(failure: Failure) -> Arrival {
        Arrival { writer: Err(failure), epoch: Epoch(0) }
    }

    /// Writes bytes of it.
    pub(crate) async fn write(&mut self, shared: &Shared, bytes: Bytes) {
        if self.writer.is_err() {
            return;
        }
        // The database of an earlier primary must not stay open for it.
        let is_taken_over =
            !matches!(&*shared.node.role(), Role::Primary(primary) if primary.epoch == self.epoch);
        let writer = std::mem::replace(&mut self.writer, Err(shared.node.read_only()));
        let Ok(mut writer) = writer else { return };
        if is_taken_over {
            return;
        }
        let written = spawn_blocking(move || writer.write_all(&bytes).map(|()| writer));
        self.writer = match written.await {
            Err(_) => Err(lost()),
            Ok(written) => written.map_err(|error| Failure::from(siltstone::Error::from(error))),
        };
    }

    /// Ends it, after all of its bytes.
    pub(crate) async fn end(self) -> Result<Stored, Failure> {
        let writer = self.writer?;
        let epoch = self.epoch;
        let finished = spawn_blocking(move || writer.finish()).await;
        let value = finished.map_err(|_| lost())??;
        Ok(Stored { value, epoch })
    }
}
