//! [`Validity`]: the dates of a certificate. rustls checks those of peers, and names them to no one.

/// A moment, in seconds from 1970 on and as text. Those before 1970 have 0 seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) seconds: u64,
    pub(super) day: String,
}

/// The first and the last moment at which a certificate is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Moment,
    pub(super) until: Moment,
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Reads the dates of a certificate in DER; `None` if the bytes are none.
pub(super) fn validity(certificate: &[u8]) -> Option<Validity> {
    let (_, whole, _) = element(certificate, Some(SEQUENCE))?;
    let (_, mut rest, _) = element(whole, Some(SEQUENCE))?;
    if rest.first() == Some(&VERSION) {
        rest = element(rest, None)?.2;
    }
    // Serial number, algorithm and issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        rest = element(rest, Some(tag))?.2;
    }
    let (_, dates, _) = element(rest, Some(SEQUENCE))?;
    let (kind, from, rest) = element(dates, None)?;
    let from = moment(kind, from)?;
    let (kind, until, _) = element(rest, None)?;
    Some(Validity { from, until: moment(kind, until)? })
}

/// The tag and content of the first element, and the bytes after it.
fn element(bytes: &[u8], wanted: Option<u8>) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    if wanted.is_some_and(|wanted| wanted != tag) {
        return None;
    }
    let mut len = usize::from(first);
    if first >= 0x80 {
        let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if digits.len() > 3 {
            return None;
        }
        len = digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit));
        rest = after;
    }
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// Reads `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn moment(kind: u8, text: &[u8]) -> Option<Moment> {
    let digits = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match (kind, digits.len()) {
        (UTC_TIME, 12) => {
            let (year, rest) = digits.split_at(2);
            let century = if year < "50" { "20" } else { "19" };
            (format!("{century}{year}"), rest)
        }
        (GENERALIZED_TIME, 14) => (digits[..4].to_owned(), &digits[4..]),
        _ => return None,
    };
    let mut parts = [0; 5];
    for (part, at) in parts.iter_mut().zip([0, 2, 4, 6, 8]) {
        *part = rest[at..at + 2].parse::<i64>().ok()?;
    }
    let [month, day, hour, minute, second] = parts;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days(year.parse().ok()?, month, day);
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Some(Moment { seconds, day: format!("{year}-{month:02}-{day:02}") })
}

/// Days from 1970 on, in the calendar of Gregory. A year begins with March here, so that a leap day is its last one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    fn certificate(name: &str) -> Vec<u8> {
        let path = format!("{}/../../testdata/tls/{name}.pem", env!("CARGO_MANIFEST_DIR"));
        CertificateDer::from_pem_file(path).unwrap().to_vec()
    }

    #[test]
    fn the_dates_of_a_certificate_are_read() {
        let bytes = certificate("expired");
        let found = validity(&bytes).unwrap();
        // By `date --utc --date 2020-01-01 +%s`.
        assert_eq!(found.from, Moment { seconds: 1_577_836_800, day: "2020-01-01".to_owned() });
        assert_eq!(found.until, Moment { seconds: 1_609_459_200, day: "2021-01-01".to_owned() });
        let found = validity(&certificate("server")).unwrap();
        assert_eq!(found.until, Moment { seconds: 4_733_510_400, day: "2120-01-01".to_owned() });
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let cases = [
            (b"700101000000Z".as_slice(), UTC_TIME, 0),
            (b"000229235959Z", UTC_TIME, 951_868_799),
            (b"491231000000Z", UTC_TIME, 2_524_521_600),
            (b"21000301000000Z", GENERALIZED_TIME, 4_107_542_400),
        ];
        for (text, kind, seconds) in cases {
            assert_eq!(moment(kind, text).unwrap().seconds, seconds, "{}", text.escape_ascii());
        }
        for wrong in ["700101000000", "701301000000Z", "7001010000", "70010100000xZ", "", "Z"] {
            assert_eq!(moment(UTC_TIME, wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_dates() {
        let bytes = certificate("server");
        for end in 0..bytes.len() {
            assert_eq!(validity(&bytes[..end]), None, "{end}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            let _ = validity(&damaged);
        }
    }
}
