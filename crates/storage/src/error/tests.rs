//! Errors: their kinds, texts and causes.

use super::*;

/// The text of an error and of its causes, as `anyhow` prints it for `{:#}`.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text += &format!(": {next}");
        cause = next.source();
    }
    text
}

#[test]
fn an_error_of_a_missing_file_stays_one_under_another_message() {
    let missing = Error::io("open", Path::new("x"), io::ErrorKind::NotFound.into());
    assert!(missing.is_missing());
    assert!(Error::because(ErrorKind::FileGone, "gone", missing).is_missing());
    let denied = Error::io("open", Path::new("x"), io::ErrorKind::PermissionDenied.into());
    assert!(!denied.is_missing());
    assert!(!Error::new(ErrorKind::PartitionNotFound, "no partition").is_missing());
}

#[test]
fn a_chain_of_causes_names_each_cause_once() {
    let io = Error::io("sync", Path::new("x"), io::Error::other("the device is gone"));
    assert_eq!(chain(&io), "cannot sync x: the device is gone");
    let error = Error::because(ErrorKind::ReadOnly, "no writes", io);
    assert_eq!(chain(&error), "no writes: cannot sync x: the device is gone");
    let damage = Error::corruption("a.sst", 17, "bad checksum");
    let error = Error::because(ErrorKind::Corruption, "compaction failed", damage);
    let error = error.in_partition("p");
    let text = "compaction failed: corruption: bad checksum in a.sst at offset 17, \
                partition \"p\"";
    assert_eq!(chain(&error), text);
    assert_eq!(error.damage().and_then(|damage| damage.partition.as_deref()), Some("p"));
}

#[test]
fn errors_go_to_io_errors_and_back() {
    let full = io::Error::from(io::ErrorKind::StorageFull);
    let error = Error::io("append to", Path::new("x"), full);
    let io = io::Error::from(error.clone());
    assert_eq!(io.kind(), io::ErrorKind::StorageFull);
    assert_eq!(io.to_string(), error.to_string());
    assert_eq!(Error::from(io), error);
    let rotten = io::Error::from(Error::corruption("a.sst", 17, "bad checksum"));
    assert_eq!(rotten.kind(), io::ErrorKind::InvalidData);
    let foreign = Error::from(io::Error::from(io::ErrorKind::PermissionDenied));
    assert_eq!((foreign.kind(), foreign.path()), (ErrorKind::Io, None));
    let source = foreign.io_source().map(io::Error::kind);
    assert_eq!(source, Some(io::ErrorKind::PermissionDenied));
}

#[test]
fn errors_are_equal_if_they_say_the_same() {
    let one = Error::limit("key length", 7, 6);
    assert_eq!(one, Error::limit("key length", 7, 6));
    assert_ne!(one, Error::limit("key length", 8, 6));
    assert_ne!(one, Error::new(ErrorKind::InvalidArgument, one.to_string()));
}

#[test]
fn corruption_names_file_offset_partition_and_key() {
    let e = Error::corruption("a.sst", 17, "bad checksum").in_partition("users").at_key(b"k\0");
    assert_eq!(
        e.to_string(),
        "corruption: bad checksum in a.sst at offset 17, partition \"users\", key \"k\\x00\""
    );
    assert!(e.is_corruption() && !e.is_retryable());
    let error = Error::because(ErrorKind::Corruption, "compaction failed", e);
    assert_eq!(error.damage().map(|d| d.offset), Some(Some(17)));
}

#[test]
fn a_full_disk_has_its_own_kind() {
    let e = Error::io("sync", Path::new("x"), io::Error::from(io::ErrorKind::StorageFull));
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    assert!(e.is_retryable() && e.io_source().is_some());
    let quota = io::Error::from(io::ErrorKind::QuotaExceeded);
    assert_eq!(Error::io("append to", Path::new("x"), quota).kind(), ErrorKind::NoSpace);
    let too_large = io::Error::from(io::ErrorKind::FileTooLarge);
    assert_eq!(Error::io("append to", Path::new("x"), too_large).kind(), ErrorKind::Io);
    let error = Error::because(ErrorKind::ReadOnly, "refused", e);
    assert!(error.is_failed_sync() && error.path() == Some(Path::new("x")));
    assert!(error.is_retryable() && !Error::read_only().is_retryable());
    // It could not be opened.
    let error = Error::io("sync the folder", Path::new("x"), machine::out_of_handles());
    assert!(!error.is_failed_sync());
}
