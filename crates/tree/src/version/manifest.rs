//! [`Manifest`]: one generation of the log of edits, as the database writes it.
//!
//! Every open for writing creates one, and so does a generation that has grown too long. Only the
//! path that installs versions appends to it. `recover.rs` reads it. The bytes of a file:
//!
//! ```text
//! offset size name
//!      0    8 magic            "SILTMANI"
//!      8    4 format version   2; version 1 is read
//!     12    4 checksum         1 = XXH3-64
//!     16    8 features         compatible: unknown bits do not matter
//!     24    8 features         read-compatible: with unknown bits it may be read, not written
//!     32    8 features         incompatible: with unknown bits it is refused
//!     40   16 database id
//!     56    8 generation       the file number in its name
//!     64    4 epoch            the epoch in its name
//!     68    4 zero
//!     72    8 header checksum  XXH3-64 of the 72 bytes before
//!     80    - frames, the first one holding a whole snapshot:
//!      0    8 head checksum    XXH3-64 of the 20 bytes after it, seeded with the XXH3-64 of
//!                              database id, generation and the frame's offset in the file
//!      8    8 payload checksum XXH3-64
//!     16    4 length           of the payload
//!     20    8 edit number
//!     28    - payload          see `edit.rs`
//! ```
//!
//! In version 1 a frame has one checksum, of all bytes after it and seeded as the head's is now,
//! and so 20 bytes before the payload: checksum, length, edit number. Version 1 also means that the
//! log was written in its own first version, see `wal/segment.rs`.
//!
//! The head of a frame alone shows if a frame begins at an offset, whatever length it claims. A
//! search after a damaged frame checks this at every byte, and the bytes may be hostile. The header
//! keeps its form in all later versions.
//!
//! Invariants:
//! 1. Header and snapshot are published whole or not at all; a present manifest is never torn
//!    before the end of its snapshot.
//! 2. Edit numbers go up by one. A [`Change::Superseded`] stands alone at the end of the file and
//!    carries the number of the last edit before it.
//! 3. Nothing is appended after a failed append or sync: the content of the disk there is unknown.
//! 4. When edits go into generation N+1, it is durable, and N names it durably or is deleted.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DbVersion;
use super::apply::snapshot_edit;
use super::change::Change;
use super::edit::VersionEdit;
use crate::codec::{Malformed, Reader, checksum64, checksum64_seeded, put_u64};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{AppendMode, ENCRYPTED_MAGIC, File, Fs};
use crate::types::{DbId, Epoch, FileNo};

/// The first bytes of a manifest.
pub const MAGIC: [u8; 8] = *b"SILTMANI";
const FORMAT_VERSION: u32 = 2;
/// The first version, whose frames have one checksum.
const VERSION_ONE_CHECKSUM: u32 = 1;
const CHECKSUM_XXH3_64: u32 = 1;
/// Length of the header in bytes.
pub(super) const HEADER_BYTES: usize = 80;
/// Length of a frame without its payload in bytes.
const FRAME_BYTES: usize = 28;
/// The same in the first version.
const FRAME_BYTES_ONE_CHECKSUM: usize = 20;

/// A generation that edits are appended to.
pub struct Manifest {
    /// `None` if nothing is ever appended.
    file: Option<Arc<dyn File>>,
    path: PathBuf,
    name: FileName,
    seal: FrameSeal,
    bytes: u64,
    last_number: u64,
    state: ManifestState,
}

/// The answer to a further append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ManifestState {
    /// It is accepted.
    Open,
    /// It would be a mistake of the caller: the manifest continues in another generation.
    Superseded,
    /// It is refused: an append or a sync failed.
    Failed,
    /// It is refused: the database was opened read-only.
    Never,
}

/// The seed of a frame's checksum, together with its offset: it verifies in this generation alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSeal {
    pub(super) db_id: DbId,
    pub(super) generation: FileNo,
    version: u32,
}

