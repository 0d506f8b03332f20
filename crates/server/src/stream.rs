//! [`Stream`]: a connection, whatever carries its bytes.
//!
//! An enum and no trait object or generic: a read or a write of a plain connection costs a comparison more.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
#[cfg(feature = "tls")]
use std::{future::poll_fn, pin::Pin, task::ready};

use bytes::BytesMut;
#[cfg(feature = "tls")]
use tokio::io::AsyncBufRead;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
#[cfg(feature = "tls")]
use tokio_rustls::TlsStream;

/// A connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// A connection after its handshake.
    #[cfg(feature = "tls")]
    pub(crate) fn tls(stream: TlsStream<TcpStream>) -> Stream {
        Stream::Tls(Box::new(stream))
    }

    /// Returns `Ready` if a read would return at once: bytes, the end or an error.
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Stream::Plain(stream) => stream.poll_read_ready(context).map(|_| ()),
            // Bytes that are decrypted already wait in the stream, and not in the system.
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_fill_buf(context).map(|_| ()),
        }
    }

    /// Appends what is there to `buffer`, up to its room. 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there.
    pub(crate) fn try_read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            // Not by `try_read_buf`: this notes that less came than there is room for, so the next look at the connection needs
            // no call of the system.
            Stream::Plain(stream) => at_once(stream.read_buf(buffer)),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => take_all(stream, buffer),
        }
    }

    /// Waits for bytes, and appends them to `buffer`, up to its room. 0 is the end.
    pub(crate) async fn read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read_buf(buffer).await,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => poll_fn(|context| poll_take(stream, buffer, context)).await,
        }
    }

    /// Sends as much as the system takes at once, and returns its length.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => match stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                sent => sent,
            },
            // What does not fit into the system's buffer would need a wait for its rest.
            #[cfg(feature = "tls")]
            Stream::Tls(_) => Ok(0),
        }
    }

    /// Sends all bytes.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.write_all(bytes).await,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    /// Sends the first of the bytes, as many as the client takes now; returns their number, which is not 0.
    pub(crate) async fn send_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = match self {
            Stream::Plain(stream) => stream.write(bytes).await?,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => {
                let sent = stream.write(bytes).await?;
                stream.flush().await?;
                sent
            }
        };
        if sent == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(sent) }
    }

    /// Tries to send the last bytes of a connection, which a client may miss that does not read.
    pub(crate) fn send_last(&mut self, bytes: &[u8]) {
        let _ = match self {
            Stream::Plain(_) => self.try_send(bytes),
            // The end of the sending direction sends the rest of it.
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => at_once(stream.write(bytes)),
        };
    }

    /// Ends the sending direction, after what was sent.
    pub(crate) async fn end(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.shutdown().await,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.shutdown().await,
        }
    }
}

/// Appends a piece of what is decrypted, up to the room of `buffer`. Not by a read, which would clear all of that room before.
#[cfg(feature = "tls")]
fn poll_take(
    stream: &mut TlsStream<TcpStream>,
    buffer: &mut BytesMut,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut stream = Pin::new(stream);
    let piece = ready!(stream.as_mut().poll_fill_buf(context))?;
    let len = piece.len().min(buffer.capacity() - buffer.len());
    buffer.extend_from_slice(&piece[..len]);
    stream.consume(len);
    Poll::Ready(Ok(len))
}

/// Appends all that is there, up to the room of `buffer`: the requests of a pipeline may be in records of their own.
#[cfg(feature = "tls")]
fn take_all(stream: &mut TlsStream<TcpStream>, buffer: &mut BytesMut) -> io::Result<usize> {
    let mut taken = at_once(poll_fn(|context| poll_take(stream, buffer, context)))?;
    while taken > 0 && buffer.len() < buffer.capacity() {
        match at_once(poll_fn(|context| poll_take(stream, buffer, context))) {
            Ok(more) if more > 0 => taken += more,
            // The end and failures come again at the next read.
            Ok(_) | Err(_) => break,
        }
    }
    Ok(taken)
}

/// The outcome of work that need not wait; `WouldBlock` if it would.
///
/// Nothing is woken by it, so the next wait has to poll the stream.
fn at_once<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    // The budget of the task says nothing of what is there.
    let work = pin!(tokio::task::unconstrained(work));
    match work.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

#[cfg(feature = "tls")]
#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::{Arc, mpsc};

    use rustls::ServerConfig;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use socket2::{Domain, SockRef, Socket, Type};
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::tls::{NodeTls, TlsClient};

    fn file(name: &str) -> String {
        format!("{}/../../testdata/tls/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    fn config() -> ServerConfig {
        let certificate = CertificateDer::from_pem_file(file("server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        builder.with_single_cert(vec![certificate], key).unwrap()
    }

    /// TLS takes more bytes than the system, and no one would send the rest of a last reply.
    #[test]
    fn bytes_count_as_sent_once_the_system_has_them() {
        let piece = [7; 1_000];
        let (begin, begun) = mpsc::channel();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::thread::spawn(move || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(4 << 10).unwrap();
            socket.connect(&address.into()).unwrap();
            let mut stream = TlsClient::new(NodeTls::new(file("ca.pem")))
                .unwrap()
                .connect("localhost:1", socket.into())
                .unwrap();
            stream.write_all(b"x").unwrap();
            let len = begun.recv().unwrap();
            stream.read_exact(&mut vec![0; len]).unwrap();
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            SockRef::from(&stream).set_send_buffer_size(4 << 10).unwrap();
            let stream = TcpStream::from_std(stream).unwrap();
            let stream = TlsAcceptor::from(Arc::new(config())).accept(stream).await.unwrap();
            let mut stream = Stream::tls(stream.into());
            // Unread bytes would make a reset of the end.
            let mut first = BytesMut::with_capacity(8);
            assert_eq!(stream.read(&mut first).await.unwrap(), 1);
            for count in 1.. {
                {
                    let mut sending = pin!(stream.send(&piece));
                    let first = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context)));
                    if first.await.is_pending() {
                        // The system is full.
                        begin.send(count * piece.len()).unwrap();
                        sending.await.unwrap();
                        break;
                    }
                }
                let Stream::Tls(tls) = &stream else { panic!("it has TLS") };
                assert!(!tls.get_ref().1.wants_write(), "bytes wait after piece {count}");
            }
        });
        client.join().unwrap();
    }
}
