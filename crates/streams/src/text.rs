//! The text that `db_dump` of Berkeley DB writes and `db_load` reads; LMDB's tools share it.
//!
//! ```text
//! VERSION=3
//! format=bytevalue      two hex digits a byte; `print`: printable ASCII as it is, `\\` for a
//!                       backslash, a backslash and two hex digits for any other byte
//! database=NAME         only if there are several databases
//! type=btree
//! HEADER=END
//!  6b6579               a space and the key
//!  76616c7565           a space and the value
//! DATA=END
//! ```
//!
//! Several databases follow each other, each with its header. A database is a partition here. The
//! export writes `bytevalue`. The import reads both formats and ignores further lines of a header,
//! for example `db_pagesize` and `mapsize`, which belong to the engine that wrote them.
//!
//! Invariant: no line is held in memory, except the key and lines of headers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::limits::USER_KEY_BYTES_MAX;

use crate::arriving::{Arriving, Importer};
use crate::export::Exported;
use crate::format::PIECE_BYTES;
use crate::options::{StreamImport, StreamSummary};
use lsm_core::Partition;

/// The first bytes of a text.
pub(crate) const MAGIC: [u8; 8] = *b"VERSION=";
/// The only version that tools of the last twenty years write.
const VERSION: &str = "3";
/// Most bytes of a line of a header.
const HEADER_LINE_BYTES_MAX: usize = 4096;
/// Name of the partition for a text that names no database.
const UNNAMED: &str = "default";
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Writes the partitions as text.
///
/// # Errors
/// A name that the text cannot express; those of the reads and of `out`.
pub(crate) fn export(exported: &Exported, out: &mut dyn Write) -> Result<StreamSummary> {
    let mut summary = StreamSummary::default();
    let names: Vec<&str> = exported.partitions.iter().map(Partition::name).collect();
    check_names(&names)?;
    for partition in &exported.partitions {
        write_header(exported, partition.name(), out)?;
        let mut line = Vec::new();
        exported.each_entry(partition, |key, value| {
            // Gathered with the first piece of the value, which saves a call of `out` for each
            // entry.
            line.push(b' ');
            put_hex(&mut line, key);
            line.extend_from_slice(b"\n ");
            value.pieces(|piece| {
                put_hex(&mut line, piece);
                out.write_all(&line)?;
                line.clear();
                Ok(())
            })?;
            line.push(b'\n');
            out.write_all(&line)?;
            line.clear();
            summary.count(key, value.len());
            Ok(())
        })?;
        out.write_all(b"DATA=END\n")?;
    }
    out.flush()?;
    Ok(summary)
}

