//! [`Codec`]: the bytes of values.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// An encoding of values. A table stores its name, and opens with a codec of the same name only.
pub trait Codec: 'static {
    /// The name of the encoding. Another encoding has another name.
    const NAME: &'static str;

    /// Returns the encoding of `value`, or the reason why it has none.
    fn encode<V: Serialize>(value: &V) -> Result<Vec<u8>, String>;

    /// Returns the value whose encoding is `bytes`, or the reason why there is none.
    fn decode<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, String>;
}

/// The default codec: [postcard](https://postcard.jamesmunns.com), whose format is stable since its version 1. It stores
/// neither names nor types of fields, so that a value of another type may decode to nonsense; `docs/typed.md` describes
/// how a type is changed.
#[derive(Clone, Copy, Debug)]
pub enum Postcard {}

impl Codec for Postcard {
    const NAME: &'static str = "postcard";

    fn encode<V: Serialize>(value: &V) -> Result<Vec<u8>, String> {
        postcard::to_stdvec(value).map_err(|error| error.to_string())
    }

    fn decode<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, String> {
        let (value, rest) = postcard::take_from_bytes(bytes).map_err(|error| error.to_string())?;
        // A shorter type than the one that was stored would otherwise decode from the first bytes of it.
        if rest.is_empty() { Ok(value) } else { Err(format!("{} bytes are left over", rest.len())) }
    }
}
