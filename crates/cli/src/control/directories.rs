//! Where the control socket of a user's mount may be. The process that serves the mount takes the first that it can have, and clients look in all
//! of them. Nothing comes from the environment, so that both ends agree.
//!
//! Two users who are root each in a user namespace of his own are both number 0, and both see the same /tmp, mostly: names go by the number that
//! the user has outside. Somebody may still have made that directory before, by accident (namespaces in namespaces) or not: some more names
//! follow.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Further names in /tmp.
const SPARES_COUNT: u32 = 64;

/// Directories for the sockets of this user, best first.
pub fn of_user(user_id: u32) -> Vec<PathBuf> {
    // Without it there are no namespaces that it could tell of.
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    named(user_id, outside(user_id, &map))
}

/// The number outside this user namespace of who is `user_id` in it, by its map: lines of a first number inside, the one outside, and a count.
fn outside(user_id: u32, map: &str) -> u32 {
    let of_line = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (first, there, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let offset = user_id.checked_sub(first).filter(|offset| *offset < count)?;
        there.checked_add(offset)
    };
    map.lines().find_map(of_line).unwrap_or(user_id)
}

fn named(user_id: u32, outside: u32) -> Vec<PathBuf> {
    let run = |user: u32| match user {
        0 => PathBuf::from("/run/varve"),
        user => PathBuf::from(format!("/run/user/{user}/varve")),
    };
    let mut directories = vec![run(user_id), run(outside), PathBuf::from(format!("/tmp/varve-{outside}"))];
    directories
        .extend((1..=SPARES_COUNT).map(|spare| PathBuf::from(format!("/tmp/varve-{outside}-{spare}"))));
    // What mounts of before this have.
    directories.push(PathBuf::from(format!("/tmp/varve-{user_id}")));
    if user_id == outside {
        directories.pop();
        directories.remove(1);
    }
    directories
}

/// Whether `directory` is a directory of this user's that nobody else can enter: others may have made it first. One that cannot be looked at is not,
/// as that of another who has this number outside of a namespace.
pub fn is_private(directory: &Path, user_id: u32) -> bool {
    let private = |metadata: fs::Metadata| {
        metadata.is_dir() && metadata.uid() == user_id && metadata.mode() & 0o077 == 0
    };
    fs::symlink_metadata(directory).is_ok_and(private)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: users who are root in namespaces of their own do not take each other's directory, and who is in none has the names that there
    // always were. Method: maps as the kernel shows them, and the names that come of them.
    #[test]
    fn names_go_by_the_number_outside() {
        let all = "         0          0 4294967295\n";
        assert_eq!((outside(0, all), outside(1000, all), outside(1000, "")), (0, 1000, 1000));
        let container = "         0       1234          1\n         1     100000      65536\n";
        assert_eq!((outside(0, container), outside(1, container)), (1234, 100_000));
        assert_eq!((outside(65_536, container), outside(65_537, container)), (165_535, 65_537));
        assert_eq!(outside(7, "0 5\nnonsense\n0 4294967290 100\n"), 7);

        let texts = |user_id, outside, count| {
            let names = named(user_id, outside).into_iter().take(count);
            names.map(|name| name.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(texts(0, 0, 3), ["/run/varve", "/tmp/varve-0", "/tmp/varve-0-1"]);
        assert_eq!(texts(7, 7, 2), ["/run/user/7/varve", "/tmp/varve-7"]);
        assert_eq!(texts(0, 7, 4), ["/run/varve", "/run/user/7/varve", "/tmp/varve-7", "/tmp/varve-7-1"]);
        assert_eq!(named(0, 7).last().map(PathBuf::as_path), Some(Path::new("/tmp/varve-0")));
        assert!(!named(0, 7).iter().any(|name| named(0, 8)[1..67].contains(name)));
    }
}
