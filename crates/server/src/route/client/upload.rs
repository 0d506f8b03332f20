//! [`Upload`]: the long value of a `SET`, which goes to its node while it comes.
//!
//! Invariant: nothing is written before the node has the whole request. So a link that ends before that has no effect.

use bytes::{Bytes, BytesMut};
use tokio::time::sleep;

use super::Client;
use super::attempts::PAUSE;
use crate::exposition::count;
use crate::failure::Failure;
use crate::route::choice::Need;
use crate::route::cluster::Running;
use crate::route::item::Item;
use crate::route::link::encode;
use crate::route::outcome::{is_moved, named};
use crate::route::session::lost;

/// A long value on its way to a node. After a failure its bytes are dropped.
pub(crate) struct Upload {
    node: usize,
    address: String,
    /// Replies that come before that of the request.
    greetings: usize,
    running: Option<Running>,
    failure: Option<Failure>,
}

impl Upload {
    /// A value that is dropped.
    pub(crate) fn refused(failure: Failure) -> Upload {
        let address = String::new();
        Upload { node: 0, address, greetings: 0, running: None, failure: Some(failure) }
    }
}

impl Client {
    /// Returns whether a `SET` may stream: one of a transaction goes as all others do.
    pub(crate) fn may_upload(&self) -> bool {
        self.session.transaction.is_none()
    }

    /// Begins to send `head`: a request up to its value.
    pub(crate) async fn begin_upload(&mut self, key: &Bytes, head: &[u8]) -> Upload {
        let request = vec![Bytes::from_static(b"SET"), key.clone(), Bytes::new()];
        let item = Item::new(request);
        let until = self.cluster.now().saturating_add(self.cluster.options.wait);
        // A refusal comes too late to send the value to another node.
        match self.node_for(&item, Need::Write) {
            // The others may take their time.
            Some(node) => self.cluster.ask_one(node).await,
            None => self.cluster.ask().await,
        }
        let node = loop {
            if let Some(node) = self.node_for(&item, Need::Write)
                && self.link(node).await.is_ok()
            {
                break node;
            }
            if self.cluster.now() >= until {
                count(&self.cluster.counts.refused);
                return Upload::refused(self.no_node(&item));
            }
            count(&self.cluster.counts.waits);
            sleep(PAUSE).await;
            self.cluster.ask().await;
        };
        let now = self.cluster.now();
        let running = self.cluster.node(node).map(|node| node.begin(1, now));
        let address = self.address(node);
        let mut upload = Upload { node, address, greetings: 0, running, failure: None };
        let Some(link) = self.links.get_mut(&node) else { return upload };
        let mut bytes = BytesMut::new();
        upload.greetings = self.session.greet(&mut link.greeted, false, &mut bytes);
        bytes.extend_from_slice(head);
        self.send_piece(&mut upload, &bytes).await;
        upload
    }

    /// Sends bytes of the value.
    pub(crate) async fn send_piece(&mut self, upload: &mut Upload, piece: &[u8]) {
        if upload.failure.is_some() {
            return;
        }
        let sent = match self.links.get_mut(&upload.node) {
            Some(link) => link.send(piece).await,
            None => Err(std::io::ErrorKind::NotConnected.into()),
        };
        if sent.is_err() {
            self.lose_upload(upload);
            let address = &upload.address;
            upload.failure = Some(Failure::error(format!(
                "the connection to {address} was lost before the whole value was sent; nothing was written"
            )));
        }
    }

    fn lose_upload(&mut self, upload: &Upload) {
        if let Some(node) = self.cluster.node(upload.node) {
            node.counts.lost();
        }
        self.lose(upload.node);
    }

    /// Gives an upload up, because its request is too large after the value.
    pub(crate) fn abandon(&mut self, upload: &Upload) {
        // A refused one has sent nothing.
        if upload.running.is_some() {
            self.links.remove(&upload.node);
            self.session.lose(upload.node);
        }
    }

    /// Ends the request after its value with its other `arguments`. Returns the reply.
    pub(crate) async fn end_upload(&mut self, mut upload: Upload, arguments: &[Bytes]) -> Bytes {
        let mut bytes = BytesMut::from(&b"\r\n"[..]);
        for argument in arguments {
            let mut encoded = BytesMut::new();
            encode(&[argument], &mut encoded);
            // Without the header of its array.
            bytes.extend_from_slice(&encoded[4..]);
        }
        encode(&["SCID.TOKEN"], &mut bytes);
        let is_sent = upload.failure.is_none();
        if is_sent && !self.session.unnamed.contains(&upload.node) {
            self.session.unnamed.push(upload.node);
        }
        self.send_piece(&mut upload, &bytes).await;
        let failure = match upload.failure.take() {
            None => match self.outcome(&upload).await {
                Ok(reply) => {
                    if let Some(running) = upload.running.take() {
                        running.answered(self.cluster.now());
                    }
                    self.has_passed_moved |= is_moved(&reply);
                    return named(&upload.address, reply);
                }
                Err(_) => {
                    self.lose_upload(&upload);
                    lost(&self.cluster, &upload.address)
                }
            },
            // The end of the request may have reached the node.
            Some(_) if is_sent => lost(&self.cluster, &upload.address),
            Some(failure) => failure,
        };
        let mut reply = BytesMut::new();
        failure.reply().write(&mut reply, self.session.is_resp3);
        reply.freeze()
    }

    async fn outcome(&mut self, upload: &Upload) -> std::io::Result<Bytes> {
        let link = self.links.get_mut(&upload.node).ok_or(std::io::ErrorKind::NotConnected)?;
        link.take_greetings(upload.greetings).await?;
        let reply = link.reply().await?;
        link.greeted.token = self.session.note_token(&link.reply().await?);
        self.session.unnamed.retain(|it| *it != upload.node);
        if reply.starts_with(b"-READONLY ")
            && let Some(node) = self.cluster.node(upload.node)
        {
            node.doubt();
        }
        Ok(reply)
    }
}
