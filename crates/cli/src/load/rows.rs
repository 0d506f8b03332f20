//! Rows of a file as entries: TSV, CSV and JSON lines.
//!
//! TSV has a row a line, TAB between its fields, and no quotes. CSV is RFC 4180: fields in quotes
//! may hold commas, line ends and doubled quotes; rows end with LF or CRLF. JSON lines have one
//! object a line with `key` and `value`; either may come as `..._base64` or `..._hex` instead.
//!
//! Invariants:
//! 1. An invalid row ends the reading with its line number; nothing is guessed.
//! 2. Bytes of TSV and CSV are taken as they are, UTF-8 or not.

use std::io::BufRead;

use serde_json::{Map, Value};

/// A fault, and its line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: u64,
    pub(super) what: String,
}

/// The reason why reading ended early.
#[derive(Debug)]
pub(super) enum Stop<E> {
    /// The file is not what it should be.
    Fault(Fault),
    /// It could not be read.
    Io(std::io::Error),
    /// The sink failed.
    Sink(E),
}

/// Which columns of a table are key and value.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Columns {
    /// TSV and CSV: the first row names the columns
    #[arg(long)]
    header: bool,
    /// TSV and CSV: column of the keys, as a number from 1 or, with --header, as a name
    #[arg(long, value_name = "COLUMN", default_value = "1")]
    key: String,
    /// TSV and CSV: column of the values
    #[arg(long, value_name = "COLUMN", default_value = "2")]
    value: String,
}

impl Columns {
    /// The columns of key and value in a row, from 0.
    fn find(&self, names: Option<&[Vec<u8>]>) -> Result<[usize; 2], String> {
        let find = |column: &String| {
            let named = names.and_then(|names| names.iter().position(|n| n == column.as_bytes()));
            let number = || column.parse::<usize>().ok()?.checked_sub(1);
            named.or_else(number).ok_or_else(|| match names {
                Some(_) => format!("no column {column:?}"),
                None => {
                    format!("column {column:?} is not a positive number; names need --header")
                }
            })
        };
        Ok([find(&self.key)?, find(&self.value)?])
    }
}

/// Reads one row into the fields; `None` at the end of the file.
type ReadRow<'a, R> = dyn FnMut(&mut Lines<R>) -> Result<Option<Vec<Vec<u8>>>, RowFault> + 'a;

/// Passes key and value of each row of a TSV or CSV file to `sink`.
pub(super) fn each_table_row<E>(
    file: impl BufRead,
    is_csv: bool,
    columns: &Columns,
    sink: &mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), E>,
) -> Result<(), Stop<E>> {
    let mut lines = Lines { file, number: 0 };
    let read: &mut ReadRow<'_, _> =
        if is_csv { &mut |lines| csv_row(lines) } else { &mut |lines| tsv_row(lines) };
    let mut places: Option<[usize; 2]> = None;
    loop {
        let line = lines.number + 1;
        let Some(row) = read(&mut lines)? else { return Ok(()) };
        let at = |what: String| Stop::Fault(Fault { line, what });
        let [key, value] = match places {
            Some(places) => places,
            None => {
                let found = columns.find(columns.header.then_some(&row[..])).map_err(at)?;
                places = Some(found);
                if columns.header {
                    continue;
                }
                found
            }
        };
        let (key, value) = take_two(&row, key, value).map_err(at)?;
        sink(key, value).map_err(Stop::Sink)?;
    }
}

fn take_two(row: &[Vec<u8>], key: usize, value: usize) -> Result<(Vec<u8>, Vec<u8>), String> {
    let count = row.len();
    let field = |at: usize| {
        row.get(at).cloned().ok_or_else(|| format!("no column {} in a row of {count}", at + 1))
    };
    Ok((field(key)?, field(value)?))
}

/// The lines of a file, counted.
struct Lines<R> {
    file: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// Appends the next line with its line end; `false` at the end of the file.
    fn read(&mut self, line: &mut Vec<u8>) -> std::io::Result<bool> {
        let got = self.file.read_until(b'\n', line)?;
        self.number += u64::from(got > 0);
        Ok(got > 0)
    }
}

enum RowFault {
    Fault(Fault),
    Io(std::io::Error),
}

impl From<std::io::Error> for RowFault {
    fn from(e: std::io::Error) -> RowFault {
        RowFault::Io(e)
    }
}