/// Refuses names that a header cannot express. Before anything is written: text that ends between two
/// databases is whole.
fn check_names(names: &[&str]) -> Result<()> {
    // A single partition needs no name in the text, so that any name passes.
    let unfit = names.iter().find(|name| names.len() > 1 && name.contains(['\n', '\r']));
    let Some(name) = unfit else { return Ok(()) };
    let message = format!("the name of partition {name:?} does not fit into a line");
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

fn write_header(exported: &Exported, name: &str, out: &mut dyn Write) -> Result<()> {
    out.write_all(b"VERSION=3\nformat=bytevalue\n")?;
    if exported.partitions.len() > 1 {
        writeln!(out, "database={name}")?;
    }
    Ok(out.write_all(b"type=btree\nHEADER=END\n")?)
}

fn put_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Reads a text and puts its entries.
///
/// # Errors
/// Text that is not understood, with its offset and line; those of the puts.
pub(crate) fn import(
    importer: &mut Importer<'_>,
    from: &mut dyn Read,
    options: &StreamImport,
) -> Result<()> {
    // Lines may have any length. The buffer bounds the piece of one that is in memory.
    let mut from = BufReader::with_capacity(PIECE_BYTES as usize, from);
    let mut text = Text { from: &mut from, source: &options.source, offset: 0, line: 1 };
    let mut sections = 0;
    while !text.is_at_end()? {
        sections += 1;
        let header = text.header()?;
        // Into one partition, the entries of the second would replace those of the first.
        if sections > 1 && options.partition.is_some() {
            let message = "one partition was named, and the text has several databases";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let name = options.partition.as_ref().or(header.database.as_ref());
        let partition = importer.partition(name.map_or(UNNAMED, |name| name), false)?;
        import_section(importer, &mut text, &partition, header.form)?;
    }
    Ok(())
}

fn import_section(
    importer: &mut Importer<'_>,
    text: &mut Text<'_>,
    partition: &Partition,
    form: TextForm,
) -> Result<()> {
    // One key is enough to find a second value of it: the tools write the values of a key one after
    // the other.
    let mut previous = None;
    while text.begins_entry()? {
        let mut key = Vec::new();
        let key_line = text.line;
        text.each_piece(form, |piece| {
            key.extend_from_slice(piece);
            let is_key = key.len() <= USER_KEY_BYTES_MAX;
            if is_key { Ok(()) } else { Err(Malformed("a key that is longer than any key may be")) }
        })?;
        // Berkeley DB can hold several values of a key. Keeping only the last would silently lose
        // the others.
        if previous.as_ref() == Some(&key) {
            return Err(text.damage_at(key_line, "a key with several values"));
        }
        if !text.begins_entry()? {
            return Err(text.damage("a key without a value"));
        }
        let mut entry: Arriving<'_> = importer.begin(partition, &key, None)?;
        text.each_piece(form, |piece| entry.push(piece).map_err(Stop::from))?;
        importer.end(entry)?;
        previous = Some(key);
    }
    Ok(())
}

/// The form of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextForm {
    Hex,
    Print,
}

struct TextHeader {
    form: TextForm,
    database: Option<String>,
}

/// The reason why a piece is not accepted.
enum Stop {
    Malformed(&'static str),
    Failed(Error),
}

use Stop::Malformed;

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// A text that is being read.
struct Text<'s> {
    from: &'s mut dyn BufRead,
    source: &'s Path,
    /// Offset in bytes.
    offset: u64,
    /// Number of the line, from 1.
    line: u64,
}

impl Text<'_> {
    fn damage(&self, what: &str) -> Error {
        self.damage_at(self.line, what)
    }

    fn damage_at(&self, line: u64, what: &str) -> Error {
        Error::corruption(self.source, self.offset, format!("{what}, on line {line}"))
    }

    /// Returns the bytes that are buffered; none at the end.
    fn buffered(&mut self) -> Result<&[u8]> {
        loop {
            match self.from.fill_buf() {
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("read", self.source, e)),
            }
        }
        // The same bytes again: the loop cannot return what it borrows.
        self.from.fill_buf().map_err(|e| Error::io("read", self.source, e))
    }

    fn is_at_end(&mut self) -> Result<bool> {
        Ok(self.buffered()?.is_empty())
    }

    fn consume(&mut self, len: usize) {
        self.from.consume(len);
        self.offset += len as u64;
    }

    /// Passes the rest of the line to `each` in pieces, and reads past the end of the line.
    fn rest_of_line(&mut self, mut each: impl FnMut(&[u8]) -> Result<(), Stop>) -> Result<()> {
        loop {
            let buffered = self.buffered()?;
            let end = buffered.iter().position(|byte| *byte == b'\n');
            let len = end.unwrap_or(buffered.len());
            if end.is_none() && len == 0 {
                return Err(self.damage("the text ends before its end"));
            }
            match each(&buffered[..len]) {
                Ok(()) => {}
                Err(Malformed(what)) => return Err(self.damage(what)),
                Err(Stop::Failed(error)) => return Err(error),
            }
            self.consume(len + usize::from(end.is_some()));
            if end.is_some() {
                self.line += 1;
                return Ok(());
            }
        }
    }

    /// Reads a line of a header, or the end of the data.
    fn short_line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        self.rest_of_line(|piece| {
            line.extend_from_slice(piece);
            let is_short = line.len() <= HEADER_LINE_BYTES_MAX;
            if is_short { Ok(()) } else { Err(Malformed("a long line in a header")) }
        })?;
        let line = String::from_utf8(line);
        line.map_err(|_| self.damage_at(self.line - 1, "a header that is not UTF-8"))
    }

    fn header(&mut self) -> Result<TextHeader> {
        let mut header = TextHeader { form: TextForm::Hex, database: None };
        let mut is_first = true;
        loop {
            let at = self.line;
            let line = self.short_line()?;
            let Some((name, value)) = line.split_once('=') else {
                return Err(self.damage_at(at, "a line of a header without `=`"));
            };
            if is_first != (name == "VERSION") {
                return Err(self.damage_at(at, "a header that does not begin with its version"));
            }
            is_first = false;
            match (name, value) {
                ("HEADER", "END") => return Ok(header),
                ("VERSION", VERSION) => {}
                ("format", "bytevalue") => header.form = TextForm::Hex,
                ("format", "print") => header.form = TextForm::Print,
                // Other types number their records, and have no keys.
                ("type", "btree" | "hash") => {}
                ("database", name) => header.database = Some(name.to_owned()),
                ("VERSION" | "format" | "type" | "HEADER", _) => {
                    // Escaped: the message may be printed on a terminal, which the text must not control.
                    let line = line.escape_debug();
                    let message = format!("{line} in the header of a text, on line {at}");
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                // Values without keys: of a queue or a list of numbered records.
                ("keys", "0") => {
                    let message = format!("a database without keys, on line {at}");
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                _ => {}
            }
        }
    }

    /// Returns whether a line with a key or a value follows, and reads past its space; otherwise
    /// reads past the end of the data.
    fn begins_entry(&mut self) -> Result<bool> {
        if self.buffered()?.first() == Some(&b' ') {
            self.consume(1);
            return Ok(true);
        }
        let at = self.line;
        match self.short_line()?.as_str() {
            "DATA=END" => Ok(false),
            _ => Err(self.damage_at(at, "neither an entry nor the end of the data")),
        }
    }

    /// Passes the bytes of a key or a value to `each`, in pieces.
    fn each_piece(
        &mut self,
        form: TextForm,
        mut each: impl FnMut(&[u8]) -> Result<(), Stop>,
    ) -> Result<()> {
        let mut decoder = TextDecoder { form, open: Open::Nothing };
        let mut bytes = Vec::new();
        self.rest_of_line(|text| {
            bytes.clear();
            text.iter().try_for_each(|byte| decoder.take(*byte, &mut bytes))?;
            each(&bytes)
        })?;
        match decoder.open {
            Open::Nothing => Ok(()),
            _ => Err(self.damage_at(self.line - 1, "a line that ends inside of a byte")),
        }
    }
}

/// The characters of a byte that were read so far.
#[derive(Clone, Copy, Debug)]
enum Open {
    Nothing,
    Backslash,
    Digit(u8),
}

struct TextDecoder {
    form: TextForm,
    open: Open,
}

impl TextDecoder {
    fn take(&mut self, character: u8, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.open = match (self.open, self.form) {
            (Open::Nothing, TextForm::Print) if character == b'\\' => Open::Backslash,
            (Open::Nothing, TextForm::Print) => {
                out.push(character);
                Open::Nothing
            }
            // Two of them are one backslash. Anything else after one is the first digit of a byte.
            (Open::Backslash, _) if character == b'\\' => {
                out.push(character);
                Open::Nothing
            }
            (Open::Nothing | Open::Backslash, _) => Open::Digit(digit(character)?),
            (Open::Digit(high), _) => {
                out.push(high << 4 | digit(character)?);
                Open::Nothing
            }
        };
        Ok(())
    }
}

fn digit(character: u8) -> Result<u8, Stop> {
    let digit = char::from(character).to_digit(16).map(|digit| digit as u8);
    digit.ok_or(Malformed("a character that is no hex digit"))
}
