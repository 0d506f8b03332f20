//! [`Copy`]: the entries of moving slots, and their changes, from the old owner to the new one.

use bytes::Bytes;
use resp_rs::resp2::Frame;

use super::mover::{Moved, Mover};
use super::peer::{Attempt, Passed, Peer, bulk, integer, items, strange};

/// Changed keys in one question.
const CHANGED_KEYS: usize = 1_000;

/// The copy of an attempt.
pub(super) struct Copy<'a> {
    pub(super) mover: &'a Mover,
    pub(super) from: Peer<'a>,
    pub(super) to: Peer<'a>,
    pub(super) attempt: String,
    pub(super) epoch: String,
    pub(super) moved: &'a mut Moved,
}

impl Copy<'_> {
    pub(super) fn partition(&mut self, name: &Bytes) -> Attempt<()> {
        let mut after: Option<Bytes> = None;
        loop {
            self.mover.step("copy")?;
            let mut request = command("COPY", &self.attempt, &[name]);
            request.extend(after);
            let page = self.from.call(&request)?;
            let [next, expires, pairs @ ..] = items(&page)? else { return Err(strange(&page)) };
            let expires = integer(expires)?;
            let mut short = Vec::with_capacity(pairs.len());
            let mut long = Vec::new();
            for pair in pairs.chunks(2) {
                let [key, value] = pair else { return Err(strange(&page)) };
                match value {
                    Frame::Integer(_) => long.push(bulk(key)?),
                    value => short.extend([bulk(key)?, bulk(value)?]),
                }
            }
            self.mover.step("put")?;
            self.put(name, expires, &short)?;
            for key in long {
                self.long(name, expires, key)?;
            }
            after = match next {
                Frame::BulkString(key) => key.clone(),
                other => return Err(strange(other)),
            };
            // So that they do not grow while a large partition is copied.
            self.changes()?;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    fn put(&mut self, name: &Bytes, expires: i64, pairs: &[&Bytes]) -> Attempt<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let mut request = command("PUT", &self.attempt, &[]);
        request.extend([self.epoch.clone().into(), name.clone(), expires.to_string().into()]);
        request.extend(pairs.iter().copied().cloned());
        self.to.call(&request)?;
        self.moved.entries += pairs.len() as u64 / 2;
        self.moved.bytes += pairs.iter().map(|it| it.len() as u64).sum::<u64>();
        Ok(())
    }

    /// Copies a long value, a piece at a time. A key that is not there any more has changed.
    fn long(&mut self, name: &Bytes, expires: i64, key: &Bytes) -> Attempt<()> {
        self.mover.step("fetch")?;
        let fetch = command("FETCH", &self.attempt, &[name, key]);
        let mut head = command("PUT", &self.attempt, &[]);
        head.extend([self.epoch.clone().into(), name.clone(), expires.to_string().into()]);
        head.push(key.clone());
        match self.from.pass_value(&fetch, &mut self.to, &head)? {
            Passed::Long(bytes) => {
                self.moved.entries += 1;
                self.moved.bytes += bytes + key.len() as u64;
                Ok(())
            }
            Passed::Whole(Frame::BulkString(Some(value))) => {
                self.put(name, expires, &[key, &value])
            }
            Passed::Whole(_) => Ok(()),
        }
    }

    /// Copies keys that have changed, and returns how many are left.
    pub(super) fn changes(&mut self) -> Attempt<i64> {
        self.mover.step("changes")?;
        let count = CHANGED_KEYS.to_string();
        let request = command("CHANGED", &self.attempt, &[&count.into()]);
        let changed = self.from.call(&request)?;
        let [left, keys @ ..] = items(&changed)? else { return Err(strange(&changed)) };
        for key in keys.chunks(4) {
            let [name, expires, key, value] = key else { return Err(strange(&changed)) };
            let name = bulk(name)?;
            let key = bulk(key)?;
            match value {
                Frame::BulkString(Some(value)) => {
                    self.put(name, integer(expires)?, &[key, value])?;
                }
                Frame::Integer(_) => self.long(name, integer(expires)?, key)?,
                _ => {
                    let mut request = command("DROP", &self.attempt, &[]);
                    request.extend([self.epoch.clone().into(), name.clone(), key.clone()]);
                    self.to.call(&request)?;
                }
            }
        }
        integer(left)
    }
}

pub(super) fn command(name: &'static str, attempt: &str, rest: &[&Bytes]) -> Vec<Bytes> {
    let mut request = vec![Bytes::from_static(b"SCID.SLOTS"), Bytes::from_static(name.as_bytes())];
    request.push(Bytes::copy_from_slice(attempt.as_bytes()));
    request.extend(rest.iter().copied().cloned());
    request
}
