//! The text of a [`TtlRule`], as the command takes and prints it.
//!
//! ```text
//! PLACE[:OFFSET][,OPTION]...
//!
//! PLACE      value, value-end, key or key-end; OFFSET bytes from its start or end, without it 0
//! u32        the number has 4 bytes, and not 8
//! le         it is little-endian
//! s ms us ns its unit; without one, seconds
//! after:N    it is the time of creation; entries expire N units later
//! stays:N    an expired entry stays in a table for at most N units; without it, one day
//! seen       reads see expired entries until they are removed
//! ```

use std::fmt;
use std::str::FromStr;

use super::ttl_rule::{
    FROM_END, IN_VALUE, LITTLE_ENDIAN, SEEN_BY_READS, STAYS_FOR, TimeUnit, TimeWidth, TtlRule,
};
use crate::error::{Error, ErrorKind, Result};

impl fmt::Display for TtlRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.has(IN_VALUE) { "value" } else { "key" })?;
        f.write_str(if self.has(FROM_END) { "-end" } else { "" })?;
        write!(f, ":{}", self.offset)?;
        if self.width == TimeWidth::U32 {
            f.write_str(",u32")?;
        }
        if self.has(LITTLE_ENDIAN) {
            f.write_str(",le")?;
        }
        match self.unit {
            TimeUnit::Seconds => {}
            TimeUnit::Millis => f.write_str(",ms")?,
            TimeUnit::Micros => f.write_str(",us")?,
            TimeUnit::Nanos => f.write_str(",ns")?,
        }
        if let Some(time) = self.time_to_live {
            write!(f, ",after:{}", self.unit.whole(time))?;
        }
        if self.unit.whole(self.stays_for) != self.unit.whole(STAYS_FOR) {
            write!(f, ",stays:{}", self.unit.whole(self.stays_for))?;
        }
        f.write_str(if self.has(SEEN_BY_READS) { ",seen" } else { "" })
    }
}

/// The rule of a text such as `value:0,ms`, as [`Display`](fmt::Display) prints it.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] names the part that is wrong.
impl FromStr for TtlRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<TtlRule> {
        let mut parts = text.split(',');
        let mut rule = place(parts.next().unwrap_or_default()).ok_or_else(|| wrong(text, text))?;
        let mut after = None;
        let mut stays = None;
        for part in parts {
            match part.split_once(':') {
                None => rule = with_flag(rule, part).ok_or_else(|| wrong(text, part))?,
                Some(("after", n)) => after = Some(n.parse().map_err(|_| wrong(text, part))?),
                Some(("stays", n)) => stays = Some(n.parse().map_err(|_| wrong(text, part))?),
                Some(_) => return Err(wrong(text, part)),
            }
        }
        // The unit may come after the numbers.
        rule.time_to_live = after.map(|units| rule.unit.time(units));
        rule.stays_for = stays.map_or(rule.stays_for, |units| rule.unit.time(units));
        Ok(rule)
    }
}

fn place(text: &str) -> Option<TtlRule> {
    let (place, offset) = text.split_once(':').unwrap_or((text, "0"));
    let offset = offset.parse().ok()?;
    Some(match place {
        "value" => TtlRule::in_value(offset),
        "value-end" => TtlRule::in_value_from_end(offset),
        "key" => TtlRule::in_key(offset),
        "key-end" => TtlRule::in_key_from_end(offset),
        _ => return None,
    })
}

fn with_flag(rule: TtlRule, name: &str) -> Option<TtlRule> {
    Some(match name {
        "u32" => rule.width(TimeWidth::U32),
        "le" => rule.little_endian(),
        "s" => rule.unit(TimeUnit::Seconds),
        "ms" => rule.unit(TimeUnit::Millis),
        "us" => rule.unit(TimeUnit::Micros),
        "ns" => rule.unit(TimeUnit::Nanos),
        "seen" => rule.reads_see_expired(true),
        _ => return None,
    })
}

fn wrong(text: &str, part: &str) -> Error {
    let expected = "value, value-end, key or key-end, with :OFFSET, and then of u32, le, s, ms, us, ns, after:UNITS, \
                    stays:UNITS and seen what applies, as in value:0,ms";
    let what = format!("{part:?} in the rule of expiry {text:?}: expected is {expected}");
    Error::new(ErrorKind::InvalidArgument, what)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rule_reads_back_from_its_text_and_from_what_is_stored() {
        let late = TtlRule::in_key_from_end(3).unit(TimeUnit::Millis);
        let late = late.time_to_live(Duration::from_secs(60)).width(TimeWidth::U32);
        let all = late.clone().little_endian().reads_see_expired(true);
        for (rule, text) in [
            (TtlRule::in_value(0), "value:0"),
            (TtlRule::in_value_from_end(8), "value-end:8"),
            (TtlRule::in_key(usize::MAX >> 1), &format!("key:{}", usize::MAX >> 1)),
            (TtlRule::in_value(0).unit(TimeUnit::Nanos), "value:0,ns"),
            (TtlRule::in_value(0).unit(TimeUnit::Micros), "value:0,us"),
            (late, "key-end:3,u32,ms,after:60000"),
            (all.stays_at_most(Duration::ZERO), "key-end:3,u32,le,ms,after:60000,stays:0,seen"),
        ] {
            assert_eq!(rule.to_string(), text);
            assert_eq!(text.parse::<TtlRule>().unwrap(), rule, "{text}");
            assert_eq!(TtlRule::from_stored(&rule.params()), Some(rule), "{text}");
        }
        let short: TtlRule = "value,after:5,ms,s".parse().unwrap();
        assert_eq!(short.to_string(), "value:0,after:5");
    }

    #[test]
    fn a_text_that_is_no_rule_is_refused_by_its_part() {
        for (text, part) in [
            ("", "\"\""),
            ("values", "values"),
            ("value:", "value:"),
            ("value:-1", "value:-1"),
            ("value:0,u16", "u16"),
            ("value:0,after:x", "after:x"),
            ("value:0,stays:", "stays:"),
            ("value:0,", "\"\""),
            ("value:0,until:5", "until:5"),
        ] {
            let error = text.parse::<TtlRule>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
