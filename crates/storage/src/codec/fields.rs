//! [`describe_fields`]: the fields of a header or footer, for people.

use std::ops::Range;

/// Describes each of `fields` (a length in bytes and a name) of a header whose `bytes` begin at
/// offset `at` of a file: its range, then `what: name number`. Numbers are hexadecimal, a magic is
/// text. Fields after the end of `bytes` are left out.
pub fn describe_fields(
    bytes: &[u8],
    at: u64,
    what: &str,
    fields: impl IntoIterator<Item = (usize, &'static str)>,
) -> Vec<(Range<u64>, String)> {
    let mut lines = Vec::new();
    let mut rest = bytes;
    let mut at = at;
    for (size, name) in fields {
        let Some((field, after)) = rest.split_at_checked(size) else { break };
        let value = match name {
            "magic" => format!("\"{}\"", field.escape_ascii()),
            _ => field.iter().rev().map(|byte| format!("{byte:02x}")).collect(),
        };
        let end = at + size as u64;
        lines.push((at..end, format!("{what}: {name} {value}")));
        rest = after;
        at = end;
    }
    lines
}
