//! [`Session`]: the state of a client of the router, and the commands that the router answers itself.
//!
//! A node sees the session through a link, and is greeted what it does not know yet before the next request
//! ([`Session::greet`]).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use siltstone::Commit;

use super::choice::{Need, Policy};
use super::cluster::Cluster;
use super::item::Item;
use super::link::{Greeted, encode, text_of};
use crate::commands::Verb;
use crate::execute::{echo, unknown, wrong_count};
use crate::exposition::count;
use crate::failure::Failure;
use crate::level::{LOST, Token, Wanted, newer};
use crate::predict::{Prediction, Predictor};
use crate::reply::Reply;
use crate::scid;
use crate::session::{Hello, kept, of_others, partition_name, wanted};

/// A transaction, from `WATCH` or `MULTI` on. All its requests go through one link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transaction {
    pub(crate) node: usize,
    /// `MULTI` came.
    pub(crate) is_open: bool,
    /// Its link was lost: the node has dropped it.
    pub(crate) is_lost: bool,
}

/// The way of a request to its node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// To any node that the need allows.
    Need(Need),
    /// Through the link to this node, which has its state.
    Link(usize),
    /// To the node of the cursor of a walk.
    Walk(usize),
    /// `AUTH` and `HELLO`, to any node.
    Login,
}

/// The state of a client of the router.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) partition: Arc<str>,
    pub(crate) level: Option<Wanted>,
    /// The newest commit that the client has written or seen.
    pub(crate) token: Option<Commit>,
    /// Nodes whose links have not named the commit of the last requests yet.
    pub(crate) unnamed: Vec<usize>,
    /// A link ended before it named a commit, so the token does not cover it. A new link to the same node knows nothing of it.
    pub(crate) is_token_lost: bool,
    pub(crate) is_resp3: bool,
    /// The arguments of the last `AUTH` that a node took.
    pub(crate) login: Option<Vec<Bytes>>,
    pub(crate) policy: Policy,
    pub(crate) transaction: Option<Transaction>,
    /// The node of the last read, and of the last one at level 4.
    pub(crate) last: Option<usize>,
    pub(crate) last_prefix: Option<usize>,
    /// The last prediction.
    pub(crate) prediction: Option<Prediction>,
    pub(crate) ends: bool,
}

impl Session {
    pub(crate) fn new(policy: Policy) -> Session {
        Session {
            partition: Arc::from(crate::users::DEFAULT),
            level: None,
            token: None,
            unnamed: Vec::new(),
            is_token_lost: false,
            is_resp3: false,
            login: None,
            policy,
            transaction: None,
            last: None,
            last_prefix: None,
            prediction: None,
            ends: false,
        }
    }

    /// Predicts the level of a request that has none. In a transaction the primary reads.
    pub(crate) fn predict(&mut self, predictor: Option<&Predictor>, item: &mut Item) {
        if let Some(predictor) = predictor.filter(|_| self.transaction.is_none()) {
            item.consider(predictor, &mut self.prediction, self.level, &self.partition);
        }
    }

    /// The way of a request; `None` if the router answers it.
    pub(crate) fn way(&self, item: &Item) -> Option<Way> {
        let verb = item.verb();
        let is_effective = item.is_change() || matches!(verb, Some(Verb::Multi | Verb::Exec));
        if let Some(transaction) = &self.transaction {
            let link = Some(Way::Link(transaction.node));
            match (transaction.is_lost, transaction.is_open) {
                (false, true) => return link.filter(|_| verb != Some(Verb::Quit)),
                (true, true) => return None,
                // A read that decides what the transaction writes must not be older than the watch.
                (false, false) if item.is_read() || is_effective => return link,
                (false, false) if matches!(verb, Some(Verb::Watch | Verb::Unwatch)) => return link,
                (true, false) if verb == Some(Verb::Multi) => return None,
                _ => {}
            }
        }
        if is_effective && item.lost_at.is_some() {
            return None;
        }
        match verb? {
            _ if !item.has_right_count() => None,
            Verb::Watch | Verb::Multi => Some(Way::Need(Need::Write)),
            Verb::Auth | Verb::Hello => Some(Way::Login),
            Verb::Client | Verb::Command | Verb::Config | Verb::Info => Some(Way::Need(Need::Weak)),
            Verb::ScidLast => self.last.map(Way::Link),
            Verb::Scan if item.walk.is_some() => item.walk.map(Way::Walk),
            _ if item.is_change() => Some(Way::Need(Need::Write)),
            _ if item.is_read() => item.need(self.level, self.token).ok().map(Way::Need),
            _ => None,
        }
    }

    /// The need of a write or of a read.
    pub(crate) fn need_of(&self, item: &Item) -> Option<Need> {
        if item.is_change() {
            return Some(Need::Write);
        }
        if item.is_read() { item.need(self.level, self.token).ok() } else { None }
    }

