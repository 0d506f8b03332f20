//! `export --format resp`: entries as commands of Redis, for `redis-cli --pipe`.
//!
//! ```text
//! *3 \r\n $3 SET   $n key   $n value                   an entry
//! *5 \r\n $3 SET   $n key   $n value   $4 PXAT $n ms   one that expires, in milliseconds since 1970
//! ```
//!
//! Each string has its length before it, so that keys and values hold any bytes. There is nothing but `SET`: whoever
//! sends the commands chooses server, user and database.
//!
//! Invariants:
//! 1. No command is cut off by a refusal: what a server cannot take is found before the command begins.
//! 2. Two entries have two keys in Redis.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use siltstone::clock::{Clock, SystemClock};
use siltstone::large_values::{BlobReader, ReadBlobs};
use siltstone::{Partition, PartitionSnapshot, Readable, RemainingTime};

use crate::bytes::Bytes;
use crate::engine::{self, Existing};
use crate::output::{Failure, Output, note};
use crate::progress;
use crate::streams::create;

/// The default of `proto-max-bulk-len`, the most bytes of a string in Redis.
const VALUE_BYTES_MAX: u64 = 512 << 20;
/// The server keeps notes in this partition: this begin of a key, and the name of a partition whose values begin with
/// the time of their expiry.
const NOTES: &str = "scid";
const EXPIRES: &str = "expires/";
/// Bytes of the time before a value.
const TIME_BYTES: usize = 8;

/// A range of keys.
pub(crate) type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The place of the commands.
struct Target<'a> {
    out: &'a mut dyn Write,
    path: &'a Path,
    /// A part of a value on its way.
    piece: Vec<u8>,
}

impl<'a> Target<'a> {
    fn new(out: &'a mut dyn Write, path: &'a Path) -> Target<'a> {
        Target { out, path, piece: Vec::new() }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(|e| self.failure(e))
    }

    /// Appends a string of a command.
    fn string(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.put(format!("${}\r\n", bytes.len()).as_bytes())?;
        self.put(bytes)?;
        self.put(b"\r\n")
    }

    /// Appends the bytes of `value` from `offset` on.
    fn value(&mut self, value: &BlobReader, mut offset: u64) -> Result<(), Failure> {
        while offset < value.len() {
            let len = (value.len() - offset).min(engine::PIECE_BYTES as u64);
            self.piece.resize(len as usize, 0);
            value.read_exact_at(offset, &mut self.piece)?;
            self.out.write_all(&self.piece).map_err(|e| self.failure(e))?;
            offset += len;
        }
        Ok(())
    }

    fn failure(&self, e: io::Error) -> Failure {
        if engine::is_standard_stream(self.path) {
            return e.into();
        }
        Failure::io("write", self.path, &e)
    }
}

/// The entries that went out.
#[derive(Default)]
struct Counts {
    entries: u64,
    bytes: u64,
    expiring: u64,
}

/// The end of an entry.
enum Expires {
    Never,
    /// Milliseconds since 1970.
    At(u64),
    /// It has expired since the export began.
    Already,
}

/// Writes the partitions as commands to the new file `path`, or to standard output. With `has_names` each key has the
/// name of its partition before it.
pub(crate) fn export(
    existing: &Existing,
    names: &[String],
    has_names: bool,
    range: &Range,
    path: &Path,
    is_json: bool,
) -> Result<(), Failure> {
    if has_names {
        check_names(names)?;
    }
    let bar = progress::counting("exporting");
    if engine::is_standard_stream(path) {
        let mut out =
            BufWriter::with_capacity(engine::PIECE_BYTES, bar.wrap_write(io::stdout().lock()));
        let counts = write(existing, names, has_names, range, &mut Target::new(&mut out, path))?;
        bar.finish_and_clear();
        // To standard error, because standard output has the commands.
        note(text(&counts));
        return Ok(());
    }
    let file = create(path)?;
    let mut out = BufWriter::with_capacity(engine::PIECE_BYTES, bar.wrap_write(&file));
    let counts = write(existing, names, has_names, range, &mut Target::new(&mut out, path))?;
    sync(&file, path)?;
    bar.finish_and_clear();
    let mut out = Output::new(is_json);
    let Counts { entries, bytes, expiring } = counts;
    let json = json!({ "exported": entries, "bytes": bytes, "expiring": expiring });
    out.line(text(&counts), &json)?;
    out.finish()
}

/// The command succeeds only when the file survives a power cut: it may be the backup before a deletion.
fn sync(file: &File, path: &Path) -> Result<(), Failure> {
    file.sync_all().map_err(|e| Failure::io("sync", path, &e))
}

fn text(counts: &Counts) -> String {
    let Counts { entries, bytes, expiring } = counts;
    format!("exported {entries} entries, {bytes} bytes; {expiring} of them expire")
}

/// Refuses names that would give the keys of two partitions one name in Redis: `a` has `b:c`, and `a:b` has `c`.
fn check_names(names: &[String]) -> Result<(), Failure> {
    for short in names {
        let begin = format!("{short}:");
        if let Some(long) = names.iter().find(|long| long.starts_with(&begin)) {
            return Err(Failure::Usage(format!(
                "keys of partitions {short:?} and {long:?} could get the same name in Redis\n  \
                 export the partitions one by one, with --partition"
            )));
        }
    }
    Ok(())
}

