//! [`Nodes`]: where the addresses of the nodes of a cluster are.

use std::path::{Path, PathBuf};

use siltstone::Result;
use siltstone::fs::{Fs, OsFs};

/// The nodes of a cluster.
#[derive(Clone, Debug)]
pub enum Nodes {
    /// These addresses.
    List(Vec<String>),
    /// The lines of a file, which is read again while the router runs. New nodes are best added at its end. A node that is
    /// gone from it gets no new request.
    File(PathBuf),
}

impl Nodes {
    /// Those of a shard: `@FILE` names a file.
    pub(crate) fn of_shard(nodes: &[String]) -> Nodes {
        match nodes {
            [file] if file.starts_with('@') => Nodes::File(PathBuf::from(&file[1..])),
            nodes => Nodes::List(nodes.to_vec()),
        }
    }

    /// The addresses now.
    pub(crate) fn addresses(&self) -> Result<Vec<String>> {
        match self {
            Nodes::List(addresses) => Ok(addresses.clone()),
            Nodes::File(path) => {
                let text = read(path)?;
                let lines = text.lines().map(str::trim);
                let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
                Ok(lines.map(str::to_owned).collect())
            }
        }
    }
}

/// The longest list of nodes.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// Reads a list of nodes.
fn read(path: &Path) -> Result<String> {
    let file = OsFs.open_read(path)?;
    let mut bytes = vec![0; file.len()?.min(LIST_BYTES_MAX) as usize];
    let len = file.read_at(0, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..len.min(bytes.len())]).into_owned())
}
