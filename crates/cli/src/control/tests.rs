use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use rustix::fd::AsRawFd;

use super::*;

struct Counting(AtomicUsize);

impl Service for Counting {
    fn stats(&self) -> Result<Value> {
        Ok(json!({ "answer_count": self.0.fetch_add(1, Relaxed) + 1 }))
    }
    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        bail!("the disk is on fire")
    }
    fn objection(&self) -> Option<String> {
        Some("the file is gone".to_owned())
    }
    fn trim(&self, request: &str) -> Result<Value> {
        Ok(json!(request))
    }
    fn remount(&self, words: &str) -> Result<Value> {
        Ok(json!(words))
    }
    fn versions(&self, caller: Caller, request: &str) -> Result<Value> {
        if let Ok(bytes) = request.parse() {
            return Ok(json!("x".repeat(bytes)));
        }
        Ok(json!([caller.uid, caller.gid, request]))
    }
}

// Goal: the end of a mount takes its own socket away, and not that of the next with the same device number. Method: a
// socket by its inode; another one under its name, also when that has come after the first look.
#[test]
fn a_socket_of_another_stays() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let own = UnixListener::bind(&path).expect("a socket");
    let inode = fs::symlink_metadata(&path).expect("it is there").ino();
    let server = |path: &Path| {
        let place = Some(Place { path: path.to_owned(), inode });
        Server { place: Arc::new(Mutex::new(place)), waiting: Arc::default() }
    };
    let kept = directory.path().join("kept");
    fs::rename(&path, &kept).expect("a rename");
    let _other = UnixListener::bind(&path).expect("a socket");
    server(&path).remove_socket();
    remove_inode(&path, inode).expect("it is put back");
    UnixStream::connect(&path).expect("the other answers");
    fs::rename(&kept, &path).expect("a rename");
    server(&path).remove_socket();
    assert_eq!(fs::read_dir(&directory).expect("a directory").count(), 0);
    drop(own);
    fs::remove_dir(directory.path()).expect("it is empty");
}

// Goal: requests are answered, errors arrive as errors, waiters hear the end. Method: a socket pair in place of
// the file, one thread per connection as in the daemon.
#[test]
fn requests_are_answered() {
    let service = Arc::new(Counting(AtomicUsize::new(0)));
    let waiting = Arc::new(Mutex::new(Waiting::default()));
    let admission = Arc::new(Admission::default());
    let connect = || {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let (service, waiting, admission) = (service.clone(), waiting.clone(), admission.clone());
        thread::spawn(move || serve(theirs, &*service, &waiting, &admission));
        Client::over(ours)
    };
    assert_eq!(connect().request("stats").expect("an answer"), json!({ "answer_count": 1 }));
    let error = connect().request("sync").expect_err("it failed");
    assert_eq!(error.to_string(), "the disk is on fire");
    assert_eq!(connect().request("trim 4096 0").expect("an answer"), json!("4096 0"));
    assert_eq!(connect().request("remount ro,noatime").expect("an answer"), json!("ro,noatime"));
    let me = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
    let name = "n".repeat(2000);
    let answer = connect().request(&format!("{VERSIONS}{name}")).expect("an answer");
    assert_eq!(answer, json!([me[0], me[1], name]));
    assert!(connect().request("dance").is_err());
    assert_eq!(connect().request("objection").expect("an answer"), json!("the file is gone"));
    // Who only asks whether anybody is there takes no place among those who wait.
    assert!(connect().answers());
    assert_eq!(waiting.lock().expect("no panic").clients.len(), 0);
    // As long as an answer may be, with what is around it, and one byte longer.
    let longest = REPLY_BYTES_MAX as usize - r#"{"ok":""}"#.len() - 1;
    let answer = connect().request(&format!("{VERSIONS}{longest}")).expect("an answer");
    assert_eq!(answer.as_str().map(str::len), Some(longest));
    let error = connect().request(&format!("{VERSIONS}{}", longest + 1)).expect_err("it is too long");
    assert!(error.to_string().contains("would be 16777217 bytes long"), "{error}");

    let mut waiter = connect();
    let (name, process) = waiter.enlist().expect("a name");
    assert_eq!(name, process::name());
    let process = process.expect("a descriptor of this process");
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    assert_eq!(ended, Ok(0));
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).expect("it is open");
    assert!(info.contains(&format!("Pid:\t{}\n", std::process::id())), "{info}");
    assert_eq!(waiter.server(), Some(std::process::id() as i32));
    let server = Server { place: Arc::default(), waiting: waiting.clone() };
    assert_eq!(waiting.lock().expect("no panic").clients.len(), 1, "who has heard is told of the end");
    server.announce(&Err("no flush".to_owned()));
    assert_eq!(waiter.next_line().expect_err("it failed").to_string(), "no flush");
    let mut late = connect();
    late.request("wait").expect("a name");
    assert_eq!(late.next_line().expect_err("it failed").to_string(), "no flush");
}

