//! Versions of a key: a chain from the newest down, with jumps.
//!
//! The layout and the invariants are in `skiplist.rs`.

use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::super::arena::ALIGNMENT;
use crate::memory::prefetch_lines;
use crate::types::{EntryChecksum, Slice, Trailer};

/// Cache lines of a version with a value of about 100 bytes.
const VERSION_LINES: usize = 3;

/// Set in [`Version::len_and_flags`] if the value lies in a buffer of its own.
const IS_PINNED: u32 = 1 << 31;
/// Set in [`Version::len_and_flags`] if the version is not the oldest one.
const HAS_OLDER: u32 = 1 << 30;

#[repr(C)]
pub(super) struct Version {
    trailer: Trailer,
    sum: EntryChecksum,
    /// The length of a value that is not pinned.
    len_and_flags: u32,
    /// Versions below this one if there are any: [`ChainLinks`] follow then. Otherwise a value that is not
    /// pinned begins here, and if it is short, a part of this is never written.
    depth: MaybeUninit<u32>,
}

/// The way down from a version that is not the oldest.
#[repr(C)]
#[derive(Clone, Copy)]
struct ChainLinks {
    older: NonNull<Version>,
    /// Far down, so that any version is found in steps logarithmic in their number: as far as two
    /// jumps of the version below together, if those have one length; otherwise that version
    /// itself.
    jump: NonNull<Version>,
}

/// A value that stayed in its original buffer.
pub(super) struct Pinned {
    buffer: Arc<[u8]>,
    range: Range<usize>,
    /// The next one: all values of a list are linked, for the drop.
    following: Option<NonNull<Pinned>>,
}

const _: () =
    assert!(align_of::<Version>() <= ALIGNMENT && size_of::<Version>().is_multiple_of(ALIGNMENT));
const _: () = assert!(align_of::<ChainLinks>() <= ALIGNMENT && align_of::<Pinned>() <= ALIGNMENT);

/// The way in which a value is stored.
#[derive(Clone)]
pub(in crate::memtable) enum NewValue<'a> {
    /// Copied next to its key.
    Copied(&'a [u8]),
    /// Left where it is.
    Shared(&'a Arc<[u8]>, Range<usize>),
}

/// A version of a key.
#[derive(Clone, Copy)]
pub(in crate::memtable) struct VersionRef<'l> {
    pub(super) version: NonNull<Version>,
    list: PhantomData<&'l ()>,
}

