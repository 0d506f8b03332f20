//! [`Sink`]: the replies for a client of the router, on their way.

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc::Sender;

use crate::pace::Pace;
use crate::stream::Stream;

/// The replies for a client. Without an outlet they stay in memory.
pub(crate) struct Sink<'a> {
    pub(crate) out: BytesMut,
    outlet: Outlet<'a>,
    /// The connection takes nothing more.
    pub(crate) is_broken: bool,
}

/// The place where replies go.
enum Outlet<'a> {
    Memory,
    Connection(Connection<'a>),
    /// To who collects the replies of several shards, and the bytes above which they are sent.
    Channel(Sender<Bytes>, usize),
}

pub(crate) struct Connection<'a> {
    pub(crate) stream: &'a mut Stream,
    /// Bytes above which they are sent.
    pub(crate) most: usize,
    pub(crate) pace: Pace,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(connection: Option<Connection<'a>>) -> Sink<'a> {
        Sink::to(connection.map_or(Outlet::Memory, Outlet::Connection))
    }

    fn to(outlet: Outlet<'a>) -> Sink<'a> {
        Sink { out: BytesMut::new(), outlet, is_broken: false }
    }

    /// A sink for who collects replies: more than `most` bytes are sent, as soon as the ones before were taken.
    pub(super) fn of_channel(sender: Sender<Bytes>, most: usize) -> Sink<'static> {
        Sink::to(Outlet::Channel(sender, most))
    }

    /// The bytes above which they are sent.
    pub(super) fn most(&self) -> usize {
        match &self.outlet {
            Outlet::Memory => usize::MAX,
            Outlet::Connection(connection) => connection.most,
            Outlet::Channel(_, most) => *most,
        }
    }

    /// Returns whether so many bytes, with those that wait, are to be sent now.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        self.out.len().saturating_add(more) > self.most()
    }

    /// Appends the bytes of a reply, and sends what waits if it is much.
    pub(super) async fn push(&mut self, reply: &[u8]) {
        self.out.extend_from_slice(reply);
        if self.is_full(0) {
            self.flush().await;
        }
    }

    /// Sends what waits.
    pub(crate) async fn flush(&mut self) {
        if self.out.is_empty() || self.is_broken {
            self.out.clear();
            return;
        }
        match &mut self.outlet {
            Outlet::Memory => {}
            Outlet::Connection(connection) => {
                let sent = connection.pace.send(connection.stream, &self.out).await;
                self.is_broken = !matches!(sent, Ok(true));
                self.out.clear();
            }
            Outlet::Channel(sender, _) => {
                self.is_broken = sender.send(self.out.split().freeze()).await.is_err();
            }
        }
    }
}
