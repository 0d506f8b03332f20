//! [`Stream`]: a connection, whatever carries its bytes.
//!
//! An enum and no trait object or generic: a read or a write of a plain connection costs a comparison more.

use std::io;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection.
pub(crate) enum Stream {
    Plain(TcpStream),
}

impl Stream {
    /// Returns `Ready` if a read would return at once: bytes, the end or an error.
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Stream::Plain(stream) => stream.poll_read_ready(context).map(|_| ()),
        }
    }

    /// Appends what is there to `buffer`, up to its room. 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there.
    pub(crate) fn try_read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.try_read_buf(buffer),
        }
    }

    /// Waits for bytes, and appends them to `buffer`, up to its room. 0 is the end.
    pub(crate) async fn read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read_buf(buffer).await,
        }
    }

    /// Sends as much as the system takes at once, and returns its length.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => match stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                sent => sent,
            },
        }
    }

    /// Sends all bytes.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.write_all(bytes).await,
        }
    }

    /// Tries to send the last bytes of a connection, which a client may miss that does not read.
    pub(crate) fn send_last(&mut self, bytes: &[u8]) {
        let _ = self.try_send(bytes);
    }

    /// Ends the sending direction.
    pub(crate) async fn end(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.shutdown().await,
        }
    }
}
