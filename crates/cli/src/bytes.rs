//! Bytes as text and text as bytes: keys and values in arguments, on the terminal and in JSON.
//!
//! Invariant: a terminal sees no control character and nothing that is not UTF-8, unless `--raw`
//! asks; each key and value in JSON can be read back, byte for byte, and those of `scan` by
//! `load --format jsonl`.

use std::ffi::{OsStr, OsString};

use serde_json::{Map, Value};

use crate::output::Failure;

/// Flags that say in which form keys and values are given and printed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Encoding {
    /// Read and print keys and values in hex
    #[arg(long)]
    hex: bool,
    /// Read and print keys and values in base64
    #[arg(long, conflicts_with = "hex")]
    base64: bool,
}

impl Encoding {
    /// Returns `true` if the form is text.
    pub(crate) fn is_text(self) -> bool {
        !self.hex && !self.base64
    }

    /// The form that the flags ask for.
    pub(crate) fn bytes(self) -> Bytes {
        match (self.hex, self.base64) {
            (true, _) => Bytes::Hex,
            (_, true) => Bytes::Base64,
            _ => Bytes::Text,
        }
    }
}

/// The form of printed bytes and of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// UTF-8 unchanged, other bytes and control characters escaped; arguments are taken unchanged.
    Text,
    /// Two digits a byte, both ways.
    Hex,
    /// Standard base64 with its padding, both ways.
    Base64,
}

impl Bytes {
    /// Returns `bytes` as text for people.
    pub(crate) fn text(self, bytes: &[u8]) -> String {
        match self {
            Bytes::Text => escaped(bytes),
            Bytes::Hex => to_hex(bytes),
            Bytes::Base64 => to_base64(bytes),
        }
    }

    /// Returns the bytes that an argument encodes.
    pub(crate) fn argument(self, text: &OsStr) -> Result<Vec<u8>, Failure> {
        let given = text.as_encoded_bytes();
        match self {
            // Not unescaped: what a shell passes is the key, byte for byte, and may hold
            // backslashes.
            Bytes::Text => Ok(given.to_vec()),
            Bytes::Hex => from_hex(given).ok_or_else(|| {
                Failure::Usage(format!(
                    "\"{}\" is not an even number of hex digits",
                    text.display()
                ))
            }),
            Bytes::Base64 => from_base64(given).ok_or_else(|| {
                Failure::Usage(format!("\"{}\" is not base64 with its padding", text.display()))
            }),
        }
    }

    /// Returns the bytes of an argument that may be missing.
    pub(crate) fn optional(self, text: Option<&OsString>) -> Result<Option<Vec<u8>>, Failure> {
        text.map(|text| self.argument(text)).transpose()
    }

    /// Adds the field `name` to an object. The ending of its name shows its form; text that is not
    /// UTF-8 is given in base64.
    pub(crate) fn field(self, object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
        let (ending, text) = match (self, std::str::from_utf8(bytes)) {
            (Bytes::Text, Ok(text)) => ("", text.to_owned()),
            (Bytes::Hex, _) => ("_hex", to_hex(bytes)),
            (Bytes::Text | Bytes::Base64, _) => ("_base64", to_base64(bytes)),
        };
        object.insert(format!("{name}{ending}"), Value::String(text));
    }

    /// Adds the field `name` to an object as [`Bytes::field`] does; without bytes it is `null`.
    pub(crate) fn with<'a>(
        self,
        mut object: Value,
        name: &str,
        bytes: impl Into<Option<&'a [u8]>>,
    ) -> Value {
        if let Value::Object(fields) = &mut object {
            match bytes.into() {
                Some(bytes) => self.field(fields, name, bytes),
                None => _ = fields.insert(name.to_owned(), Value::Null),
            }
        }
        object
    }

    /// Returns a key, and its value if there is one to print, as an object.
    pub(crate) fn entry(self, key: &[u8], value: Option<&[u8]>) -> Value {
        let mut object = Map::new();
        self.field(&mut object, "key", key);
        if let Some(value) = value {
            self.field(&mut object, "value", value);
        }
        Value::Object(object)
    }
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\\' => text.push_str("\\\\"),
                c if c.is_ascii_control() => text += &format!("\\x{:02x}", c as u32),
                // Marks of direction can make one key look like another.
                c if is_unseen(c) => text.extend(c.escape_unicode()),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text += &format!("\\x{byte:02x}");
        }
    }
    text
}

