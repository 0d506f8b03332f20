//! [`NumberedObjects`]: objects with the numbers 1, 2, 3 and so on. Each is put once. The next number is a
//! decision: of several writers one gets it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use siltstone::{Error, Result};

use crate::bucket::{Bucket, Put};

/// Numbered objects in a folder of a store.
#[derive(Clone)]
pub struct NumberedObjects {
    bucket: Bucket,
    folder: String,
}

impl NumberedObjects {
    pub(crate) fn new(bucket: Bucket, folder: &str) -> NumberedObjects {
        NumberedObjects { bucket, folder: folder.to_owned() }
    }

    /// The name of an object: the folder, and the number with 20 digits.
    pub fn name(&self, number: u64) -> String {
        format!("{}/{number:020}", self.folder)
    }

    /// Returns the greatest number; 0 if there is no object.
    ///
    /// # Errors
    /// Those of the store. Corruption if an object before it is missing, or if the folder has other objects.
    ///
    /// # Cost
    /// One list of the folder.
    ///
    /// # Examples
    /// ```
    /// let objects = remote::Remote::memory()?.numbered("map");
    /// assert!(objects.put(1, b"first")? && !objects.put(1, b"other")?);
    /// assert_eq!((objects.latest()?, objects.get(1)?), (1, Some(b"first".to_vec())));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn latest(&self) -> Result<u64> {
        let mut numbers = BTreeSet::new();
        for object in self.bucket.list(&self.folder)?.objects {
            let number = object.name.rsplit('/').next().and_then(|digits| digits.parse().ok());
            match number.filter(|number| self.name(*number) == object.name) {
                Some(number) => numbers.insert(number),
                None => {
                    return Err(corrupt(
                        &object.name,
                        "an object without a number among numbered ones",
                    ));
                }
            };
        }
        let mut latest = 0;
        for number in numbers {
            if number != latest + 1 {
                return Err(corrupt(
                    &self.name(latest + 1),
                    "the object is missing, and later ones are there",
                ));
            }
            latest = number;
        }
        Ok(latest)
    }

    /// Returns the object `number`, or `None`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn get(&self, number: u64) -> Result<Option<Vec<u8>>> {
        self.bucket.get(&self.name(number))
    }

    /// Puts the object `number`. Returns `false`, and changes nothing, if it is there. The bytes of two writers must
    /// differ: the answer of a put may be lost, and the bytes then say whose the object is.
    ///
    /// # Errors
    /// Those of the store; then it is unknown whether the object is there.
    pub fn put(&self, number: u64, bytes: &[u8]) -> Result<bool> {
        Ok(self.bucket.put_new(&self.name(number), bytes)? == Put::Stored)
    }

    /// A random number, by which the bytes of writers differ.
    pub fn random(&self) -> u128 {
        self.bucket.random_id()
    }
}

fn corrupt(name: &str, what: &'static str) -> Error {
    Error::corruption(PathBuf::from(name), None, what)
}

#[cfg(test)]
mod tests {
    use crate::Remote;

    #[test]
    fn a_gap_among_numbered_objects_is_corruption() {
        let remote = Remote::memory().unwrap();
        let objects = remote.numbered("map");
        assert_eq!(objects.latest().unwrap(), 0);
        for number in [1, 2, 4] {
            assert!(objects.put(number, &[number as u8]).unwrap());
        }
        let error = objects.latest().unwrap_err().to_string();
        assert!(error.contains(&objects.name(3)) && error.contains("missing"), "{error}");
        assert!(objects.put(3, b"3").unwrap());
        assert_eq!(objects.latest().unwrap(), 4);
        remote.0.bucket().put("map/other", b"").unwrap();
        assert!(objects.latest().unwrap_err().to_string().contains("map/other"));
    }
}