    /// Notes that `node` takes a request.
    pub(crate) fn taken(&mut self, item: &Item, node: usize) {
        match item.verb().filter(|_| item.has_right_count()) {
            Some(Verb::Multi) => {
                self.transaction = Some(Transaction { node, is_open: true, is_lost: false });
            }
            Some(Verb::Watch) if self.transaction.is_none() => {
                self.transaction = Some(Transaction { node, is_open: false, is_lost: false });
            }
            Some(Verb::Exec | Verb::Discard) if self.is_open() => self.transaction = None,
            Some(Verb::Unwatch) if !self.is_open() => self.transaction = None,
            _ => {}
        }
    }

    /// Begins a transaction that no node has: what comes before its `EXEC` must not run outside of one.
    pub(crate) fn begin_lost(&mut self) {
        let node = self.transaction.as_ref().map_or(usize::MAX, |it| it.node);
        self.transaction = Some(Transaction { node, is_open: true, is_lost: true });
    }

    /// Returns whether the commands go to a queue, for `EXEC`.
    pub(crate) fn is_open(&self) -> bool {
        self.transaction.as_ref().is_some_and(|transaction| transaction.is_open)
    }

    /// Notes that the link to `node` is gone.
    pub(crate) fn lose(&mut self, node: usize) {
        let unnamed = self.unnamed.iter().position(|it| *it == node);
        if let Some(at) = unnamed {
            self.unnamed.swap_remove(at);
            self.is_token_lost = true;
        }
        if let Some(transaction) = self.transaction.as_mut().filter(|it| it.node == node) {
            transaction.is_lost = true;
        }
    }

    /// Notes an `AUTH` or a `HELLO` that a node has taken.
    pub(crate) fn logged_in(&mut self, item: &Item) {
        let arguments = &item.request[1..];
        let mut login = Some(arguments);
        if item.verb() == Some(Verb::Hello) {
            // A node has taken it.
            let Ok(hello) = Hello::parse(arguments) else { return };
            self.is_resp3 = hello.is_resp3.unwrap_or(self.is_resp3);
            login = hello.login;
        }
        if let Some(login) = login {
            self.login = Some(kept(login).collect());
        }
    }

    /// Notes a token that a node returned, and returns it.
    pub(crate) fn note_token(&mut self, reply: &[u8]) -> Option<Commit> {
        let Token(commit) = Token::parse(text_of(reply)).ok()?;
        self.token = newer(self.token, commit);
        Some(commit)
    }

    /// Appends the commands after which a node knows the session. Returns how many they are.
    pub(crate) fn greet(
        &self,
        greeted: &mut Greeted,
        is_of_session: bool,
        out: &mut BytesMut,
    ) -> usize {
        let mut count = 0;
        let is_unknown = std::mem::take(&mut greeted.is_unknown);
        if let Some(login) = self.login.as_ref().filter(|_| !greeted.has_login) {
            let words: Vec<&[u8]> =
                std::iter::once(&b"AUTH"[..]).chain(login.iter().map(|it| &it[..])).collect();
            encode(&words, out);
            count += 1;
        }
        if self.is_resp3 != greeted.is_resp3 || is_unknown {
            encode(&["HELLO", if self.is_resp3 { "3" } else { "2" }], out);
            count += 1;
        }
        if self.partition != greeted.partition || is_unknown {
            encode(&["SELECT", &self.partition], out);
            count += 1;
        }
        if self.level != greeted.level || is_unknown {
            encode(&["SCID.LEVEL", &self.level.unwrap_or(Wanted::Auto).to_string()], out);
            count += 1;
        }
        if is_of_session {
            count += usize::from(self.greet_token(greeted, out));
        }
        greeted.has_login = true;
        greeted.is_resp3 = self.is_resp3;
        greeted.partition = self.partition.clone();
        greeted.level = self.level;
        count
    }

    /// Appends the token, unless the node knows it.
    fn greet_token(&self, greeted: &mut Greeted, out: &mut BytesMut) -> bool {
        let word = match self.token {
            _ if self.is_token_lost => (!greeted.is_token_lost).then(|| LOST.to_owned()),
            token if token == greeted.token && !greeted.is_token_lost => None,
            token => token.map(|token| Token(token).to_string()),
        };
        let Some(word) = word else { return false };
        encode(&["SCID.TOKEN", &word], out);
        greeted.is_token_lost = self.is_token_lost;
        greeted.token = self.token;
        true
    }