impl<'l> VersionRef<'l> {
    /// # Safety
    /// `version` is of a list that outlives the result.
    pub(super) unsafe fn new(version: NonNull<Version>) -> VersionRef<'l> {
        VersionRef { version, list: PhantomData }
    }

    #[inline(always)]
    fn get(self) -> &'l Version {
        // SAFETY: `new` demands that the version is of a list that outlives 'l, and a version is not written
        // after it is linked (invariant 2).
        unsafe { self.version.as_ref() }
    }

    /// Prefetches the version and a value of about 100 bytes.
    #[inline]
    pub(super) fn prefetch(self) {
        prefetch_lines(self.version.as_ptr().cast(), VERSION_LINES);
    }

    #[inline]
    pub(in crate::memtable) fn trailer(self) -> Trailer {
        self.get().trailer
    }

    pub(in crate::memtable) fn sum(self) -> EntryChecksum {
        self.get().sum
    }

    #[inline]
    fn has_older(self) -> bool {
        self.get().len_and_flags & HAS_OLDER != 0
    }

    /// The number of versions below this one.
    pub(super) fn depth(self) -> u32 {
        // SAFETY: `write_version` stores the number whenever it sets the flag that `has_older` reads.
        if self.has_older() { unsafe { self.get().depth.assume_init() } } else { 0 }
    }

    #[inline]
    fn links(self) -> Option<ChainLinks> {
        // SAFETY: `write_version` puts the links after the version whenever it sets the flag that `has_older`
        // reads.
        self.has_older().then(|| unsafe { *self.version.add(1).cast::<ChainLinks>().as_ptr() })
    }

    /// The address of the value or of its `Pinned`.
    #[inline]
    fn payload(self) -> NonNull<u8> {
        let flags = self.get().len_and_flags;
        let offset = payload_offset(flags & IS_PINNED != 0, flags & HAS_OLDER != 0);
        // SAFETY: the offset is that of the value or of its `Pinned`, which lie in the allocation of the
        // version: `version_bytes` counts them.
        unsafe { self.version.cast::<u8>().add(offset) }
    }

    fn pinned(self) -> Option<&'l Pinned> {
        let is_pinned = self.get().len_and_flags & IS_PINNED != 0;
        // SAFETY: the flag says that a `Pinned` lies there; it never changes while the list lives.
        is_pinned.then(|| unsafe { self.payload().cast::<Pinned>().as_ref() })
    }

    #[inline]
    pub(in crate::memtable) fn value(self) -> &'l [u8] {
        let len = (self.get().len_and_flags & !(IS_PINNED | HAS_OLDER)) as usize;
        match self.pinned() {
            Some(pinned) => &pinned.buffer[pinned.range.clone()],
            // SAFETY: without the flag of a pinned value, `write_version` has copied `len` bytes to this
            // place, and a version is not written after it is linked (invariant 2).
            None => unsafe { std::slice::from_raw_parts(self.payload().as_ptr(), len) },
        }
    }

    /// The form in which the value can be inserted again.
    pub(in crate::memtable) fn new_value(self) -> NewValue<'l> {
        match self.pinned() {
            Some(Pinned { buffer, range, .. }) => NewValue::Shared(buffer, range.clone()),
            None => NewValue::Copied(self.value()),
        }
    }

    /// The value to keep: a copy if it lies in a slab, which will be reused.
    pub(in crate::memtable) fn value_slice(self) -> Slice {
        match self.pinned() {
            Some(Pinned { buffer, range, .. }) => Slice::share(buffer, range.start, range.len()),
            None => Slice::copy_from(self.value()),
        }
    }

    /// The next older version.
    pub(in crate::memtable) fn older(self) -> Option<VersionRef<'l>> {
        // SAFETY: links lead to older versions of the same list, which live as long as this one (invariant
        // 1).
        self.links().map(|links| unsafe { VersionRef::new(links.older) })
    }

    /// A version further down, at least the next older one.
    #[inline]
    pub(super) fn jump(self) -> Option<VersionRef<'l>> {
        // SAFETY: as in `older`.
        self.links().map(|links| unsafe { VersionRef::new(links.jump) })
    }

    /// The newest version from this one down whose trailer is at most `trailer`.
    #[inline]
    pub(in crate::memtable) fn at_most(self, trailer: Trailer) -> Option<VersionRef<'l>> {
        let mut at = self;
        while at.trailer() > trailer {
            let jump = at.jump()?;
            // A jump that would pass the target is not taken, so there is never a step back.
            at = if jump.trailer() > trailer { jump } else { at.older()? };
        }
        Some(at)
    }

    /// The oldest version from this one down whose trailer is above `trailer`.
    pub(in crate::memtable) fn above(self, trailer: Trailer) -> Option<VersionRef<'l>> {
        let mut at = self;
        if at.trailer() <= trailer {
            return None;
        }
        while let (Some(jump), Some(older)) = (at.jump(), at.older()) {
            at = match (jump.trailer() > trailer, older.trailer() > trailer) {
                (true, _) => jump,
                (false, true) => older,
                (false, false) => break,
            };
        }
        Some(at)
    }

    pub(in crate::memtable) fn oldest(self) -> VersionRef<'l> {
        let mut at = self;
        while let Some(jump) = at.jump() {
            at = jump;
        }
        at
    }
}

