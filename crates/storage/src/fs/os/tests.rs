//! Calls that are interrupted or do less than requested, and the files of the machine.

use super::*;
use crate::fs::names::TEMPORARY_SUFFIX;
use crate::fs::sys::NEXT_TEMPORARY;

/// A device that takes at most 3 bytes a call and is interrupted before every one.
fn stubborn() -> impl FnMut(usize) -> io::Result<usize> {
    let mut calls = 0;
    move |len| {
        calls += 1;
        if calls % 2 == 1 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(len.min(3)) }
    }
}

#[test]
fn interrupted_and_short_writes_are_continued() {
    let mut device = stubborn();
    let mut out = vec![0; 14];
    write_all(b"0123456789", 4, |part, at| {
        let n = device(part.len())?;
        let at = usize::try_from(at).unwrap();
        out[at..at + n].copy_from_slice(&part[..n]);
        Ok(n)
    })
    .unwrap();
    assert_eq!(out, b"\0\0\0\x000123456789");
}

#[test]
fn pieces_are_written_one_after_the_other_whatever_a_call_takes() {
    for len_max in 1..20 {
        let pieces: [&[u8]; 5] = [b"", b"012", b"", b"3456789", b"ab"];
        let mut slices = pieces.map(io::IoSlice::new);
        let mut device = stubborn();
        let mut out = Vec::new();
        write_all_pieces(&mut slices, 4, |part, at| {
            assert_eq!(at, 4 + out.len() as u64);
            let bytes: Vec<u8> = part.iter().flat_map(|piece| piece.to_vec()).collect();
            let n = device(len_max)?.min(bytes.len());
            out.extend_from_slice(&bytes[..n]);
            Ok(n)
        })
        .unwrap();
        assert_eq!(out, b"0123456789ab");
    }
    let nothing = write_all_pieces(&mut [io::IoSlice::new(b"")], 0, |_, _| panic!("a call"));
    nothing.unwrap();
    let stuck = write_all_pieces(&mut [io::IoSlice::new(b"x")], 0, |_, _| Ok(0));
    assert_eq!(stuck.unwrap_err().kind(), io::ErrorKind::WriteZero);
}

#[test]
fn more_pieces_than_a_call_takes_reach_a_file_of_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let file = OsFs.open_append(&dir.path().join("a"), AppendMode::IfAbsent).unwrap();
    let pieces: Vec<Vec<u8>> = (0..100_u8).map(|n| vec![n; usize::from(n)]).collect();
    let borrowed: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    file.append(b"front").unwrap();
    file.append_pieces(&borrowed).unwrap();
    file.begin_sync();
    file.append(b"end").unwrap();
    file.begin_next_sync().unwrap();
    file.sync().unwrap();
    let expected = [b"front".as_slice(), &pieces.concat(), b"end"].concat();
    let mut read = vec![0; expected.len() + 1];
    assert_eq!(file.read_at(0, &mut read).unwrap(), expected.len());
    assert_eq!(read[..expected.len()], expected);
}

#[test]
fn interrupted_and_short_reads_are_continued_to_the_end_of_the_file() {
    let mut device = stubborn();
    let text = b"0123456789";
    let mut buf = [b'.'; 9];
    let n = read_full(&mut buf, 3, |part, at| {
        let rest = &text[usize::try_from(at).unwrap()..];
        let n = device(part.len().min(rest.len()))?;
        part[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    });
    assert_eq!((n.unwrap(), &buf), (7, b"3456789.."));
}

#[test]
fn a_device_that_takes_nothing_is_an_error_and_an_error_stops() {
    let e = write_all(b"x", 0, |_, _| Ok(0)).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::WriteZero);
    let mut calls = 0;
    let e = write_all(b"x", 0, |_, _| {
        calls += 1;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert_eq!((e.unwrap_err().kind(), calls), (io::ErrorKind::StorageFull, 1));
}

#[test]
fn publishing_leaves_no_temporary_and_steps_over_files_of_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let next = NEXT_TEMPORARY.load(Ordering::Relaxed);
    for n in next..next + 50 {
        let orphan = format!("m.{}-{n}{TEMPORARY_SUFFIX}", std::process::id());
        fs::write(dir.path().join(orphan), "half").unwrap();
    }
    assert!(OsFs.put_if_absent(&path, b"whole").unwrap());
    assert!(!OsFs.put_if_absent(&path, b"other").unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"whole");
    assert_eq!(OsFs.list(dir.path(), "").unwrap().len(), 51);
}

#[test]
fn an_append_during_another_one_goes_after_it() {
    let position = AtomicU64::new(10);
    let mut places = Vec::new();
    append(&position, b"123", |part, at| {
        places.push(at);
        append(&position, b"45", |part, at| {
            places.push(at);
            Ok(part.len())
        })?;
        Ok(part.len())
    })
    .unwrap();
    assert_eq!((places, position.into_inner()), (vec![10, 13], 15));
}

#[test]
fn uncached_reads_agree_at_every_alignment() {
    let dir = tempfile::tempdir().unwrap();
    let file = OsFs.open_append(&dir.path().join("a"), AppendMode::IfAbsent).unwrap();
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    file.append(&bytes).unwrap();
    file.sync().unwrap();
    for (offset, len) in [(0, 0), (0, 1), (4095, 2), (65_535, 4097), (99_999, 10), (100_001, 3)] {
        let mut buf = vec![0; len];
        let n = file.read_at_uncached(offset as u64, &mut buf).unwrap();
        let expected = bytes.get(offset..).unwrap_or_default();
        let expected = &expected[..len.min(expected.len())];
        assert_eq!(&buf[..n], expected, "{offset} {len}");
    }
    assert_eq!(file.read_at_uncached(u64::MAX, &mut [0; 4]).unwrap(), 0);
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn a_file_is_published_by_a_rename_where_there_are_no_links() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second, name] = ["first", "second", "name"].map(|name| dir.path().join(name));
    for path in [&first, &second] {
        OsFs.put_if_absent(path, path.as_os_str().as_encoded_bytes()).unwrap();
    }
    At::whole(&first).rename_new(&At::whole(&name)).unwrap();
    assert!(!At::whole(&first).exists());
    // A name that is taken does not change, as with a link.
    let taken = At::whole(&second).rename_new(&At::whole(&name)).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    let mut buf = vec![0; 4096];
    let read = OsFs.open_read(&name).unwrap().read_at(0, &mut buf).unwrap();
    assert_eq!(&buf[..read], first.as_os_str().as_encoded_bytes());
    assert!(At::whole(&second).exists());
}