// Goal: what has been done is said before the process ends. Method: the end comes while a request is not answered.
#[test]
fn the_end_waits_for_answers() {
    let waiting = Arc::new(Mutex::new(Waiting::default()));
    let server = Server { place: Arc::default(), waiting: waiting.clone() };
    server.wait_answered();
    let unanswered = Unanswered::begin(&waiting);
    thread::scope(|scope| {
        let end = scope.spawn(|| server.wait_answered());
        thread::sleep(Duration::from_millis(20));
        assert!(!end.is_finished());
        drop(unanswered);
        end.join().expect("no panic");
    });
}

// Goal: who has gone away waits no longer: unmounts that are refused, however many, keep nobody from the next. Method: as many
// clients as may wait ask and go, one after another; then as many wait, and one goes.
#[test]
fn who_has_gone_does_not_wait() {
    let service = Arc::new(Counting(AtomicUsize::new(0)));
    let waiting = Arc::new(Mutex::new(Waiting::default()));
    let admission = Arc::new(Admission::default());
    let wait = || {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let (service, waiting, admission) = (service.clone(), waiting.clone(), admission.clone());
        thread::spawn(move || serve(theirs, &*service, &waiting, &admission));
        let mut client = Client::over(ours);
        client.request("wait").map(|_| client)
    };
    for n in 0..CLIENTS_MAX {
        drop(wait().unwrap_or_else(|error| panic!("client {n}: {error}")));
    }
    let mut clients = vec![wait().expect("there is room")];
    assert_eq!(waiting.lock().expect("no panic").clients.len(), 1);
    clients.extend((1..CLIENTS_MAX).map(|n| wait().unwrap_or_else(|error| panic!("client {n}: {error}"))));
    let error = wait().err().expect("that is one too many");
    assert_eq!(error.to_string(), "too many clients wait already");
    clients.pop();
    clients.push(wait().expect("there is room again"));
    let server = Server { place: Arc::default(), waiting: waiting.clone() };
    server.announce(&Ok(Ending::Durable));
    for mut client in clients {
        assert_eq!(client.next_line().expect("an answer"), Some(json!("closed")));
    }
}

/// Its syncs wait, and its trims meet a bug.
#[derive(Default)]
struct Stalled {
    answers: Mutex<bool>,
    changed: Condvar,
}

impl Service for Stalled {
    fn stats(&self) -> Result<Value> {
        Ok(json!("counters"))
    }
    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        let answers = self.answers.lock().expect("no panic");
        let _answers = self.changed.wait_while(answers, |answers| !*answers).expect("no panic");
        Ok(())
    }
    fn objection(&self) -> Option<String> {
        None
    }
    fn trim(&self, _: &str) -> Result<Value> {
        panic!("a bug, for a test")
    }
    fn remount(&self, _: &str) -> Result<Value> {
        bail!("not here")
    }
    fn versions(&self, _: Caller, _: &str) -> Result<Value> {
        bail!("not here")
    }
}

// Goal: requests that do not end keep nobody from the counters and from unmounting, though their clients have gone; a bug takes no
// place for good. Method: as many trims as there are places, each of which panics; then as many syncs that wait, whose clients go;
// one more, a look at the counters, an unmount's question; then the syncs end.
#[test]
fn what_does_not_end_keeps_nobody_from_looking_and_unmounting() {
    let service = Arc::new(Stalled::default());
    let waiting = Arc::new(Mutex::new(Waiting::default()));
    let admission = Arc::new(Admission::default());
    let connect = || {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let (service, waiting, admission) = (service.clone(), waiting.clone(), admission.clone());
        let thread = thread::spawn(move || serve(theirs, &*service, &waiting, &admission));
        (Client::over(ours), thread)
    };
    for _ in 0..CLIENTS_MAX {
        let (mut client, thread) = connect();
        assert!(client.request("trim 0 0").is_err(), "nobody answers after a panic");
        assert!(thread.join().is_err(), "that was a panic");
    }
    let syncs: Vec<_> = (0..CLIENTS_MAX)
        .map(|_| {
            let (mut client, thread) = connect();
            client.reader.get_mut().write_all(b"sync\n").expect("it is there");
            thread
        })
        .collect();
    let refused = || connect().0.request("sync").map_err(|error| error.to_string());
    let began = Instant::now();
    while waiting.lock().expect("no panic").unanswered_count < CLIENTS_MAX {
        assert!(began.elapsed() < Duration::from_secs(60), "they do not come");
        thread::sleep(Duration::from_millis(1));
    }
    let error = loop {
        // Counted as unanswered, and a moment later as admitted.
        match admission.admit("trim 0 0") {
            Ok(place) => drop(place),
            Err(_) => break refused().expect_err("there is no place"),
        }
    };
    assert!(error.contains("64 requests are being served"), "{error}");
    assert_eq!(connect().0.request("stats").expect("it has a place"), json!("counters"));
    assert_eq!(connect().0.request("objection").expect("it needs none"), Value::Null);
    assert_eq!(connect().0.request("wait").expect("it needs none"), process::name());
    assert!(connect().0.answers());
    *service.answers.lock().expect("no panic") = true;
    service.changed.notify_all();
    for thread in syncs {
        // Their clients have gone.
        let _ = thread.join().expect("no panic");
    }
    assert_eq!(connect().0.request("sync").expect("there is a place again"), process::name());
}

