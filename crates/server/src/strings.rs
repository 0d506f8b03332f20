//! The commands on values: each takes a [`View`] and its arguments, without the name of the command.

use bytes::Bytes;
use siltstone::Slice;

use crate::blob::LONG_BYTES;
use crate::failure::Failure;
use crate::reply::Reply;
use crate::view::View;

type Outcome = Result<Reply, Failure>;

/// Reads an integer as Redis does: no sign `+`, no blanks, no zeros before it.
pub(crate) fn integer(text: &[u8]) -> Result<i64, Failure> {
    let number: Option<i64> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.filter(|it| it.to_string().as_bytes() == text).ok_or(Failure::NOT_AN_INTEGER)
}

pub(crate) fn get(view: &mut View<'_>, arguments: &[Bytes]) -> Outcome {
    if let Some(blob) = view.blob(&arguments[0])? {
        return Ok(Reply::Blob(Box::new(blob)));
    }
    Ok(Reply::value(view.get(&arguments[0])?))
}

pub(crate) fn mget(view: &mut View<'_>, arguments: &[Bytes], bytes_max: usize) -> Outcome {
    let mut values = Vec::with_capacity(arguments.len());
    let mut bytes = 0;
    for key in arguments {
        let value = view.get(key)?;
        bytes += value.as_ref().map_or(0, |value| value.len());
        if bytes > bytes_max {
            return Err(too_large(bytes_max));
        }
        values.push(Reply::value(value));
    }
    Ok(Reply::Array(values))
}

pub(crate) fn too_large(bytes_max: usize) -> Failure {
    let text = format!("LIMIT the reply has more than {bytes_max} bytes");
    Failure::Refused(text.into())
}

/// The keys that a `SET` is for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Condition {
    #[default]
    Always,
    IfAbsent,
    IfPresent,
}

/// The conditions and the time of a `SET`.
#[derive(Default)]
struct SetOptions {
    condition: Condition,
    returns_old: bool,
    keeps_time: bool,
    expires: u64,
}

