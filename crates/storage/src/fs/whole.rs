//! [`write_all`], [`write_all_pieces`] and [`read_full`]: reads and writes of a whole range, although
//! the system may transfer a part of it at a time.
//!
//! Called by `fs/os.rs` and `fs/map.rs`, with the call of the system. An interrupted call is repeated, a
//! short one is continued; any other error is passed on.

use std::io;

/// POSIX lets a system refuse more pieces in one call than this; Linux and macOS take 1024.
const PIECES_MAX: usize = 16;

/// Calls `write(part, offset)` until all of `bytes` is written.
pub(super) fn write_all(
    mut bytes: &[u8],
    mut offset: u64,
    mut write: impl FnMut(&[u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(bytes, offset) {
            // Without progress and without an error the loop would never end.
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// As [`write_all`], for pieces that lie one after the other in the file.
pub(super) fn write_all_pieces(
    mut pieces: &mut [io::IoSlice<'_>],
    mut offset: u64,
    mut write: impl FnMut(&[io::IoSlice<'_>], u64) -> io::Result<usize>,
) -> io::Result<()> {
    // Removes empty pieces at the front: a write of none would return 0.
    io::IoSlice::advance_slices(&mut pieces, 0);
    while !pieces.is_empty() {
        let part = &pieces[..pieces.len().min(PIECES_MAX)];
        match write(part, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                io::IoSlice::advance_slices(&mut pieces, n);
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Calls `read(part, offset)` until `buf` is full or the file ends.
pub(super) fn read_full(
    buf: &mut [u8],
    offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        // The kernel refuses offsets beyond i64 with EINVAL: past any end, there is nothing.
        let Some(at) = offset.checked_add(filled as u64).filter(|at| i64::try_from(*at).is_ok())
        else {
            break;
        };
        match read(&mut buf[filled..], at) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}
