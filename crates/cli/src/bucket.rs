//! [`BucketPlace`]: a database in a bucket, which a URL names, and its readers.
//!
//! Invariants:
//! 1. A URL is in a message only after it was read without an error: a URL with a password is an error.
//! 2. A command that reads puts nothing but a lease, and none if it is short.

mod calls;

use std::path::Path;
use std::sync::Arc;

use remote::{Remote, RemoteReader};
use siltstone::Result;
use siltstone::fs::{FolderState, Fs};

use self::calls::{CallCounts, CountedStore};
use crate::files::{self, files};
use crate::output::{Failure, note};
use crate::progress::{self, is_interrupted};

/// Returns the URL, if `path` is one.
pub(crate) fn url_of(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.contains("://"))
}

/// The URL of the bucket that the folder `path` is shipped to.
pub(crate) fn noted_url(path: &Path) -> Result<Option<String>> {
    if path.is_dir() { Remote::url_of_folder_on(&*files(), path) } else { Ok(None) }
}

/// Returns an error if `path` is a URL, which the subcommand `verb` does not take.
pub(crate) fn needs_folder(path: &Path, verb: &str, instead: &str) -> Result<(), Failure> {
    match url_of(path) {
        None => Ok(()),
        Some(_) => {
            Err(Failure::Usage(format!("{verb} needs a folder, and takes no URL: {instead}")))
        }
    }
}

/// The time that a command reads for. What the newest state of a database needs stays in its bucket for the retention,
/// and then for an hour: so a short command needs no lease, and no right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadLength {
    Short,
    Long,
}

/// A place in a bucket, and what this process got from it and put into it.
pub(crate) struct BucketPlace {
    url: String,
    pub(crate) remote: Remote,
    calls: Arc<CallCounts>,
}

impl BucketPlace {
    /// The place that `url` names. Nothing is connected to. If a command waits for Ctrl-C, it ends by itself, with all
    /// calls of the store that this takes: a file that cannot be read would be one that is damaged.
    pub(crate) fn new(url: &str) -> Result<BucketPlace, Failure> {
        BucketPlace::with_end(url, || false)
    }

    fn with_end(url: &str, is_ended: fn() -> bool) -> Result<BucketPlace, Failure> {
        let calls = Arc::<CallCounts>::default();
        let counts = calls.clone();
        let remote = files::bucket(url)?
            .wrap_store(|inner| Arc::new(CountedStore { inner, counts, is_ended }));
        Ok(BucketPlace { url: url.to_owned(), remote, calls })
    }

    /// The place that `argument` names: a URL, or a folder that is shipped to one. After Ctrl-C all calls of the store
    /// fail.
    pub(crate) fn of(argument: &Path) -> Result<BucketPlace, Failure> {
        if let Some(url) = url_of(argument) {
            return BucketPlace::with_end(url, is_interrupted);
        }
        let noted = noted_url(argument)?;
        match noted {
            Some(url) => BucketPlace::with_end(&url, is_interrupted),
            None => Err(Failure::Usage(format!(
                "{} is neither the URL of a bucket, such as file:///folder, nor a folder that is shipped to one",
                argument.display()
            ))),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Runs `work`, and shows what it gets and puts.
    pub(crate) fn during<T: Send>(&self, deed: &str, work: impl FnOnce() -> T + Send) -> T {
        progress::during(deed, || self.calls.text(), work)
    }

    /// Runs `work` with a lease. If the store refuses that, it runs without one, and a note says so.
    pub(crate) fn with_lease<T>(&self, work: impl Fn(&Remote) -> Result<T>) -> Result<T> {
        let outcome = work(&self.remote);
        let Some(refusal) = self.calls.lease_refusal() else { return outcome };
        note(format_args!(
            "siltstone: reading without a lease: only the retention keeps what is read ({refusal})"
        ));
        work(&self.remote.clone().lease(None))
    }

    /// Opens the folder of the database for reading; refuses if there is none.
    pub(crate) fn reader(&self, length: ReadLength) -> Result<RemoteReader, Failure> {
        let reader = match length {
            ReadLength::Short => self.remote.clone().lease(None).reader()?,
            ReadLength::Long => self.with_lease(Remote::reader)?,
        };
        let names = reader.list_names(Path::new(""), "")?;
        if !names.iter().any(|name| name.ends_with(".manifest")) {
            return Err(self.nothing());
        }
        Ok(reader)
    }

    /// Notes on standard error if the bucket may lack what the writer has acknowledged.
    pub(crate) fn note_acknowledgement(&self, reader: &RemoteReader) -> Result<()> {
        if reader.folder_state(Path::new(""), FolderState::Current)?.state != FolderState::Current {
            let url = &self.url;
            note(format_args!(
                "siltstone: the newest commits of the writer may be missing from {url}"
            ));
        }
        Ok(())
    }

    /// The failure of a bucket without a database.
    pub(crate) fn nothing(&self) -> Failure {
        Failure::NotFound(format!("no database in {}", self.url))
    }
}
