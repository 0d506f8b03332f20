//! [`Sink`]: the replies for a client of the router, on their way.

use std::time::Duration;

use bytes::BytesMut;

use crate::front::send;
use crate::stream::Stream;

/// The replies for a client. Without a connection they stay in memory.
pub(crate) struct Sink<'a> {
    pub(crate) out: BytesMut,
    connection: Option<Connection<'a>>,
    /// The connection takes nothing more.
    pub(crate) is_broken: bool,
}

pub(crate) struct Connection<'a> {
    pub(crate) stream: &'a mut Stream,
    /// Bytes above which they are sent.
    pub(crate) most: usize,
    pub(crate) limit: Duration,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(connection: Option<Connection<'a>>) -> Sink<'a> {
        Sink { out: BytesMut::new(), connection, is_broken: false }
    }

    /// Returns whether so many bytes, with those that wait, are to be sent now.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        self.connection.as_ref().is_some_and(|it| self.out.len() + more > it.most)
    }

    /// Sends what waits.
    pub(crate) async fn flush(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if !self.out.is_empty() && !self.is_broken {
            let sent = send(connection.stream, &self.out, connection.limit).await;
            self.is_broken = !matches!(sent, Ok(true));
        }
        self.out.clear();
    }
}
