//! [`Store`]: the calls of an object store that this crate makes, blocking; [`ObjectStoreCalls`]: the same by
//! the crate `object_store`. [`Timer`]: its waits, which tests replace.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use object_store::path::Path as ObjectPath;
use object_store::{
    GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, WriteMultipart,
};
use siltstone::clock::{Clock, SystemClock};
use siltstone::{Error, ErrorKind};

/// The kind of a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The call may be tried again. It may have had its effect.
    Transient,
    /// The store refuses the credentials, or they have no right to the call. An open fails at once. A primary or reader
    /// that runs tries the call again, as after a transient failure: credentials expire, and are replaced.
    Refused,
    /// Another attempt cannot succeed: the store does not know the call.
    Final,
}

/// A failed call of a store.
#[derive(Clone, Debug)]
pub struct StoreError {
    /// The chances of another attempt.
    pub kind: StoreErrorKind,
    /// The text of the store.
    pub message: String,
}

impl StoreError {
    /// A failure of a kind.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> StoreError {
        StoreError { kind, message: message.into() }
    }

    /// A failure after which the call may be tried again. It may have had its effect.
    pub fn transient(message: impl Into<String>) -> StoreError {
        StoreError::new(StoreErrorKind::Transient, message)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The outcome of a call of a store.
pub type StoreResult<T> = Result<T, StoreError>;

/// An object in a [`ObjectListing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEntry {
    /// The whole name, with its folders.
    pub name: String,
    /// Its bytes.
    pub len: u64,
    /// The time of the put by the clock of the store, since 1970.
    pub modified: Duration,
}

/// The content of a folder of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectListing {
    /// Those directly in it.
    pub objects: Vec<ObjectEntry>,
    /// The whole names of the folders in it.
    pub folders: Vec<String>,
}

/// An object store. Names are relative; a put is whole or has no effect; lists and gets see all puts that have
/// returned.
pub trait Store: Send + Sync + 'static {
    /// Names the store, in messages about it. It shows no secret.
    fn name(&self) -> String {
        "of the application".to_owned()
    }

    /// Puts an object under a name that must be free. Returns `false`, and changes nothing, if it is taken.
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool>;

    /// Puts an object, in the place of an older one.
    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()>;

    /// Puts an object that comes in parts, in the place of an older one. All parts but the last have one length, of at
    /// least 8 MiB. The object appears as a whole, or not at all: after an error, of the store or of a part, what was put
    /// is given up. The default gathers all parts in memory, and calls [`Store::put`].
    fn put_parts(
        &self,
        name: &str,
        parts: &mut dyn Iterator<Item = StoreResult<Vec<u8>>>,
    ) -> StoreResult<()> {
        let mut bytes = Vec::new();
        for part in parts {
            bytes.extend(part?);
        }
        self.put(name, &bytes)
    }

    /// Returns an object, or `None`.
    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>>;

    /// Returns a range of an object, up to its end: no byte if it begins there or later. `None` if there is no such
    /// object.
    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>>;

    /// Returns the objects and the folders directly in the folder `dir`, in order of their names.
    fn list(&self, dir: &str) -> StoreResult<ObjectListing>;

    /// Deletes an object. No error if there is none.
    fn delete(&self, name: &str) -> StoreResult<()>;
}

/// Parts of one object that are on their way. Each is in memory.
const PARTS_AT_ONCE: usize = 4;

/// The time between attempts.
pub trait Timer: Send + Sync + 'static {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Time since some fixed moment, which also goes on while the machine is suspended; `None` where the system has no
    /// such clock: then no primary has a read lease. The time of [`Timer::now`] by default.
    fn since_boot(&self) -> Option<Duration> {
        Some(self.now())
    }

    /// Waits.
    fn wait(&self, time: Duration);

    /// A random number, for jitter.
    fn random(&self) -> u64;
}

/// The timer of the system.
pub(crate) struct SystemTimer(SystemClock);