fn write(
    existing: &Existing,
    names: &[String],
    has_names: bool,
    range: &Range,
    target: &mut Target<'_>,
) -> Result<Counts, Failure> {
    let partitions: Result<Vec<_>, Failure> =
        names.iter().map(|name| existing.partition(name)).collect();
    let partitions = partitions?;
    // One for all partitions: batches over several of them arrive whole.
    let snapshot = existing.db.snapshot();
    let mut counts = Counts::default();
    for partition in &partitions {
        let name = partition.name();
        let begin = if has_names { format!("{name}:") } else { String::new() };
        let source = Source {
            entries: snapshot.of(partition),
            partition,
            has_times: has_times(existing, name)?,
            begin: begin.into_bytes(),
        };
        for key in source.entries.range(range.clone()).keys() {
            source.entry(&key?, target, &mut counts)?;
        }
    }
    target.out.flush().map_err(|e| target.failure(e))?;
    Ok(counts)
}

/// Returns whether `siltstone serve` has noted that values of the partition begin with the time of their expiry.
fn has_times(existing: &Existing, name: &str) -> Result<bool, Failure> {
    if !existing.db.has_partition(NOTES) {
        return Ok(false);
    }
    Ok(existing.partition(NOTES)?.contains(format!("{EXPIRES}{name}"))?)
}

/// A partition that is exported.
struct Source<'a> {
    entries: PartitionSnapshot,
    partition: &'a Partition,
    /// Values begin with the time of their expiry.
    has_times: bool,
    /// The begin of each key in Redis.
    begin: Vec<u8>,
}

impl Source<'_> {
    /// Writes one entry.
    fn entry(
        &self,
        key: &[u8],
        target: &mut Target<'_>,
        counts: &mut Counts,
    ) -> Result<(), Failure> {
        // As a stream: a value may be larger than memory.
        let Some(value) = self.entries.open_blob(key)? else { return Ok(()) };
        let (skipped, expires) = self.expiry(key, &value)?;
        let len = value.len() - skipped;
        check_length(self.partition.name(), key, len, VALUE_BYTES_MAX)?;
        let time = match expires {
            Expires::Already => return Ok(()),
            Expires::Never => None,
            Expires::At(time) => Some(time.to_string()),
        };
        target.put(if time.is_some() { b"*5\r\n" } else { b"*3\r\n" })?;
        target.string(b"SET")?;
        target.string(&[&self.begin, key].concat())?;
        target.put(format!("${len}\r\n").as_bytes())?;
        target.value(&value, skipped)?;
        target.put(b"\r\n")?;
        if let Some(time) = &time {
            target.string(b"PXAT")?;
            target.string(time.as_bytes())?;
            counts.expiring += 1;
        }
        counts.entries += 1;
        counts.bytes += key.len() as u64 + len;
        Ok(())
    }

    /// The bytes before the value of a client, and the end of the entry.
    fn expiry(&self, key: &[u8], value: &BlobReader) -> Result<(u64, Expires), Failure> {
        if self.has_times {
            // A shorter one was not written by the server, which takes it as it is, too.
            if value.len() < TIME_BYTES as u64 {
                return Ok((0, Expires::Never));
            }
            let mut time = [0; TIME_BYTES];
            value.read_exact_at(0, &mut time)?;
            let time = u64::from_be_bytes(time);
            let expires = if time == 0 { Expires::Never } else { Expires::At(in_redis(time)) };
            return Ok((TIME_BYTES as u64, expires));
        }
        Ok((
            0,
            match self.partition.remaining_time(key)? {
                Some(RemainingTime::Unlimited) => Expires::Never,
                Some(RemainingTime::Limited(time)) => {
                    Expires::At(in_redis(millis(SystemClock::new().unix_time() + time)))
                }
                None => Expires::Already,
            },
        ))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Redis has signed times. The cut ones end in 292 million years.
fn in_redis(time: u64) -> u64 {
    time.min(i64::MAX as u64)
}

/// A server closes the connection at such a value, and nothing that follows would arrive.
fn check_length(partition: &str, key: &[u8], len: u64, most: u64) -> Result<(), Failure> {
    if len <= most {
        return Ok(());
    }
    let key = Bytes::Text.text(key);
    Err(Failure::Usage(format!(
        "the value of key {key} in partition {partition:?} has {len} bytes, and Redis takes at most {most}\n  \
         the entries before it are written; --from goes on after it"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(refused: Result<(), Failure>) -> String {
        match refused {
            Err(Failure::Usage(text)) => text,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_value_that_redis_does_not_take_is_named() {
        assert!(check_length("films", b"a", VALUE_BYTES_MAX, VALUE_BYTES_MAX).is_ok());
        let text = text_of(check_length("films", b"a\n", VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX));
        assert!(text.contains("key a\\n in partition \"films\" has 536870913 bytes"), "{text}");
    }

    #[test]
    fn names_that_could_meet_are_refused() {
        let names = ["a", "ab", "b"].map(str::to_owned);
        assert!(check_names(&names).is_ok());
        let text = text_of(check_names(&["a", "a:b"].map(str::to_owned)));
        assert!(text.starts_with("keys of partitions \"a\" and \"a:b\""), "{text}");
    }

    #[test]
    fn times_are_those_of_redis() {
        assert_eq!(in_redis(7), 7);
        assert_eq!(in_redis(u64::MAX), i64::MAX as u64);
        assert_eq!(millis(Duration::from_micros(7_900)), 7);
    }
}