/// A frame that verified.
pub(super) struct Frame<'a> {
    pub(super) number: u64,
    pub(super) payload: &'a [u8],
    /// Offset of the payload in the bytes, and of the first byte after the frame.
    pub(super) payload_at: usize,
    pub(super) end: usize,
}

/// The search for a frame among hostile bytes.
pub(super) enum FrameSearch<'a> {
    /// The first frame, at this offset.
    Found(usize, Frame<'a>),
    /// There is none.
    Nothing,
    /// A decision would take more work than is allowed. Only in the first version.
    Undecided,
}

/// In the first version a search hashes this many times the length of the file at most.
const HASHED_TIMES_MAX: u64 = 16;

impl FrameSeal {
    /// The seal of a generation that this code writes.
    fn new(db_id: DbId, generation: FileNo) -> FrameSeal {
        FrameSeal { db_id, generation, version: FORMAT_VERSION }
    }

    fn seed(self, offset: u64) -> u64 {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.db_id.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.0.to_le_bytes());
        bytes[24..].copy_from_slice(&offset.to_le_bytes());
        checksum64(&bytes)
    }

    /// Appends the frame of an edit to `out`, whose first byte lies at `base` of the file.
    fn put_frame(self, out: &mut Vec<u8>, base: u64, edit: &VersionEdit) -> Result<()> {
        let start = out.len();
        // The end of a generation is written in the version of that generation.
        let is_old = self.version == VERSION_ONE_CHECKSUM;
        let head_bytes = if is_old { FRAME_BYTES_ONE_CHECKSUM } else { FRAME_BYTES };
        let payload_at = start + head_bytes;
        out.resize(payload_at, 0);
        edit.encode(out);
        let length = out.len() - payload_at;
        let length = u32::try_from(length)
            .map_err(|_| Error::limit("edit length", length as u64, u32::MAX.into()))?;
        if !is_old {
            let payload_checksum = checksum64(&out[payload_at..]);
            out[start + 8..start + 16].copy_from_slice(&payload_checksum.to_le_bytes());
        }
        out[payload_at - 12..payload_at - 8].copy_from_slice(&length.to_le_bytes());
        out[payload_at - 8..payload_at].copy_from_slice(&edit.number.to_le_bytes());
        let covered = if is_old { &out[start + 8..] } else { &out[start + 8..payload_at] };
        let checksum = checksum64_seeded(covered, self.seed(base + start as u64));
        out[start..start + 8].copy_from_slice(&checksum.to_le_bytes());
        Ok(())
    }

    /// The frame that verifies at `at` of `bytes`, which begin at `base` of the file, if there is
    /// one.
    pub(super) fn frame_at(self, bytes: &[u8], at: usize, base: u64) -> Option<Frame<'_>> {
        if self.version == VERSION_ONE_CHECKSUM {
            return self.old_frame_at(bytes, at, base);
        }
        let mut reader = Reader::new(bytes.get(at..)?);
        let head_checksum = reader.u64().ok()?;
        let payload_checksum = reader.u64().ok()?;
        let length = usize::try_from(reader.u32().ok()?).ok()?;
        let number = reader.u64().ok()?;
        let payload = reader.take(length).ok()?;
        let payload_at = at + FRAME_BYTES;
        let seed = self.seed(base + at as u64);
        // The head first: only a head that verifies shows how much payload is worth hashing.
        let verifies = checksum64_seeded(&bytes[at + 8..payload_at], seed) == head_checksum
            && checksum64(payload) == payload_checksum;
        verifies.then_some(Frame { number, payload, payload_at, end: payload_at + length })
    }

    fn old_frame_at(self, bytes: &[u8], at: usize, base: u64) -> Option<Frame<'_>> {
        let mut reader = Reader::new(bytes.get(at..)?);
        let checksum = reader.u64().ok()?;
        let length = usize::try_from(reader.u32().ok()?).ok()?;
        let number = reader.u64().ok()?;
        let payload = reader.take(length).ok()?;
        let payload_at = at + FRAME_BYTES_ONE_CHECKSUM;
        let end = payload_at + length;
        let seed = self.seed(base + at as u64);
        let verifies = checksum64_seeded(&bytes[at + 8..end], seed) == checksum;
        verifies.then_some(Frame { number, payload, payload_at, end })
    }

    /// Looks for the first frame at or after `from`.
    pub(super) fn search(self, bytes: &[u8], from: usize) -> FrameSearch<'_> {
        let mut budget = (bytes.len() as u64).saturating_mul(HASHED_TIMES_MAX);
        // Edits have any length, so a frame may begin at each byte.
        for at in from..bytes.len() {
            if self.version == VERSION_ONE_CHECKSUM {
                let Some(length) = bytes.get(at + 8..).and_then(|rest| rest.first_chunk::<4>())
                else {
                    break;
                };
                let length = u64::from(u32::from_le_bytes(*length));
                if length > (bytes.len() - at) as u64 {
                    continue;
                }
                match budget.checked_sub(length) {
                    Some(left) => budget = left,
                    None => return FrameSearch::Undecided,
                }
            }
            if let Some(frame) = self.frame_at(bytes, at, 0) {
                return FrameSearch::Found(at, frame);
            }
        }
        FrameSearch::Nothing
    }

    /// Returns `true` if the code that wrote the generation derived the salts of log segments from
    /// their identity, see `wal/segment.rs`.
    pub(super) fn has_derived_salts(self) -> bool {
        self.version != VERSION_ONE_CHECKSUM
    }
}