impl SystemTimer {
    pub(crate) fn new() -> SystemTimer {
        SystemTimer(SystemClock::default())
    }
}

impl Timer for SystemTimer {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn since_boot(&self) -> Option<Duration> {
        // Elsewhere the clock of the crate below stands still meanwhile.
        let goes_on = cfg!(any(target_os = "linux", target_os = "android"));
        goes_on.then(|| self.0.since_boot())
    }

    fn wait(&self, time: Duration) {
        // An early end is one more attempt.
        std::thread::park_timeout(time);
    }

    fn random(&self) -> u64 {
        random()
    }
}

/// A number that differs on every call and in every process.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// Calls of a store of the crate `object_store`, below a prefix.
///
/// They run on a thread of their own, and the caller waits for it. A runtime on the thread of the caller would panic
/// if an async task of the application calls, and also if such a task drops it.
pub(crate) struct ObjectStoreCalls {
    store: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    runtime: tokio::runtime::Handle,
    /// Ends the thread.
    stop: tokio::task::AbortHandle,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ObjectStoreCalls {
    fn drop(&mut self) {
        self.stop.abort();
        if let Some(thread) = self.thread.take() {
            // Each call has returned, so nothing is lost if the thread has panicked.
            let _ = thread.join();
        }
    }
}

impl ObjectStoreCalls {
    /// # Errors
    /// The system has no resources for a runtime and its thread.
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        prefix: ObjectPath,
    ) -> siltstone::Result<ObjectStoreCalls> {
        let owned = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let runtime = owned.handle().clone();
        let until_stop = runtime.spawn(std::future::pending::<()>());
        let stop = until_stop.abort_handle();
        let named = std::thread::Builder::new().name("siltstone-store".to_owned());
        let thread = named.spawn(move || {
            // It ends with the error of an aborted task.
            let _ = owned.block_on(until_stop);
        })?;
        Ok(ObjectStoreCalls { store, prefix, runtime, stop, thread: Some(thread) })
    }

    fn path(&self, name: &str) -> ObjectPath {
        let parts = name.split('/').map(str::to_owned);
        self.prefix.parts().map(|part| part.as_ref().to_owned()).chain(parts).collect()
    }

    fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> object_store::Result<T> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            // The caller waits until the value is sent.
            let _ = sender.send(call.await);
        });
        receiver.recv().unwrap_or_else(|_| {
            let source = "the call panicked".into();
            Err(object_store::Error::Generic { store: "siltstone", source })
        })
    }

    fn put_as(&self, name: &str, bytes: &[u8], mode: PutMode) -> object_store::Result<()> {
        let store = self.store.clone();
        let path = self.path(name);
        let payload = PutPayload::from(bytes.to_vec());
        let options = PutOptions { mode, ..PutOptions::default() };
        self.run(async move { store.put_opts(&path, payload, options).await.map(drop) })
    }

    /// The length of an object; `None` if it is unknown.
    fn len(&self, name: &str) -> Option<u64> {
        let store = self.store.clone();
        let path = self.path(name);
        self.run(async move { store.head(&path).await }).ok().map(|object| object.size)
    }

    fn get_as(&self, name: &str, options: GetOptions) -> StoreResult<Option<Vec<u8>>> {
        let store = self.store.clone();
        let path = self.path(name);
        let got = self.run(async move { store.get_opts(&path, options).await?.bytes().await });
        match got {
            Ok(bytes) => Ok(Some(bytes.to_vec())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failure(&error)),
        }
    }
}

/// S3 answers with "400 Bad Request" and one of these codes to a session whose time is over.
const REFUSAL_CODES: [&str; 3] = ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"];

