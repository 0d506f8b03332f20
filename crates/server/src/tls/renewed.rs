//! [`Renewed`]: a value that is made of files, and made again once they have changed.
//!
//! The bytes are compared and no times: a file that is moved into place may be older than the one before, and the
//! files of a mounted secret change by a link.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use siltstone::Result;

use super::files::Content;
use super::{Log, say};
use crate::exposition::{Exposition, count, value};

/// A value that is made of files.
pub(super) struct Renewed<T> {
    paths: Vec<PathBuf>,
    log: Option<Log>,
    interval: Duration,
    current: ArcSwap<T>,
    looked: Mutex<Looked>,
    renewals: AtomicU64,
    failures: AtomicU64,
}

/// The last look.
struct Looked {
    at: Duration,
    /// The files of `current`.
    contents: Vec<Content>,
    failure: Option<String>,
}

fn read(paths: &[PathBuf]) -> Result<Vec<Content>> {
    paths.iter().map(|path| Content::read(path)).collect()
}

impl<T> Renewed<T> {
    /// Makes it for the first time. `now` is that of a monotonic clock.
    pub(super) fn new(
        paths: Vec<PathBuf>,
        log: Option<Log>,
        interval: Duration,
        now: Duration,
        make: impl Fn(&[Content]) -> Result<T>,
    ) -> Result<Renewed<T>> {
        let contents = read(&paths)?;
        let made = make(&contents)?;
        Ok(Renewed {
            paths,
            log,
            interval,
            current: ArcSwap::from_pointee(made),
            looked: Mutex::new(Looked { at: now, contents, failure: None }),
            renewals: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })
    }

    pub(super) fn current(&self) -> Arc<T> {
        self.current.load_full()
    }

    pub(super) fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    /// Looks at the files if it is time, and makes it again if they have changed. What fails changes nothing.
    pub(super) fn look(&self, now: Duration, make: impl Fn(&[Content]) -> Result<T>) {
        let mut looked = self.looked.lock();
        if now.saturating_sub(looked.at) < self.interval {
            return;
        }
        looked.at = now;
        let read = read(&self.paths);
        if read.as_ref().is_ok_and(|contents| *contents == looked.contents) {
            looked.failure = None;
            return;
        }
        match read.and_then(|contents| Ok((make(&contents)?, contents))) {
            Ok((made, contents)) => {
                self.current.store(Arc::new(made));
                looked.contents = contents;
                looked.failure = None;
                count(&self.renewals);
                let names: Vec<String> =
                    self.paths.iter().map(|path| path.display().to_string()).collect();
                say(self.log(), &format!("TLS: took up new files: {}", names.join(", ")));
            }
            Err(error) => {
                count(&self.failures);
                let failure = error.to_string();
                if looked.failure.as_ref() != Some(&failure) {
                    say(self.log(), &format!("TLS: keeps the files of before: {failure}"));
                }
                looked.failure = Some(failure);
            }
        }
    }

    /// The figures, whose names begin with `prefix`.
    pub(super) fn figures(&self, out: &mut Exposition, prefix: &str) {
        let help = "Times that changed files of TLS were taken up.";
        out.one(&format!("{prefix}renewals_total"), "counter", help, value(&self.renewals));
        let help = "Looks at changed files of TLS that cannot be used; those of before stay.";
        let name = format!("{prefix}renewal_failures_total");
        out.one(&name, "counter", help, value(&self.failures));
    }
}