/// The header of a generation.
pub(super) struct Header {
    pub(super) seal: FrameSeal,
    pub(super) epoch: Epoch,
    /// `true` if this code may write to a database that has it.
    pub(super) writable: bool,
}

impl Header {
    /// Names and bytes of the fields before the checksum, in order: the one list for encoding and
    /// descriptions.
    pub(super) fn fields(&self) -> [(&'static str, Vec<u8>); 10] {
        [
            ("magic", MAGIC.to_vec()),
            ("format version", FORMAT_VERSION.to_le_bytes().to_vec()),
            ("checksum kind", CHECKSUM_XXH3_64.to_le_bytes().to_vec()),
            ("compatible features", vec![0; 8]),
            ("read-compatible features", vec![0; 8]),
            ("incompatible features", vec![0; 8]),
            ("database id", self.seal.db_id.0.to_le_bytes().to_vec()),
            ("generation", self.seal.generation.0.to_le_bytes().to_vec()),
            ("epoch", self.epoch.0.to_le_bytes().to_vec()),
            ("zero", vec![0; 4]),
        ]
    }

    /// Puts the header into the empty `out`.
    fn put(&self, out: &mut Vec<u8>) {
        for (_, bytes) in self.fields() {
            out.extend_from_slice(&bytes);
        }
        let checksum = checksum64(out);
        put_u64(out, checksum);
        debug_assert_eq!(out.len(), HEADER_BYTES);
    }

    /// Decodes the fields after the magic. The caller decides whether to believe them: the checksum
    /// is returned with them.
    fn decode(bytes: &[u8]) -> Result<(Header, Needs, u64), Malformed> {
        let mut r = Reader::new(bytes);
        r.take(MAGIC.len())?;
        let version = r.u32()?;
        let checksum_kind = r.u32()?;
        let _compatible = r.u64()?;
        let read_compatible = r.u64()?;
        let incompatible = r.u64()?;
        let db_id = DbId(r.u128()?);
        let generation = FileNo(r.u64()?);
        let epoch = Epoch(r.u32()?);
        let _zero = r.u32()?;
        let seal = FrameSeal { db_id, generation, version };
        let header = Header { seal, epoch, writable: read_compatible == 0 };
        Ok((header, Needs { version, checksum_kind, incompatible }, r.u64()?))
    }
}

/// The facts that a reader of a header must check.
struct Needs {
    version: u32,
    checksum_kind: u32,
    incompatible: u64,
}

/// Reads the header of the generation `name`, if that is known.
pub(super) fn read_header(bytes: &[u8], name: Option<FileName>, path: &Path) -> Result<Header> {
    let Ok((header, needs, checksum)) = Header::decode(bytes) else {
        return Err(Error::corruption(path, 0, "a manifest is shorter than its header"));
    };
    if bytes.starts_with(&ENCRYPTED_MAGIC) {
        let message = format!("{} is encrypted, and was opened without keys", path.display());
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    if !bytes.starts_with(&MAGIC) {
        return Err(Error::corruption(path, 0, "the file is not a manifest"));
    }
    if checksum != checksum64(&bytes[..HEADER_BYTES - 8]) {
        let what = "the manifest's header does not match its checksum";
        return Err(Error::corruption(path, 0, what));
    }
    // Only a version whose bytes verify is believed; a flipped bit must not ask for newer code.
    let Needs { version, checksum_kind, incompatible } = needs;
    if version > FORMAT_VERSION
        || version == 0
        || checksum_kind != CHECKSUM_XXH3_64
        || incompatible != 0
    {
        let path = path.display();
        let what = format!(
            "{path} needs newer code: format version {version}, checksum \
             {checksum_kind}, features {incompatible:#x}"
        );
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let FrameSeal { generation, .. } = header.seal;
    if name.is_some_and(|name| generation != name.number || header.epoch != name.epoch) {
        let what = "the manifest is another generation than its name says";
        return Err(Error::corruption(path, 56, what));
    }
    Ok(header)
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} at edit {}", self.name, self.state, self.last_number)
    }
}

impl Manifest {
    /// Publishes the generation `name` with a snapshot of `version` and opens it for edits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the name is taken. After any error the name may exist:
    /// then it is garbage, and its number is used.
    ///
    /// # Durability
    /// Header, snapshot and name are durable once this returns. Nothing names the generation
    /// yet, and it counts once it has an edit. Call [`Manifest::supersede`] on the previous one, if that can
    /// still be written to.
    pub fn create(
        fs: &dyn Fs,
        dir: &Path,
        name: FileName,
        version: &DbVersion,
    ) -> Result<Manifest> {
        assert!(name.kind == FileKind::Manifest, "{name} is no name of a manifest");
        let seal = FrameSeal::new(version.db_id, name.number);
        let mut bytes = Vec::new();
        Header { seal, epoch: name.epoch, writable: true }.put(&mut bytes);
        seal.put_frame(&mut bytes, 0, &snapshot_edit(version))?;
        let path = name.path(dir);
        if !fs.put_if_absent(&path, &bytes)? {
            let what = format!("the name {} is taken", path.display());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        Manifest::open_at(fs, path, name, seal, version.edit_number, Some(bytes.len() as u64))
    }

    /// Opens a recovered generation only for [`Manifest::supersede`]: a new writer never appends
    /// edits to the file of another one.
    pub fn reopen(
        fs: &dyn Fs,
        dir: &Path,
        name: FileName,
        version: &DbVersion,
    ) -> Result<Manifest> {
        let path = name.path(dir);
        let mut front = [0; HEADER_BYTES];
        fs.open_read(&path)?.read_at(0, &mut front)?;
        // Its own version: the appended frame must verify for every reader of the file.
        let seal = read_header(&front, Some(name), &path)?.seal;
        Manifest::open_at(fs, name.path(dir), name, seal, version.edit_number, None)
    }

    /// A recovered generation, to be named and measured and never appended to. Its valid part is `bytes`
    /// long. The file is not opened: after a fork it may be deleted, and is not needed.
    pub fn read_only(dir: &Path, name: FileName, bytes: u64, version: &DbVersion) -> Manifest {
        let path = name.path(dir);
        let seal = FrameSeal::new(version.db_id, name.number);
        let last_number = version.edit_number;
        let state = ManifestState::Never;
        Manifest { file: None, path, name, seal, bytes, last_number, state }
    }

    fn open_at(
        fs: &dyn Fs,
        path: PathBuf,
        name: FileName,
        seal: FrameSeal,
        last_number: u64,
        expected: Option<u64>,
    ) -> Result<Manifest> {
        let file = fs.open_append(&path, AppendMode::Existing)?;
        let bytes = file.len()?;
        if expected.is_some_and(|expected| expected != bytes) {
            return Err(Error::corruption(path, bytes, "a published manifest changed its length"));
        }
        let state = ManifestState::Open;
        Ok(Manifest { file: Some(file), path, name, seal, bytes, last_number, state })
    }

    /// The generation's name.
    pub fn name(&self) -> FileName {
        self.name
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns `true` if an append or a sync failed: only a new generation can take further edits.
    pub fn is_failed(&self) -> bool {
        self.state == ManifestState::Failed
    }

    /// Returns an error if nothing may ever be appended because the database was opened read-only.
    pub fn check_writable(&self) -> Result<()> {
        match self.state {
            ManifestState::Never => Err(Error::read_only()),
            ManifestState::Open | ManifestState::Superseded | ManifestState::Failed => Ok(()),
        }
    }

    /// Appends an edit and syncs it.
    ///
    /// # Errors
    /// Those of the file, and [`ErrorKind::ReadOnly`] ever after. Whether the edit is on disk is
    /// then unknown: its number counts as used and the files that it names must stay until a new
    /// generation has an edit.
    ///
    /// # Durability
    /// The edit is durable once this returns.
    ///
    /// # Cost
    /// One append, one sync.
    ///
    /// # Panics
    /// If the edit's number is not the next one.
    pub fn append(&mut self, edit: &VersionEdit) -> Result<()> {
        assert_eq!(Some(edit.number), self.last_number.checked_add(1), "edits are in order");
        self.write(edit)?;
        self.last_number = edit.number;
        Ok(())
    }

    /// Records durably that the manifest continues in the generation `new`, which must be durable.
    /// No edit can be appended here afterwards.
    ///
    /// # Errors
    /// As [`Manifest::append`]. Whether this one names the new generation is then unknown: the
    /// new one must not be deleted before this one.
    pub fn supersede(&mut self, new: FileName) -> Result<()> {
        assert!(new.number > self.name.number, "{new} is no successor of {}", self.name);
        let change = Change::Superseded { by: new.number, epoch: new.epoch };
        // Under the last number: it changes no state, and the new generation continues with the
        // next one.
        self.write(&VersionEdit { number: self.last_number, changes: vec![change] })?;
        self.state = ManifestState::Superseded;
        Ok(())
    }

    /// The one path that makes an edit durable.
    fn write(&mut self, edit: &VersionEdit) -> Result<()> {
        let Some(file) = &self.file else { return Err(Error::read_only()) };
        assert!(self.state != ManifestState::Superseded, "{} is superseded", self.name);
        if self.state == ManifestState::Failed {
            let what = format!("{} had a failed write", self.path.display());
            return Err(Error::new(ErrorKind::ReadOnly, what));
        }
        let mut frame = Vec::new();
        self.seal.put_frame(&mut frame, self.bytes, edit)?;
        // No second try: after a failed append or sync the content of the disk is unknown.
        let written = file
            .append(&frame)
            .and_then(|()| if edit.is_of_segments() { file.sync_locally() } else { file.sync() });
        if let Err(e) = written {
            self.state = ManifestState::Failed;
            return Err(e);
        }
        // After the sync: the end of the bytes that are known to be durable.
        self.bytes += frame.len() as u64;
        Ok(())
    }
}

/// Appends the frame of an edit to the bytes of the generation `name`.
#[cfg(test)]
pub(super) fn put_frame(bytes: &mut Vec<u8>, name: FileName, edit: &VersionEdit) {
    let header = read_header(bytes, Some(name), Path::new("m")).expect("it is a manifest");
    header.seal.put_frame(bytes, 0, edit).expect("the edit is short");
}
