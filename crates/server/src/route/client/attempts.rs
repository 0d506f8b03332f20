//! Requests that cannot go to a node at once: a [`Client`] waits, learns its token again, or logs in.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use siltstone::{Commit, Epoch, SeqNo};

use super::Client;
use crate::commands::Verb;
use crate::exposition::count;
use crate::failure::Failure;
use crate::level::newer;
use crate::reply::Reply;
use crate::route::choice::{Need, NodeView};
use crate::route::item::Item;
use crate::route::link::encode;
use crate::route::sink::Sink;

/// Time between two attempts.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

impl Client {
    /// Raises the token of the session to what a session of this shard needs: it may have seen its slots at another shard,
    /// and commits of that one tell nothing of this one. The shard has all of its slots from the floor on, and a later
    /// epoch has that commit. Nodes know the ends of few epochs, so the floor of an old one would be a lost token there.
    ///
    /// As long as no node has reported its epoch, no request goes to one; so this comes before each request, and not once,
    /// and again with the `nodes` of each choice. Returns whether the token is another one now.
    pub(super) fn raise_token(&mut self, nodes: &[NodeView]) -> bool {
        let Some(floor) = self.floor.filter(|floor| floor.epoch > Epoch(0)) else { return false };
        let token = self.session.token;
        // A newer token that is lost stays lost.
        if token.is_some_and(|it| (it.epoch, it.seq) > (floor.epoch, floor.seq)) {
            return false;
        }
        let epochs = nodes.iter().filter_map(|view| view.position);
        let newest = epochs.map(|position| position.epoch).max();
        let later = newest.filter(|newest| *newest > floor.epoch);
        let floor = later.map_or(floor, |epoch| Commit { epoch, seq: SeqNo::ZERO });
        self.session.token = newer(token, floor);
        self.session.token != token
    }

    /// Learns a commit that covers all that the client has written or seen, from a node that has everything.
    pub(super) async fn recover(&mut self) -> bool {
        let item = Item::new(vec![Bytes::from_static(b"SCID.SYNC")]);
        let Some(node) = self.node_for(&item, Need::Strong) else { return false };
        let Ok(reply) = self.call_node(node, &item.request).await else { return false };
        let is_named = self.session.note_token(&reply).is_some();
        if is_named {
            self.session.is_token_lost = false;
        }
        is_named
    }

    /// Sends a request alone to a node, after what that does not know of the session. A node that does not answer is lost.
    async fn call_node(&mut self, node: usize, request: &[Bytes]) -> io::Result<Bytes> {
        let mut link = self.take_link(node).await?;
        let mut bytes = BytesMut::new();
        let greetings = self.session.greet(&mut link.greeted, false, &mut bytes);
        encode(request, &mut bytes);
        let called = async {
            link.send(&bytes).await?;
            link.take_greetings(greetings).await?;
            link.reply().await
        };
        let called = called.await;
        match called {
            Ok(_) => drop(self.links.insert(node, link)),
            Err(_) => self.lose(node),
        }
        called
    }

    /// `AUTH` and `HELLO`: one node checks them, and the links of the others are made again.
    pub(super) async fn log_in(
        &mut self,
        item: Item,
        queue: &mut VecDeque<Item>,
        sink: &mut Sink<'_>,
    ) {
        let Some(node) = self.node_for(&item, Need::Weak) else {
            return self.postpone(item, queue, sink).await;
        };
        // A client that has logged in is the same one at each node.
        let Ok(reply) = self.call_node(node, &item.request).await else {
            return self.postpone(item, queue, sink).await;
        };
        if !reply.starts_with(b"-") {
            self.links.retain(|at, _| *at == node);
            if let Some(transaction) =
                self.session.transaction.as_mut().filter(|it| it.node != node)
            {
                transaction.is_lost = true;
            }
            self.session.logged_in(&item);
            if let Some(link) = self.links.get_mut(&node) {
                link.greeted.has_login = true;
                link.greeted.is_resp3 = self.session.is_resp3;
            }
        }
        sink.out.extend_from_slice(&reply);
    }

    /// Tries a request again after all nodes were asked, or refuses it after the longest wait.
    pub(super) async fn postpone(
        &mut self,
        mut item: Item,
        queue: &mut VecDeque<Item>,
        sink: &mut Sink<'_>,
    ) {
        let now = self.cluster.now();
        let until = *item.until.get_or_insert(now.saturating_add(self.cluster.options.wait));
        if now >= until {
            count(&self.cluster.counts.refused);
            match &item.refused {
                // Its EXEC is refused: a client that has sent all of it sends nothing else instead.
                _ if item.verb() == Some(Verb::Multi) => {
                    self.session.begin_lost();
                    Reply::OK.write(&mut sink.out, self.session.is_resp3);
                }
                Some(reply) => sink.out.extend_from_slice(reply),
                None => self.no_node(&item).reply().write(&mut sink.out, self.session.is_resp3),
            }
            return;
        }
        count(&self.cluster.counts.waits);
        self.cluster.ask().await;
        item.avoid.clear();
        if item.refused.is_some() {
            tokio::time::sleep(PAUSE).await;
        }
        queue.push_front(item);
    }

    /// The refusal of a request that no node can serve.
    pub(super) fn no_node(&self, item: &Item) -> Failure {
        let kind = if item.is_read() { "node can serve this read" } else { "primary is known" };
        let nodes = self.cluster.nodes().into_iter().zip(self.cluster.views());
        let nodes = nodes.filter(|(node, _)| !node.is_leaving());
        let nodes = nodes.map(|(node, view)| match view.role {
            None => format!("{} is down", node.address),
            Some(role) if role.is_reader() => format!("{} is a reader", node.address),
            Some(_) => format!("{} is a primary", node.address),
        });
        let nodes: Vec<String> = nodes.collect();
        Failure::Refused(format!("NOTYET no {kind}: {}", nodes.join(", ")).into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;

    use super::*;
    use crate::route::cluster::{Cluster, ClusterOptions};
    use crate::route::nodes::Nodes;

    /// The node knows the end of epoch 2, and of no earlier one, so the floor would be a lost token there.
    #[test]
    fn a_node_that_reports_its_epoch_before_the_choice_gets_no_floor_of_an_older_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let nodes = Nodes::List(vec![listener.local_addr().unwrap().to_string()]);
        let primary = std::thread::spawn(move || {
            let info = "role:master\r\nscid_token:3-9\r\n";
            let mut link = listener.accept().unwrap().0;
            assert!(link.read(&mut [0; 100]).unwrap() > 0);
            write!(link, "${}\r\n{info}\r\n", info.len()).unwrap();
        });
        let cluster = Arc::new(Cluster::new(ClusterOptions::new(nodes)).unwrap());
        let mut client = Client::new(cluster.clone(), 1);
        let floor = Commit { epoch: Epoch(1), seq: SeqNo::new(4).unwrap() };
        client.floor = Some(floor);
        let item = Item::new(["SCID.GET", "foo", "LEVEL", "3"].map(Bytes::from).to_vec());
        client.raise_token(&cluster.views());
        assert_eq!(client.session.token, Some(floor));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(cluster.ask());
        assert_eq!(client.node_for(&item, Need::Session(floor)), Some(0));
        let token = client.session.token.unwrap();
        assert_eq!((token.epoch, token.seq), (Epoch(3), SeqNo::ZERO));
        primary.join().unwrap();
    }
}