/// The place of the value or of its `Pinned` in the version.
#[inline(always)]
fn payload_offset(is_pinned: bool, has_older: bool) -> usize {
    match (is_pinned, has_older) {
        (_, true) => size_of::<Version>() + size_of::<ChainLinks>(),
        (true, false) => size_of::<Version>(),
        (false, false) => offset_of!(Version, depth),
    }
}

/// The size of a version in bytes.
pub(super) fn version_bytes(value: &NewValue<'_>, has_older: bool) -> usize {
    let (is_pinned, payload) = match value {
        NewValue::Copied(bytes) => (false, bytes.len()),
        NewValue::Shared(..) => (true, size_of::<Pinned>()),
    };
    // A short value ends within the fixed part.
    size_of::<Version>().max(payload_offset(is_pinned, has_older) + payload)
}

/// Writes a version of `trailer`, `sum` and `value` on top of `older`. A value that is shared goes
/// to the front of `pinned`.
///
/// # Safety
/// `start` begins [`version_bytes`] that nothing else uses, aligned to [`ALIGNMENT`]; `older` is of
/// the list that the memory belongs to.
pub(super) unsafe fn write_version(
    start: NonNull<u8>,
    trailer: Trailer,
    sum: EntryChecksum,
    value: &NewValue<'_>,
    older: Option<VersionRef<'_>>,
    pinned: &mut Option<NonNull<Pinned>>,
) -> NonNull<Version> {
    let version = start.cast::<Version>();
    let len_or_pinned = match value {
        NewValue::Copied(bytes) => {
            let len = u32::try_from(bytes.len()).ok().filter(|len| *len < HAS_OLDER);
            len.expect("types::COPIED_VALUE_BYTES_MAX")
        }
        NewValue::Shared(..) => IS_PINNED,
    };
    let has_older = if older.is_some() { HAS_OLDER } else { 0 };
    let len_and_flags = len_or_pinned | has_older;
    let depth = MaybeUninit::new(older.map_or(0, |older| older.depth() + 1));
    // SAFETY: `start` begins the `version_bytes` of this very trailer and value, which nothing else uses, so
    // each write below is in bounds and aligned.
    unsafe {
        version.write(Version { trailer, sum, len_and_flags, depth });
        if let Some(older) = older {
            let links = ChainLinks { older: older.version, jump: jump_over(older).version };
            version.add(1).cast::<ChainLinks>().write(links);
        }
        let payload = VersionRef::new(version).payload();
        match value {
            NewValue::Copied(bytes) => {
                payload.copy_from_nonoverlapping(NonNull::from(*bytes).cast(), bytes.len());
            }
            NewValue::Shared(buffer, range) => {
                let at = payload.cast::<Pinned>();
                let buffer = Arc::clone(buffer);
                let following = pinned.take();
                at.write(Pinned { buffer, range: range.clone(), following });
                *pinned = Some(at);
            }
        }
    }
    version
}

/// Drops the buffers that a list has pinned.
///
/// # Safety
/// `pinned` was filled by [`write_version`] alone, and no thread reads the list any more.
pub(super) unsafe fn unpin(mut pinned: Option<NonNull<Pinned>>) {
    while let Some(at) = pinned {
        // SAFETY: only `write_version` links values into `pinned`, so a `Pinned` was written there. No thread
        // reads the list any more, so this is the last read.
        pinned = unsafe { at.read() }.following;
    }
}

/// The target of the jump of the version on top of `older`.
fn jump_over(older: VersionRef<'_>) -> VersionRef<'_> {
    let Some(jump) = older.jump() else { return older };
    let Some(second) = jump.jump() else { return older };
    let [here, there, beyond] = [older, jump, second].map(VersionRef::depth);
    // The rule of skew-binary numbers: one jump for each version keeps the way to any version
    // logarithmic, without a second pointer array.
    if here - there == there - beyond { second } else { older }
}