fn set_options(view: &View<'_>, options: &[Bytes]) -> Result<SetOptions, Failure> {
    let mut set = SetOptions::default();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let name = option.to_ascii_uppercase();
        match &name[..] {
            b"NX" if set.condition != Condition::IfPresent => set.condition = Condition::IfAbsent,
            b"XX" if set.condition != Condition::IfAbsent => set.condition = Condition::IfPresent,
            b"GET" => set.returns_old = true,
            b"KEEPTTL" => set.keeps_time = true,
            b"EX" | b"PX" | b"EXAT" | b"PXAT" => {
                let time = integer(options.next().ok_or(Failure::SYNTAX)?)?;
                if set.expires > 0 {
                    return Err(Failure::SYNTAX);
                }
                set.expires = expiry(view, &name, time)?;
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    if set.keeps_time && set.expires > 0 {
        return Err(Failure::SYNTAX);
    }
    Ok(set)
}

/// The time of expiry in milliseconds.
fn expiry(view: &View<'_>, unit: &[u8], time: i64) -> Result<u64, Failure> {
    // Without expiry the put refuses it, whatever the time is.
    let begin = if unit.ends_with(b"AT") { 0 } else { view.expiry.unwrap_or(0) };
    let factor = if unit.starts_with(b"EX") { 1000 } else { 1 };
    let time = u64::try_from(time).ok().filter(|time| *time > 0);
    let millis = time.and_then(|time| time.checked_mul(factor)?.checked_add(begin));
    millis.ok_or(Failure::fixed("ERR invalid expire time in 'set' command"))
}

pub(crate) fn set(view: &mut View<'_>, arguments: &[Bytes]) -> Outcome {
    let [key, value, options @ ..] = arguments else { return Err(Failure::SYNTAX) };
    let set = set_options(view, options)?;
    let reads = set.returns_old || set.keeps_time;
    let old = if reads { view.entry(key)? } else { None };
    // Whether it exists costs no read of a large value.
    let exists = match set.condition {
        Condition::Always => false,
        _ if reads => old.is_some(),
        _ => view.contains(key)?,
    };
    let refused = if exists { Condition::IfAbsent } else { Condition::IfPresent };
    let is_set = set.condition != refused;
    let kept = old.as_ref().filter(|_| set.keeps_time).map_or(0, |old| old.expires);
    if is_set {
        view.put(key, value, set.expires.max(kept))?;
    }
    match (set.returns_old, is_set) {
        (true, _) => Ok(Reply::value(old.map(|old| old.value))),
        (false, true) => Ok(Reply::OK),
        (false, false) => Ok(Reply::Nil),
    }
}

pub(crate) fn mset(view: &mut View<'_>, arguments: &[Bytes]) -> Outcome {
    if !arguments.len().is_multiple_of(2) {
        return Err(Failure::fixed("ERR wrong number of arguments for 'mset' command"));
    }
    for pair in arguments.chunks(2) {
        view.put(&pair[0], &pair[1], 0)?;
    }
    Ok(Reply::OK)
}

pub(crate) fn del(view: &mut View<'_>, arguments: &[Bytes]) -> Outcome {
    let mut count = 0;
    for key in arguments {
        if view.contains(key)? {
            view.delete(key)?;
            count += 1;
        }
    }
    Ok(Reply::Integer(count))
}

pub(crate) fn exists(view: &mut View<'_>, arguments: &[Bytes]) -> Outcome {
    let mut count = 0;
    for key in arguments {
        count += i64::from(view.contains(key)?);
    }
    Ok(Reply::Integer(count))
}

pub(crate) fn append(view: &mut View<'_>, arguments: &[Bytes]) -> Outcome {
    let old = view.entry(&arguments[0])?;
    let mut value = old.as_ref().map_or_else(Vec::new, |old| old.value.to_vec());
    value.extend_from_slice(&arguments[1]);
    view.put(&arguments[0], &value, old.map_or(0, |old| old.expires))?;
    Ok(Reply::count(value.len()))
}

pub(crate) fn strlen(view: &mut View<'_>, arguments: &[Bytes]) -> Outcome {
    if let Some(blob) = view.blob(&arguments[0])? {
        return Ok(Reply::count(blob.len()));
    }
    let value = view.get(&arguments[0])?;
    Ok(Reply::count(value.map_or(0, |value| value.len())))
}

pub(crate) fn getrange(view: &mut View<'_>, arguments: &[Bytes]) -> Outcome {
    let start = integer(&arguments[1])?;
    let end = integer(&arguments[2])?;
    if let Some(blob) = view.blob(&arguments[0])? {
        let range = part(blob.len(), start, end);
        let blob = blob.part(range);
        return Ok(match blob.len() < LONG_BYTES {
            true => Reply::Value(blob.whole()?),
            false => Reply::Blob(Box::new(blob)),
        });
    }
    let value = view.get(&arguments[0])?.unwrap_or_default();
    let range = part(value.len() as u64, start, end);
    Ok(Reply::Value(Slice::from(&value[range.start as usize..range.end as usize])))
}

/// The part from `start` to `end`, which is in it. Negative numbers count from the end.
fn part(len: u64, start: i64, end: i64) -> std::ops::Range<u64> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let is_empty = start < 0 && end < 0 && start > end;
    let start = from_begin(start, len);
    let end = from_begin(end, len).min(len - 1);
    if is_empty || start > end || len == 0 {
        return 0..0;
    }
    start as u64..end as u64 + 1
}

fn from_begin(at: i64, len: i64) -> i64 {
    if at < 0 { at.saturating_add(len).max(0) } else { at }
}

/// Adds `amount`, with the sign of `sign`, to the number at a key.
pub(crate) fn add(view: &mut View<'_>, key: &Bytes, amount: i64, sign: i64) -> Outcome {
    let old = view.entry(key)?;
    let number = old.as_ref().map_or(Ok(0), |old| integer(&old.value))?;
    let sum = amount.checked_mul(sign).and_then(|amount| number.checked_add(amount));
    let sum = sum.ok_or(Failure::fixed("ERR increment or decrement would overflow"))?;
    view.put(key, sum.to_string().as_bytes(), old.map_or(0, |old| old.expires))?;
    Ok(Reply::Integer(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_redis() {
        for (text, expected) in
            [("0", Some(0)), ("-9", Some(-9)), ("9223372036854775807", Some(i64::MAX))]
        {
            assert_eq!(integer(text.as_bytes()).ok(), expected);
        }
        for wrong in ["", " 1", "+1", "01", "-0", "1.0", "9223372036854775808", "a"] {
            assert!(integer(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_count_from_both_ends() {
        let text = b"This is a string";
        for (start, end, expected) in [
            (0, 3, "This"),
            (-3, -1, "ing"),
            (0, -1, "This is a string"),
            (10, 100, "string"),
            (5, 3, ""),
            (-1, -3, ""),
            (-100, 1, "Th"),
            (i64::MIN, i64::MIN, "T"),
            (i64::MAX, i64::MAX, ""),
        ] {
            let range = part(text.len() as u64, start, end);
            let found = &text[range.start as usize..range.end as usize];
            assert_eq!(found, expected.as_bytes(), "{start} {end}");
        }
        assert_eq!(part(0, 0, -1), 0..0);
    }
}
