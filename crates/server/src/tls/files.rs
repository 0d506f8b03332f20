//! Certificates and keys from files in PEM. Each error names the file and what is wrong with it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use siltstone::fs::{Fs, OsFs};
use siltstone::{Error, ErrorKind, Result};

use super::validity::{Validity, validity};

/// The longest file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) path: PathBuf,
    bytes: Vec<u8>,
}

impl Content {
    pub(super) fn read(path: &Path) -> Result<Content> {
        let file = OsFs.open_read(path)?;
        let len = file.len()?;
        if len > FILE_BYTES_MAX {
            return Err(wrong(path, &format!("has {len} bytes, the limit is {FILE_BYTES_MAX}")));
        }
        let mut bytes = vec![0; len as usize];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        Ok(Content { path: path.to_owned(), bytes })
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        let found = CertificateDer::pem_slice_iter(&self.bytes);
        let found = found.collect::<std::result::Result<Vec<_>, PemError>>();
        let found = found.map_err(|error| wrong(&self.path, &format!("is no PEM: {error}")))?;
        if found.is_empty() {
            return Err(wrong(&self.path, "has no certificate (BEGIN CERTIFICATE)"));
        }
        Ok(found)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            PemError::NoItemsFound if contains(&self.bytes, b"ENCRYPTED PRIVATE KEY") => {
                wrong(&self.path, "has an encrypted key; store it without a passphrase")
            }
            PemError::NoItemsFound => wrong(&self.path, "has no private key (BEGIN PRIVATE KEY)"),
            error => wrong(&self.path, &format!("is no PEM: {error}")),
        })
    }

    /// The certificates as those of CAs.
    pub(super) fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for (certificate, number) in self.certificates()?.into_iter().zip(1..) {
            roots.add(certificate).map_err(|error| {
                wrong(&self.path, &format!("has a certificate {number} that is none: {error}"))
            })?;
        }
        Ok(roots)
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

pub(super) fn wrong(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{} {what}", path.display()))
}

/// A certificate with its key.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) certified: CertifiedKey,
    pub(super) validity: Validity,
}

impl Identity {
    pub(super) fn of(
        certificate: &Content,
        key: &Content,
        provider: &CryptoProvider,
    ) -> Result<Identity> {
        let certificates = certificate.certificates()?;
        let validity = validity(&certificates[0])
            .ok_or_else(|| wrong(&certificate.path, "has a first certificate that is none"))?;
        let private = provider.key_provider.load_private_key(key.key()?);
        let private = private
            .map_err(|error| wrong(&key.path, &format!("has a key of no known kind: {error}")))?;
        let certified = CertifiedKey::new(certificates, private);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                let of = certificate.path.display();
                return Err(wrong(
                    &key.path,
                    &format!("is not the key of the certificate in {of}"),
                ));
            }
            Err(error) => {
                let what = format!("has a first certificate that is none: {error}");
                return Err(wrong(&certificate.path, &what));
            }
        }
        Ok(Identity { certified, validity })
    }
}

/// The reason why others refuse a certificate, which is used all the same.
pub(super) fn warning(validity: &Validity, certificate: &Path, now: Duration) -> Option<String> {
    let now = now.as_secs();
    let at = certificate.display();
    if now > validity.until.seconds {
        let day = &validity.until.day;
        return Some(format!(
            "the certificate in {at} has expired at {day}, and is refused by others"
        ));
    }
    let day = &validity.from.day;
    (now < validity.from.seconds)
        .then(|| format!("the certificate in {at} is not valid before {day}"))
}
