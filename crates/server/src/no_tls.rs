//! The module `tls` in a build without the feature: types without values, so that no other file needs to know.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::exposition::Exposition;
use crate::front::Front;
use crate::stream::Stream;

/// The side of a server. There is none.
pub(crate) enum Acceptor {}

impl Acceptor {
    #[expect(clippy::unused_async, reason = "it is as that of the feature")]
    pub(crate) async fn watch(&self) {
        match *self {}
    }

    pub(crate) fn figures(&self, _: &mut Exposition) {
        match *self {}
    }
}

pub(crate) fn begin(
    front: &Arc<Front>,
    _: TcpStream,
    _: SocketAddr,
    _: impl FnOnce(Stream) + Send + 'static,
) {
    if let Some(acceptor) = &front.tls {
        match *acceptor {}
    }
}

pub(crate) fn end_oldest(front: &Front) {
    if let Some(acceptor) = &front.tls {
        match *acceptor {}
    }
}

pub(crate) async fn of_pages(_: &Front, stream: TcpStream) -> io::Result<Stream> {
    Ok(Stream::Plain(stream))
}

/// The side of a client. There is none.
pub(crate) enum Connector {}

impl Connector {
    pub(crate) fn look(&self) {
        match *self {}
    }

    #[expect(clippy::unused_async, reason = "it is as that of the feature")]
    pub(crate) async fn connect(&self, _: &str, _: TcpStream, _: Instant) -> io::Result<Stream> {
        match *self {}
    }

    pub(crate) fn failed(&self, _: &str, _: &io::Error) {
        match *self {}
    }

    pub(crate) fn figures(&self, _: &mut Exposition) {
        match *self {}
    }
}