// Goal: what a mount says of its process is true where it is read. Method: counters and an objection, from where the process has another
// number, and from where it has none.
#[test]
fn answers_have_the_numbers_of_their_reader() {
    let advice = |number: u32| format!("cp --sparse=always /proc/{number}/fd/9 NEW");
    let stats =
        json!({ "pid": 1, "devices": [{ "file_state_reason": advice(1) }, { "file_state_reason": null }] });
    let seen = as_seen_here(stats.clone(), Some(4711));
    let expected = json!({ "pid": 4711, "devices": [{ "file_state_reason": advice(4711) }, { "file_state_reason": null }] });
    assert_eq!(seen, expected);
    assert_eq!(as_seen_here(stats, None)["pid"], Value::Null);
    assert_eq!(as_seen_here(json!(advice(1)), Some(4711)), json!(advice(4711)));
    assert_eq!(as_seen_here(Value::Null, Some(4711)), Value::Null);
}

// Goal: who waits for an answer for so long waits no longer, whatever the other end does. Method: one that begins an answer and does not end it, one
// that sends a byte now and then, and one that answers in two parts.
#[test]
fn an_answer_that_does_not_end_is_not_waited_for() {
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(60));
    for (first, rest, limit, expected) in
        [("{", "", short, None), ("{", "\"", short, None), ("{\"ok\":", " 7}\n", long, Some(json!(7)))]
    {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let other = thread::spawn(move || {
            theirs.write_all(first.as_bytes()).expect("it is read");
            let mut said = 0;
            while !end.load(Relaxed) && said < 1_000 {
                thread::sleep(Duration::from_millis(50));
                let _ = theirs.write_all(rest.as_bytes());
                said += 1;
            }
            said
        });
        let answer = Client::over(ours).request_within("stats", limit).expect("no error");
        ended.store(true, Relaxed);
        assert_eq!(answer, expected);
        assert!(other.join().expect("no panic") < 1_000, "it was waited for");
    }
}

// Goal: who finds the directory for the socket made by another goes on to the next, and clients find it there and nowhere else. Method:
// directories that others can enter, one of them with a socket of the same name, a symbolic link to a good one, and a free name; nothing
// but such.
#[test]
fn directories_of_others_are_passed_over() {
    let scratch = tempfile::tempdir().expect("a directory");
    let base = scratch.path().join("base");
    let names = ["open", "foreign", "link", "free"].map(|name| base.join(name));
    let [open, foreign, link, free] = &names;
    for directory in [&base, open, foreign] {
        DirBuilder::new().mode(0o755).create(directory).expect("a directory");
    }
    DirBuilder::new().mode(0o700).create(base.join("good")).expect("a directory");
    std::os::unix::fs::symlink(base.join("good"), link).expect("a link");
    let user_id = rustix::process::getuid().as_raw();
    let mount = mount_of(user_id);
    let _false_one = UnixListener::bind(foreign.join(socket_name(mount.device))).expect("a socket");
    let connect = || Client::connect_in(&names, &mount).expect("no error").is_some();
    assert!(!connect());
    let error = bind_in_one_of(&names[..3], mount.device, user_id).map(|_| ()).expect_err("none is private");
    assert!(format!("{error:#}").contains("not private"), "{error:#}");
    let (listener, place) = bind_in_one_of(&names, mount.device, user_id).expect("the last is free");
    assert_eq!(place.path.parent(), Some(free.as_path()));
    assert!(connect());
    listener.set_nonblocking(true).expect("a socket");
    assert!(listener.accept().is_ok(), "it has connected to another");
    fs::remove_dir_all(&base).expect("it is there");
}

fn mount_of(user_id: u32) -> Mount {
    Mount {
        device: (0, 50),
        mountpoint: "/mnt".into(),
        filesystem_type: varve_mount::FILESYSTEM_TYPE.to_owned(),
        source: "/pool".into(),
        flags: varve_mount::Flags::default(),
        user_id,
        group_id: 0,
    }
}