fn failure(error: &object_store::Error) -> StoreError {
    use object_store::Error::{
        InvalidPath, NotImplemented, NotSupported, PermissionDenied, Unauthenticated,
        UnknownConfigurationKey,
    };
    let message = error.to_string();
    let has_code = REFUSAL_CODES.iter().any(|it| message.contains(&format!("<Code>{it}</Code>")));
    let kind = match error {
        InvalidPath { .. }
        | NotImplemented { .. }
        | NotSupported { .. }
        | UnknownConfigurationKey { .. } => StoreErrorKind::Final,
        PermissionDenied { .. } | Unauthenticated { .. } => StoreErrorKind::Refused,
        _ if has_code => StoreErrorKind::Refused,
        _ => StoreErrorKind::Transient,
    };
    StoreError { kind, message }
}

impl Store for ObjectStoreCalls {
    fn name(&self) -> String {
        match self.prefix.as_ref() {
            "" => self.store.to_string(),
            prefix => format!("{}/{prefix}", self.store),
        }
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        use object_store::Error::{AlreadyExists, Precondition};
        match self.put_as(name, bytes, PutMode::Create) {
            Ok(()) => Ok(true),
            Err(AlreadyExists { .. } | Precondition { .. }) => Ok(false),
            Err(error) => Err(failure(&error)),
        }
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.put_as(name, bytes, PutMode::Overwrite).map_err(|error| failure(&error))
    }

    fn put_parts(
        &self,
        name: &str,
        parts: &mut dyn Iterator<Item = StoreResult<Vec<u8>>>,
    ) -> StoreResult<()> {
        let Some(first) = parts.next() else { return self.put(name, &[]) };
        let first = first?;
        let store = self.store.clone();
        let path = self.path(name);
        let part_bytes = first.len();
        let begun = self.run(async move { store.put_multipart(&path).await });
        let upload = begun.map_err(|error| failure(&error))?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, part_bytes);
        for part in std::iter::once(Ok(first)).chain(parts) {
            let part = match part {
                Ok(part) => part,
                Err(error) => {
                    // What stays of it is seen by no one, and the bucket's own rule deletes it.
                    let _ = self.run(upload.abort());
                    return Err(error);
                }
            };
            let sent = self.run(async move {
                match upload.wait_for_capacity(PARTS_AT_ONCE).await {
                    Ok(()) => upload.put(part.into()),
                    Err(error) => {
                        let _ = upload.abort().await;
                        return Err(error);
                    }
                }
                Ok(upload)
            });
            upload = sent.map_err(|error| failure(&error))?;
        }
        // It gives the upload up if a part fails.
        self.run(upload.finish()).map(drop).map_err(|error| failure(&error))
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.get_as(name, GetOptions::default())
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
        match self.get_as(name, options) {
            // Stores refuse a range after the end, each by an error of its own. Another attempt would not help.
            Err(_) if self.len(name).is_some_and(|len| len <= range.start) => Ok(Some(Vec::new())),
            got => got,
        }
    }

    fn list(&self, dir: &str) -> StoreResult<ObjectListing> {
        let store = self.store.clone();
        let path = self.path(dir);
        let listed = self.run(async move { store.list_with_delimiter(Some(&path)).await });
        let listed = listed.map_err(|error| failure(&error))?;
        let objects = listed.objects.iter().filter_map(|object| {
            Some(ObjectEntry {
                name: format!("{dir}/{}", object.location.filename()?),
                len: object.size,
                // A time before 1970 is that of a clock without a battery: of the oldest object.
                modified: Duration::from_millis(
                    object.last_modified.timestamp_millis().try_into().unwrap_or(0),
                ),
            })
        });
        let mut objects: Vec<_> = objects.collect();
        objects.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let folders = listed.common_prefixes.iter().filter_map(|folder| folder.filename());
        let mut folders: Vec<_> = folders.map(|name| format!("{dir}/{name}")).collect();
        folders.sort_unstable();
        Ok(ObjectListing { objects, folders })
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        let store = self.store.clone();
        let path = self.path(name);
        match self.run(async move { store.delete(&path).await }) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failure(&error)),
        }
    }
}

/// An error of the kind `kind` about an object.
pub(crate) fn error_of(kind: ErrorKind, name: &str, what: impl fmt::Display) -> Error {
    Error::new(kind, format!("object {name}: {what}"))
}