/// Returns `true` for an invisible character that changes how a terminal shows the ones around it.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Returns the bytes of a row of pairs of hex digits.
pub(crate) fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    for pair in text.chunks(2) {
        let [high, low] = pair else { return None };
        bytes.push(hex_digit(*high)? << 4 | hex_digit(*low)?);
    }
    Some(bytes)
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let mut word = 0u32;
        for at in 0..3 {
            word = word << 8 | u32::from(three.get(at).copied().unwrap_or(0));
        }
        for at in 0..4 {
            let digit = word >> (18 - 6 * at) & 63;
            // Of one byte two digits count, of two bytes three.
            let is_padding = at > three.len();
            text.push(if is_padding { '=' } else { char::from(BASE64[digit as usize]) });
        }
    }
    text
}

fn base64_digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

/// Returns the bytes of standard base64 with its padding, and nothing else in between.
pub(crate) fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text[..text.len() - padding].chunks(4) {
        let mut word = 0u32;
        for byte in four {
            word = word << 6 | u32::from(base64_digit(*byte)?);
        }
        word <<= 6 * (4 - four.len());
        // Bits that belong to no byte must be zeros, so that bytes have one spelling.
        let len = four.len() - 1;
        let rest = word << 8 << (8 * len);
        if len == 0 || rest != 0 {
            return None;
        }
        bytes.extend_from_slice(&word.to_be_bytes()[1..=len]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_and_base64_read_back_and_half_a_byte_is_refused() {
        for len in 0..7 {
            let bytes: Vec<u8> = (0..len).map(|n| 0xfd_u8.wrapping_mul(n)).collect();
            for form in [Bytes::Hex, Bytes::Base64] {
                let text = form.text(&bytes);
                assert_eq!(form.argument(OsStr::new(&text)).ok(), Some(bytes.clone()), "{text}");
            }
        }
        assert_eq!(Bytes::Hex.text(&[0, 0x7f, 0xff, b'a']), "007fff61");
        assert_eq!(Bytes::Base64.text(b"\xff\xfe?"), "//4/");
        assert_eq!(Bytes::Base64.text(b"a"), "YQ==");
        for wrong in ["0", "0g", "+1", "00f"] {
            assert!(matches!(Bytes::Hex.argument(OsStr::new(wrong)), Err(Failure::Usage(_))));
        }
        assert!(matches!(Bytes::Base64.argument(OsStr::new("YQ")), Err(Failure::Usage(_))));
    }

    #[test]
    fn text_is_shown_as_it_is_and_nothing_else_reaches_a_terminal() {
        assert_eq!(
            Bytes::Text.text("na\u{ef}ve 'quote' \u{952e} \u{1f5dd}".as_bytes()),
            "na\u{ef}ve 'quote' \u{952e} \u{1f5dd}"
        );
        assert_eq!(Bytes::Text.text(b"a\t\xff\\\x1b[2J"), "a\\t\\xff\\\\\\x1b[2J");
        assert_eq!(Bytes::Text.text("\u{202e}x\u{85}".as_bytes()), "\\u{202e}x\\u{85}");
    }

    #[test]
    fn an_object_reports_the_form_of_its_bytes() {
        let entry = Bytes::Text.entry("schl\u{fc}ssel".as_bytes(), Some(b"\xff"));
        assert_eq!(entry.to_string(), "{\"key\":\"schl\u{fc}ssel\",\"value_base64\":\"/w==\"}");
        assert_eq!(Bytes::Hex.entry(b"a", None).to_string(), "{\"key_hex\":\"61\"}");
    }

    #[test]
    fn a_field_is_added_in_its_form_or_as_null() {
        let object = serde_json::json!({ "operation": "delete" });
        for (form, bytes, expected) in [
            (Bytes::Text, Some(&b"a"[..]), r#"{"end":"a","operation":"delete"}"#),
            (Bytes::Text, Some(b"\xff"), r#"{"end_base64":"/w==","operation":"delete"}"#),
            (Bytes::Hex, Some(b"a"), r#"{"end_hex":"61","operation":"delete"}"#),
            (Bytes::Base64, Some(b""), r#"{"end_base64":"","operation":"delete"}"#),
            (Bytes::Hex, None, r#"{"end":null,"operation":"delete"}"#),
        ] {
            assert_eq!(form.with(object.clone(), "end", bytes).to_string(), expected);
        }
    }

    #[test]
    fn base64_has_one_spelling() {
        for (text, bytes) in [("", &b""[..]), ("Zg==", b"f"), ("Zm8=", b"fo"), ("Zm9v", b"foo")] {
            assert_eq!(from_base64(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(from_base64(b"+/+/").as_deref(), Some(&[0xfb, 0xff, 0xbf][..]));
        for wrong in ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "====", "Z===", "Zm 9", "Zg==Zg=="] {
            assert_eq!(from_base64(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
