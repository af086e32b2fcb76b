//! Directories, links, renames, attributes.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use varvefs::{FileType, Pool, Reason, Times, XattrMode};

use crate::{fresh, names, quiet};

// Goal: directories are made, listed and removed as in std. Method: each verb with its refusals.
#[test]
fn directories_are_made_and_removed() {
    let fs = fresh();
    fs.create_dir("/a").unwrap();
    assert_eq!(fs.create_dir("/a").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs.create_dir("/").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs.create_dir("/x/y").unwrap_err().kind(), ErrorKind::NotFound);
    fs.create_dir_all("/a/b//c/").unwrap();
    fs.create_dir_all("a/b/c").unwrap();
    fs.create_dir_all("/").unwrap();
    fs.write("/a/f", b"").unwrap();
    assert_eq!(fs.create_dir_all("/a/f/d").unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(fs.create_dir_all("/a/f").unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(names(&fs, "/a"), ["b", "f"]);
    assert_eq!(fs.read_dir("/a/f").unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(fs.remove_dir("/a").unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    assert_eq!(fs.remove_dir("/a/f").unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(fs.remove_file("/a/b").unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(fs.remove_dir("/").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(fs.remove_dir("/a/b/c/..").unwrap_err().kind(), ErrorKind::InvalidInput);
    fs.remove_dir("/a/b/c").unwrap();
    fs.create_dir_with_mode("/a/private", 0o700).unwrap();
    assert_eq!(fs.metadata("/a/private").unwrap().mode, 0o700);
}

// Goal: a listing of many gives each name once, with kinds, and holds when names come and go. Method: 3,000 names,
// removed and added in the middle of the listing.
#[test]
fn long_listings_give_each_name_once() {
    let fs = fresh();
    fs.create_dir("/d").unwrap();
    for n in 0..3000 {
        fs.create(format!("/d/{n}")).unwrap();
    }
    fs.create_dir("/d/sub").unwrap();
    fs.symlink("x", "/d/link").unwrap();
    let mut seen = HashSet::new();
    for (count, entry) in fs.read_dir("/d").unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(seen.insert(entry.name().to_vec()), "{entry:?} came twice");
        let kind = match entry.name() {
            b"sub" => FileType::Directory,
            b"link" => FileType::Symlink,
            _ => FileType::File,
        };
        assert_eq!(entry.file_type(), kind);
        if count < 100 {
            let metadata = entry.metadata().unwrap();
            assert_eq!((metadata.inode, metadata.file_type), (entry.inode(), kind));
            assert_eq!(entry.path(), std::path::Path::new("/d").join(entry.file_name()));
        }
        if count == 700 {
            for n in 3000..3100 {
                fs.create(format!("/d/{n}")).unwrap();
            }
        }
        if entry.file_type().is_file() && count > 1000 {
            fs.remove_file(entry.path()).unwrap();
        }
    }
    let all = (0..3000).map(|n| n.to_string()).chain(["sub".into(), "link".into()]);
    for name in all {
        assert!(seen.contains(name.as_bytes()), "{name} was not listed");
    }
    let open = fs.read_dir("/d/sub").unwrap();
    fs.remove_dir("/d/sub").unwrap();
    assert_eq!(open.count(), 0, "a removed directory has no entries");
}

// Goal: remove_dir_all removes all that is below and nothing else. Method: a tree with a link out of it, wide and deep.
#[test]
fn trees_are_removed_without_following_links() {
    let fs = fresh();
    fs.create_dir_all("/keep").unwrap();
    fs.write("/keep/me", b"safe").unwrap();
    let mut deep = String::from("/tree");
    for n in 0..100 {
        deep.push_str(&format!("/{n}"));
    }
    fs.create_dir_all(&deep).unwrap();
    for n in 0..1500 {
        fs.create(format!("/tree/file-{n}")).unwrap();
        fs.create_dir(format!("/tree/0/dir-{n}")).unwrap();
    }
    fs.symlink("/keep", "/tree/0/1/out").unwrap();
    fs.symlink("/keep", "/link").unwrap();
    let before = fs.statfs().unwrap().files_count;
    fs.remove_dir_all("/tree").unwrap();
    assert_eq!(fs.statfs().unwrap().files_count, before - 3002 - 100);
    fs.remove_dir_all("/link").unwrap();
    assert_eq!(names(&fs, "/"), ["keep"]);
    assert_eq!(fs.read("/keep/me").unwrap(), b"safe");
    assert_eq!(fs.remove_dir_all("/gone").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs.remove_dir_all("/keep/me").unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(fs.remove_dir_all("/").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(fs.read("/keep/me").unwrap(), b"safe");
}

// Goal: a close does not wait for thousands of directories to be made, and what is there costs nothing. Method: 8,000 levels, closed as
// soon as the first is there; 500, made over and over.
#[test]
fn making_many_levels_ends_when_the_pool_is_closed() {
    let pool = Pool::in_memory(64 << 20).unwrap();
    let fs = pool.filesystem();
    let deep = "/a".repeat(500);
    (0..200).for_each(|_| fs.create_dir_all(&deep).unwrap());
    assert_eq!(fs.statfs().unwrap().files_count, 501);
    let maker = std::thread::spawn({
        let fs = fs.clone();
        move || fs.create_dir_all("/b".repeat(8000))
    });
    while !fs.exists("/b").unwrap() {
        std::thread::yield_now();
    }
    pool.close().unwrap();
    assert_eq!(*maker.join().unwrap().unwrap_err().reason(), Reason::Closed);
}

// Goal: the three renames keep to their rules. Method: each over nothing, a file, a directory, itself, below itself.
#[test]
fn renames_replace_refuse_and_exchange() {
    let fs = fresh();
    fs.write("/a", b"a").unwrap();
    fs.write("/b", b"b").unwrap();
    assert_eq!(*fs.rename_no_replace("/a", "/b").unwrap_err().reason(), Reason::Exists);
    let nothing = fs.exchange("/a", "/nothing").unwrap_err().to_string();
    assert!(nothing.starts_with("cannot exchange \"/a\" and \"/nothing\":"), "{nothing}");
    fs.exchange("/a", "/b").unwrap();
    assert_eq!((fs.read("/a").unwrap(), fs.read("/b").unwrap()), (b"b".to_vec(), b"a".to_vec()));
    fs.rename("/a", "/b").unwrap();
    assert_eq!(names(&fs, "/"), ["b"]);
    assert_eq!(fs.read("/b").unwrap(), b"b");
    fs.rename_no_replace("/b", "/c").unwrap();
    assert_eq!(*fs.exchange("/c", "/none").unwrap_err().reason(), Reason::NotFound);
    fs.create_dir_all("/d/e").unwrap();
    assert_eq!(fs.rename("/c", "/d").unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(fs.rename("/d", "/c").unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(fs.rename("/c", "/new/").unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(fs.rename("/d", "/d/e/f").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(fs.rename("/d/.", "/x").unwrap_err().kind(), ErrorKind::InvalidInput);
    fs.create_dir("/empty").unwrap();
    assert_eq!(fs.rename("/empty", "/d").unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs.rename("/d/", "/empty/").unwrap();
    fs.exchange("/c", "/empty").unwrap();
    assert_eq!(names(&fs, "/c"), ["e"]);
    assert_eq!(fs.read("/empty").unwrap(), b"b");
}

// Goal: links share a file, symbolic ones only name it. Method: write through one, look through the other.
#[test]
fn links_and_symlinks() {
    let fs = fresh();
    fs.write("/f", b"1").unwrap();
    fs.hard_link("/f", "/g").unwrap();
    fs.write("/g", b"2").unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"2");
    assert_eq!(fs.metadata("/f").unwrap().links, 2);
    assert_eq!(*fs.hard_link("/f", "/g").unwrap_err().reason(), Reason::Exists);
    fs.create_dir("/d").unwrap();
    assert_eq!(fs.hard_link("/d", "/e").unwrap_err().kind(), ErrorKind::PermissionDenied);
    fs.symlink("../f", "/d/s").unwrap();
    assert_eq!(fs.read_link("/d/s").unwrap().to_str(), Some("../f"));
    assert_eq!(fs.read("/d/s").unwrap(), b"2");
    assert!(fs.symlink_metadata("/d/s").unwrap().is_symlink() && fs.metadata("/d/s").unwrap().is_file());
    assert_eq!(fs.read_link("/f").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(fs.symlink("", "/n").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(*fs.symlink("x", "/d/s").unwrap_err().reason(), Reason::Exists);
    fs.hard_link("/d/s", "/t").unwrap();
    assert!(fs.symlink_metadata("/t").unwrap().is_symlink(), "the link itself gets the name");
    fs.remove_file("/d/s").unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"2");
}

// Goal: attributes are what was set, and times come from the clock given. Method: a clock of our own, each setter.
#[test]
fn attributes_and_times() {
    let now = UNIX_EPOCH + Duration::new(1_000_000, 42);
    let pool = quiet().clock(move || now).owner(1000, 100).in_memory(64 << 20).unwrap();
    let fs = pool.filesystem();
    let file = fs.create("/f").unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.user, metadata.group, metadata.mode, metadata.links), (1000, 100, 0o644, 1));
    assert_eq!([metadata.created, metadata.modified, metadata.changed, metadata.accessed], [now; 4]);
    assert_eq!(fs.metadata("/").unwrap().user, 1000);
    fs.set_permissions("/f", 0o6755).unwrap();
    assert_eq!(fs.metadata("/f").unwrap().mode, 0o6755);
    fs.write("/f", b"set-ids go when another than user 0 writes").unwrap();
    assert_eq!(fs.metadata("/f").unwrap().mode, 0o755);
    fs.set_owner("/f", Some(5), None).unwrap();
    assert_eq!((fs.metadata("/f").unwrap().user, fs.metadata("/f").unwrap().group), (5, 100));
    // Which chown(2) takes for "as it is": a mount could not show it.
    for (user, group) in [(Some(u32::MAX), None), (None, Some(u32::MAX))] {
        let refusals = [fs.set_owner("/f", user, group), file.set_owner(user, group)];
        assert!(refusals.iter().all(|refused| matches!(
            refused.as_ref().map_err(|error| error.reason()),
            Err(Reason::Invalid(_))
        )));
    }
    assert_eq!((fs.metadata("/f").unwrap().user, fs.metadata("/f").unwrap().group), (5, 100));
    let old = UNIX_EPOCH - Duration::new(86_400 * 365, 1);
    let late = UNIX_EPOCH + Duration::from_secs(200 * 365 * 86_400);
    fs.set_times("/f", Times { modified: Some(old), accessed: None }).unwrap();
    file.set_times(Times { accessed: Some(late), ..Times::default() }).unwrap();
    let metadata = fs.metadata("/f").unwrap();
    assert_eq!((metadata.modified, metadata.accessed, metadata.changed), (old, late, now));
    let other = fs.with_owner(7, 8);
    other.create_dir("/theirs").unwrap();
    assert_eq!(fs.metadata("/theirs").unwrap().group, 8);
    assert!(fresh().metadata("/").unwrap().created <= SystemTime::now());
}

// Goal: nodes are made, seen as what they are, and not opened as files. Method: each kind.
#[test]
fn nodes_are_made_and_not_opened() {
    let fs = fresh();
    for kind in [FileType::Fifo, FileType::Socket, FileType::CharDevice, FileType::BlockDevice] {
        let path = format!("/{kind:?}");
        fs.create_node(&path, kind, 0o640, 0x0103).unwrap();
        let metadata = fs.metadata(&path).unwrap();
        let device = if matches!(kind, FileType::CharDevice | FileType::BlockDevice) { 0x0103 } else { 0 };
        assert_eq!((metadata.file_type, metadata.mode, metadata.device), (kind, 0o640, device));
        assert_eq!(*fs.open(&path).unwrap_err().reason(), Reason::NotSupported);
        assert_eq!(*fs.create_node(&path, kind, 0, 0).unwrap_err().reason(), Reason::Exists);
        assert!(fs.read_dir("/").unwrap().any(|entry| entry.unwrap().file_type() == kind));
    }
    assert_eq!(fs.create_node("/d", FileType::Directory, 0, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
}

// Goal: extended attributes are set, replaced, listed and removed by path and by handle. Method: each mode.
#[test]
fn extended_attributes() {
    let fs = fresh();
    let file = fs.create("/f").unwrap();
    fs.set_xattr("/f", "user.a", b"1", XattrMode::Create).unwrap();
    assert_eq!(*fs.set_xattr("/f", "user.a", b"2", XattrMode::Create).unwrap_err().reason(), Reason::Exists);
    assert_eq!(
        *fs.set_xattr("/f", "user.b", b"2", XattrMode::Replace).unwrap_err().reason(),
        Reason::NoAttribute
    );
    file.set_xattr("user.b", vec![3; 60_000], XattrMode::Set).unwrap();
    assert_eq!(fs.get_xattr("/f", "user.b").unwrap(), Some(vec![3; 60_000]));
    assert_eq!(file.get_xattr(b"user.none").unwrap(), None);
    let mut list = fs.list_xattrs("/f").unwrap();
    list.sort();
    assert_eq!(list, [b"user.a", b"user.b"]);
    fs.remove_xattr("/f", "user.a").unwrap();
    assert_eq!(*file.remove_xattr("user.a").unwrap_err().reason(), Reason::NoAttribute);
    assert_eq!(file.list_xattrs().unwrap(), [b"user.b"]);
    let error = fs.set_xattr("/f", "user.c", vec![0; 1 << 20], XattrMode::Set).unwrap_err();
    assert_eq!(*error.reason(), Reason::AttributeTooLarge);
}

// Goal: a symbolic link has extended attributes of its own. Method: the same name on the link and on what it leads to,
// set, read, listed and removed by both ways; a link that leads nowhere has them too.
#[test]
fn links_have_extended_attributes_of_their_own() {
    let fs = fresh();
    fs.create("/f").unwrap();
    fs.symlink("f", "/link").unwrap();
    fs.symlink("nothing", "/dangling").unwrap();
    fs.set_xattr("/link", "trusted.a", b"of the file", XattrMode::Create).unwrap();
    assert_eq!(fs.get_link_xattr("/link", "trusted.a").unwrap(), None);
    fs.set_link_xattr("/link", "trusted.a", b"of the link", XattrMode::Create).unwrap();
    assert_eq!(
        *fs.set_link_xattr("/link", "trusted.a", b"", XattrMode::Create).unwrap_err().reason(),
        Reason::Exists
    );
    assert_eq!(fs.get_xattr("/link", "trusted.a").unwrap().unwrap(), b"of the file");
    assert_eq!(fs.get_xattr("/f", "trusted.a").unwrap().unwrap(), b"of the file");
    assert_eq!(fs.get_link_xattr("/link", "trusted.a").unwrap().unwrap(), b"of the link");
    fs.set_link_xattr("/link", "trusted.b", b"", XattrMode::Set).unwrap();
    assert_eq!(fs.list_link_xattrs("/link").unwrap().len(), 2);
    assert_eq!(fs.list_xattrs("/link").unwrap(), [b"trusted.a"]);
    fs.remove_link_xattr("/link", "trusted.a").unwrap();
    assert_eq!(fs.list_link_xattrs("/link").unwrap(), [b"trusted.b"]);
    assert_eq!(fs.list_xattrs("/f").unwrap(), [b"trusted.a"]);
    fs.set_link_xattr("/dangling", "trusted.a", b"1", XattrMode::Set).unwrap();
    assert_eq!(*fs.list_xattrs("/dangling").unwrap_err().reason(), Reason::NotFound);
    assert_eq!(fs.list_link_xattrs("/dangling").unwrap(), [b"trusted.a"]);
}

// Goal: a symbolic link has an owner and times of its own. Method: set them on the link and on what it leads to, look at
// both.
#[test]
fn links_have_attributes_of_their_own() {
    let fs = fresh();
    fs.write("/file", b"file").unwrap();
    fs.symlink("file", "/link").unwrap();
    let time = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    let times = |seconds| Times { accessed: Some(time(seconds)), modified: Some(time(seconds + 1)) };
    fs.set_link_owner("/link", Some(7), Some(8)).unwrap();
    fs.set_link_times("/link", times(1000)).unwrap();
    fs.set_owner("/link", Some(9), None).unwrap();
    fs.set_times("/link", times(2000)).unwrap();
    let (link, file) = (fs.symlink_metadata("/link").unwrap(), fs.metadata("/link").unwrap());
    assert_eq!((link.user, link.group, file.user), (7, 8, 9));
    assert_eq!((link.accessed, link.modified), (time(1000), time(1001)));
    assert_eq!((file.accessed, file.modified), (time(2000), time(2001)));
    assert!(link.is_symlink() && file.is_file());
}
