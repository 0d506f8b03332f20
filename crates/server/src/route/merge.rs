//! Requests over several shards: `MGET`, `DEL`, `UNLINK`, `EXISTS`, `SCAN` and `DBSIZE`. Their parts are merged.

use bytes::Bytes;

use super::elements::{bulk, elements, integer};
use super::item::Item;
use super::sharded::{ShardClient, array};
use super::sink::Sink;
use super::walks::Walk;
use crate::commands::Verb;
use crate::failure::Failure;
use crate::keys::Scan;
use crate::reply::Reply;
use crate::shards::{SlotSet, slot_of};

/// The bytes of a merged reply; each shard has this limit for its part.
const REPLY_BYTES_MAX: usize = 128 << 20;

/// The keys of a page, and the last one that was looked at; `None` at the end.
struct Page {
    keys: Vec<Bytes>,
    last: Option<Bytes>,
}

fn strange() -> Failure {
    Failure::error("a node gave a reply that a router cannot merge")
}

impl ShardClient {
    /// A request whose keys are of several shards: each gets its keys.
    pub(super) async fn split(&mut self, item: Item, sink: &mut Sink<'_>) {
        let is_mget = item.verb() == Some(Verb::MGet);
        let keys = &item.request[1..];
        let mut values: Vec<Bytes> = vec![Bytes::new(); keys.len()];
        let mut left: Vec<usize> = (0..keys.len()).collect();
        let mut sum = 0;
        let mut bytes = 0;
        let until = self.until();
        while let Some(first) = left.first() {
            let map = self.shards.map();
            let place = map.owner(slot_of(&keys[*first]));
            let (here, elsewhere): (Vec<usize>, Vec<usize>) =
                left.iter().partition(|at| map.owner(slot_of(&keys[**at])) == place);
            let mut request = vec![item.request[0].clone()];
            request.extend(here.iter().map(|at| keys[*at].clone()));
            let reply = match self.ask(place, request).await {
                Ok(reply) => reply,
                Err(refusal) => {
                    if self.wait_for_map(until).await || self.shards.now() < until {
                        continue;
                    }
                    refusal
                }
            };
            if reply.starts_with(b"-") {
                sink.out.extend_from_slice(&reply);
                return;
            }
            bytes += reply.len();
            let is_whole = match is_mget {
                true => elements(&reply).filter(|items| items.len() == here.len()).map(|items| {
                    here.iter().zip(items).for_each(|(at, item)| values[*at] = item);
                }),
                false => integer(&reply).map(|count| sum += count),
            };
            if is_whole.is_none() {
                return self.write(&strange().reply(), sink);
            }
            if bytes > REPLY_BYTES_MAX {
                return self.write(&crate::strings::too_large(REPLY_BYTES_MAX).reply(), sink);
            }
            left = elsewhere;
        }
        match is_mget {
            true => sink.out.extend_from_slice(&array(&values)),
            false => self.write(&Reply::Integer(sum), sink),
        }
    }

    /// `DBSIZE`: the sum of all shards.
    pub(super) async fn size(&mut self, item: &Item, sink: &mut Sink<'_>) {
        let mut sum = 0;
        for place in 0..self.shards.map().shards().len() {
            let (Ok(reply) | Err(reply)) = self.ask(place, item.request.clone()).await;
            match integer(&reply) {
                Some(count) => sum += count,
                None => return sink.out.extend_from_slice(&reply),
            }
        }
        self.write(&Reply::Integer(sum), sink);
    }

    /// `SCAN`: a page of a walk over all shards.
    pub(super) async fn walk(&mut self, item: &Item, sink: &mut Sink<'_>) {
        match self.page(item).await {
            Ok(Ok(reply)) => self.write(&reply, sink),
            Ok(Err(failure)) => self.write(&failure.reply(), sink),
            Err(refusal) => sink.out.extend_from_slice(&refusal),
        }
    }

