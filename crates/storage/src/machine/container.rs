//! The memory that a container allows a process, of either version of Linux's control groups.
//!
//! Called by `machine.rs`. What cannot be read is no limit.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::read;

/// The folder at which every distribution and every container engine mounts them.
const MOUNT: &str = "/sys/fs/cgroup";

/// The most bytes that the groups of this process allow.
pub(super) fn memory_limit() -> Option<u64> {
    least_limit(&text_of(Path::new("/proc/self/cgroup"))?, text_of)
}

/// The text of a short file of the system.
fn text_of(path: &Path) -> Option<String> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match read(&file, &mut piece).ok()? {
            0 => return String::from_utf8(text).ok(),
            got => text.extend_from_slice(&piece[..got]),
        }
    }
}

/// The least limit of the groups in `groups`, the text of `/proc/self/cgroup`, and of the groups around them. `text_of`
/// returns the text of a file.
fn least_limit(groups: &str, text_of: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().filter_map(limit_files).flatten();
    // "max" is no number, and version 1 has a number near 2^63 for it.
    limits.filter_map(|file| text_of(&file)?.trim().parse().ok()).min()
}

/// The files with the limits of a line `hierarchy:controllers:path`, if its hierarchy limits memory.
fn limit_files(line: &str) -> Option<Vec<PathBuf>> {
    let mut parts = line.splitn(3, ':');
    let controllers = parts.nth(1)?;
    let path = parts.next()?;
    let (mount, name) = match controllers {
        "" => (PathBuf::from(MOUNT), "memory.max"),
        _ if controllers.split(',').any(|it| it == "memory") => {
            (Path::new(MOUNT).join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    // A container often sees its own group as the root, and the path of the host in this line.
    let groups = Path::new(path.trim_start_matches('/')).ancestors();
    Some(groups.map(|group| mount.join(group).join(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        least_limit(groups, |path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_least_limit_of_a_group_and_of_those_around_it_counts() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "3000\n"),
            ("/sys/fs/cgroup/other/memory.max", "10\n"),
        ];
        assert_eq!(limit("0::/a/b\n", &files), Some(3000));
        assert_eq!(limit("0::/a/b\n", &files[..1]), None);
        assert_eq!(limit("0::/\n", &[("/sys/fs/cgroup/memory.max", "77\n")]), Some(77));
        // In a container the path is that of the host.
        assert_eq!(limit("0::/docker/1\n", &[("/sys/fs/cgroup/memory.max", "78")]), Some(78));
    }

    #[test]
    fn the_first_version_has_a_hierarchy_for_memory() {
        let groups = "9:name=systemd:/\n4:cpu,memory:/a:b\n1:cpu:/a:b\n0::/\n";
        let file = "/sys/fs/cgroup/memory/a:b/memory.limit_in_bytes";
        assert_eq!(limit(groups, &[(file, "4096\n")]), Some(4096));
        assert_eq!(limit("1:cpu:/a:b\n", &[(file, "4096\n")]), None);
        assert_eq!(
            limit(groups, &[(file, "9223372036854771712\n")]),
            Some(9_223_372_036_854_771_712)
        );
    }

    #[test]
    fn what_is_no_list_of_groups_is_no_limit() {
        for groups in ["", "\n\n", "0", "0:", "0::", ":::", "x:memory:"] {
            assert_eq!(limit(groups, &[]), None);
        }
        assert_eq!(limit("0::/a\n", &[("/sys/fs/cgroup/a/memory.max", "-5 MiB")]), None);
    }
}