impl<E> From<RowFault> for Stop<E> {
    fn from(fault: RowFault) -> Stop<E> {
        match fault {
            RowFault::Fault(fault) => Stop::Fault(fault),
            RowFault::Io(e) => Stop::Io(e),
        }
    }
}

fn trim_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn tsv_row(lines: &mut Lines<impl BufRead>) -> Result<Option<Vec<Vec<u8>>>, RowFault> {
    let mut line = Vec::new();
    if !lines.read(&mut line)? {
        return Ok(None);
    }
    Ok(Some(trim_line_end(&line).split(|byte| *byte == b'\t').map(<[u8]>::to_vec).collect()))
}

fn csv_row(lines: &mut Lines<impl BufRead>) -> Result<Option<Vec<Vec<u8>>>, RowFault> {
    let mut text = Vec::new();
    if !lines.read(&mut text)? {
        return Ok(None);
    }
    let first = lines.number;
    let fault = |line, what: &str| RowFault::Fault(Fault { line, what: what.to_owned() });
    let mut fields = Vec::new();
    let mut at = 0;
    loop {
        let mut field = Vec::new();
        if text.get(at) == Some(&b'"') {
            at += 1;
            loop {
                match text.get(at).copied() {
                    // A line end inside of quotes is part of the field.
                    None if lines.read(&mut text)? => {}
                    None => return Err(fault(first, "a quoted field has no end")),
                    Some(b'"') if text.get(at + 1) == Some(&b'"') => {
                        field.push(b'"');
                        at += 2;
                    }
                    Some(b'"') => break,
                    Some(byte) => {
                        field.push(byte);
                        at += 1;
                    }
                }
            }
            at += 1;
        } else {
            let rest = trim_line_end(&text[at..]);
            let len = rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len());
            if rest[..len].contains(&b'"') {
                return Err(fault(lines.number, "a quote in a field that is not quoted"));
            }
            field.extend_from_slice(&rest[..len]);
            at += len;
        }
        fields.push(field);
        match &text[at..] {
            [b',', ..] => at += 1,
            rest if trim_line_end(rest).is_empty() => return Ok(Some(fields)),
            _ => return Err(fault(lines.number, "text after a quoted field")),
        }
    }
}

/// Passes key and value of each object of a file of JSON lines to `sink`. Empty lines are skipped.
pub(super) fn each_json_line<E>(
    file: impl BufRead,
    sink: &mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), E>,
) -> Result<(), Stop<E>> {
    let mut lines = Lines { file, number: 0 };
    let mut line = Vec::new();
    while lines.read(&mut line).map_err(Stop::Io)? {
        if !trim_line_end(&line).is_empty() {
            let parsed = json_entry(&line);
            let (key, value) =
                parsed.map_err(|what| Stop::Fault(Fault { line: lines.number, what }))?;
            sink(key, value).map_err(Stop::Sink)?;
        }
        line.clear();
    }
    Ok(())
}

fn json_entry(line: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let object: Map<String, Value> = serde_json::from_slice(line).map_err(|e| {
        // It counts the lines of its input, which is always one.
        let what = e.to_string();
        what.split(" at line 1").next().unwrap_or(&what).to_owned() + " in the JSON"
    })?;
    let key = json_field(&object, "key")?;
    let value = json_field(&object, "value")?;
    if object.len() > 2 {
        return Err("more fields than key and value".to_owned());
    }
    Ok((key, value))
}

/// The bytes of a field, plain or encoded as the end of its name says.
fn json_field(object: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let spelled = ["", "_base64", "_hex"].map(|ending| format!("{name}{ending}"));
    let mut present = spelled.iter().filter_map(|name| Some((name, object.get(name)?)));
    let (found, value) = match (present.next(), present.next()) {
        (Some(found), None) => found,
        (None, _) => return Err(format!("no field {name:?}, \"{name}_base64\" or \"{name}_hex\"")),
        _ => return Err(format!("{name:?} in two forms")),
    };
    let Value::String(text) = value else { return Err(format!("{found:?} is no string")) };
    let decoded = match found.strip_prefix(name) {
        Some("_base64") => crate::bytes::from_base64(text.as_bytes()),
        Some("_hex") => crate::bytes::from_hex(text.as_bytes()),
        _ => Some(text.as_bytes().to_vec()),
    };
    decoded.ok_or_else(|| format!("{found:?} does not decode"))
}

#[cfg(test)]
mod tests;
