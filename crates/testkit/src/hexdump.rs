//! Bytes with their meaning, for golden tests of file formats.
//!
//! A format's test names each range of the bytes it wrote; a person can compare the result with the
//! table above the encoder:
//!
//! ```text
//! 0000..0004  53 4c 54 31              magic
//! 0004..0006  2a 00                    entry count 42
//! ```
//!
//! Invariant: every byte is printed exactly once. Bytes without a name are printed as `(unnamed)`,
//! so that a field which the table forgot shows in the golden.

use std::fmt::Write;
use std::ops::Range;

const LINE_BYTES: usize = 8;

/// Prints `bytes`, each range in `notes` with its meaning. The ranges may come in any order.
///
/// # Panics
/// If two ranges overlap or one reaches beyond the bytes: the test that wrote them is wrong.
pub fn annotate<M: AsRef<str>>(bytes: &[u8], notes: &[(Range<usize>, M)]) -> String {
    let mut sorted: Vec<(&Range<usize>, &str)> =
        notes.iter().map(|(range, meaning)| (range, meaning.as_ref())).collect();
    sorted.sort_by_key(|(range, _)| (range.start, range.end));

    let mut text = String::new();
    let mut at = 0;
    for (range, meaning) in sorted {
        assert!(
            at <= range.start && range.start <= range.end && range.end <= bytes.len(),
            "{meaning:?} at {range:?} overlaps the range before it or exceeds the bytes"
        );
        field(&mut text, bytes, at..range.start, "(unnamed)");
        field(&mut text, bytes, range.clone(), meaning);
        at = range.end;
    }
    field(&mut text, bytes, at..bytes.len(), "(unnamed)");
    text
}

/// One field: its meaning is on its first line; long fields continue below.
fn field(text: &mut String, bytes: &[u8], range: Range<usize>, meaning: &str) {
    let mut meaning = meaning;
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min(start + LINE_BYTES);
        let hex: Vec<String> = bytes[start..end].iter().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("{start:04x}..{end:04x}  {:<23}  {meaning}", hex.join(" "));
        writeln!(text, "{}", line.trim_end()).expect("a string takes every write");
        meaning = "";
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_printed_once_and_gaps_show() {
        let bytes: Vec<u8> = (0..20).collect();
        let text = annotate(&bytes, &[(6..16, "body"), (0..4, "magic")]);
        let expected = "\
0000..0004  00 01 02 03              magic
0004..0006  04 05                    (unnamed)
0006..000e  06 07 08 09 0a 0b 0c 0d  body
000e..0010  0e 0f
0010..0014  10 11 12 13              (unnamed)
";
        assert_eq!(text, expected);
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn overlapping_ranges_are_refused() {
        annotate(&[0; 8], &[(0..4, "a"), (3..5, "b")]);
    }
}
