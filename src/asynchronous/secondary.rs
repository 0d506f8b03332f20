//! Handles of secondaries for async code.

use std::path::Path;
use std::time::Duration;

use ::secondary::{ReadOptions, Reading, Secondary, SecondaryCut, SecondaryPartition, Target};
use lsm_core::db::Commit;
use lsm_core::error::{ErrorKind, Result};
use lsm_core::types::{Process, SeqNo, Slice};

use super::{Async, ChangeStream, end_of, pause, run};
use crate::db::Db;

impl Async<Secondary> {
    /// As [`Db::secondary`].
    ///
    /// # Errors
    /// As there.
    pub async fn open(path: impl AsRef<Path>) -> Result<Async<Secondary>> {
        Self::open_with(Db::secondary_builder(path)).await
    }

    /// As [`Builder::open`](::secondary::Builder::open).
    ///
    /// # Errors
    /// As there.
    pub async fn open_with(builder: ::secondary::Builder) -> Result<Async<Secondary>> {
        run(Process::current(), move || builder.open()).await.map(Async::from)
    }

    /// As [`Secondary::partition`].
    ///
    /// # Errors
    /// As there.
    pub async fn partition(&self, name: &str) -> Result<Async<SecondaryPartition>> {
        let name = name.to_owned();
        self.call(move |secondary| secondary.partition(&name)).await.map(Async::from)
    }

    /// As [`Secondary::changes`]. Nothing is read before the first [`ChangeStream::next`].
    ///
    /// # Errors
    /// As there.
    pub fn changes(&self, from: SeqNo) -> Result<ChangeStream> {
        self.handle.changes(from).map(ChangeStream::from)
    }

    /// As [`Secondary::sync`].
    ///
    /// # Errors
    /// As there.
    pub async fn sync(&self, to: Target) -> Result<Commit> {
        self.call(move |secondary| secondary.sync(to)).await
    }

    /// As [`Secondary::sync_group`].
    ///
    /// # Errors
    /// As there.
    pub async fn sync_group(
        &self,
        group: &[&Async<SecondaryPartition>],
        to: Target,
    ) -> Result<SecondaryCut> {
        // Two lists, because the thread must own the partitions and the call takes references to
        // them.
        let group: Vec<_> = group.iter().map(|partition| partition.handle.clone()).collect();
        self.call(move |secondary| {
            let group: Vec<_> = group.iter().collect();
            secondary.sync_group(&group, to)
        })
        .await
    }

    /// As [`Db::promote`].
    ///
    /// # Errors
    /// As there.
    pub async fn promote(&self) -> Result<Async<Db>> {
        self.call(Db::promote).await.map(Async::from)
    }

    /// As [`Secondary::wait_for`]. Looks for the commit up to a thousand times a second.
    ///
    /// # Errors
    /// As there.
    pub async fn wait_for(&self, token: Commit, time: Duration) -> Result<()> {
        // The task waits: sleeping threads would use up those that the runtime has for blocking work.
        let until = end_of(time);
        loop {
            let looked =
                self.call(move |secondary| secondary.wait_for(token, Duration::ZERO)).await;
            let is_behind = looked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Behind);
            if !is_behind || !pause(until).await {
                return looked;
            }
        }
    }
}

impl Async<SecondaryPartition> {
    /// As [`SecondaryPartition::sync`].
    ///
    /// # Errors
    /// As there.
    pub async fn sync(&self, to: Target) -> Result<Commit> {
        self.call(move |partition| partition.sync(to)).await
    }

    /// As [`SecondaryPartition::read`]. While its level cannot be reached, tries up to a thousand
    /// times a second.
    ///
    /// # Errors
    /// As there.
    pub async fn read(&self, options: &ReadOptions) -> Result<Async<Reading>> {
        self.at_level(options, SecondaryPartition::read).await.map(Async::from)
    }

    /// As [`SecondaryPartition::get`].
    ///
    /// # Errors
    /// As there.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        let key = Slice::from(key.as_ref());
        self.call(move |partition| partition.get(key)).await
    }

    /// As [`SecondaryPartition::get_with`]. Tries as [`read`](Self::read) does.
    ///
    /// # Errors
    /// As there.
    pub async fn get_with(
        &self,
        key: impl AsRef<[u8]>,
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        let key = Slice::from(key.as_ref());
        self.at_level(options, move |partition, options| partition.get_with(&key, options)).await
    }

    /// As [`SecondaryPartition::wait_for_news`]. Looks for news up to a thousand times a second.
    ///
    /// # Errors
    /// As there.
    pub async fn wait_for_news(&self, seen: Commit, time: Duration) -> Result<Option<Commit>> {
        let until = end_of(time);
        loop {
            // Each look ends at once, and the task waits in between, as in `wait_for`.
            let looked = self.call(move |it| it.wait_for_news(seen, Duration::ZERO)).await;
            if !matches!(looked, Ok(None)) || !pause(until).await {
                return looked;
            }
        }
    }

    /// Reads without waiting until that works or the time of `options` is over.
    async fn at_level<R: Send + 'static>(
        &self,
        options: &ReadOptions,
        read: impl Fn(&SecondaryPartition, &ReadOptions) -> Result<R> + Clone + Send + 'static,
    ) -> Result<R> {
        let until = end_of(options.wait);
        let at_once = ReadOptions::new(options.level).wait(Duration::ZERO);
        let mut is_last = false;
        loop {
            // Each attempt may run on another thread, which gets a copy of the function.
            let read = read.clone();
            // A weaker level is only allowed at the end of the wait.
            let options = if is_last { at_once.on_unmet(options.on_unmet) } else { at_once };
            let done = self.call(move |partition| read(partition, &options)).await;
            match &done {
                Err(error) if !is_last => {
                    // Waiting helps only against `Behind`. After any other error, and at the end of
                    // the time, one more attempt lets the secondary decide whether a weaker level
                    // may serve the read.
                    is_last = error.kind() != ErrorKind::Behind || !pause(until).await;
                }
                _ => return done,
            }
        }
    }
}
