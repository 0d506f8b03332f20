//! [`Rehearsal`]: a connection without a network, for the fuzz targets.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::{Connection, Round};
use crate::request::RequestLimits;
use crate::session::Session;
use crate::shared::Shared;

/// A connection without a network, for the fuzz targets.
pub(crate) struct Rehearsal {
    /// The bytes that come at once.
    pub(crate) piece: usize,
    /// The length from which on values stream.
    pub(crate) long_bytes: u64,
}

impl Rehearsal {
    /// Returns all replies to `bytes`.
    ///
    /// # Panics
    /// If a command panicked.
    pub(crate) async fn run(self, shared: Arc<Shared>, bytes: &[u8]) -> Bytes {
        let limits = shared.options.limits.of_requests();
        let limits = RequestLimits { long_bytes: self.long_bytes, ..limits };
        let session = Box::new(Session::new(shared.front.next_id(), &shared));
        let mut connection = Connection::new(shared, session, limits);
        let mut all = BytesMut::new();
        for piece in bytes.chunks(self.piece) {
            connection.incoming.room().extend_from_slice(piece);
            loop {
                let mut out = BytesMut::new();
                let mut reply_count = 0;
                let round = connection.round(&mut out, &mut reply_count).await;
                assert!(connection.session.is_some(), "a command panicked");
                all.extend_from_slice(&out);
                match round {
                    Round::More => {}
                    Round::Value(blob) => {
                        all.extend_from_slice(&blob.whole().unwrap_or_default());
                        all.extend_from_slice(b"\r\n");
                    }
                    Round::Drained => break,
                    Round::Ends => return all.freeze(),
                }
            }
            connection.incoming.rest();
        }
        all.freeze()
    }
}