    /// Answers a request that needs no node.
    pub(crate) fn answer(&mut self, cluster: &Cluster, item: &Item) -> Reply {
        if item.verb() == Some(Verb::Multi) && item.has_right_count() && item.lost_at.is_some() {
            self.begin_lost();
        }
        let answered = match self.transaction.as_ref().filter(|it| it.is_lost) {
            Some(lost) if item.has_right_count() && item.verb() != Some(Verb::Quit) => {
                let node = cluster.node(lost.node);
                let address = node.map_or("its node".to_owned(), |node| node.address.clone());
                self.answer_lost(cluster, &address, item)
            }
            _ => self.answer_own(cluster, item),
        };
        answered.unwrap_or_else(|failure| failure.reply())
    }

    /// In a transaction whose node was lost.
    fn answer_lost(
        &mut self,
        cluster: &Cluster,
        address: &str,
        item: &Item,
    ) -> Result<Reply, Failure> {
        match item.verb() {
            Some(Verb::Multi) => {
                if let Some(transaction) = &mut self.transaction {
                    transaction.is_open = true;
                }
                Ok(Reply::OK)
            }
            Some(Verb::Discard) => {
                self.transaction = None;
                Ok(Reply::OK)
            }
            Some(Verb::Exec) => {
                self.transaction = None;
                Err(match &item.lost_at {
                    Some(address) => lost(cluster, address),
                    None => Failure::Refused(
                        format!(
                            "EXECABORT the connection to {address} was lost, and nothing was done"
                        )
                        .into(),
                    ),
                })
            }
            _ => {
                let text = format!("the connection to {address} was lost in the transaction");
                Err(Failure::error(text))
            }
        }
    }

    fn answer_own(&mut self, cluster: &Cluster, item: &Item) -> Result<Reply, Failure> {
        let name = &item.request[0];
        let arguments = &item.request[1..];
        if name.eq_ignore_ascii_case(b"SCID.NODES") {
            return Ok(cluster.reply());
        }
        if name.eq_ignore_ascii_case(b"SCID.ROUTE") {
            return self.set_policy(arguments);
        }
        let spec = item.spec.ok_or_else(|| unknown(name))?;
        if !spec.takes(item.request.len()) {
            return Err(wrong_count(spec));
        }
        if let Some(address) = &item.lost_at {
            return Err(lost(cluster, address));
        }
        match spec.verb {
            Verb::Ping | Verb::Echo => echo(spec.verb, arguments),
            Verb::Quit => {
                self.ends = true;
                Ok(Reply::OK)
            }
            Verb::Select => {
                self.partition = partition_name(&arguments[0])?;
                Ok(Reply::OK)
            }
            Verb::ScidLevel => match arguments {
                [] => Ok(Reply::text(match self.level {
                    Some(level) => level.to_string(),
                    None => of_others(cluster.predictor.as_ref()).to_owned(),
                })),
                [level] => {
                    self.level = Some(wanted(level)?);
                    Ok(Reply::OK)
                }
                _ => Err(Failure::SYNTAX),
            },
            Verb::ScidToken => match arguments {
                [] => Ok(self.token.map_or(Reply::Nil, |it| Reply::text(Token(it).to_string()))),
                [token] => {
                    let named = Token::named(token)?;
                    // A token of another client does not cover what this one has lost.
                    self.is_token_lost |= named.is_none();
                    self.token = named.map_or(self.token, |named| newer(self.token, named));
                    Ok(Reply::OK)
                }
                _ => Err(Failure::SYNTAX),
            },
            Verb::ScidLast => Ok(Reply::Nil),
            Verb::ScidPredictions => Ok(scid::predictions(cluster.predictor.as_ref())),
            Verb::Exec => Err(Failure::fixed("ERR EXEC without MULTI")),
            Verb::Discard => Err(Failure::fixed("ERR DISCARD without MULTI")),
            Verb::Unwatch => Ok(Reply::OK),
            _ => {
                item.need(self.level, self.token)?;
                let name = spec.name;
                let text = format!("{name} is for one node: ask it; SCID.NODES names the nodes");
                Err(Failure::error(text))
            }
        }
    }

    /// `SCID.ROUTE [policy]`.
    fn set_policy(&mut self, arguments: &[Bytes]) -> Result<Reply, Failure> {
        match arguments {
            [] => Ok(Reply::text(self.policy.to_string())),
            [policy] => {
                let policy = std::str::from_utf8(policy).ok().and_then(Policy::parse);
                let wrong = Failure::fixed("ERR a policy is OPTIMAL, OFFLOADED or COST");
                self.policy = policy.ok_or(wrong)?;
                Ok(Reply::OK)
            }
            _ => Err(Failure::SYNTAX),
        }
    }
}

/// The reply to a write that a node may have done.
pub(super) fn lost(cluster: &Cluster, address: &str) -> Failure {
    count(&cluster.counts.unknown);
    let text = format!(
        "UNKNOWN the connection to {address} was lost, and it is unknown whether the write took effect"
    );
    Failure::Refused(text.into())
}
