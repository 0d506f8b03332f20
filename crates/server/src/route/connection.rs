//! [`Connection`]: one connection of a router, from its first byte to its end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::backends::Backends;
use super::client::{Client, Upload};
use super::sharded::ShardClient;
use super::sink::{self, Sink};
use crate::budget::Incomplete;
use crate::exposition::count;
use crate::failure::Failure;
use crate::front::{Event, Front};
use crate::pace::Pace;
use crate::reply::Reply;
use crate::request::{Incoming, Next};
use crate::stream::Stream;

/// The client of a connection.
pub(super) enum AnyClient {
    Cluster(Box<Client>),
    Shards(Box<ShardClient>),
}

impl AnyClient {
    pub(super) fn new(nodes: &Backends, seed: u64) -> AnyClient {
        match nodes {
            Backends::Cluster(cluster) => {
                AnyClient::Cluster(Box::new(Client::new(cluster.clone(), seed)))
            }
            Backends::Shards(shards) => {
                AnyClient::Shards(Box::new(ShardClient::new(shards.clone(), seed)))
            }
        }
    }

    pub(super) async fn answer(&mut self, requests: Vec<Vec<Bytes>>, sink: &mut Sink<'_>) {
        match self {
            AnyClient::Cluster(client) => client.answer(requests, sink).await,
            AnyClient::Shards(client) => client.answer(requests, sink).await,
        }
    }

    pub(super) async fn refuse_transaction(&mut self) {
        match self {
            AnyClient::Cluster(client) => client.refuse_transaction().await,
            AnyClient::Shards(client) => client.refuse_transaction().await,
        }
    }

    pub(super) fn may_upload(&self) -> bool {
        match self {
            AnyClient::Cluster(client) => client.may_upload(),
            AnyClient::Shards(client) => client.may_upload(),
        }
    }

    /// The client that sends the value of `key`; that of the last request without one.
    pub(super) fn of_upload(&mut self, key: Option<&[u8]>) -> &mut Client {
        match (self, key) {
            (AnyClient::Cluster(client), _) => client,
            (AnyClient::Shards(client), Some(key)) => client.client_of(key),
            (AnyClient::Shards(client), None) => client.last_client(),
        }
    }

    pub(super) async fn note_passed(&mut self) {
        if let AnyClient::Shards(client) = self {
            client.note_passed().await;
        }
    }

    pub(super) fn ends(&self) -> bool {
        match self {
            AnyClient::Cluster(client) => client.session.ends,
            AnyClient::Shards(client) => client.ends(),
        }
    }
}

/// A connection of a router.
pub(super) struct Connection {
    front: Arc<Front>,
    client: AnyClient,
    stream: Stream,
    incoming: Incoming,
    /// The long value that comes, or whose request is not complete.
    upload: Option<Upload>,
    /// All bytes of the value have come.
    is_whole: bool,
}

impl Connection {
    pub(super) fn new(front: Arc<Front>, client: AnyClient, stream: Stream) -> Connection {
        let incoming = Incoming::default();
        Connection { front, client, stream, incoming, upload: None, is_whole: false }
    }

    /// Serves it to its end, and returns it.
    pub(super) async fn serve(mut self) -> Stream {
        let mut incomplete = Incomplete::new(self.front.incomplete.clone());
        let mut is_last = false;
        loop {
            let limit = self.idle_limit();
            let event = match is_last {
                true => Event::Readable,
                false => self.front.wait_within(&mut self.stream, limit).await,
            };
            match event {
                Event::Readable => {}
                Event::Draining => is_last = true,
                Event::Idle => return self.front.end_idle(self.stream),
            }
            match self.stream.try_read(self.incoming.room()) {
                Ok(0) => return self.stream,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !is_last => {
                    continue;
                }
                Err(_) => return self.stream,
            }
            if !self.answer().await {
                return self.stream;
            }
            self.incoming.rest();
            if !incomplete.set(self.incoming.len()) {
                return self.front.end_incomplete(self.stream);
            }
        }
    }

    /// The time for which the client may be silent. A long value that does not come on keeps a connection to a node.
    fn idle_limit(&self) -> Option<Duration> {
        let limits = &self.front.limits;
        let of_value = self.upload.is_some().then_some(limits.write);
        limits.idle.into_iter().chain(of_value).min()
    }

    /// Answers all requests that are complete; `false` at the end of the connection.
    async fn answer(&mut self) -> bool {
        let limits = self.front.limits.of_requests();
        loop {
            let mut requests: Vec<Vec<Bytes>> = Vec::new();
            let mut next = self.receive().await;
            while requests.len() < self.front.limits.pipeline && next.is_none() {
                match self.incoming.next(&limits) {
                    Next::Request(request) if self.upload.is_none() => requests.push(request),
                    other => next = Some(other),
                }
            }
            let next = next.unwrap_or(Next::Request(Vec::new()));
            let connection = sink::Connection {
                stream: &mut self.stream,
                most: self.front.limits.output_bytes,
                pace: Pace::new(&self.front.limits),
            };
            let mut sink = Sink::new(Some(connection));
            self.client.answer(requests, &mut sink).await;
            match &next {
                Next::TooLarge(what) => {
                    count(&self.front.counts.too_large);
                    if let Some(upload) = self.upload.take() {
                        self.client.of_upload(None).abandon(&upload);
                    }
                    self.client.refuse_transaction().await;
                    Reply::Error(format!("LIMIT {what}").into()).write(&mut sink.out, false);
                }
                Next::Broken(what) => {
                    Reply::Error(format!("ERR Protocol error: {what}").into())
                        .write(&mut sink.out, false);
                }
                Next::Request(request) => {
                    if let Some(upload) = self.upload.take() {
                        let client = self.client.of_upload(None);
                        let options = request.get(3..).unwrap_or_default();
                        sink.push(&client.end_upload(upload, options).await).await;
                        self.client.note_passed().await;
                    }
                }
                Next::More | Next::Long { .. } => {}
            }
            sink.flush().await;
            if sink.is_broken {
                count(&self.front.counts.slow);
            }
            if sink.is_broken || self.client.ends() || matches!(next, Next::Broken(_)) {
                return false;
            }
            match next {
                Next::More => return true,
                Next::Long { head, len } => self.begin_upload(&head, len).await,
                _ => {}
            }
        }
    }

    /// Passes on what is there of a long value. Returns what comes next, if that is no request.
    async fn receive(&mut self) -> Option<Next> {
        let upload = self.upload.as_mut().filter(|_| !self.is_whole)?;
        let client = self.client.of_upload(None);
        while let Some(piece) = self.incoming.piece() {
            client.send_piece(upload, &piece).await;
        }
        match self.incoming.end_value() {
            Ok(false) => return Some(Next::More),
            Ok(true) => self.is_whole = true,
            Err(wrong) => return Some(Next::Broken(wrong)),
        }
        None
    }

    /// Begins to send a long value, after all requests before it were answered.
    async fn begin_upload(&mut self, head: &[Bytes], len: u64) {
        // A mover asks a primary, and no router.
        let [_, key] = head else { return self.incoming.hold() };
        if !self.client.may_upload() {
            return self.incoming.hold();
        }
        let most = self.front.limits.streamed_bytes;
        let head = self.incoming.take();
        self.is_whole = false;
        self.upload = Some(if len > most {
            count(&self.front.counts.too_large);
            let text = format!("LIMIT the value has {len} bytes, the limit is {most}");
            Upload::refused(Failure::Refused(text.into()))
        } else {
            self.client.of_upload(Some(key)).begin_upload(key, &head).await
        });
    }
}