    /// The reply to a `SCAN`, or the error of a node.
    async fn page(&mut self, item: &Item) -> Result<Result<Reply, Failure>, Bytes> {
        let scan = match Scan::parse(&item.request[1..]) {
            Ok(scan) => scan,
            Err(failure) => return Ok(Err(failure)),
        };
        let partition = self.session.partition.clone();
        // A copy: a part of a request keeps the whole one.
        let pattern = scan.pattern().map(|pattern| Bytes::copy_from_slice(pattern));
        let begin = Walk { partition, map: self.shards.map(), shard: 0, after: None, pattern };
        let found = match scan.cursor() {
            0 => Some(begin.clone()),
            cursor => self.shards.walks.place(cursor, &self.session.partition),
        };
        // With another pattern it begins again: shards that were passed have keys of this one.
        let found = found.map(|walk| if walk.pattern == begin.pattern { walk } else { begin });
        let Some(mut walk) = found else {
            let text = "ERR this cursor is unknown: it is too old, or of another router or partition; begin again with 0";
            return Ok(Err(Failure::fixed(text)));
        };
        let slots = walk.map.slots_of(walk.shard);
        let page = match slots.is_empty() {
            true => Page { keys: Vec::new(), last: None },
            false => match self.merged(&walk, &slots, &scan).await? {
                Some(page) => page,
                None => return Ok(Err(strange())),
            },
        };
        walk.pass(page.last.as_ref());
        let cursor = match walk.shard < walk.map.shards().len() {
            true => self.shards.walks.keep(walk),
            false => 0,
        };
        let keys = page.keys.into_iter().map(Reply::Echo).collect();
        Ok(Ok(Reply::Array(vec![Reply::text(cursor.to_string()), Reply::Array(keys)])))
    }

    /// The next keys of `slots`, of all shards that own them now.
    async fn merged(
        &mut self,
        walk: &Walk,
        slots: &SlotSet,
        scan: &Scan,
    ) -> Result<Option<Page>, Bytes> {
        let until = self.until();
        'again: loop {
            let map = self.shards.map();
            let mut pages = Vec::new();
            for place in 0..map.shards().len() {
                let owned = map.slots_of(place).common(slots);
                if owned.is_empty() {
                    continue;
                }
                let request = request(&owned, walk.after.as_ref(), scan);
                match self.ask(place, request).await {
                    Ok(reply) if reply.starts_with(b"-") => return Err(reply),
                    Ok(reply) => pages.push(page_of(&reply)),
                    Err(refusal) => {
                        if self.wait_for_map(until).await || self.shards.now() < until {
                            continue 'again;
                        }
                        return Err(refusal);
                    }
                }
            }
            let pages: Option<Vec<Page>> = pages.into_iter().collect();
            return Ok(pages.map(merge));
        }
    }
}

/// The question for a page.
fn request(slots: &SlotSet, after: Option<&Bytes>, scan: &Scan) -> Vec<Bytes> {
    let mut request = vec![Bytes::from_static(b"SCID.SCAN"), slots.to_string().into()];
    request.extend([Bytes::from_static(b"COUNT"), scan.count().to_string().into()]);
    for (name, value) in [("AFTER", after), ("MATCH", scan.pattern())] {
        if let Some(value) = value {
            request.extend([Bytes::from_static(name.as_bytes()), value.clone()]);
        }
    }
    request
}

fn page_of(reply: &Bytes) -> Option<Page> {
    let items = elements(reply)?;
    let [last, keys] = &items[..] else { return None };
    let keys = elements(keys)?.iter().map(|key| bulk(key).ok().flatten()).collect::<Option<_>>()?;
    Some(Page { keys, last: bulk(last).ok()? })
}

/// Merges pages that begin at one place: all have looked at the keys up to the first of their ends.
fn merge(pages: Vec<Page>) -> Page {
    let last = pages.iter().filter_map(|page| page.last.clone()).min();
    let keys = pages.into_iter().flat_map(|page| page.keys);
    let mut keys: Vec<Bytes> =
        keys.filter(|key| last.as_ref().is_none_or(|last| key <= last)).collect();
    keys.sort_unstable();
    Page { keys, last }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged_text(pages: &[(&[&str], Option<&str>)]) -> (String, Option<Bytes>) {
        let pages = pages.iter().map(|(keys, last)| Page {
            keys: keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect(),
            last: last.map(|last| Bytes::copy_from_slice(last.as_bytes())),
        });
        let page = merge(pages.collect());
        let keys: Vec<_> = page.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        (keys.join(" "), page.last)
    }

    #[test]
    fn pages_are_merged_up_to_the_first_end() {
        let one: (&[&str], _) = (&["a", "d", "g"], Some("h"));
        let other: (&[&str], _) = (&["b", "c"], Some("d"));
        assert_eq!(merged_text(&[one, other]), ("a b c d".to_owned(), Some(Bytes::from("d"))));
        let ended: (&[&str], _) = (&["x"], None);
        assert_eq!(merged_text(&[one, ended]), ("a d g".to_owned(), Some(Bytes::from("h"))));
        assert_eq!(merged_text(&[ended]), ("x".to_owned(), None));
        assert_eq!(merged_text(&[]), (String::new(), None));
    }
}
