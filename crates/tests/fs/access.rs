//! Access times.

use varve_engine::TreeId;

use super::reaping::{mend, spoil};
use super::*;
use varve_fs::internals::subvolume::Slot;

fn accessed(f: &Fixture, ino: InodeId) -> Timestamp {
    f.fs.getattr(ino).unwrap().atime
}

/// Goal: relatime as mount(8) describes it. Method: accesses of a file that was just made, was accessed since, was
/// written to since, had its mode changed since, and was last accessed a day ago; the change counter stays, for an
/// access is no change.
#[test]
fn relative_access_times() {
    let f = Fixture::new(64 * MIB);
    let file = f.create(b"file");
    let note = || {
        let before = accessed(&f, file);
        f.fs.note_access(file, AccessRule::Relative).unwrap();
        accessed(&f, file) != before
    };
    assert!(note(), "the first access after it was made");
    assert!(!note(), "nothing has changed since");
    f.write(file, 0, b"data");
    assert!(note() && !note(), "written to since, though not logged yet");
    f.fs.setattr(Caller::ROOT, file, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    assert!(note() && !note(), "its inode has changed since");
    let ctime = f.fs.getattr(file).unwrap().ctime;
    let now = accessed(&f, file);
    let day = 24 * 60 * 60;
    let at = Timestamp { seconds: now.seconds - day - 1, ..now };
    let set = SetAttr { atime: Some(SetTime::At(at)), mtime: Some(SetTime::At(at)), ..SetAttr::default() };
    f.fs.setattr(Caller::ROOT, file, set).unwrap();
    assert_eq!(accessed(&f, file), at, "what was set counts, not what was noted before");
    assert!(f.fs.getattr(file).unwrap().ctime > ctime);
    assert!(note());
    let before = accessed(&f, file);
    f.fs.note_access(file, AccessRule::Always).unwrap();
    assert!(accessed(&f, file) > before, "always means always");
    f.check();
}

/// Goal: notes cost nothing until there is a reason to write, and survive sync and close. Method: the place in the log
/// before and after a note; a kill right after it, which may lose it; a sync and a kill; a close; more notes than wait
/// at most, on files that nobody holds.
#[test]
fn noted_accesses_are_logged_lazily() {
    let mut f = Fixture::new(64 * MIB);
    let file = f.create(b"file");
    f.fs.sync().unwrap();
    let position = f.fs.position();
    f.fs.note_access(file, AccessRule::Relative).unwrap();
    assert_eq!(f.fs.position(), position, "a note is not logged at once");
    let noted = accessed(&f, file);
    f.fs.sync().unwrap();
    f.kill();
    assert_eq!(accessed(&f, file), noted);
    f.write(file, 0, b"data");
    f.fs.note_access(file, AccessRule::Relative).unwrap();
    let noted = accessed(&f, file);
    f.reopen();
    assert_eq!(accessed(&f, file), noted);
    assert_eq!(f.read_all(file), b"data");

    let files: Vec<InodeId> = (0..3000).map(|n| f.create(format!("{n}").as_bytes())).collect();
    for file in &files {
        f.fs.note_access(*file, AccessRule::Relative).unwrap();
    }
    let noted: Vec<Timestamp> = files.iter().map(|file| accessed(&f, *file)).collect();
    f.reopen();
    assert_eq!(files.iter().map(|file| accessed(&f, *file)).collect::<Vec<_>>(), noted);
    f.check();
}

/// Goal: a note about a file that goes away does no harm. Method: files unlinked after a note, one of them open, then
/// sync and close.
#[test]
fn notes_about_deleted_files_are_forgotten() {
    let mut f = Fixture::new(64 * MIB);
    let (gone, open) = (f.create(b"gone"), f.create(b"open"));
    f.fs.open_inode(Caller::ROOT, open, false).unwrap();
    for (ino, name) in [(gone, b"gone"), (open, b"open")] {
        f.fs.note_access(ino, AccessRule::Relative).unwrap();
        f.fs.unlink(ROOT, name).unwrap();
    }
    f.fs.sync().unwrap();
    f.check();
    f.fs.note_access(open, AccessRule::Always).unwrap();
    f.fs.release_inode(open).unwrap();
    refused(f.fs.note_access(open, AccessRule::Always), 2);
    f.reopen();
    f.check();
}

/// Goal: an access time that cannot be logged keeps no other from it, and is noted again when the file is read again. Method:
/// the first of three files that were read is in a subvolume whose versions are garbage while all are to be logged; a kill
/// after that, and another when it is mended.
#[test]
fn one_bad_note_does_not_hold_up_the_others() {
    let mut f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let bad = f.fs.create(Caller::ROOT, sub, b"bad", 0o644).unwrap().ino;
    let files = [bad, f.create(b"a"), f.create(b"b")];
    f.fs.sync().unwrap();
    let note = |f: &Fixture| {
        files.map(|ino| {
            f.fs.note_access(ino, AccessRule::Always).unwrap();
            accessed(f, ino)
        })
    };
    let noted = note(&f);
    // So that the record is to be copied.
    f.fs.snapshot(sub, ROOT, b"snapshot", true, false).unwrap();
    let family = f.fs.core().subvolumes.get(Slot::of(sub)).unwrap().family;
    let entries = spoil(&f.fs, TreeId::VERSIONS, family);
    refused(f.fs.sync(), 5);
    mend(&f.fs, TreeId::VERSIONS, &entries);
    f.fs.commit(f.fs.position()).unwrap();
    f.kill();
    for (ino, time) in files.into_iter().zip(noted).skip(1) {
        assert_eq!(accessed(&f, ino), time);
    }
    // Again, in one life.
    let before = note(&f);
    f.fs.snapshot(sub, ROOT, b"another", true, false).unwrap();
    let entries = spoil(&f.fs, TreeId::VERSIONS, family);
    refused(f.fs.sync(), 5);
    mend(&f.fs, TreeId::VERSIONS, &entries);
    let noted = note(&f);
    assert!(noted.iter().zip(before).all(|(after, before)| *after > before));
    f.fs.sync().unwrap();
    f.kill();
    assert_eq!(files.map(|ino| accessed(&f, ino)), noted);
    f.check();
}
